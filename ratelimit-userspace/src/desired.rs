//! What the datapath should be doing, with every name resolved and every default filled in. Pure: no IO, no clock.
//!
//! Made from a [`Config`]; compared by [`plan`](crate::plan); carried out by a [`Datapath`](crate::datapath::Datapath).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ratelimit_common::layout::Unit;
use ratelimit_common::source::Family;
use ratelimit_common::time::Nanos;

use crate::config::{Config, OnExit, XdpModeChoice, amount, duration};

/// Everything that the daemon holds the kernel to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredState {
    /// Names of the interfaces to protect, sorted, each once; at most [`ratelimit_common::layout::INTERFACES_MAX`].
    pub interfaces: Vec<String>,
    /// What every packet is judged by.
    pub policy: Policy,
}

/// What a running daemon cannot change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// How to attach.
    pub xdp_mode: XdpModeChoice,
    /// What happens to the filter when the daemon ends.
    pub on_exit: OnExit,
    /// How many sources of each family are remembered.
    pub max_sources: u32,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Where metrics, health and the read-only API are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// The keys of IPv6 sources: their map is made once.
    pub ipv6_family: Family,
    /// Windows of a source: the maps have room for so many.
    pub limits: usize,
}

/// What every packet is judged by, seen all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Length of the IPv4 prefix that is one client, 0 to 32.
    pub ipv4_prefix: u8,
    /// Length of the IPv6 prefix that is one client, 0 to 128.
    pub ipv6_prefix: u8,
    /// Who is let through or kept out whatever the limits say: sorted by prefix, each prefix once. The longest prefix
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
    /// Until when, by the datapath's clock; none is for ever.
    pub until: Option<Nanos>,
}

/// What is done with a prefix's packets before any limit is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grant {
    /// They pass, uncounted.
    Exempt,
    /// They are dropped.
    Denied,
}

impl Policy {
    /// The prefixes with this grant, in order.
    pub fn prefixes(&self, grant: Grant) -> impl Iterator<Item = IpNet> {
        self.access.iter().filter(move |access| access.grant == grant).map(|access| access.prefix)
    }

    /// How many limits the rules have together: so many windows a source has.
    pub fn limits(&self) -> usize {
        self.rules.iter().map(|rule| rule.limits.len()).sum()
    }

    /// What the longest prefix that holds `address`, and whose time is not over at `now`, says of it.
    pub fn grant(&self, address: IpAddr, now: Nanos) -> Option<Access> {
        let holds = |access: &&Access| access.prefix.contains(&address) && access.until.is_none_or(|until| now < until);
        self.access.iter().filter(holds).max_by_key(|access| access.prefix.prefix_len()).copied()
    }

    /// The rule that judges a packet at `now`, and its index: the first that matches.
    pub fn rule_for(&self, sent: &Sent, now: Nanos) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.mismatch(sent, now).is_none())
    }

    /// The rules that may judge packets of `address` at `now`, to whatever port, and their indices. One whose packets an earlier
    /// one takes, all of them, is not among them.
    pub fn rules_from(&self, address: IpAddr, now: Nanos) -> Vec<(usize, &Rule)> {
        let mut found: Vec<(usize, &Rule)> = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let matches = rule.has_from(address) && !rule.has_ended(now);
            if matches && !found.iter().any(|(_, earlier)| earlier.takes_all_of(rule)) {
                found.push((at, rule));
            }
        }
        found
    }

    /// The prefix that is one client with `address`.
    pub fn client(&self, address: IpAddr) -> IpNet {
        match address {
            IpAddr::V4(v4) => Ipv4Net::new(v4, self.ipv4_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
            IpAddr::V6(v6) => Ipv6Net::new(v6, self.ipv6_prefix).map_or(IpNet::from(address), |net| net.trunc().into()),
        }
    }
}

/// What of a packet decides which rule judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Who sends it.
    pub from: IpAddr,
    /// To which address; none where that is not known, and then no rule that asks for one matches.
    pub to: Option<IpAddr>,
    /// By which protocol.
    pub protocol: Protocol,
    /// To which port.
    pub port: u16,
}

