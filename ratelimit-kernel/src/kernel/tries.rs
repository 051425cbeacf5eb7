//! The tries of prefixes: read in batches, and updated only where they differ. A million prefixes take a second, so
//! existing entries are not written again, not even by a later run.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::time::Instant;

use anyhow::Context as _;
use aya::Pod;
use aya::maps::lpm_trie::{Key, LpmTrie};
use ipnet::IpNet;
use ratelimit_common::access::{STEPS, Step};
use ratelimit_common::layout::{
    GENERATION_BITS, GENERATIONS, Prefix, PrefixFilter, PrefixKeyV4, PrefixKeyV6, RuleSet, map,
};
use ratelimit_common::source::Address;

use super::plain::{Plain, plain_box};
use super::{Kernel, map_mut, state};
use crate::{DatapathError, batch, encode};

/// Minimum number of entries for which the duration is logged.
const SAID_FROM: usize = 50_000;

/// Contents of each generation of the tries, as far as this run knows.
#[derive(Debug, Default)]
pub(super) struct Tries {
    pub(super) prefixes: [Option<BTreeMap<IpNet, Prefix>>; GENERATIONS as usize],
    /// Filters in [`map::PREFIX_FILTER`]. None until this run has written them.
    pub(super) filters: [Option<Box<PrefixFilter>>; GENERATIONS as usize],
    pub(super) targets: [Option<BTreeMap<IpNet, RuleSet>>; GENERATIONS as usize],
}

impl Kernel {
    /// Reads the contents of the source tries if unknown, after a start or an error.
    pub(super) fn know_prefixes(&mut self) -> Result<(), DatapathError> {
        if self.generations.tries.prefixes.iter().all(Option::is_some) {
            return Ok(());
        }
        let mut held = [const { BTreeMap::new() }; GENERATIONS as usize];
        self.read_trie(map::PREFIXES_V4, size_of::<PrefixKeyV4>(), &mut held, encode::net_v4)?;
        self.read_trie(map::PREFIXES_V6, size_of::<PrefixKeyV6>(), &mut held, encode::net_v6)?;
        for (known, held) in self.generations.tries.prefixes.iter_mut().zip(held) {
            *known = Some(held);
        }
        Ok(())
    }

    /// Writes the filters that tell packets that no prefix holds their source, from the contents of the tries. Must be
    /// called before this run's program judges packets, because an earlier run's filter belongs to its own program.
    pub(super) fn fill_filters(&mut self) -> Result<(), DatapathError> {
        self.know_prefixes()?;
        for generation in 0..GENERATIONS {
            let held = self.generations.tries.prefixes[generation as usize].as_ref();
            let filter = filter_of(held.into_iter().flat_map(BTreeMap::keys));
            self.write_filter(generation, filter)?;
        }
        Ok(())
    }

    fn write_filter(&mut self, generation: u32, filter: Box<PrefixFilter>) -> Result<(), DatapathError> {
        let known = &self.generations.tries.filters[generation as usize];
        if known.as_ref() == Some(&filter) {
            return Ok(());
        }
        // After a failed write, packets read the filter from before or this one.
        self.array::<Plain<PrefixFilter>>(map::PREFIX_FILTER)?
            .set(generation, plain_box(filter.clone()).as_ref(), 0)
            .with_context(|| format!("write {}", map::PREFIX_FILTER))?;
        self.generations.tries.filters[generation as usize] = Some(filter);
        Ok(())
    }

    /// Adds the entries of a trie to the generations in `held`. `net` makes a prefix from its length and its address
    /// bytes.
    fn read_trie(
        &mut self,
        name: &'static str,
        data_len: usize,
        held: &mut [BTreeMap<IpNet, Prefix>; GENERATIONS as usize],
        net: impl Fn(u32, &[u8]) -> Option<IpNet>,
    ) -> Result<(), DatapathError> {
        let entries = self.map(name)?.max_entries();
        let (map, key_len) = (state::data(map_mut(&mut self.ebpf, name)?)?.fd().as_fd(), size_of::<u32>() + data_len);
        batch::visit_trie(map, key_len, size_of::<Prefix>(), entries, |key, value| {
            let mut add = || {
                let (length, rest) = key.split_first_chunk::<4>()?;
                let (generation, address) = rest.split_first_chunk::<4>()?;
                let held = held.get_mut(u32::from_ne_bytes(*generation) as usize)?;
                let length = u32::from_ne_bytes(*length).checked_sub(GENERATION_BITS)?;
                held.insert(net(length, address)?, prefix(value)?);
                Some(())
            };
            // Other entries are in no generation that packets read.
            add();
        })
        .with_context(|| format!("read {name}"))?;
        Ok(())
    }

    /// Writes prefixes into a generation of the tries, possibly while packets read it. Each packet finds either the old
    /// or the new entry.
    pub(super) fn write_prefixes_of(
        &mut self,
        generation: u32,
        prefixes: BTreeMap<IpNet, Prefix>,
    ) -> Result<(), DatapathError> {
        self.know_prefixes()?;
        self.check_room(&prefixes)?;
        let wanted = filter_of(prefixes.keys());
        // The filter announces a prefix before it is in a trie, and until it is removed from there. Old prefixes stay
        // announced, also after an error.
        let mut both = wanted.clone();
        if let Some(known) = &self.generations.tries.filters[generation as usize] {
            both.add_all(known);
        }
        self.write_filter(generation, both)?;
        let held = self.generations.tries.prefixes[generation as usize].take();
        self.write_trie(map::PREFIXES_V4, generation, held.as_ref(), &prefixes, encode::key_v4)?;
        self.write_trie(map::PREFIXES_V6, generation, held.as_ref(), &prefixes, encode::key_v6)?;
        self.generations.tries.prefixes[generation as usize] = Some(prefixes);
        self.write_filter(generation, wanted)
    }

