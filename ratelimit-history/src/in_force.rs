//! Rules in force, and the causes for which episodes end. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use crate::book::{Key, Millis};

/// Maximum number of policies that are kept until an earlier daemon's database is open.
const BEFORE_MAX: usize = 16;

/// Cause of an episode's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// The ban expired by itself.
    Expired,
    /// Nothing was refused for longer than the limit's window.
    Quiet,
    /// A command lifted the ban.
    Lifted,
    /// A command reset the source's counters.
    Reset,
    /// A command allowed the source.
    Allowed,
    /// The filter was detached.
    Detached,
    /// The policy no longer has the rule, or the rule expired.
    RuleEnded,
    /// The rule no longer has the limit.
    LimitChanged,
    /// The rule no longer drops packets: dry run by configuration, by command or by the breaker.
    DryRun,
    /// The command `panic` passes all packets.
    Panic,
    /// The rule now enforces a limit that dry run only counted.
    Enforced,
    /// No daemon ran for `without_daemon`.
    WithoutDaemon,
    /// The machine was rebooted, which ends every ban.
    Reboot,
    /// The filter was gone when the daemon started. The time of its loss is not known.
    FilterGone,
}

impl EndCause {
    /// Returns the name in the database and in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Quiet => "quiet",
            Self::Lifted => "lifted",
            Self::Reset => "reset",
            Self::Allowed => "allowed",
            Self::Detached => "detached",
            Self::RuleEnded => "rule_ended",
            Self::LimitChanged => "limit_changed",
            Self::DryRun => "dry_run",
            Self::Panic => "panic",
            Self::Enforced => "enforced",
            Self::WithoutDaemon => "without_daemon",
            Self::Reboot => "reboot",
            Self::FilterGone => "filter_gone",
        }
    }
}

/// Policy that is enforced from a time on. Episodes that do not match it end at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Time from which the policy is enforced.
    pub time: Timestamp,
    /// Treatment of packets from that time on.
    pub judged: Judged,
}

/// Treatment of packets: by rules, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Packets are judged by these rules.
    By {
        /// All rules that judge packets.
        rules: Vec<RuleInForce>,
        /// Set if `panic` keeps all rules from dropping.
        is_panic: bool,
    },
    /// The filter is detached, so no rule judges packets.
    Detached,
    /// All rules judge packets, but nothing is dropped: no daemon ran for `without_daemon`.
    WithoutDaemon,
    /// Packets are judged by rules with new windows and bans, after a reboot or the loss of the filter.
    Anew {
        /// Time of the machine's last boot.
        boot: Timestamp,
    },
}

/// A rule that judges packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInForce {
    /// Name of the rule.
    pub name: String,
    /// Set if the rule drops packets.
    pub is_enforced: bool,
    /// Limits, as events name them.
    pub limits: Vec<String>,
    /// Shadow limits, as events name them.
    pub shadow_limits: Vec<String>,
}

/// Policies in force since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Told {
    latest: Option<Arc<InForce>>,
    /// All policies until an earlier daemon's open episodes are known.
    before: Vec<Arc<InForce>>,
}

impl Told {
    /// Records the next policy.
    pub(crate) fn push(&mut self, of: &Arc<InForce>, is_resumed: bool) {
        self.latest = Some(of.clone());
        if !is_resumed && self.before.len() < BEFORE_MAX {
            self.before.push(of.clone());
        }
    }

    /// Removes and returns the policies that may end an earlier daemon's episodes. The latest one is kept as well.
    pub(crate) fn take_before(&mut self) -> Vec<Arc<InForce>> {
        let mut before = std::mem::take(&mut self.before);
        if let Some(latest) = self.latest.clone().filter(|latest| before.last() != Some(latest)) {
            before.push(latest);
        }
        before
    }

    /// Returns the latest policy.
    pub(crate) fn latest(&self) -> Option<&Arc<InForce>> {
        self.latest.as_ref()
    }
}

impl InForce {
    /// Returns when and why this policy ends an episode. `seen` is the time of the episode's last news. `is_banned`
    /// is true if its ban has not expired.
    pub(crate) fn end_of(&self, key: &Key, seen: Millis, is_banned: bool) -> Option<(Millis, EndCause)> {
        let at = self.time.as_millisecond();
        match &self.judged {
            Judged::Detached => Some((at, EndCause::Detached)),
            Judged::WithoutDaemon => (!key.would).then_some((at, EndCause::WithoutDaemon)),
            Judged::Anew { boot } => {
                let boot = boot.as_millisecond();
                Some(if seen < boot { (boot, EndCause::Reboot) } else { (seen, EndCause::FilterGone) })
            }
            Judged::By { rules, is_panic } => {
                if key.rule.is_empty() {
                    return None;
                }
                let Some(rule) = rules.iter().find(|rule| *rule.name == *key.rule) else {
                    return Some((at, EndCause::RuleEnded));
                };
                rule.end_of(key, is_banned, *is_panic).map(|cause| (at, cause))
            }
        }
    }
}

impl RuleInForce {
    fn end_of(&self, key: &Key, is_banned: bool, is_panic: bool) -> Option<EndCause> {
        let has = |limits: &[String]| limits.iter().any(|limit| **limit == *key.limit);
        // Bans by another host or of a prefix name no limit.
        let is_known = key.limit.is_empty() || has(&self.limits);
        match (key.would, self.is_enforced) {
            (true, _) if has(&self.shadow_limits) => None,
            (true, true) if is_known => Some(EndCause::Enforced),
            (true, false) | (false, true) if is_known => None,
            (false, false) if is_panic => Some(EndCause::Panic),
            (false, false) => Some(EndCause::DryRun),
            // A ban belongs to the rule, so it survives a change of the limit.
            (false, true) if is_banned => None,
            (true, _) | (false, true) => Some(EndCause::LimitChanged),
        }
    }
}
