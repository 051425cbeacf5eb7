//! Results of every source under each limit, judged by the kernel program's own core. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::choose::{self, Asked, Choice, choice, protecting};
use ratelimit_common::conversation::Walk;
use ratelimit_common::hold::Charges;
use ratelimit_common::layout::{self, LOGGED_REQUESTS, Unit};
use ratelimit_common::packet::Packet;
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::verification::EvidenceNeeds;
use ratelimit_common::window::amount_max;

use crate::busy::Prefixes;
use ratelimit_datapath::memory::{Conversations, Rules, Sources, address};
use ratelimit_policy::desired::{Limit, Mode, Per, Policy, Ports, Rule};

/// Maximum number of sources that are judged. Traffic of further sources is only counted.
// 2^20 x (72 + 40 B a limit and ~100 B) = 222 MB
pub(super) const SOURCES_MAX: usize = 1 << 20;

/// Number of charges between two reductions of the counted prefixes.
const BOUNDED_EVERY: u32 = 1 << 15;

/// Result of one source under one limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Fared {
    /// Amount admitted, in the limit's unit.
    pub(super) admitted: u64,
    /// Amount refused by this limit, in its unit.
    pub(super) refused: u64,
    /// Times of the first and the last refusal.
    pub(super) span: Option<(Nanos, Nanos)>,
}

/// Results of one source.
#[derive(Clone, Default)]
pub(super) struct Judged {
    /// Number of packets or requests with any counted amount.
    pub(super) counted: u64,
    /// Result under each limit, in the order of the limits.
    pub(super) limits: Vec<Fared>,
}

/// Limits, and the results of every source.
pub(super) struct Judge {
    rules: Rules,
    /// Rule of `rules` as it is applied, without evidence needs.
    rule: layout::Rule,
    conversations: Conversations,
    windows: Sources,
    sources_max: usize,
    pub(super) sources: HashMap<IpNet, Judged>,
    /// Demand of the prefixes under each limit, in the order of the limits. Empty for limits of groups.
    prefixes: Vec<Prefixes>,
    /// Number of charges since `prefixes` was last reduced.
    unbounded: u32,
    /// Number of packets or requests from sources without room in `sources`.
    pub(super) unplaced: u64,
}

impl Judge {
    pub(super) fn new(policy: &Policy) -> Option<Self> {
        // Dry run, and no bans.
        let mut rule = Rule { mode: Mode::DryRun, bans: None, ..policy.rules.first()?.clone() };
        // The kernel program has per-source limits first.
        rule.limits.sort_by_key(|limit| limit.per != Per::Source);
        let prefixes = rule.limits.iter().map(Prefixes::new).collect();
        let rules = Rules::new(&Policy { rules: vec![rule], ..policy.clone() })?;
        // Recorded traffic cannot verify its source, so a source's traffic counts as one.
        let rule = layout::Rule { evidence: EvidenceNeeds::default(), ..*rules.rule(0) };
        Some(Self {
            rules,
            rule,
            conversations: Conversations::default(),
            windows: Sources::default(),
            sources_max: SOURCES_MAX,
            sources: HashMap::new(),
            prefixes,
            unbounded: 0,
            unplaced: 0,
        })
    }

    /// Creates a judge with limits that no source exceeds, so that the windows hold all demand.
    pub(super) fn of_all(policy: &Policy) -> Option<Self> {
        let mut policy = policy.clone();
        for limit in policy.rules.iter_mut().flat_map(|rule| &mut rule.limits) {
            limit.amount = amount_max(limit.bucket_ns);
        }
        Self::new(&policy)
    }

    #[cfg(test)]
    pub(super) const fn with_room_for(mut self, sources_max: usize) -> Self {
        self.sources_max = sources_max;
        self
    }

    pub(super) fn limits(&self) -> &[Limit] {
        &self.rules.policy().rules[0].limits
    }

    /// Returns the client prefix of a source.
    pub(super) fn client(&self, source: IpAddr) -> IpNet {
        self.rules.policy().client(source)
    }

    /// Returns the window of a source under a limit.
    pub(super) fn window(&self, client: IpNet, limit: &Limit) -> Option<&layout::Source> {
        self.windows.windows.get(&(client, limit.slot))
    }

    /// Returns the demand of the prefixes under the limit with this position.
    pub(super) fn prefixes(&self, at: usize) -> &Prefixes {
        &self.prefixes[at]
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.rules.policy().rules[0].ports
    }

