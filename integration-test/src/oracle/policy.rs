//! What the oracle judges by: rules, their limits, and what prefixes are granted.

use std::net::IpAddr;

use super::packet::{Kind, Packet};

/// Nanoseconds since 1970, as everywhere.
pub type Nanos = u64;

/// An address and a length. Bits behind the length are 0.
pub type Prefix = (IpAddr, u8);

pub(super) const SECOND: Nanos = 1_000_000_000;

/// What one of a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// What opens one.
    Connections,
    /// An IP packet.
    Packets,
    /// A byte of an IP packet.
    Bytes,
    /// What a client asks for: of TCP, by its turns and by what its segments say.
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
    /// Whose traffic is counted as one.
    pub per: Per,
}

/// Whose traffic a limit counts as one. What a group refuses bans nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// Each client's.
    Client,
    /// That of all clients of a prefix, of this length in IPv4 and of that in IPv6.
    Prefix(u8, u8),
    /// That of all that the rule is for.
    Rule,
}

/// What of a source over its limit is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// What is counted.
    Excess,
    /// Everything to the rule's ports.
    All,
}

/// Whether a limit of requests counts attempts to connect beside. It refuses none of them, and what it does refuse is
/// verified by a socket, which nothing is that the oracle is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It does.
    Auto,
    /// It counts requests alone.
    Off,
}

/// Whether a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It only says so.
    DryRun,
}

/// How a rule bans a source that exceeds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// For how long the first time, the second, and so on; the last for all after it.
    pub steps: Vec<Nanos>,
    /// How long after its end a ban is reset.
    pub forget: Nanos,
    /// None begins but by verified traffic, which the oracle is never shown.
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
    /// What is counted beside.
    pub guard: Guard,
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

/// How long a leaky bucket takes to lose so much, rounded up. Nothing is asked of one that loses nothing.
pub(super) fn leaks_in(limit: &Limit, amount: u64) -> Nanos {
    (amount * limit.bucket).div_ceil(limit.amount.max(1))
}

/// When the current bucket began.
pub(super) fn bucket_start(limit: &Limit, now: Nanos) -> Nanos {
    now - now % limit.bucket
}

/// When the window that ends now began.
pub(super) fn first_of_window(limit: &Limit, now: Nanos) -> Nanos {
    let behind = match limit.form {
        Form::Strict => limit.buckets,
        Form::Lenient => limit.buckets - 1,
        Form::Fixed | Form::Leaky => 0,
    };
    (now / limit.bucket - behind) * limit.bucket
}

/// A refusal since then holds up what is not counted: in a leaky bucket's time, since the one before the current began.
pub(super) fn first_held_against(limit: &Limit, now: Nanos) -> Nanos {
    match limit.form {
        Form::Strict | Form::Lenient | Form::Fixed => first_of_window(limit, now),
        Form::Leaky => bucket_start(limit, now) - limit.bucket,
    }
}

pub(super) fn is_in(address: IpAddr, (prefix, len): &Prefix) -> bool {
    address.is_ipv4() == prefix.is_ipv4() && cut(address, *len) == Some(*prefix)
}

/// The address with all bits behind the first `len` cleared; none if it has not as many.
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
