//! Events of the daemon: the name for programs, the line for people, and the fields for `journalctl -o json`.
//!
//! Knows no budget, no datapath and no clock.

use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;

use ratelimit_common::verdict::Reason;
use ratelimit_policy::config::{OnExit, duration};
use ratelimit_policy::desired::Grant;
use ratelimit_report::event::{Event as Told, EventKind};
use ratelimit_report::snapshot::source_text;

/// Event of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    /// A rule starts to refuse a source.
    Refused(Refused),
    /// A rule banned a source.
    Ban(Banned),
    /// A rule in dry run would have banned a source.
    WouldBan(Banned),
    /// A ban expired or was lifted.
    BanEnd {
        source: String,
        rule: String,
        /// Packets that the source's bans dropped since the last reset, including earlier bans.
        dropped: u64,
        /// User who lifted the ban. None if the ban expired.
        lifted_by: Option<String>,
    },
    /// An application charged a source.
    Charge {
        source: String,
        /// Rule that was charged.
        rule: String,
        /// User that the application runs as.
        by: String,
        /// Charged amount, in the limit's unit.
        amount: u64,
    },
    /// A command allowed or denied a prefix.
    Grant {
        /// Allowance or denial.
        grant: Grant,
        /// Prefix of the grant.
        prefix: IpNet,
        /// User who gave the command.
        by: String,
        /// Reason that the user gave.
        reason: Option<String>,
        /// Expiry of the grant. None if permanent.
        until: Option<Timestamp>,
        /// Number of sources that were refused until this command.
        frees: usize,
    },
    /// A grant of a command expired.
    GrantEnd {
        /// Allowance or denial.
        grant: Grant,
        /// Prefix of the grant.
        prefix: IpNet,
        /// User who entered the grant.
        by: String,
    },
    /// A command lifted denials and bans, and removed the counters of sources over a limit.
    Unblock {
        /// Unblocked prefix. None means everything.
        prefix: Option<IpNet>,
        /// User who gave the command.
        by: String,
        /// Number of lifted denials.
        denials: usize,
        /// Rules of the lifted bans, one entry per ban.
        rules: Vec<String>,
        /// Number of lifted bans without an event of their own.
        untold: usize,
        /// Number of sources with removed counters, including the banned ones.
        freed: usize,
    },
    /// A command lifted allowances of earlier commands.
    Unallow {
        /// Prefix that contains the lifted allowances.
        prefix: IpNet,
        /// User who gave the command.
        by: String,
        /// Number of lifted allowances.
        removed: usize,
    },
    /// A command reset a source's counters.
    Reset {
        /// Source that was reset.
        source: IpNet,
        /// User who gave the command.
        by: String,
        /// Number of removed windows.
        windows: usize,
        /// Number of removed bans.
        bans: usize,
    },
    /// The daemon took over interfaces that an earlier run left limited.
    TakeOver {
        /// Names of the interfaces.
        interfaces: Vec<String>,
        /// Time that the filter ran without a daemon, if known.
        alone: Option<Duration>,
    },
    /// The filter was detached, or goes on without a daemon.
    Detach {
        /// Names of the interfaces.
        interfaces: Vec<String>,
        /// Tells whether the filter stays attached.
        left: OnExit,
        /// User who detached the filter. None if the daemon was stopped.
        by: Option<String>,
        /// Totals of the daemon's run. None if counters cannot be read.
        done: Option<Done>,
    },
}

/// Totals of one run of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Done {
    /// Dropped packets.
    pub(in super::super) dropped: u64,
    /// Packets that a dry run passed instead of dropping them.
    pub(in super::super) would_drop: u64,
    /// Duration of the run.
    pub(in super::super) within: Duration,
}

/// Start of a refusal, real or in dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Refused {
    pub(in super::super) source: String,
    /// Rule that refuses. None if the policy no longer has it.
    pub(in super::super) rule: Option<String>,
    /// Limit and its usage. None if the policy no longer has the limit.
    pub(in super::super) usage: Option<Usage>,
    /// Reason code, as `check` and the metrics use it.
    pub(in super::super) reason: Reason,
}

/// Ban of a source, real or in dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Banned {
    pub(in super::super) source: String,
    pub(in super::super) rule: String,
    /// Exceeded limit and its usage. None if the usage is no longer known.
    pub(in super::super) usage: Option<Usage>,
    /// Expiry of the ban.
    pub(in super::super) until: Timestamp,
    /// Number of consecutive bans of the source, including this one. At least 1.
    pub(in super::super) step: u32,
    /// Host or user that started the ban. None if a rule of this host did.
    pub(in super::super) by: Option<String>,
}

/// Usage of a limit by one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Usage {
    /// Limit in words, such as `5/1m connections`.
    pub(in super::super) limit: String,
    /// Used amount, in the limit's unit.
    pub(in super::super) used: u64,
}

