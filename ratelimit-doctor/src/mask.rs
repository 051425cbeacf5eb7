//! Puts masks in the place of addresses, in any text: `192.0.2.7` becomes `<ipv4:3f9a2c61d0>`. Within one report the same
//! address has the same mask, however it is written; the key is random and kept nowhere, so that nobody finds the address
//! of a mask by trying all.
//!
//! What looks like an address is masked, also where it is none: a version of four numbers, a time beside colons. Loopback
//! and unspecified addresses and 255.255.255.255 stay. What is written as one number, or in 32 digits without a colon, is
//! not told from other numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The longest spelling of an IPv6 address: 45 characters, and each colon may take three.
const RUN_MAX: usize = 45;
/// Hexadecimal digits of a mask: two addresses of 100 000 meet by a chance of one in 200.
const DIGITS: usize = 10;
/// Single digits with dots between, from which on they are an address of `ip6.arpa`.
const NIBBLES_MIN: usize = 16;
/// Bytes of a URL before its host.
const USER_MAX: usize = 256;
/// What stands between the numbers of an IPv4 address.
const SEPARATORS: [&str; 8] = [".", "[.]", "(.)", "\\.", "%2e", "[dot]", "-", "_"];

/// The masks of one report.
pub struct Masks {
    key: [u8; 32],
    host: Option<String>,
    are_addresses_kept: bool,
}

/// What was found at a place: how long it is, and what stands for it; none where it stays.
type Found = (usize, Option<String>);

/// Whatever the case of its letters.
fn begins_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

