//! Policy of the oracle: rules, their limits, and the grants of prefixes.

use std::net::IpAddr;

use super::packet::{Kind, Packet};

/// Nanoseconds since 1970.
pub type Nanos = u64;

/// An address and a prefix length. Bits behind the prefix are 0.
pub type Prefix = (IpAddr, u8);

pub(super) const SECOND: Nanos = 1_000_000_000;

/// Unit that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Packets that open a connection or flow.
    Connections,
    /// Packets of IP.
    Packets,
    /// Bytes of IP packets.
    Bytes,
    /// Requests of a client. In TCP they are found by turns and by the segments' contents.
    Requests,
}

/// Form of a limit's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The current bucket and B full ones.
    Strict,
    /// The current bucket and B - 1 full ones.
    Lenient,
    /// The current bucket alone.
    Fixed,
    /// A bucket that leaks evenly: the limit's amount per `bucket`.
    Leaky,
}

/// One limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum amount that is admitted in a window.
    pub amount: u64,
    /// Unit that is counted.
    pub unit: Unit,
    /// Length of a bucket in nanoseconds.
    pub bucket: Nanos,
    /// Number of buckets in a window.
    pub buckets: u64,
    /// Form of the window.
    pub form: Form,
    /// Maximum amount in one bucket. For a leaky bucket, its capacity; `None` means the whole amount.
    pub burst: Option<u64>,
    /// Sources that share a counter.
    pub per: Per,
}

/// Sources that share a counter of a limit. A refusal by a group bans nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// One counter for each client.
    Client,
    /// One counter for all clients of a prefix, with this length in IPv4 and that in IPv6.
    Prefix(u8, u8),
    /// One counter for everything that the rule judges.
    Rule,
}

/// Traffic of a source over its limit that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// Counted traffic only.
    Excess,
    /// All traffic to the rule's ports.
    All,
}

/// State of the guard of a request limit, which also counts connection attempts. The guard refuses no attempts. Its
/// refusals need a socket's verification, and the oracle is never shown verified traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Connection attempts are counted too.
    Auto,
    /// Only requests are counted.
    Off,
}

/// Mode of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The rule drops packets.
    Enforce,
    /// The rule only reports what it would drop.
    DryRun,
}

/// Bans of a source that exceeds a rule's limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// Durations of the first ban, the second, and so on. The last duration applies to all later bans.
    pub steps: Vec<Nanos>,
    /// Time after a ban's end at which the sequence of durations restarts.
    pub forget: Nanos,
    /// Only verified traffic starts a ban, and the oracle is never shown any.
    pub needs_proof: bool,
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name that identifies the rule in another policy.
    pub name: &'static str,
    /// Sources of the rule. Empty means all.
    pub from: Vec<Prefix>,
    /// Destination addresses of the rule. Empty means all.
    pub to: Vec<Prefix>,
    /// Protected TCP ports.
    pub tcp: Vec<u16>,
    /// Protected UDP ports.
    pub udp: Vec<u16>,
    /// Other protocols are protected too.
    pub other_protocols: bool,
    /// Limits, all of which must hold.
    pub limits: Vec<Limit>,
    /// Units that are counted without a limit. As with limits, they decide which flows and connections are remembered.
    pub shadows: Vec<Unit>,
    /// Traffic over a limit that is dropped.
    pub refuse: Refuse,
    /// Guard of the rule's request limits.
    pub guard: Guard,
    /// Mode of the rule.
    pub mode: Mode,
    /// Time at which the rule ends, if it does.
    pub until: Option<Nanos>,
    /// Bans of sources over a limit, if the rule bans.
    pub bans: Option<Bans>,
    /// UDP ports on which packets that look like QUIC count as QUIC.
    pub quic: Vec<u16>,
    /// Packets that cannot be parsed are counted as everything that they may be.
    pub counts_unparsable: bool,
}

/// Exception for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The prefix is never limited.
    Exempt,
    /// Packets of the prefix are dropped.
    Denied,
}

/// Access list and rules of the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Prefix length of one IPv4 client.
    pub ipv4_prefix: u8,
    /// Prefix length of one IPv6 client.
    pub ipv6_prefix: u8,
    /// Grants of prefixes, with their optional ends. Each prefix occurs once.
    pub access: Vec<(Prefix, Grant, Option<Nanos>)>,
    /// Rules in order. The first one that matches a packet judges it.
    pub rules: Vec<Rule>,
}

impl Rule {
    pub(super) fn counts(&self, unit: Unit) -> bool {
        self.limits.iter().any(|limit| limit.unit == unit) || self.shadows.contains(&unit)
    }

    pub(super) fn guards(&self) -> bool {
        self.guard == Guard::Auto && self.limits.iter().any(|limit| limit.unit == Unit::Requests)
    }

    pub(super) fn is_for(&self, packet: &Packet) -> bool {
        let holds =
            |prefixes: &[Prefix], address| prefixes.is_empty() || prefixes.iter().any(|prefix| is_in(address, prefix));
        let is_protected = match packet.kind {
            Kind::Tcp { port, .. } => self.tcp.contains(&port),
            Kind::Udp { port, .. } => self.udp.contains(&port),
            Kind::Fragment { .. } | Kind::Unparsable => {
                !self.tcp.is_empty() || !self.udp.is_empty() || self.other_protocols
            }
            Kind::Other => self.other_protocols,
            Kind::ControlTraffic => false,
        };
        is_protected && holds(&self.from, packet.source) && holds(&self.to, packet.destination)
    }
}

/// Returns how long a leaky bucket takes to lose an amount, rounded up. The result has no meaning if the bucket loses
/// nothing.
pub(super) fn leaks_in(limit: &Limit, amount: u64) -> Nanos {
    (amount * limit.bucket).div_ceil(limit.amount.max(1))
}

/// Returns the start of the current bucket.
pub(super) fn bucket_start(limit: &Limit, now: Nanos) -> Nanos {
    now - now % limit.bucket
}

/// Returns the start of the window that ends now.
pub(super) fn first_of_window(limit: &Limit, now: Nanos) -> Nanos {
    let behind = match limit.form {
        Form::Strict => limit.buckets,
        Form::Lenient => limit.buckets - 1,
        Form::Fixed | Form::Leaky => 0,
    };
    (now / limit.bucket - behind) * limit.bucket
}

/// Returns the time since which a refusal also refuses uncounted traffic. For a leaky bucket this is the start of the
/// previous bucket.
pub(super) fn first_held_against(limit: &Limit, now: Nanos) -> Nanos {
    match limit.form {
        Form::Strict | Form::Lenient | Form::Fixed => first_of_window(limit, now),
        Form::Leaky => bucket_start(limit, now) - limit.bucket,
    }
}

pub(super) fn is_in(address: IpAddr, (prefix, len): &Prefix) -> bool {
    address.is_ipv4() == prefix.is_ipv4() && cut(address, *len) == Some(*prefix)
}

/// Returns the address with all bits behind the first `len` cleared. Returns `None` if the address has fewer bits.
pub(super) fn cut(address: IpAddr, len: u8) -> Option<IpAddr> {
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
