//! What commands change in the fake: who is allowed and denied during a trial, and what is reset of clients.

use std::collections::BTreeSet;

use ipnet::IpNet;
use ratelimit_common::verification::Side;

use super::World;
use crate::Removed;
use ratelimit_policy::desired::{Limit, Policy};

impl World {
    /// Grants what these grant, in what is on trial and in what was before it. False where no trial runs.
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
        // A group is more than who is meant, unless all of it is.
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
        // A limit has a window of each side.
        let had =
            |client: IpNet, limit: &Limit| Side::ALL.iter().any(|side| gone.contains(&(client, side.slot(limit.slot))));
        let limits = self.in_force().into_iter().flat_map(|policy| &policy.rules);
        let limits = limits.flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
        let limits = limits.map(|limit| clients.iter().filter(|client| had(**client, limit)).count()).sum();
        Removed { windows: gone.len(), limits, bans }
    }
}
