//! Tests of drop-cache entries, and of the order in which they replace each other.

use proptest::prelude::*;

use super::*;

const HEAD: Head = Head {
    source: Address::v4([192, 0, 2, 1]),
    ip_bytes: 40,
    to: Destination::Tcp { port: 443, opening: true, has_payload: false },
};

const SEED: HashKey = HashKey([3, 4]);

fn key(head: Head) -> Option<Key> {
    Key::of(&head, 7, u32::MAX, [u64::MAX, 0], SEED)
}

#[test]
fn an_entry_is_of_one_port_one_family_one_kind_and_one_epoch() {
    let kinds = [
        Destination::Tcp { port: 443, opening: true, has_payload: false },
        Destination::Tcp { port: 443, opening: false, has_payload: false },
        Destination::Udp { port: 443 },
        Destination::Udp { port: 444 },
    ];
    let v6 = Address::V6([u64::from(u32::from_ne_bytes([192, 0, 2, 1])), 0]);
    let mut keys: Vec<_> = kinds.map(|to| key(Head { to, ..HEAD }).unwrap()).into();
    keys.extend(kinds.map(|to| key(Head { to, source: v6, ..HEAD }).unwrap()));
    keys.push(Key::of(&HEAD, 8, u32::MAX, [u64::MAX, 0], SEED).unwrap());
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(key), "{key:?}");
        assert_ne!(*key, Key::NONE);
    }
}

#[test]
fn unverified_traffic_is_a_kind_of_its_own_and_opens_nothing() {
    let to = Destination::Tcp { port: 443, opening: false, has_payload: true };
    let segment = key(Head { to, ..HEAD }).unwrap();
    let others = [HEAD.to, Destination::Udp { port: 443 }, to].map(|to| key(Head { to, ..HEAD }).unwrap());
    assert!(segment.is_segment() && !segment.unverified().is_segment() && !segment.unverified().is_opening());
    assert!(!others.contains(&segment.unverified()));
}

#[test]
fn payload_makes_no_other_entry() {
    let to = Destination::Tcp { port: 443, opening: false, has_payload: true };
    let other = Head { to, ..HEAD };
    let to = Destination::Tcp { port: 443, opening: false, has_payload: false };
    assert_eq!(key(other), key(Head { to, ..HEAD }));
}

#[test]
fn packets_without_a_port_are_not_cached() {
    for to in [Destination::Fragment, Destination::UnparsableHeaders, Destination::ControlTraffic, Destination::Other] {
        assert_eq!(key(Head { to, ..HEAD }), None);
    }
}

#[test]
fn a_client_of_ipv6_is_its_prefix_however_long_that_is() {
    let keys = |ipv6_mask: [u64; 2]| {
        [[1, 2], [1, 3], [2, 2]].map(|source| {
            let head = Head { source: Address::V6(source), ..HEAD };
            Key::of(&head, 7, u32::MAX, ipv6_mask, SEED).unwrap()
        })
    };
    let [one, neighbour, other] = keys([u64::MAX, 0]);
    assert!(one == neighbour && one != other);
    let [one, neighbour, other] = keys([u64::MAX; 2]);
    assert!(one != neighbour && one != other && neighbour != other);
}

const NOW: Nanos = Nanos(1_767_261_600_123_456_789);
const OVER: Verdict = Verdict { reason: Reason::OverLimit, rule: 127 };

#[test]
fn an_expiry_tells_whether_it_holds_but_in_its_last_tick() {
    for later_ns in [1, 268_435_456, 1_000_000_000, 60_000_000_000, 250_000_000_000_000] {
        let until = Nanos(NOW.0 + later_ns);
        let (expiry, ends) = Expiry::new(NOW, until, OVER);
        assert_eq!(ends, until);
        for (at, held) in [(NOW.0, true), (until.0 - 1, true), (until.0, false), (until.0 + 3_600_000_000_000, false)] {
            match expiry.holds(Nanos(at)) {
                Holds::Yes => assert!(held, "{later_ns} {at}"),
                Holds::No => assert!(!held, "{later_ns} {at}"),
                Holds::InLastTick => assert!(until.0.abs_diff(at) < 1 << TICK_SHIFT, "{later_ns} {at}"),
            }
        }
        let a_tick_before = Nanos(until.0 - (1 << TICK_SHIFT));
        assert!(a_tick_before < NOW || expiry.holds(a_tick_before) == Holds::Yes, "{later_ns}");
    }
}

