//! Access to one client's windows and bans in the maps.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use aya::Pod;
use aya::maps::{HashMap, MapError};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ratelimit_common::ban;
use ratelimit_common::layout::{
    BANS_CAPACITY, ChargeOrder, Config as ConfigWords, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, map,
};
use ratelimit_common::source::Family;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verification::repeated_of_verified;

use super::drop_cache::OfWindow;
use super::plain::Plain;
use super::windows::Windows;
use super::{Kernel, map_mut, map_ref, rules_len, state};
use crate::{Ban, BanReading, BansPosition, DatapathError, SourceReading, VisitedBans, batch};

/// Maximum number of bans kept in one map after expired bans are removed. The remaining quarter is for new bans.
const BANS_KEPT_MAX: usize = BANS_CAPACITY as usize / 4 * 3;

/// A client's prefix in the form that map keys use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    V4([u8; 4]),
    V6([u8; 8]),
    V6Wide([[u8; 8]; 2]),
}

/// Prefix lengths, in bits, of what counts as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) ipv4: u8,
    pub(super) ipv6: u8,
}

/// A ban as stored in its map.
pub(super) struct Entry {
    pub(super) client: Client,
    pub(super) slot: u32,
    pub(super) ban: ban::Ban,
}

impl Client {
    /// Returns the client of a prefix.
    pub(super) fn of(net: IpNet, family: Family) -> Self {
        match net {
            IpNet::V4(net) => Self::V4(net.network().octets()),
            IpNet::V6(net) => {
                let octets = net.network().octets();
                let (halves, _) = octets.as_chunks::<8>();
                match family {
                    Family::V4 | Family::V6 => Self::V6(halves[0]),
                    Family::V6Wide => Self::V6Wide([halves[0], halves[1]]),
                }
            }
        }
    }

    pub(super) fn from_bytes(prefix: &[u8]) -> Option<Self> {
        match prefix.len() {
            4 => prefix.try_into().ok().map(Self::V4),
            8 => prefix.try_into().ok().map(Self::V6),
            16 => Some(Self::V6Wide([prefix[..8].try_into().ok()?, prefix[8..].try_into().ok()?])),
            _ => None,
        }
    }

    /// Returns the client's prefix, or none if a length is invalid.
    pub(super) fn net(self, lengths: Lengths) -> Option<IpNet> {
        let v6 = |[high, low]: [[u8; 8]; 2]| {
            let address = u128::from(u64::from_be_bytes(high)) << 64 | u128::from(u64::from_be_bytes(low));
            Ipv6Net::new(Ipv6Addr::from(address), lengths.ipv6).ok().map(|net| IpNet::V6(net.trunc()))
        };
        match self {
            Self::V4(octets) => Ipv4Net::new(octets.into(), lengths.ipv4).ok().map(|net| IpNet::V4(net.trunc())),
            Self::V6(high) => v6([high, [0; 8]]),
            Self::V6Wide(halves) => v6(halves),
        }
    }

    /// Returns the charge order for this client, for the program that charges.
    pub(super) fn order(self) -> ChargeOrder {
        let (family, prefix) = match self {
            Self::V4([a, b, c, d]) => (ChargeOrder::V4, [[a, b, c, d, 0, 0, 0, 0], [0; 8]]),
            Self::V6(high) => (ChargeOrder::V6, [high, [0; 8]]),
            Self::V6Wide(halves) => (ChargeOrder::V6_WIDE, halves),
        };
        ChargeOrder { prefix, family, ..ChargeOrder::default() }
    }
}

impl Lengths {
    /// Returns the prefix lengths of a configuration.
    pub(super) fn of(words: &ConfigWords) -> Self {
        let ones: u32 = words.ipv6_mask.iter().map(|half| half.count_ones()).sum();
        let length = |ones: u32| u8::try_from(ones).unwrap_or(u8::MAX);
        Self { ipv4: length(words.ipv4_mask.count_ones()), ipv6: length(ones) }
    }

    /// Returns the prefix of an address.
    pub(super) fn net(self, address: IpAddr) -> Option<IpNet> {
        let length = if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        IpNet::new(address, length).ok().map(|net| net.trunc())
    }
}

impl Kernel {
    /// Returns one window of a client, or none if it is not in the map.
    pub(super) fn window(&self, client: Client, slot: u32) -> Result<Option<Source>, DatapathError> {
        match client {
            Client::V4(prefix) => self.look_up(map::SOURCES_V4, SourceKeyV4 { prefix, slot }),
            Client::V6(prefix) => self.look_up(map::SOURCES_V6, SourceKeyV6 { prefix, slot }),
            Client::V6Wide(prefix) => self.look_up(map::SOURCES_V6_WIDE, SourceKeyV6Wide { prefix, slot }),
        }
    }

