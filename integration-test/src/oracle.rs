//! The naive oracle: an exact log of what was admitted, and the rules as the design's text has them (who judges whom,
//! windows, units, bans, who is one client). Slow, simple, and without a line of the code that it judges.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

mod conversation;
mod part;
#[cfg(test)]
mod tests;
mod tls;

pub use part::Parts;
use part::{Newest, Part};

/// Nanoseconds since 1970, as everywhere.
pub type Nanos = u64;

/// An address and a length. Bits behind the length are 0.
pub type Prefix = (IpAddr, u8);

const SECOND: Nanos = 1_000_000_000;

/// What one of a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// What opens one.
    Connections,
    /// An IP packet.
    Packets,
    /// A byte of an IP packet.
    Bytes,
    /// What begins a turn of a conversation.
    Requests,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The current bucket and B full ones.
    Strict,
    /// The current bucket and B - 1 full ones.
    Lenient,
    /// The current bucket alone.
    Fixed,
    /// A bucket that leaks evenly, as much in `bucket` as the limit admits.
    Leaky,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many are admitted in a window.
    pub amount: u64,
    /// Of what.
    pub unit: Unit,
    /// Length of a bucket.
    pub bucket: Nanos,
    /// Buckets to a window.
    pub buckets: u64,
    /// How they are counted.
    pub form: Form,
    /// At most so many in one bucket; of a leaky bucket, how many it holds, and none is all.
    pub burst: Option<u64>,
}

/// What of a source over its limit is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// What is counted.
    Excess,
    /// Everything to the rule's ports.
    All,
}

/// Whether a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It only says so.
    DryRun,
}

/// How a rule bans who exceeds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// For how long the first time, the second, and so on; the last for all after it.
    pub steps: Vec<Nanos>,
    /// So long after its end a ban is forgotten.
    pub forget: Nanos,
    /// None begins but by what proves who sent it, which nothing does that the oracle is shown.
    pub needs_proof: bool,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// By which it is the same rule in another policy.
    pub name: &'static str,
    /// Whose packets; empty is everyone's.
    pub from: Vec<Prefix>,
    /// To which addresses; empty is all.
    pub to: Vec<Prefix>,
    /// Protected TCP ports.
    pub tcp: Vec<u16>,
    /// Protected UDP ports.
    pub udp: Vec<u16>,
    /// Whether other protocols are protected.
    pub other_protocols: bool,
    /// All of which must hold.
    pub limits: Vec<Limit>,
    /// What is counted without being held: it decides what is remembered of flows and connections, as limits do.
    pub shadows: Vec<Unit>,
    /// What is dropped.
    pub refuse: Refuse,
    /// Whether it is.
    pub mode: Mode,
    /// When it ends.
    pub until: Option<Nanos>,
    /// How it bans.
    pub bans: Option<Bans>,
    /// UDP ports where what looks like QUIC is QUIC.
    pub quic: Vec<u16>,
    /// What cannot be parsed is counted, as anything that it may be.
    pub counts_unparsable: bool,
}

/// What a prefix is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Never limited.
    Exempt,
    /// Dropped.
    Denied,
}

/// What the oracle judges by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Prefix length of one IPv4 client.
    pub ipv4_prefix: u8,
    /// Prefix length of one IPv6 client.
    pub ipv6_prefix: u8,
    /// What prefixes are granted, until when; each prefix once.
    pub access: Vec<(Prefix, Grant, Option<Nanos>)>,
    /// The first that matches judges.
    pub rules: Vec<Rule>,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// Length of the IP packet.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
    /// What is behind the headers of TCP or UDP.
    pub payload: Vec<u8>,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment, which opens a connection or does not.
    Tcp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        port: u16,
        /// SYN without ACK.
        opens: bool,
        /// Number of the payload's first byte.
        sequence: u32,
        /// How much its sender says to have heard; 0 where it says nothing of that.
        acknowledged: u32,
        /// The rest of the segment is in other packets.
        is_fragment: bool,
    },
    /// A UDP datagram.
    Udp {
        /// Source port.
        source_port: u16,
        /// Destination port.
        port: u16,
        /// Whether it begins with a QUIC Initial.
        quic_initial: bool,
    },
    /// A fragment without ports.
    Fragment {
        /// It may bring requests.
        may_be_tcp: bool,
    },
    /// What may be anything, to any port.
    Unparsable,
    /// Neighbour discovery and ICMP errors.
    Essential,
    /// Other protocols.
    Other,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Passed: no rule is for it.
    NotProtected,
    /// Passed: no limit counts it.
    NotCounted,
    /// Passed and charged.
    WithinLimit,
    /// Passed: exempt.
    Exempt,
    /// Passed, but would have been dropped.
    DryRun,
    /// Dropped.
    OverLimit,
    /// Dropped.
    Banned,
    /// Dropped.
    Denied,
    /// Dropped: nobody can tell what it is.
    TooManyHeaders,
}

