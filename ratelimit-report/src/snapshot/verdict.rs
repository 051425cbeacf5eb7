//! Action of each rule on one address, in words: the reason, its expiry and how to undo it. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use serde::{Deserialize, Serialize};

use super::check::Window;
use super::decision::{Decider, Decision};
use super::list::whole_seconds;
use super::{Budget, Clocks, Hold, Members, Mode, Outcome, Unit, seconds, timestamp};
use ratelimit_policy::access::{By, Entry, deciding};
use ratelimit_policy::config::listing::WrittenAt;
use ratelimit_policy::desired::{self, Access, Grant, Group, Policy, Ports, Refuse, covering, denies, typed};

/// Action of one rule on packets of one address now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleVerdict {
    /// Rule name.
    pub rule: String,
    /// Ports at which the rule judges this address: its own without those of earlier rules.
    pub ports: String,
    /// Destination addresses that the rule is limited to; empty for any destination.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// Mode of the rule: enforce or dry-run.
    pub mode: Mode,
    /// Action on packets that the reason concerns.
    pub verdict: Outcome,
    /// Reason, as a counter label.
    pub reason: String,
    /// Reason to drop if the rule were enforced; only in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<String>,
    /// Description of the packets that are dropped, or would be. All others pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
    /// Deciding entry: the rule, a list's file and line, or a command and its user.
    pub decided_by: String,
    /// Deciding entry if the rule were enforced; only in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_be_decided_by: Option<String>,
    /// Expiry of the decision, or of the would-be decision; none without an end.
    pub until: Option<Timestamp>,
    /// Seconds until the rule passes the address again, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough.
    pub never: bool,
    /// Remedy for the drop: commands to run, or what to edit where no command helps.
    pub undo: Option<String>,
}

/// Entries and orders outside the policy, with their authors and places.
pub struct Background<'a> {
    /// Datapath and wall clock.
    pub clocks: Clocks,
    /// Entries of commands and of safety.
    pub beside: Vec<&'a Entry>,
    /// Entries of the configuration, sorted by prefix.
    pub configured: &'a [Access],
    /// Returns the places where the configuration has an entry.
    pub written: &'a dyn Fn(IpNet, Grant) -> Vec<WrittenAt>,
    /// Order of an administrator to drop nothing.
    pub hold: Option<Hold>,
    /// Names of the rules that fell back to dry run.
    pub fallen_back: Vec<String>,
    /// Number of sources that have used the limits of the groups around the address.
    pub members: Members,
}

