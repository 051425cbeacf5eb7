//! Masks addresses in any text: `192.0.2.7` becomes `<ipv4:3f9a2c61d0>`. Within one report, an address has the same
//! mask in every spelling. The key is random and not stored, so nobody can find a mask's address by trying all of them.
//!
//! Everything that looks like an address is masked, even if it is none: a version of four numbers, a time beside
//! colons. Loopback and unspecified addresses and 255.255.255.255 stay. An address written as one decimal number looks
//! like any number and stays too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Maximum length of an IPv6 address with plain colons: 45 characters. An escaped colon counts as one.
const RUN_MAX: usize = 45;
/// Hexadecimal digits of a mask. Among 100 000 addresses, two share a mask with a chance of one in 200.
const DIGITS: usize = 10;
/// Minimum number of single digits with dots between that are taken for an `ip6.arpa` address.
const NIBBLES_MIN: usize = 16;
/// Maximum bytes between the scheme of a URL and its host.
const USER_MAX: usize = 256;
/// Spellings of the dot between the numbers of an IPv4 address, longest first.
const DOTS: [&str; 19] = [
    " [dot] ", " (dot) ", " [.] ", "[dot]", "(dot)", "{dot}", "%252e", " dot ", "%2e", "[.]", "(.)", "{.}", "\\.",
    "[.", ".]", "。", "․", "·", ".",
];
/// Separators of addresses in names. One address uses the same one throughout.
const DASHES: [&str; 2] = ["-", "_"];
/// Spellings of the colon in an IPv6 address.
const COLONS: [&str; 7] = ["[colon]", "%253a", "%3a", "[:]", "(:)", "{:}", "\\:"];
/// Minimum bytes of a hardware address, and its groups if each has two bytes.
const BYTES_MIN: usize = 6;
const PAIRS_MIN: usize = 3;
const PAIRS_MAX: usize = 4;
/// Hexadecimal digits of a hardware address, an IPv6 and an IPv4 address written as one number.
const HARDWARE_DIGITS: usize = 12;
const V6_DIGITS: usize = 32;
const V4_DIGITS: usize = 8;

/// The masks of one report.
pub struct Masks {
    key: [u8; 32],
    host: Option<String>,
    are_addresses_kept: bool,
}

/// Match at a place: its length, and its replacement; `None` if it stays.
type Found = (usize, Option<String>);

/// Returns true if the text begins with the prefix, ignoring case.
fn begins_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Returns the length of the entry that the text begins with.
fn one_of(all: &[&str], text: &str) -> Option<usize> {
    all.iter().find(|of| begins_with(text, of)).map(|of| of.len())
}

/// Returns the number of hexadecimal digits that the text begins with.
fn digits_at(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_hexdigit).count()
}

/// Parses a number of an IPv4 address: decimal, hexadecimal behind `0x`, or octal with a leading zero and at least four
/// digits. Returns its value and length.
fn octet(text: &str) -> Option<(u8, usize)> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let len = digits_at(hex);
        return u8::from_str_radix(hex.get(..len)?.trim_start_matches('0'), 16)
            .ok()
            .or_else(|| zero(hex, len))
            .map(|of| (of, len + 2));
    }
    let len = text.bytes().take_while(u8::is_ascii_digit).count();
    if len > 3 && text.starts_with('0') {
        let octal = u8::from_str_radix(text.get(..len)?.trim_start_matches('0'), 8).ok().or_else(|| zero(text, len));
        if let Some(value) = octal {
            return Some((value, len));
        }
    }
    let len = len.min(3);
    Some((text.get(..len)?.parse().ok()?, len))
}

/// Returns 0 if the text is all zeros, and at least one.
fn zero(text: &str, len: usize) -> Option<u8> {
    (len > 0 && text.get(..len)?.bytes().all(|c| c == b'0')).then_some(0)
}

impl Masks {
    /// Returns masks with a random key. The host's own name is masked too.
    ///
    /// # Errors
    /// Fails if the system provides no random bytes.
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

    /// Returns masks that leave everything as it is.
    #[must_use]
    pub fn none() -> Self {
        Self { key: [0; 32], host: None, are_addresses_kept: true }
    }

