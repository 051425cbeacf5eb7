//! What the datapath should be doing, with every name resolved and every default filled in. Pure: no IO, no clock.
//!
//! Made from a configuration; compared by [`plan`](crate::plan); carried out by a [`Datapath`](ratelimit_datapath::Datapath).

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use ratelimit_common::access::Grant;
use ratelimit_common::layout::{LOGGED_REQUESTS, Unit};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verification::guarded_segments;
use ratelimit_common::window::{BURST_ANY, Parts};
use serde::{Deserialize, Serialize};

use crate::labels;
use crate::text::{amount, duration};

mod access;
mod access_log;
mod bans;
mod condition;
mod fixed;
mod guard;
mod leak;
mod matching;
mod new_sources;
mod per;
mod shared;
mod strict;

pub use access::{covering, denies, typed};
pub use access_log::AccessLog;
pub use bans::Bans;
pub use condition::{
    Condition, LoggedRequest, METHOD_BYTES_MAX, PATH_BYTES_MAX, PathPattern, STATUS_MAX, STATUS_MIN, Statuses,
};
pub use fixed::{Fixed, HookChoice, OnExit, TlsFiles, XdpModeChoice};
pub use guard::Guard;
pub(crate) use matching::without;
pub use matching::{Mismatch, Protocol, Sent};
pub use new_sources::NewSources;
pub use per::{Group, Per};
pub use shared::Shared;
pub use strict::{QuicPorts, Unparsable};

/// Everything that the daemon holds the kernel to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredState {
    /// Names of the interfaces to protect, sorted, each once; at most [`ratelimit_common::layout::INTERFACES_MAX`].
    pub interfaces: Vec<String>,
    /// What every packet is judged by.
    pub policy: Policy,
}

/// What every packet is judged by, seen all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Length of the IPv4 prefix that is one client, 0 to 32.
    pub ipv4_prefix: u8,
    /// Length of the IPv6 prefix that is one client, 0 to 128.
    pub ipv6_prefix: u8,
    /// Who is allowed or denied whatever the limits say: sorted by prefix, each prefix once. The longest prefix
    /// that holds an address decides; where its time is over, the next longest.
    pub access: Vec<Access>,
    /// The rules; the first that matches a packet judges it, alone. At most [`ratelimit_common::layout::RULES_MAX`].
    pub rules: Vec<Rule>,
}

/// What one prefix may do, whatever the limits say. It holds where a rule holds: what no rule judges passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Who.
    pub prefix: IpNet,
    /// What.
    pub grant: Grant,
    /// Until when, by the datapath's clock; none is permanent.
    pub until: Option<Nanos>,
}

impl Policy {
    /// The prefixes with this grant, in order.
    pub fn prefixes(&self, grant: Grant) -> impl Iterator<Item = IpNet> {
        self.access.iter().filter(move |access| access.grant == grant).map(|access| access.prefix)
    }

    /// Windows that one source may have, at least 1: one for each limit and shadow limit of the rules that are for everyone,
    /// since it may send to all of them. Rules for some sources are left out, unless one of them alone has more. A group of
    /// sources takes the room of one of them.
    pub fn windows_per_source(&self) -> u32 {
        // Verified traffic has a window of its own where a connection is counted as both kinds. Bans need one more, and so do
        // the connections that a limit of requests guards. A log charges both windows of a limit with conditions.
        let of_limit = |rule: &Rule, limit: &Limit| {
            let is_of_volume = matches!(limit.unit, Unit::Packets | Unit::Bytes);
            let bans = rule.bans.as_ref().is_some_and(|bans| bans.needs_proof);
            let is_guarded = limit.is_guardable() && rule.is_guarded();
            1 + usize::from(is_of_volume || bans || limit.condition.is_some()) + usize::from(is_guarded)
        };
        let windows = |rule: &Rule| {
            let of_source = rule.limits.iter().filter(|limit| limit.per == Per::Source);
            of_source.map(|limit| of_limit(rule, limit)).sum::<usize>() + rule.shadow_limits.len()
        };
        let of_everyone = self.rules.iter().filter(|rule| rule.from.is_empty()).map(windows).sum();
        let most = self.rules.iter().map(windows).max().unwrap_or(1);
        u32::try_from(most.max(of_everyone).max(1)).unwrap_or(u32::MAX)
    }

