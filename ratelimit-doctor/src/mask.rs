//! Masks addresses in our own texts: `192.0.2.7` becomes `<ipv4:1>`. An address has the same number in all texts of one
//! report. Loopback and unspecified addresses and 255.255.255.255 stay.
//!
//! Each address that we write has one spelling, so no other one is looked for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// The masks of one report.
#[derive(Debug)]
pub(crate) struct Masks {
    /// Number of each address; none if addresses stay.
    numbers: Option<HashMap<IpAddr, usize>>,
}

impl Masks {
    /// Returns masks for a new report.
    pub(crate) fn new() -> Self {
        Self { numbers: Some(HashMap::new()) }
    }

    /// Returns masks that leave everything as it is.
    pub(crate) const fn none() -> Self {
        Self { numbers: None }
    }

    /// Returns the text with masks.
    pub(crate) fn mask(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let (word, after) = rest.split_at(rest.find(|c| !is_of_address(c)).unwrap_or(rest.len()));
            // An address may end a sentence.
            let bare = word.trim_end_matches(['.', ':', '/']);
            match self.word(bare) {
                Some(masked) => out += &masked,
                None => out += bare,
            }
            out += &word[bare.len()..];
            let (other, next) = after.split_at(after.find(is_of_address).unwrap_or(after.len()));
            out += other;
            rest = next;
        }
        out
    }

    /// Masks a word that is an address, a prefix, or an IPv4 address with a port.
    fn word(&mut self, word: &str) -> Option<String> {
        if let Ok(address) = word.parse() {
            return self.address(address);
        }
        if let Ok(prefix) = word.parse::<IpNet>() {
            return Some(format!("{}/{}", self.address(prefix.addr())?, prefix.prefix_len()));
        }
        let (address, port) = word.rsplit_once(':')?;
        Some(format!("{}:{port}", self.address(address.parse::<Ipv4Addr>().ok()?.into())?))
    }

    fn address(&mut self, address: IpAddr) -> Option<String> {
        if address.is_loopback() || address.is_unspecified() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return None;
        }
        let numbers = self.numbers.as_mut()?;
        let next = numbers.len() + 1;
        let number = numbers.entry(address).or_insert(next);
        Some(format!("<{}:{number}>", if address.is_ipv4() { "ipv4" } else { "ipv6" }))
    }
}

fn is_of_address(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_mask_in_a_report_and_other_words_stay() {
        let mut masks = Masks::new();
        for (text, masked) in [
            ("banned 192.0.2.77 until 10:30:00", "banned <ipv4:1> until 10:30:00"),
            ("it was 192.0.2.77.", "it was <ipv4:1>."),
            ("from 192.0.2.77:443, 2001:db8:1:2::5", "from <ipv4:1>:443, <ipv6:2>"),
            ("[2001:db8:1:2::5]:443 (192.0.2.0/24)", "[<ipv6:2>]:443 (<ipv4:3>/24)"),
            ("\"prefix\":\"198.51.100.7/32\"", "\"prefix\":\"<ipv4:4>/32\""),
            ("127.0.0.1 ::1 0.0.0.0/0 ::/0", "127.0.0.1 ::1 0.0.0.0/0 ::/0"),
            ("rule web: 1000/5m requests, 1.5 s, é", "rule web: 1000/5m requests, 1.5 s, é"),
            ("", ""),
        ] {
            assert_eq!(masks.mask(text), masked);
            assert_eq!(Masks::none().mask(text), text);
        }
    }
}
