//! Something that has happened: its name for programs, its line for people, and its fields for `journalctl -o json`.
//!
//! Knows no budget, no datapath and no clock.

use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;

use ratelimit_policy::config::{OnExit, duration};
use ratelimit_policy::desired::Grant;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    /// A rule has banned a source.
    Ban(Banned),
    /// A rule in dry run would have.
    WouldBan(Banned),
    /// A ban has expired.
    BanEnd {
        /// Whose.
        source: String,
        /// The rule that banned.
        rule: String,
        /// Packets that it has dropped, with those of earlier bans that were not forgotten.
        dropped: u64,
    },
    /// A command has allowed or denied a prefix.
    Grant {
        /// Which of the two.
        grant: Grant,
        /// What.
        prefix: IpNet,
        /// Who.
        by: String,
        /// Why.
        reason: Option<String>,
        /// Until when; none is permanent.
        until: Option<Timestamp>,
        /// Sources that were refused until then.
        frees: usize,
    },
    /// The end of that.
    GrantEnd {
        /// Which of the two.
        grant: Grant,
        /// What.
        prefix: IpNet,
        /// Who had entered it.
        by: String,
    },
    /// A command has lifted denials and bans, and removed the counters of what was over a limit.
    Unblock {
        /// Of what; none is everything.
        prefix: Option<IpNet>,
        /// Who.
        by: String,
        /// Denials of commands.
        denials: usize,
        /// The rules whose bans were lifted, once for each ban.
        rules: Vec<String>,
        /// Sources whose counters are removed, the banned ones too.
        freed: usize,
    },
    /// A command has lifted what commands allowed.
    Unallow {
        /// In what.
        prefix: IpNet,
        /// Who.
        by: String,
        /// Exemptions.
        removed: usize,
    },
    /// A command has reset a source's counters.
    Reset {
        /// Whose.
        source: IpNet,
        /// Who.
        by: String,
        /// Windows.
        windows: usize,
        /// Bans.
        bans: usize,
    },
    /// Interfaces that an earlier run left limited are this one's.
    TakeOver {
        /// Which.
        interfaces: Vec<String>,
        /// How long they were limited without a daemon, where that is known.
        alone: Option<Duration>,
    },
    /// The filter is off, or goes on without a daemon.
    Detach {
        /// Which interfaces.
        interfaces: Vec<String>,
        /// Whether it goes on.
        left: OnExit,
        /// What the daemon saw done; none where counters cannot be read.
        done: Option<Done>,
    },
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Done {
    /// Packets dropped.
    pub(in super::super) dropped: u64,
    /// Packets that dry run has passed.
    pub(in super::super) would_drop: u64,
    /// How long it took.
    pub(in super::super) within: Duration,
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Banned {
    /// Whose.
    pub(in super::super) source: String,
    /// The rule.
    pub(in super::super) rule: String,
    /// The limit that the source is over and what it has used of it; none where that is not remembered any more.
    pub(in super::super) usage: Option<Usage>,
    /// When it expires.
    pub(in super::super) until: Timestamp,
    /// The how-manieth in a row, from 1.
    pub(in super::super) step: u32,
}

/// How far a source has used a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Usage {
    /// The limit, `5/1m connections`.
    pub(in super::super) limit: String,
    /// Used of it, in its unit.
    pub(in super::super) used: u64,
}

