//! Closes the open connections of sources that are denied with `--kill` or banned by a rule with `block_kill`. The
//! kernel closes them and notifies both ends. The number per second is bounded. Further connections stay open, but
//! their packets are dropped.
//!
//! Knows the policy and the datapath. Connections are looked up when they are closed, under the policy of that time.

use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::moment::Moment;
use ratelimit_datapath::{Connection, Datapath, Ended, KernelEvent, KernelEventKind};
use ratelimit_policy::desired::{Grant, Mode, Policy, Protocol, Rule, Sent};
use ratelimit_report::snapshot::{Closed, source_text};

/// Maximum number of connections closed per second.
const EACH_SECOND: usize = 1_000;
/// Time for which an order keeps closing connections that exceeded the budget at first.
const GO_ON_FOR: Duration = Duration::from_secs(10);
/// Maximum number of concurrent orders. Connections of further bans stay open. Denials may exceed it.
const ORDERS_MAX: usize = 256;

/// Selection of connections to close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Connections of a denied prefix to all protected ports.
    Denied(IpNet),
    /// Connections of a source banned until the given time, as far as the named rule judges them.
    Banned(IpNet, String, Nanos),
}

/// Orders to close connections, and the totals of past ones.
#[derive(Debug, Default)]
pub(super) struct Closer {
    orders: Vec<Order>,
    budget: Budget,
    total: Closed,
    /// True after a failure that was reported.
    has_failed: bool,
}

/// Order to close connections.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    whose: Whose,
    /// Uptime at which the order ends.
    until: Duration,
    /// Connections of this order that the last pass closed and left open.
    of: Ended,
}

/// Budget of connections to close.
#[derive(Debug)]
struct Budget {
    left: usize,
    /// Uptime of the last refill.
    at: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: EACH_SECOND, at: Duration::ZERO }
    }
}

impl Budget {
    /// Refills the budget, and returns the number of connections that may be closed now.
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
    /// Returns the totals of all orders.
    pub(super) const fn total(&self) -> Closed {
        self.total
    }

    /// Adds an order, unless it exists. Denials always have room, because an administrator asked for them.
    fn order(&mut self, whose: Whose, uptime: Duration) {
        if self.orders.iter().any(|of| of.whose == whose) {
            return;
        }
        if matches!(whose, Whose::Denied(_)) || self.orders.len() < ORDERS_MAX {
            self.orders.push(Order { whose, until: uptime.saturating_add(GO_ON_FOR), of: Ended::default() });
        } else {
            self.total.passed_over = self.total.passed_over.saturating_add(1);
        }
    }

    /// Drops the orders for sources within the prefix, or all orders. These sources were freed.
    pub(super) fn forget(&mut self, prefix: Option<IpNet>) {
        self.orders.retain(|of| match &of.whose {
            Whose::Denied(other) | Whose::Banned(other, ..) => prefix.is_some_and(|prefix| !prefix.contains(other)),
        });
    }

