//! Charges and queries by applications, and protection of users from lockout by a configuration.

use std::net::IpAddr;

use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Event;
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{ChargeRequest, Problem, ProblemKind, StandingReport};
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::syntax::{near_miss, printable, shortened};
use ratelimit_policy::desired::{Grant, Policy};
use ratelimit_policy::safety::{Around, SshSession};
use ratelimit_report::snapshot::{CheckLimit, CheckReport, Outcome, SCHEMA, source_text};

impl<D: Datapath> Engine<D> {
    /// Adds to a source's usage. An allowed source is not charged, just like its packets, and so is never banned.
    pub(super) fn charge(
        &mut self,
        request: &ChargeRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<StandingReport, Problem> {
        let rule = rule_named(&self.enforced.desired.policy, &request.rule)?;
        let source = request.source.to_canonical();
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let access = self.enforced.desired.policy.grant(source, now).map(|access| access.grant);
        if access != Some(Grant::Exempt) {
            let client = self.enforced.desired.policy.client(source);
            self.datapath.charge(client, rule, request.amount).map_err(Problem::datapath)?;
            let (source, rule) = (source_text(client), request.rule.clone());
            self.journal.tell(Event::Charge { source, rule, by: by.to_string(), amount: request.amount }, moment);
        }
        self.standing(request.source, &request.rule)
    }

    /// Reports a source's standing with one rule, as if it were the only rule. Accepts IPv4 addresses in IPv6 form,
    /// because a server that listens for both families sees them so. No packet has that form.
    pub(super) fn standing(&mut self, source: IpAddr, rule: &str) -> Result<StandingReport, Problem> {
        let source = source.to_canonical();
        let at = rule_named(&self.enforced.desired.policy, rule)?;
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let mut windows = self.datapath.source(source).map_err(Problem::datapath)?;
        // The application asks about a client with an established connection. Where verified traffic is counted
        // separately, forged packets in its name do not matter.
        let verified: Vec<u32> = windows.iter().filter(|of| of.is_verified).map(|of| of.slot).collect();
        windows.retain(|of| of.is_verified || !verified.contains(&of.slot));
        let bans = self.datapath.bans_of(self.enforced.desired.policy.client(source)).map_err(Problem::datapath)?;
        let bans: Vec<_> = bans.into_iter().filter(|ban| ban.rule == at).collect();
        let mut of = self.enforced.desired.policy.rules[at].clone();
        of.from = Vec::new();
        let alone = Policy { rules: vec![of], ..self.enforced.desired.policy.clone() };
        let bans: Vec<_> = bans.into_iter().map(|ban| ratelimit_datapath::Ban { rule: 0, ..ban }).collect();
        let report = CheckReport::with_bans(&alone, now, source, &windows, &bans);
        let room = |of: &&CheckLimit| (of.remaining.saturating_mul(1_000) / of.limit.max(1), of.remaining);
        let Some(nearest) = report.limits.iter().min_by_key(room) else {
            let why = format!("rule {rule} has no limits, or has ended");
            return Err(Problem::new(ProblemKind::NotFound, why));
        };
        let place = report.limits.iter().position(|limit| limit == nearest).unwrap_or(0);
        let is_in = report.verdict == Outcome::Pass;
        Ok(StandingReport {
            schema: SCHEMA,
            used: nearest.used.saturating_add(nearest.used_elsewhere.unwrap_or(0)),
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

    /// Fails if a configuration would deny or limit the requester's own session, and the one in force does not.
    pub(super) fn object_to_lockout(
        &self,
        config: &Config,
        caller: Option<SshSession>,
        now: Nanos,
    ) -> Result<(), Problem> {
        let of = |config: &Config| Policy { access: self.overrides.access_of(config, now), ..config.policy.clone() };
        let Some(caller) = caller else { return Ok(()) };
        let Some(why) = Around::objection_to_policy(&of(config), &of(&self.enforced.config), caller, now) else {
            return Ok(());
        };
        let why = format!(
            "{why}; nothing was changed. `ratelimitd apply --confirm 60s` tries it and rolls it back; --force applies it anyway"
        );
        Err(Problem::new(ProblemKind::BadRequest, why))
    }
}

pub(super) fn rule_named(policy: &Policy, name: &str) -> Result<usize, Problem> {
    policy.rules.iter().position(|rule| rule.name == name).ok_or_else(|| {
        let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
        let there_are = if names.len() == 1 { "the only rule is" } else { "there are" };
        let meant = near_miss(name, names.iter().copied()).or(names.first().copied().filter(|_| names.len() == 1));
        let typed = meant.map_or_else(String::new, |meant| format!("; type: --rule {meant}"));
        let why = format!(
            "there is no rule {}; {there_are} {}{typed}",
            printable(&shortened(name.to_owned())),
            names.join(", ")
        );
        Problem::new(ProblemKind::NotFound, why)
    })
}
