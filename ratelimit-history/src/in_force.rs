//! What is enforced, and why episodes end. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use crate::book::{Key, Millis};

/// Policies that are kept until the database of an earlier daemon is open.
const BEFORE_MAX: usize = 16;

/// Why an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// Its ban ran out.
    Expired,
    /// Nothing was refused for longer than the limit's window.
    Quiet,
    /// A command lifted its ban.
    Lifted,
    /// A command reset the source's counters.
    Reset,
    /// A command allowed the source.
    Allowed,
    /// The filter was taken off.
    Detached,
    /// The policy has the rule no more, or the rule's time is over.
    RuleEnded,
    /// The rule has the limit no more.
    LimitChanged,
    /// The rule drops nothing any more: dry run by configuration, by command or by the breaker.
    DryRun,
    /// `panic` passes everything.
    Panic,
    /// The rule enforces what dry run only counted.
    Enforced,
    /// No daemon ran for the time of `without_daemon`.
    WithoutDaemon,
    /// The machine was started anew, which ends every ban.
    Reboot,
    /// The filter was gone when the daemon started, and nothing says since when.
    FilterGone,
}

impl EndCause {
    /// Its name in the database and in JSON.
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

/// What is enforced from a time on. Episodes of anything else end at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Since when.
    pub time: Timestamp,
    /// How packets are judged.
    pub judged: Judged,
}

/// How packets are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// By these rules.
    By {
        /// Every rule that judges packets.
        rules: Vec<RuleInForce>,
        /// Whether `panic` is why none of them drops.
        is_panic: bool,
    },
    /// By none: the filter was taken off.
    Detached,
    /// By all, and nothing is dropped: no daemon ran for the time of `without_daemon`.
    WithoutDaemon,
    /// By rules whose windows and bans are all new. The machine was started at this time.
    Anew {
        /// When the machine was started.
        boot: Timestamp,
    },
}

/// A rule that judges packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInForce {
    /// Its name.
    pub name: String,
    /// Whether it drops.
    pub is_enforced: bool,
    /// Its limits, as events name them.
    pub limits: Vec<String>,
    /// Its shadow limits.
    pub shadow_limits: Vec<String>,
}

/// What ends episodes, from the daemon's start on.
#[derive(Debug, Default)]
pub(crate) struct Told {
    latest: Option<Arc<InForce>>,
    /// All of them until what an earlier daemon left open is known.
    before: Vec<Arc<InForce>>,
}

impl Told {
    /// Takes the next one in.
    pub(crate) fn push(&mut self, of: &Arc<InForce>, is_resumed: bool) {
        self.latest = Some(of.clone());
        if !is_resumed && self.before.len() < BEFORE_MAX {
            self.before.push(of.clone());
        }
    }

    /// Returns all that ends what an earlier daemon left open, and forgets all but the latest.
    pub(crate) fn take_before(&mut self) -> Vec<Arc<InForce>> {
        let mut before = std::mem::take(&mut self.before);
        if let Some(latest) = self.latest.clone().filter(|latest| before.last() != Some(latest)) {
            before.push(latest);
        }
        before
    }

    /// Returns the latest.
    pub(crate) fn latest(&self) -> Option<&Arc<InForce>> {
        self.latest.as_ref()
    }
}

impl InForce {
    /// Returns when and why an episode ends by this, which was seen last at `seen`. `is_banned` is that its ban has not run out.
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
        // A ban that another host, or a prefix, has begun names no limit.
        let is_known = key.limit.is_empty() || has(&self.limits);
        match (key.would, self.is_enforced) {
            (true, _) if has(&self.shadow_limits) => None,
            (true, true) if is_known => Some(EndCause::Enforced),
            (true, false) | (false, true) if is_known => None,
            (false, false) if is_panic => Some(EndCause::Panic),
            (false, false) => Some(EndCause::DryRun),
            // A ban is of the rule: it goes on with another limit.
            (false, true) if is_banned => None,
            (true, _) | (false, true) => Some(EndCause::LimitChanged),
        }
    }
}
