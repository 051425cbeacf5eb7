//! Choice of the rule that judges a packet, and its verdict, step by step: `ratelimitd explain IP --to PORT`. Counts
//! nothing. Pure.

use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use serde::{Deserialize, Serialize};

use super::check::{check_limit, shadow_limits};
use super::decision::Known;
use super::guard::GuardStanding;
use super::sources::{WindowState, source_text};
use super::{CheckLimit, Mode, Outcome, SCHEMA, timestamp};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{self, Access, Grant, Mismatch, Policy, Sent};

/// Maximum number of a rule's prefixes that are shown. Lists may have thousands.
const PREFIXES_SHOWN: usize = 3;

/// Verdict on one packet, and the steps that lead to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Client: an address, or the prefix that counts as one client.
    pub source: String,
    /// Port of the packet, as in `443/tcp`.
    pub to: String,
    /// Destination address, if one was given.
    pub to_address: Option<String>,
    /// Time of the reading, by the datapath's clock.
    pub time: Timestamp,
    /// Steps in the order of the packet path.
    pub steps: Vec<Step>,
    /// Name of the rule that judges the packet; none if no rule does.
    pub rule: Option<String>,
    /// Mode of that rule.
    pub mode: Option<Mode>,
    /// State of that rule's limits.
    pub limits: Vec<CheckLimit>,
    /// State of that rule's shadow limits, which are counted and never enforced. Their `mode` is dry-run, and no step
    /// checks them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_limits: Vec<CheckLimit>,
    /// Verdict on a further unit that the limits count.
    pub verdict: Outcome,
    /// Reason, as a counter label.
    pub reason: String,
}

/// One step of the decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Checked item: `rule web`, `access`, `bans`, `limit 1000/5m connections`.
    pub at: String,
    /// Outcome of the step.
    pub outcome: StepOutcome,
    /// Explanation in words, one clause.
    pub why: String,
}

/// Outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    /// The next step follows.
    GoesOn,
    /// The packet passes here.
    Passes,
    /// The packet is dropped here, or would be in dry-run.
    Drops,
}

impl ExplainReport {
    /// Builds the report on a packet from the windows and bans of its source, at `now` by the datapath's clock.
    pub fn build(policy: &Policy, now: Nanos, sent: &Sent, windows: &[SourceReading], bans: &[Ban]) -> Self {
        let judge = policy.rule_for(sent, now);
        let mut steps: Vec<Step> = Vec::new();
        for (at, rule) in policy.rules.iter().enumerate() {
            steps.push(rule_step(rule, sent, now));
            if judge.is_some_and(|(judge, _)| judge == at) {
                break;
            }
        }
        let mut report = Self {
            schema: SCHEMA,
            source: source_text(policy.client(sent.from)),
            to: format!("{}/{}", sent.port, sent.protocol.label()),
            to_address: sent.to.map(|to| to.to_string()),
            time: timestamp(now),
            steps,
            rule: judge.map(|(_, rule)| rule.name.clone()),
            mode: judge.map(|(_, rule)| rule.mode),
            limits: Vec::new(),
            shadow_limits: judge.map_or_else(Vec::new, |(_, rule)| shadow_limits(rule, windows, now)),
            verdict: Outcome::Pass,
            reason: String::new(),
        };
        let reason = match judge {
            Some((at, rule)) => report.judge(policy, (at, rule), now, sent, windows, bans),
            None => Reason::NotProtected,
        };
        report.verdict = reason.action().into();
        reason.label().clone_into(&mut report.reason);
        report
    }

    fn judge(
        &mut self,
        policy: &Policy,
        (at, rule): (usize, &desired::Rule),
        now: Nanos,
        sent: &Sent,
        windows: &[SourceReading],
        bans: &[Ban],
    ) -> Reason {
        let known = Known { policy, now, windows, bans };
        let decision = known.decision(at, rule, sent.from.into()).of(sent.protocol);
        self.steps.push(access_step(decision.access, now));
        self.steps.push(ban_step(decision.ban.as_ref(), now));
        for (limit, windows) in &decision.limits {
            self.limits.extend(windows.iter().map(|window| check_limit(rule, limit, window, now)));
            self.steps.extend(windows.first().map(|worst| limit_step(limit, &worst.standing)));
        }
        self.steps.extend(decision.guards.iter().map(guard_step));
        decision.reason()
    }
}

