//! Interfaces on one path: packets of one pass through the other, as packets of a port pass through its bridge. A
//! program on both counts each packet twice. Pure: facts in, findings out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::DatapathError;

/// Kinds of interfaces that receive the packets of the interface below them a second time, unchanged.
const ABOVE: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "dsa"];
/// Kinds that have ports but do not receive their packets. The ports of a VRF keep their packets. The other kinds first
/// remove a header, or hand packets to their own interfaces.
const NOT_RECEIVING: [&str; 4] = ["vrf", "openvswitch", "batadv", "hsr"];
/// Kinds that represent all of their ports.
const AGGREGATES: [&str; 3] = ["bond", "team", "failover"];

/// One network interface, and the interfaces that it is joined to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Name in its network namespace.
    pub name: String,
    /// Index in its network namespace.
    pub index: u32,
    /// Kind of a virtual interface, such as `vlan` or `bridge`. None for hardware.
    pub kind: Option<String>,
    /// Index of the bridge, bond or other interface that this one is a port of.
    pub master: Option<u32>,
    /// Index of the interface below, or of a veth's other end, in the same network namespace.
    pub lower: Option<u32>,
}

impl Link {
    fn is(&self, kinds: &[&str]) -> bool {
        self.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    }

    /// Returns whether the interface represents all of its ports. A master without a kind belongs to a driver, as on
    /// Hyper-V.
    fn is_aggregate(&self) -> bool {
        self.is(&AGGREGATES) || self.kind.is_none()
    }
}

/// Two interfaces that see the same packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPath {
    /// The interface that sees a packet first.
    pub lower: String,
    /// The interface that sees the packet again.
    pub upper: String,
    /// Path of the packets above the lower interface, such as `bond0 (bond) and bond0.5 (vlan)`.
    by: String,
    /// Interface to name instead of both.
    keep: String,
    /// Reason to keep that interface.
    why: String,
}

impl SharedPath {
    /// Returns a sentence that names both interfaces and the path between them.
    pub fn words(&self) -> String {
        let Self { lower, upper, by, .. } = self;
        format!("{lower} and {upper} are one path: packets of {lower} reach {by} too, and would count twice")
    }

    /// Returns whether the path joins these two interfaces, in either order.
    pub fn joins(&self, one: &str, other: &str) -> bool {
        [(one, other), (other, one)].contains(&(self.lower.as_str(), self.upper.as_str()))
    }
}

/// Forwarding of packets between interfaces.
struct Map<'a> {
    by_index: BTreeMap<u32, &'a Link>,
    /// Interfaces above each interface. The next field has the ports of each.
    above: BTreeMap<u32, Vec<&'a Link>>,
    ports: BTreeMap<u32, Vec<&'a Link>>,
}

impl<'a> Map<'a> {
    fn new(links: &'a [Link]) -> Self {
        let mut map = Self {
            by_index: links.iter().map(|link| (link.index, link)).collect(),
            above: BTreeMap::new(),
            ports: BTreeMap::new(),
        };
        for link in links {
            if let Some(lower) = link.lower.filter(|_| link.is(&ABOVE)) {
                map.above.entry(lower).or_default().push(link);
            }
            if let Some(master) = link.master {
                map.ports.entry(master).or_default().push(link);
            }
        }
        map
    }

    /// Returns the interfaces that receive this interface's packets, each with the hops on the way.
    fn next(&self, link: &Link) -> Vec<Vec<&'a Link>> {
        let above = self.above.get(&link.index).into_iter().flatten().map(|above| vec![*above]);
        let mut next: Vec<Vec<&Link>> = above.collect();
        let Some(master) = link.master.and_then(|master| self.by_index.get(&master)) else { return next };
        if !master.is(&NOT_RECEIVING) {
            next.push(vec![*master]);
        }
        if master.is(&["bridge"]) {
            // A bridge forwards to its other ports. A packet sent at one end of a veth is received at the other.
            let others = self.ports.get(&master.index).into_iter().flatten().filter(|port| port.index != link.index);
            let ends = others.filter_map(|port| Some((port, self.by_index.get(&port.lower?)?)));
            let is_veth = |(port, end): &(&&Link, &&Link)| port.is(&["veth"]) && end.lower == Some(port.index);
            next.extend(ends.filter(is_veth).map(|(_, end)| vec![*master, *end]));
        }
        next
    }

    /// Returns the hops from one interface to each other interface that receives its packets.
    fn reached(&self, from: &'a Link) -> Vec<Vec<&'a Link>> {
        let (mut seen, mut queue) = (BTreeSet::from([from.index]), VecDeque::from([(from, Vec::new())]));
        let mut reached = Vec::new();
        while let Some((link, hops)) = queue.pop_front() {
            for step in self.next(link) {
                let Some(last) = step.last().copied() else { continue };
                if seen.insert(last.index) {
                    let hops: Vec<&Link> = hops.iter().copied().chain(step).collect();
                    queue.push_back((last, hops.clone()));
                    reached.push(hops);
                }
            }
        }
        reached
    }
}