impl Outcome {
    /// The word for it in the project's list of reasons.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotProtected => "not_protected",
            Self::NotCounted => "not_counted",
            Self::WithinLimit => "within_limit",
            Self::Exempt => "exempt",
            Self::DryRun => "dry_run",
            Self::OverLimit => "over_limit",
            Self::Banned => "banned",
            Self::Denied => "denied",
            Self::TooManyHeaders => "too_many_headers",
        }
    }

    /// Whether the packet passes.
    pub const fn passes(self) -> bool {
        match self {
            Self::NotProtected | Self::NotCounted | Self::WithinLimit | Self::Exempt | Self::DryRun => true,
            Self::OverLimit | Self::Banned | Self::Denied | Self::TooManyHeaders => false,
        }
    }
}

/// Whose counter it is: a rule, a client, one kind of bucket, and whether that leaks. A limit that changes its amount, form or
/// number of buckets keeps it.
type Counter = (&'static str, IpAddr, Unit, Nanos, bool);

#[derive(Clone, Copy, Debug)]
struct Ban {
    until: Nanos,
    forgotten: Nanos,
    before: usize,
    /// Something was let in after it.
    is_over: bool,
}

/// The policy and everything that was ever admitted.
#[derive(Clone, Debug)]
pub struct Oracle {
    policy: Policy,
    /// Admissions of each counter, oldest first: when, and how much.
    log: HashMap<Counter, Vec<(Nanos, u64)>>,
    /// When each leaky bucket will be empty.
    empty_at: HashMap<Counter, Nanos>,
    /// The counters that something fitted once, be it admitted or refused by another limit of the rule.
    begun: HashSet<Counter>,
    /// When each of these last refused something.
    refused: HashMap<Counter, Nanos>,
    bans: HashMap<(&'static str, IpAddr), Ban>,
    parts: Parts,
}

impl Oracle {
    /// An oracle that has seen nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            log: HashMap::new(),
            empty_at: HashMap::new(),
            begun: HashSet::new(),
            refused: HashMap::new(),
            bans: HashMap::new(),
            parts: Parts::default(),
        }
    }

    /// Judges by another policy from now on. Nothing that was admitted is forgotten.
    pub fn apply(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Judges one packet.
    pub fn judge(&mut self, packet: &Packet, now: Nanos) -> Outcome {
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
        // It may bring requests to any port, so it is held to all of these rules.
        let others = self.rules_for(packet, now).into_iter().filter(|other| other.name != rule.name);
        for other in others.cloned().collect::<Vec<_>>() {
            if !self.charge_elsewhere(&other, packet, now) && other.mode == Mode::Enforce {
                return Outcome::OverLimit;
            }
        }
        outcome
    }

    /// Whether nothing counts this packet, and a connection or flow begins with it all the same.
    pub fn begins_what_nothing_counts(&self, packet: &Packet, now: Nanos) -> bool {
        let Some(rule) = self.judging(packet, now) else { return false };
        let begins = !self.parts.has(&self.part(rule, packet, now).newest);
        begins && self.clone().judge(packet, now) == Outcome::NotCounted
    }

    /// Which rule judges a packet, by its name, and which client it is of.
    pub fn held_to(&self, packet: &Packet, now: Nanos) -> Option<(&'static str, IpAddr)> {
        self.judging(packet, now).map(|rule| (rule.name, self.client(packet.source)))
    }

    fn rules_for(&self, packet: &Packet, now: Nanos) -> Vec<&Rule> {
        let judges = |rule: &&Rule| rule.until.is_none_or(|until| now < until) && rule.is_for(packet);
        self.policy.rules.iter().filter(judges).collect()
    }

    fn judging(&self, packet: &Packet, now: Nanos) -> Option<&Rule> {
        let rules = self.rules_for(packet, now);
        // A fragment may be of any of them: the first that counts such at all.
        let counts_volume =
            |rule: &&&Rule| rule.limits.iter().any(|limit| matches!(limit.unit, Unit::Packets | Unit::Bytes));
        let preferred = rules.iter().filter(|_| matches!(packet.kind, Kind::Fragment { .. })).find(counts_volume);
        preferred.or(rules.first()).copied()
    }

    /// What the longest prefix around the address says that still says something.
    fn granted(&self, source: IpAddr, now: Nanos) -> Option<Grant> {
        let holds = |until: Option<Nanos>| until.is_none_or(|until| now < until);
        let access = self.policy.access.iter().filter(|(prefix, _, until)| is_in(source, prefix) && holds(*until));
        access.max_by_key(|((_, len), _, _)| *len).map(|(_, grant, _)| *grant)
    }

    fn judge_by(&mut self, rule: &Rule, packet: &Packet, now: Nanos) -> Outcome {
        let part = self.part(rule, packet, now);
        let cost = |unit: Unit| match unit {
            Unit::Connections => u64::from(part.opens),
            Unit::Requests => part.requests,
            Unit::Packets => 1,
            Unit::Bytes => packet.bytes,
        };
        let outcome = self.hold(rule, self.client(packet.source), cost, now);
        // What is refused is judged again when it is sent again. A flow that is refused opens with each datagram, in a dry run
        // too; a conversation goes on by whatever passes.
        let goes_on = rule.mode == Mode::DryRun && matches!(part.newest, Newest::Conversation(..));
        if outcome.passes() || goes_on {
            self.parts.remember(part.newest);
        }
        outcome
    }

    /// What of its connection a packet is, as far as this rule asks.
    fn part(&self, rule: &Rule, packet: &Packet, now: Nanos) -> Part {
        let counts = |unit| rule.counts(unit);
        match packet.kind {
            Kind::Udp { port, .. } if counts(Unit::Connections) || counts(Unit::Requests) => {
                self.parts.datagram(packet, now, rule.quic.contains(&port))
            }
            Kind::Tcp { opens, is_fragment: true, .. } => Part { opens, requests: 1, ..Part::default() },
            Kind::Tcp { .. } if counts(Unit::Requests) && !packet.payload.is_empty() => self.parts.segment(packet),
            Kind::Tcp { opens, .. } => Part { opens, ..Part::default() },
            Kind::Fragment { may_be_tcp } => Part { requests: may_be_tcp.into(), ..Part::default() },
            Kind::Unparsable => Part { opens: true, requests: 1, ..Part::default() },
            Kind::Udp { .. } | Kind::Essential | Kind::Other => Part::default(),
        }
    }

    fn hold(&mut self, rule: &Rule, client: IpAddr, cost: impl Fn(Unit) -> u64, now: Nanos) -> Outcome {
        let ban = self.bans.get(&(rule.name, client)).copied();
        if rule.bans.is_some() && ban.is_some_and(|ban| now < ban.until) {
            return Outcome::Banned;
        }
        let outcome = self.charge(rule, client, cost, now);
        // Who was not let in since is refused for the same as before.
        let is_another = self.bans.get(&(rule.name, client)).is_none_or(|ban| ban.is_over || now >= ban.forgotten);
        if let (Outcome::OverLimit, Mode::Enforce, Some(bans), true) = (outcome, rule.mode, &rule.bans, is_another)
            && !bans.needs_proof
        {
            let before = ban.filter(|ban| now < ban.forgotten).map_or(0, |ban| ban.before + 1);
            let until = now + bans.steps[before.min(bans.steps.len() - 1)];
            let ban = Ban { until, forgotten: until + bans.forget, before, is_over: false };
            self.bans.insert((rule.name, client), ban);
        }
        outcome
    }

    fn charge(&mut self, rule: &Rule, client: IpAddr, cost: impl Fn(Unit) -> u64, now: Nanos) -> Outcome {
        let counter = |limit: &Limit| (rule.name, client, limit.unit, limit.bucket, limit.form == Form::Leaky);
        let refuses = |limit: &&Limit| {
            let counter = counter(limit);
            if !self.begun.contains(&counter) {
                return false;
            }
            // A leaky bucket frees at any time: what is counted itself goes by that alone.
            if rule.refuse == Refuse::All
                && limit.form != Form::Leaky
                && self.was_refused_since(&counter, bucket_start(limit, now))
            {
                return true;
            }
            let cost = match (cost(limit.unit), rule.refuse) {
                (0, Refuse::Excess) => return false,
                // What is not counted itself goes with the rest of a client that went over, while not even one more would fit.
                (0, Refuse::All) if !self.was_refused_since(&counter, first_held_against(limit, now)) => {
                    return false;
                }
                (0, Refuse::All) => 1,
                (cost, Refuse::Excess | Refuse::All) => cost,
            };
            !self.fits(&counter, limit, cost, now)
        };
        if let Some(limit) = rule.limits.iter().find(refuses) {
            self.refused.insert(counter(limit), now);
            return Outcome::OverLimit;
        }
        let counted: Vec<&Limit> = rule.limits.iter().filter(|limit| cost(limit.unit) > 0).collect();
        if let Some(ban) = self.bans.get_mut(&(rule.name, client))
            && let Some(bans) = &rule.bans
            && !counted.is_empty()
            // Nor does it show that there is room for what does.
            && (!bans.needs_proof
                || rule.mode == Mode::DryRun
                || rule.limits.iter().all(|limit| limit.unit == Unit::Connections))
        {
            ban.is_over = true;
        }
        for limit in &counted {
            if !self.fits(&counter(limit), limit, cost(limit.unit), now) {
                return Outcome::OverLimit;
            }
            self.begun.insert(counter(limit));
        }
        for limit in &counted {
            self.add(counter(limit), limit, cost(limit.unit), now);
        }
        if counted.is_empty() { Outcome::NotCounted } else { Outcome::WithinLimit }
    }

    /// Charges a fragment to a rule that it may belong to, or to none of its limits. Whether it fits.
    fn charge_elsewhere(&mut self, rule: &Rule, packet: &Packet, now: Nanos) -> bool {
        let cost = |unit: Unit| match unit {
            Unit::Connections => 0,
            Unit::Requests | Unit::Packets => 1,
            Unit::Bytes => packet.bytes,
        };
        let client = self.client(packet.source);
        let counted: Vec<&Limit> = rule.limits.iter().filter(|limit| cost(limit.unit) > 0).collect();
        let counter = |limit: &Limit| (rule.name, client, limit.unit, limit.bucket, limit.form == Form::Leaky);
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

    /// Charges a limit what fits it.
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
                // So many one by one, each rounded up.
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

    /// Whether something was refused at or after this time.
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

impl Rule {
    fn counts(&self, unit: Unit) -> bool {
        self.limits.iter().any(|limit| limit.unit == unit) || self.shadows.contains(&unit)
    }

    fn is_for(&self, packet: &Packet) -> bool {
        let holds =
            |prefixes: &[Prefix], address| prefixes.is_empty() || prefixes.iter().any(|prefix| is_in(address, prefix));
        let is_protected = match packet.kind {
            Kind::Tcp { port, .. } => self.tcp.contains(&port),
            Kind::Udp { port, .. } => self.udp.contains(&port),
            Kind::Fragment { .. } | Kind::Unparsable => {
                !self.tcp.is_empty() || !self.udp.is_empty() || self.other_protocols
            }
            Kind::Other => self.other_protocols,
            Kind::Essential => false,
        };
        is_protected && holds(&self.from, packet.source) && holds(&self.to, packet.destination)
    }
}

/// How long a leaky bucket takes to lose so much, rounded up. Nothing is asked of one that loses nothing.
fn leaks_in(limit: &Limit, amount: u64) -> Nanos {
    (amount * limit.bucket).div_ceil(limit.amount.max(1))
}

/// When the current bucket began.
fn bucket_start(limit: &Limit, now: Nanos) -> Nanos {
    now - now % limit.bucket
}

/// When the window that ends now began.
fn first_of_window(limit: &Limit, now: Nanos) -> Nanos {
    let behind = match limit.form {
        Form::Strict => limit.buckets,
        Form::Lenient => limit.buckets - 1,
        Form::Fixed | Form::Leaky => 0,
    };
    (now / limit.bucket - behind) * limit.bucket
}

/// A refusal since then holds up what is not counted: in a leaky bucket's time, since the one before the current began.
fn first_held_against(limit: &Limit, now: Nanos) -> Nanos {
    match limit.form {
        Form::Strict | Form::Lenient | Form::Fixed => first_of_window(limit, now),
        Form::Leaky => bucket_start(limit, now) - limit.bucket,
    }
}

fn is_in(address: IpAddr, (prefix, len): &Prefix) -> bool {
    address.is_ipv4() == prefix.is_ipv4() && cut(address, *len) == Some(*prefix)
}

/// The address with all bits behind the first `len` cleared; none if it has not as many.
fn cut(address: IpAddr, len: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let behind = 32_u32.checked_sub(len.into())?;
            Some(IpAddr::V4(v4.to_bits().checked_shr(behind).unwrap_or(0).checked_shl(behind).unwrap_or(0).into()))
        }
        IpAddr::V6(v6) => {
            let behind = 128_u32.checked_sub(len.into())?;
            Some(IpAddr::V6(v6.to_bits().checked_shr(behind).unwrap_or(0).checked_shl(behind).unwrap_or(0).into()))
        }
    }
}