    /// Returns the rule that judges a packet, and the grant of its source.
    pub(super) fn choice(&self, packet: &Packet, now: Nanos) -> Choice {
        let asked_by = self.rules.asked_by(packet.destination, now);
        let asked = Asked::from(packet);
        choice(&asked_by, asked, protecting(&asked_by, asked.to).unwrap_or(0))
    }

    /// Returns the reason for a frame with too many VLAN tags.
    pub(super) fn too_many_tags(&self, now: Nanos) -> Reason {
        choose::too_many_tags(&self.rules.asked_by(Address::v4([0; 4]), now)).reason
    }

    /// Judges a packet that the limits decide on.
    pub(super) fn frame<F: Walk>(&mut self, frame: &F, packet: &Packet, now: Nanos) -> Reason {
        let seen = self.conversations.look(frame, packet, None, now, &self.rule);
        let reason = self.charge(now, address(packet.source), seen.charges);
        self.conversations.remember(seen, &self.rule, reason);
        self.enforced(reason)
    }

    /// Converts the rule's reason by its mode: a drop in dry run becomes [`Reason::DryRun`].
    pub(super) const fn enforced(&self, reason: Reason) -> Reason {
        choose::enforced(&self.rule, reason).reason
    }

    /// Judges a request of a log. `met` has one bit for each limit with a condition, in the order of the limits.
    pub(super) fn request(&mut self, now: Nanos, source: IpAddr, met: u8) -> Reason {
        let charges = Charges { requests: 1, ..Charges::default() };
        if met == 0 {
            return self.charge(now, source, charges);
        }
        let of_packets = self.rule;
        // Limits whose conditions the request does not meet are not charged.
        let mut met = met;
        for limit in self.rule.limits.iter_mut().filter(|limit| limit.unit == LOGGED_REQUESTS) {
            if met & 1 != 0 {
                limit.unit = Unit::Requests as u8;
            }
            met >>= 1;
        }
        let reason = self.charge(now, source, charges);
        self.rule = of_packets;
        reason
    }

    /// Charges every limit, or none if one refuses, and records the result for the source.
    pub(super) fn charge(&mut self, now: Nanos, source: IpAddr, charges: Charges) -> Reason {
        let limits = &self.rule.limits[..self.rule.limits_len.into()];
        let client = self.rules.policy().client(source);
        // As in the kernel, traffic that counts nowhere creates no source. Forged SYNs therefore use no memory.
        let counts_nowhere = limits.iter().all(|limit| charges.of(limit).0 == 0);
        let is_full = self.sources.len() >= self.sources_max;
        let fared = match self.sources.get_mut(&client) {
            _ if counts_nowhere && self.rule.refuse_all == 0 => return Reason::NotCounted,
            Some(fared) => fared,
            // With refuse = "all" a source over a limit is refused everything. An unknown source can be over a group
            // limit only.
            None if counts_nowhere => return self.windows.hold(client, &self.rule, charges, now).reason,
            None if is_full => {
                self.unplaced += 1;
                return Reason::NotAdmitted;
            }
            None => self
                .sources
                .entry(client)
                .or_insert_with(|| Judged { counted: 0, limits: vec![Fared::default(); limits.len()] }),
        };
        fared.counted += u64::from(!counts_nowhere);
        let held_limits = &self.rules.policy().rules[0].limits;
        for ((limit, of), prefixes) in limits.iter().zip(held_limits).zip(&mut self.prefixes) {
            let amount = charges.of(limit).0;
            if of.per == Per::Source && amount > 0 {
                prefixes.add(&client, now.bucket(of.bucket_ns), amount);
            }
        }
        self.unbounded += 1;
        if self.unbounded == BOUNDED_EVERY {
            self.unbounded = 0;
            self.prefixes.iter_mut().for_each(Prefixes::end_round);
        }
        let held = self.windows.hold(client, &self.rule, charges, now);
        let is_admitted = held.reason.action() == Action::Pass;
        for (position, (limit, fared)) in limits.iter().zip(&mut fared.limits).enumerate() {
            let amount = charges.of(limit).0;
            if is_admitted {
                fared.admitted += amount;
            } else if held.refused_at == Some(position) {
                fared.refused += amount;
                fared.span = Some((fared.span.map_or(now, |(first, _)| first), now));
            }
        }
        held.reason
    }
}
