//! How one source stands with the guards of its limits of requests. Pure.

use std::net::IpAddr;

use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use serde::{Deserialize, Serialize};

use super::sources::{Retry, WindowState};
use super::{Mode, seconds};
use ratelimit_datapath::SourceReading;
use ratelimit_policy::desired::{Group, Limit, Rule};

/// How one source stands with the guard of one limit of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckGuard {
    /// The limit's rule.
    pub rule: String,
    /// Whether that rule drops.
    pub mode: Mode,
    /// The group of sources whose guard it is; none where it is the source's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Connections that its client has completed, once it has tried as often as the limit allows.
    pub connections: Guarded,
    /// TCP segments that begin no request, as the guard counts them.
    pub segments: Guarded,
    /// Length of the window.
    pub window_seconds: f64,
    /// One of them is over its limit, and the guard refuses now.
    pub over: bool,
    /// When it admits again, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
}

/// What a guard counts of connections, in words.
pub const GUARDED_CONNECTIONS: &str = "connections without a request";
/// What a guard counts of segments, in words.
pub const GUARDED_SEGMENTS: &str = "segments that begin no request";

/// What the guard of a limit allows on one of its sides, as a limit of requests is written:
/// `33/1m connections without a request`.
pub fn guard_limit_words(limit: &Limit, side: Side) -> String {
    let unit = match side {
        Side::Attempts | Side::Opened => GUARDED_CONNECTIONS,
        Side::Segments => GUARDED_SEGMENTS,
        Side::Unverified | Side::Verified | Side::Evidence | Side::Repeated => return limit.to_string(),
    };
    format!("{} {unit}{}", limit.guard(side).rate(), limit.per)
}

/// What the guard bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarded {
    /// Used in the window.
    pub used: u64,
    /// Admitted in a window.
    pub limit: u64,
}

/// The guard of one limit, and how its windows stand.
pub(super) struct GuardStanding<'a> {
    pub(super) rule: &'a Rule,
    pub(super) limit: &'a Limit,
    pub(super) group: Option<Group>,
    pub(super) connections: Guarded,
    pub(super) segments: Guarded,
    pub(super) over: bool,
    pub(super) retry: Retry,
}

impl<'a> GuardStanding<'a> {
    /// The guards of a rule that a source has used something of.
    pub(super) fn all(rule: &'a Rule, whom: IpAddr, windows: &[SourceReading], now: Nanos) -> Vec<Self> {
        let guards = rule.guarded().map(|limit| Self::of(rule, limit, whom, windows, now));
        guards.filter(|of| of.over || of.connections.used != 0 || of.segments.used != 0).collect()
    }

    fn of(rule: &'a Rule, limit: &'a Limit, whom: IpAddr, windows: &[SourceReading], now: Nanos) -> Self {
        let standing = |side| {
            let guard = limit.guard(side);
            let found = windows.iter().find(|reading| reading.slot == guard.slot);
            let of = WindowState::of_reading(rule, &guard, found, now);
            (of, Guarded { used: of.used, limit: guard.amount })
        };
        let ((attempts, _), (opened, connections), (others, segments)) =
            (standing(Side::Attempts), standing(Side::Opened), standing(Side::Segments));
        // While attempts are over their limit, new connections are counted and refused.
        let is_opened_over = attempts.over && opened.over;
        let opened = if is_opened_over { attempts.retry.min(opened.retry) } else { Retry::default() };
        let retry = opened.max(others.retry);
        let group = rule.group_of(limit, whom);
        Self { rule, limit, group, connections, segments, over: is_opened_over || others.over, retry }
    }

    pub(super) fn report(&self) -> CheckGuard {
        CheckGuard {
            rule: self.rule.name.clone(),
            mode: self.rule.mode,
            per: self.group.as_ref().map(ToString::to_string),
            connections: self.connections,
            segments: self.segments,
            window_seconds: seconds(self.limit.window_ns),
            over: self.over,
            retry_after_seconds: seconds(self.retry.after_ns),
        }
    }
}
