//! Ends the open connections of sources that are denied with `--kill`, or banned by a rule with `block_kill`: by the
//! kernel, which tells both ends. So many a second: others stay open, and starve.
//!
//! Knows the policy and the datapath. What is to end is looked up when it is ended, by the policy that holds then.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::moment::Moment;
use ratelimit_datapath::{Connection, Datapath, Ended, KernelEvent, KernelEventKind};
use ratelimit_policy::desired::{Grant, Mode, Policy, Protocol, Rule, Sent};
use ratelimit_report::snapshot::{Closed, source_text};

/// Connections that are ended in a second.
const EACH_SECOND: usize = 1_000;
/// How long those of one order are ended that the budget had no room for at first.
const GO_ON_FOR: Duration = Duration::from_secs(10);
/// Orders that are carried out at one time; the connections of later ones stay open.
const ORDERS_MAX: usize = 256;

/// Whose connections are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of a denied prefix, to all that is protected.
    Denied(IpNet),
    /// Those of a banned source, to what the rule of this name judges.
    Banned(IpNet, String),
}

/// What is to end, and what came of all that was.
#[derive(Debug, Default)]
pub(super) struct Closer {
    orders: Vec<(Whose, Duration)>,
    budget: Budget,
    total: Closed,
    /// The kernel cannot, which was said.
    has_failed: bool,
}

/// How many may be ended now.
#[derive(Debug)]
struct Budget {
    left: usize,
    /// When it was full last, or filled up.
    at: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: EACH_SECOND, at: Duration::ZERO }
    }
}

impl Budget {
    /// How many may be ended at this time since the start.
    fn fill(&mut self, uptime: Duration) -> usize {
        let more = uptime.saturating_sub(self.at).as_millis() * EACH_SECOND as u128 / 1_000;
        let more = usize::try_from(more).unwrap_or(EACH_SECOND);
        if more > 0 {
            (self.left, self.at) = (self.left.saturating_add(more).min(EACH_SECOND), uptime);
        }
        self.left
    }

    const fn spend(&mut self, ended: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "no more than it had")]
        let ended = ended as usize;
        self.left = self.left.saturating_sub(ended);
    }
}

impl Closer {
    /// What came of all orders.
    pub(super) const fn total(&self) -> Closed {
        self.total
    }

    fn order(&mut self, whose: Whose, uptime: Duration) {
        if self.orders.len() >= ORDERS_MAX {
            self.total.passed_over = self.total.passed_over.saturating_add(1);
        } else if !self.orders.iter().any(|(of, _)| *of == whose) {
            self.orders.push((whose, uptime.saturating_add(GO_ON_FOR)));
        }
    }

    /// Takes in what came of a pass, and says it in words, if there is anything to say. What is left and may not be
    /// ended any more is counted.
    fn take(&mut self, of: Ended, uptime: Duration) -> Option<String> {
        let Ended { ended, left } = of;
        self.budget.spend(ended);
        self.total.ended = self.total.ended.saturating_add(ended);
        let names: Vec<String> = self.orders.iter().take(3).map(|(whose, _)| whose.to_string()).collect();
        let more = self.orders.len().saturating_sub(names.len());
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let names = format!("{}{more}", names.join(", "));
        if left == 0 {
            self.orders.clear();
        } else {
            self.orders.retain(|(_, until)| uptime < *until);
        }
        let is_over = self.orders.is_empty();
        if is_over {
            self.total.left_open = self.total.left_open.saturating_add(left);
        }
        match (ended, left, is_over) {
            (0, 0, _) | (0, _, false) => None,
            (_, 0, _) => Some(format!("ended {ended} connections of {names}")),
            (_, _, false) => {
                Some(format!("ended {ended} connections of {names}; {left} more follow, {EACH_SECOND} a second"))
            }
            (_, _, true) => Some(format!(
                "ended {ended} connections of {names}; {left} more STAY OPEN: {EACH_SECOND} a second are ended, for {} s; \
                 what they send is dropped",
                GO_ON_FOR.as_secs()
            )),
        }
    }
}

impl std::fmt::Display for Whose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Denied(prefix) => f.write_str(&source_text(*prefix)),
            Self::Banned(client, rule) => write!(f, "{} (banned by rule {rule})", source_text(*client)),
        }
    }
}

impl Whose {
    /// Whether this connection is one of those: what its client sends is dropped, for this reason.
    fn has(&self, of: &Connection, policy: &Policy, now: Nanos) -> bool {
        let (prefix, grant) = match self {
            Self::Denied(prefix) => (prefix, Some(Grant::Denied)),
            Self::Banned(client, _) => (client, None),
        };
        if !prefix.contains(&of.remote) || grant_of(policy, of.remote, now) != grant {
            return false;
        }
        let sent = Sent { from: of.remote, to: Some(of.local), protocol: Protocol::Tcp, port: of.port };
        let is_named = |rule: &Rule| match self {
            Self::Denied(_) => true,
            Self::Banned(_, name) => rule.name == *name,
        };
        policy.rule_for(&sent, now).is_some_and(|(_, rule)| rule.mode == Mode::Enforce && is_named(rule))
    }
}

