//! State of one source under the guards of its request limits. Pure.

use std::net::IpAddr;

use ratelimit_common::flow::DATAGRAMS_PER_COUNTED;
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use serde::{Deserialize, Serialize};

use super::sources::{Retry, WindowState};
use super::{Mode, seconds};
use ratelimit_datapath::SourceReading;
use ratelimit_policy::desired::{Group, Limit, Protocol, Rule};

/// State of one source under the guard of one request limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckGuard {
    /// Name of the limit's rule.
    pub rule: String,
    /// Mode of the rule: enforce or dry-run.
    pub mode: Mode,
    /// Group of sources that the guard counts as one; none for the source's own guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Completed connections of the client, counted once its attempts have reached the limit.
    pub connections: Guarded,
    /// TCP segments that begin no request, as the guard counts them.
    pub segments: Guarded,
    /// QUIC datagrams that are no request; those of a body count half. The guard counts one in
    /// [`DATAGRAMS_PER_COUNTED`], so the amounts are multiples of that. None in a rule without a QUIC port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<Guarded>,
    /// Length of the window.
    pub window_seconds: f64,
    /// True if an amount is over its limit, so that the guard refuses now.
    pub over: bool,
    /// Seconds until the guard admits again, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
}

/// Description of the connections that a guard counts.
pub const GUARDED_CONNECTIONS: &str = "connections without a request";
/// Description of the segments that a guard counts.
pub const GUARDED_SEGMENTS: &str = "segments that begin no request";
/// Description of the datagrams that a guard counts.
pub const GUARDED_DATAGRAMS: &str = "datagrams of QUIC that are no request";

/// Returns the guard's limit on one side in configuration syntax: `33/1m connections without a request`.
pub fn guard_limit_words(limit: &Limit, side: Side) -> String {
    let unit = match side {
        Side::Attempts | Side::Opened => GUARDED_CONNECTIONS,
        Side::Segments => GUARDED_SEGMENTS,
        Side::Datagrams => GUARDED_DATAGRAMS,
        Side::Unverified | Side::Verified | Side::Evidence | Side::Repeated => return limit.to_string(),
    };
    let guard = limit.guard(side);
    let shown = Limit { amount: shown(guard.amount, side), ..guard };
    format!("{} {unit}{}", shown.rate(), limit.per)
}

/// Returns the number of packets that `counted` represents in a window of this side.
pub fn shown(counted: u64, side: Side) -> u64 {
    match side {
        Side::Datagrams => counted.saturating_mul(DATAGRAMS_PER_COUNTED.into()),
        Side::Unverified
        | Side::Verified
        | Side::Evidence
        | Side::Attempts
        | Side::Opened
        | Side::Segments
        | Side::Repeated => counted,
    }
}

/// Amount used and limit of one guarded quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// Amount used in the window.
    pub used: u64,
    /// Amount that a window admits.
    pub limit: u64,
}

/// Guard of one limit, and the state of its windows.
pub(super) struct GuardStanding<'a> {
    pub(super) rule: &'a Rule,
    pub(super) limit: &'a Limit,
    pub(super) group: Option<Group>,
    pub(super) connections: Guarded,
    pub(super) segments: Guarded,
    /// QUIC datagrams, which only a rule with a QUIC port guards.
    pub(super) datagrams: Option<Guarded>,
    /// Time until connections and segments are admitted again; none while they are admitted.
    over_tcp: Option<Retry>,
    /// Time until datagrams are admitted again; none while they are admitted.
    over_udp: Option<Retry>,
    /// Protocol that the query is about; none for both.
    protocol: Option<Protocol>,
}

impl<'a> GuardStanding<'a> {
    /// Returns the guards of a rule that a source has used.
    pub(super) fn all(rule: &'a Rule, whom: IpAddr, windows: &[SourceReading], now: Nanos) -> Vec<Self> {
        let guards = rule.guarded().map(|limit| Self::of(rule, limit, whom, windows, now));
        guards.filter(Self::is_used).collect()
    }