impl Event {
    /// Returns the kind of the event.
    pub(super) const fn kind(&self) -> EventKind {
        match self {
            Self::Refused(Refused { reason: Reason::DryRun, .. }) => EventKind::WouldRefuse,
            Self::Refused(_) => EventKind::Refused,
            Self::Ban(_) => EventKind::Ban,
            Self::WouldBan(_) => EventKind::WouldBan,
            Self::BanEnd { .. } => EventKind::BanEnd,
            Self::Charge { .. } => EventKind::Charge,
            Self::Grant { grant, .. } | Self::GrantEnd { grant, .. } => match grant {
                Grant::Exempt => EventKind::Allow,
                Grant::Denied => EventKind::Deny,
            },
            Self::Unblock { .. } => EventKind::Unblock,
            Self::Unallow { .. } => EventKind::Unallow,
            Self::Reset { .. } => EventKind::Reset,
            Self::TakeOver { .. } => EventKind::Attach,
            Self::Detach { .. } => EventKind::Detach,
        }
    }

    /// Returns the event as a line for people.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Refused(of) => of.line(),
            Self::Charge { source, rule, by, amount } => {
                format!("{source} charged {amount} by rule \"{rule}\", by {by}")
            }
            Self::Ban(of) => of.line("banned", ""),
            Self::WouldBan(of) => of.line("would be banned", " (dry run)"),
            Self::BanEnd { source, rule, dropped, lifted_by } => {
                let how = lifted_by.as_ref().map_or_else(|| "expired".to_owned(), |by| format!("lifted by {by}"));
                format!("{source}: ban by rule \"{rule}\" {how}, {dropped} packets dropped")
            }
            Self::Grant { grant, prefix, by, reason, until, frees } => {
                let until = until.map_or_else(|| "permanently".to_owned(), |at| format!("until {}", instant(at)));
                let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
                let frees = if *frees == 0 { String::new() } else { format!(" (frees {})", counted(*frees, "source")) };
                format!("{prefix} {} {until} by {by}{reason}{frees}", word(*grant))
            }
            Self::GrantEnd { grant, prefix, by } => {
                format!("{prefix} is no longer {}: the time that {by} gave has expired", word(*grant))
            }
            Self::Unblock { prefix, by, denials, rules, untold, freed } => {
                let mut lifted = Vec::new();
                if *denials > 0 {
                    lifted.push(format!("{} lifted", counted(*denials, "denial")));
                }
                let mut names: Vec<&str> = rules.iter().map(String::as_str).collect();
                names.sort_unstable();
                names.dedup();
                if !names.is_empty() {
                    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                    let untold = match untold {
                        0 => String::new(),
                        untold => format!(" ({untold} of them without an event each)"),
                    };
                    let bans = counted(rules.len(), "ban");
                    lifted.push(format!("{bans} by rule {} lifted{untold}", quoted.join(", ")));
                }
                if *freed > 0 {
                    lifted.push(format!("counters of {} removed", counted(*freed, "source")));
                }
                if lifted.is_empty() {
                    lifted.push("nothing to lift".to_owned());
                }
                let prefix = prefix.map_or_else(|| "everything".to_owned(), |prefix| prefix.to_string());
                format!("{prefix} unblocked by {by}: {}", lifted.join(", "))
            }
            Self::Unallow { prefix, by, removed } => {
                format!("{prefix} no longer allowed by {by}: {} lifted", counted(*removed, "exemption"))
            }
            Self::Reset { source, by, windows, bans } => {
                let (windows, bans) = (counted(*windows, "window"), counted(*bans, "ban"));
                format!("{source}: counters reset by {by}, {windows} and {bans} removed")
            }
            Self::TakeOver { interfaces, alone } => {
                let alone = alone.map_or_else(String::new, |time| format!(" for {}", roughly(time)));
                format!("took over the filter on {}, which ran without a daemon{alone}", interfaces.join(", "))
            }
            Self::Detach { interfaces, left, by, done } => {
                let by = by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
                let (names, done) = (interfaces.join(", "), done.map_or_else(String::new, Done::words));
                match left {
                    OnExit::Detach => format!("detached from {names}{by}{done}"),
                    OnExit::Keep => format!(
                        "{names} stays limited without the daemon{done}; `ratelimitd detach` removes the filter"
                    ),
                }
            }
        }
    }

    /// Returns true for events that packets or applications cause. They can come in floods, unlike administrators'
    /// commands.
    pub(super) const fn is_of_a_rule(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Ban(_) | Self::WouldBan(_) | Self::BanEnd { .. } | Self::Charge { .. } => true,
            Self::Grant { .. }
            | Self::GrantEnd { .. }
            | Self::Unblock { .. }
            | Self::Unallow { .. }
            | Self::Reset { .. }
            | Self::TakeOver { .. }
            | Self::Detach { .. } => false,
        }
    }

    /// Converts the event to the form that the history and `events` use. `time` is when it happened.
    pub(super) fn told(&self, time: Timestamp) -> Told {
        let of = Told::new(whole_milliseconds(time), self.kind(), self.line());
        let limit = |usage: &Option<Usage>| usage.as_ref().map(|usage| usage.limit.clone());
        let used = |usage: &Option<Usage>| usage.as_ref().map(|usage| usage.used);
        match self {
            Self::Refused(Refused { source, rule, usage, reason }) => Told {
                source: Some(source.clone()),
                rule: rule.clone(),
                limit: limit(usage),
                used: used(usage),
                reason: Some(reason.label().to_owned()),
                ..of
            },
            Self::Ban(ban) | Self::WouldBan(ban) => Told {
                source: Some(ban.source.clone()),
                rule: Some(ban.rule.clone()),
                limit: limit(&ban.usage),
                used: used(&ban.usage),
                until: Some(ban.until),
                by: ban.by.clone(),
                reason: Some(
                    if of.kind == EventKind::Ban { Reason::Banned } else { Reason::DryRun }.label().to_owned(),
                ),
                ..of
            },
            Self::BanEnd { source, rule, lifted_by, .. } => Told {
                source: Some(source.clone()),
                rule: Some(rule.clone()),
                by: lifted_by.clone(),
                reason: Some(Reason::Banned.label().to_owned()),
                ..of
            },
            Self::Charge { source, rule, by, .. } => {
                Told { source: Some(source.clone()), rule: Some(rule.clone()), by: Some(by.clone()), ..of }
            }
            Self::Grant { prefix, by, reason, until, .. } => Told {
                source: Some(source_text(*prefix)),
                by: Some(by.clone()),
                reason: reason.clone(),
                until: *until,
                ..of
            },
            Self::GrantEnd { prefix, by, .. }
            | Self::Unallow { prefix, by, .. }
            | Self::Reset { source: prefix, by, .. } => {
                Told { source: Some(source_text(*prefix)), by: Some(by.clone()), ..of }
            }
            Self::Unblock { prefix, by, .. } => Told { source: prefix.map(source_text), by: Some(by.clone()), ..of },
            Self::Detach { by, .. } => Told { by: by.clone(), ..of },
            Self::TakeOver { .. } => of,
        }
    }
}

