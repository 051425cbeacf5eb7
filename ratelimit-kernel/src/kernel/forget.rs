//! Removal of clients: their windows, bans and drop-cache entries.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use ipnet::IpNet;
use ratelimit_common::layout::{GENERATIONS, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, map};
use ratelimit_common::source::Family;
use ratelimit_common::verification::Side;
use ratelimit_crash::{Point, reach};

use super::clients::{Client, Lengths};
use super::groups::Holder;
use super::windows::Windows;
use super::{Kernel, limits_of, map_ref, rules_len, state};
use crate::{DatapathError, Removed, batch};

impl Kernel {
    /// See [`crate::Datapath::clients`].
    pub(super) fn clients_within(&mut self, prefix: IpNet) -> Result<Vec<IpNet>, DatapathError> {
        let words = self.config_words()?;
        let (lengths, windows) = (Lengths::of(&words), Windows::of(&words));
        let is_meant = |client: &IpNet| prefix.contains(client) || client.contains(&prefix);
        // A client that the drop cache still refuses may have no window any more.
        let cached_drops = self.cached_drops()?;
        let mut found: BTreeSet<IpNet> =
            cached_drops.of_sources(&windows).filter_map(|of| of.net(lengths)).filter(is_meant).collect();
        let (name, key_len) = match (prefix, self.sources.ipv6_family) {
            (IpNet::V4(_), _) => (map::SOURCES_V4, size_of::<SourceKeyV4>()),
            (IpNet::V6(_), Family::V4 | Family::V6) => (map::SOURCES_V6, size_of::<SourceKeyV6>()),
            (IpNet::V6(_), Family::V6Wide) => (map::SOURCES_V6_WIDE, size_of::<SourceKeyV6Wide>()),
        };
        let (data, entries) = (state::data(map_ref(&self.ebpf, name)?)?, self.map(name)?.max_entries());
        batch::visit(data.fd().as_fd(), key_len, size_of::<Source>(), entries, |key, _| {
            let Some((bytes, slot)) = state::split_key(key) else { return };
            let holder = windows.holder(slot);
            let net = Client::from_bytes(bytes).and_then(|client| client.net(holder.lengths(lengths)));
            // A group concerns more clients than meant, unless the prefix contains it.
            found.extend(net.filter(|net| if holder == Holder::Source { is_meant(net) } else { prefix.contains(net) }));
        })
        .with_context(|| format!("read {name}"))?;
        Ok(found.into_iter().collect())
    }

    /// See [`crate::Datapath::forget_all`]. Windows are removed first. Meanwhile a banned source is dropped by its ban
    /// alone and opens no window that could lead to another ban.
    pub(super) fn forget_clients(&mut self, nets: &[IpNet]) -> Result<Removed, DatapathError> {
        let clients: HashSet<Client> = nets.iter().map(|net| Client::of(*net, self.sources.ipv6_family)).collect();
        let mut limits = BTreeMap::new();
        // Include the policy before or on trial.
        for generation in 0..GENERATIONS {
            let words = self.config_words_of(generation)?;
            let (own, windows) = (Lengths::of(&words), Windows::of(&words));
            let of_rules = words.rules[..rules_len(&words)].iter().flat_map(limits_of);
            limits.extend(of_rules.map(|limit| (limit.slot, (windows.holder(limit.slot), own))));
        }
        let mut removed = Removed::default();
        for net in nets {
            let (client, mut slots) = (Client::of(*net, self.sources.ipv6_family), BTreeSet::new());
            for (limit, _) in limits.iter().filter(|(_, (holder, own))| holder.is(*net, *own)) {
                let before = slots.len();
                for slot in Side::ALL.map(|side| side.slot(*limit)) {
                    if self.remove_window(client, slot)? {
                        slots.insert(slot);
                    }
                }
                removed.limits += usize::from(slots.len() > before);
            }
            removed.windows += slots.len();
        }
        reach(Point::WindowsRemoved);
        let now = self.read_clock()?;
        for entry in self.ban_entries()?.into_iter().filter(|entry| clients.contains(&entry.client)) {
            let was_there = self.remove_ban(entry.client, entry.slot)?;
            removed.bans += usize::from(was_there && entry.ban.holds(now));
        }
        reach(Point::BansRemoved);
        self.begin_epoch()?;
        self.remove_entries(|of| clients.contains(&of))?;
        reach(Point::CacheRemoved);
        Ok(removed)
    }

    fn remove_window(&mut self, client: Client, slot: u32) -> Result<bool, DatapathError> {
        match client {
            Client::V4(prefix) => self.remove::<_, Source>(map::SOURCES_V4, SourceKeyV4 { prefix, slot }),
            Client::V6(prefix) => self.remove::<_, Source>(map::SOURCES_V6, SourceKeyV6 { prefix, slot }),
            Client::V6Wide(prefix) => self.remove::<_, Source>(map::SOURCES_V6_WIDE, SourceKeyV6Wide { prefix, slot }),
        }
    }
}
