//! Prefixes and interface names. Pure: the datapath finds out whether an interface exists.

use std::net::IpAddr;

use ipnet::IpNet;

use super::amount;
use super::syntax::{Scanner, SyntaxError, turns_text};

/// Maximum length of an interface's name in bytes: the kernel's `IFNAMSIZ` without the terminator.
pub const INTERFACE_NAME_LEN_MAX: usize = 15;

pub(super) const CIDR_HELP: &str = "write an address, or a network with its length as in 192.0.2.0/24 or 2001:db8::/32";

/// Length of the prefix before the IPv4 address in an IPv4-mapped one, `::ffff:192.0.2.1` (RFC 4291, 2.5.5.2).
const MAPPED_PREFIX_LEN: u8 = 96;

/// Parses a prefix. A plain address is a prefix of full length. Bits beyond the length must be 0. An IPv4-mapped
/// prefix becomes its IPv4 prefix, because Linux accepts no packet from a mapped address (`ip6_rcv_core`, since 5.4).
pub fn parse_cidr(text: &str) -> Result<IpNet, SyntaxError> {
    let whole = parse_uncut(text)?;
    let network = whole.trunc();
    if network != whole {
        let address = whole.addr();
        let problem = format!("{address} has bits set beyond /{}", whole.prefix_len());
        return Err(SyntaxError::new(0..text.len(), problem)
            .with_help(format!("did you mean {network}, or the one address {address}?")));
    }
    Ok(unmapped(network))
}

/// Address or prefix that a command allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address without a length. An IPv6 address stands for its source, because its host usually has the whole
    /// prefix.
    Address(IpAddr),
    /// An address with a length.
    Prefix {
        /// The prefix, without bits beyond its length.
        network: IpNet,
        /// The prefix as it was written.
        written: IpNet,
    },
}

impl Target {
    /// Parses an address or a prefix. Bits beyond the prefix's length are cut off.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let written = parse_uncut(text)?;
        if !text.contains('/') {
            return Ok(Self::Address(written.addr()));
        }
        Ok(Self::Prefix { network: unmapped(written.trunc()), written })
    }

    /// Returns the prefix that is meant. `ipv6_prefix` is the prefix length of one IPv6 source.
    pub fn prefix(self, ipv6_prefix: u8) -> IpNet {
        match self {
            Self::Address(address @ IpAddr::V6(_)) => {
                IpNet::new(address, ipv6_prefix).map_or(IpNet::from(address), |source| source.trunc())
            }
            Self::Address(address @ IpAddr::V4(_)) => IpNet::from(address),
            Self::Prefix { network, .. } => network,
        }
    }

    /// Returns the address, or the first address of a prefix.
    pub fn address(self) -> IpAddr {
        match self {
            Self::Address(address) => address,
            Self::Prefix { network, .. } => network.addr(),
        }
    }

    /// Returns a remark if the meaning differs from the written text.
    pub fn note(self, ipv6_prefix: u8) -> Option<String> {
        let meant = self.prefix(ipv6_prefix);
        match self {
            Self::Address(address) if meant.prefix_len() < meant.max_prefix_len() => {
                Some(format!("{address} means its source, {meant}; {address}/128 means the one address"))
            }
            Self::Prefix { network, written } if written.trunc() != written => {
                Some(format!("{written} has bits set beyond /{}: cut to {network}", written.prefix_len()))
            }
            Self::Address(_) | Self::Prefix { .. } => None,
        }
    }
}

/// Parses an entry of `allow` or `deny`, as [`parse_cidr`] does. A plain IPv6 address stands for its source.
pub fn parse_source(text: &str, ipv6_prefix: u8) -> Result<IpNet, SyntaxError> {
    let network = parse_cidr(text)?;
    Ok(if text.contains('/') { network } else { Target::Address(network.addr()).prefix(ipv6_prefix) })
}

/// Parses a prefix like [`parse_cidr`], but cuts off the bits beyond its length.
pub fn parse_cidr_of_any_bits(text: &str) -> Result<IpNet, SyntaxError> {
    Ok(unmapped(parse_uncut(text)?.trunc()))
}

