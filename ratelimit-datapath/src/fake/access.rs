//! Changes that commands make in the fake: grants during a trial, and the removal of clients' state.

use std::collections::BTreeSet;

use ipnet::IpNet;
use ratelimit_common::verification::Side;

use super::World;
use crate::Removed;
use ratelimit_policy::desired::{Limit, Policy};

impl World {
    /// Replaces the grants of the policy on trial and of the policy before it. Returns false if no trial runs.
    pub(super) fn replace_access(&mut self, tried: &Policy, before: &Policy) -> bool {
        let access_of = |of: &Policy, from: &Policy| Policy { access: from.access.clone(), ..of.clone() };
        let Some((was, until)) = self.trial.take() else { return false };
        self.trial = Some((access_of(&was, before), until));
        self.policy = self.policy.take().map(|was| access_of(&was, tried));
        self.cached_drops.clear();
        self.packets.begin_epoch();
        true
    }

    pub(super) fn clients(&self, prefix: IpNet) -> Vec<IpNet> {
        let windows = self.packets.sources.windows.keys().chain(self.cached_drops.keys());
        let all: BTreeSet<IpNet> = windows.map(|(client, _)| *client).collect();
        // A group concerns more clients than meant, unless the prefix contains it.
        let is_source = |net: &IpNet| self.in_force().is_some_and(|policy| policy.client(net.addr()) == *net);
        let is_meant = |net: &IpNet| prefix.contains(net) || is_source(net) && net.contains(&prefix);
        all.into_iter().filter(is_meant).collect()
    }

    pub(super) fn forget(&mut self, clients: &[IpNet]) -> Removed {
        let clients: BTreeSet<IpNet> = clients.iter().copied().collect();
        let bans = self.bans().filter(|ban| clients.contains(&ban.client) && self.now < ban.until).count();
        self.cached_drops.retain(|(of, _), _| !clients.contains(of));
        let windows = &mut self.packets.sources.windows;
        let gone: BTreeSet<_> =
            windows.extract_if(.., |(of, _), _| clients.contains(of)).map(|(window, _)| window).collect();
        self.packets.sources.bans.retain(|(of, _), _| !clients.contains(of));
        self.packets.begin_epoch();
        // A limit has one window for each side.
        let had =
            |client: IpNet, limit: &Limit| Side::ALL.iter().any(|side| gone.contains(&(client, side.slot(limit.slot))));
        let limits = self.in_force().into_iter().flat_map(|policy| &policy.rules);
        let limits = limits.flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
        let limits = limits.map(|limit| clients.iter().filter(|client| had(**client, limit)).count()).sum();
        Removed { windows: gone.len(), limits, bans }
    }
}