impl Background<'_> {
    /// Returns an empty background at `now` by the datapath's clock.
    pub fn unknown(now: Nanos) -> Self {
        Self {
            clocks: Clocks { now, wall: timestamp(now) },
            beside: Vec::new(),
            configured: &[],
            written: &|_, _| Vec::new(),
            hold: None,
            fallen_back: Vec::new(),
            members: Members::default(),
        }
    }

    /// Returns the entries in force for this prefix and grant, including the configuration's.
    fn entries(&self, prefix: IpNet, grant: Grant) -> Vec<Entry> {
        let now = self.clocks.now;
        let is_it = |entry: &&&Entry| entry.prefix == prefix && entry.grant == grant && entry.holds(now);
        let configured = covering(self.configured, prefix).take(1);
        let configured = configured.filter(|of| of.prefix == prefix && of.grant == grant && of.holds(now));
        let beside = self.beside.iter().filter(is_it).map(|entry| (*entry).clone());
        beside.chain(configured.map(Entry::configured)).collect()
    }

    /// Returns the author of the deciding entry in words: `root's denial of 192.0.2.7: scraper`.
    pub(super) fn author(&self, access: &Access) -> String {
        let entries = self.entries(access.prefix, access.grant);
        let prefix = typed(access.prefix);
        let (noun, verb) = if denies(access) { ("denial", "denies") } else { ("allow", "allows") };
        let first = deciding(&entries, self.clocks.now).first().copied().cloned();
        match first {
            Some(Entry { by: By::Command { user, .. }, owner, reason, .. }) => {
                let user = owner.unwrap_or(user);
                format!("{user}'s {noun} of {prefix}{}", reason.map_or_else(String::new, |why| format!(": {why}")))
            }
            Some(Entry { by: By::Safety, reason, .. }) => {
                format!("safety: {prefix} is {}", reason.as_deref().unwrap_or("needed by this host"))
            }
            Some(Entry { by: By::Configuration, .. }) | None => {
                match (self.written)(access.prefix, access.grant).first() {
                    Some(place) => format!("{place}, which {verb} {prefix}"),
                    None => format!("the configuration, which {verb} {prefix}"),
                }
            }
        }
    }

    /// Returns the reason why a rule does not drop, in words.
    fn dry_run(&self, rule: &desired::Rule) -> String {
        match &self.hold {
            Some(Hold { panic, by, since }) => {
                let word = if *panic { "panic" } else { "dry run" };
                let since = since.strftime("%F %T UTC");
                format!("{word} by {by} since {since}; `ratelimitd mode enforce` ends it")
            }
            None if self.fallen_back.contains(&rule.name) => {
                format!("rule {} fell back to dry run; `ratelimitd mode enforce` ends it", rule.name)
            }
            None => format!("the configuration: rule {} is in dry run", rule.name),
        }
    }

    /// Returns the remedy for every denial of an address that is not overridden by a longer exempt prefix.
    fn undo_denial(&self, policy: &Policy, whom: IpNet) -> String {
        let mut commands = Vec::new();
        let mut edits = Vec::new();
        let all = covering(&policy.access, whom).filter(|access| access.holds(self.clocks.now));
        let denials: Vec<Access> = all.take_while(|access| denies(access)).copied().collect();
        for denial in &denials {
            let entries = self.entries(denial.prefix, Grant::Denied);
            for entry in &entries {
                match entry.by {
                    By::Command { .. } => commands.push(format!("sudo ratelimitd unblock {}", typed(denial.prefix))),
                    By::Configuration | By::Safety => edits.extend(self.edits(denial)),
                }
            }
            if entries.is_empty() {
                edits.extend(self.edits(denial));
            }
        }
        // One command removes the entries of every owner.
        commands.dedup();
        // The longest prefix decides. For equal prefixes the exemption decides.
        let client = policy.client(whom.addr());
        let longest = denials.iter().map(|of| of.prefix).chain([client]).max_by_key(IpNet::prefix_len);
        let allow = format!("sudo ratelimitd allow {}", typed(longest.unwrap_or(client)));
        if edits.is_empty() {
            // While a wider denial stands, the first command ends with an exit code, so `;` joins them.
            return commands.join("; ");
        }
        let first = commands.iter().map(|command| format!("{command}; "));
        format!(
            "{}{}, then: sudo ratelimitd reload; or for an hour: {allow}",
            first.collect::<String>(),
            edits.join(", ")
        )
    }

    fn edits(&self, access: &Access) -> Vec<String> {
        let prefix = typed(access.prefix);
        let places = (self.written)(access.prefix, access.grant);
        let edits: Vec<String> = places.iter().map(|place| place.edit(&prefix)).collect();
        if edits.is_empty() { vec![format!("take {prefix} out of the configuration")] } else { edits }
    }

    fn undo_exemption(&self, access: &Access) -> Option<String> {
        let entries = self.entries(access.prefix, access.grant);
        let first = deciding(&entries, self.clocks.now).first().map(|entry| entry.by.clone());
        match first {
            Some(By::Command { .. }) => Some(format!("sudo ratelimitd unallow {}", typed(access.prefix))),
            Some(By::Safety) => None,
            Some(By::Configuration) | None => {
                Some(format!("{}, then: sudo ratelimitd reload", self.edits(access).join(", ")))
            }
        }
    }
}