/// Returns the pairs of named interfaces of which one receives the other's packets, in the order of the names.
pub fn shared(named: &[String], links: &[Link]) -> Vec<SharedPath> {
    let map = Map::new(links);
    let mut found = Vec::new();
    for name in named {
        let Some(lower) = links.iter().find(|link| link.name == *name) else { continue };
        for hops in map.reached(lower) {
            found
                .extend(hops.last().filter(|upper| named.contains(&upper.name)).map(|upper| pair(lower, upper, &hops)));
        }
    }
    found
}

fn pair(lower: &Link, upper: &Link, hops: &[&Link]) -> SharedPath {
    let named = |link: &&Link| match &link.kind {
        Some(kind) => format!("{} ({kind})", link.name),
        None => link.name.clone(),
    };
    let by = hops.iter().map(named).collect::<Vec<_>>().join(" and ");
    // The master of a port is an aggregate if it has no kind. A lower interface without a kind is hardware.
    let (keep, why) = match hops.iter().rev().find(|link| link.is_aggregate()) {
        Some(aggregate) => (
            aggregate.name.clone(),
            "it receives the packets of each of its ports, also of ports that join later".into(),
        ),
        None => {
            let only = format!("to limit only what {0} receives, name {0} alone", upper.name);
            (lower.name.clone(), format!("it receives all packets there, also those of {}; {only}", upper.name))
        }
    };
    SharedPath { lower: lower.name.clone(), upper: upper.name.clone(), by, keep, why }
}

/// Returns the interfaces to name instead of `named`, so that no packet counts twice.
pub fn instead(named: &[String], links: &[Link]) -> Vec<String> {
    let mut names = named.to_vec();
    // Each round removes at least one name, unless the interface to keep is a third one above both.
    for _ in 0..named.len().saturating_mul(2) {
        let Some(first) = shared(&names, links).into_iter().next() else { break };
        let at = names.iter().position(|name| [&first.lower, &first.upper].contains(&name)).unwrap_or(0);
        names.retain(|name| ![&first.lower, &first.upper, &first.keep].contains(&name));
        names.insert(at.min(names.len()), first.keep);
    }
    names
}

/// Refuses interfaces of which one receives another's packets. `write` formats the interfaces to name instead.
///
/// # Errors
/// Fails for the first such pair, and says what to write instead.
pub fn refuse(named: &[String], links: &[Link], write: impl Fn(&[String]) -> String) -> Result<(), DatapathError> {
    let Some(first) = shared(named, links).into_iter().next() else { return Ok(()) };
    let instead = format!("write {}: {} is enough, as {}", write(&instead(named, links)), first.keep, first.why);
    Err(DatapathError::SharedPath { what: first.words(), instead })
}

/// Formats names as in a configuration file.
pub fn as_key(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("interfaces = [{}]", quoted.join(", "))
}

