//! Grants beside the configuration: allowances and denials by commands.

use std::collections::HashSet;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::fleet::Reach;
use super::journal::Event;
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{GrantReport, GrantRequest, Problem, ProblemKind};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Datapath, Ended};
use ratelimit_fleet::acts::What;
use ratelimit_policy::access::{
    By, ENTRIES_MAX, Entered, Entry, Further, KEPT_FOR_ALLOW, Ledger, OWNER_BYTES_MAX, REASON_BYTES_MAX,
};
use ratelimit_policy::config::Safety;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::turns_text;
use ratelimit_policy::desired::{Access, Grant};
use ratelimit_policy::safety::{Around, CameFrom};
use ratelimit_report::snapshot::{Blocked, Clocks, Closed, Listed, SCHEMA, source_text};

/// Default duration of an allowance.
const ALLOW_FOR: Duration = Duration::from_secs(3_600);
/// Default duration of a denial.
const DENY_FOR: Duration = Duration::from_secs(4 * 3_600);
/// Maximum duration in seconds. Longer grants must be marked permanent. // 10 years
pub(super) const SECONDS_MAX: u64 = 10 * 365 * 86_400;
/// Maximum number of sources named in a report.
pub(super) const NAMED_MAX: usize = 20;

/// Grants beside the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants {
    pub(super) ledger: Ledger,
    safety: Vec<Entry>,
    pub(super) around: Around,
    /// Time at which the next entry of any kind expires. None forces a check.
    next_end: Option<Nanos>,
}

impl Grants {
    /// Returns the entries of commands and of safety.
    pub(super) fn beside(&self) -> impl Iterator<Item = &Entry> {
        self.ledger.entries().chain(&self.safety)
    }

    /// Updates the safety exemptions from a new look at the surroundings.
    fn take_in(&mut self, seen: Around, safety: Safety) {
        // After the daemon drops its privileges, it can no longer find the user who started it.
        let ssh = seen.ssh.or(self.around.ssh);
        let around = Around { ssh, ..seen };
        let safety = around.exemptions(safety);
        for entry in safety.iter().filter(|entry| !self.safety.contains(entry)) {
            let why = entry.reason.as_deref().unwrap_or_default();
            tracing::info!(prefix = %entry.prefix, "{} is never limited: it is {why}", entry.prefix);
        }
        if safety != self.safety || !around.exempts_like(&self.around) {
            // The next check must compare the policy, because different list entries may be passed over now.
            self.next_end = None;
        }
        self.safety = safety;
        self.around = around;
    }
}

impl<D: Datapath> Engine<D> {
    /// Looks up who must not be locked out.
    pub(super) fn look_around(&mut self) {
        let seen = (self.host.look)().with(self.enforced.config.fleet.as_ref());
        self.overrides.grants.take_in(seen, self.enforced.config.safety);
    }

    /// Removes expired entries. The kernel checks expiries by itself, so this only tidies up and restores what an
    /// entry had suspended.
    pub(super) fn expire_grants(&mut self, clocks: Clocks, moment: Moment) {
        if self.overrides.grants.next_end.is_some_and(|end| clocks.now < end) {
            return;
        }
        let over = self.overrides.grants.ledger.expire(clocks.now);
        for entry in &over {
            let by = match &entry.by {
                By::Command { user, .. } => entry.owner.as_ref().unwrap_or(user).clone(),
                By::Configuration | By::Safety => String::new(),
            };
            self.journal.tell(Event::GrantEnd { grant: entry.grant, prefix: entry.prefix, by }, moment);
        }
        if !over.is_empty()
            && let Err(error) = self.keep_grants(clocks)
        {
            tracing::warn!("{error}");
        }
        let configs = [Some(&self.enforced.config), self.trials.pending.as_ref().map(|pending| &pending.before)]
            .into_iter()
            .flatten();
        let ends = configs.flat_map(|config| &config.policy.access).filter_map(|access| access.until);
        let ends = ends.chain(self.overrides.grants.ledger.entries().filter_map(|entry| entry.until));
        self.overrides.grants.next_end = Some(ends.filter(|end| clocks.now < *end).min().unwrap_or(Nanos(u64::MAX)));
        // The policy that packets fall back to after a trial cannot be compared here, so it is applied again.
        self.enforced.must_apply |= self.trials.pending.is_some()
            || self.overrides.access_of(&self.enforced.config, clocks.now) != self.enforced.desired.policy.access;
    }

