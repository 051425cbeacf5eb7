//! Who is over which limit: each source's windows, charged by the kernel's own arithmetic. Pure.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::gcra;
use ratelimit_common::layout::Unit;
use ratelimit_common::packet::Target;
use ratelimit_common::time::Nanos;
use ratelimit_common::window::{self, CELLS, Charge};

use crate::desired::{Limit, Policy, Ports, Protocol, QuicPorts, Rule, Unparsable, WindowForm};

/// Sources that are judged; of more, only how much came from them is told. // 2^20 x (64 + 40 B a limit and ~100 B) = 214 MB
const SOURCES_MAX: usize = 1 << 20;

/// What one packet, or one line of a log, is in each unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Cost {
    const fn of(self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => self.requests,
            Unit::Connections => self.connections,
            Unit::Packets => self.packets,
            Unit::Bytes => self.bytes,
        }
    }
}

/// How one source fared with one limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Fared {
    words: [u64; CELLS],
    /// In the limit's unit.
    pub(super) admitted: u64,
    /// In the limit's unit, by this limit.
    pub(super) refused: u64,
    /// When it refused first and last.
    pub(super) span: Option<(Nanos, Nanos)>,
}

/// The limits, and how every source fared.
pub(super) struct Judge {
    policy: Policy,
    rule: Rule,
    sources_max: usize,
    pub(super) sources: HashMap<IpNet, Vec<Fared>>,
    /// What came from sources for which there was no place.
    pub(super) unplaced: u64,
}

impl Judge {
    pub(super) fn new(policy: &Policy) -> Option<Self> {
        let rule = policy.rules.first()?.clone();
        Some(Self { policy: policy.clone(), rule, sources_max: SOURCES_MAX, sources: HashMap::new(), unplaced: 0 })
    }

    #[cfg(test)]
    pub(super) const fn with_room_for(mut self, sources_max: usize) -> Self {
        self.sources_max = sources_max;
        self
    }

    pub(super) fn limits(&self) -> &[Limit] {
        &self.rule.limits
    }

    /// Whether the rule drops it, whoever sent it, since nobody can tell what it is.
    pub(super) fn drops(&self, target: &Target) -> bool {
        matches!(target, Target::Unwalkable) && self.rule.unparsable == Unparsable::Drop
    }

    /// Its UDP ports that speak QUIC.
    pub(super) const fn quic_ports(&self) -> QuicPorts {
        self.rule.quic_ports
    }

    pub(super) const fn ports(&self) -> &Ports {
        &self.rule.ports
    }

    /// Whether the rule judges what is sent there.
    pub(super) fn is_for(&self, target: &Target) -> bool {
        let counts_volume = || self.rule.limits.iter().any(|limit| matches!(limit.unit, Unit::Packets | Unit::Bytes));
        let counts_requests = || self.rule.limits.iter().any(|limit| limit.unit == Unit::Requests);
        match target {
            Target::Tcp { port, .. } => self.rule.ports.holds(Protocol::Tcp, *port),
            Target::Udp { port, .. } => self.rule.ports.holds(Protocol::Udp, *port),
            Target::Fragment { may_be_tcp } => counts_volume() || *may_be_tcp && counts_requests(),
            Target::Unwalkable => true,
            Target::Other => self.rule.ports.other_protocols,
            Target::Essential => false,
        }
    }

    /// Charges every limit, or none where one has no room. Whether it is admitted.
    pub(super) fn charge(&mut self, now: Nanos, source: IpAddr, cost: Cost) -> bool {
        // As in the kernel: what counts nowhere is remembered nowhere, so that SYNs from anywhere take no place.
        if self.rule.limits.iter().all(|limit| cost.of(limit.unit) == 0) {
            return true;
        }
        let client = self.policy.client(source);
        let is_full = self.sources.len() >= self.sources_max;
        let limits = &self.rule.limits;
        let fared = match self.sources.get_mut(&client) {
            Some(fared) => fared,
            None if is_full => {
                self.unplaced += 1;
                return true;
            }
            None => self.sources.entry(client).or_insert_with(|| vec![Fared::default(); limits.len()]),
        };
        for (limit, fared) in limits.iter().zip(fared.iter_mut()) {
            let amount = cost.of(limit.unit);
            if amount > 0 && !fared.has_room(limit, now, amount) {
                fared.refused += amount;
                fared.span = Some((fared.span.map_or(now, |(first, _)| first), now));
                return false;
            }
        }
        for (limit, fared) in limits.iter().zip(fared) {
            let amount = cost.of(limit.unit);
            if amount > 0 {
                fared.charge(limit, now, amount);
            }
        }
        true
    }
}

impl Fared {
    fn has_room(&self, limit: &Limit, now: Nanos, amount: u64) -> bool {
        match limit.form {
            WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
                window::has_room(&self.words, limit.arithmetic(), now.bucket(limit.bucket_ns), amount)
            }
            WindowForm::Gcra => gcra::has_room(&self.words, limit.leak(), now, amount),
        }
    }

    fn charge(&mut self, limit: &Limit, now: Nanos, amount: u64) {
        let words = self.words.map(Cell::new);
        let charge = match limit.form {
            WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
                window::charge(&words, limit.arithmetic(), now.bucket(limit.bucket_ns), amount)
            }
            WindowForm::Gcra => gcra::charge(&words, limit.leak(), now, amount),
        };
        match charge {
            Charge::Admitted(_) => {
                self.words = words.map(Cell::into_inner);
                self.admitted += amount;
            }
            // There was room, and nobody else charges.
            Charge::Refused | Charge::Contended | Charge::Unsettled(_) => {}
        }
    }
}
