//! Who is refused for how long: the source of a packet that a limit refused, or a ban, is noted with the time from which it may
//! have room again, and what it sends until then is refused by one look, before its rule is searched.
//!
//! Notes lie in lines of [`WAYS`], found by a keyed hash, or in the line beside. Where both are full a note gives way to one that lasts
//! longer, and nobody to others: who has none is judged by its window, as before it was noted. So what a flood does here costs time
//! and forgives nothing.
//!
//! A window that is full has room again when its bucket turns, or when what another limit of its rule refused is taken back: then the
//! source waits to the end of the note all the same, for what was a race of two of its packets.
//!
//! Segments of TCP that open nothing are of two kinds, see [`crate::proof`]: a note of all of them is looked at first, and one of those that
//! prove nothing where there is such a note.
//!
//! A note is of one port, family and kind of packet, and of one *epoch*: whatever the daemon changes (a rule, a grant, a source that is
//! reset) begins another, and what was noted before holds no longer.
//!
//! ```text
//!     until   63                16 15       8 7          0
//!            [ 2^20 ns from 1970  | rule row | reason      ]
//!     what    63        32   18       17..16 15          0
//!            [ epoch       | is IPv6 | kind | port         ]
//!     counted 63        32 31                            0
//!            [ dropped     | slot                          ]
//! ```

use crate::packet::{Head, To};
use crate::source::{Address, cut_ipv4, cut_ipv6};
use crate::time::Nanos;
use crate::verdict::{Reason, Verdict};

/// Notes in a line. // two of 32 bytes are a cache line
pub const WAYS: usize = 2;

/// One note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Note {
    /// A [`Term`]; 0 is none. Whoever writes a note has put [`BUSY`] here before.
    pub until: u64,
    /// [`Key::source`].
    pub source: u64,
    /// [`Key::what`].
    pub what: u64,
    /// Which window or ban refuses, by its slot; above it the packets that were dropped by this note and are not counted there.
    pub counted: u64,
}

/// The notes that share a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Line(pub [Note; WAYS]);

const _: () = assert!(size_of::<Line>() == 64);

/// One more packet, in [`Note::counted`].
pub const ONE_DROPPED: u64 = 1 << 32;

/// A note that somebody is writing: nothing is refused by it.
pub const BUSY: u64 = 0xff;

impl Note {
    /// The packets dropped by it that are counted nowhere else.
    #[inline(always)]
    pub const fn dropped(self) -> u64 {
        self.counted >> 32
    }

    /// The slot of the window or ban that refuses.
    #[inline(always)]
    pub const fn slot(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let slot = self.counted as u32;
        slot
    }

    /// Whether its source is one of IPv6.
    #[inline(always)]
    pub const fn is_ipv6(self) -> bool {
        self.what & IPV6 != 0
    }
}

/// How long a note holds, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term(u64);

/// Bits of nanoseconds that a note does not tell: it ends up to a millisecond early.
const TIME_SHIFT: u32 = 20;

impl Term {
    /// That `verdict` holds until then.
    #[inline(always)]
    pub const fn new(until: Nanos, verdict: Verdict) -> Self {
        Self(until.0 >> TIME_SHIFT << 16 | (verdict.rule as u64) << 8 | verdict.reason as u64)
    }

    /// Of a [`Note::until`].
    #[inline(always)]
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// When it ends.
    pub const fn until(self) -> Nanos {
        Nanos(self.0 >> 16 << TIME_SHIFT)
    }

    /// Whether it holds.
    #[inline(always)]
    pub const fn holds(self, now: Nanos) -> bool {
        self.0 >> 16 > now.0 >> TIME_SHIFT
    }

    /// Whether it is a ban's, and not a limit's.
    #[inline(always)]
    pub const fn is_ban(self) -> bool {
        self.0 & 0xff == Reason::Banned as u64
    }

    /// The verdict on what it refuses.
    #[inline(always)]
    pub const fn verdict(self) -> Verdict {
        #[expect(clippy::cast_possible_truncation, reason = "the byte above the reason")]
        let rule = (self.0 >> 8) as u8;
        Verdict { reason: if self.is_ban() { Reason::Banned } else { Reason::OverLimit }, rule }
    }
}

/// What a note is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    /// The source's prefix: an IPv4 address, or the upper half of an IPv6 one, in network order.
    pub source: u64,
    /// Epoch, family, kind and port.
    pub what: u64,
}

const IPV6: u64 = 1 << 18;
const OPENING: u64 = 1 << 16;
const DATAGRAM: u64 = 2 << 16;
const UNPROVEN: u64 = 3 << 16;

impl Key {
    /// Nothing that is noted.
    pub const NONE: Self = Self { source: 0, what: 0 };

    /// What notes of this packet have; none where a packet of its kind is not noted, or its source by more than 64 bits.
    #[inline(always)]
    pub const fn of(head: &Head, epoch: u32, ipv4_mask: u32, ipv6_mask: [u64; 2]) -> Option<Self> {
        let kind_and_port = match head.to {
            To::Tcp { port, opening: true, .. } => OPENING | port as u64,
            To::Tcp { port, .. } => port as u64,
            To::Udp { port } => DATAGRAM | port as u64,
            To::Fragment | To::Unwalkable | To::Essential | To::Other => return None,
        };
        let (source, family) = match head.source {
            Address::V4(address) => (cut_ipv4(address, ipv4_mask) as u64, 0),
            Address::V6(_) if ipv6_mask[1] != 0 => return None,
            Address::V6(address) => (cut_ipv6(address, ipv6_mask)[0], IPV6),
        };
        Some(Self { source, what: (epoch as u64) << 32 | family | kind_and_port })
    }

