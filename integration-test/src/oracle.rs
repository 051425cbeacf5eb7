//! The naive oracle: an exact log of what was admitted, and the rules as the design's text has them (windows, units,
//! who is one client). Slow, simple, and without a line of the code that it judges.

use std::collections::HashMap;
use std::net::IpAddr;

/// Nanoseconds since 1970, as everywhere.
pub type Nanos = u64;

const SECOND: Nanos = 1_000_000_000;

/// A UDP flow that was silent for longer is new again.
const FLOW_IDLE: Nanos = 120 * SECOND;

/// QUIC Initial datagrams that one connection may take.
const INITIALS_PER_CONNECTION: u32 = 8;

/// What one of a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// What opens one.
    Connections,
    /// An IP packet.
    Packets,
    /// A byte of an IP packet.
    Bytes,
}

/// Which buckets a window takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The current bucket and B full ones.
    Strict,
    /// The current bucket and B - 1 full ones.
    Lenient,
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
    /// The form of the window.
    pub form: Form,
}

/// What of a source over its limit is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// What is counted.
    Excess,
    /// Everything to the rule's ports.
    All,
}

/// Whether the rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It only says so.
    DryRun,
}

/// What the oracle judges by: one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Prefix length of one IPv4 client.
    pub ipv4_prefix: u8,
    /// Prefix length of one IPv6 client.
    pub ipv6_prefix: u8,
    /// Prefixes that are never limited.
    pub exempt: Vec<(IpAddr, u8)>,
    /// Protected TCP ports.
    pub tcp: Vec<u16>,
    /// Protected UDP ports.
    pub udp: Vec<u16>,
    /// Whether other protocols are protected.
    pub other_protocols: bool,
    /// All of which must hold.
    pub limits: Vec<Limit>,
    /// What is dropped.
    pub refuse: Refuse,
    /// Whether it is.
    pub mode: Mode,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub source: IpAddr,
    /// Length of the IP packet.
    pub bytes: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment, which opens a connection or does not.
    Tcp {
        /// Destination port.
        port: u16,
        /// SYN without ACK.
        opens: bool,
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
    Fragment,
    /// Neighbour discovery and ICMP errors.
    Essential,
    /// Other protocols.
    Other,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Passed: not to a protected port.
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
        }
    }
}

/// Whose counter it is: a client, and one kind of bucket. A limit that changes its amount, form or number of buckets keeps it.
type Counter = (IpAddr, Unit, Nanos);

/// A UDP flow: whole address, source port, destination port.
type FlowKey = (IpAddr, u16, u16);

#[derive(Clone, Copy, Debug)]
struct Flow {
    last: Nanos,
    initials: u32,
}

/// The policy and everything that was ever admitted.
#[derive(Clone, Debug)]
pub struct Oracle {
    policy: Policy,
    /// Admissions of each counter, oldest first: when, and how much.
    log: HashMap<Counter, Vec<(Nanos, u64)>>,
    /// When each counter last refused something, if anything was ever admitted by it.
    refused: HashMap<Counter, Nanos>,
    flows: HashMap<FlowKey, Flow>,
}

