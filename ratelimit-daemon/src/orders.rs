//! What commands change beside the configuration: who is let through, who is kept out, what a source has used.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::engine::{Engine, Moment};
use super::journal::Event;
use ratelimit_control::proto::{
    ChargeRequest, GrantReport, GrantRequest, Problem, ProblemKind, ResetReport, Standing, UnblockReport,
};
use ratelimit_datapath::{Ban, Datapath};
use ratelimit_policy::access::{By, ENTRIES_MAX, Entry, Ledger, REASON_BYTES_MAX, merged};
use ratelimit_policy::config::Config;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::{printable, turns_text};
use ratelimit_policy::desired::{Access, Grant, Policy};
use ratelimit_policy::safety::{Around, SshSession};
use ratelimit_report::snapshot::{Blocked, CheckLimit, CheckReport, Clocks, Listed, Outcome, SCHEMA};

/// The file of what commands have entered.
const FILE: &str = "access.json";
/// How long an exemption holds unless it is said.
const ALLOW_FOR: Duration = Duration::from_secs(3_600);
/// How long a denial holds unless it is said.
const DENY_FOR: Duration = Duration::from_secs(4 * 3_600);
/// Longer is for ever, and has to be said so. // 10 years
const SECONDS_MAX: u64 = 10 * 365 * 86_400;
/// Sources that are named in an answer.
const NAMED_MAX: usize = 20;

/// Who is let through or kept out beside the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants {
    ledger: Ledger,
    safety: Vec<Entry>,
    around: Around,
    /// When the next entry of any kind ends.
    next_end: Option<Nanos>,
}

/// [`FILE`].
#[derive(Serialize, Deserialize)]
struct Kept {
    entries: Vec<KeptEntry>,
}

#[derive(Serialize, Deserialize)]
struct KeptEntry {
    prefix: IpNet,
    grant: KeptGrant,
    user: String,
    reason: Option<String>,
    forced: bool,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptGrant {
    Exempt,
    Denied,
}

/// The user's name, or the number of one who has none.
pub(super) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("uid {uid}"), |user| user.name)
}

impl<D: Datapath> Engine<D> {
    /// Looks who is around, for safety.
    pub(super) fn look_around(&mut self) {
        let seen = (self.host.look)();
        // Whoever started the daemon cannot be found any more once privileges are given up.
        let ssh = seen.ssh.or(self.grants.around.ssh);
        let around = Around { ssh, ..seen };
        let safety = around.exemptions(self.config.safety);
        for entry in safety.iter().filter(|entry| !self.grants.safety.contains(entry)) {
            let why = entry.reason.as_deref().unwrap_or_default();
            tracing::info!(prefix = %entry.prefix, "{} is never limited: it is {why}", entry.prefix);
        }
        if safety != self.grants.safety {
            // The next look finds that the policy is not what it should be.
            self.grants.next_end = None;
        }
        self.grants.safety = safety;
        self.grants.around = around;
    }

    /// Finds again what commands have entered in earlier runs.
    pub(super) fn recall_grants(&mut self, clocks: Clocks) {
        let Some(kept) = self.host.store.load::<Kept>(FILE) else { return };
        for entry in kept.entries {
            let entry = entry.entered(clocks);
            if entry.holds(clocks.now) && !self.grants.ledger.enter(entry) {
                tracing::warn!("more than {ENTRIES_MAX} entries were kept: the rest is left out");
                break;
            }
        }
    }

    /// What the policy holds of a configuration, commands and safety together.
    pub(super) fn access_of(&self, config: &Config, now: Nanos) -> Vec<Access> {
        let configured: Vec<Entry> = config.policy.access.iter().map(Entry::configured).collect();
        merged(self.grants.beside().chain(&configured), now)
    }