    /// See [`crate::Datapath::add_refused`]. Only this process writes the window, so nothing is lost between the reading
    /// and the writing.
    pub(super) fn add_refused_to(
        &mut self,
        client: Client,
        slot: u32,
        bucket: BucketIndex,
        requests: u64,
    ) -> Result<bool, DatapathError> {
        let Some(mut window) = self.window(client, slot)?.filter(|_| requests > 0) else { return Ok(false) };
        let is_first = window.refused.is_first_in(bucket);
        window.refused = window.refused.and_more_in(bucket, requests);
        match client {
            Client::V4(prefix) => self.insert(map::SOURCES_V4, SourceKeyV4 { prefix, slot }, window)?,
            Client::V6(prefix) => self.insert(map::SOURCES_V6, SourceKeyV6 { prefix, slot }, window)?,
            Client::V6Wide(prefix) => self.insert(map::SOURCES_V6_WIDE, SourceKeyV6Wide { prefix, slot }, window)?,
        }
        Ok(is_first)
    }

    /// Returns how many refusals of a client's verified window repeated an earlier refusal, cached refusals included.
    pub(super) fn repeated(&self, client: Client, verified: u32, cached: OfWindow) -> Result<u64, DatapathError> {
        let window = self.window(client, repeated_of_verified(verified))?;
        Ok(window.map_or(0, |window| window.refused.count()).saturating_add(cached.repeated))
    }

    /// Returns the newest ban of a client by a rule, or none if it was deleted.
    pub(super) fn ban(&self, client: Client, slot: u32) -> Result<Option<ban::Ban>, DatapathError> {
        match client {
            Client::V4(prefix) => self.look_up(map::BANS_V4, SourceKeyV4 { prefix, slot }),
            Client::V6(prefix) => self.look_up(map::BANS_V6, SourceKeyV6 { prefix, slot }),
            Client::V6Wide(prefix) => self.look_up(map::BANS_V6_WIDE, SourceKeyV6Wide { prefix, slot }),
        }
    }

    pub(super) fn bans_in_force(&mut self) -> Result<Vec<Ban>, DatapathError> {
        let (words, entries) = (self.config_words()?, self.ban_entries()?);
        self.in_force(&words, &entries)
    }

    pub(super) fn bans_of_client(&mut self, net: IpNet) -> Result<Vec<Ban>, DatapathError> {
        let client = Client::of(net, self.sources.ipv6_family);
        let words = self.config_words()?;
        let mut entries = Vec::new();
        for rule in words.rules[..rules_len(&words)].iter().filter(|rule| rule.bans.steps_len != 0) {
            let slot = rule.bans.slot;
            entries.extend(self.ban(client, slot)?.map(|ban| Entry { client, slot, ban }));
        }
        self.in_force(&words, &entries)
    }