/// What has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Why a rule does not judge a packet: the first reason there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The rule has ended.
    Ended,
    /// It is for other ports.
    Port,
    /// It is for other sources.
    From,
    /// It is for packets to other addresses.
    To,
    /// It is for packets to some addresses, and this packet's is not known.
    ToUnknown,
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
    /// When it ends, by the datapath's clock, and the rules after it judge instead; none is never.
    pub until: Option<Nanos>,
}

impl Rule {
    /// A rule for everyone's packets to these ports, which enforces these limits.
    pub const fn new(name: String, ports: Ports, limits: Vec<Limit>) -> Self {
        Self {
            name,
            mode: Mode::Enforce,
            refuse: Refuse::Excess,
            from: Vec::new(),
            to: Vec::new(),
            ports,
            limits,
            shadow_limits: Vec::new(),
            bans: None,
            until: None,
        }
    }
}

impl Rule {
    /// Why it does not judge a packet at `now`; none if it matches.
    pub fn mismatch(&self, sent: &Sent, now: Nanos) -> Option<Mismatch> {
        if self.has_ended(now) {
            return Some(Mismatch::Ended);
        }
        if !self.ports.holds(sent.protocol, sent.port) {
            return Some(Mismatch::Port);
        }
        if !self.has_from(sent.from) {
            return Some(Mismatch::From);
        }
        match sent.to {
            _ if self.to.is_empty() => None,
            None => Some(Mismatch::ToUnknown),
            Some(to) => (!self.to.iter().any(|prefix| prefix.contains(&to))).then_some(Mismatch::To),
        }
    }

    /// Whether it judges packets from this address.
    pub fn has_from(&self, address: IpAddr) -> bool {
        self.from.is_empty() || self.from.iter().any(|prefix| prefix.contains(&address))
    }

    /// Whether its time is over.
    pub fn has_ended(&self, now: Nanos) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Whether of a source that both match no packet is left to `later`.
    fn takes_all_of(&self, later: &Self) -> bool {
        let within = |prefix: &IpNet| self.to.iter().any(|of| of.contains(prefix));
        let takes_all_to = self.to.is_empty() || !later.to.is_empty() && later.to.iter().all(within);
        takes_all_to && self.ports.hold_all_of(&later.ports)
    }
}

/// How long a source is banned that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// For the first time, the second, and so on, the last for all after it: nanoseconds, 1 to
    /// [`ratelimit_common::layout::BAN_STEPS_MAX`].
    pub steps_ns: Vec<u64>,
    /// So long after the end of a ban the next is the first again.
    pub forget_ns: u64,
}

/// Whether a rule drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Over the limit is dropped.
    Enforce,
    /// Over the limit is counted as what would have been dropped, and passes.
    DryRun,
}

/// What of a source over its limit is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    /// What is counted: the excess connections, packets or bytes.
    Excess,
    /// Every packet to the rule's ports, until the window frees.
    All,
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

impl Ports {
    /// Whether this port is among them.
    pub fn holds(&self, protocol: Protocol, port: u16) -> bool {
        let ranges = match protocol {
            Protocol::Tcp => &self.tcp,
            Protocol::Udp => &self.udp,
        };
        ranges.iter().any(|&(first, last)| (first..=last).contains(&port))
    }

    fn hold_all_of(&self, other: &Self) -> bool {
        let within = |ranges: &[(u16, u16)], of: &[(u16, u16)]| {
            ranges.iter().all(|range| of.iter().any(|&(first, last)| first <= range.0 && range.1 <= last))
        };
        within(&other.tcp, &self.tcp)
            && within(&other.udp, &self.udp)
            && (self.other_protocols || !other.other_protocols)
    }
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
    /// Buckets to a window, 5 to 7.
    pub buckets: u8,
    /// Length of a bucket in nanoseconds.
    pub bucket_ns: u64,
    /// How it is counted.
    pub form: WindowForm,
    /// In a window of buckets: what fits into one bucket at most. By [`WindowForm::Gcra`]: what fits at once, and none is all
    /// of the amount.
    pub burst: Option<u64>,
    /// Identifies this limit's windows in the kernel. A function of the rule's name, the unit and the bucket's length alone,
    /// so that a reload or restart that changes only the amount, the form or the number of buckets finds its counts again.
    pub slot: u32,
}