    /// The prefix that is one client with `address`.
    pub fn client(&self, address: IpAddr) -> IpNet {
        match address {
            IpAddr::V4(v4) => Ipv4Net::new(v4, self.ipv4_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
            IpAddr::V6(v6) => Ipv6Net::new(v6, self.ipv6_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
        }
    }
}

/// One rule: who sends to what, and the limits that hold there all at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, unique.
    pub name: String,
    /// Whether it drops.
    pub mode: Mode,
    /// What of a source over its limit is dropped.
    pub refuse: Refuse,
    /// How its clients learn that they are refused.
    pub refuse_with: RefuseWith,
    /// Whether a ban ends the connections that its source has to the rule's ports.
    pub block_kill: bool,
    /// Guard of its limits of requests: they hold connections too, and segments and datagrams of QUIC that begin none.
    pub guard: Guard,
    /// Whose packets it judges: those from these prefixes, sorted, each once; none is everyone's.
    pub from: Vec<IpNet>,
    /// Sent to which addresses: these prefixes, sorted, each once; none is to any.
    pub to: Vec<IpNet>,
    /// And to which ports.
    pub ports: Ports,
    /// 1 to [`ratelimit_common::layout::LIMITS_MAX`] limits.
    pub limits: Vec<Limit>,
    /// At most [`ratelimit_common::layout::SHADOWS_MAX`] limits that are counted beside and never enforced.
    pub shadow_limits: Vec<Limit>,
    /// Whether exceeding a limit bans, and for how long.
    pub bans: Option<Bans>,
    /// Once it has banned so many sources of one /24 or /56, all of that is denied; none is never. 2 at least, and only
    /// where its bans need verified traffic.
    pub block_prefix_after: Option<u32>,
    /// A share of dropped packets that is too large does not turn it into a dry run.
    pub under_attack_ok: bool,
    /// How many new sources it admits; none is any number.
    pub new_sources: Option<NewSources>,
    /// On which of its UDP ports what looks like QUIC is QUIC.
    pub quic_ports: QuicPorts,
    /// What becomes of what cannot be parsed.
    pub unparsable: Unparsable,
    /// When it ends, by the datapath's clock, and the rules after it judge instead; none is never.
    pub until: Option<Nanos>,
    /// The list that `from` names, where a limit is of all of it together: `asn64496`.
    pub list: Option<String>,
    /// The access logs of the servers on its ports: what they have beyond what was counted is charged.
    pub access_logs: Vec<AccessLog>,
}

impl Rule {
    /// A rule for everyone's packets to these ports, which enforces these limits.
    pub const fn new(name: String, ports: Ports, limits: Vec<Limit>) -> Self {
        Self {
            name,
            mode: Mode::Enforce,
            refuse: Refuse::Excess,
            refuse_with: RefuseWith::Drop,
            block_kill: false,
            guard: Guard::Auto,
            from: Vec::new(),
            to: Vec::new(),
            ports,
            limits,
            shadow_limits: Vec::new(),
            bans: None,
            block_prefix_after: None,
            under_attack_ok: false,
            new_sources: None,
            quic_ports: QuicPorts::DEFAULT,
            unparsable: Unparsable::Drop,
            until: None,
            list: None,
            access_logs: Vec::new(),
        }
    }
}

/// Whether a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Over the limit is dropped.
    Enforce,
    /// Over the limit is counted as what would have been dropped, and passes.
    DryRun,
}

/// What of a source over its limit is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// What is counted: the excess requests, connections, packets or bytes.
    Excess,
    /// Every packet to the rule's ports, until the bucket after the last refusal, and then until the window frees.
    All,
}

/// How a client learns that it is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefuseWith {
    /// Not at all: it waits, and sends again.
    #[default]
    Drop,
    /// Its connection is reset, or the one that it opens is refused: what can be forged is dropped.
    Reset,
    /// The same, but a request of HTTP/1 in the clear is answered by a page.
    Page,
}

