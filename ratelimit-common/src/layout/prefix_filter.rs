//! Filter that rules out the prefix tries for most sources, by one or two bits of an array that fits the L1 cache. It
//! never rules out a source that a prefix holds.

use crate::source::Address;

/// Bits of an address that choose a bit of the filter.
const INDEX_BITS: u32 = 16;
const WORDS: usize = (1 << INDEX_BITS) / u64::BITS as usize;

/// Length of the IPv4 prefixes that share a bit.
const GRANULE_V4: u8 = 16;
/// Length of the IPv6 prefixes that have a bit each. Longer prefixes share a hash of their first [`GRANULE_V6`] bits.
const COARSE_V6: u8 = 16;
const GRANULE_V6: u8 = 32;

/// Multiplier for the hash: odd and without a pattern, 2^32 divided by the golden ratio.
const SPREAD: u32 = 0x9e37_79b1;

/// Filter over the prefixes of one generation of [`super::map::PREFIXES_V4`] and [`super::map::PREFIXES_V6`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PrefixFilter {
    /// One bit for each /16 of IPv4 that contains a prefix or lies in one.
    v4: [u64; WORDS],
    /// One bit for each /16 of IPv6 that contains a prefix shorter than /32 or lies in one.
    v6_short: [u64; WORDS],
    /// One bit for each hash of a /32 of IPv6 that contains a prefix.
    v6_long: [u64; WORDS],
}

const _: () = assert!(size_of::<PrefixFilter>() == 3 * 8192);

impl PrefixFilter {
    /// Filter without a prefix.
    pub const EMPTY: Self = Self { v4: [0; WORDS], v6_short: [0; WORDS], v6_long: [0; WORDS] };

    /// Returns whether a prefix may hold this source.
    #[inline(always)]
    #[must_use]
    pub const fn may_hold(&self, source: Address) -> bool {
        match source {
            Address::V4(address) => has(&self.v4, index(address)),
            Address::V6([high, _]) => {
                let first = first_word(high);
                has(&self.v6_short, index(first)) || has(&self.v6_long, spread(first))
            }
        }
    }

    /// Adds the prefix of this address and length.
    pub const fn add(&mut self, network: Address, length: u8) {
        match network {
            Address::V4(address) => add_range(&mut self.v4, address, length),
            Address::V6([high, _]) if length < GRANULE_V6 => {
                add_range(&mut self.v6_short, first_word(high), length);
            }
            Address::V6([high, _]) => add(&mut self.v6_long, spread(first_word(high))),
        }
    }

    /// Adds all prefixes of another filter.
    pub fn add_all(&mut self, other: &Self) {
        for (own, others) in
            [(&mut self.v4, &other.v4), (&mut self.v6_short, &other.v6_short), (&mut self.v6_long, &other.v6_long)]
        {
            for (word, other) in own.iter_mut().zip(others) {
                *word |= other;
            }
        }
    }
}

/// Returns whether all addresses of a client share the bits of the filter. A result for one address then holds for all.
#[inline(always)]
#[must_use]
pub const fn shares_bits(ipv4_mask: u32, ipv6_mask: [u64; 2], source: Address) -> bool {
    match source {
        Address::V4(_) => index(ipv4_mask) == u16::MAX as u32,
        Address::V6(_) => first_word(ipv6_mask[0]) == u32::MAX,
    }
}

/// Returns the first 16 bits of a word in network order, with their octets swapped.
#[inline(always)]
const fn index(word: u32) -> u32 {
    word & ((1 << INDEX_BITS) - 1)
}

/// Returns the first 32 bits of an address, in network order.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the first bytes, on a little-endian machine")]
const fn first_word(high: u64) -> u32 {
    high as u32
}

#[inline(always)]
const fn spread(word: u32) -> u32 {
    word.wrapping_mul(SPREAD) >> (u32::BITS - INDEX_BITS)
}

#[inline(always)]
const fn has(bits: &[u64; WORDS], index: u32) -> bool {
    bits[(index / u64::BITS) as usize & (WORDS - 1)] >> (index % u64::BITS) & 1 != 0
}

const fn add(bits: &mut [u64; WORDS], index: u32) {
    bits[(index / u64::BITS) as usize & (WORDS - 1)] |= 1 << (index % u64::BITS);
}

