//! Effect of nested entries: which addresses are denied, and until when. Pure.
//!
//! The most specific entry decides. When it expires, the next one does. Bans count where no exemption holds.

use ipnet::IpNet;
use jiff::Timestamp;

use super::Row;

/// Effect of an entry on its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Denies the addresses.
    Denied,
    /// Exempts the addresses, or removes them from a set.
    Exempt,
    /// Bans the addresses. Entries of the other kinds are looked up first, however short their prefixes are.
    Banned,
}

/// Entry in force among nested ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nested {
    /// Addresses of the entry.
    pub(super) prefix: IpNet,
    /// Effect of the entry.
    pub(super) kind: Kind,
    /// Expiry; none if permanent.
    pub(super) until: Option<Timestamp>,
    /// Identifier that the caller assigned.
    pub(super) id: usize,
}

impl Nested {
    fn is_ban(&self) -> bool {
        self.kind == Kind::Banned
    }

    fn end(&self) -> End {
        end_of(self.until)
    }
}

/// Sortable expiry. A permanent entry outlasts all others.
type End = (bool, Option<Timestamp>);

const fn end_of(until: Option<Timestamp>) -> End {
    (until.is_none(), until)
}

/// Denials and bans in effect at one level of the sweep, as bit masks of their prefix lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Effect {
    denials: u128,
    bans: u128,
}

/// Returns the prefixes in which each denial and ban is in effect, with its [`Nested::id`], sorted. Each entry gets the
/// fewest prefixes that cover its part, or its own prefix if nothing is exempt.
///
/// An address is denied until the latest end of the entries that contain it. For equal prefix and kind the entry that
/// ends last counts. For equal prefixes an exemption overrides a denial.
pub(super) fn in_effect(mut entries: Vec<Nested>) -> Vec<(IpNet, usize)> {
    // For equal prefixes the denial comes before the exemption, because later entries are checked first.
    entries.sort_unstable_by_key(|of| (of.prefix, of.kind, std::cmp::Reverse(of.end())));
    entries.dedup_by_key(|of| (of.prefix, of.kind));
    let mut sweep = Sweep { around: Vec::new(), found: Vec::new() };
    let ipv6 = entries.partition_point(|of| of.prefix.addr().is_ipv4());
    let (ipv4, ipv6) = entries.split_at(ipv6);
    for family in [ipv4, ipv6] {
        if let Some(first) = family.first() {
            sweep.within(common(first.prefix, family), family);
        }
    }
    sweep.found.sort_unstable();
    sweep.found
}

/// Returns the longest prefix that contains all entries, of which `first` is the first.
fn common(first: IpNet, entries: &[Nested]) -> IpNet {
    let last = entries.last().map_or(first, |of| of.prefix);
    let mut around = first;
    while !around.contains(&last) {
        match around.supernet() {
            Some(wider) => around = wider,
            None => break,
        }
    }
    around
}

/// Walk over the prefixes that divide the entries, from wide to narrow.
struct Sweep {
    /// Entries that contain the whole current prefix, the widest first.
    around: Vec<Nested>,
    found: Vec<(IpNet, usize)>,
}

impl Sweep {
    /// Finds the effect of `entries`, which lie within `prefix`, in order. Returns the surrounding entries that are in
    /// effect in all of the prefix. Where they are in effect in a part of it only, that part is added to `found`.
    fn within(&mut self, prefix: IpNet, entries: &[Nested]) -> Effect {
        let depth = self.around.len();
        let own = entries.iter().take_while(|of| of.prefix == prefix).count();
        let (own, inside) = entries.split_at(own);
        self.around.extend(own);
        let mut effect = self.halves(prefix, inside);
        for of in own {
            let (bits, bit) = match of.kind {
                Kind::Exempt => continue,
                Kind::Denied => (&mut effect.denials, bit(prefix)),
                Kind::Banned => (&mut effect.bans, bit(prefix)),
            };
            // A single IPv6 address has no bit. Nothing divides it, so `here` has found it.
            if *bits & bit != 0 {
                *bits &= !bit;
                self.found.push((prefix, of.id));
            }
        }
        self.around.truncate(depth);
        effect
    }

    fn halves(&mut self, prefix: IpNet, inside: &[Nested]) -> Effect {
        let Some(first) = inside.first() else { return self.here(prefix) };
        // No entry surrounds these, so nothing between them needs to be divided.
        if self.around.is_empty() {
            let narrower = common(first.prefix, inside);
            if narrower != prefix {
                return self.within(narrower, inside);
            }
        }
        let Ok(mut halves) = prefix.subnets(prefix.prefix_len() + 1) else { return Effect::default() };
        let (Some(low), Some(high)) = (halves.next(), halves.next()) else { return Effect::default() };
        let (in_low, in_high) = inside.split_at(inside.partition_point(|of| low.contains(&of.prefix)));
        let effects = [(low, self.within(low, in_low)), (high, self.within(high, in_high))];
        let [of_low, of_high] = effects.map(|(_, effect)| effect);
        let both = Effect { denials: of_low.denials & of_high.denials, bans: of_low.bans & of_high.bans };
        for (half, effect) in effects {
            let alone = Effect { denials: effect.denials & !both.denials, bans: effect.bans & !both.bans };
            let is_alone = |of: &&Nested| {
                let bits = if of.is_ban() { alone.bans } else { alone.denials };
                bits & bit(of.prefix) != 0
            };
            self.found.extend(self.around.iter().filter(is_alone).map(|of| (half, of.id)));
        }
        both
    }