    /// Returns the text with masks.
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
        if first.is_ascii_hexdigit() || first == b':' || one_of(&COLONS, rest).is_some() {
            let address = self.nibbles(before, rest).or_else(|| self.hardware(before, rest));
            let address = address.or_else(|| self.v6(before, rest)).or_else(|| self.v6_by_dashes(before, rest));
            if let Some(found) = address.or_else(|| self.v4(before, rest)).or_else(|| self.one_number(before, rest)) {
                return Some(found);
            }
        }
        self.host_name(before, rest).or_else(|| self.name_of_url(text, at))
    }

    /// Matches a reversed IPv6 name: `1.0.0.0.(…).8.b.d.0.1.0.0.2.ip6.arpa`.
    fn nibbles(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let bytes = rest.as_bytes();
        let count = bytes
            .chunks(2)
            .take_while(|of| of[0].is_ascii_hexdigit() && of.get(1).is_none_or(|dot| *dot == b'.'))
            .count();
        let is_named = begins_with(rest.get(count * 2..).unwrap_or_default(), "ip6.arpa");
        let is_address = (count >= NIBBLES_MIN || (count > 0 && is_named))
            && !before.is_some_and(|before| before.is_ascii_hexdigit());
        is_address.then(|| {
            let len = (count * 2 - 1).min(bytes.len());
            (len, Some(self.token("ipv6", rest[..len].to_ascii_lowercase().as_bytes())))
        })
    }

    /// Matches `02:00:5e:10:00:01` with any separator, `2:0:5e:10:0:1`, and pairs of bytes: `0200.5e10.0001`.
    fn hardware(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let bytes = rest.as_bytes();
        let first = digits_at(rest);
        let separator = *bytes.get(first).filter(|c| first > 0 && matches!(c, b':' | b'-' | b'.' | b'_' | b' '))?;
        let (mut groups, mut end) = (vec![&rest[..first]], first);
        while bytes.get(end) == Some(&separator) {
            let len = digits_at(&rest[end + 1..]);
            // A space may be followed by another word.
            let is_word =
                separator == b' ' && (len != 2 || bytes.get(end + 3).is_some_and(|byte| byte.is_ascii_alphanumeric()));
            if len == 0 || is_word {
                break;
            }
            groups.push(&rest[end + 1..end + 1 + len]);
            end += 1 + len;
        }
        let all = |len: usize| groups.iter().all(|group| group.len() == len);
        let has_letter = rest[..end].bytes().any(|c| c.is_ascii_alphabetic());
        let is_by_twos =
            all(4) && (PAIRS_MIN..=PAIRS_MAX).contains(&groups.len()) && separator != b' ' && separator != b'_';
        let is_by_ones = groups.len() >= BYTES_MIN
            && match separator {
                // Eight groups with colons are an IPv6 address.
                b':' => groups.iter().all(|group| group.len() <= 2) && groups.len() != 8,
                b'-' => all(2),
                // Four numbers with dots are an IPv4 address, and columns have spaces.
                _ => all(2) && has_letter,
            };
        let goes_on = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit() || byte == separator);
        // `1:2:3:4:5:6:192.0.2.1` is an IPv6 address.
        if separator == b':' && bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            return None;
        }
        let is_whole = !goes_on(before.filter(|before| *before != b' ')) && bytes.get(end) != Some(&separator)
            || separator == b' ' && !before.is_some_and(|before| before.is_ascii_hexdigit());
        if !(is_by_ones || is_by_twos) || !is_whole {
            return None;
        }
        let padded: String =
            groups.iter().map(|group| if is_by_twos { (*group).to_owned() } else { format!("{group:0>2}") }).collect();
        Some((end, Some(self.token("mac", padded.to_ascii_lowercase().as_bytes()))))
    }

    /// Matches `02005e100001`, `0xc000024d`, and the 32 digits of an IPv6 address.
    fn one_number(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let is_hex = rest.starts_with("0x") || rest.starts_with("0X");
        let from = if is_hex { 2 } else { 0 };
        let len = digits_at(&rest[from..]);
        let (number, end) = (&rest[from..from + len], from + len);
        let is_letter = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        if is_letter(before.filter(|before| !matches!(before, b'x' | b'X')))
            || is_letter(rest.as_bytes().get(end).copied())
        {
            return None;
        }
        let lower = number.to_ascii_lowercase();
        match len {
            // A count has no leading zero.
            HARDWARE_DIGITS if is_hex || number.starts_with('0') || number.bytes().any(|c| c.is_ascii_alphabetic()) => {
                Some((end, Some(self.token("mac", lower.as_bytes()))))
            }
            V6_DIGITS => {
                let number = u128::from_str_radix(&lower, 16).ok()?;
                Some((end, self.address(IpAddr::V6(Ipv6Addr::from_bits(number)))))
            }
            V4_DIGITS if is_hex => {
                let number = u32::from_str_radix(&lower, 16).ok()?;
                Some((end, self.address(IpAddr::V4(Ipv4Addr::from_bits(number)))))
            }
            _ => None,
        }
    }

    fn v6(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        // URLs may spell colons as %3A.
        let (mut plain, mut ends, mut at) = (String::new(), Vec::new(), 0);
        while plain.len() < RUN_MAX {
            let here = rest.get(at..).unwrap_or_default();
            let (c, len) = match (one_of(&COLONS, here), here.as_bytes().first()) {
                (Some(len), _) => (':', len),
                (None, Some(c)) if c.is_ascii_hexdigit() || matches!(c, b':' | b'.') => (char::from(*c), 1),
                (None, _) => match one_of(&DOTS, here).filter(|_| plain.contains(':')) {
                    Some(len) => ('.', len),
                    None => break,
                },
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
            // Paths of code are `word::word`: a match that continues in letters on either side is an address only with
            // digits.
            let group = spelled.split(':').next().unwrap_or_default();
            let is_path = (is_word(before) && !has_digit(group))
                || (is_word(rest.as_bytes().get(end).copied()) && !has_digit(spelled));
            return (!is_path).then(|| (end, self.address(IpAddr::V6(address))));
        }
        None
    }

    /// Matches `2001-db8--7`, the spelling in host names.
    fn v6_by_dashes(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let dash = if rest.as_bytes().get(digits_at(rest)) == Some(&b'_') { '_' } else { '-' };
        let len = rest.find(|c: char| !(c.is_ascii_hexdigit() || c == dash)).unwrap_or(rest.len()).min(RUN_MAX);
        let spelled = rest[..len].trim_end_matches(dash);
        let spelled = if rest[spelled.len()..len].len() > 1 { &rest[..spelled.len() + 2] } else { spelled };
        let group = spelled.split(dash).next().unwrap_or_default();
        let is_one = group.len() > 2 && group.bytes().any(|c| c.is_ascii_digit()) && spelled.matches(dash).count() > 1;
        let goes_on = before.is_some_and(|before| before.is_ascii_alphanumeric());
        let address = spelled.replace(dash, ":").parse::<Ipv6Addr>().ok().filter(|_| is_one && !goes_on)?;
        Some((spelled.len(), self.address(IpAddr::V6(address))))
    }

    fn v4(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let (first, len) = octet(rest)?;
        let dash = DASHES.into_iter().find(|of| rest[len..].starts_with(of));
        let separator = |text: &str| match dash {
            Some(dash) => text.starts_with(dash).then_some(dash.len()),
            None => one_of(&DOTS, text),
        };
        let (mut octets, mut end) = (vec![first], len);
        while let Some(between) = separator(&rest[end..]) {
            let Some((value, len)) = octet(&rest[end + between..]) else { break };
            octets.push(value);
            end += between + len;
        }
        if octets.len() < 4 && begins_with(&rest[end..], ".in-addr.arpa") {
            return Some((end, Some(self.token("ipv4", &octets))));
        }
        let address: [u8; 4] = octets.first_chunk().copied()?;
        if dash.is_some() {
            // Numbers with hyphens may be dates, which continue in digits.
            let is_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_digit());
            if is_digit(before) || is_digit(rest.as_bytes().get(end).copied()) {
                return None;
            }
            // The first number of `ec2-198-51-100-7` belongs to the name.
            if octets.len() > 4 && before.is_some_and(|before| before.is_ascii_alphabetic()) {
                return None;
            }
        }
        // If there are more than four numbers, any four may be the address, so all are masked.
        let address = self.address(IpAddr::V4(Ipv4Addr::from(address)));
        let is_more = octets.len() > 4;
        Some((end, if is_more { address.or_else(|| Some(self.token("ipv4", &octets))) } else { address }))
    }

    /// Matches the host's own name as a word.
    fn host_name(&self, before: Option<u8>, rest: &str) -> Option<Found> {
        let name = self.host.as_deref()?;
        let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_it = rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        let is_whole = !is_word(before) && !is_word(rest.as_bytes().get(name.len()).copied());
        (is_it && is_whole).then(|| (name.len(), Some("<host>".to_owned())))
    }

    /// Matches the host name in a URL: `redis://NAME:6379`.
    fn name_of_url(&self, text: &str, at: usize) -> Option<Found> {
        // A URL's user and password are short. A longer look back would cost time in proportion to all preceding text.
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
        // HMAC accepts a key of any length.
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
