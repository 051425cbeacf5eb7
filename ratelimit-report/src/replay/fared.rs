//! How every source fared with each limit, as the kernel's own core judges it. Pure.

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

use ratelimit_datapath::memory::{Conversations, Rules, Sources, address};
use ratelimit_policy::desired::{Limit, Mode, Per, Policy, Ports, Rule};

/// Sources that are judged; of more, only how much came from them is told.
// 2^20 x (72 + 40 B a limit and ~100 B) = 222 MB
pub(super) const SOURCES_MAX: usize = 1 << 20;

/// How one source fared with one limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Fared {
    /// In the limit's unit.
    pub(super) admitted: u64,
    /// In the limit's unit, by this limit.
    pub(super) refused: u64,
    /// When it refused first and last.
    pub(super) span: Option<(Nanos, Nanos)>,
}

/// What came from one source.
#[derive(Clone, Default)]
pub(super) struct Judged {
    /// Packets or requests of which anything counted.
    pub(super) counted: u64,
    /// By limit.
    pub(super) limits: Vec<Fared>,
}

/// The limits, and how every source fared.
pub(super) struct Judge {
    rules: Rules,
    /// The one of them, as sources are held to it.
    rule: layout::Rule,
    conversations: Conversations,
    windows: Sources,
    sources_max: usize,
    pub(super) sources: HashMap<IpNet, Judged>,
    /// What came from sources for which there was no place.
    pub(super) unplaced: u64,
}

impl Judge {
    pub(super) fn new(policy: &Policy) -> Option<Self> {
        // A dry run, which bans no source.
        let mut rule = Rule { mode: Mode::DryRun, bans: None, ..policy.rules.first()?.clone() };
        // As the kernel's core has them: those of each source first.
        rule.limits.sort_by_key(|limit| limit.per != Per::Source);
        let rules = Rules::new(&Policy { rules: vec![rule], ..policy.clone() })?;
        // What comes from where, nobody proves to who reads of it: it is all one.
        let rule = layout::Rule { evidence: EvidenceNeeds::default(), ..*rules.rule(0) };
        Some(Self {
            rules,
            rule,
            conversations: Conversations::default(),
            windows: Sources::default(),
            sources_max: SOURCES_MAX,
            sources: HashMap::new(),
            unplaced: 0,
        })
    }

    /// With limits that nobody is over, so that the windows tell what was wanted.
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

    /// Whose client a source is.
    pub(super) fn client(&self, source: IpAddr) -> IpNet {
        self.rules.policy().client(source)
    }

    /// A source's window in a limit.
    pub(super) fn window(&self, client: IpNet, limit: &Limit) -> Option<&layout::Source> {
        self.windows.windows.get(&(client, limit.slot))
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.rules.policy().rules[0].ports
    }

    /// Who judges a packet, and what its source is granted.
    pub(super) fn choice(&self, packet: &Packet, now: Nanos) -> Choice {
        let asked_by = self.rules.asked_by(packet.destination, now);
        let asked = Asked::from(packet);
        choice(&asked_by, asked, protecting(&asked_by, asked.to).unwrap_or(0))
    }

    /// What becomes of what is behind too many tags.
    pub(super) fn too_many_tags(&self, now: Nanos) -> Reason {
        choose::too_many_tags(&self.rules.asked_by(Address::v4([0; 4]), now)).reason
    }

    /// Judges a packet whose limits decide.
    pub(super) fn frame<F: Walk>(&mut self, frame: &F, packet: &Packet, now: Nanos) -> Reason {
        let seen = self.conversations.look(frame, packet, None, now, &self.rule);
        let reason = self.charge(now, address(packet.source), seen.charges);
        self.conversations.remember(seen, &self.rule, reason);
        self.enforced(reason)
    }

    /// What becomes of a packet of which the rule says this.
    pub(super) const fn enforced(&self, reason: Reason) -> Reason {
        choose::enforced(&self.rule, reason).reason
    }

    /// Judges a request of a log, which meets these conditions: a bit for each, in the order of the limits that have one.
    pub(super) fn request(&mut self, now: Nanos, source: IpAddr, met: u8) -> Reason {
        let charges = Charges { requests: 1, ..Charges::default() };
        if met == 0 {
            return self.charge(now, source, charges);
        }
        let of_packets = self.rule;
        // Limits whose conditions it does not meet are not charged.
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

    /// Charges every limit, or none where one has no room.
    pub(super) fn charge(&mut self, now: Nanos, source: IpAddr, charges: Charges) -> Reason {
        let limits = &self.rule.limits[..self.rule.limits_len.into()];
        let client = self.rules.policy().client(source);
        // As in the kernel: what counts nowhere is remembered nowhere, so that SYNs from anywhere take no place.
        let counts_nowhere = limits.iter().all(|limit| charges.of(limit).0 == 0);
        let is_full = self.sources.len() >= self.sources_max;
        let fared = match self.sources.get_mut(&client) {
            _ if counts_nowhere && self.rule.refuse_all == 0 => return Reason::NotCounted,
            Some(fared) => fared,
            // Where everything is refused of who is over a limit, that is too: here, over that of its group.
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