    /// Checks that the maps have room for these prefixes. Pinned maps may come from a version with smaller ones.
    fn check_room(&self, prefixes: &BTreeMap<IpNet, Prefix>) -> Result<(), DatapathError> {
        let v4 = prefixes.keys().filter(|net| matches!(net, IpNet::V4(_))).count();
        for (name, count) in [(map::PREFIXES_V4, v4), (map::PREFIXES_V6, prefixes.len() - v4)] {
            let room = self.map(name)?.max_entries() / GENERATIONS;
            if count > room as usize {
                return Err(DatapathError::Pins {
                    path: self.pins.as_ref().map_or_else(|| name.into(), |pins| pins.map(name).display().to_string()),
                    why: format!(
                        "it has room for {room} prefixes, and {count} are needed; the filter stays in force. Remove \
                         its state with `ratelimitd detach`, then start again"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Updates one generation of a trie to hold exactly `wanted`. Writes only differences to `held`, or everything if
    /// the contents are unknown, at the start or after an error.
    pub(super) fn write_trie<const N: usize, V: Copy + PartialEq>(
        &mut self,
        name: &'static str,
        generation: u32,
        held: Option<&BTreeMap<IpNet, V>>,
        wanted: &BTreeMap<IpNet, V>,
        key: impl Fn(&IpNet, u32) -> Option<(u32, [u32; N])>,
    ) -> Result<(), DatapathError>
    where
        Plain<V>: Pod,
    {
        let began = Instant::now();
        let map = map_mut(&mut self.ebpf, name)?;
        let trie: LpmTrie<_, [u32; N], Plain<V>> = LpmTrie::try_from(&*map).with_context(|| format!("open {name}"))?;
        let key = |net: &IpNet| key(net, generation).map(|(bits, data)| Key::new(bits, data));
        let stale: Vec<_> = match held {
            Some(held) => held.keys().filter(|net| !wanted.contains_key(net)).filter_map(&key).collect(),
            None => {
                let all = trie.keys().collect::<Result<Vec<_>, _>>().with_context(|| format!("list {name}"))?;
                let of = |key: &Key<[u32; N]>| (key.prefix_len(), key.data());
                let wanted: BTreeSet<_> = wanted.keys().filter_map(&key).map(|key| of(&key)).collect();
                all.into_iter().filter(|key| key.data()[0] == generation && !wanted.contains(&of(key))).collect()
            }
        };
        let is_new = |net: &IpNet, value: &V| held.and_then(|held| held.get(net)) != Some(value);
        let new = wanted.iter().filter(|(net, value)| is_new(net, value));
        let (nets, (keys, values)): (Vec<_>, (Vec<_>, Vec<_>)) =
            new.filter_map(|(net, value)| Some((*net, (key(net)?, Plain(*value))))).unzip();
        let changes = stale.len() + keys.len();
        if changes >= SAID_FROM {
            tracing::info!(map = name, "writing {} prefixes, and removing {}", keys.len(), stale.len());
        }
        let map = state::data(map)?.fd().as_fd();
        // SAFETY: the map was opened above with these types of keys and values.
        unsafe { batch::remove(map, &stale) }
            .map_err(|stopped| stopped.error)
            .with_context(|| format!("remove from {name}"))?;
        // SAFETY: the map was opened above with these types of keys and values.
        let written = unsafe { batch::update(map, &keys, &values) };
        if let Err(stopped) = written {
            // Remove the added entries, so that no packet finds them and their memory is free again.
            let is_held = |net: &IpNet| held.is_some_and(|held| held.contains_key(net));
            let added: Vec<_> =
                nets.iter().zip(&keys).take(stopped.at).filter(|(net, _)| !is_held(net)).map(|(_, key)| *key).collect();
            // SAFETY: the map was opened above with these types of keys and values.
            if let Err(second) = unsafe { batch::remove(map, &added) } {
                tracing::warn!("after a failed write: remove from {name}: {}", second.error);
            }
            if stopped.error.raw_os_error() == Some(libc::ENOMEM) {
                return Err(DatapathError::Unsupported {
                    what: format!("hold {} prefixes in {name}", wanted.keys().filter_map(key).count()),
                    why: format!("the kernel had no memory left after {}; name fewer, or shorter ones", stopped.at),
                });
            }
            let net = nets.get(stopped.at).map_or_else(String::new, ToString::to_string);
            return Err(anyhow::Error::from(stopped.error).context(format!("write {net} to {name}")).into());
        }
        if changes >= SAID_FROM {
            tracing::info!(map = name, took_ms = began.elapsed().as_millis(), "wrote {} prefixes", keys.len());
        }
        Ok(())
    }
}

/// Returns the filter of these prefixes.
fn filter_of<'a>(prefixes: impl Iterator<Item = &'a IpNet>) -> Box<PrefixFilter> {
    let mut filter = Box::new(PrefixFilter::EMPTY);
    for prefix in prefixes {
        let network = match prefix {
            IpNet::V4(of) => Address::v4(of.network().octets()),
            IpNet::V6(of) => Address::v6(of.network().octets()),
        };
        filter.add(network, prefix.prefix_len());
    }
    filter
}

/// Parses a value of the source tries.
fn prefix(bytes: &[u8]) -> Option<Prefix> {
    let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let rules = words.next()?;
    let mut access = [Step(0); STEPS];
    for step in &mut access {
        *step = Step(words.next()?);
    }
    Some(Prefix { rules, access })
}