    /// Whether it is of packets that open TCP connections.
    #[inline(always)]
    pub const fn is_opening(self) -> bool {
        self.what & (OPENING | DATAGRAM) == OPENING
    }

    /// Whether it is of TCP segments that open nothing.
    #[inline(always)]
    pub const fn is_segment(self) -> bool {
        self.what != Self::NONE.what && self.what & (OPENING | DATAGRAM) == 0
    }

    /// What notes have of a segment's kind that prove nothing, where this is that of all.
    #[inline(always)]
    pub const fn unproven(self) -> Self {
        Self { source: self.source, what: self.what | UNPROVEN }
    }

    /// Where its line is among all, before it is cut to how many there are. The same in each epoch.
    #[inline(always)]
    pub const fn place(self, seed: u64) -> u64 {
        mix(seed, self.source, self.what & 0xffff_ffff)
    }
}

/// A hash of two words that nobody foresees who does not know the seed: two rounds of multiplying by an odd number, and folding.
/// The upper bits are as good as the lower.
#[inline(always)]
pub const fn mix(seed: u64, a: u64, b: u64) -> u64 {
    let first = (a ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = first ^ first >> 32;
    let second = (first ^ b ^ seed >> 17).wrapping_mul(0xd6e8_feb8_6659_fd93);
    second ^ second >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        source: Address::v4([192, 0, 2, 1]),
        ip_bytes: 40,
        to: To::Tcp { port: 443, opening: true, has_payload: false },
    };

    fn key(head: Head) -> Option<Key> {
        Key::of(&head, 7, u32::MAX, [u64::MAX, 0])
    }

    #[test]
    fn a_note_is_of_one_port_one_family_one_kind_and_one_epoch() {
        let kinds = [
            To::Tcp { port: 443, opening: true, has_payload: false },
            To::Tcp { port: 443, opening: false, has_payload: false },
            To::Udp { port: 443 },
            To::Udp { port: 444 },
        ];
        let v6 = Address::V6([u64::from(u32::from_ne_bytes([192, 0, 2, 1])), 0]);
        let mut keys: Vec<_> = kinds.map(|to| key(Head { to, ..HEAD }).unwrap()).into();
        keys.extend(kinds.map(|to| key(Head { to, source: v6, ..HEAD }).unwrap()));
        keys.push(Key::of(&HEAD, 8, u32::MAX, [u64::MAX, 0]).unwrap());
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?}");
            assert_ne!(*key, Key::NONE);
        }
    }

    #[test]
    fn what_proves_nothing_is_a_kind_of_its_own_and_opens_nothing() {
        let to = To::Tcp { port: 443, opening: false, has_payload: true };
        let segment = key(Head { to, ..HEAD }).unwrap();
        let others = [HEAD.to, To::Udp { port: 443 }, to].map(|to| key(Head { to, ..HEAD }).unwrap());
        assert!(segment.is_segment() && !segment.unproven().is_segment() && !segment.unproven().is_opening());
        assert!(!others.contains(&segment.unproven()));
    }

    #[test]
    fn payload_makes_no_other_note() {
        let to = To::Tcp { port: 443, opening: false, has_payload: true };
        let other = Head { to, ..HEAD };
        let to = To::Tcp { port: 443, opening: false, has_payload: false };
        assert_eq!(key(other), key(Head { to, ..HEAD }));
    }

    #[test]
    fn what_has_no_port_and_what_is_kept_by_longer_prefixes_is_not_noted() {
        for to in [To::Fragment, To::Unwalkable, To::Essential, To::Other] {
            assert_eq!(key(Head { to, ..HEAD }), None);
        }
        let v6 = Head { source: Address::V6([1, 2]), ..HEAD };
        assert_eq!(Key::of(&v6, 7, u32::MAX, [u64::MAX, 1]), None);
    }

    #[test]
    fn a_term_ends_at_most_a_millisecond_early_and_never_late() {
        let until = Nanos(1_767_261_600_123_456_789);
        let term = Term::new(until, Verdict { reason: Reason::OverLimit, rule: 200 });
        assert!(term.holds(Nanos(until.0 - 1_100_000)));
        assert!(!term.holds(until));
        assert_eq!(term.verdict(), Verdict { reason: Reason::OverLimit, rule: 200 });
        let ban = Verdict { reason: Reason::Banned, rule: 0 };
        assert_eq!(Term::of(Term::new(until, ban).word()).verdict(), ban);
    }

    #[test]
    fn neither_nothing_nor_what_is_being_written_holds() {
        assert!(!Term::of(0).holds(Nanos(0)));
        assert!(!Term::of(BUSY).holds(Nanos(0)));
    }

    #[test]
    fn neighbouring_sources_and_ports_are_spread_over_all_places() {
        let mut hit = vec![0_u32; 1024];
        for source in 0..16_384_u64 {
            hit[(mix(0x1234_5678_9abc_def0, source.swap_bytes(), 443) & 1023) as usize] += 1;
            hit[(mix(0x1234_5678_9abc_def0, source, 443) & 1023) as usize] += 1;
        }
        let most = *hit.iter().max().unwrap();
        assert!(most < 70 && hit.iter().all(|&of| of > 6), "{most}, {:?}", hit.iter().min());
    }
}
