//! State that the datapath should have, with every name resolved and every default filled in. Pure: no I/O, no clock.
//!
//! It is made from a configuration, compared by [`plan`](crate::plan), and applied by `ratelimit_datapath::Datapath`.

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
pub use fixed::{HookChoice, OnExit, TlsFiles, XdpModeChoice};
pub use guard::Guard;
pub(crate) use matching::without;
pub use matching::{Mismatch, Protocol, Sent};
pub use new_sources::NewSources;
pub use per::{Group, Per};
pub use shared::Shared;
pub use strict::{QuicPorts, Unparsable};

/// The complete state that the daemon enforces in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredState {
    /// Names of the interfaces to protect, sorted, without duplicates; at most
    /// [`ratelimit_common::layout::INTERFACES_MAX`].
    pub interfaces: Vec<String>,
    /// Policy by which every packet is judged.
    pub policy: Policy,
}

/// Policy by which every packet is judged. A packet sees one policy entirely, never a mix of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Length of the IPv4 prefix that counts as one source, 0 to 32.
    pub ipv4_prefix: u8,
    /// Length of the IPv6 prefix that counts as one source, 0 to 128.
    pub ipv6_prefix: u8,
    /// Prefixes that are allowed or denied regardless of limits, sorted by prefix, without duplicates. The longest
    /// unexpired prefix that contains an address decides.
    pub access: Vec<Access>,
    /// Rules in order. Only the first one that matches a packet judges it. At most
    /// [`ratelimit_common::layout::RULES_MAX`].
    pub rules: Vec<Rule>,
}

/// Exemption or denial of one prefix, regardless of limits. It applies only to packets that a rule judges; all others
/// pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Prefix that the grant concerns.
    pub prefix: IpNet,
    /// Grant of the prefix: exempt or denied.
    pub grant: Grant,
    /// Expiry by the datapath's clock. None is permanent.
    pub until: Option<Nanos>,
}

impl Policy {
    /// Returns the prefixes with this grant, in order.
    pub fn prefixes(&self, grant: Grant) -> impl Iterator<Item = IpNet> {
        self.access.iter().filter(move |access| access.grant == grant).map(|access| access.prefix)
    }

    /// Returns the maximum number of windows that one source may have, at least 1. A source may send to all rules
    /// that are for everyone, so each of their limits and shadow limits counts. A rule for some sources counts only
    /// if it alone has more. A group of sources takes the room of one window.
    pub fn windows_per_source(&self) -> u32 {
        // Verified traffic has a window of its own if a connection is counted as both kinds. Bans and the guard of a
        // request limit need one more window each. A log charges both windows of a limit with conditions.
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

    /// Returns the prefix that counts as one source and contains `address`.
    pub fn client(&self, address: IpAddr) -> IpNet {
        match address {
            IpAddr::V4(v4) => Ipv4Net::new(v4, self.ipv4_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
            IpAddr::V6(v6) => Ipv6Net::new(v6, self.ipv6_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
        }
    }
}

/// One rule: sources, destinations, and the limits that apply to them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique name of the rule.
    pub name: String,
    /// Mode: enforce or dry run.
    pub mode: Mode,
    /// Packets that are dropped while a source is over its limit.
    pub refuse: Refuse,
    /// Answer that refused clients get.
    pub refuse_with: RefuseWith,
    /// Ends the connections of a banned source to the rule's ports.
    pub block_kill: bool,
    /// Guard of the request limits. It also limits connections, TCP segments and QUIC datagrams that begin no
    /// request.
    pub guard: Guard,
    /// Source prefixes that the rule judges, sorted, without duplicates. Empty for everyone.
    pub from: Vec<IpNet>,
    /// Destination prefixes that the rule judges, sorted, without duplicates. Empty for any address.
    pub to: Vec<IpNet>,
    /// Destination ports that the rule judges.
    pub ports: Ports,
    /// Enforced limits, 1 to [`ratelimit_common::layout::LIMITS_MAX`].
    pub limits: Vec<Limit>,
    /// Limits that are counted but never enforced, at most [`ratelimit_common::layout::SHADOWS_MAX`].
    pub shadow_limits: Vec<Limit>,
    /// Bans for exceeding a limit. None if the rule does not ban.
    pub bans: Option<Bans>,
    /// Number of banned sources in a /24 or /56 after which the whole prefix is denied, at least 2. None means never.
    /// Set only if the rule's bans need verified traffic.
    pub block_prefix_after: Option<u32>,
    /// Keeps the breaker from switching the rule to dry run.
    pub under_attack_ok: bool,
    /// Budget of new sources. None if it is unlimited.
    pub new_sources: Option<NewSources>,
    /// UDP ports of the rule on which QUIC is recognized.
    pub quic_ports: QuicPorts,
    /// Treatment of packets that cannot be parsed.
    pub unparsable: Unparsable,
    /// Expiry of the rule by the datapath's clock. Later rules judge its packets afterwards. None means never.
    pub until: Option<Nanos>,
    /// Name of the list in `from`, if a limit counts the whole list as one: `asn64496`.
    pub list: Option<String>,
    /// Access logs of the servers on the rule's ports. Logged requests that were not counted in packets are charged.
    pub access_logs: Vec<AccessLog>,
}

impl Rule {
    /// Returns a rule with default settings that enforces `limits` on `ports` for everyone.
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

/// Enforcement mode of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Packets over the limit are dropped.
    Enforce,
    /// Packets over the limit pass, and are counted as packets that would have been dropped.
    DryRun,
}

/// Packets that are dropped while a source is over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// The excess of what is counted: requests, connections, packets or bytes.
    Excess,
    /// Every packet to the rule's ports, until the bucket after the last refusal, and then until the window frees.
    All,
}

/// Answer that a refused client gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefuseWith {
    /// No answer. The client waits and retransmits.
    #[default]
    Drop,
    /// A reset of its connection or connection attempt. Packets with an unverified source are only dropped.
    Reset,
    /// A page for clear-text HTTP/1 requests, a reset for other connections.
    Page,
}