#[test]
fn a_longer_expiry_is_cut_and_a_past_one_never_holds() {
    let (expiry, ends) = Expiry::new(NOW, Nanos(NOW.0 + 30 * 86_400_000_000_000), OVER);
    assert_eq!(expiry.left(NOW), EXPIRY_TICKS_MAX + 1);
    assert!((3 * 86_400_000_000_000..4 * 86_400_000_000_000).contains(&(ends.0 - NOW.0)));
    let (expiry, ends) = Expiry::new(NOW, Nanos(NOW.0 - 86_400_000_000_000), OVER);
    assert_eq!((expiry.left(NOW), ends), (1, NOW));
    assert_eq!(expiry.holds(Nanos(NOW.0 + 86_400_000_000_000)), Holds::No);
}

#[test]
fn an_entry_says_what_was_written_and_counts_to_its_most_and_from_0_again() {
    let of = key(HEAD).unwrap();
    for verdict in [OVER, Verdict { reason: Reason::Banned, rule: 0 }] {
        let (expiry, _) = Expiry::new(NOW, Nanos(NOW.0 + 60_000_000_000), verdict);
        let mut entry = DropEntry { word: of.entry_word(expiry), source: of.source };
        for dropped in 0..=DROPPED_MAX {
            assert_eq!((entry.dropped(), entry.expiry(), entry.is_of(of)), (dropped, expiry, true));
            entry.word = entry.word.wrapping_add(ONE_DROPPED);
        }
        assert_eq!((entry.dropped(), entry.expiry().verdict(), entry.is_ipv6()), (0, verdict, false));
    }
}

#[test]
fn a_retired_entry_never_holds_and_keeps_its_count() {
    let of = key(HEAD).unwrap();
    let (expiry, _) = Expiry::new(NOW, Nanos(NOW.0 + 60_000_000_000), OVER);
    let entry = DropEntry { word: of.entry_word(expiry) | (5 * ONE_DROPPED), source: of.source };
    assert!(entry.is_in_epoch(7) && entry.is_in_epoch_of(of) && entry.is_of(of));
    let retired = entry.retired();
    assert!(!retired.is_in_epoch(7) && !retired.is_in_epoch_of(of) && !retired.is_of(of));
    assert!(retired.is_of_any_epoch(of));
    assert_eq!((retired.dropped(), retired.expiry().verdict()), (5, OVER));
}

#[test]
fn neither_nothing_nor_what_is_being_written_is_of_any_key() {
    let of = key(HEAD).unwrap();
    let last = Key::of(&HEAD, 30, u32::MAX, [u64::MAX, 0], SEED).unwrap();
    for word in [0, BUSY, BUSY | (9 * ONE_DROPPED)] {
        let entry = DropEntry { word, source: of.source };
        assert!(!entry.is_of(of) && !entry.is_of(last));
        assert_eq!(entry.is_busy(), word != 0);
    }
}

/// Number of sources with entries, in one cache set and its neighbour.
const SOURCES: u64 = 24;
const PLACES: usize = 2 * WAYS;

/// Returns a key of one of the sources, of one of the kinds.
fn key_of(source: u64, kind: u64, epoch: u32) -> Key {
    let to = match kind {
        0 => Destination::Tcp { port: 443, opening: true, has_payload: false },
        1 => Destination::Udp { port: 443 },
        _ => Destination::Tcp { port: 443, opening: false, has_payload: true },
    };
    let [.., low] = source.to_be_bytes();
    let of = Key::of(&Head { source: Address::v4([192, 0, 2, low]), to, ..HEAD }, epoch, u32::MAX, [u64::MAX, 0], SEED)
        .unwrap();
    if kind == 3 { of.unverified() } else { of }
}

/// Returns the place that an entry gets, as the program chooses it.
fn chosen(entries: &[DropEntry; PLACES], key: Key, is_verified: bool, now: Nanos) -> Option<usize> {
    let ranks = entries.map(|entry| entry.rank(key, is_verified, now));
    let least = *ranks.iter().min().unwrap();
    (least != KEEPS).then(|| ranks.iter().position(|&rank| rank == least).unwrap())
}