    /// Accounts for a pass that closed `ended` connections. Drops orders that are complete or expired, and counts
    /// what they left open. Returns a message if there is anything to report.
    fn take(&mut self, ended: u64, uptime: Duration) -> Option<String> {
        self.budget.spend(ended);
        self.total.ended = self.total.ended.saturating_add(ended);
        let names: Vec<String> = self.orders.iter().take(3).map(|of| of.whose.to_string()).collect();
        let more = self.orders.len().saturating_sub(names.len());
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let names = format!("{}{more}", names.join(", "));
        let (mut follow, mut stay) = (0_u64, 0_u64);
        self.orders.retain(|of| {
            let goes_on = of.of.left > 0 && uptime < of.until;
            let sum = if goes_on { &mut follow } else { &mut stay };
            *sum = sum.saturating_add(of.of.left);
            goes_on
        });
        self.total.left_open = self.total.left_open.saturating_add(stay);
        match (ended, follow, stay) {
            (0, _, 0) => None,
            (_, 0, 0) => Some(format!("ended {ended} connections of {names}")),
            (_, _, 0) => {
                Some(format!("ended {ended} connections of {names}; {follow} more follow, {EACH_SECOND} a second"))
            }
            (..) => Some(format!(
                "ended {ended} connections of {names}; {stay} more STAY OPEN: {EACH_SECOND} a second are ended, for {} s; \
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
            Self::Banned(client, rule, _) => write!(f, "{} (banned by rule {rule})", source_text(*client)),
        }
    }
}

impl Whose {
    /// Returns true if the connection is selected, and packets of its client are dropped for this reason.
    fn has(&self, of: &Connection, policy: &Policy, now: Nanos) -> bool {
        let grant = policy.grant(of.remote, now).map(|access| access.grant);
        let is_meant = match self {
            Self::Denied(prefix) => prefix.contains(&of.remote) && grant == Some(Grant::Denied),
            // If the client was denied meanwhile, its packets are dropped as well.
            Self::Banned(client, _, until) => {
                client.contains(&of.remote) && now < *until && grant != Some(Grant::Exempt)
            }
        };
        if !is_meant {
            return false;
        }
        let sent = Sent { from: of.remote, to: Some(of.local), protocol: Protocol::Tcp, port: of.port };
        let is_named = |rule: &Rule| match self {
            Self::Denied(_) => true,
            Self::Banned(_, name, _) => rule.name == *name,
        };
        policy.rule_for(&sent, now).is_some_and(|(_, rule)| rule.mode == Mode::Enforce && is_named(rule))
    }
}

impl<D: Datapath> Engine<D> {
    /// Closes the connections of a newly denied prefix. Returns a message and the numbers of this pass.
    pub(super) fn kill_denied(&mut self, prefix: IpNet, moment: Moment) -> (String, Ended) {
        let whose = Whose::Denied(prefix);
        self.closer.order(whose.clone(), moment.uptime);
        let of = match self.close(moment) {
            Ok(passes) => passes.into_iter().find(|(of, _)| *of == whose).map_or_else(Ended::default, |(_, of)| of),
            Err(why) => return (format!("its connections STAY OPEN: {why}"), Ended::default()),
        };
        let said = match (of.ended, of.left) {
            (0, 0) => "it has no open connections to ports that a rule enforces".to_owned(),
            (ended, 0) => format!("ended {ended} of its connections"),
            (ended, left) => {
                format!("ended {ended} of its connections; {left} more follow, {EACH_SECOND} a second in all")
            }
        };
        (said, of)
    }

    /// Orders the connections of a prefix closed that this rule denied, if the rule has `block_kill`.
    pub(super) fn kill_prefix(&mut self, prefix: IpNet, rule: &str, uptime: Duration) {
        if self.enforced.desired.policy.rules.iter().any(|of| of.name == rule && of.block_kill) {
            self.closer.order(Whose::Denied(prefix), uptime);
        }
    }

    /// Orders the connections closed of sources that these events banned, if their rule has `block_kill`.
    pub(super) fn kill_banned(&mut self, events: &[KernelEvent], uptime: Duration) {
        let Self { closer, enforced, .. } = self;
        for event in events {
            let KernelEventKind::Ban { until, .. } = event.kind else { continue };
            let rule = event.rule.and_then(|at| enforced.desired.policy.rules.get(at));
            if let Some(rule) = rule.filter(|rule| rule.block_kill) {
                closer.order(Whose::Banned(event.client, rule.name.clone(), until), uptime);
            }
        }
    }

    /// Orders the connections closed of a source that another host banned by this rule.
    pub(super) fn kill_client(&mut self, client: IpNet, rule: usize, until: Nanos, uptime: Duration) {
        if let Some(rule) = self.enforced.desired.policy.rules.get(rule).filter(|rule| rule.block_kill) {
            self.closer.order(Whose::Banned(client, rule.name.clone(), until), uptime);
        }
    }

    /// Closes connections of pending orders, within the budget.
    pub(super) fn close_due(&mut self, moment: Moment) {
        if self.closer.orders.is_empty() {
            return;
        }
        let had_failed = self.closer.has_failed;
        match self.close(moment) {
            Ok(_) => {}
            Err(_) if had_failed => {}
            Err(why) => tracing::warn!("connections of banned sources STAY OPEN: {why}"),
        }
    }

    /// Runs one pass. Returns the numbers for each order.
    fn close(&mut self, moment: Moment) -> Result<Vec<(Whose, Ended)>, String> {
        let Self { closer, datapath, enforced, .. } = self;
        let most = closer.budget.fill(moment.uptime);
        let (orders, policy) = (&mut closer.orders, &enforced.desired.policy);
        orders.iter_mut().for_each(|order| order.of = Ended::default());
        let mut found = 0_usize;
        let ended = datapath.now().and_then(|now| {
            let mut is_wanted = |connection: &Connection| {
                let Some(order) = orders.iter_mut().find(|order| order.whose.has(connection, policy, now)) else {
                    return false;
                };
                found += 1;
                *(if found > most { &mut order.of.left } else { &mut order.of.ended }) += 1;
                true
            };
            datapath.end_connections(&mut is_wanted, most)
        });
        match ended {
            Ok(Ended { ended, .. }) => {
                closer.has_failed = false;
                let passes = closer.orders.iter().map(|order| (order.whose.clone(), order.of)).collect();
                if let Some(said) = closer.take(ended, moment.uptime) {
                    tracing::info!("{said}");
                }
                Ok(passes)
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
    use std::net::IpAddr;

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

    /// Accounts for a pass with the given number left of each order.
    fn pass(closer: &mut Closer, ended: u64, left: &[u64], uptime: Duration) -> Option<String> {
        closer.orders.iter_mut().zip(left).for_each(|(order, left)| order.of = Ended { ended: 0, left: *left });
        closer.take(ended, uptime)
    }

    fn denied(prefix: &str) -> Whose {
        Whose::Denied(prefix.parse().unwrap())
    }

    #[test]
    fn connections_beyond_the_budget_follow_and_are_counted_if_left_open() {
        let mut closer = Closer::default();
        closer.order(denied("198.51.100.0/24"), SECOND);
        closer.order(denied("198.51.100.0/24"), 2 * SECOND);
        assert_eq!(closer.orders.len(), 1, "one order for one prefix");
        let said = pass(&mut closer, 1_000, &[600], SECOND);
        assert_eq!(said.unwrap(), "ended 1000 connections of 198.51.100.0/24; 600 more follow, 1000 a second");
        assert_eq!(pass(&mut closer, 0, &[600], SECOND), None);
        let said = pass(&mut closer, 590, &[10], 11 * SECOND).unwrap();
        assert!(said.starts_with("ended 590 connections of 198.51.100.0/24; 10 more STAY OPEN"), "{said}");
        assert_eq!(closer.total(), Closed { ended: 1_590, left_open: 10, passed_over: 0 });
        assert!(closer.orders.is_empty());
        assert_eq!(pass(&mut closer, 0, &[], 12 * SECOND), None);
    }

    #[test]
    fn connections_left_by_one_order_are_counted_while_others_go_on() {
        let mut closer = Closer::default();
        closer.order(denied("198.51.100.0/24"), SECOND);
        closer.order(denied("203.0.113.0/24"), 9 * SECOND);
        let said = pass(&mut closer, 1_000, &[30, 70], 11 * SECOND).unwrap();
        assert!(said.contains("30 more STAY OPEN"), "{said}");
        assert_eq!(closer.total(), Closed { ended: 1_000, left_open: 30, passed_over: 0 });
        assert_eq!(closer.orders.iter().map(|of| &of.whose).collect::<Vec<_>>(), [&denied("203.0.113.0/24")]);
        let said = pass(&mut closer, 70, &[0], 12 * SECOND).unwrap();
        assert_eq!(said, "ended 70 connections of 203.0.113.0/24");
        assert_eq!(closer.total(), Closed { ended: 1_070, left_open: 30, passed_over: 0 });
    }

    #[test]
    fn a_freed_source_keeps_its_open_connections() {
        let mut closer = Closer::default();
        closer.order(Whose::Banned("198.51.100.7/32".parse().unwrap(), "web".to_owned(), Nanos(1)), SECOND);
        closer.order(denied("203.0.113.0/24"), SECOND);
        closer.forget("198.51.100.0/24".parse().ok());
        assert_eq!(closer.orders.iter().map(|of| &of.whose).collect::<Vec<_>>(), [&denied("203.0.113.0/24")]);
    }

    #[test]
    fn more_orders_than_there_may_be_are_counted() {
        let mut closer = Closer::default();
        for last in 0..300_u32 {
            let client = IpNet::from(IpAddr::from((0x0a00_0000 + last).to_be_bytes()));
            closer.order(Whose::Banned(client, "web".to_owned(), Nanos(1)), SECOND);
        }
        assert_eq!((closer.orders.len(), closer.total().passed_over), (256, 44));
        closer.order(denied("203.0.113.0/24"), SECOND);
        assert_eq!(closer.orders.pop().map(|of| of.whose), Some(denied("203.0.113.0/24")));
        let said = closer.take(7, SECOND).unwrap();
        assert_eq!(
            said,
            "ended 7 connections of 10.0.0.0 (banned by rule web), 10.0.0.1 (banned by rule web), 10.0.0.2 (banned by rule web) and \
             253 more"
        );
    }
}