/// How a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl From<&Config> for DesiredState {
    fn from(config: &Config) -> Self {
        Self { interfaces: config.interfaces.clone(), policy: config.policy.clone() }
    }
}

impl From<&Config> for Fixed {
    fn from(config: &Config) -> Self {
        Self {
            xdp_mode: config.xdp_mode,
            on_exit: config.on_exit,
            max_sources: config.max_sources,
            socket: config.socket.clone(),
            listen: config.listen,
            ipv6_family: Family::of_ipv6_prefix(config.policy.ipv6_prefix),
            limits: config.policy.limits(),
        }
    }
}

/// The unit's name in flags, files, JSON and metrics: a plural.
pub const fn unit_label(unit: Unit) -> &'static str {
    match unit {
        Unit::Connections => "connections",
        Unit::Packets => "packets",
        Unit::Bytes => "bytes",
    }
}

/// [`Limit::slot`]: FNV-1a, 32 bits, over the rule's name, a zero byte, the unit's code and the bucket's length (little
/// endian). Pinned state is found again by it, so it changes only with [`ratelimit_common::layout::VERSION`].
pub fn slot(rule: &str, unit: Unit, bucket_ns: u64) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    rule.bytes()
        .chain([0, unit as u8])
        .chain(bucket_ns.to_le_bytes())
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

impl Mode {
    /// The mode's name in flags, files, JSON and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::DryRun => "dry-run",
        }
    }
}

impl Protocol {
    /// The protocol's name as flags and files have it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl Refuse {
    /// The name in flags and files.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Excess => "excess",
            Self::All => "all",
        }
    }
}

impl WindowForm {
    /// The name in flags and files.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Lenient => "lenient",
            Self::Fixed => "fixed",
            Self::Gcra => "gcra",
        }
    }
}

impl Access {
    /// An exemption for ever.
    pub const fn exempt(prefix: IpNet) -> Self {
        Self { prefix, grant: Grant::Exempt, until: None }
    }
}

impl Grant {
    /// The name in flags, files and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::Denied => "denied",
        }
    }
}

impl fmt::Display for Access {
    /// `exempt 192.0.2.0/24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.grant.label(), self.prefix)
    }
}

impl fmt::Display for Limit {
    /// As flags and files have it, the unit always said: `1000/5m connections`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.rate(), unit_label(self.unit))
    }
}

impl Limit {
    /// As flags and files have it, without the unit: `1000/5m`, `50MB/1m`.
    pub fn rate(&self) -> String {
        let amount = match self.unit {
            Unit::Connections | Unit::Packets => self.amount.to_string(),
            Unit::Bytes => amount::size(self.amount),
        };
        format!("{amount}/{}", duration::short(self.window_ns))
    }

    /// Full buckets before the current one that the sum takes in.
    pub fn behind(&self) -> u8 {
        match self.form {
            WindowForm::Strict => self.buckets,
            WindowForm::Lenient => self.buckets.saturating_sub(1),
            WindowForm::Fixed | WindowForm::Gcra => 0,
        }
    }

    /// The limit as the packet path reads it.
    pub fn layout(&self) -> ratelimit_common::layout::Limit {
        ratelimit_common::layout::Limit {
            amount: self.amount,
            bucket_ns: self.bucket_ns,
            slot: self.slot,
            unit: self.unit as u8,
            behind: self.behind(),
            count_bits: ratelimit_common::window::count_bits(self.bucket_ns),
            reserved: 0,
        }
    }

