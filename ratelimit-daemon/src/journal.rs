//! What happens to sources, a line each in the log. What rules do by themselves is logged within a budget: a flood of
//! bans fills no disk.
//!
//! Knows no datapath and no clock. A line is for people; the same as fields is for the journal (`journalctl -o json`).

use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;

use super::engine::Moment;
use ratelimit_policy::config::{OnExit, duration};
use ratelimit_policy::desired::Grant;

/// Lines that may come at once.
const BURST: u64 = 50;
/// Lines that may come each second after that.
const LINES_PER_SECOND: u64 = 10;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
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
pub(super) struct Done {
    /// Packets dropped.
    pub(super) dropped: u64,
    /// Packets that dry run has passed.
    pub(super) would_drop: u64,
    /// How long it took.
    pub(super) within: Duration,
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Banned {
    /// Whose.
    pub(super) source: String,
    /// The rule.
    pub(super) rule: String,
    /// The limit that the source is over and what it has used of it; none where that is not remembered any more.
    pub(super) usage: Option<Usage>,
    /// When it expires.
    pub(super) until: Timestamp,
    /// The how-manieth in a row, from 1.
    pub(super) step: u32,
}

/// How far a source has used a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// The limit, `5/1m connections`.
    pub(super) limit: String,
    /// Used of it, in its unit.
    pub(super) used: u64,
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

/// How many bans, ends of bans and bans that would have been are not logged one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub(super) bans: u64,
    pub(super) ends: u64,
    pub(super) would: u64,
}

impl Unlogged {
    /// It in words; none where there is nothing to say.
    fn line(self) -> Option<String> {
        let parts = [(self.bans, "bans"), (self.ends, "expired bans"), (self.would, "bans that dry run prevented")];
        let parts: Vec<String> =
            parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} more {what}")).collect();
        let text = format!(
            "{} not logged one by one (at most {LINES_PER_SECOND} lines a second); `ratelimitd list` shows the bans",
            parts.join(", ")
        );
        (!parts.is_empty()).then_some(text)
    }
}

/// So many lines may be written.
#[derive(Debug)]
pub(super) struct Budget {
    /// In thousandths of a line.
    left: u64,
    filled_at: Duration,
}

impl Budget {
    /// Full.
    pub(super) const fn full(now: Duration) -> Self {
        Self { left: BURST * 1_000, filled_at: now }
    }