/// Writes an event to the log.
pub(super) fn log(of: &Told) {
    tracing::info!(
        kind = of.kind.label(),
        source = of.source,
        rule = of.rule,
        limit = of.limit,
        used = of.used,
        until = of.until.map(tracing::field::display),
        by = of.by,
        reason = of.reason,
        "{}",
        of.detail
    );
}

impl Refused {
    fn line(&self) -> String {
        let Self { source, rule, usage, reason } = self;
        let rule = rule.as_ref().map_or_else(|| "a rule that has ended".to_owned(), |rule| format!("rule \"{rule}\""));
        let usage = usage.as_ref().map_or_else(String::new, |of| format!(": used {} of {}", of.used, of.limit));
        let is_dry = *reason == Reason::DryRun;
        let done = if is_dry { "would be refused" } else { "refused" };
        let note = if is_dry {
            " (dry run)"
        } else if *reason == Reason::Guard {
            " (guard)"
        } else {
            ""
        };
        format!("{source} {done} by {rule}{usage}{note}")
    }
}

impl Banned {
    fn line(&self, done: &str, note: &str) -> String {
        let Self { source, rule, usage, until, step, by } = self;
        let usage = usage.as_ref().map_or_else(String::new, |of| format!(": used {} of {}", of.used, of.limit));
        let again = if *step > 1 { format!(", ban {step} in a row") } else { String::new() };
        let by = by.as_ref().map_or_else(String::new, |by| format!(", by {by}"));
        format!("{source} {done} by rule \"{rule}\" until {}{again}{usage}{note}{by}", instant(*until))
    }
}

impl Done {
    /// Formats the totals, such as `; 4120 packets dropped in 2h`.
    fn words(self) -> String {
        let Self { dropped, would_drop, within } = self;
        let would = if would_drop == 0 { String::new() } else { format!(", {would_drop} would have been") };
        let dropped = format!("{dropped} packet{} dropped", if dropped == 1 { "" } else { "s" });
        format!("; {dropped}{would} in {}", roughly(within))
    }
}

/// Formats a duration in whole seconds, or in whole minutes from one hour on.
fn roughly(time: Duration) -> String {
    let step = if time.as_secs() < 3_600 { 1 } else { 60 };
    let whole = time.as_secs() / step * step;
    duration::short(u64::try_from(Duration::from_secs(whole).as_nanos()).unwrap_or(u64::MAX))
}

fn whole_milliseconds(at: Timestamp) -> Timestamp {
    at.round(jiff::Unit::Millisecond).unwrap_or(at)
}

const fn word(grant: Grant) -> &'static str {
    match grant {
        Grant::Exempt => "allowed",
        Grant::Denied => "denied",
    }
}

fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests;