/// Returns one verdict per rule, in rule order. Rules without ports of their own left after earlier rules have none.
pub(super) fn verdicts(
    policy: &Policy,
    address: IpAddr,
    decisions: &[Decision<'_>],
    background: &Background<'_>,
) -> Vec<RuleVerdict> {
    let mut taken: Vec<&Ports> = Vec::new();
    let mut all = Vec::new();
    for decision in decisions {
        let own = &decision.rule.ports;
        let left = taken.iter().fold(own.clone(), |left, earlier| left.without(earlier));
        if !left.is_empty() {
            all.push(verdict(policy, address, &left, decision, background));
        }
        // Packets to other addresses go on to the later rules.
        if decision.rule.to.is_empty() {
            taken.push(own);
        }
    }
    all
}

/// Returns the position among consecutive bans in words; empty for the first.
fn in_a_row(step: u32) -> String {
    if step > 1 { format!(", number {step} in a row") } else { String::new() }
}

fn verdict(
    policy: &Policy,
    address: IpAddr,
    at: &Ports,
    decision: &Decision<'_>,
    background: &Background<'_>,
) -> RuleVerdict {
    let (rule, reason, retry) = (decision.rule, decision.reason(), decision.retry());
    let told = told(policy, address, decision, background);
    let is_dry = reason == Reason::DryRun;
    let (decided_by, would_be_decided_by) =
        if is_dry { (background.dry_run(rule), Some(told.decided_by)) } else { (told.decided_by, None) };
    RuleVerdict {
        rule: rule.name.clone(),
        ports: at.to_string(),
        to: rule.to.iter().map(ToString::to_string).collect(),
        mode: rule.mode,
        verdict: reason.action().into(),
        reason: reason.label().to_owned(),
        would: is_dry.then(|| decision.found().label().to_owned()),
        refuses: told.refuses,
        decided_by,
        would_be_decided_by,
        until: told.until.map(|until| whole_seconds(background.clocks.wall_of(until))),
        retry_after_seconds: seconds(retry.after_ns),
        never: retry.never,
        undo: told.undo,
    }
}

/// Words for a deciding cause.
struct Told {
    refuses: Option<String>,
    decided_by: String,
    until: Option<Nanos>,
    undo: Option<String>,
}

fn told(policy: &Policy, address: IpAddr, decision: &Decision<'_>, background: &Background<'_>) -> Told {
    const ALL: &str = "all packets";
    let rule = decision.rule;
    let ends = |retry: super::sources::Retry| (!retry.never).then(|| background.clocks.after(retry.after_ns));
    let unblock = |client| Some(format!("sudo ratelimitd unblock {}", typed(client)));
    match decision.cause() {
        Decider::Exempt(access) => Told {
            refuses: None,
            decided_by: background.author(access),
            until: access.until,
            undo: background.undo_exemption(access),
        },
        Decider::Denied(access) => Told {
            refuses: Some(ALL.to_owned()),
            decided_by: background.author(access),
            until: access.until,
            undo: Some(background.undo_denial(policy, address.into())),
        },
        Decider::Banned(ban) => Told {
            refuses: Some(ALL.to_owned()),
            decided_by: format!("rule {}: ban of {}{}", rule.name, typed(ban.client), in_a_row(ban.step)),
            until: Some(ban.until),
            undo: unblock(ban.client),
        },
        Decider::OverLimit(limit, window) => {
            let standing = &window.standing;
            let undo = match &window.group {
                _ if standing.retry.never => Some(format!("sudo ratelimitd allow {}", typed(policy.client(address)))),
                Some(Group::Prefix(prefix)) => Some(format!("sudo ratelimitd unblock {prefix}")),
                // Only a higher limit frees a whole list at once, so the command allows this client.
                Some(Group::List(_)) => Some(format!("sudo ratelimitd allow {}", typed(policy.client(address)))),
                None => unblock(policy.client(address)),
            };
            let who = window.group.as_ref().map_or_else(String::new, |group| {
                let sources = background.members.of(limit, group);
                format!("{group}{}, ", sources.map_or_else(String::new, |count| format!(" by {count} sources")))
            });
            let used = format!("{who}limit {limit}, {} of {} used", standing.used, limit.amount);
            Told {
                refuses: Some(refused_by_limit(rule, limit, window)),
                decided_by: format!("rule {}: {used}", rule.name),
                until: ends(standing.retry),
                undo,
            }
        }
        Decider::Guard(guard) => Told {
            refuses: Some(guard.refuses().to_owned()),
            decided_by: format!("rule {}: the guard of limit {}", rule.name, guard.limit),
            until: ends(guard.retry()),
            undo: unblock(policy.client(address)),
        },
        Decider::Within => Told { refuses: None, decided_by: format!("rule {}", rule.name), until: None, undo: None },
    }
}

/// Returns the packets that a full limit drops, in words.
fn refused_by_limit(rule: &desired::Rule, limit: &desired::Limit, window: &Window) -> String {
    let whose = match window.budget {
        None => "",
        Some(Budget::Verified) => " of established connections",
        Some(Budget::Unverified) => " of unverified traffic",
    };
    let what = match (rule.refuse, Unit::from(limit.unit)) {
        (Refuse::All, _) => "all packets",
        (Refuse::Excess, Unit::Requests) => "new requests",
        (Refuse::Excess, Unit::Connections) => "new connections",
        (Refuse::Excess, Unit::Packets | Unit::Bytes) => "packets",
    };
    format!("{what}{whose}")
}