impl Event {
    /// Its name for programs, as `events --json` has it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Ban(_) => "ban",
            Self::WouldBan(_) => "would_ban",
            Self::BanEnd { .. } => "ban_end",
            Self::Grant { grant, .. } | Self::GrantEnd { grant, .. } => match grant {
                Grant::Exempt => "allow",
                Grant::Denied => "deny",
            },
            Self::Unblock { .. } => "unblock",
            Self::Unallow { .. } => "unallow",
            Self::Reset { .. } => "reset",
            Self::TakeOver { .. } => "attach",
            Self::Detach { .. } => "detach",
        }
    }

    /// It in words.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Ban(of) => of.line("banned", ""),
            Self::WouldBan(of) => of.line("would be banned", " (dry run)"),
            Self::BanEnd { source, rule, dropped } => {
                format!("{source}: ban by rule \"{rule}\" expired, {dropped} packets dropped")
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
            Self::Unblock { prefix, by, denials, rules, freed } => {
                let mut lifted = Vec::new();
                if *denials > 0 {
                    lifted.push(format!("{} lifted", counted(*denials, "denial")));
                }
                let mut names: Vec<&str> = rules.iter().map(String::as_str).collect();
                names.sort_unstable();
                names.dedup();
                if !names.is_empty() {
                    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
                    lifted.push(format!("{} by rule {} lifted", counted(rules.len(), "ban"), quoted.join(", ")));
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
            Self::Detach { interfaces, left, done } => {
                let (names, done) = (interfaces.join(", "), done.map_or_else(String::new, Done::words));
                match left {
                    OnExit::Detach => format!("detached from {names}{done}"),
                    OnExit::Keep => format!(
                        "{names} stays limited without the daemon{done}; `ratelimitd detach` takes the filter off"
                    ),
                }
            }
        }
    }

    /// Whether a rule has done it by itself, which may come in floods. Each act of somebody takes a command.
    pub(super) const fn is_of_a_rule(&self) -> bool {
        match self {
            Self::Ban(_) | Self::WouldBan(_) | Self::BanEnd { .. } => true,
            Self::Grant { .. }
            | Self::GrantEnd { .. }
            | Self::Unblock { .. }
            | Self::Unallow { .. }
            | Self::Reset { .. }
            | Self::TakeOver { .. }
            | Self::Detach { .. } => false,
        }
    }

    /// Writes it to the log.
    pub(super) fn log(&self) {
        let mut of = Fields::default();
        match self {
            Self::Ban(ban) | Self::WouldBan(ban) => {
                of.source = Some(ban.source.clone());
                of.rule = Some(&ban.rule);
                of.limit = ban.usage.as_ref().map(|usage| usage.limit.as_str());
                of.used = ban.usage.as_ref().map(|usage| usage.used);
                of.until = Some(ban.until);
            }
            Self::BanEnd { source, rule, .. } => {
                (of.source, of.rule) = (Some(source.clone()), Some(rule.as_str()));
            }
            Self::Grant { prefix, by, reason, until, .. } => {
                of = Fields { by: Some(by), reason: reason.as_deref(), until: *until, ..Fields::of(*prefix) };
            }
            Self::GrantEnd { prefix, by, .. } | Self::Unallow { prefix, by, .. } => {
                of = Fields { by: Some(by), ..Fields::of(*prefix) };
            }
            Self::Unblock { prefix, by, .. } => {
                of = Fields { by: Some(by), ..prefix.map_or_else(Fields::default, Fields::of) };
            }
            Self::Reset { source, by, .. } => of = Fields { by: Some(by), ..Fields::of(*source) },
            Self::TakeOver { .. } | Self::Detach { .. } => {}
        }
        tracing::info!(
            kind = self.kind(),
            source = of.source,
            rule = of.rule,
            limit = of.limit,
            used = of.used,
            until = of.until.map(tracing::field::display),
            by = of.by,
            reason = of.reason,
            "{}",
            self.line()
        );
    }
}

impl Banned {
    fn line(&self, done: &str, note: &str) -> String {
        let Self { source, rule, usage, until, step } = self;
        let usage = usage.as_ref().map_or_else(String::new, |of| format!(": used {} of {}", of.used, of.limit));
        let again = if *step > 1 { format!(", ban {step} in a row") } else { String::new() };
        format!("{source} {done} by rule \"{rule}\" until {}{again}{usage}{note}", instant(*until))
    }
}

impl Done {
    /// `; 4120 packets dropped in 2h`.
    fn words(self) -> String {
        let Self { dropped, would_drop, within } = self;
        let would = if would_drop == 0 { String::new() } else { format!(", {would_drop} would have been") };
        let dropped = format!("{dropped} packet{} dropped", if dropped == 1 { "" } else { "s" });
        format!("; {dropped}{would} in {}", roughly(within))
    }
}

/// Whole seconds; of more than an hour, whole minutes.
fn roughly(time: Duration) -> String {
    let step = if time.as_secs() < 3_600 { 1 } else { 60 };
    let whole = time.as_secs() / step * step;
    duration::short(u64::try_from(Duration::from_secs(whole).as_nanos()).unwrap_or(u64::MAX))
}

/// What an event says of itself beside its line.
#[derive(Default)]
struct Fields<'a> {
    source: Option<String>,
    rule: Option<&'a str>,
    limit: Option<&'a str>,
    used: Option<u64>,
    until: Option<Timestamp>,
    by: Option<&'a str>,
    reason: Option<&'a str>,
}

impl Fields<'_> {
    fn of(prefix: IpNet) -> Self {
        Self { source: Some(prefix.to_string()), ..Self::default() }
    }
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