proptest! {
    #[test]
    fn a_live_entry_yields_only_to_its_key_or_if_forgeable_to_a_verified_one(
        steps in proptest::collection::vec(
            (0..SOURCES, 0..4_u64, 0..9_u64, 0..120_u64, 0..20_u64, any::<bool>()), 1..200
        )
    ) {
        let (mut entries, mut now, mut epoch) = ([DropEntry::default(); PLACES], NOW, 7);
        for (source, kind, dice, lasts_s, later_s, is_verified) in steps {
            now = Nanos(now.0 + later_s * 500_000_000);
            if dice == 0 {
                epoch = 8;
            }
            let key = key_of(source, kind, epoch);
            let reason = if dice == 1 { Reason::Banned } else { Reason::OverLimit };
            // For a ban, the rule says whether it needs evidence; for a limit, the kind does.
            let is_verified = if dice == 1 { is_verified } else { kind == 2 };
            let (expiry, _) = Expiry::new(now, Nanos(now.0 + lasts_s * 1_000_000_000), Verdict { reason, rule: 3 });
            let wanted = DropEntry { word: key.entry_word(expiry), source: key.source };
            prop_assert_eq!(wanted.is_verified(), kind == 2 || dice == 1);
            let holds = |entry: DropEntry| entry.is_in_epoch(epoch) && entry.expiry().left(now) != 0;
            let before = entries;
            let place = chosen(&entries, key, is_verified, now);
            if let Some(place) = place {
                entries[place] = wanted;
                let was = before[place];
                if holds(was) && !was.is_of(key) {
                    prop_assert!(is_verified && !was.is_verified(), "{was:?} gave way to {wanted:?}");
                    prop_assert!(before.iter().all(|entry| holds(*entry)), "there was a free place");
                    let was_left = was.expiry().left(now);
                    let sooner = |entry: &&DropEntry| !entry.is_verified() && entry.expiry().left(now) < was_left;
                    prop_assert_eq!(before.iter().find(sooner), None);
                }
            } else {
                let gives_way =
                    |entry: &DropEntry| !holds(*entry) || entry.is_of(key) || is_verified && !entry.is_verified();
                prop_assert!(!before.iter().any(gives_way), "{wanted:?} found no place among {before:?}");
            }
            let of_key = entries.iter().filter(|entry| entry.is_of_any_epoch(key)).count();
            prop_assert!(of_key <= 1, "{of_key} entries of {key:?}");
        }
    }
}

#[test]
fn the_kinds_of_packets_of_one_source_lie_apart_and_evenly() {
    let seed = HashKey([1, 2]);
    let mut hit = vec![[0_u32; 4]; 1024];
    let mut shared = 0;
    for source in 0..8192_u64 {
        let places = [0, 1, 2, 3].map(|kind| {
            let of = Key { source, ..key_of(1, kind, 7) };
            (of.place(of.hash(seed)) & 1023) as usize
        });
        places.iter().enumerate().for_each(|(kind, &place)| hit[place][kind] += 1);
        shared += (0..4).filter(|&kind| places[..kind].contains(&places[kind])).count();
    }
    // Expected are 8 sources per place, and of six pairs of each source one in 1024.
    assert!(hit.iter().flatten().all(|&of| of < 30), "{:?}", hit.iter().flatten().max());
    assert!((20..90).contains(&shared), "{shared}");
}

#[test]
fn sources_over_the_limit_later_take_no_place_but_those_of_expired_entries() {
    let entry = |source: u64, after_s: u64| {
        let key = key_of(source, 1, 7);
        let (expiry, _) = Expiry::new(NOW, Nanos(NOW.0 + after_s * 1_000_000_000), OVER);
        (key, DropEntry { word: key.entry_word(expiry), source: key.source })
    };
    let mut entries = [0, 1, 2, 3, 4, 5, 6, 7].map(|source| entry(source, 60).1);
    let (later, _) = entry(20, 70);
    for now in [NOW, Nanos(NOW.0 + 10_000_000_000), Nanos(NOW.0 + 59_000_000_000)] {
        assert_eq!(chosen(&entries, later, false, now), None);
    }
    assert_eq!(chosen(&entries, key_of(5, 1, 7), false, NOW), Some(5), "its own");
    assert_eq!(chosen(&entries, later, false, Nanos(NOW.0 + 61_000_000_000)), Some(0), "all have ended");
    assert_eq!(chosen(&entries, key_of(20, 1, 8), false, NOW), Some(0), "all are of another epoch");
    entries[3] = entry(3, 50).1;
    assert_eq!(
        chosen(&entries, key_of(20, 2, 7), true, NOW),
        Some(3),
        "the one that expires first gives way to what is verified"
    );
    entries.iter_mut().for_each(|entry| entry.word = BUSY);
    assert_eq!(chosen(&entries, key_of(20, 2, 7), true, NOW), None);
}
