//! Rows that are measured: the frames, their sources, the limit and the expected treatment.

use std::net::IpAddr;

use ratelimit_common::layout::{PREFIXES_MAX, Unit};
use ratelimit_common::time::SECOND_NS;
use ratelimit_kernel::{Flood, Order, Sources};
use ratelimit_policy::desired::{Access, Limit, NewSources, Per, Policy, Ports, Rule, WindowForm, slot};

use super::connections::Open;
use super::wire::{CLIENT, Family};
use crate::cost::conversations::{GET, asked_in_the_clear, asked_under_tls, body, record, uploading_in_the_clear};
use crate::frames::flag::{ACK, PSH, SYN};
use crate::frames::proto::{TCP, UDP};
use crate::frames::{IPV4, IPV6, frame, padded, tcp, tcp_with, udp, v4, v6};
use crate::program::limit_over;

/// Server port to which every flood goes.
pub const PORT: u16 = 80;
/// Number of well-behaved sources of a mixed flood, as a power of two.
pub const OTHERS_BITS: u8 = 6;
/// Number of open connections of a row, as a power of two.
const OPEN_BITS: u8 = 6;
/// Number of packets of each well-behaved source before the flood, by which the source becomes known.
pub const OTHERS_BEFORE: u32 = 64;
/// Maximum number of sources of the limiter unless a row says otherwise. This is the limiter's default.
pub const MAX_SOURCES: u32 = 262_144;
/// Limit in packets per hour that no row reaches: 596 523 per second, as hashlimit accepts at most 1 000 000.
const PLENTY: u64 = 1 << 31;

/// Kind of packet that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A SYN, which opens a TCP connection.
    Syn,
    /// A TCP segment with 64 bytes of data.
    Data,
    /// A datagram with 18 bytes of data, the shortest that fills a frame.
    Datagram,
}

/// Limit of each source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of packets per hour.
    Of(u64),
    /// More packets than are sent.
    Plenty,
    /// The number of packets that each well-behaved source sends.
    OfOthers,
}

/// Treatment that the timed packets must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// All are over the limit.
    Over,
    /// All are within the limit.
    Within,
    /// All are of an exempt source.
    Exempt,
    /// No limit counts them, and all pass. The guard counts one data segment per 128 KB.
    NotCounted,
    /// All are of new sources, so none is over the limit.
    New,
    /// All are of new sources, and the rule drops those over its budget, which are nearly all.
    NewOverBudget,
    /// Every second packet is of a known source within its limit, and the others are of new sources.
    HalfNew,
}

/// Receivers with which a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The limiter and all other limiters.
    Peers,
    /// The bare program and the limiter only.
    Bare,
}

/// Reference from which a receiver's cost is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The bare program for every receiver. Dropping is measured, which includes the creation of a socket buffer.
    Bare,
    /// The program that drops right behind the receiver, measured alone. Packets pass, so the verdict is measured.
    Own,
}

/// Prefixes of the access list. None contains a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// No prefix, which a host has only if `[safety]` is off.
    Nothing,
    /// Prefixes that `[safety]` adds on a host.
    Safety,
    /// Prefixes of `[safety]`, and this number of denied prefixes that are spread over the address space.
    Denied(u32),
}

/// Prefixes that `[safety]` finds on a host: a resolver, a gateway and an SSH peer of each family. No source has the
/// same IPv4 /16 or IPv6 /32.
const SAFETY: [&str; 6] =
    ["9.9.9.9/32", "172.31.0.1/32", "203.0.113.22/32", "2620:fe::fe/128", "fe80::1/128", "2a00:1450:4001::22/128"];

/// First octets of the sources, which no denied prefix has.
const SOURCES_BEGIN: [u8; 4] = [10, 11, 21, 198];

impl Listed {
    /// Returns the entries of the access list.
    pub fn access(self) -> Vec<Access> {
        let denied = match self {
            Self::Nothing => return Vec::new(),
            Self::Safety => 0,
            Self::Denied(count) => count,
        };
        let safety = SAFETY.iter().map(|prefix| Access::exempt(prefix.parse().expect("a prefix")));
        let spread = (1..=u32::MAX).map(|at| at.wrapping_mul(0x9e37_79b1).to_be_bytes());
        let spread = spread.filter(|[first, ..]| (1..224).contains(first) && !SOURCES_BEGIN.contains(first));
        let denied = spread
            .take(denied as usize)
            .map(|[a, b, c, _]| Access::denied(format!("{a}.{b}.{c}.0/24").parse().expect("a prefix")));
        safety.chain(denied).collect()
    }
}