impl Step {
    fn new(at: impl Into<String>, outcome: StepOutcome, why: impl Into<String>) -> Self {
        Self { at: at.into(), outcome, why: why.into() }
    }
}

fn rule_step(rule: &desired::Rule, sent: &Sent, now: Nanos) -> Step {
    let why = match rule.mismatch(sent, now) {
        None => {
            let mode = match rule.mode {
                desired::Mode::Enforce => "",
                desired::Mode::DryRun => "; it is in dry run and drops nothing",
            };
            format!("judges it: ports {}{mode}", rule.ports)
        }
        Some(Mismatch::Ended) => "does not match: it has ended".to_owned(),
        Some(Mismatch::Port) => format!("does not match: it is for ports {}", rule.ports),
        Some(Mismatch::From) => format!("does not match: it is for packets from {}", some_of(&rule.from)),
        Some(Mismatch::To) => format!("does not match: it is for packets to {}", some_of(&rule.to)),
        Some(Mismatch::ToUnknown) => {
            format!("skipped: it is for packets to {}; give the address with --to-address", some_of(&rule.to))
        }
    };
    Step::new(format!("rule {}", rule.name), StepOutcome::GoesOn, why)
}

fn access_step(access: Option<Access>, now: Nanos) -> Step {
    let step = |outcome, why: String| Step::new("access", outcome, why);
    let Some(access) = access else {
        return step(StepOutcome::GoesOn, "neither allowed nor denied".to_owned());
    };
    let until = access.until.map_or(String::new(), |until| format!(", for {} more", seconds_left(until, now)));
    let (outcome, word) = match access.grant {
        Grant::Exempt => (StepOutcome::Passes, "allowed"),
        Grant::Denied => (StepOutcome::Drops, "denied"),
    };
    step(outcome, format!("{word} as part of {}{until}", access.prefix))
}

fn ban_step(ban: Option<&Ban>, now: Nanos) -> Step {
    match ban {
        None => Step::new("bans", StepOutcome::GoesOn, "not banned by this rule"),
        Some(ban) => {
            let why = format!("banned for {} more, ban {} in a row", seconds_left(ban.until, now), ban.step);
            Step::new("bans", StepOutcome::Drops, why)
        }
    }
}

fn limit_step(limit: &desired::Limit, of: &WindowState) -> Step {
    let used = format!("{} of {} used", of.used, limit.amount);
    let at = format!("limit {limit}");
    if of.is_cached_drop {
        let why = format!(
            "{used}, and a drop-cache entry drops its packets for the next {}",
            seconds_left(Nanos(of.retry.after_ns), Nanos(0))
        );
        Step::new(at, StepOutcome::Drops, why)
    } else if of.over {
        Step::new(at, StepOutcome::Drops, format!("{used}: at the limit"))
    } else {
        Step::new(at, StepOutcome::GoesOn, format!("{used}: within the limit"))
    }
}

fn guard_step(of: &GuardStanding<'_>) -> Step {
    let at = format!("guard of {}", of.limit);
    let used = of.used_words();
    if of.is_over() {
        Step::new(at, StepOutcome::Drops, format!("{used}: at the limit"))
    } else {
        Step::new(at, StepOutcome::GoesOn, format!("{used}: refuses nothing"))
    }
}

fn seconds_left(until: Nanos, now: Nanos) -> String {
    let left_ns = until.0.saturating_sub(now.0);
    let whole = left_ns.div_ceil(ratelimit_common::time::SECOND_NS);
    ratelimit_policy::config::duration::short(whole.saturating_mul(ratelimit_common::time::SECOND_NS))
}

