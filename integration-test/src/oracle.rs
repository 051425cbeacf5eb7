//! The naive oracle: an exact log of admissions, and the rules of the design's text (choice of rule, windows, units,
//! bans, clients). Slow, simple, and without a line of the code that it judges.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

mod conversation;
mod frames;
mod packet;
mod part;
mod policy;
mod shut;
#[cfg(test)]
mod tests;
mod tls;

pub use packet::{Kind, Outcome, Packet};
pub use part::Parts;
use part::{Newest, Step};
pub use policy::{Bans, Form, Grant, Guard, Limit, Mode, Nanos, Per, Policy, Prefix, Refuse, Rule, Unit};
use policy::{SECOND, bucket_start, cut, first_held_against, first_of_window, is_in, leaks_in};
use shut::Shut;

/// Identity of a counter: a rule, a client or group, a unit, a bucket length, and whether the bucket leaks. A limit
/// keeps its counter if its amount, form or number of buckets changes.
type Counter = (&'static str, (Per, IpAddr), Unit, Nanos, bool);

#[derive(Clone, Copy, Debug)]
struct Ban {
    until: Nanos,
    reset: Nanos,
    before: usize,
    /// True once something was admitted after the ban.
    is_over: bool,
}

/// The policy and everything that was ever admitted.
#[derive(Clone, Debug)]
pub struct Oracle {
    policy: Policy,
    /// Admissions of each counter, oldest first: time and amount.
    log: HashMap<Counter, Vec<(Nanos, u64)>>,
    /// Time at which each leaky bucket will be empty.
    empty_at: HashMap<Counter, Nanos>,
    /// Counters to which an amount fitted once, whether it was admitted or refused by another limit of the rule.
    begun: HashSet<Counter>,
    /// Time of each counter's last refusal.
    refused: HashMap<Counter, Nanos>,
    bans: HashMap<(&'static str, IpAddr), Ban>,
    parts: Parts,
    shut: Shut,
}

impl Oracle {
    /// Returns an oracle that has seen nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            log: HashMap::new(),
            empty_at: HashMap::new(),
            begun: HashSet::new(),
            refused: HashMap::new(),
            bans: HashMap::new(),
            parts: Parts::default(),
            shut: Shut::default(),
        }
    }

    /// Applies another policy. Everything admitted so far stays counted.
    pub fn apply(&mut self, policy: Policy) {
        (self.policy, self.shut) = (policy, Shut::default());
    }

    /// Returns the oracle's verdict on one packet, and charges the packet.
    pub fn judge(&mut self, packet: &Packet, now: Nanos) -> Outcome {
        if let Some(outcome) = self.refused_unseen(packet, now) {
            return outcome;
        }
        let Some(rule) = self.judging(packet, now).cloned() else { return Outcome::NotProtected };
        let granted = self.granted(packet.source, now);
        let outcome = match granted {
            Some(Grant::Exempt) => Outcome::Exempt,
            Some(Grant::Denied) => Outcome::Denied,
            None if packet.kind == Kind::Unparsable && !rule.counts_unparsable => Outcome::TooManyHeaders,
            None => self.judge_by(&rule, packet, now),
        };
        let outcome = if rule.mode == Mode::DryRun && !outcome.passes() { Outcome::DryRun } else { outcome };
        if packet.kind != (Kind::Fragment { may_be_tcp: true }) || granted.is_some() || !outcome.passes() {
            return outcome;
        }
        // The fragment may carry requests to any port, so it is charged to all of these rules.
        let others = self.rules_for(packet, now).into_iter().filter(|other| other.name != rule.name);
        for other in others.cloned().collect::<Vec<_>>() {
            if !self.charge_elsewhere(&other, packet, now) && other.mode == Mode::Enforce {
                return Outcome::OverLimit;
            }
        }
        outcome
    }

    /// Returns whether a connection or flow begins with this packet although nothing counts it. Includes a request that
    /// a dry run passes over its limit.
    pub fn begins_what_nothing_counts(&self, packet: &Packet, now: Nanos) -> bool {
        let Some(rule) = self.judging(packet, now) else { return false };
        let newest = self.part(rule, packet, now).newest;
        if self.parts.has(&newest) {
            return false;
        }
        let outcome = self.clone().judge(packet, now);
        outcome == Outcome::NotCounted || outcome == Outcome::DryRun && matches!(newest, Newest::Conversation(..))
    }

    /// Returns the name of the rule that judges a packet, and the packet's client.
    pub fn held_to(&self, packet: &Packet, now: Nanos) -> Option<(&'static str, IpAddr)> {
        self.judging(packet, now).map(|rule| (rule.name, self.client(packet.source)))
    }

    fn rules_for(&self, packet: &Packet, now: Nanos) -> Vec<&Rule> {
        let judges = |rule: &&Rule| rule.until.is_none_or(|until| now < until) && rule.is_for(packet);
        self.policy.rules.iter().filter(judges).collect()
    }

    fn judging(&self, packet: &Packet, now: Nanos) -> Option<&Rule> {
        let rules = self.rules_for(packet, now);
        // A fragment may belong to any of these rules. The first rule that counts packets or bytes judges it.
        let counts_volume =
            |rule: &&&Rule| rule.limits.iter().any(|limit| matches!(limit.unit, Unit::Packets | Unit::Bytes));
        let preferred = rules.iter().filter(|_| matches!(packet.kind, Kind::Fragment { .. })).find(counts_volume);
        preferred.or(rules.first()).copied()
    }

    /// Returns the grant of the longest prefix that contains the address and has not ended.
    fn granted(&self, source: IpAddr, now: Nanos) -> Option<Grant> {
        let holds = |until: Option<Nanos>| until.is_none_or(|until| now < until);
        let access = self.policy.access.iter().filter(|(prefix, _, until)| is_in(source, prefix) && holds(*until));
        access.max_by_key(|((_, len), _, _)| *len).map(|(_, grant, _)| *grant)
    }

    fn judge_by(&mut self, rule: &Rule, packet: &Packet, now: Nanos) -> Outcome {
        let part = self.part(rule, packet, now);
        let is_guarded = part.opens && part.requests == 0 && matches!(packet.kind, Kind::Tcp { .. }) && rule.guards();
        let cost = |unit: Unit| match unit {
            Unit::Connections => u64::from(part.opens),
            Unit::Requests => part.requests,
            Unit::Packets => 1,
            Unit::Bytes => packet.bytes,
        };
        let outcome = self.hold(rule, packet, cost, now);
        // A refused packet is judged again when it is retransmitted. A refused flow opens with each datagram, in a dry
        // run too; a conversation continues with whatever passes.
        let goes_on = rule.mode == Mode::DryRun && matches!(part.newest, Newest::Conversation(..));
        if outcome.passes() || goes_on {
            self.parts.remember(part.newest);
        }
        if outcome == Outcome::NotCounted && is_guarded { Outcome::WithinLimit } else { outcome }
    }

    /// Returns the packet's step in its connection or flow, as far as this rule counts it.
    fn part(&self, rule: &Rule, packet: &Packet, now: Nanos) -> Step {
        let counts = |unit| rule.counts(unit);
        match packet.kind {
            Kind::Udp { port, .. } if counts(Unit::Connections) || counts(Unit::Requests) => {
                self.parts.datagram(packet, now, rule.quic.contains(&port))
            }
            Kind::Tcp { opens, is_fragment: true, .. } => Step { opens, requests: 1, ..Step::default() },
            Kind::Tcp { .. } if counts(Unit::Requests) && !packet.payload.is_empty() => self.parts.segment(packet),
            Kind::Tcp { opens, .. } => Step { opens, ..Step::default() },
            Kind::Fragment { may_be_tcp } => Step { requests: may_be_tcp.into(), ..Step::default() },
            Kind::Unparsable => Step { opens: true, requests: 1, ..Step::default() },
            Kind::Udp { .. } | Kind::ControlTraffic | Kind::Other => Step::default(),
        }
    }

    fn hold(&mut self, rule: &Rule, packet: &Packet, cost: impl Fn(Unit) -> u64, now: Nanos) -> Outcome {
        let client = self.client(packet.source);
        let ban = self.bans.get(&(rule.name, client)).copied();
        if let Some(ban) = ban.filter(|ban| rule.bans.is_some() && now < ban.until) {
            self.shut_out(rule, packet, ban.until);
            return Outcome::Banned;
        }
        let (outcome, is_by_group) = self.charge(rule, packet, cost, now);
        // A source that was not admitted since the ban is refused for the same reason as before.
        let is_another = self.bans.get(&(rule.name, client)).is_none_or(|ban| ban.is_over || now >= ban.reset);
        if let (Outcome::OverLimit, Mode::Enforce, Some(bans), true) = (outcome, rule.mode, &rule.bans, is_another)
            && !bans.needs_proof
            && !is_by_group
        {
            let before = ban.filter(|ban| now < ban.reset).map_or(0, |ban| ban.before + 1);
            let until = now + bans.steps[before.min(bans.steps.len() - 1)];
            let ban = Ban { until, reset: until + bans.forget, before, is_over: false };
            self.bans.insert((rule.name, client), ban);
        }
        outcome
    }

    /// Charges a packet to the rule's limits. Returns the outcome, and whether a group refuses the packet.
    fn charge(&mut self, rule: &Rule, packet: &Packet, cost: impl Fn(Unit) -> u64, now: Nanos) -> (Outcome, bool) {
        let client = self.client(packet.source);
        let (ipv4_prefix, ipv6_prefix) = (self.policy.ipv4_prefix, self.policy.ipv6_prefix);
        let counter = |limit: &Limit| counter(rule, limit, packet.source, (ipv4_prefix, ipv6_prefix));
        let is_group = |limit: &Limit| limit.per != Per::Client;
        let refuses = |limit: &&Limit| {
            let counter = counter(limit);
            if !self.begun.contains(&counter) {
                return false;
            }
            // A leaky bucket frees at any time, so counted traffic depends on the bucket alone.
            if rule.refuse == Refuse::All
                && limit.form != Form::Leaky
                && self.was_refused_since(&counter, bucket_start(limit, now))
            {
                return true;
            }
            let cost = match (cost(limit.unit), rule.refuse) {
                (0, Refuse::Excess) => return false,
                // Uncounted traffic of a client that went over its limit is refused while not even one more unit would
                // be within the limit.
                (0, Refuse::All) if !self.was_refused_since(&counter, first_held_against(limit, now)) => {
                    return false;
                }
                (0, Refuse::All) => 1,
                (cost, Refuse::Excess | Refuse::All) => cost,
            };
            !self.fits(&counter, limit, cost, now)
        };
        // A client's own limits are checked first.
        let (own, groups): (Vec<&Limit>, Vec<&Limit>) = rule.limits.iter().partition(|limit| !is_group(limit));
        let limits = [own, groups].concat();
        if let Some(limit) = limits.iter().copied().find(refuses) {
            self.refused.insert(counter(limit), now);
            self.shut_connection(rule, limit, packet, now);
            return (Outcome::OverLimit, is_group(limit));
        }
        let counted: Vec<&Limit> = limits.into_iter().filter(|limit| cost(limit.unit) > 0).collect();
        if let Some(ban) = self.bans.get_mut(&(rule.name, client))
            && let Some(bans) = &rule.bans
            && !counted.is_empty()
            // An admission of unverified traffic does not show that there is room for verified traffic.
            && (!bans.needs_proof
                || rule.mode == Mode::DryRun
                || rule.limits.iter().all(|limit| limit.unit == Unit::Connections))
        {
            ban.is_over = true;
        }
        for limit in &counted {
            if !self.fits(&counter(limit), limit, cost(limit.unit), now) {
                return (Outcome::OverLimit, is_group(limit));
            }
            self.begun.insert(counter(limit));
        }
        for limit in &counted {
            self.add(counter(limit), limit, cost(limit.unit), now);
        }
        (if counted.is_empty() { Outcome::NotCounted } else { Outcome::WithinLimit }, false)
    }

    /// Charges a fragment to another rule that it may belong to, or to none of its limits. Returns whether it is within
    /// them.
    fn charge_elsewhere(&mut self, rule: &Rule, packet: &Packet, now: Nanos) -> bool {
        let cost = |unit: Unit| match unit {
            Unit::Connections => 0,
            Unit::Requests | Unit::Packets => 1,
            Unit::Bytes => packet.bytes,
        };
        let mut counted: Vec<&Limit> = rule.limits.iter().filter(|limit| cost(limit.unit) > 0).collect();
        counted.sort_by_key(|limit| limit.per != Per::Client);
        let (ipv4_prefix, ipv6_prefix) = (self.policy.ipv4_prefix, self.policy.ipv6_prefix);
        let counter = |limit: &Limit| counter(rule, limit, packet.source, (ipv4_prefix, ipv6_prefix));
        for limit in &counted {
            if !self.fits(&counter(limit), limit, cost(limit.unit), now) {
                if self.begun.contains(&counter(limit)) {
                    self.refused.insert(counter(limit), now);
                }
                return false;
            }
            self.begun.insert(counter(limit));
        }
        counted.iter().for_each(|limit| self.add(counter(limit), limit, cost(limit.unit), now));
        true
    }

    /// Charges a limit an amount that is within it.
    fn add(&mut self, counter: Counter, limit: &Limit, cost: u64, now: Nanos) {
        if limit.form == Form::Leaky {
            let from = self.empty_at.get(&counter).map_or(now, |at| now.max(*at));
            self.empty_at.insert(counter, from + leaks_in(limit, cost));
        } else {
            self.log.entry(counter).or_default().push((now, cost));
        }
    }

    fn fits(&self, counter: &Counter, limit: &Limit, cost: u64, now: Nanos) -> bool {
        if limit.form == Form::Leaky {
            let full = match limit.unit {
                // Each unit is counted separately, rounded up.
                Unit::Connections | Unit::Packets | Unit::Requests => {
                    leaks_in(limit, 1) * limit.burst.unwrap_or(limit.amount)
                }
                Unit::Bytes => leaks_in(limit, limit.burst.unwrap_or(limit.amount)),
            };
            let left = self.empty_at.get(counter).map_or(0, |at| at.saturating_sub(now));
            return limit.amount > 0 && left + leaks_in(limit, cost) <= full;
        }
        let of_bucket = self.used_since(counter, bucket_start(limit, now));
        let of_window = self.used_since(counter, first_of_window(limit, now));
        of_window + cost <= limit.amount && limit.burst.is_none_or(|burst| of_bucket + cost <= burst)
    }

    fn used_since(&self, counter: &Counter, first: Nanos) -> u64 {
        let Some(log) = self.log.get(counter) else { return 0 };
        log.iter().rev().take_while(|(at, _)| *at >= first).map(|(_, amount)| amount).sum()
    }

    /// Returns whether something was refused at or after this time.
    fn was_refused_since(&self, counter: &Counter, since: Nanos) -> bool {
        self.refused.get(counter).is_some_and(|at| *at >= since)
    }

    fn client(&self, source: IpAddr) -> IpAddr {
        let len = match source {
            IpAddr::V4(_) => self.policy.ipv4_prefix,
            IpAddr::V6(_) => self.policy.ipv6_prefix,
        };
        cut(source, len).unwrap_or(source)
    }
}

/// Returns the counter of a limit of the rule for this source. The pair has the prefix lengths of one client.
fn counter(rule: &Rule, limit: &Limit, source: IpAddr, (ipv4, ipv6): (u8, u8)) -> Counter {
    let (v4, v6) = match limit.per {
        Per::Client => (ipv4, ipv6),
        Per::Prefix(v4, v6) => (v4, v6),
        Per::Rule => (0, 0),
    };
    let whom = cut(source, if source.is_ipv4() { v4 } else { v6 }).unwrap_or(source);
    // Both families share one counter.
    let whom = if limit.per == Per::Rule { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { whom };
    (rule.name, (limit.per, whom), limit.unit, limit.bucket, limit.form == Form::Leaky)
}
