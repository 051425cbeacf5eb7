//! Current state of the fake: the policy in force, readings of windows, and the judging and counting of packets.

use anyhow::anyhow;
use ratelimit_common::choose::lapsed;
use ratelimit_common::hold::{Charges, is};

use super::*;
use crate::memory::LIST;
use ratelimit_policy::desired::Per;

impl World {
    pub(super) fn reading(&self, prefix: IpNet, slot: u32, window: Source) -> SourceReading {
        let rules = self.in_force().map_or(&[][..], |policy| &policy.rules);
        let mut limits = rules.iter().flat_map(|rule| rule.limits.iter().chain(&rule.shadow_limits));
        let verified = limits.find(|limit| Side::Verified.slot(limit.slot) == slot).map(|limit| limit.slot);
        let refused_until = self.cached_drop_until(prefix, slot);
        SourceReading {
            prefix,
            slot: verified.unwrap_or(slot),
            is_verified: verified.is_some(),
            window,
            refused_until,
            repeated: 0,
        }
    }

    /// Returns the windows that count packets of this address: those of the source and of its groups.
    pub(super) fn readings_of(&self, address: IpAddr) -> Vec<SourceReading> {
        let Some(policy) = self.in_force() else { return Vec::new() };
        let client = policy.client(address);
        let groups = policy.rules.iter().flat_map(|rule| &rule.limits).map(|limit| holder(limit.per, client));
        let holders: BTreeSet<IpNet> = groups.chain([client]).collect();
        let mut windows: BTreeMap<(IpNet, u32), Source> = BTreeMap::new();
        let entries = self.cached_drops.keys().filter(|key| self.cached_drop_until(key.0, key.1).is_some());
        windows.extend(entries.filter(|(of, _)| holders.contains(of)).map(|key| (*key, Source::default())));
        let all = self.packets.sources.windows.iter();
        windows.extend(all.filter(|((of, _), _)| holders.contains(of)).map(|(key, window)| (*key, *window)));
        windows.into_iter().map(|((of, slot), window)| self.reading(of, slot, window)).collect()
    }

    pub(super) fn cached_drop_until(&self, client: IpNet, slot: u32) -> Option<Nanos> {
        self.cached_drops.get(&(client, slot)).copied().filter(|until| self.now < *until)
    }

    pub(super) fn limit(&self, at: LimitAt) -> Result<Limit, DatapathError> {
        let limit = self.in_force().and_then(|policy| policy.rules.get(at.rule)?.limits.get(at.limit));
        Ok(*limit.ok_or_else(|| anyhow!("no limit {} of rule {}", at.limit, at.rule))?)
    }

    pub(super) fn in_force(&self) -> Option<&Policy> {
        match &self.trial {
            Some((before, until)) if *until <= self.now => Some(before),
            Some(_) | None => self.policy.as_ref(),
        }
    }

    pub(super) fn packet(&mut self, interface: &str, packet: FakePacket) -> Option<Reason> {
        let bytes = packet.bytes;
        self.judge(interface, bytes, |packets, rules, now| {
            packets.judge_abstract(rules, packet.source, packet.charges(), now)
        })
        .map(|verdict| verdict.reason)
    }

    /// Judges and counts a packet that arrives on an interface. Returns none if nothing is attached there.
    pub(super) fn judge(
        &mut self,
        interface: &str,
        bytes: u64,
        judge: impl FnOnce(&mut Packets, &Rules, Nanos) -> Judged,
    ) -> Option<Verdict> {
        self.known.get(interface).filter(|row| row.attached)?;
        let in_force = self.in_force()?;
        if self.rules.as_ref().is_none_or(|rules| rules.policy() != in_force) {
            self.rules = Some(Rules::new(in_force)?);
            self.packets.begin_epoch();
        }
        let Judged { verdict, has_banned } = judge(&mut self.packets, self.rules.as_ref()?, self.now);
        let has_lapsed = self.lapse.is_some_and(|at| at <= self.now);
        let verdict = if has_lapsed { lapsed(verdict) } else { verdict };
        let rule = self.in_force()?.rules.get(usize::from(verdict.rule)).map(|rule| rule.name.clone());
        let row = self.known.get_mut(interface)?;
        let counts = match &rule {
            Some(rule) => row.ruled.entry(rule.clone()).or_default(),
            None => &mut row.unruled,
        };
        add(counts, verdict.reason, Tally { packets: 1, bytes });
        if let (Some(rule), true) = (rule, has_banned) {
            *self.bans_begun.entry(rule).or_default() += 1;
        }
        Some(verdict)
    }
}

impl World {
    pub(super) fn catch_up(&mut self) -> Option<std::time::Duration> {
        let suspended_ns = std::mem::take(&mut self.suspended_ns);
        self.now = Nanos(self.now.0.saturating_add(suspended_ns));
        (suspended_ns != 0).then(|| std::time::Duration::from_nanos(suspended_ns))
    }
}

impl FakeKernel {
    /// Suspends the machine. Its clock stands still meanwhile.
    pub fn suspend(&self, nanoseconds: u64) {
        self.world().suspended_ns += nanoseconds;
    }

    /// Makes every later removal of a client's state fail.
    pub fn refuse_removal(&self) {
        self.world().refusing_removal = true;
    }

    /// Makes removal of clients' state work again.
    pub fn permit_removal(&self) {
        self.world().refusing_removal = false;
    }

    /// Sets how the interfaces are joined.
    pub fn join(&self, links: &[Link]) {
        self.world().links = links.to_vec();
    }
}

impl FakePacket {
    fn charges(self) -> Charges {
        let charges = Charges {
            bytes: u32::try_from(self.bytes).unwrap_or(u32::MAX),
            requests: u16::try_from(self.requests).unwrap_or(u16::MAX),
            ..Charges::default()
        };
        charges.with(is::OPENING, self.opens)
    }
}

/// Returns the holder of the window that counts this client's packets for a limit per `per`.
pub(super) fn holder(per: Per, client: IpNet) -> IpNet {
    match per {
        Per::Source => client,
        Per::Prefix { .. } => per.prefix_of(client.addr()).unwrap_or(client),
        Per::List => LIST,
    }
}