fn grant_of(policy: &Policy, address: IpAddr, now: Nanos) -> Option<Grant> {
    policy.grant(address, now).map(|access| access.grant)
}

impl<D: Datapath> Engine<D> {
    /// Ends the connections of a prefix that was denied now; what there is to say of that.
    pub(super) fn kill_denied(&mut self, prefix: IpNet, moment: Moment) -> String {
        self.closer.order(Whose::Denied(prefix), moment.uptime);
        match self.try_close(moment) {
            Ok(said) => said.unwrap_or_else(|| "it has no open connections".to_owned()),
            Err(why) => format!("its connections STAY OPEN: {why}"),
        }
    }

    /// Has the connections ended of sources that these events have banned.
    pub(super) fn kill_banned(&mut self, events: &[KernelEvent], uptime: Duration) {
        let Self { closer, enforced, .. } = self;
        for event in events {
            let KernelEventKind::Ban { .. } = event.kind else { continue };
            let rule = event.rule.and_then(|at| enforced.desired.policy.rules.get(at));
            if let Some(rule) = rule.filter(|rule| rule.block_kill) {
                closer.order(Whose::Banned(event.client, rule.name.clone()), uptime);
            }
        }
    }

    /// The same of a source that another host has banned by this rule.
    pub(super) fn kill_client(&mut self, client: IpNet, rule: usize, uptime: Duration) {
        if let Some(rule) = self.enforced.desired.policy.rules.get(rule).filter(|rule| rule.block_kill) {
            self.closer.order(Whose::Banned(client, rule.name.clone()), uptime);
        }
    }

    /// Ends what is to end and may be.
    pub(super) fn close_due(&mut self, moment: Moment) {
        if self.closer.orders.is_empty() {
            return;
        }
        let had_failed = self.closer.has_failed;
        match self.try_close(moment) {
            Ok(_) => {}
            Err(_) if had_failed => {}
            Err(why) => tracing::warn!("connections of banned sources STAY OPEN: {why}"),
        }
    }

    fn try_close(&mut self, moment: Moment) -> Result<Option<String>, String> {
        let Self { closer, datapath, enforced, .. } = self;
        let most = closer.budget.fill(moment.uptime);
        let (orders, policy) = (&closer.orders, &enforced.desired.policy);
        let ended = datapath.now().and_then(|now| {
            datapath.end_connections(&mut |of| orders.iter().any(|(whose, _)| whose.has(of, policy, now)), most)
        });
        match ended {
            Ok(ended) => {
                closer.has_failed = false;
                let said = closer.take(ended, moment.uptime);
                said.iter().for_each(|said| tracing::info!("{said}"));
                Ok(said)
            }
            Err(error) => {
                closer.has_failed = true;
                closer.orders.clear();
                Err(format!("{:#}", anyhow::Error::from(error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_second_has_so_many_connections_and_a_pause_no_more() {
        let mut budget = Budget::default();
        assert_eq!(budget.fill(Duration::ZERO), 1_000);
        budget.spend(1_000);
        assert_eq!(budget.fill(Duration::from_micros(500)), 0);
        assert_eq!(budget.fill(Duration::from_millis(200)), 200);
        budget.spend(150);
        assert_eq!(budget.fill(SECOND), 850);
        assert_eq!(budget.fill(60 * SECOND), 1_000);
    }

    #[test]
    fn what_the_budget_does_not_hold_follows_and_in_the_end_is_counted_and_told() {
        let mut closer = Closer::default();
        let denied = Whose::Denied("198.51.100.0/24".parse().unwrap());
        closer.order(denied.clone(), SECOND);
        closer.order(denied, 2 * SECOND);
        assert_eq!(closer.orders.len(), 1, "one order for one prefix");
        let said = closer.take(Ended { ended: 1_000, left: 600 }, SECOND);
        assert_eq!(said.unwrap(), "ended 1000 connections of 198.51.100.0/24; 600 more follow, 1000 a second");
        assert_eq!(closer.take(Ended { ended: 0, left: 600 }, SECOND), None);
        let said = closer.take(Ended { ended: 590, left: 10 }, 11 * SECOND).unwrap();
        assert!(said.starts_with("ended 590 connections of 198.51.100.0/24; 10 more STAY OPEN"), "{said}");
        assert_eq!(closer.total(), Closed { ended: 1_590, left_open: 10, passed_over: 0 });
        assert!(closer.orders.is_empty());
        assert_eq!(closer.take(Ended::default(), 12 * SECOND), None);
    }

    #[test]
    fn more_orders_than_there_may_be_are_counted() {
        let mut closer = Closer::default();
        for last in 0..300_u32 {
            closer.order(Whose::Denied(IpNet::from(IpAddr::from((0x0a00_0000 + last).to_be_bytes()))), SECOND);
        }
        assert_eq!((closer.orders.len(), closer.total().passed_over), (256, 44));
        let said = closer.take(Ended { ended: 7, left: 0 }, SECOND).unwrap();
        assert_eq!(said, "ended 7 connections of 10.0.0.0, 10.0.0.1, 10.0.0.2 and 253 more");
    }
}
