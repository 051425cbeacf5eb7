//! Keyed hash that places sources and connections in tables: SipHash-1-3 (Aumasson and Bernstein, *SipHash: a fast
//! short-input PRF*, INDOCRYPT 2012). Rust's own hash maps use it, and Linux does on 64 bits (`hsiphash`).
//!
//! The tables need two properties against senders without the key. Chosen inputs must share a place no more often than
//! by chance. A pair that is seen to share a place must tell nothing about other pairs. A pseudorandom function has
//! both properties. SipHash is designed as one, and no published attack on SipHash-1-3 does better than chance. A
//! merely universal hash has only half of them: no pair collides under every key, but one learned collision gives
//! others, by adding the same number to both inputs.

/// Key of the hash: 128 random bits from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct HashKey(pub [u64; 2]);

const _: () = assert!(size_of::<HashKey>() == 16);

impl HashKey {
    /// Returns the hash of two words. The message is the shortest of three formats that holds them: 4 bytes of `a` and
    /// 3 of `b`, 8 and 7, or 8 and 8. So no two pairs have the same message. An IPv4 source with its port and kind
    /// takes 7 bytes, which need 4 rounds instead of 6.
    #[inline(always)]
    pub const fn hash(self, a: u64, b: u64) -> u64 {
        let Self([k0, k1]) = self;
        sip_1_3(k0, k1, a, b)
    }

    /// Returns a separate key for [`spread`], which reveals nothing about this one.
    #[inline(always)]
    pub const fn of_places(self) -> u64 {
        self.hash(0, PLACES)
    }

    /// Returns the hash like [`HashKey::hash`], but inlined, for lookups of nearly every packet. In the kernel, a call
    /// takes as long as the hash.
    #[inline(always)]
    pub const fn hash_here(self, a: u64, b: u64) -> u64 {
        State::sip::<1, 3>(self.0, a, b)
    }
}

/// Bit that marks the hash for the key of [`spread`]. No other hash has it.
const PLACES: u64 = 1 << 42;

/// Returns a place for a 32-bit word in a table whose entries hold the word itself. It costs two multiplications. It is
/// no pseudorandom function: a shared place costs a lookup, and decides nothing.
#[inline(always)]
pub const fn spread(key: u64, word: u32) -> u64 {
    let once = (word as u64 ^ key >> 32).wrapping_mul(key | 1);
    (once ^ once >> 32).wrapping_mul(key | 1) >> 32
}

/// Computes the hash. In the kernel, this is a function of its own, since its words would take half of the caller's
/// stack.
#[cfg_attr(target_arch = "bpf", inline(never))]
#[cfg_attr(not(target_arch = "bpf"), inline(always))]
const fn sip_1_3(k0: u64, k1: u64, a: u64, b: u64) -> u64 {
    State::sip::<1, 3>([k0, k1], a, b)
}

/// State of SipHash: four words.
#[derive(Clone, Copy)]
struct State([u64; 4]);

impl State {
    /// Returns the hash of the message for `a` and `b`.
    #[inline(always)]
    const fn sip<const COMPRESSIONS: usize, const FINALIZATIONS: usize>([k0, k1]: [u64; 2], a: u64, b: u64) -> u64 {
        let mut state = State([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]);
        // The upper byte of a message's last word is the message's length.
        let last = if a >> 32 | b >> 24 == 0 {
            7 << 56 | b << 32 | a
        } else {
            state = state.absorb::<COMPRESSIONS>(a);
            if b >> 56 == 0 {
                15 << 56 | b
            } else {
                state = state.absorb::<COMPRESSIONS>(b);
                16 << 56
            }
        };
        let State([v0, v1, v2, v3]) = state.absorb::<COMPRESSIONS>(last);
        let State([v0, v1, v2, v3]) = State([v0, v1, v2 ^ 0xff, v3]).rounds::<FINALIZATIONS>();
        v0 ^ v1 ^ v2 ^ v3
    }

    /// Returns the state after one word of the message.
    #[inline(always)]
    const fn absorb<const ROUNDS: usize>(self, word: u64) -> Self {
        let Self([v0, v1, v2, v3]) = self;
        let Self([v0, v1, v2, v3]) = Self([v0, v1, v2, v3 ^ word]).rounds::<ROUNDS>();
        Self([v0 ^ word, v1, v2, v3])
    }