/// Destination ports as inclusive ranges, sorted and merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Ranges of TCP ports.
    pub tcp: Vec<(u16, u16)>,
    /// Ranges of UDP ports.
    pub udp: Vec<(u16, u16)>,
    /// Set if every other IP protocol is included (`all`).
    pub other_protocols: bool,
}

/// One limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum that a window admits, in `unit`.
    pub amount: u64,
    /// Unit of the amount.
    pub unit: Unit,
    /// Length of the window in nanoseconds: `buckets * bucket_ns`.
    pub window_ns: u64,
    /// Number of buckets in a window, 5 to 7. 1 for [`WindowForm::Fixed`] and [`WindowForm::Gcra`].
    pub buckets: u8,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// Algorithm of the window.
    pub form: WindowForm,
    /// Maximum in one bucket. For [`WindowForm::Gcra`], the maximum at once; None is the whole amount.
    pub burst: Option<u64>,
    /// Identifier of this limit's windows in the kernel: a hash of the rule's name, the unit, the bucket's length,
    /// the algorithm, and for shadow limits the amount. A reload or restart that changes only the amount, the form or
    /// the number of buckets therefore finds the counts again.
    pub slot: u32,
    /// Sharing of the limit in a fleet. None if this host keeps it for itself.
    pub shared: Option<Shared>,
    /// Group of sources that the limit counts as one.
    pub per: Per,
    /// Condition of the logged requests that the limit counts. None if it counts packets.
    pub condition: Option<Condition>,
}

/// Algorithm by which a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowForm {
    /// The current bucket and the B full ones before it.
    Strict,
    /// The current bucket and the B - 1 before it.
    Lenient,
    /// One bucket as long as the window, aligned to the clock. Up to 2N pass around the border of two windows.
    Fixed,
    /// Generic cell rate algorithm: a leaky bucket that evenly drains N per window.
    Gcra,
}

/// Returns the unit's plural name in flags, files, JSON and metrics.
pub const fn unit_label(unit: Unit) -> &'static str {
    match unit {
        Unit::Requests => "requests",
        Unit::Connections => "connections",
        Unit::Packets => "packets",
        Unit::Bytes => "bytes",
    }
}

/// Length of the IPv4 prefix that `block_prefix_after` denies around banned sources. Providers usually give such a
/// prefix to one customer.
pub const DENIED_IPV4_PREFIX: u8 = 24;
/// Length of the IPv6 prefix that `block_prefix_after` denies around banned sources.
pub const DENIED_IPV6_PREFIX: u8 = 56;