/// Adds each /16 that contains the prefix or lies in it.
#[expect(clippy::cast_possible_truncation, reason = "16 bits, by `index` and by the loop's bound")]
const fn add_range(bits: &mut [u64; WORDS], address: u32, length: u8) {
    let first = (index(address) as u16).to_be();
    let free = INDEX_BITS - if length < COARSE_V6 { length as u32 } else { COARSE_V6 as u32 };
    let first = first as u32 >> free << free;
    let mut at = first;
    while at < first + (1 << free) {
        add(bits, (at as u16).to_be() as u32);
        at += 1;
    }
}

const _: () = assert!(GRANULE_V4 == COARSE_V6 && GRANULE_V4 as u32 == INDEX_BITS);

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the lower bits are an address of IPv4")]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::source::{ipv4_mask, ipv6_mask};

    fn v4(address: u32) -> Address {
        Address::v4(address.to_be_bytes())
    }

    fn v6(address: u128) -> Address {
        Address::v6(address.to_be_bytes())
    }

    const fn cut(address: u128, bits: u32, length: u8) -> u128 {
        let free = bits - length as u32;
        if free == 128 { 0 } else { address >> free << free }
    }

    proptest! {
        #[test]
        fn a_filter_holds_every_address_of_its_prefixes(
            prefixes in vec((any::<u128>(), 0..=32_u8, 0..=128_u8), 1..20),
            hosts in vec(any::<u128>(), 1..20),
        ) {
            let mut filter = PrefixFilter::EMPTY;
            for &(address, v4_length, v6_length) in &prefixes {
                filter.add(v4(cut(address & u128::from(u32::MAX), 32, v4_length) as u32), v4_length);
                filter.add(v6(cut(address, 128, v6_length)), v6_length);
            }
            for &(address, v4_length, v6_length) in &prefixes {
                for &host in hosts.iter().chain(&[0, u128::MAX]) {
                    let within = u128::MAX.checked_shr(v6_length.into()).unwrap_or(0);
                    let inside = cut(address, 128, v6_length) | host & within;
                    prop_assert!(filter.may_hold(v6(inside)), "{inside:x} of {address:x}/{v6_length}");
                    let within = u32::MAX.checked_shr(v4_length.into()).unwrap_or(0);
                    let inside = cut(address & u128::from(u32::MAX), 32, v4_length) as u32 | host as u32 & within;
                    prop_assert!(filter.may_hold(v4(inside)), "{inside:x} of {address:x}/{v4_length}");
                }
            }
        }

        #[test]
        fn a_filter_tells_the_same_of_all_addresses_of_a_client_that_shares_bits(
            address: u128, host: u128, v4_length in 0..=32_u8, v6_length in 0..=128_u8,
            client_v4 in 16..=32_u8, client_v6 in 32..=128_u8,
        ) {
            let mut filter = PrefixFilter::EMPTY;
            filter.add(v4(cut(address & u128::from(u32::MAX), 32, v4_length) as u32), v4_length);
            filter.add(v6(cut(address, 128, v6_length)), v6_length);
            let one = v6(cut(host, 128, client_v6));
            prop_assert_eq!(filter.may_hold(one), filter.may_hold(v6(host)));
            let one = v4(cut(host & u128::from(u32::MAX), 32, client_v4) as u32);
            prop_assert_eq!(filter.may_hold(one), filter.may_hold(v4(host as u32)));
        }
    }

    #[test]
    fn a_few_prefixes_leave_most_of_the_filter_empty() {
        let mut filter = PrefixFilter::EMPTY;
        for (address, length) in [([192, 0, 2, 53], 32), ([10, 0, 0, 1], 32), ([100, 64, 0, 0], 10)] {
            filter.add(Address::v4(address), length);
        }
        let others = (0..=u16::MAX).filter(|&first| {
            let [a, b] = first.to_be_bytes();
            filter.may_hold(Address::v4([a, b, 7, 7]))
        });
        assert_eq!(others.count(), 2 + 64);
        for (address, length) in [(0xfe80 << 112, 10), (0x2001_0db8 << 96, 128), (0x2a00_1450 << 96, 32)] {
            filter.add(v6(address), length);
        }
        let others = (0..1 << 20).filter(|&first| filter.may_hold(v6(first << 100 | 0x2 << 124)));
        assert!(others.count() < 1 << 10);
    }

    #[test]
    fn a_client_shares_bits_where_it_is_no_wider_than_they_are() {
        for (length, expected) in [(0, false), (15, false), (16, true), (32, true)] {
            assert_eq!(shares_bits(ipv4_mask(length), [0; 2], v4(1)), expected, "{length}");
        }
        for (length, expected) in [(0, false), (31, false), (32, true), (64, true), (128, true)] {
            assert_eq!(shares_bits(0, ipv6_mask(length), v6(1)), expected, "{length}");
        }
    }
}
