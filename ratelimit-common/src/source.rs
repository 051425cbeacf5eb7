//! Sources: addresses cut to the configured prefix. Bytes stay in network order throughout.

/// Source address as in the packet: words whose bytes in memory are in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 address as one word.
    V4(u32),
    /// IPv6 address as two words, the first one from the upper half.
    V6([u64; 2]),
}

impl Address {
    /// Returns the IPv4 address of these octets.
    #[inline(always)]
    pub const fn v4(octets: [u8; 4]) -> Self {
        Self::V4(u32::from_ne_bytes(octets))
    }

    /// Returns the IPv6 address of these octets.
    #[inline(always)]
    pub const fn v6(octets: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = octets;
        Self::V6([u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, m, n, o, p])])
    }
}

/// State map of a source: the one with the smallest key that the prefix fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4, with 4 bytes of prefix.
    V4 = 0,
    /// IPv6 by /64 or shorter, with 8 bytes of prefix.
    V6 = 1,
    /// IPv6 by longer prefixes, with 16 bytes of prefix.
    V6Wide = 2,
}

/// Length of the longest IPv6 prefix that fits [`Family::V6`].
pub const IPV6_NARROW_PREFIX_MAX: u8 = 64;

impl Family {
    /// Returns the family that counts IPv6 sources of this prefix length.
    pub const fn of_ipv6_prefix(prefix: u8) -> Self {
        if prefix <= IPV6_NARROW_PREFIX_MAX { Self::V6 } else { Self::V6Wide }
    }
}

/// Returns the mask of an IPv4 prefix as a word in network byte order. Lengths over 32 count as 32.
pub const fn ipv4_mask(prefix: u8) -> u32 {
    let ones = if prefix == 0 { 0 } else { u32::MAX << (32 - if prefix > 32 { 32 } else { prefix }) };
    ones.to_be()
}

/// Returns the mask of an IPv6 prefix as two words in network byte order. Lengths over 128 count as 128.
pub const fn ipv6_mask(prefix: u8) -> [u64; 2] {
    let prefix = if prefix > 128 { 128 } else { prefix };
    let ones = if prefix == 0 { 0 } else { u128::MAX << (128 - prefix) };
    #[expect(clippy::cast_possible_truncation, reason = "the halves of the word, one at a time")]
    let halves = [((ones >> 64) as u64).to_be(), (ones as u64).to_be()];
    halves
}

/// Returns an IPv4 address cut to `mask` (see [`ipv4_mask`]).
#[inline(always)]
pub const fn cut_ipv4(address: u32, mask: u32) -> u32 {
    address & mask
}

/// Returns an IPv6 address cut to `mask` (see [`ipv6_mask`]).
#[inline(always)]
pub const fn cut_ipv6(address: [u64; 2], mask: [u64; 2]) -> [u64; 2] {
    [address[0] & mask[0], address[1] & mask[1]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_prefix_keeps_its_leading_bits() {
        for (prefix, expected) in [
            (0, [0, 0, 0, 0]),
            (8, [203, 0, 0, 0]),
            (20, [203, 0, 112, 0]),
            (24, [203, 0, 113, 0]),
            (32, [203, 0, 113, 255]),
        ] {
            let address = u32::from_ne_bytes([203, 0, 113, 255]);
            assert_eq!(cut_ipv4(address, ipv4_mask(prefix)).to_ne_bytes(), expected, "/{prefix}");
        }
    }

    #[test]
    fn an_ipv6_prefix_keeps_its_leading_bits() {
        let Address::V6(address) = Address::v6([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2, 0xff, 0xff, 0, 0, 0, 0, 0, 1]) else {
            panic!("an IPv6 address")
        };
        let cut = |prefix| cut_ipv6(address, ipv6_mask(prefix)).map(u64::to_ne_bytes);
        let high = [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2];
        assert_eq!(cut(64), [high, [0; 8]]);
        assert_eq!(cut(128), [high, [0xff, 0xff, 0, 0, 0, 0, 0, 1]]);
        assert_eq!(cut(72), [high, [0xff, 0, 0, 0, 0, 0, 0, 0]]);
        assert_eq!(cut(0), [[0; 8], [0; 8]]);
        assert_eq!(cut(32), [[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0], [0; 8]]);
    }

    #[test]
    fn sixty_four_bits_are_the_last_that_fit_the_small_key() {
        assert_eq!(Family::of_ipv6_prefix(64), Family::V6);
        assert_eq!(Family::of_ipv6_prefix(65), Family::V6Wide);
    }
}