    /// Returns the surrounding entries in effect in an undivided prefix. These are denials up to the first exemption
    /// that outlasts them, and bans if there is none.
    fn here(&mut self, prefix: IpNet) -> Effect {
        let mut effect = Effect::default();
        let mut until: Option<End> = None;
        let (bans, grants): (Vec<&Nested>, Vec<&Nested>) = self.around.iter().partition(|of| of.is_ban());
        let mut single = Vec::new();
        let is_exempt = 'grants: {
            for of in grants.into_iter().rev() {
                if of.kind == Kind::Denied {
                    until = until.max(Some(of.end()));
                    effect.denials |= bit(of.prefix);
                    single.push(of);
                } else if until.is_none_or(|until| until < of.end()) {
                    break 'grants true;
                }
            }
            false
        };
        if !is_exempt {
            effect.bans = bans.iter().fold(0, |bits, of| bits | bit(of.prefix));
            single.extend(bans);
        }
        let single = single.into_iter().filter(|of| bit(of.prefix) == 0);
        self.found.extend(single.map(|of| (prefix, of.id)));
        effect
    }
}

/// Returns the bit of a prefix length, or 0 for a single IPv6 address.
fn bit(prefix: IpNet) -> u128 {
    1_u128.checked_shl(prefix.prefix_len().into()).unwrap_or(0)
}

/// Returns the same addresses as prefixes that do not overlap, as nft's interval sets require. Each address keeps the
/// latest expiry of its rows.
pub(super) fn disjoint(rows: &[Row]) -> Vec<Row> {
    let mut out = Vec::new();
    for is_ipv6 in [false, true] {
        let mut of: Vec<&Row> = rows.iter().filter(|row| row.prefix.addr().is_ipv6() == is_ipv6).collect();
        of.sort_by_key(|row| row.prefix);
        let mut rest = of.as_slice();
        while let Some(first) = rest.first() {
            let within = rest.iter().take_while(|row| first.prefix.contains(&row.prefix)).count();
            let (inside, after) = rest.split_at(within);
            split(first.prefix, None, inside, &mut out);
            rest = after;
        }
    }
    out
}