    /// Drops what is over: the kernel has compared by itself, so this is only tidy, but for what an entry had suspended.
    pub(super) fn expire_grants(&mut self, clocks: Clocks) {
        if self.pending.is_some() || self.grants.next_end.is_some_and(|end| clocks.now < end) {
            return;
        }
        let over = self.grants.ledger.expire(clocks.now);
        for entry in &over {
            let by = match &entry.by {
                By::Command { user, .. } => user.clone(),
                By::Configuration | By::Safety => String::new(),
            };
            Event::GrantEnd { grant: entry.grant, prefix: entry.prefix, by }.log();
        }
        if !over.is_empty()
            && let Err(error) = self.keep_grants(clocks)
        {
            tracing::warn!("{error}");
        }
        let ends = self.config.policy.access.iter().filter_map(|access| access.until);
        let ends = ends.chain(self.grants.ledger.entries().filter_map(|entry| entry.until));
        self.grants.next_end = Some(ends.filter(|end| clocks.now < *end).min().unwrap_or(Nanos(u64::MAX)));
        self.must_apply |= self.access_of(&self.config, clocks.now) != self.desired.policy.access;
    }

    /// Lets a prefix through, or keeps it out.
    pub(super) fn grant(
        &mut self,
        grant: Grant,
        target: Target,
        request: &GrantRequest,
        uid: u32,
        moment: Moment,
    ) -> Result<GrantReport, Problem> {
        let ipv6_prefix = self.desired.policy.ipv6_prefix;
        let prefix = target.prefix(ipv6_prefix);
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        self.settled(clocks.now)?;
        let until = until(grant, request, clocks)?;
        match grant {
            Grant::Exempt => object_to_exempting(prefix, request)?,
            Grant::Denied => self.object_to(prefix, request)?,
        }
        let by = By::Command { user: user_name(uid), is_forced: request.force };
        let reason = checked_reason(request.reason.as_deref())?;
        let entry = Entry { prefix, grant, by, reason, since: Some(clocks.wall), until };
        let mut notes: Vec<String> = target.note(ipv6_prefix).into_iter().collect();
        notes.extend(self.notes_on(&entry, clocks));
        let frees = match grant {
            Grant::Exempt => self.blocked_within(prefix, clocks.now)?,
            Grant::Denied => Vec::new(),
        };
        self.change_grants(clocks, &mut notes, |ledger| {
            if ledger.enter(entry.clone()) {
                return Ok(());
            }
            let why = format!("there are {ENTRIES_MAX} entries already; put long lists into the configuration");
            Err(Problem::new(ProblemKind::BadRequest, why))
        })?;
        let listed = Listed::of(&entry, true, clocks);
        let by = listed.user.clone().unwrap_or_default();
        let (reason, until) = (listed.reason.clone(), listed.until);
        Event::Grant { grant, prefix, by, reason, until, frees: frees.len() }.log();
        Ok(GrantReport {
            schema: SCHEMA,
            entry: listed,
            frees_count: frees.len() as u64,
            frees: frees.into_iter().take(NAMED_MAX).collect(),
            notes,
        })
    }

    /// Takes off a denial, and the bans within the prefix.
    pub(super) fn unblock(&mut self, target: Target, uid: u32, moment: Moment) -> Result<UnblockReport, Problem> {
        let clocks = self.clocks(moment)?;
        let ipv6_prefix = self.desired.policy.ipv6_prefix;
        let prefix = target.prefix(ipv6_prefix);
        let mut notes: Vec<String> = target.note(ipv6_prefix).into_iter().collect();
        let denial = self.grants.ledger.entries().find(|of| of.prefix == prefix && of.grant == Grant::Denied).cloned();
        if denial.is_some() {
            self.settled(clocks.now)?;
            self.change_grants(clocks, &mut notes, |ledger| {
                ledger.undeny(prefix);
                Ok(())
            })?;
        }
        let policy = &self.desired.policy;
        let client = policy.client(prefix.addr());
        // A ban is on the whole client.
        let within = if client.contains(&prefix) { client } else { prefix };
        let lifted = self.datapath.lift_bans(within).map_err(Problem::datapath)?;
        let mut removed: Vec<Listed> = denial.iter().map(|entry| Listed::of(entry, true, clocks)).collect();
        removed.extend(lifted.iter().map(|ban| Listed::of_ban(policy, ban, clocks)));
        if let Some(access) =
            self.desired.policy.grant(target.address(), clocks.now).filter(|of| of.grant == Grant::Denied)
        {
            let whose = self.author_of(&access, clocks.now);
            let still = if access.prefix.contains(&prefix) { prefix } else { IpNet::from(target.address()) };
            notes.push(format!("{still} is still denied as part of {}, {whose}", access.prefix));
        }
        let name_of = |ban: &Ban| self.desired.policy.rules.get(ban.rule).map(|rule| rule.name.clone());
        let rules = lifted.iter().filter_map(name_of).collect();
        Event::Unblock { prefix, by: user_name(uid), was_denied: denial.is_some(), rules }.log();
        self.newest = None;
        Ok(UnblockReport { schema: SCHEMA, prefix: prefix.to_string(), removed, notes })
    }