/// Formats names as flags.
pub fn as_flags(names: &[String]) -> String {
    names.iter().map(|name| format!("--iface {name}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a host with a bond of two ports under a VLAN, and a bridge with a port and a container's veth. Others
    /// are virtual interfaces on top of hardware.
    fn host() -> Vec<Link> {
        type Row = (&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>);
        let rows: [Row; 19] = [
            ("lo", None, None, None),
            ("eth0", None, Some("bond0"), None),
            ("eth1", None, Some("bond0"), None),
            ("bond0", Some("bond"), None, None),
            ("bond0.5", Some("vlan"), Some("br5"), Some("bond0")),
            ("br5", Some("bridge"), None, None),
            ("eth2", None, Some("br0"), None),
            ("br0", Some("bridge"), None, None),
            ("port0", Some("veth"), Some("br0"), Some("guest0")),
            ("guest0", Some("veth"), None, Some("port0")),
            ("eth3", None, None, None),
            ("mac0", Some("macvlan"), None, Some("eth3")),
            ("ip0", Some("ipvlan"), None, Some("eth3")),
            ("eth4", None, Some("team0"), None),
            ("team0", Some("team"), None, None),
            ("eth5", None, Some("red"), None),
            ("red", Some("vrf"), None, None),
            ("vf0", None, Some("synthetic"), None),
            ("synthetic", None, None, None),
        ];
        let index = |name: &str| u32::try_from(rows.iter().position(|row| row.0 == name).unwrap()).unwrap() + 1;
        let link = |(name, kind, master, lower): &Row| Link {
            name: (*name).to_owned(),
            index: index(name),
            kind: kind.map(str::to_owned),
            master: master.map(index),
            lower: lower.map(index),
        };
        rows.iter().map(link).collect()
    }

    fn names(of: &str) -> Vec<String> {
        of.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn interfaces_on_one_path_are_found_over_any_levels_in_either_order() {
        let rows = [
            ("eth2 br0", "br0 (bridge)", "eth2"),
            ("eth0 bond0", "bond0 (bond)", "bond0"),
            ("bond0 bond0.5", "bond0.5 (vlan)", "bond0"),
            ("eth1 bond0.5", "bond0 (bond) and bond0.5 (vlan)", "bond0"),
            ("eth0 br5", "bond0 (bond) and bond0.5 (vlan) and br5 (bridge)", "bond0"),
            ("eth3 mac0", "mac0 (macvlan)", "eth3"),
            ("eth3 ip0", "ip0 (ipvlan)", "eth3"),
            ("eth4 team0", "team0 (team)", "team0"),
            ("eth2 guest0", "br0 (bridge) and guest0 (veth)", "eth2"),
            ("vf0 synthetic", "synthetic", "synthetic"),
        ];
        let host = host();
        for (named, by, keep) in rows {
            let (mut named, keep) = (names(named), names(keep));
            for _ in 0..2 {
                let found = shared(&named, &host);
                assert_eq!(found.len(), 1, "{named:?}: {found:?}");
                assert!(found[0].joins(&named[0], &named[1]) && found[0].by == by, "{named:?}: {found:?}");
                assert_eq!(instead(&named, &host), keep, "{named:?}");
                named.reverse();
            }
        }
    }

    #[test]
    fn interfaces_beside_each_other_share_no_path() {
        let host = host();
        for named in
            ["eth0 eth1", "eth2 eth3", "eth0 br0", "mac0 ip0", "eth5 red", "br0 guest0", "port0 guest0", "lo gone"]
        {
            assert_eq!(shared(&names(named), &host), [], "{named}");
        }
    }

    #[test]
    fn suggested_interfaces_share_no_path_and_keep_separate_ones() {
        let host = host();
        let rows = [
            ("eth0 eth1 bond0 eth3", "bond0 eth3"),
            ("eth3 mac0 ip0", "eth3"),
            ("br5 eth0 bond0.5 eth2 br0", "bond0 eth2"),
            ("eth5 red", "eth5 red"),
        ];
        for (named, expected) in rows {
            let instead = instead(&names(named), &host);
            assert_eq!(instead, names(expected), "{named}");
            assert_eq!(shared(&instead, &host), [], "{named}");
        }
    }

    #[test]
    fn a_refusal_names_both_interfaces_the_way_between_them_and_what_to_write() {
        let refused = refuse(&names("eth2 br0"), &host(), as_flags).unwrap_err().to_string();
        for words in
            ["eth2 and br0 are one path", "packets of eth2 reach br0 (bridge)", "count twice", "write --iface eth2:"]
        {
            assert!(refused.contains(words), "{refused}");
        }
        let refused = refuse(&names("eth0 bond0"), &host(), as_key).unwrap_err().to_string();
        assert!(refused.contains("write interfaces = [\"bond0\"]: bond0 is enough"), "{refused}");
        assert!(refuse(&names("eth2 eth3"), &host(), as_flags).is_ok());
    }

    #[test]
    fn facts_that_go_round_in_a_circle_end() {
        let link = |name: &str, index, master| Link {
            name: name.to_owned(),
            index,
            kind: Some("bridge".to_owned()),
            master: Some(master),
            lower: Some(index),
        };
        let round = [link("a", 1, 2), link("b", 2, 1)];
        assert_eq!(shared(&names("a b"), &round).len(), 2);
        assert_eq!(instead(&names("a b"), &round).len(), 1);
    }
}