    #[inline(always)]
    const fn rounds<const ROUNDS: usize>(self) -> Self {
        let mut state = self;
        let mut round = 0;
        while round < ROUNDS {
            state = state.round();
            round += 1;
        }
        state
    }

    #[inline(always)]
    const fn round(self) -> Self {
        let Self([mut v0, mut v1, mut v2, mut v3]) = self;
        v0 = v0.wrapping_add(v1);
        v2 = v2.wrapping_add(v3);
        v1 = v1.rotate_left(13) ^ v0;
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.rotate_left(32);
        v2 = v2.wrapping_add(v1);
        v0 = v0.wrapping_add(v3);
        v1 = v1.rotate_left(17) ^ v2;
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.rotate_left(32);
        Self([v0, v1, v2, v3])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{DefaultHasher, Hasher as _};

    use super::*;

    /// The key bytes 0 to 15, as in all reference vectors.
    const REFERENCE: HashKey = HashKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    /// Words of the message 0, 1, 2 and so on, for each length in bytes.
    const MESSAGES: [(usize, u64, u64); 3] = [
        (7, 0x0302_0100, 0x06_0504),
        (15, 0x0706_0504_0302_0100, 0x0e_0d0c_0b0a_0908),
        (16, 0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908),
    ];

    /// Xorshift generator for keys and words.
    struct Words(u64);

    impl Words {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn key(&mut self) -> HashKey {
            HashKey([self.next(), self.next()])
        }
    }

    #[test]
    fn the_hash_is_siphash_with_one_and_three_rounds() {
        // Vectors of the SipHash-1-3 tests in Rust's core library.
        let known = [0xd392_7d98_9bb1_1140, 0xd320_d86d_2a51_9956, 0xcc4f_dd1a_7d90_8b66];
        for ((bytes, a, b), known) in MESSAGES.into_iter().zip(known) {
            assert_eq!(REFERENCE.hash(a, b), known, "{bytes} bytes");
        }
    }

    #[test]
    fn with_the_rounds_of_the_paper_it_has_the_paper_s_values() {
        // File vectors.h of the reference implementation of SipHash-2-4. The value for 15 bytes is also in the paper,
        // appendix A.
        let known = [0xab02_00f5_8b01_d137, 0xa129_ca61_49be_45e5, 0x3f2a_cc7f_57c2_9bdb];
        for ((bytes, a, b), known) in MESSAGES.into_iter().zip(known) {
            assert_eq!(State::sip::<2, 4>(REFERENCE.0, a, b), known, "{bytes} bytes");
        }
    }

    #[test]
    fn the_hash_equals_the_standard_librarys_under_its_key() {
        let mut words = Words(1);
        for round in 0..3000 {
            let (a, b) = (words.next(), words.next());
            let (a, b, bytes) = [(a >> 32, b >> 40, 7), (a | 1 << 63, b >> 8, 15), (a, b | 1 << 63, 16)][round % 3];
            let message = match bytes {
                7 => (b << 32 | a).to_le_bytes()[..7].to_vec(),
                _ => [a.to_le_bytes(), b.to_le_bytes()].concat()[..bytes].to_vec(),
            };
            let mut hasher = DefaultHasher::new();
            hasher.write(&message);
            assert_eq!(HashKey([0, 0]).hash(a, b), hasher.finish(), "{a:x} {b:x}");
        }
    }

    #[test]
    fn no_two_pairs_are_the_same_message() {
        let edges = [
            0,
            1,
            0xff_ffff,
            1 << 24,
            u64::from(u32::MAX),
            1 << 32,
            (1 << 56) - 1,
            1 << 56,
            7 << 56,
            15 << 56,
            16 << 56,
            u64::MAX,
        ];
        let hashes: HashSet<_> = edges.iter().flat_map(|&a| edges.map(|b| REFERENCE.hash(a, b))).collect();
        assert_eq!(hashes.len(), edges.len() * edges.len());
    }

    #[test]
    fn no_difference_of_two_inputs_leads_to_one_hash_under_every_key_or_under_many() {
        const KEYS: usize = 2000;
        /// Mask of the bits that choose the place in a table of 2^16.
        const PLACES: u64 = 0xffff;
        let one_bit = (0..64).flat_map(|bit| [(1 << bit, 0), (0, 1 << bit)]);
        // With the hash that was used before, the first difference gave one hash for any two inputs, under any key.
        let differences: Vec<(u64, u64)> = [(1 << 63, 1 << 63 | 1 << 31), (1 << 31, 1 << 31), (u64::MAX, u64::MAX)]
            .into_iter()
            .chain(one_bit)
            .collect();
        let mut words = Words(2);
        for (a_by, b_by) in differences {
            let mut shared = 0;
            for _ in 0..KEYS {
                let (key, a, b) = (words.key(), words.next(), words.next());
                let [one, other] = [key.hash(a, b), key.hash(a ^ a_by, b ^ b_by)];
                assert_ne!(one, other, "{a_by:x} {b_by:x} under {key:x?}");
                shared += usize::from((one ^ other) & PLACES == 0);
            }
            assert!(shared <= 2, "{a_by:x} {b_by:x}: {shared} of {KEYS}");
        }
    }

    #[test]
    fn a_pair_that_shares_a_place_tells_of_no_other_that_does() {
        const PLACES: u64 = 0x3ff;
        let (mut words, mut shared, mut asked) = (Words(3), 0, 0_u64);
        while asked < 20_000 {
            let (key, a, other, b) = (words.key(), words.next(), words.next(), words.next() >> 40);
            // Differences that a linear hash would reveal: the same one elsewhere, by addition and by flipped bits.
            let Some(other) =
                (0..5000).map(|by| other.wrapping_add(by)).find(|&of| (key.hash(of, b) ^ key.hash(a, b)) & PLACES == 0)
            else {
                continue;
            };
            for by in 1..=10 {
                let moved = [
                    (a.wrapping_add(by), other.wrapping_add(by), b),
                    (a ^ by << 32, other ^ by << 32, b),
                    (a, other, b ^ by),
                ];
                shared += moved
                    .iter()
                    .filter(|(a, other, b)| (key.hash(*a, *b) ^ key.hash(*other, *b)) & PLACES == 0)
                    .count();
                asked += 3;
            }
        }
        assert!((5..40).contains(&shared), "{shared} of {asked}, by chance 20");
    }

    #[test]
    fn each_bit_of_the_input_turns_each_bit_of_the_hash_half_of_the_time() {
        const KEYS: u32 = 400;
        let mut words = Words(4);
        for bit in 0..51 {
            let mut turned = [0_u32; 64];
            for _ in 0..KEYS {
                let (key, a, b) = (words.key(), words.next() >> 32, words.next() >> 45);
                let (a_by, b_by) = if bit < 32 { (1 << bit, 0) } else { (0, 1 << (bit - 32)) };
                let by = key.hash(a, b) ^ key.hash(a ^ a_by, b ^ b_by);
                turned.iter_mut().enumerate().for_each(|(at, turned)| *turned += u32::from(by >> at & 1 == 1));
            }
            // Six standard deviations of 10 each.
            assert!(turned.iter().all(|of| of.abs_diff(KEYS / 2) < 60), "bit {bit}: {turned:?}");
        }
    }

    #[test]
    fn neighbouring_sources_and_ports_are_spread_over_all_places() {
        let mut hit = vec![0_u32; 1024];
        for source in 0..16_384_u64 {
            hit[(REFERENCE.hash(source.swap_bytes(), 443) & 1023) as usize] += 1;
            hit[(REFERENCE.hash(source, 443) & 1023) as usize] += 1;
        }
        let most = *hit.iter().max().unwrap();
        assert!(most < 70 && hit.iter().all(|&of| of > 6), "{most}, {:?}", hit.iter().min());
        let mut hit = vec![0_u32; 1024];
        (0..32_768).for_each(|port| hit[(REFERENCE.hash(0xc000_0201, port) >> 54) as usize] += 1);
        let most = *hit.iter().max().unwrap();
        assert!(most < 70 && hit.iter().all(|&of| of > 6), "{most}, {:?}", hit.iter().min());
    }
}