/// Destination ports: inclusive ranges, sorted, not touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// TCP ports.
    pub tcp: Vec<(u16, u16)>,
    /// UDP ports.
    pub udp: Vec<(u16, u16)>,
    /// Every other IP protocol too (`all`).
    pub other_protocols: bool,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Admitted in a window, in `unit`.
    pub amount: u64,
    /// What is counted.
    pub unit: Unit,
    /// Length of the window in nanoseconds: `buckets * bucket_ns`.
    pub window_ns: u64,
    /// Buckets to a window: 5 to 7; by [`WindowForm::Fixed`] and [`WindowForm::Gcra`] 1.
    pub buckets: u8,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// How it is counted.
    pub form: WindowForm,
    /// In a window of buckets: what fits into one bucket at most. By [`WindowForm::Gcra`]: what fits at once, and none is all
    /// of the amount.
    pub burst: Option<u64>,
    /// Identifies this limit's windows in the kernel. A function of the rule's name, the unit, the bucket's length and the
    /// algorithm, of a shadow limit also of that and of the amount, so that a reload or restart that changes only the amount, the form or the number of buckets finds its counts again.
    pub slot: u32,
    /// The hosts of a fleet share it.
    pub shared: Option<Shared>,
    /// Whose traffic it counts as one.
    pub per: Per,
    /// Condition of the logged requests that it counts. None if it counts packets.
    pub condition: Option<Condition>,
}

/// How a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowForm {
    /// The current bucket and the B full ones before it.
    Strict,
    /// The current bucket and the B - 1 before it.
    Lenient,
    /// One bucket as long as the window, aligned to the clock: up to 2N where two of them meet.
    Fixed,
    /// The generic cell rate algorithm: a leaky bucket that drains N in a window, evenly.
    Gcra,
}

/// The unit's name in flags, files, JSON and metrics: a plural.
pub const fn unit_label(unit: Unit) -> &'static str {
    match unit {
        Unit::Requests => "requests",
        Unit::Connections => "connections",
        Unit::Packets => "packets",
        Unit::Bytes => "bytes",
    }
}

/// What is denied around banned sources, by `block_prefix_after`: what a provider gives to one customer, as a rule.
pub const DENIED_IPV4_PREFIX: u8 = 24;
/// The same of IPv6.
pub const DENIED_IPV6_PREFIX: u8 = 56;

/// [`Limit::slot`]: FNV-1a, 32 bits, over the rule's name, a zero byte, the unit's code and the bucket's length (little
/// endian). Pinned state is found again by it, so it changes only with [`ratelimit_common::layout::VERSION`].
pub fn slot(rule: &str, unit: Unit, bucket_ns: u64) -> u32 {
    hash32(rule.bytes().chain([0, unit as u8]).chain(bucket_ns.to_le_bytes()))
}

fn hash32(bytes: impl Iterator<Item = u8>) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

/// Identifies a rule's counters in the kernel: FNV-1a, 64 bits, over its name.
pub fn name_hash(rule: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    rule.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Identifies a rule's bans in the kernel: [`slot`] of no unit and no bucket.
pub fn ban_slot(rule: &str) -> u32 {
    hash32(rule.bytes().chain([0, 0]))
}

/// Lines of notes for so many windows: a note for every second one, four to a line, and at least as many as make a page.
pub fn drop_cache_sets(windows: u32) -> u32 {
    (windows / 8).max(64).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// An instant as RFC 3339 has it, to the second, in UTC.
pub fn date(at: Nanos) -> String {
    let seconds = i64::try_from(at.0 / SECOND_NS).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a far day".to_owned(), |instant| instant.to_string())
}

labels!(pub Mode { Enforce => "enforce", DryRun => "dry-run" });

labels!(pub Refuse { Excess => "excess", All => "all" });

labels!(pub RefuseWith { Drop => "drop", Reset => "reset", Page => "429" });

labels!(pub WindowForm { Strict => "strict", Lenient => "lenient", Fixed => "fixed", Gcra => "gcra" });

impl Access {
    /// A permanent exemption.
    pub const fn exempt(prefix: IpNet) -> Self {
        Self { prefix, grant: Grant::Exempt, until: None }
    }

    /// A permanent denial.
    pub const fn denied(prefix: IpNet) -> Self {
        Self { prefix, grant: Grant::Denied, until: None }
    }
}

impl fmt::Display for Access {
    /// `exempt 192.0.2.0/24`, `denied 192.0.2.7/32 until 2027-04-01T00:00:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.grant.label(), self.prefix)?;
        self.until.map_or(Ok(()), |until| write!(f, " until {}", date(until)))
    }
}

impl fmt::Display for Bans {
    /// `1m,10m, reset after 24h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps_ns.iter().map(|step_ns| duration::short(*step_ns)).collect();
        write!(f, "{}, reset after {}", steps.join(","), duration::short(self.forget_ns))?;
        f.write_str(if self.needs_proof { "" } else { ", by unverified traffic too" })
    }
}