    /// Lines that may be written now.
    pub(super) fn room(&mut self, now: Duration) -> usize {
        let more = now.saturating_sub(self.filled_at).as_millis().saturating_mul(u128::from(LINES_PER_SECOND));
        self.left = self.left.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)).min(BURST * 1_000);
        self.filled_at = self.filled_at.max(now);
        usize::try_from(self.left / 1_000).unwrap_or(usize::MAX)
    }

    /// Logs as many as there is room for, in order, and says of the rest how many they are.
    pub(super) fn log(&mut self, events: &[Event], mut unlogged: Unlogged, moment: Moment) {
        let room = self.room(moment.uptime);
        let (logged, rest) = events.split_at(room.min(events.len()));
        logged.iter().for_each(Event::log);
        for event in rest {
            match event {
                Event::Ban(_) => unlogged.bans += 1,
                Event::BanEnd { .. } => unlogged.ends += 1,
                Event::WouldBan(_) => unlogged.would += 1,
                // An administrator's act is logged whatever it costs: each takes a command.
                Event::Grant { .. }
                | Event::GrantEnd { .. }
                | Event::Unblock { .. }
                | Event::Unallow { .. }
                | Event::Reset { .. }
                | Event::TakeOver { .. }
                | Event::Detach { .. } => event.log(),
            }
        }
        self.left = self.left.saturating_sub(1_000 * logged.len() as u64);
        if let Some(line) = unlogged.line() {
            tracing::info!(bans = unlogged.bans, ends = unlogged.ends, would_ban = unlogged.would, "{line}");
        }
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
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn banned(source: &str, step: u32) -> Banned {
        Banned {
            source: source.into(),
            rule: "ssh".into(),
            usage: Some(Usage { limit: "5/1m connections".into(), used: 5 }),
            until: "2026-11-24T18:48:03Z".parse().unwrap(),
            step,
        }
    }

    #[test]
    fn a_line_says_source_rule_use_and_end() {
        let until = "2026-11-24T18:48:03Z".parse().ok();
        let (prefix, by): (IpNet, String) = ("192.0.2.0/24".parse().unwrap(), "root (alice)".into());
        let deny = |reason: Option<&str>, until, frees| Event::Grant {
            grant: Grant::Denied,
            prefix,
            by: by.clone(),
            reason: reason.map(str::to_owned),
            until,
            frees,
        };
        let unblock = |prefix, denials, rules: &[&str], freed| Event::Unblock {
            prefix,
            by: by.clone(),
            denials,
            rules: rules.iter().map(ToString::to_string).collect(),
            freed,
        };
        let detach = |left, done| Event::Detach { interfaces: vec!["eth0".into()], left, done: Some(done) };
        let rows = [
            (
                Event::Ban(banned("192.0.2.7", 1)),
                "ban",
                "192.0.2.7 banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC: used 5 of 5/1m connections",
            ),
            (
                Event::Ban(Banned { usage: None, ..banned("2001:db8::/64", 3) }),
                "ban",
                "2001:db8::/64 banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC, ban 3 in a row",
            ),
            (
                Event::WouldBan(banned("192.0.2.7", 1)),
                "would_ban",
                "192.0.2.7 would be banned by rule \"ssh\" until 2026-11-24 18:48:03 UTC: \
                 used 5 of 5/1m connections (dry run)",
            ),
            (
                Event::BanEnd { source: "192.0.2.7".into(), rule: "ssh".into(), dropped: 412 },
                "ban_end",
                "192.0.2.7: ban by rule \"ssh\" expired, 412 packets dropped",
            ),
            (
                deny(Some("scraper"), until, 0),
                "deny",
                "192.0.2.0/24 denied until 2026-11-24 18:48:03 UTC by root (alice): scraper",
            ),
            (deny(None, None, 0), "deny", "192.0.2.0/24 denied permanently by root (alice)"),
            (
                Event::Grant { grant: Grant::Exempt, prefix, by: by.clone(), reason: None, until: None, frees: 2 },
                "allow",
                "192.0.2.0/24 allowed permanently by root (alice) (frees 2 sources)",
            ),
            (
                Event::GrantEnd { grant: Grant::Denied, prefix, by: by.clone() },
                "deny",
                "192.0.2.0/24 is no longer denied: the time that root (alice) gave has expired",
            ),
            (
                unblock(Some(prefix), 1, &["ssh", "ssh", "web"], 2),
                "unblock",
                "192.0.2.0/24 unblocked by root (alice): 1 denial lifted, 3 bans by rule \"ssh\", \"web\" lifted, \
                 counters of 2 sources removed",
            ),
            (unblock(Some(prefix), 0, &[], 0), "unblock", "192.0.2.0/24 unblocked by root (alice): nothing to lift"),
            (unblock(None, 2, &[], 0), "unblock", "everything unblocked by root (alice): 2 denials lifted"),
            (
                Event::Unallow { prefix, by: by.clone(), removed: 1 },
                "unallow",
                "192.0.2.0/24 no longer allowed by root (alice): 1 exemption lifted",
            ),
            (
                Event::Reset { source: prefix, by: by.clone(), windows: 3, bans: 1 },
                "reset",
                "192.0.2.0/24: counters reset by root (alice), 3 windows and 1 ban removed",
            ),
            (
                Event::TakeOver { interfaces: vec!["eth0".into(), "eth1".into()], alone: None },
                "attach",
                "took over the filter on eth0, eth1, which ran without a daemon",
            ),
            (
                Event::TakeOver { interfaces: vec!["eth0".into()], alone: Some(at(180)) },
                "attach",
                "took over the filter on eth0, which ran without a daemon for 3m",
            ),
            (
                detach(OnExit::Detach, Done { dropped: 4_120, would_drop: 0, within: at(7_259) }),
                "detach",
                "detached from eth0; 4120 packets dropped in 2h",
            ),
            (
                detach(OnExit::Detach, Done { dropped: 1, would_drop: 7, within: at(125) }),
                "detach",
                "detached from eth0; 1 packet dropped, 7 would have been in 2m5s",
            ),
            (
                detach(OnExit::Keep, Done { within: at(0), ..Done::default() }),
                "detach",
                "eth0 stays limited without the daemon; 0 packets dropped in 0s; \
                 `ratelimitd detach` takes the filter off",
            ),
        ];
        for (event, kind, line) in rows {
            assert_eq!((event.kind(), event.line().as_str()), (kind, line));
        }
    }

    #[test]
    fn ten_lines_a_second_after_a_burst_of_fifty_and_the_rest_is_a_number() {
        let mut budget = Budget::full(at(0));
        let mut lines = 0;
        for second in 0..60 {
            let room = budget.room(at(second));
            lines += room;
            budget.left -= room as u64 * 1_000;
        }
        assert_eq!(lines, 50 + 59 * 10);
        assert_eq!(budget.room(at(3_600)), 50, "what was not used is not saved up beyond the burst");
        let unlogged = Unlogged { bans: 7, ends: 0, would: 2 };
        let line = unlogged.line().unwrap();
        assert!(line.starts_with("7 more bans, 2 more bans that dry run prevented not logged one by one"), "{line}");
        assert_eq!(Unlogged::default().line(), None);
    }
}