    /// The limit's arithmetic, for reading a source's cells on this side of the kernel boundary.
    pub fn arithmetic(&self) -> ratelimit_common::window::Limit {
        ratelimit_common::window::Limit {
            amount: self.amount,
            behind: self.behind(),
            count_bits: ratelimit_common::window::count_bits(self.bucket_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, ports: &[(u16, u16)]) -> Rule {
        let ports = Ports { tcp: ports.to_vec(), ..Ports::default() };
        Rule::new(name.to_owned(), ports, Vec::new())
    }

    fn prefixes(text: &str) -> Vec<IpNet> {
        vec![text.parse().expect("a prefix")]
    }

    fn policy(rules: Vec<Rule>) -> Policy {
        Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules }
    }

    #[test]
    fn the_first_rule_that_matches_judges_and_every_other_says_why_not() {
        let now = Nanos(1_000);
        let ended = Rule { until: Some(now), ..rule("ended", &[(80, 80)]) };
        let other = rule("other", &[(443, 443)]);
        let partner = Rule { from: prefixes("192.0.2.0/24"), ..rule("partner", &[(80, 80)]) };
        let api = Rule { to: prefixes("203.0.113.5/32"), ..rule("api", &[(80, 90)]) };
        let policy = policy(vec![ended, other, partner, api, rule("web", &[(80, 80)]), rule("last", &[(0, u16::MAX)])]);
        let sent = |from: &str, to: Option<&str>| Sent {
            from: from.parse().expect("an address"),
            to: to.map(|to| to.parse().expect("an address")),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let judge = |sent: Sent| policy.rule_for(&sent, now).map(|(at, rule)| (at, rule.name.as_str()));
        assert_eq!(judge(sent("192.0.2.1", None)), Some((2, "partner")));
        assert_eq!(judge(sent("198.51.100.7", Some("203.0.113.5"))), Some((3, "api")));
        assert_eq!(judge(sent("198.51.100.7", Some("203.0.113.6"))), Some((4, "web")));
        assert_eq!(judge(Sent { protocol: Protocol::Udp, ..sent("198.51.100.7", None) }), None);
        let why = |sent: Sent| policy.rules.iter().map(|rule| rule.mismatch(&sent, now)).collect::<Vec<_>>();
        let unlike = [Mismatch::Ended, Mismatch::Port, Mismatch::From, Mismatch::ToUnknown].map(Some);
        assert_eq!(why(sent("198.51.100.7", None))[..4], unlike);
        assert_eq!(why(sent("198.51.100.7", Some("203.0.113.6")))[3], Some(Mismatch::To));
        assert_eq!(why(sent("198.51.100.7", None))[4..], [None, None]);
        assert_eq!(policy.rules[0].mismatch(&sent("198.51.100.7", None), Nanos(999)), None);
    }

    #[test]
    fn a_rule_that_is_left_nothing_of_a_source_is_none_of_its_rules() {
        let partner = Rule { from: prefixes("192.0.2.0/24"), ..rule("partner", &[(0, u16::MAX)]) };
        let api = Rule { to: prefixes("203.0.113.0/24"), ..rule("api", &[(80, 80)]) };
        let inside = Rule { to: prefixes("203.0.113.5/32"), ..rule("inside", &[(80, 80)]) };
        let policy =
            policy(vec![partner, api, inside, rule("web", &[(80, 80), (443, 443)]), rule("login", &[(22, 22)])]);
        let names = |from: &str| {
            let rules = policy.rules_from(from.parse().expect("an address"), Nanos(0));
            rules.into_iter().map(|(_, rule)| rule.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("192.0.2.1"), ["partner"]);
        assert_eq!(names("198.51.100.7"), ["api", "web", "login"]);
    }

    #[test]
    fn slots_of_earlier_versions_are_found_again() {
        let minute = 60_000_000_000;
        assert_eq!(slot("default", Unit::Connections, minute), 0xb3fa_4bf3);
        assert_ne!(slot("default", Unit::Packets, minute), slot("default", Unit::Connections, minute));
        assert_ne!(slot("other", Unit::Connections, minute), slot("default", Unit::Connections, minute));
    }
}