impl Oracle {
    /// An oracle that has seen nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, log: HashMap::new(), refused: HashMap::new(), flows: HashMap::new() }
    }

    /// Judges by another policy from now on. Nothing that was admitted is forgotten.
    pub fn apply(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// What is charged to a client in the window that ends now.
    pub fn used(&self, source: IpAddr, limit: &Limit, now: Nanos) -> u64 {
        let first = first_of_window(limit, now);
        let Some(log) = self.log.get(&self.counter(source, limit)) else { return 0 };
        log.iter().rev().take_while(|(at, _)| *at >= first).map(|(_, amount)| amount).sum()
    }

    /// Judges one packet.
    pub fn judge(&mut self, packet: &Packet, now: Nanos) -> Outcome {
        if !self.is_protected(packet.kind) {
            return Outcome::NotProtected;
        }
        if self.policy.exempt.iter().any(|(prefix, len)| cut(packet.source, *len) == Some(*prefix)) {
            return Outcome::Exempt;
        }
        let flow = self.flow(packet, now);
        let opens = match packet.kind {
            Kind::Tcp { opens, .. } => opens,
            Kind::Udp { .. } => matches!(flow, Some((_, _, true))),
            Kind::Fragment | Kind::Essential | Kind::Other => false,
        };
        let cost = |unit: Unit| match unit {
            Unit::Connections => u64::from(opens),
            Unit::Packets => 1,
            Unit::Bytes => packet.bytes,
        };
        let outcome = self.charge(packet.source, cost, now);
        if let (Outcome::WithinLimit | Outcome::NotCounted, Some((key, flow, _))) = (outcome, flow) {
            self.flows.insert(key, flow);
        }
        outcome
    }

    fn is_protected(&self, kind: Kind) -> bool {
        let policy = &self.policy;
        match kind {
            Kind::Tcp { port, .. } => policy.tcp.contains(&port),
            Kind::Udp { port, .. } => policy.udp.contains(&port),
            Kind::Fragment => !policy.tcp.is_empty() || !policy.udp.is_empty() || policy.other_protocols,
            Kind::Other => policy.other_protocols,
            Kind::Essential => false,
        }
    }

    /// The datagram's flow as it will be remembered, and whether the datagram opens it. None where no flow matters.
    fn flow(&self, packet: &Packet, now: Nanos) -> Option<(FlowKey, Flow, bool)> {
        let Kind::Udp { source_port, port, quic_initial } = packet.kind else { return None };
        if !self.policy.limits.iter().any(|limit| limit.unit == Unit::Connections) {
            return None;
        }
        let key = (packet.source, source_port, port);
        let opened = (key, Flow { last: now, initials: u32::from(quic_initial) }, true);
        let Some(known) = self.flows.get(&key) else { return Some(opened) };
        let initials = known.initials + u32::from(quic_initial);
        if now - known.last > FLOW_IDLE || initials > INITIALS_PER_CONNECTION {
            return Some(opened);
        }
        Some((key, Flow { last: now, initials }, false))
    }

    fn charge(&mut self, source: IpAddr, cost: impl Fn(Unit) -> u64, now: Nanos) -> Outcome {
        let limits = self.policy.limits.clone();
        let refuses = |limit: &&Limit| {
            if self.policy.refuse == Refuse::All && self.was_refused_since(source, limit, bucket_start(limit, now)) {
                return true;
            }
            let cost = match (cost(limit.unit), self.policy.refuse) {
                (0, Refuse::Excess) => return false,
                // What is not counted itself goes with the rest of a client that went over, while not even one more would fit.
                (0, Refuse::All) if !self.was_refused_since(source, limit, first_of_window(limit, now)) => {
                    return false;
                }
                (0, Refuse::All) => 1,
                (cost, Refuse::Excess | Refuse::All) => cost,
            };
            self.used(source, limit, now) + cost > limit.amount
        };
        if let Some(limit) = limits.iter().find(refuses) {
            let counter = self.counter(source, limit);
            if self.log.contains_key(&counter) {
                self.refused.insert(counter, now);
            }
            return match self.policy.mode {
                Mode::Enforce => Outcome::OverLimit,
                Mode::DryRun => Outcome::DryRun,
            };
        }
        let mut charged: Vec<Counter> = Vec::new();
        for limit in &limits {
            let counter = self.counter(source, limit);
            if cost(limit.unit) > 0 && !charged.contains(&counter) {
                self.log.entry(counter).or_default().push((now, cost(limit.unit)));
                charged.push(counter);
            }
        }
        if charged.is_empty() { Outcome::NotCounted } else { Outcome::WithinLimit }
    }

    /// Whether something was refused at or after this time.
    fn was_refused_since(&self, source: IpAddr, limit: &Limit, since: Nanos) -> bool {
        self.refused.get(&self.counter(source, limit)).is_some_and(|at| *at >= since)
    }

    fn counter(&self, source: IpAddr, limit: &Limit) -> Counter {
        let len = match source {
            IpAddr::V4(_) => self.policy.ipv4_prefix,
            IpAddr::V6(_) => self.policy.ipv6_prefix,
        };
        (cut(source, len).unwrap_or(source), limit.unit, limit.bucket)
    }
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
    };
    (now / limit.bucket - behind) * limit.bucket
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

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Nanos = 60 * SECOND;
    const TEN_O_CLOCK: Nanos = 29_700_600 * MINUTE;
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

    fn policy(limits: Vec<Limit>) -> Policy {
        Policy {
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            exempt: Vec::new(),
            tcp: vec![80, 443],
            udp: vec![80, 443],
            other_protocols: false,
            limits,
            refuse: Refuse::Excess,
            mode: Mode::Enforce,
        }
    }

    fn limit(amount: u64, unit: Unit, form: Form) -> Limit {
        Limit { amount, unit, bucket: MINUTE, buckets: 5, form }
    }

    const SYN: Packet = Packet { source: CLIENT, bytes: 40, kind: Kind::Tcp { port: 80, opens: true } };

    fn admitted(oracle: &mut Oracle, packet: &Packet, now: Nanos, tries: u64) -> u64 {
        (0..tries).map(|_| u64::from(oracle.judge(packet, now) == Outcome::WithinLimit)).sum()
    }

    #[test]
    fn the_designs_timelines_come_out_as_written() {
        for form in [Form::Strict, Form::Lenient] {
            for (last, expected) in [(100, 100), (300, 250)] {
                let mut oracle = Oracle::new(policy(vec![limit(1000, Unit::Connections, form)]));
                for (minute, count) in [(0, 250), (2, 500), (4, 250)] {
                    assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + minute * MINUTE, count), count);
                }
                assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + 6 * MINUTE, last), expected);
            }
            let mut oracle = Oracle::new(policy(vec![limit(30, Unit::Connections, form)]));
            let counts = [(45, 13, 13), (46, 7, 7), (47, 11, 10)];
            for (minute, tries, expected) in counts {
                assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + minute * MINUTE, tries), expected);
            }
        }
    }

    #[test]
    fn a_packet_that_one_limit_refuses_is_charged_to_none() {
        let limits = vec![limit(10, Unit::Packets, Form::Strict), limit(100, Unit::Bytes, Form::Strict)];
        let mut oracle = Oracle::new(policy(limits.clone()));
        assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK, 10), 2);
        assert_eq!(oracle.used(CLIENT, &limits[0], TEN_O_CLOCK), 2);
        assert_eq!(oracle.used(CLIENT, &limits[1], TEN_O_CLOCK), 80);
    }

    #[test]
    fn a_flow_opens_with_its_first_datagram_after_silence_and_with_every_ninth_initial() {
        let mut oracle = Oracle::new(policy(vec![limit(100, Unit::Connections, Form::Strict)]));
        let datagram = |quic_initial| Packet {
            source: CLIENT,
            bytes: 100,
            kind: Kind::Udp { source_port: 4000, port: 443, quic_initial },
        };
        assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK), Outcome::WithinLimit);
        assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK + FLOW_IDLE), Outcome::NotCounted);
        assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK + 2 * FLOW_IDLE + 1), Outcome::WithinLimit);
        let now = TEN_O_CLOCK + 4 * FLOW_IDLE;
        assert_eq!(admitted(&mut oracle, &datagram(true), now, 24), 3);
    }

    #[test]
    fn a_prefix_is_one_client_and_an_exempt_one_is_none() {
        let mut policy = policy(vec![limit(1, Unit::Packets, Form::Strict)]);
        policy.ipv4_prefix = 24;
        policy.exempt = vec![("198.51.100.8".parse().unwrap(), 32)];
        let mut oracle = Oracle::new(policy);
        let from = |source: &str| Packet { source: source.parse().unwrap(), ..SYN };
        assert_eq!(oracle.judge(&from("198.51.100.7"), TEN_O_CLOCK), Outcome::WithinLimit);
        assert_eq!(oracle.judge(&from("198.51.100.9"), TEN_O_CLOCK), Outcome::OverLimit);
        assert_eq!(oracle.judge(&from("198.51.100.8"), TEN_O_CLOCK), Outcome::Exempt);
        assert_eq!(oracle.judge(&from("198.51.101.7"), TEN_O_CLOCK), Outcome::WithinLimit);
    }

    #[test]
    fn dry_run_and_refuse_all_do_as_they_say() {
        let mut dry = policy(vec![limit(1, Unit::Connections, Form::Strict)]);
        dry.mode = Mode::DryRun;
        let mut oracle = Oracle::new(dry.clone());
        assert_eq!(oracle.judge(&SYN, TEN_O_CLOCK), Outcome::WithinLimit);
        assert_eq!(oracle.judge(&SYN, TEN_O_CLOCK), Outcome::DryRun);
        let ack = Packet { kind: Kind::Tcp { port: 80, opens: false }, ..SYN };
        assert_eq!(oracle.judge(&ack, TEN_O_CLOCK), Outcome::NotCounted);
        oracle.apply(Policy { refuse: Refuse::All, mode: Mode::Enforce, ..dry });
        assert_eq!(oracle.judge(&ack, TEN_O_CLOCK), Outcome::OverLimit);
    }
}