impl fmt::Display for NewSources {
    /// As flags and files have it: `20000/1s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.amount, duration::short(self.window_ns))
    }
}

impl fmt::Display for Limit {
    /// As flags and files have it, the unit always said: `1000/5m connections`, `5000/1m requests per /24,/56`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.rate(), unit_label(self.unit), self.per)?;
        self.condition.map_or(Ok(()), |condition| write!(f, " {condition}"))
    }
}

impl Limit {
    /// As flags and files have it, without unit and group: `1000/5m`, `50MB/1m`.
    pub fn rate(&self) -> String {
        let amount = match self.unit {
            Unit::Requests | Unit::Connections | Unit::Packets => self.amount.to_string(),
            Unit::Bytes => amount::size(self.amount),
        };
        format!("{amount}/{}", duration::short(self.window_ns))
    }

    /// Full buckets before the current one that the sum takes in.
    pub fn full_buckets(&self) -> u8 {
        match self.form {
            WindowForm::Strict => self.buckets,
            WindowForm::Lenient => self.buckets.saturating_sub(1),
            WindowForm::Fixed | WindowForm::Gcra => 0,
        }
    }

    /// What a cell of its windows is made of.
    pub fn parts(&self) -> Parts {
        match self.shared {
            None => Parts::alone(self.bucket_ns),
            Some(shared) => Parts::shared(self.bucket_ns, self.amount, shared.step_bits),
        }
    }

    /// The limit as the packet path reads it.
    pub fn layout(&self) -> ratelimit_common::layout::Limit {
        let parts = self.parts();
        let guarded = guarded_segments(self.amount, parts.amount_max());
        ratelimit_common::layout::Limit {
            amount: self.amount,
            bucket_ns: self.bucket_ns,
            slot: self.slot,
            unit: if self.condition.is_some() { LOGGED_REQUESTS } else { self.unit as u8 },
            full_buckets: self.full_buckets(),
            is_gcra: u8::from(self.form == WindowForm::Gcra),
            burst: match self.form {
                WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => self.burst.unwrap_or(BURST_ANY),
                WindowForm::Gcra => self.leak().burst_ns,
            },
            guarded_segments: u32::try_from(guarded).unwrap_or(u32::MAX),
            parts,
            told_sides: self.told_sides().iter().fold(0, |sides, side| sides | 1 << *side as u8),
        }
    }

    /// The limit's arithmetic, for reading a source's cells on this side of the kernel boundary.
    pub fn arithmetic(&self) -> ratelimit_common::window::Limit {
        ratelimit_common::window::Limit {
            amount: self.amount,
            full_buckets: self.full_buckets(),
            parts: self.parts(),
            burst: self.burst.unwrap_or(BURST_ANY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_note_for_each_window() {
        assert_eq!([262_144, 1000, 1, u32::MAX].map(drop_cache_sets), [32_768, 128, 64, 1 << 29]);
    }

    #[test]
    fn slots_of_earlier_versions_are_found_again() {
        let minute = 60_000_000_000;
        assert_eq!(slot("default", Unit::Connections, minute), 0xb3fa_4bf3);
        assert_ne!(slot("default", Unit::Packets, minute), slot("default", Unit::Connections, minute));
        assert_ne!(slot("other", Unit::Connections, minute), slot("default", Unit::Connections, minute));
    }
}
