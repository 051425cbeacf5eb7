//! How every source fared with each limit, as the kernel's own core judges it. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::hold::Cost;
use ratelimit_common::layout::{self, Unit};
use ratelimit_common::packet::Target;
use ratelimit_common::time::Nanos;

use crate::desired::{Limit, Policy, Ports, Protocol, QuicPorts, Rule, Unparsable};
use crate::memory::{self, Sources};

/// Sources that are judged; of more, only how much came from them is told. // 2^20 x (64 + 40 B a limit and ~100 B) = 214 MB
const SOURCES_MAX: usize = 1 << 20;

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

/// The limits, and how every source fared.
pub(super) struct Judge {
    policy: Policy,
    rule: Rule,
    /// The rule as the core reads it.
    encoded: layout::Rule,
    windows: Sources,
    sources_max: usize,
    pub(super) sources: HashMap<IpNet, Vec<Fared>>,
    /// What came from sources for which there was no place.
    pub(super) unplaced: u64,
}

impl Judge {
    pub(super) fn new(policy: &Policy) -> Option<Self> {
        let rule = policy.rules.first()?.clone();
        // As in a dry run, which bans no source.
        let encoded = memory::rule(&Rule { bans: None, ..rule.clone() })?;
        Some(Self {
            policy: policy.clone(),
            rule,
            encoded,
            windows: Sources::default(),
            sources_max: SOURCES_MAX,
            sources: HashMap::new(),
            unplaced: 0,
        })
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
        let limits = &self.encoded.limits[..self.encoded.limits_len.into()];
        // As in the kernel: what counts nowhere is remembered nowhere, so that SYNs from anywhere take no place.
        if limits.iter().all(|limit| cost.of(limit).0 == 0) {
            return true;
        }
        let client = self.policy.client(source);
        let is_full = self.sources.len() >= self.sources_max;
        let fared = match self.sources.get_mut(&client) {
            Some(fared) => fared,
            None if is_full => {
                self.unplaced += 1;
                return true;
            }
            None => self.sources.entry(client).or_insert_with(|| vec![Fared::default(); limits.len()]),
        };
        let held = self.windows.hold(client, &self.encoded, cost, now);
        for (position, (limit, fared)) in limits.iter().zip(fared).enumerate() {
            let amount = cost.of(limit).0;
            match held.refused_at {
                None => fared.admitted += amount,
                Some(at) if at == position => {
                    fared.refused += amount;
                    fared.span = Some((fared.span.map_or(now, |(first, _)| first), now));
                }
                Some(_) => {}
            }
        }
        held.refused_at.is_none()
    }
}