impl Masks {
    /// With a random key; the host's own name is masked too.
    ///
    /// # Errors
    /// Where the system gives no random bytes.
    pub fn new(host: Option<&str>) -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self::with_key(key, host))
    }

    fn with_key(key: [u8; 32], host: Option<&str>) -> Self {
        // A name of one letter is in every word.
        let host = host.filter(|name| name.len() > 1 && *name != "localhost").map(str::to_ascii_lowercase);
        Self { key, host, are_addresses_kept: false }
    }

    /// Leaves everything as it is.
    #[must_use]
    pub fn none() -> Self {
        Self { key: [0; 32], host: None, are_addresses_kept: true }
    }

    /// The text with masks.
    pub fn mask(&self, text: &str) -> String {
        if self.are_addresses_kept {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            match self.found(text, at) {
                Some((len, mask)) => {
                    out.push_str(mask.as_deref().unwrap_or(&rest[..len]));
                    at += len;
                }
                None => {
                    let first = rest.chars().next().map_or(1, char::len_utf8);
                    out.push_str(&rest[..first]);
                    at += first;
                }
            }
        }
        out
    }

    fn found(&self, text: &str, at: usize) -> Option<Found> {
        let before = text.as_bytes()[..at].last().copied();
        let rest = &text[at..];
        let first = *rest.as_bytes().first()?;
        if first.is_ascii_hexdigit() || first == b':' {
            let address = self.nibbles(before, rest).or_else(|| self.hardware(before, rest));
            if let Some(found) = address.or_else(|| self.v6(before, rest)).or_else(|| self.v4(before, rest)) {
                return Some(found);
            }
        }
        self.host_name(before, rest).or_else(|| self.name_of_url(text, at))
    }

    /// `1.0.0.0.(…).8.b.d.0.1.0.0.2.ip6.arpa`
    fn nibbles(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let bytes = rest.as_bytes();
        let count = bytes
            .chunks(2)
            .take_while(|of| of[0].is_ascii_hexdigit() && of.get(1).is_none_or(|dot| *dot == b'.'))
            .count();
        let is_address = count >= NIBBLES_MIN && !before.is_some_and(|before| before.is_ascii_hexdigit());
        is_address.then(|| {
            let len = (count * 2 - 1).min(bytes.len());
            (len, Some(self.token("ipv6", rest[..len].to_ascii_lowercase().as_bytes())))
        })
    }

    /// `02:00:5e:10:00:01`, and with hyphens.
    fn hardware(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        const LEN: usize = 17;
        let bytes = rest.as_bytes().get(..LEN)?;
        let separator = bytes[2];
        let is_one = |(at, byte): (usize, &u8)| if at % 3 == 2 { *byte == separator } else { byte.is_ascii_hexdigit() };
        let goes_on = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit() || *byte == separator);
        let is_address = matches!(separator, b':' | b'-')
            && bytes.iter().enumerate().all(is_one)
            && !goes_on(rest.as_bytes().get(LEN))
            && !goes_on(before.as_ref());
        is_address
            .then(|| (LEN, Some(self.token("mac", rest[..LEN].to_ascii_lowercase().replace('-', ":").as_bytes()))))
    }

    fn v6(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        // Colons of URLs may be written as %3A.
        let (mut plain, mut ends, mut at) = (String::new(), Vec::new(), 0);
        while plain.len() < RUN_MAX {
            let (c, len) = match rest.as_bytes().get(at..).unwrap_or_default() {
                [b'%', b'3', b'a' | b'A', ..] => (':', 3),
                [c, ..] if c.is_ascii_hexdigit() || matches!(c, b':' | b'.') => (char::from(*c), 1),
                _ => break,
            };
            at += len;
            plain.push(c);
            ends.push(at);
        }
        if plain.bytes().filter(|c| *c == b':').count() < 2 {
            return None;
        }
        let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let has_digit = |text: &str| text.bytes().any(|c| c.is_ascii_digit());
        for len in (2..=plain.len()).rev() {
            let (spelled, end) = (&plain[..len], ends[len - 1]);
            let Ok(address) = spelled.parse::<Ipv6Addr>() else { continue };
            // Paths of code are `word::word`: what goes on in letters on either side is an address only with digits.
            let group = spelled.split(':').next().unwrap_or_default();
            let is_path = (is_word(before) && !has_digit(group))
                || (is_word(rest.as_bytes().get(end).copied()) && !has_digit(spelled));
            return (!is_path).then(|| (end, self.address(IpAddr::V6(address))));
        }
        None
    }

    fn v4(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let number = |text: &str| {
            let len = text.bytes().take(3).take_while(u8::is_ascii_digit).count();
            let value: u8 = text.get(..len)?.parse().ok()?;
            Some((value, len))
        };
        let (first, len) = number(rest)?;
        let separator = SEPARATORS.into_iter().find(|of| begins_with(&rest[len..], of))?;
        let (mut octets, mut end) = ([first, 0, 0, 0], len);
        for octet in &mut octets[1..] {
            let after = rest[end..].get(separator.len()..).filter(|_| begins_with(&rest[end..], separator))?;
            let (value, len) = number(after)?;
            *octet = value;
            end += separator.len() + len;
        }
        // Numbers with hyphens are dates too, which go on in digits.
        let is_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_digit());
        let is_dash = matches!(separator, "-" | "_");
        if is_dash && (is_digit(before) || is_digit(rest.as_bytes().get(end).copied())) {
            return None;
        }
        Some((end, self.address(IpAddr::V4(Ipv4Addr::from(octets)))))
    }

    /// The host's own name, as a word.
    fn host_name(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let name = self.host.as_deref()?;
        let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_it = rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let is_whole = !is_word(before) && !is_word(rest.as_bytes().get(name.len()).copied());
        (is_it && is_whole).then(|| (name.len(), Some("<host>".to_owned())))
    }

    /// The name of a URL's host: `redis://NAME:6379`.
    fn name_of_url(&self, text: &str, at: usize) -> Option<Found> {
        // A URL's user and password are short; to look further back would take as long as all that stands before.
        let floor = (at.saturating_sub(USER_MAX)..=at).find(|from| text.is_char_boundary(*from)).unwrap_or(at);
        let before = &text[floor..at];
        let rest = &text[at..];
        let is_start = before.ends_with("://")
            || before.rsplit_once("://").is_some_and(|(_, user)| {
                user.ends_with('@') && !user.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\''))
            });
        let len = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))).unwrap_or(rest.len());
        let name = &rest[..len];
        let is_known = name.eq_ignore_ascii_case("localhost") || !name.contains(|c: char| c.is_alphabetic());
        (is_start && len > 0 && !is_known)
            .then(|| (len, Some(self.token("name", name.to_ascii_lowercase().as_bytes()))))
    }

    fn address(&self, address: IpAddr) -> Option<String> {
        // `::ffff:192.0.2.1` is the same as 192.0.2.1.
        let address = address.to_canonical();
        let stays = address.is_loopback()
            || address.is_unspecified()
            || matches!(address, IpAddr::V4(address) if address.is_broadcast());
        (!stays).then(|| match address {
            IpAddr::V4(address) => self.token("ipv4", &address.octets()),
            IpAddr::V6(address) => self.token("ipv6", &address.octets()),
        })
    }

    fn token(&self, kind: &str, of: &[u8]) -> String {
        let mut digits = String::new();
        // A key of any length will do.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) {
            mac.update(kind.as_bytes());
            mac.update(of);
            digits.extend(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")));
        }
        format!("<{kind}:{}>", digits.get(..DIGITS).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