fn parse_uncut(text: &str) -> Result<IpNet, SyntaxError> {
    let (address_text, length_text) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let span = 0..address_text.len();
    let address: IpAddr = address_text.parse().map_err(|_| {
        let problem = if address_text.is_empty() {
            "the address is missing".to_owned()
        } else {
            format!("`{address_text}` is not an IP address")
        };
        let has_port =
            address_text.rsplit_once(':').is_some_and(|(host, _)| host.parse::<std::net::Ipv4Addr>().is_ok());
        let help = if has_port { "leave the port out: a source is an address" } else { CIDR_HELP };
        SyntaxError::new(span, problem).with_help(help)
    })?;
    let Some(length_text) = length_text else {
        return Ok(IpNet::from(address.to_canonical()));
    };
    let length_span = address_text.len() + 1..text.len();
    let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = parse_number(length_text, 0, u64::from(longest))
        .ok()
        .and_then(|length| u8::try_from(length).ok())
        .ok_or_else(|| {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let problem = if length_text.is_empty() {
                "the prefix length is missing".to_owned()
            } else {
                format!("`{length_text}` is not the length of an {family} prefix")
            };
            SyntaxError::new(length_span, problem).with_help(format!("lengths are 0 to {longest}"))
        })?;
    IpNet::new(address, length).map_err(|_| SyntaxError::new(0..text.len(), "it is not a prefix").with_help(CIDR_HELP))
}

fn unmapped(network: IpNet) -> IpNet {
    let length = network.prefix_len().checked_sub(MAPPED_PREFIX_LEN);
    match (length, network.addr().to_canonical()) {
        (Some(length), address @ IpAddr::V4(_)) if network.addr().is_ipv6() => {
            IpNet::new(address, length).unwrap_or(network)
        }
        _ => network,
    }
}