/// A row of the tables.
#[derive(Clone, Debug)]
pub struct Row {
    /// Identifier by which the row's goal is found.
    pub id: &'static str,
    /// Description in tables.
    pub name: String,
    /// Packet that is sent.
    pub packet: Packet,
    /// Sources that send.
    pub sources: Sources,
    /// A small set of sources within their limit that send every second frame, if any.
    pub others: Option<Sources>,
    /// Limit of each source.
    pub amount: Amount,
    /// Unit of the limit.
    pub unit: Unit,
    /// Open connections on which everything is sent, if any. The row's packet and sources are then unused.
    pub open: Option<Open>,
    /// Expected treatment of the packets.
    pub expected: Expected,
    /// Budget of new sources of the limiter's rule, if any. Other limiters have no such budget.
    pub new_sources: Option<NewSources>,
    /// Group to which the limit applies, if any. Each source then also has its own limit, and is within it.
    pub group: Option<Per>,
    /// Number of rules. The last one judges.
    pub rules: usize,
    /// Number of buckets of a window, of ten minutes each.
    pub buckets: u8,
    /// Prefixes of the access list besides the exempt ones.
    pub listed: Listed,
    /// Number of exempt prefixes. None contains a source, except in the rows of exempt sources.
    pub exempt: u32,
    /// Maximum number of sources of the limiter.
    pub max_sources: u32,
    /// Number of frames that are sent before the first timed one.
    pub before: u32,
    /// Receivers with which the row is measured.
    pub beside: Beside,
    /// Reference from which the costs are counted.
    pub floor: Floor,
}