    /// Forgets what a source has used, and its bans.
    pub(super) fn reset(&mut self, source: IpAddr, uid: u32) -> Result<ResetReport, Problem> {
        let client = self.desired.policy.client(source.to_canonical());
        let forgotten = self.datapath.forget(client).map_err(Problem::datapath)?;
        Event::Reset { source: client, by: user_name(uid), windows: forgotten.windows, bans: forgotten.bans }.log();
        self.newest = None;
        Ok(ResetReport {
            schema: SCHEMA,
            source: client.to_string(),
            windows: forgotten.windows as u64,
            bans: forgotten.bans as u64,
        })
    }

    /// Adds to what a source has used. Whoever is exempt is charged as little as his packets are, and so never banned.
    pub(super) fn charge(&mut self, request: &ChargeRequest) -> Result<Standing, Problem> {
        let rule = rule_named(&self.desired.policy, &request.rule)?;
        let source = request.source.to_canonical();
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let access = self.desired.policy.grant(source, now).map(|access| access.grant);
        if access != Some(Grant::Exempt) {
            let client = self.desired.policy.client(source);
            self.datapath.charge(client, rule, request.amount).map_err(Problem::datapath)?;
        }
        self.standing(request.source, &request.rule)
    }

    /// How a source stands with one rule, as if that were the only one. A server that listens for both families sees IPv4 clients
    /// in their IPv6 form, which no packet has.
    pub(super) fn standing(&mut self, source: IpAddr, rule: &str) -> Result<Standing, Problem> {
        let source = source.to_canonical();
        let at = rule_named(&self.desired.policy, rule)?;
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let mut windows = self.datapath.source(source).map_err(Problem::datapath)?;
        // Whoever asks has it on a connection: what others send in its name is no matter, where it is counted apart.
        let verified: Vec<u32> = windows.iter().filter(|of| of.is_verified).map(|of| of.slot).collect();
        windows.retain(|of| of.is_verified || !verified.contains(&of.slot));
        let bans = self.datapath.bans_of(self.desired.policy.client(source)).map_err(Problem::datapath)?;
        let bans: Vec<_> = bans.into_iter().filter(|ban| ban.rule == at).collect();
        let mut of = self.desired.policy.rules[at].clone();
        of.from = Vec::new();
        let alone = Policy { rules: vec![of], ..self.desired.policy.clone() };
        let bans: Vec<_> = bans.into_iter().map(|ban| ratelimit_datapath::Ban { rule: 0, ..ban }).collect();
        let report = CheckReport::with_bans(&alone, now, source, &windows, &bans);
        let room = |of: &&CheckLimit| (of.remaining.saturating_mul(1_000) / of.limit.max(1), of.remaining);
        let Some(nearest) = report.limits.iter().min_by_key(room) else {
            let why = format!("rule {rule} has no limits, or has ended");
            return Err(Problem::new(ProblemKind::NotFound, why));
        };
        let place = report.limits.iter().position(|limit| limit == nearest).unwrap_or(0);
        let is_in = report.verdict == Outcome::Pass;
        Ok(Standing {
            schema: SCHEMA,
            used: nearest.used,
            remaining: nearest.remaining,
            limit: (&alone.rules[0].limits[place]).into(),
            source: report.source,
            rule: rule.to_owned(),
            verdict: report.verdict,
            reason: report.reason,
            retry_after_seconds: if is_in { 0.0 } else { report.retry_after_seconds },
            never: !is_in && report.never,
        })
    }

    /// Says to whoever asks for a configuration, and in the log, whom it may lock out.
    pub(super) fn warn_of_lockouts(&self, config: &Config, caller: Option<SshSession>, now: Nanos) -> Vec<String> {
        let policy = Policy { access: self.access_of(config, now), ..config.policy.clone() };
        let warnings = self.grants.around.lockouts(&policy, caller, now);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        warnings
    }

