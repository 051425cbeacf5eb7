//! Prefixes as database keys: bytes in the order of the addresses, so that a range holds all parts of a prefix. Pure.

use std::net::IpAddr;

use ipnet::IpNet;

/// Returns the key of a prefix: family, address, length.
pub(crate) fn key(prefix: IpNet) -> Vec<u8> {
    bytes(prefix.network(), prefix.prefix_len())
}

/// Returns the first and last key of all prefixes within a prefix, itself included.
pub(crate) fn within(prefix: IpNet) -> (Vec<u8>, Vec<u8>) {
    (key(prefix), bytes(prefix.broadcast(), prefix.max_prefix_len()))
}

/// Returns the keys of all prefixes around a prefix, without itself: at most 128.
pub(crate) fn around(prefix: IpNet) -> Vec<Vec<u8>> {
    std::iter::successors(prefix.supernet(), IpNet::supernet).map(|of| key(of.trunc())).collect()
}

/// Returns the prefix of a key. None if the key is invalid.
pub(crate) fn of_key(key: &[u8]) -> Option<IpNet> {
    let (family, rest) = key.split_first()?;
    let (length, address) = rest.split_last()?;
    let address = match family {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        6 => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        _ => return None,
    };
    IpNet::new(address, *length).ok()
}

/// Formats a prefix as in reports: a single address without its length.
pub(crate) fn text(prefix: IpNet) -> String {
    if prefix.prefix_len() == prefix.max_prefix_len() { prefix.addr().to_string() } else { prefix.to_string() }
}

fn bytes(address: IpAddr, length: u8) -> Vec<u8> {
    let mut key = match address {
        IpAddr::V4(of) => [&[4], of.octets().as_slice()].concat(),
        IpAddr::V6(of) => [&[6], of.octets().as_slice()].concat(),
    };
    key.push(length);
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_prefix() -> impl Strategy<Value = IpNet> {
        let of = |address: IpAddr, length| IpNet::new(address, length).unwrap().trunc();
        prop_oneof![
            (0..8_u32, 0..=32_u8)
                .prop_map(move |(low, length)| of(IpAddr::from((low << 28 | low).to_be_bytes()), length)),
            (0..8_u128, 0..=128_u8)
                .prop_map(move |(low, length)| of(IpAddr::from((low << 124 | low).to_be_bytes()), length)),
        ]
    }

    proptest! {
        #[test]
        fn the_range_has_what_lies_within_and_nothing_else(outer in any_prefix(), inner in any_prefix()) {
            let (first, last) = within(outer);
            prop_assert_eq!((first..=last).contains(&key(inner)), outer.contains(&inner));
            prop_assert_eq!(around(inner).contains(&key(outer)), outer != inner && outer.contains(&inner));
            prop_assert_eq!(of_key(&key(inner)), Some(inner));
        }
    }
}