/// Returns [`Limit::slot`]: 32-bit FNV-1a over the rule's name, a zero byte, the unit's code and the bucket's length
/// (little endian). Pinned state is found by this value, so it changes only with
/// [`ratelimit_common::layout::VERSION`].
pub fn slot(rule: &str, unit: Unit, bucket_ns: u64) -> u32 {
    hash32(rule.bytes().chain([0, unit as u8]).chain(bucket_ns.to_le_bytes()))
}

fn hash32(bytes: impl Iterator<Item = u8>) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

/// Returns the identifier of a rule's counters in the kernel: 64-bit FNV-1a over its name.
pub fn name_hash(rule: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    rule.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Returns the identifier of a rule's bans in the kernel: the hash of [`slot`] without unit and bucket.
pub fn ban_slot(rule: &str) -> u32 {
    hash32(rule.bytes().chain([0, 0]))
}

/// Returns the number of drop-cache sets for this number of windows: one entry for every two windows, four entries in
/// a set, and at least a page of sets. Rounded up to a power of two.
pub fn drop_cache_sets(windows: u32) -> u32 {
    (windows / 8).max(64).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// Formats an instant as RFC 3339 in UTC, to the second.
pub fn date(at: Nanos) -> String {
    let seconds = i64::try_from(at.0 / SECOND_NS).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a far day".to_owned(), |instant| instant.to_string())
}

labels!(pub Mode { Enforce => "enforce", DryRun => "dry-run" });

labels!(pub Refuse { Excess => "excess", All => "all" });

labels!(pub RefuseWith { Drop => "drop", Reset => "reset", Page => "429" });

labels!(pub WindowForm { Strict => "strict", Lenient => "lenient", Fixed => "fixed", Gcra => "gcra" });

impl Access {
    /// Returns a permanent exemption of a prefix.
    pub const fn exempt(prefix: IpNet) -> Self {
        Self { prefix, grant: Grant::Exempt, until: None }
    }

    /// Returns a permanent denial of a prefix.
    pub const fn denied(prefix: IpNet) -> Self {
        Self { prefix, grant: Grant::Denied, until: None }
    }
}

impl fmt::Display for Access {
    /// Writes `exempt 192.0.2.0/24`, or `denied 192.0.2.7/32 until 2027-04-01T00:00:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.grant.label(), self.prefix)?;
        self.until.map_or(Ok(()), |until| write!(f, " until {}", date(until)))
    }
}

impl fmt::Display for Bans {
    /// Writes the bans in one line: `1m,10m, reset after 24h`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps_ns.iter().map(|step_ns| duration::short(*step_ns)).collect();
        write!(f, "{}, reset after {}", steps.join(","), duration::short(self.forget_ns))?;
        f.write_str(if self.needs_proof { "" } else { ", by unverified traffic too" })
    }
}

impl fmt::Display for NewSources {
    /// Writes the budget as in flags and files: `20000/1s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.amount, duration::short(self.window_ns))
    }
}

impl fmt::Display for Limit {
    /// Writes the limit as in flags and files, always with its unit: `1000/5m connections`, `5000/1m requests per
    /// /24,/56`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.rate(), unit_label(self.unit), self.per)?;
        self.condition.map_or(Ok(()), |condition| write!(f, " {condition}"))
    }
}

impl Limit {
    /// Returns the limit as in flags and files, without unit and group: `1000/5m`, `50MB/1m`.
    pub fn rate(&self) -> String {
        let amount = match self.unit {
            Unit::Requests | Unit::Connections | Unit::Packets => self.amount.to_string(),
            Unit::Bytes => amount::size(self.amount),
        };
        format!("{amount}/{}", duration::short(self.window_ns))
    }

    /// Returns the number of full buckets before the current one that the sum includes.
    pub fn full_buckets(&self) -> u8 {
        match self.form {
            WindowForm::Strict => self.buckets,
            WindowForm::Lenient => self.buckets.saturating_sub(1),
            WindowForm::Fixed | WindowForm::Gcra => 0,
        }
    }

    /// Returns the division of a window's cells into parts.
    pub fn parts(&self) -> Parts {
        match self.shared {
            None => Parts::alone(self.bucket_ns),
            Some(shared) => Parts::shared(self.bucket_ns, self.amount, shared.step_bits),
        }
    }

    /// Returns the limit in the layout that the BPF program reads.
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

    /// Returns the limit's arithmetic, with which user space evaluates a source's cells.
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
    fn the_drop_cache_has_one_entry_for_every_two_windows() {
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