    /// Refuses a configuration that denies or limits the session of whoever asks for it, which the one in force does not.
    pub(super) fn object_to_lockout(
        &self,
        config: &Config,
        caller: Option<SshSession>,
        now: Nanos,
    ) -> Result<(), Problem> {
        let of = |config: &Config| Policy { access: self.access_of(config, now), ..config.policy.clone() };
        let Some(caller) = caller else { return Ok(()) };
        let Some(why) = Around::objection_to_policy(&of(config), &of(&self.config), caller, now) else { return Ok(()) };
        let why = format!(
            "{why}; nothing was changed: `ratelimitd apply --confirm 60s` tries it and goes back by itself, --force insists"
        );
        Err(Problem::new(ProblemKind::BadRequest, why))
    }

    /// Refuses a denial that may lock out someone who is needed, or that would not do anything.
    fn object_to(&self, prefix: IpNet, request: &GrantRequest) -> Result<(), Problem> {
        let configured = &self.config.policy.access;
        if configured.iter().any(|of| of.prefix == prefix && of.grant == Grant::Exempt) {
            let why =
                format!("the configuration exempts {prefix}, which goes before a denial: take it out there first");
            return Err(Problem::new(ProblemKind::BadRequest, why));
        }
        match self.grants.around.objection(prefix, request.ssh_peer) {
            Some(why) if !request.force => {
                let why = format!("{why}: denying it may lock you out of this host; --force insists");
                Err(Problem::new(ProblemKind::BadRequest, why))
            }
            Some(why) => {
                tracing::warn!("{why}: denied all the same, as somebody insists");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// What else holds where an entry does.
    fn notes_on(&self, entry: &Entry, clocks: Clocks) -> Vec<String> {
        let mut notes = Vec::new();
        let other = |access: &&Access| access.grant != entry.grant;
        let policy = &self.desired.policy;
        if let Some(around) = policy.grant(entry.prefix.addr(), clocks.now).filter(|of| other(&of))
            && around.prefix.contains(&entry.prefix)
        {
            let whose = self.author_of(&around, clocks.now);
            let (label, until) = (around.grant.label(), if entry.until.is_some() { ", for so long" } else { "" });
            notes.push(format!("it goes before {label} {}, {whose}{until}", around.prefix));
        }
        let inside = |access: &&Access| entry.prefix.contains(&access.prefix) && access.prefix != entry.prefix;
        let exceptions: Vec<&Access> = policy.access.iter().filter(other).filter(inside).collect();
        if let Some(first) = exceptions.first() {
            let more = exceptions.len() - 1;
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            notes.push(format!("{} stays {} within it{more}", first.prefix, first.grant.label()));
        }
        notes
    }

    fn author_of(&self, access: &Access, now: Nanos) -> String {
        let is_it = |entry: &&Entry| entry.prefix == access.prefix && entry.grant == access.grant && entry.holds(now);
        match self.grants.beside().find(is_it).map(|entry| &entry.by) {
            Some(By::Command { user, .. }) => format!("which {user} entered"),
            Some(By::Safety) => "for safety".to_owned(),
            Some(By::Configuration) | None => "which the configuration says".to_owned(),
        }
    }

    fn blocked_within(&mut self, prefix: IpNet, now: Nanos) -> Result<Vec<String>, Problem> {
        let mut blocked = Blocked::new(&self.desired.policy, now, prefix);
        for ban in self.datapath.bans().map_err(Problem::datapath)? {
            blocked.banned(ban.client);
        }
        self.datapath.visit_sources(&mut |reading| blocked.visit(&reading)).map_err(Problem::datapath)?;
        Ok(blocked.names())
    }

    /// Changes the ledger, puts it in force and keeps it; on an error it is as before.
    fn change_grants(
        &mut self,
        clocks: Clocks,
        notes: &mut Vec<String>,
        change: impl FnOnce(&mut Ledger) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let before = self.grants.ledger.clone();
        let changed = change(&mut self.grants.ledger);
        let outcome = changed.and_then(|()| self.put_in_force(clocks.now).map_err(Problem::datapath));
        if let Err(problem) = outcome {
            self.grants.ledger = before;
            return Err(problem);
        }
        self.grants.next_end = None;
        if let Err(error) = self.keep_grants(clocks) {
            tracing::warn!("{error}");
            notes.push(format!("a restart forgets it: {error}"));
        }
        Ok(())
    }

    fn keep_grants(&self, clocks: Clocks) -> std::io::Result<()> {
        let entries = self.grants.ledger.entries().map(|entry| KeptEntry::of(entry, clocks)).collect();
        self.host.store.save(FILE, Kept { entries })
    }
}

impl Grants {
    /// What is entered beside the configuration.
    pub(super) fn beside(&self) -> impl Iterator<Item = &Entry> {
        self.ledger.entries().chain(&self.safety)
    }
}

impl KeptEntry {
    fn entered(self, clocks: Clocks) -> Entry {
        Entry {
            prefix: self.prefix.trunc(),
            grant: match self.grant {
                KeptGrant::Exempt => Grant::Exempt,
                KeptGrant::Denied => Grant::Denied,
            },
            // What was typed held nothing that a terminal obeys; what was written into the file may.
            by: By::Command { user: printable(&self.user), is_forced: self.forced },
            reason: self.reason.map(|reason| printable(&reason)),
            since: self.since,
            until: self.until.map(|until| clocks.datapath_of(until)),
        }
    }

    fn of(entry: &Entry, clocks: Clocks) -> Self {
        let (user, forced) = match &entry.by {
            By::Command { user, is_forced } => (user.clone(), *is_forced),
            By::Configuration | By::Safety => (String::new(), false),
        };
        Self {
            prefix: entry.prefix,
            grant: match entry.grant {
                Grant::Exempt => KeptGrant::Exempt,
                Grant::Denied => KeptGrant::Denied,
            },
            user,
            reason: entry.reason.clone(),
            forced,
            since: entry.since,
            until: entry.until.map(|until| clocks.wall_of(until)),
        }
    }
}

/// Refuses an exemption that leaves next to nobody limited.
fn object_to_exempting(prefix: IpNet, request: &GrantRequest) -> Result<(), Problem> {
    match Around::objection_to_exempting(prefix) {
        Some(why) if !request.force => {
            let why =
                format!("{why}; --force insists, and `ratelimitd panic` lets everybody through until you are done");
            Err(Problem::new(ProblemKind::BadRequest, why))
        }
        Some(why) => {
            tracing::warn!("{why}: exempt all the same, as somebody insists");
            Ok(())
        }
        None => Ok(()),
    }
}

fn until(grant: Grant, request: &GrantRequest, clocks: Clocks) -> Result<Option<Nanos>, Problem> {
    let usual = match grant {
        Grant::Exempt => ALLOW_FOR,
        Grant::Denied => DENY_FOR,
    };
    match (request.forever, request.seconds) {
        (true, None) => Ok(None),
        (false, None) => Ok(Some(clocks.after(u64::try_from(usual.as_nanos()).unwrap_or(u64::MAX)))),
        (false, Some(seconds @ 1..=SECONDS_MAX)) => Ok(Some(clocks.after(seconds.saturating_mul(1_000_000_000)))),
        (true, Some(_)) | (false, Some(_)) => {
            let why = "it holds from 1 s to 10 years, or for ever: one of the two";
            Err(Problem::new(ProblemKind::BadRequest, why))
        }
    }
}

fn checked_reason(reason: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(reason) = reason.map(str::trim).filter(|reason| !reason.is_empty()) else { return Ok(None) };
    if reason.len() > REASON_BYTES_MAX || reason.chars().any(|c| c.is_control() || turns_text(c)) {
        let why = format!("a reason is one line of at most {REASON_BYTES_MAX} bytes");
        return Err(Problem::new(ProblemKind::BadRequest, why));
    }
    Ok(Some(reason.to_owned()))
}

pub(super) fn rule_named(policy: &Policy, name: &str) -> Result<usize, Problem> {
    policy.rules.iter().position(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
        Problem::new(ProblemKind::NotFound, format!("there is no rule {name}; there are {}", names.join(", ")))
    })
}