    /// Allows or denies a prefix. Works during a trial too.
    pub(super) fn grant(
        &mut self,
        grant: Grant,
        target: Target,
        request: &GrantRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<GrantReport, Problem> {
        let ipv6_prefix = self.enforced.desired.policy.ipv6_prefix;
        let prefix = target.prefix(ipv6_prefix);
        self.must_have_fleet(Reach::of(request.fleet), moment)?;
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        let until = until(grant, request, clocks)?;
        match grant {
            Grant::Exempt if request.kill => {
                return Err(Problem::new(ProblemKind::BadRequest, "only a denial ends connections"));
            }
            Grant::Exempt => object_to_exempting(prefix, request)?,
            Grant::Denied => self.object_to(prefix, request, by)?,
        }
        let by = By::Command { user: by.to_string(), is_forced: request.force };
        let reason = checked_reason(request.reason.as_deref())?;
        let owner = checked_owner(grant, request)?;
        let entry = Entry { prefix, grant, by, owner, reason, since: Some(clocks.wall), until };
        let mut notes: Vec<String> = target.note(ipv6_prefix).into_iter().collect();
        let frees = match grant {
            Grant::Exempt => self.blocked_within(prefix, clocks.now)?,
            Grant::Denied => Vec::new(),
        };
        let mut after = self.overrides.grants.ledger.clone();
        let further = if request.replace { Further::Replace } else { Further::Extend };
        let entered = after
            .enter(entry.clone(), further, clocks.now)
            .ok_or_else(|| Problem::new(ProblemKind::BadRequest, no_room(grant)))?;
        notes.extend(self.what_changed(&entry, &entered, clocks));
        notes.extend(self.notes_on(&entered.entry, clocks));
        self.change_grants(clocks, &mut notes, after)?;
        let connections = request.kill.then(|| {
            let (said, Ended { ended, left }) = self.kill_denied(prefix, moment);
            notes.push(said);
            Closed { ended, left_open: left, passed_over: 0 }
        });
        let listed = Listed::of(&entered.entry, true, clocks);
        let user = listed.user.clone().unwrap_or_default();
        let by = listed.owner.as_ref().map_or_else(|| user.clone(), |owner| format!("{user} for {owner}"));
        let (reason, until) = (listed.reason.clone(), listed.until);
        let until_ns = entered.entry.until.map(|until| until.0);
        let said = request.fleet.then(|| (prefix, spread(grant, until_ns, reason.clone(), by.clone())));
        let spread = if said.is_some() { self.spread(said, clocks.now) } else { Ok(()) };
        notes.extend(self.fleet_note(Reach::of(request.fleet), spread));
        self.journal.tell(Event::Grant { grant, prefix, by, reason, until, frees: frees.len() }, moment);
        Ok(GrantReport {
            schema: SCHEMA,
            entry: listed,
            before: entered.before.map(|before| Listed::of(&before, true, clocks)),
            frees_count: frees.len() as u64,
            connections,
            frees: frees.into_iter().take(NAMED_MAX).collect(),
            notes,
        })
    }

    /// Replaces the command grants, applies and saves them. If applying fails, restores the previous grants.
    pub(super) fn change_grants(
        &mut self,
        clocks: Clocks,
        notes: &mut Vec<String>,
        ledger: Ledger,
    ) -> Result<(), Problem> {
        let before = std::mem::replace(&mut self.overrides.grants.ledger, ledger);
        if let Err(error) = self.put_in_force(clocks.now) {
            self.overrides.grants.ledger = before;
            // During a trial, a part of the change may already be in force.
            self.enforced.must_apply |= self.trials.pending.is_some();
            return Err(Problem::datapath(error));
        }
        reach(Point::GrantApplied);
        self.overrides.grants.next_end = None;
        self.statistics.outdate();
        if let Err(error) = self.keep_grants(clocks) {
            tracing::warn!("{error}; saving is tried again");
            notes.push(format!("a restart forgets it: {error}; saving is tried again"));
        }
        reach(Point::GrantKept);
        Ok(())
    }

    /// Refuses a denial that could lock out someone who is needed, or that would have no effect.
    fn object_to(&self, prefix: IpNet, request: &GrantRequest, by: &Requester) -> Result<(), Problem> {
        if let Some(why) = self.overriding_exemption(prefix, &self.configured_exemptions()) {
            return Err(Problem::new(ProblemKind::BadRequest, why));
        }
        let from = CameFrom { ssh: request.ssh_peer, web: by.web_address() };
        match self.overrides.grants.around.objection(prefix, from) {
            Some(why) if !request.force => {
                let why = format!("{why}: this may lock you out; --force denies it anyway");
                Err(Problem::new(ProblemKind::BadRequest, why))
            }
            Some(why) => {
                tracing::warn!("{why}: denied anyway, by --force");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns the prefixes that the configuration allows, including the one that a trial may fall back to.
    pub(super) fn configured_exemptions(&self) -> HashSet<IpNet> {
        let configs = self.trials.pending.iter().map(|pending| &pending.before).chain([&self.enforced.config]);
        configs.flat_map(|config| config.policy.prefixes(Grant::Exempt)).collect()
    }

    /// Returns the reason why a denial would have no effect. `exempted` is the result of
    /// [`Self::configured_exemptions`].
    pub(super) fn overriding_exemption(&self, prefix: IpNet, exempted: &HashSet<IpNet>) -> Option<String> {
        if !exempted.contains(&prefix) {
            return None;
        }
        let (prefix, written) = (source_text(prefix), self.enforced.written(prefix, Grant::Exempt));
        let edit = written.first().map_or_else(|| "remove it there".to_owned(), |place| place.edit(&prefix));
        Some(format!("{prefix} is allowed by the configuration, and for one prefix allow overrides deny: {edit} first"))
    }

    /// Describes the effect on entries that already existed.
    fn what_changed(&self, asked: &Entry, entered: &Entered, clocks: Clocks) -> Vec<String> {
        let Entered { entry, before, ended } = entered;
        let mut notes = Vec::new();
        if let Some(before) = before {
            let (whose, was) = (whose(before), until_text(before.until, clocks));
            notes.push(if entry.until != asked.until {
                format!("{whose} holds longer and stays, {was}; --replace ends it sooner")
            } else if before.until == entry.until {
                format!("{whose} was {was} already")
            } else if before.until.is_none_or(|was| entry.until.is_some_and(|until| until < was)) {
                format!("replaces {whose}, which was {was}")
            } else {
                format!("extends {whose}, which was {was}")
            });
            notes.extend(match (&before.reason, &asked.reason) {
                (Some(before), None) => Some(format!("its reason stays: {before}")),
                (Some(before), Some(now)) if before != now => Some(format!("its reason was: {before}")),
                (Some(_) | None, Some(_) | None) => None,
            });
        }
        notes.extend(ended.iter().map(|ended| format!("ends {}", whose(ended))));
        if self.trials.pending.is_some() {
            notes.push("a file is on trial: this holds whether it is confirmed or rolled back".to_owned());
        }
        notes
    }

    /// Describes other grants that overlap the entry.
    fn notes_on(&self, entry: &Entry, clocks: Clocks) -> Vec<String> {
        let mut notes = Vec::new();
        let other = |access: &&Access| access.grant != entry.grant;
        let policy = &self.enforced.desired.policy;
        if let Some(around) = policy.grant(entry.prefix.addr(), clocks.now).filter(|of| other(&of))
            && around.prefix.contains(&entry.prefix)
            && (around.prefix != entry.prefix || entry.grant == Grant::Exempt)
        {
            let whose = whose(&self.entry_of(&around, clocks.now));
            notes.push(format!("overrides {whose}{}", until_clause(entry.until, clocks)));
        }
        let is_exempt = |of: &&Entry| of.prefix == entry.prefix && of.grant == Grant::Exempt && of.holds(clocks.now);
        if let Some(first) = self.overrides.grants.beside().find(is_exempt).filter(|_| entry.owner.is_some()) {
            let until = until_text(first.until, clocks);
            notes.push(format!("{} overrides it: nothing is dropped, {until}", whose(first)));
        }
        let inside = |access: &&Access| entry.prefix.contains(&access.prefix) && access.prefix != entry.prefix;
        let exceptions: Vec<&Access> = policy.access.iter().filter(other).filter(inside).collect();
        if let Some(first) = exceptions.first() {
            let more = exceptions.len() - 1;
            let more = if more == 0 { String::new() } else { format!(", and {more} more") };
            let stays = granted(first.grant);
            notes.push(format!("{} within it stays {stays}{more}", source_text(first.prefix)));
        }
        notes
    }

    /// Returns the entry that an access comes from.
    pub(super) fn entry_of(&self, access: &Access, now: Nanos) -> Entry {
        let is_it = |entry: &&Entry| {
            (entry.prefix, entry.grant, entry.until) == (access.prefix, access.grant, access.until) && entry.holds(now)
        };
        let is_configured = self.enforced.config.policy.access.contains(access);
        let command = self.overrides.grants.ledger.entries().find(is_it).cloned();
        let safety = self.overrides.grants.safety.iter().find(is_it).filter(|_| !is_configured).cloned();
        command.or(safety).unwrap_or_else(|| Entry::configured(access))
    }

    fn blocked_within(&mut self, prefix: IpNet, now: Nanos) -> Result<Vec<String>, Problem> {
        let mut blocked = Blocked::new(&self.enforced.desired.policy, now, prefix);
        for ban in self.datapath.bans().map_err(Problem::datapath)? {
            blocked.banned(ban.client);
        }
        self.datapath.visit_sources(&mut |reading| blocked.visit(&reading)).map_err(Problem::datapath)?;
        Ok(blocked.names())
    }
}

/// Returns the message for a full ledger of grants.
pub(super) fn no_room(grant: Grant) -> String {
    let (most, what) = match grant {
        Grant::Denied => (ENTRIES_MAX, "entries"),
        Grant::Exempt => (ENTRIES_MAX + KEPT_FOR_ALLOW, "entries, with those that are kept for `allow`,"),
    };
    format!("there are {most} {what} already; put long lists into the configuration")
}

/// Returns the act that grants the same on other hosts.
const fn spread(grant: Grant, until_ns: Option<u64>, reason: Option<String>, by: String) -> What {
    match grant {
        Grant::Exempt => What::Allow { until_ns, reason, by },
        Grant::Denied => What::Deny { until_ns, reason, by },
    }
}

/// Returns the word for a prefix with this grant.
pub(super) const fn granted(grant: Grant) -> &'static str {
    match grant {
        Grant::Exempt => "allowed",
        Grant::Denied => "denied",
    }
}

/// Names an entry, such as `root's denial of 192.0.2.7`.
pub(super) fn whose(entry: &Entry) -> String {
    let (what, prefix) = match entry.grant {
        Grant::Exempt => ("exemption", source_text(entry.prefix)),
        Grant::Denied => ("denial", source_text(entry.prefix)),
    };
    match &entry.by {
        By::Command { user, .. } => format!("{}'s {what} of {prefix}", entry.owner.as_ref().unwrap_or(user)),
        By::Configuration => format!("the configuration's {what} of {prefix}"),
        By::Safety => format!("the {what} of {prefix} for safety"),
    }
}

/// Formats an expiry, such as `until 18:48 UTC`, with the date if it is not today. Without an expiry, returns
/// `permanent`.
pub(super) fn until_text(until: Option<Nanos>, clocks: Clocks) -> String {
    let Some(until) = until else { return "permanent".to_owned() };
    let at = clocks.wall_of(until);
    let day = |of: jiff::Timestamp| of.strftime("%F").to_string();
    let format = if day(at) == day(clocks.wall) { "until %H:%M UTC" } else { "until %F %H:%M UTC" };
    at.strftime(format).to_string()
}

/// Formats an expiry as the end of a sentence. Empty without an expiry.
fn until_clause(until: Option<Nanos>, clocks: Clocks) -> String {
    until.map_or(String::new(), |_| format!(" {}", until_text(until, clocks)))
}

/// Refuses an allowance that would leave almost nobody limited, unless forced.
fn object_to_exempting(prefix: IpNet, request: &GrantRequest) -> Result<(), Problem> {
    match Around::objection_to_exempting(prefix) {
        Some(why) if !request.force => {
            let why = format!("{why}; to pass everything for now: `ratelimitd panic`; --force allows it anyway");
            Err(Problem::new(ProblemKind::BadRequest, why))
        }
        Some(why) => {
            tracing::warn!("{why}: allowed anyway, by --force");
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
    match (request.permanent, request.seconds) {
        (true, None) => Ok(None),
        (false, None) => Ok(Some(clocks.after(u64::try_from(usual.as_nanos()).unwrap_or(u64::MAX)))),
        (false, Some(seconds @ 1..=SECONDS_MAX)) => Ok(Some(clocks.after(seconds.saturating_mul(1_000_000_000)))),
        (true, Some(_)) | (false, Some(_)) => {
            let why = "give a time of 1 s to 10 years, or permanent, but not both";
            Err(Problem::new(ProblemKind::BadRequest, why))
        }
    }
}

/// Returns the owner named in the request. Fails if the grant must not have an owner, or if the name is invalid.
fn checked_owner(grant: Grant, request: &GrantRequest) -> Result<Option<String>, Problem> {
    let Some(owner) = &request.owner else { return Ok(None) };
    let why = match grant {
        Grant::Exempt => "only a denial has an owner",
        Grant::Denied if request.fleet => "an owner's entries are those of one host: leave out one of owner and fleet",
        Grant::Denied => {
            check_owner(owner)?;
            return Ok(Some(owner.clone()));
        }
    };
    Err(Problem::new(ProblemKind::BadRequest, why))
}

/// Fails if the text is not a valid name of an owner.
pub(super) fn check_owner(owner: &str) -> Result<(), Problem> {
    let is_of_it = |c: char| c.is_ascii_alphanumeric() || "._:/@+-".contains(c);
    let parts_are_there = owner.split('/').all(|part| !part.is_empty());
    if owner.len() <= OWNER_BYTES_MAX && parts_are_there && owner.chars().all(is_of_it) {
        return Ok(());
    }
    let why = format!(
        "an owner is named as in fail2ban/sshd: letters, digits and ._:@+- with / between parts, {OWNER_BYTES_MAX} bytes at most"
    );
    Err(Problem::new(ProblemKind::BadRequest, why))
}

pub(super) fn checked_reason(reason: Option<&str>) -> Result<Option<String>, Problem> {
    let Some(reason) = reason.map(str::trim).filter(|reason| !reason.is_empty()) else { return Ok(None) };
    let why = if reason.len() > REASON_BYTES_MAX {
        format!("a reason has at most {REASON_BYTES_MAX} bytes, and this one {}", reason.len())
    } else {
        match reason.chars().find(|c| c.is_control() || turns_text(*c)) {
            None => return Ok(Some(reason.to_owned())),
            Some('\n' | '\r') => "the reason has a line break: write it on one line".to_owned(),
            Some(c) => format!("the reason has a character that cannot be seen, U+{:04X}: leave it out", u32::from(c)),
        }
    };
    Err(Problem::new(ProblemKind::BadRequest, why))
}