    /// Removes stale bans to make room, and returns their number. A ban that begins again between the check and its
    /// removal is lost. Its source is then admitted as after its first ban.
    pub(super) fn remove_stale_bans(&mut self) -> Result<usize, DatapathError> {
        let now = self.read_clock()?;
        let (v4, v6): (Vec<_>, Vec<_>) =
            self.ban_entries()?.into_iter().partition(|entry| matches!(entry.client, Client::V4(_)));
        let mut removed = 0;
        for Entry { client, slot, .. } in stale(v4, now).into_iter().chain(stale(v6, now)) {
            if self.ban(client, slot)?.is_some_and(|ban| !ban.holds(now)) && self.remove_ban(client, slot)? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(super) fn lift(&mut self, within: IpNet) -> Result<Vec<Ban>, DatapathError> {
        let words = self.config_words()?;
        let lengths = Lengths::of(&words);
        let mut entries = self.ban_entries()?;
        entries.retain(|entry| entry.client.net(lengths).is_some_and(|client| within.contains(&client)));
        let lifted = self.in_force(&words, &entries)?;
        let removed = entries.iter().try_for_each(|of| self.remove_ban(of.client, of.slot).map(|_| ()));
        // A new epoch invalidates the drop-cache entries of all removed bans, even if a later removal failed.
        self.begin_epoch()?;
        removed.map(|()| lifted)
    }

    /// See [`crate::Datapath::ban`]. An update that a packet makes to the ban at the same moment is lost: one drop, or
    /// the begin of a shorter ban.
    pub(super) fn ban_until(&mut self, net: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError> {
        let words = self.config_words()?;
        let Some(rule) = words.rules[..rules_len(&words)].get(rule).filter(|rule| !rule.is_dry_run()) else {
            return Ok(false);
        };
        let (client, slot, now) = (Client::of(net, self.sources.ipv6_family), rule.bans.slot, self.read_clock()?);
        let Some(ban) = ban::Ban::until(self.ban(client, slot)?, &rule.bans, now, until.0) else { return Ok(false) };
        match client {
            Client::V4(prefix) => self.insert(map::BANS_V4, SourceKeyV4 { prefix, slot }, ban)?,
            Client::V6(prefix) => self.insert(map::BANS_V6, SourceKeyV6 { prefix, slot }, ban)?,
            Client::V6Wide(prefix) => self.insert(map::BANS_V6_WIDE, SourceKeyV6Wide { prefix, slot }, ban)?,
        }
        Ok(true)
    }

    pub(super) fn windows_of(&mut self, addresses: &[IpAddr]) -> Result<Vec<Vec<SourceReading>>, DatapathError> {
        let (words, cached_drops) = (self.config_words()?, self.cached_drops()?);
        let windows = Windows::of(&words);
        let lengths = Lengths::of(&words);
        let mut all = Vec::with_capacity(addresses.len());
        for address in addresses {
            let mut readings = Vec::new();
            for (key, slot, is_verified) in windows.all() {
                let prefix = windows.holder(key).net(*address, lengths).context("the prefix of an address")?;
                let client = Client::of(prefix, self.sources.ipv6_family);
                let (window, cached) = (self.window(client, key)?, cached_drops.of(client, key));
                let OfWindow { dropped, until: refused_until, .. } = cached;
                if window.is_none() && refused_until.is_none() {
                    continue;
                }
                let mut window = window.unwrap_or_default();
                window.refused = window.refused.and(dropped);
                let repeated = if is_verified { self.repeated(client, key, cached)? } else { 0 };
                readings.push(SourceReading { prefix, slot, is_verified, window, refused_until, repeated });
            }
            all.push(readings);
        }
        Ok(all)
    }

    /// Returns the entries that are in force and belong to a rule, as sorted bans.
    fn in_force(&mut self, words: &ConfigWords, entries: &[Entry]) -> Result<Vec<Ban>, DatapathError> {
        let (now, lengths) = (self.read_clock()?, Lengths::of(words));
        let of = |entry: &Entry| of_rule(words, lengths, entry);
        let mut bans: Vec<Ban> = entries.iter().filter(|entry| entry.ban.holds(now)).filter_map(of).collect();
        bans.sort_unstable();
        Ok(bans)
    }

    /// Returns the names and key lengths of the ban maps in use.
    const fn ban_maps(&self) -> [(&'static str, usize); 2] {
        let v6 = match self.sources.ipv6_family {
            Family::V4 | Family::V6 => (map::BANS_V6, size_of::<SourceKeyV6>()),
            Family::V6Wide => (map::BANS_V6_WIDE, size_of::<SourceKeyV6Wide>()),
        };
        [(map::BANS_V4, size_of::<SourceKeyV4>()), v6]
    }

    pub(super) fn visit_part_of_bans(&mut self, from: BansPosition, visit: &mut dyn FnMut(BanReading)) -> VisitedBans {
        let Some((name, key_len)) = self.ban_maps().get(from.map).copied() else { return Ok(None) };
        let words = self.config_words()?;
        let lengths = Lengths::of(&words);
        let data = state::data(map_ref(&self.ebpf, name)?)?;
        let value_len = size_of::<ban::Ban>();
        let take = |key: &[u8], value: &[u8]| {
            let Some(entry) = entry(key, value) else { return };
            if let Some(ban) = of_rule(&words, lengths, &entry) {
                visit(BanReading { ban, dropped: entry.ban.dropped });
            }
        };
        let bucket = batch::visit_part(data.fd().as_fd(), key_len, value_len, BANS_CAPACITY, from.bucket, take)
            .with_context(|| format!("read {name}"))?;
        Ok(match bucket {
            Some(_) => Some(BansPosition { bucket, ..from }),
            None => {
                Some(from.map + 1).filter(|map| *map < self.ban_maps().len()).map(|map| BansPosition { map, bucket })
            }
        })
    }

    pub(super) fn ban_entries(&self) -> Result<Vec<Entry>, DatapathError> {
        let mut entries = Vec::new();
        for (name, key_len) in self.ban_maps() {
            let data = state::data(map_ref(&self.ebpf, name)?)?;
            batch::visit(data.fd().as_fd(), key_len, size_of::<ban::Ban>(), BANS_CAPACITY, |key, value| {
                entries.extend(entry(key, value));
            })
            .with_context(|| format!("read {name}"))?;
        }
        Ok(entries)
    }

    pub(super) fn remove_ban(&mut self, client: Client, slot: u32) -> Result<bool, DatapathError> {
        match client {
            Client::V4(prefix) => self.remove::<_, ban::Ban>(map::BANS_V4, SourceKeyV4 { prefix, slot }),
            Client::V6(prefix) => self.remove::<_, ban::Ban>(map::BANS_V6, SourceKeyV6 { prefix, slot }),
            Client::V6Wide(prefix) => self.remove::<_, ban::Ban>(map::BANS_V6_WIDE, SourceKeyV6Wide { prefix, slot }),
        }
    }

    fn look_up<K, V>(&self, name: &'static str, key: K) -> Result<Option<V>, DatapathError>
    where
        Plain<K>: Pod,
        Plain<V>: Pod,
    {
        let map: HashMap<_, Plain<K>, Plain<V>> =
            HashMap::try_from(map_ref(&self.ebpf, name)?).with_context(|| format!("open {name}"))?;
        match map.get(&Plain(key), 0) {
            Ok(Plain(value)) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(anyhow::Error::from(error).context(format!("read {name}")).into()),
        }
    }

    fn insert<K, V>(&mut self, name: &'static str, key: K, value: V) -> Result<(), DatapathError>
    where
        Plain<K>: Pod,
        Plain<V>: Pod,
    {
        let mut map: HashMap<_, Plain<K>, Plain<V>> =
            HashMap::try_from(map_mut(&mut self.ebpf, name)?).with_context(|| format!("open {name}"))?;
        Ok(map.insert(Plain(key), Plain(value), 0).with_context(|| format!("write to {name}"))?)
    }

    /// Removes a key from a map. Returns whether it was present.
    pub(super) fn remove<K, V>(&mut self, name: &'static str, key: K) -> Result<bool, DatapathError>
    where
        Plain<K>: Pod,
        Plain<V>: Pod,
    {
        let mut map: HashMap<_, Plain<K>, Plain<V>> =
            HashMap::try_from(map_mut(&mut self.ebpf, name)?).with_context(|| format!("open {name}"))?;
        match map.remove(&Plain(key)).map_err(anyhow::Error::from) {
            Ok(()) => Ok(true),
            Err(error) if state::errno(&error) == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error.context(format!("remove from {name}")).into()),
        }
    }
}

/// Returns the ban of an entry, or none if no rule in force owns it.
fn of_rule(words: &ConfigWords, lengths: Lengths, entry: &Entry) -> Option<Ban> {
    let mut rules = words.rules[..rules_len(words)].iter();
    let rule = rules.position(|rule| rule.bans.steps_len != 0 && rule.bans.slot == entry.slot)?;
    let (until, step) = (Nanos(entry.ban.until_ns), entry.ban.step.saturating_add(1));
    Some(Ban { client: entry.client.net(lengths)?, rule, until, step })
}

/// Selects the bans to remove from one map: those past their reset. If too many others are kept, also expired bans,
/// oldest first.
fn stale(entries: Vec<Entry>, now: Nanos) -> Vec<Entry> {
    let (mut stale, kept): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| !entry.ban.holds(now) && now.0 >= entry.ban.forgotten_ns);
    let too_many = kept.len().saturating_sub(BANS_KEPT_MAX);
    let mut ended: Vec<Entry> = kept.into_iter().filter(|entry| !entry.ban.holds(now)).collect();
    ended.sort_unstable_by_key(|entry| entry.ban.until_ns);
    stale.extend(ended.into_iter().take(too_many));
    stale
}

/// Parses one entry of a ban map. Returns none if the bytes are no such entry.
pub(super) fn entry(key: &[u8], value: &[u8]) -> Option<Entry> {
    let (prefix, slot) = key.split_at_checked(key.len().checked_sub(size_of::<u32>())?)?;
    let words: [[u8; 8]; 4] = value.as_chunks().0.try_into().ok()?;
    let [until_ns, forgotten_ns, _, dropped] = words.map(u64::from_ne_bytes);
    let [[a, b, c, d], admitted] =
        [words[2].first_chunk(), words[2].last_chunk()].map(|half| half.copied().unwrap_or([0; 4]));
    let (step, admitted) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(admitted));
    let ban = ban::Ban { until_ns, forgotten_ns, step, admitted, dropped };
    Some(Entry { client: Client::from_bytes(prefix)?, slot: u32::from_ne_bytes(slot.try_into().ok()?), ban })
}