fn some_of(prefixes: &[ipnet::IpNet]) -> String {
    let shown: Vec<String> = prefixes.iter().take(PREFIXES_SHOWN).map(ToString::to_string).collect();
    let more = prefixes.len().saturating_sub(PREFIXES_SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{address, limit, opening, policy};
    use ratelimit_common::layout::Unit;
    use ratelimit_common::time::SECOND_NS;
    use ratelimit_datapath::Datapath as _;
    use ratelimit_datapath::fake::FakeDatapath;

    fn sent(port: &str) -> Sent {
        Sent::to_port(address("198.51.100.7"), None, port).unwrap()
    }

    #[test]
    fn each_rule_says_why_and_the_last_step_before_the_verdict_is_the_limit() {
        let mut policy = policy(vec![limit(2, Unit::Connections)]);
        let mut partner = policy.rules[0].clone();
        partner.name = "partner".into();
        partner.from =
            ["192.0.2.0/24", "10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/10"].map(|of| of.parse().unwrap()).to_vec();
        policy.rules.insert(0, partner);
        let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
        datapath.apply(&policy).unwrap();
        datapath.attach("eth0").unwrap();
        let mut report = |packets: usize| {
            for _ in 0..packets {
                kernel.packet("eth0", opening("198.51.100.7"));
            }
            let windows = datapath.source(address("198.51.100.7")).unwrap();
            ExplainReport::build(&policy, datapath.read().unwrap().now, &sent("80"), &windows, &[])
        };
        let lines = |report: &ExplainReport| {
            report.steps.iter().map(|step| format!("{}: {}", step.at, step.why)).collect::<Vec<_>>()
        };
        let within = report(1);
        assert_eq!(
            lines(&within),
            [
                "rule partner: does not match: it is for packets from 192.0.2.0/24, 10.0.0.0/8, 10.0.0.0/9 and 1 more",
                "rule default: judges it: ports 80,443",
                "access: neither allowed nor denied",
                "bans: not banned by this rule",
                "limit 2/5m connections: 1 of 2 used: within the limit",
            ]
        );
        assert_eq!(
            (within.verdict, within.reason.as_str(), within.rule.as_deref()),
            (Outcome::Pass, "within_limit", Some("default"))
        );
        let over = report(1);
        assert_eq!((over.verdict, over.reason.as_str()), (Outcome::Drop, "over_limit"));
        assert!(lines(&over)[4].ends_with("2 of 2 used: at the limit"));
        let until = Nanos(ratelimit_datapath::fake::START.0 + 90 * SECOND_NS);
        kernel.evict_windows("198.51.100.7/32".parse().unwrap(), policy.rules[1].limits[0].slot, until);
        let cached = report(0);
        assert_eq!((cached.verdict, cached.reason.as_str()), (Outcome::Drop, "over_limit"));
        assert!(
            lines(&cached)[4].ends_with("0 of 2 used, and a drop-cache entry drops its packets for the next 1m30s")
        );
    }

    #[test]
    fn access_goes_before_bans_and_bans_before_limits() {
        let mut policy = policy(vec![limit(0, Unit::Connections)]);
        let now = ratelimit_datapath::fake::START;
        let client = "198.51.100.7/32".parse().unwrap();
        let ban = Ban { client, rule: 0, until: Nanos(now.0 + 90 * SECOND_NS), step: 2 };
        let report = |policy: &Policy, bans: &[Ban]| ExplainReport::build(policy, now, &sent("443"), &[], bans);
        assert_eq!(report(&policy, &[]).reason, "over_limit");
        let banned = report(&policy, &[ban]);
        assert_eq!(
            (banned.reason.as_str(), banned.steps[2].why.as_str()),
            ("banned", "banned for 1m30s more, ban 2 in a row")
        );
        let of_another_rule = Ban { rule: 1, ..ban };
        assert_eq!(report(&policy, &[of_another_rule]).reason, "over_limit");
        policy.access = vec![Access { prefix: client, grant: Grant::Denied, until: None }];
        assert_eq!(report(&policy, &[ban]).reason, "denied");
        policy.rules[0].mode = desired::Mode::DryRun;
        assert_eq!(report(&policy, &[ban]).reason, "dry_run");
        policy.access[0].grant = Grant::Exempt;
        assert_eq!(report(&policy, &[ban]).reason, "exempt");
    }

    #[test]
    fn packets_that_no_rule_judges_pass_from_every_source() {
        let mut policy = policy(vec![limit(0, Unit::Connections)]);
        policy.access = vec![Access { prefix: "198.51.100.0/24".parse().unwrap(), grant: Grant::Denied, until: None }];
        let report = ExplainReport::build(&policy, ratelimit_datapath::fake::START, &sent("22"), &[], &[]);
        assert_eq!((report.verdict, report.reason.as_str(), report.rule), (Outcome::Pass, "not_protected", None));
        assert_eq!(report.steps.len(), 1);
    }
}