impl Row {
    /// Returns the family of the wire that the row needs.
    pub fn family(&self) -> Family {
        if self.sources.first.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the flood that is timed.
    pub fn flood(&self) -> Flood {
        let (proto, payload) = match self.packet {
            Packet::Syn => (TCP, tcp(PORT, SYN)),
            Packet::Data => (TCP, tcp_with(PORT, ACK | PSH, &[], &[0x55; 64])),
            Packet::Datagram => (UDP, udp(PORT, [0x55; 18])),
        };
        let frame = match self.family() {
            Family::V4 => frame(IPV4, v4(proto, payload)),
            Family::V6 => frame(IPV6, v6(proto, payload)),
        };
        Flood {
            frame: padded(frame, 60),
            sources: self.sources.clone(),
            others: self.others.clone(),
            connections: None,
        }
    }

    /// Returns what the well-behaved sources send before the flood, if there are any.
    pub fn flood_of_others(&self) -> Option<Flood> {
        self.others.clone().map(|sources| Flood { sources, others: None, ..self.flood() })
    }

    /// Returns the limit in packets per hour for a run of `frames` frames in all.
    pub fn packets_an_hour(&self, frames: u64) -> u64 {
        match self.amount {
            Amount::Of(amount) => amount,
            Amount::Plenty => PLENTY,
            Amount::OfOthers => u64::from(OTHERS_BEFORE) + ((frames / 2) >> OTHERS_BITS),
        }
    }

    /// Returns whether some of the row's sources are new with each packet.
    pub fn is_forged(&self) -> bool {
        matches!(self.expected, Expected::New | Expected::NewOverBudget | Expected::HalfNew)
    }

    /// Returns the limiter's policy for a run of `frames` frames in all.
    pub fn policy(&self, frames: u64) -> Policy {
        let rule = |at: usize| {
            let is_last = at + 1 == self.rules;
            let port = if is_last { PORT } else { 1000 + u16::try_from(at).expect("at most 64 rules") };
            let (name, bucket_ns) = (format!("rule-{at}"), 600 * SECOND_NS);
            let amount = self.packets_an_hour(frames);
            let mut limit = limit_over(amount, self.unit, WindowForm::Strict, self.buckets, bucket_ns);
            limit.slot = slot(&name, self.unit, bucket_ns);
            let mut limits = vec![limit];
            if let Some(per) = self.group {
                limits.push(Limit { per, slot: !limit.slot, ..limit });
                limits[0].amount = PLENTY;
            }
            let ports = vec![(port, port)];
            let ports = Ports { tcp: ports.clone(), udp: ports, other_protocols: false };
            Rule { new_sources: self.new_sources, ..Rule::new(name, ports, limits) }
        };
        let exempt = (0..self.exempt).map(|at| {
            // Every second /24 from 20.0.0.0 on. The sources of these rows are between two of them.
            let octets = (0x1400_0000 + (at << 9)).to_be_bytes();
            Access::exempt(format!("{}.{}.{}.0/24", octets[0], octets[1], octets[2]).parse().expect("a prefix"))
        });
        Policy {
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            access: self.listed.access().into_iter().chain(exempt).collect(),
            rules: (0..self.rules).map(rule).collect(),
        }
    }
}

/// Returns `2^bits` sources in turn, starting at `first`.
pub fn in_turn(first: &str, bits: u8) -> Sources {
    Sources { first: address(first), bits, order: Order::InTurn, host_bits: 0 }
}

/// Returns `2^bits` prefixes of 64 bits in turn, starting at `first`.
pub fn prefixes_in_turn(first: &str, bits: u8) -> Sources {
    Sources { host_bits: 64, ..in_turn(first, bits) }
}

/// Returns `2^bits` sources with a Zipf distribution of exponent 1, by a table of 65 536 quantiles.
pub fn zipf(first: &str, bits: u8) -> Sources {
    Sources { order: Order::Picked(zipf_picks(1 << bits, 65_536)), ..in_turn(first, bits) }
}

/// Returns the ranks at the middles of `parts` equal parts of the distribution, where rank r has a share of 1/r.
fn zipf_picks(ranks: u32, parts: u32) -> Vec<u32> {
    let total: f64 = (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum();
    let (mut rank, mut below) = (0, 1.0);
    let picks = (0..parts).map(|part| {
        let quantile = (f64::from(part) + 0.5) / f64::from(parts) * total;
        while below < quantile && rank + 1 < ranks {
            rank += 1;
            below += 1.0 / f64::from(rank + 1);
        }
        rank
    });
    picks.collect()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Budget that the README recommends against forged sources.
pub const NEW_SOURCES: NewSources = NewSources { amount: 1000, window_ns: SECOND_NS };

const ONE: &str = "198.51.100.7";
const MANY: &str = "10.77.0.0";
const FORGED: &str = "11.0.0.0";
/// Source between two of the exempt prefixes.
const AMONG_EXEMPT: &str = "21.0.1.7";

/// Source within one of the exempt prefixes.
const EXEMPT: &str = "21.0.0.7";

/// Returns the row of one source over its limit, from which the others are derived.
pub fn one_source() -> Row {
    Row {
        id: "one_source",
        name: "one source over its limit".into(),
        packet: Packet::Syn,
        sources: in_turn(ONE, 0),
        others: None,
        amount: Amount::Of(1000),
        unit: Unit::Packets,
        open: None,
        expected: Expected::Over,
        new_sources: None,
        group: None,
        rules: 1,
        buckets: 6,
        listed: Listed::Safety,
        exempt: 0,
        max_sources: MAX_SOURCES,
        before: 8192,
        beside: Beside::Peers,
        floor: Floor::Bare,
    }
}

/// Returns the rows of the first tables.
pub fn all() -> Vec<Row> {
    [of_sources(), of_open_connections()].concat()
}

/// Returns the rows of one client's open connections, in the default unit.
fn of_open_connections() -> Vec<Row> {
    let requests = |id, name: &str, amount, expected, open| Row {
        id,
        name: name.into(),
        sources: in_turn(CLIENT, 0),
        amount,
        unit: Unit::Requests,
        open: Some(open),
        expected,
        beside: Beside::Bare,
        ..one_source()
    };
    let open = |before, data, goes_on| Open { bits: OPEN_BITS, before, data, goes_on };
    // The one request on each connection that is played before is admitted, and no other.
    let spent = Amount::Of(1 << OPEN_BITS);
    vec![
        requests(
            "open_data",
            "data segments of 64 open connections, requests counted",
            Amount::Plenty,
            Expected::NotCounted,
            open(uploading_in_the_clear(), body(1400), true),
        ),
        requests(
            "open_acks",
            "acknowledgements of 64 open connections, requests counted",
            Amount::Plenty,
            Expected::NotCounted,
            open(asked_in_the_clear(), Vec::new(), false),
        ),
        requests(
            "open_requests",
            "requests over the limit on 64 open connections, in the clear",
            spent,
            Expected::Over,
            open(asked_in_the_clear(), GET.to_vec(), false),
        ),
        requests(
            "open_requests_tls",
            "requests over the limit on 64 open connections, under TLS",
            spent,
            Expected::Over,
            open(asked_under_tls(), record(120), false),
        ),
    ]
}

fn of_sources() -> Vec<Row> {
    let row = |id, name: &str| Row { id, name: name.into(), ..one_source() };
    // Fills every table. Those of the other limiters hold 1 << 20 sources.
    let forged_before = 17 << 16;
    let within = Row {
        sources: in_turn(AMONG_EXEMPT, 0),
        amount: Amount::Plenty,
        expected: Expected::Within,
        floor: Floor::Own,
        ..row("within", "one source within its limit")
    };
    let many = Row { amount: Amount::Of(1), before: 3 << 16, ..one_source() };
    vec![
        one_source(),
        Row {
            id: "sources_65536",
            name: "65 536 sources over their limit".into(),
            sources: in_turn(MANY, 16),
            ..many.clone()
        },
        Row {
            id: "sources_zipf",
            name: "1 M sources, Zipf, over their limit".into(),
            sources: zipf("10.0.0.0", 20),
            ..many
        },
        Row {
            sources: in_turn(FORGED, 24),
            expected: Expected::New,
            before: forged_before,
            ..row("forged", "16.7 M forged sources")
        },
        Row {
            packet: Packet::Datagram,
            sources: in_turn(FORGED, 24),
            expected: Expected::New,
            before: forged_before,
            ..row("forged_udp", "16.7 M forged sources, UDP")
        },
        Row {
            sources: in_turn(FORGED, 24),
            expected: Expected::New,
            before: forged_before,
            listed: Listed::Denied(1000),
            beside: Beside::Bare,
            ..row("forged_denied", "16.7 M forged sources beside 1 000 denied prefixes")
        },
        Row {
            sources: in_turn(FORGED, 24),
            expected: Expected::New,
            before: forged_before,
            listed: Listed::Nothing,
            beside: Beside::Bare,
            ..row("forged_unlisted", "16.7 M forged sources, no prefix listed")
        },
        Row {
            sources: in_turn(FORGED, 24),
            others: Some(in_turn("198.18.0.0", OTHERS_BITS)),
            amount: Amount::OfOthers,
            expected: Expected::HalfNew,
            before: 1 << 19,
            ..row("half_forged", "half 64 known sources within their limit, half forged")
        },
        Row { sources: in_turn("2001:db8:0:7::", 24), ..row("v6_in_64", "IPv6, rotating in one /64 over its limit") },
        Row {
            sources: prefixes_in_turn("2001:db8:ff00::1", 24),
            expected: Expected::New,
            before: forged_before,
            ..row("v6_forged", "IPv6, 16.7 M forged /64s")
        },
        Row { packet: Packet::Datagram, ..row("udp", "UDP, one source over its limit") },
        // Source ports are random. After the frames before, each port is known to belong to no connection.
        Row { packet: Packet::Data, before: 3 << 16, ..row("data", "data segments, one source over its limit") },
        Row { rules: 64, beside: Beside::Bare, ..row("rules_64", "one source over the limit of the last of 64 rules") },
        Row {
            sources: in_turn(MANY, 8),
            group: Some(Per::Prefix { v4: 24, v6: 56 }),
            beside: Beside::Bare,
            ..row("group", "256 sources within their limits, their /24 over its own")
        },
        within.clone(),
        Row {
            id: "exempt_100000",
            name: "the same beside 100 000 exempt prefixes".into(),
            exempt: 100_000,
            beside: Beside::Bare,
            ..within.clone()
        },
        Row {
            id: "exempt_1048576",
            name: "the same beside 1 048 576 exempt prefixes".into(),
            exempt: PREFIXES_MAX,
            beside: Beside::Bare,
            ..within.clone()
        },
        Row {
            id: "listed_1048576",
            name: "one source of one of 1 048 576 exempt prefixes".into(),
            sources: in_turn(EXEMPT, 0),
            expected: Expected::Exempt,
            exempt: PREFIXES_MAX,
            beside: Beside::Bare,
            ..within.clone()
        },
        Row {
            id: "within_group",
            name: "one source within its limit and within that of its /24".into(),
            group: Some(Per::Prefix { v4: 24, v6: 56 }),
            beside: Beside::Bare,
            ..within.clone()
        },
        Row {
            id: "within_64",
            name: "64 sources within their limit".into(),
            sources: in_turn(MANY, 6),
            ..within.clone()
        },
        Row {
            id: "within_65536",
            name: "65 536 sources within their limit".into(),
            sources: in_turn(MANY, 16),
            before: 3 << 16,
            ..within
        },
        Row {
            sources: in_turn(FORGED, 24),
            expected: Expected::NewOverBudget,
            new_sources: Some(NEW_SOURCES),
            before: forged_before,
            floor: Floor::Own,
            ..row("new_sources", "16.7 M forged sources, `new_sources = \"1000/s\"`")
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_picks_the_first_rank_as_often_as_its_share_says() {
        let picks = zipf_picks(1 << 20, 65_536);
        let share = |rank| picks.iter().filter(|&&pick| pick == rank).count();
        // 65536 / H(2^20) = 65536 / 14.44
        assert!((4530..=4550).contains(&share(0)), "{}", share(0));
        assert!((2260..=2280).contains(&share(1)), "{}", share(1));
        assert!(picks.is_sorted() && picks.last().is_some_and(|&last| last < 1 << 20));
        let distinct = picks.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(distinct > 10_000, "{distinct}");
    }

    #[test]
    fn no_row_but_the_one_that_says_so_has_an_exempt_source_and_the_last_rule_judges() {
        for row in all() {
            let policy = row.policy(1 << 20);
            let prefixes = policy.access.iter().filter(|access| access.prefix.contains(&row.sources.first)).count();
            assert_eq!(prefixes, usize::from(row.expected == Expected::Exempt), "{}", row.name);
            let listed = row.listed.access().len();
            assert_eq!((policy.access.len(), policy.rules.len()), (listed + row.exempt as usize, row.rules));
            assert_eq!(policy.rules.iter().position(|rule| rule.ports.tcp == [(PORT, PORT)]), Some(row.rules - 1));
        }
    }

    #[test]
    fn no_listed_prefix_lies_where_the_filter_would_have_to_ask_about_a_source() {
        let denied = Listed::Denied(1000).access();
        assert_eq!(denied.len(), SAFETY.len() + 1000);
        let distinct: std::collections::BTreeSet<_> = denied.iter().map(|access| access.prefix).collect();
        assert_eq!(distinct.len(), denied.len());
        let first = |address: IpAddr| match address {
            IpAddr::V4(of) => u32::from_be_bytes(of.octets()) >> 16,
            IpAddr::V6(of) => u32::try_from(of.to_bits() >> 96).expect("32 bits"),
        };
        for row in all() {
            let prefixes = row.listed.access();
            let mut same = prefixes.iter().filter(|access| {
                access.prefix.addr().is_ipv4() == row.sources.first.is_ipv4()
                    && first(access.prefix.addr()) == first(row.sources.first)
            });
            assert_eq!(same.next(), None, "{}", row.name);
        }
    }

    #[test]
    fn within_limit_rows_use_their_own_floor_and_a_limit_all_limiters_take() {
        for row in all().iter().filter(|row| row.expected == Expected::Within) {
            assert_eq!((row.floor, row.amount), (Floor::Own, Amount::Plenty), "{}", row.name);
            assert!(row.packets_an_hour(0) <= 3600 * 1_000_000, "hashlimit takes no more than a million a second");
        }
    }

    #[test]
    fn only_the_row_that_says_so_has_a_budget_of_new_sources() {
        let with = all().into_iter().filter(|row| row.policy(1).rules.iter().any(|rule| rule.new_sources.is_some()));
        assert_eq!(with.map(|row| row.id).collect::<Vec<_>>(), ["new_sources"]);
    }

    #[test]
    fn preceding_packets_put_every_source_of_a_row_over_its_limit() {
        let of_packets = |row: &&Row| row.expected == Expected::Over && row.sources.order == Order::InTurn;
        for row in of_sources().iter().filter(of_packets) {
            let Amount::Of(amount) = row.amount else { panic!("{} has no limit to be over", row.name) };
            let is_one = row.family() == Family::V6 || row.group.is_some();
            let sources = if is_one { 1 } else { 1 << row.sources.bits };
            assert!(u64::from(row.before) >= sources * (amount + 1), "{}", row.name);
        }
    }
}