    fn of(rule: &'a Rule, limit: &'a Limit, whom: IpAddr, windows: &[SourceReading], now: Nanos) -> Self {
        let standing = |side| {
            let guard = limit.guard(side);
            let found = windows.iter().find(|reading| reading.slot == guard.slot);
            let of = WindowState::of_reading(rule, &guard, found, now);
            (of, Guarded { used: shown(of.used, side), limit: shown(guard.amount, side) })
        };
        let ((attempts, _), (opened, connections), (others, segments), (quic, datagrams)) =
            (standing(Side::Attempts), standing(Side::Opened), standing(Side::Segments), standing(Side::Datagrams));
        // New connections are counted and refused only while attempts are over their limit.
        let over_opened = (attempts.over && opened.over).then(|| attempts.retry.min(opened.retry));
        let over_tcp = over_opened.max(others.over.then_some(others.retry));
        Self {
            rule,
            limit,
            group: rule.group_of(limit, whom),
            connections,
            segments,
            datagrams: rule.protects_quic().then_some(datagrams),
            over_tcp,
            over_udp: quic.over.then_some(quic.retry),
            protocol: None,
        }
    }

    /// Restricts the guard to packets of this protocol. Returns none if the source has used nothing of that.
    pub(super) fn of_protocol(mut self, protocol: Protocol) -> Option<Self> {
        self.protocol = Some(protocol);
        match protocol {
            Protocol::Tcp => self.over_udp = None,
            Protocol::Udp => self.over_tcp = None,
        }
        self.is_used().then_some(self)
    }

    /// Returns the amounts of the queried protocol, each with its description.
    fn parts(&self) -> impl Iterator<Item = (Guarded, &'static str)> {
        let of_tcp = [(self.connections, GUARDED_CONNECTIONS), (self.segments, GUARDED_SEGMENTS)];
        let of_udp = self.datagrams.map(|datagrams| (datagrams, GUARDED_DATAGRAMS));
        let (is_tcp, is_udp) = (self.protocol != Some(Protocol::Udp), self.protocol != Some(Protocol::Tcp));
        of_tcp.into_iter().filter(move |_| is_tcp).chain(of_udp.filter(|_| is_udp))
    }

    fn is_used(&self) -> bool {
        self.is_over() || self.parts().any(|(guarded, _)| guarded.used != 0)
    }

    /// Returns true if the guard refuses something now.
    pub(super) const fn is_over(&self) -> bool {
        self.over_tcp.is_some() || self.over_udp.is_some()
    }

    /// Returns the wait until the guard refuses nothing.
    pub(super) fn retry(&self) -> Retry {
        self.over_tcp.max(self.over_udp).unwrap_or_default()
    }

    /// Returns a description of the packets that the guard refuses.
    pub(super) fn refuses(&self) -> &'static str {
        match () {
            () if self.over_tcp.is_none() => GUARDED_DATAGRAMS,
            () if self.segments.used >= self.segments.limit => GUARDED_SEGMENTS,
            () => "new connections",
        }
    }

    /// Returns the source's use of the guard, in words.
    pub(super) fn used_words(&self) -> String {
        let words: Vec<String> =
            self.parts().map(|(guarded, what)| format!("{} of {} {what}", guarded.used, guarded.limit)).collect();
        format!("{} used", words.join(", "))
    }

    pub(super) fn report(&self) -> CheckGuard {
        CheckGuard {
            rule: self.rule.name.clone(),
            mode: self.rule.mode,
            per: self.group.as_ref().map(ToString::to_string),
            connections: self.connections,
            segments: self.segments,
            datagrams: self.datagrams,
            window_seconds: seconds(self.limit.window_ns),
            over: self.is_over(),
            retry_after_seconds: seconds(self.retry().after_ns),
        }
    }
}