/// Splits `prefix` into disjoint rows. The given rows lie within the prefix, in order, and `around` covers the whole
/// prefix.
fn split(prefix: IpNet, around: Option<&Row>, rows: &[&Row], out: &mut Vec<Row>) {
    let outlasts = |one: &Row, other: &Row| end_of(one.until) > end_of(other.until);
    let own = rows.iter().take_while(|row| row.prefix == prefix).count();
    let (own, inside) = rows.split_at(own);
    let around = own.iter().copied().fold(around, |of, row| match of {
        Some(of) if !outlasts(row, of) => Some(of),
        Some(_) | None => Some(row),
    });
    let inside: Vec<&Row> = inside.iter().copied().filter(|row| around.is_none_or(|of| outlasts(row, of))).collect();
    if inside.is_empty() {
        out.extend(around.map(|of| Row { prefix, ..of.clone() }));
        return;
    }
    let Ok(halves) = prefix.subnets(prefix.prefix_len() + 1) else { return };
    for half in halves {
        let of: Vec<&Row> = inside.iter().copied().filter(|row| half.contains(&row.prefix)).collect();
        split(half, around, &of, out);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn nested(prefix: &str, kind: Kind, until: Option<i64>) -> Nested {
        Nested { prefix: prefix.parse().unwrap(), kind, until: until.map(at), id: 0 }
    }

    fn found(entries: &[Nested]) -> Vec<(String, usize)> {
        let numbered = entries.iter().enumerate().map(|(id, of)| Nested { id, ..*of }).collect();
        in_effect(numbered).into_iter().map(|(prefix, id)| (prefix.to_string(), id)).collect()
    }

    /// Returns true if the address is denied or banned at this second, by the rules of `access`.
    fn is_denied(entries: &[Nested], address: IpAddr, second: i64) -> bool {
        let holds = |of: &&Nested| of.prefix.contains(&address) && of.until.is_none_or(|until| at(second) < until);
        let grants = entries.iter().filter(|of| of.kind != Kind::Banned).filter(holds);
        let longest = grants.max_by_key(|of| (of.prefix.prefix_len(), of.kind == Kind::Exempt));
        match longest {
            Some(of) => of.kind == Kind::Denied,
            None => entries.iter().filter(|of| of.kind == Kind::Banned).any(|of| holds(&of)),
        }
    }

    const ENDS_MAX: i64 = 12;

    fn any_entries() -> impl Strategy<Value = Vec<Nested>> {
        let v4 = (any::<u8>(), prop_oneof![3 => 24..=32_u8, 1 => 0..=32_u8])
            .prop_map(|(host, length)| IpNet::new(IpAddr::from([10, 0, 0, host]), length).unwrap().trunc());
        let v6 = (any::<u8>(), prop_oneof![3 => 120..=128_u8, 1 => 0..=128_u8]).prop_map(|(host, length)| {
            IpNet::new(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]), length).unwrap().trunc()
        });
        let kind = prop::sample::select(vec![Kind::Exempt, Kind::Denied, Kind::Denied, Kind::Banned]);
        let until = proptest::option::of(1..ENDS_MAX);
        let entry = (prop_oneof![v4, v6], kind, until);
        let entry = entry.prop_map(|(prefix, kind, until)| Nested { prefix, kind, until: until.map(at), id: 0 });
        proptest::collection::vec(entry, 0..12)
            .prop_map(|of| of.into_iter().enumerate().map(|(id, of)| Nested { id, ..of }).collect())
    }

    proptest! {
        #[test]
        fn an_address_is_denied_until_the_first_moment_at_which_access_lets_it_pass(
            entries in any_entries(),
            host in any::<u8>(),
            other in any::<[u8; 4]>(),
        ) {
            let effect = in_effect(entries.clone());
            let addresses = [
                IpAddr::from([10, 0, 0, host]),
                IpAddr::from(other),
                IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]),
            ];
            for address in addresses {
                let of = effect.iter().filter(|(prefix, _)| prefix.contains(&address)).map(|(_, id)| entries[*id].end());
                let end = of.max();
                for second in 0..=ENDS_MAX {
                    let passes_before = (0..=second).any(|second| !is_denied(&entries, address, second));
                    let is_exported = end.is_some_and(|end| end_of(Some(at(second))) < end);
                    prop_assert_eq!(is_exported, !passes_before, "{} at {}: {:?}", address, second, effect);
                }
            }
        }

        #[test]
        fn each_entry_gets_the_fewest_prefixes_for_its_part(entries in any_entries()) {
            let effect = in_effect(entries.clone());
            for (id, entry) in entries.iter().enumerate() {
                let of: Vec<IpNet> = effect.iter().filter(|(_, of)| *of == id).map(|(prefix, _)| *prefix).collect();
                let fewest = IpNet::aggregate(&of);
                prop_assert_eq!(of.len(), fewest.len(), "{:?} of {:?}", of, entry);
                prop_assert!(of.iter().all(|prefix| entry.prefix.contains(prefix)));
            }
        }
    }

    #[test]
    fn an_exempted_part_of_a_denial_is_not_in_effect() {
        let entries = [nested("10.90.0.0/30", Kind::Denied, None), nested("10.90.0.2/32", Kind::Exempt, None)];
        assert_eq!(found(&entries), [("10.90.0.0/31".to_owned(), 0), ("10.90.0.3/32".to_owned(), 0)]);
        let all = [nested("0.0.0.0/0", Kind::Denied, None), nested("128.0.0.0/1", Kind::Exempt, None)];
        assert_eq!(found(&all), [("0.0.0.0/1".to_owned(), 0)]);
    }

    #[test]
    fn nested_denials_each_keep_their_prefix() {
        let entries = [nested("10.0.0.0/8", Kind::Denied, Some(9)), nested("10.1.0.0/16", Kind::Denied, None)];
        assert_eq!(found(&entries), [("10.0.0.0/8".to_owned(), 0), ("10.1.0.0/16".to_owned(), 1)]);
    }

    #[test]
    fn a_denial_within_an_exemption_is_in_effect_until_its_own_end() {
        let entries = [
            nested("10.0.0.0/8", Kind::Exempt, None),
            nested("10.1.0.0/16", Kind::Denied, Some(5)),
            nested("10.1.1.0/24", Kind::Exempt, Some(4)),
            nested("10.1.1.7/32", Kind::Denied, Some(4)),
        ];
        let found = found(&entries);
        assert!(found.contains(&("10.1.1.7/32".to_owned(), 3)), "{found:?}");
        assert!(found.contains(&("10.1.1.7/32".to_owned(), 1)), "the exemption is over by then: {found:?}");
        assert!(!found.iter().any(|(prefix, _)| prefix.starts_with("10.1.1.6")), "{found:?}");
    }

    #[test]
    fn one_address_of_ipv6_is_found_by_itself_and_taken_out_by_itself() {
        let one = [nested("2001:db8::7/128", Kind::Denied, None)];
        assert_eq!(found(&one), [("2001:db8::7/128".to_owned(), 0)]);
        let ban = [nested("2001:db8::7/128", Kind::Banned, Some(9)), nested("::/0", Kind::Exempt, None)];
        assert_eq!(found(&ban), []);
        let two = [nested("2001:db8::6/127", Kind::Denied, None), nested("2001:db8::7/128", Kind::Exempt, None)];
        assert_eq!(found(&two), [("2001:db8::6/128".to_owned(), 0)]);
    }
}
