//! Masking of addresses before they are stored, also within texts. Pure.

use std::net::IpAddr;

use ipnet::IpNet;

/// Maximum prefix lengths of stored addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    ipv4: u8,
    ipv6: u8,
}

impl Default for Mask {
    /// Returns the mask that keeps whole addresses.
    fn default() -> Self {
        Self::new(32, 128)
    }
}

impl Mask {
    /// Returns a mask with these prefix lengths. Lengths above an address's keep the whole address.
    pub const fn new(ipv4: u8, ipv6: u8) -> Self {
        Self { ipv4: if ipv4 < 32 { ipv4 } else { 32 }, ipv6: if ipv6 < 128 { ipv6 } else { 128 } }
    }

    /// Returns the prefix itself, or the longest prefix around it that may be stored.
    pub fn prefix(self, prefix: IpNet) -> IpNet {
        let length = match prefix {
            IpNet::V4(of) => of.prefix_len().min(self.ipv4),
            IpNet::V6(of) => of.prefix_len().min(self.ipv6),
        };
        IpNet::new(prefix.addr(), length).unwrap_or(prefix).trunc()
    }

    /// Returns a text with each address and prefix masked.
    pub fn text(self, text: &str) -> String {
        if self == Self::default() {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let length = rest.find(|c: char| !is_of_address(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(length);
            // An address may end a sentence.
            let bare = word.trim_end_matches(['.', ':', '/']);
            match masked(self, bare) {
                Some(masked) => out += &masked,
                None => out += bare,
            }
            out += &word[bare.len()..];
            let other = after.find(is_of_address).unwrap_or(after.len());
            out += &after[..other];
            rest = &after[other..];
        }
        out
    }
}

/// Parses an address or a prefix.
pub(crate) fn parse(text: &str) -> Option<IpNet> {
    text.parse().map(|of: IpNet| of.trunc()).or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

fn is_of_address(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/')
}

/// Masks a word that is an address, a prefix, or an IPv4 address with a port.
fn masked(mask: Mask, word: &str) -> Option<String> {
    let bare = |word: &str| parse(word).map(|prefix| crate::prefix::text(mask.prefix(prefix)));
    let with_port = || {
        let (address, port) = word.rsplit_once(':')?;
        address.contains('.').then(|| bare(address)).flatten().map(|address| format!("{address}:{port}"))
    };
    bare(word).or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_shortened_to_what_may_be_kept_and_a_shorter_one_stays() {
        let mask = Mask::new(24, 48);
        let kept = |text: &str| mask.prefix(parse(text).unwrap()).to_string();
        assert_eq!(kept("192.0.2.77"), "192.0.2.0/24");
        assert_eq!(kept("192.0.0.0/16"), "192.0.0.0/16");
        assert_eq!(kept("2001:db8:1:2::/64"), "2001:db8:1::/48");
        assert_eq!(Mask::default().prefix(parse("192.0.2.77").unwrap()).to_string(), "192.0.2.77/32");
    }

    #[test]
    fn addresses_in_a_text_are_masked_and_its_other_words_stay() {
        let mask = Mask::new(24, 48);
        for (text, kept) in [
            ("banned 192.0.2.77 until 10:30:00", "banned 192.0.2.0/24 until 10:30:00"),
            ("it was 192.0.2.77.", "it was 192.0.2.0/24."),
            ("from 192.0.2.77:443, 2001:db8:1:2::5", "from 192.0.2.0/24:443, 2001:db8:1::/48"),
            ("[2001:db8:1:2::5]:443 (192.0.2.77/32)", "[2001:db8:1::/48]:443 (192.0.2.0/24)"),
            ("rule web: 1000/5m requests, 1.5 s, é", "rule web: 1000/5m requests, 1.5 s, é"),
            ("", ""),
        ] {
            assert_eq!(mask.text(text), kept);
            assert_eq!(Mask::default().text(text), text);
        }
    }
}