/// Checks that `text` can be the name of an interface.
pub fn check_interface(text: &str) -> Result<(), SyntaxError> {
    const HELP: &str = "`ip -brief link` lists the interfaces";
    if text.is_empty() {
        return Err(SyntaxError::new(0..0, "the name is empty").with_help(HELP));
    }
    if text.len() > INTERFACE_NAME_LEN_MAX {
        let cut = (0..=INTERFACE_NAME_LEN_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let problem = format!("names of interfaces have at most {INTERFACE_NAME_LEN_MAX} bytes");
        return Err(SyntaxError::new(cut..text.len(), problem).with_help(HELP));
    }
    // These are the kernel's rules: dev_valid_name in net/core/dev.c. A comma is probably meant as a separator.
    let refused = |c: char| c == '/' || c == ':' || c == ',' || c.is_whitespace() || c.is_control() || turns_text(c);
    if let Some((at, c)) = text.char_indices().find(|(_, c)| refused(*c)) {
        let help = if c == ',' { "give --iface once for each interface" } else { HELP };
        let problem = format!("an interface's name cannot hold {c:?}");
        return Err(SyntaxError::new(at..at + c.len_utf8(), problem).with_help(help));
    }
    if text == "." || text == ".." {
        return Err(SyntaxError::new(0..text.len(), "that is a directory, not an interface").with_help(HELP));
    }
    Ok(())
}

/// Parses a whole number from `least` to `most`.
pub fn parse_number(text: &str, least: u64, most: u64) -> Result<u64, SyntaxError> {
    let help = || format!("a whole number from {least} to {most} belongs here");
    let mut scanner = Scanner::new(text);
    let number = amount::number(&mut scanner).map_err(|error| error.with_help(help()))?;
    if let Some(c) = scanner.rest().chars().next() {
        return Err(SyntaxError::new(scanner.next_span(), format!("`{c}` is not a digit")).with_help(help()));
    }
    let wrong = |problem| Err(SyntaxError::new(0..text.len(), problem).with_help(help()));
    match number {
        _ if number < least => wrong("the number is too small"),
        _ if number > most => wrong("the number is too large"),
        _ => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_read_as_written() {
        for (text, printed) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.1/32", "192.0.2.1/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(parse_cidr(text).expect(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn a_mapped_ipv4_prefix_is_the_ipv4_prefix_that_it_means() {
        for (text, printed) in [
            ("::ffff:192.0.2.1", "192.0.2.1/32"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:c000:201/128", "192.0.2.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::fffe:0:0/95", "::fffe:0:0/95"),
            ("::/0", "::/0"),
            ("::192.0.2.1", "::c000:201/128"),
        ] {
            assert_eq!(parse_cidr(text).expect(text).to_string(), printed, "{text}");
        }
        let help = parse_cidr("::ffff:192.0.2.1/120").expect_err("bits beyond").help.unwrap_or_default();
        assert!(help.contains("did you mean ::ffff:192.0.2.0/120"), "{help}");
    }

    #[test]
    fn a_wrong_prefix_is_shown_the_right_one() {
        for (text, span, problem, help) in [
            ("", 0..0, "the address is missing", "write an address"),
            ("192.0.2.1/24", 0..12, "192.0.2.1 has bits set beyond /24", "did you mean 192.0.2.0/24"),
            ("2001:db8::1/64", 0..14, "2001:db8::1 has bits set beyond /64", "did you mean 2001:db8::/64"),
            ("192.0.2.0/33", 10..12, "`33` is not the length of an IPv4 prefix", "0 to 32"),
            ("2001:db8::/129", 11..14, "`129` is not the length of an IPv6 prefix", "0 to 128"),
            ("192.0.2.0/", 10..10, "the prefix length is missing", "0 to 32"),
            ("192.0.2.0/+8", 10..12, "`+8` is not the length of an IPv4 prefix", "0 to 32"),
            ("192.0.2/24", 0..7, "`192.0.2` is not an IP address", "write an address"),
            ("192.0.2.1:80", 0..12, "`192.0.2.1:80` is not an IP address", "leave the port out"),
            ("example.org", 0..11, "`example.org` is not an IP address", "write an address"),
        ] {
            let error = parse_cidr(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
            assert!(error.help.unwrap_or_default().contains(help), "{text}");
        }
    }

    #[test]
    fn an_ipv6_address_alone_means_its_source_and_a_length_means_what_it_says() {
        for (text, of_64, of_128, note) in [
            ("2001:db8::7", "2001:db8::/64", "2001:db8::7/128", "2001:db8::7/128 means the one address"),
            ("2001:db8::7/128", "2001:db8::7/128", "2001:db8::7/128", ""),
            ("2001:db8::/64", "2001:db8::/64", "2001:db8::/64", ""),
            ("2001:db8::7/48", "2001:db8::/48", "2001:db8::/48", "bits set beyond /48: cut to 2001:db8::/48"),
            ("192.0.2.7", "192.0.2.7/32", "192.0.2.7/32", ""),
            (
                "192.0.2.7/24",
                "192.0.2.0/24",
                "192.0.2.0/24",
                "192.0.2.7/24 has bits set beyond /24: cut to 192.0.2.0/24",
            ),
            ("192.0.2.7/0", "0.0.0.0/0", "0.0.0.0/0", "cut to 0.0.0.0/0"),
            ("::ffff:192.0.2.7", "192.0.2.7/32", "192.0.2.7/32", ""),
            ("::ffff:192.0.2.7/120", "192.0.2.0/24", "192.0.2.0/24", "cut to 192.0.2.0/24"),
        ] {
            let target = Target::parse(text).expect(text);
            assert_eq!([64, 128].map(|length| target.prefix(length).to_string()), [of_64, of_128], "{text}");
            let said = target.note(64).unwrap_or_default();
            assert!(said.contains(note) && said.is_empty() == note.is_empty(), "{text}: {said}");
        }
        for (text, source) in
            [("2001:db8::7", "2001:db8::/64"), ("2001:db8::7/128", "2001:db8::7/128"), ("192.0.2.7", "192.0.2.7/32")]
        {
            assert_eq!(parse_source(text, 64).expect(text).to_string(), source, "{text}");
        }
        assert!(parse_source("192.0.2.7/24", 64).is_err() && Target::parse("192.0.2.7/33").is_err());
    }

    #[test]
    fn fifteen_bytes_are_the_longest_name() {
        assert_eq!(check_interface("abcdefghijklmno"), Ok(()));
        assert_eq!(check_interface("abcdefghijklmnop").expect_err("16").span, 15..16);
        for name in ["eth0", "eth0.100", "wg-home", "br_lan", "enp0s31f6", "veth@x"] {
            assert_eq!(check_interface(name), Ok(()), "{name}");
        }
        for (name, span) in
            [("", 0..0), ("a/b", 1..2), ("a b", 1..2), ("eth0,eth1", 4..5), ("eth0:1", 4..5), ("..", 0..2)]
        {
            assert_eq!(check_interface(name).expect_err(name).span, span, "{name}");
        }
    }

    #[test]
    fn numbers_have_both_their_ends() {
        assert_eq!(parse_number("256", 256, 300), Ok(256));
        assert_eq!(parse_number("300", 256, 300), Ok(300));
        for text in ["255", "301", "", "-1", "1e9", "99999999999999999999999"] {
            assert!(parse_number(text, 256, 300).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[0-9a-f.:/]{0,24}") {
            let errors = [parse_cidr(&text).err(), check_interface(&text).err(), parse_number(&text, 0, 9).err()];
            for error in errors.into_iter().flatten() {
                prop_assert!(text.get(error.span).is_some());
            }
        }
    }
}
