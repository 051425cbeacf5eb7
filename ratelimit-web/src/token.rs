//! Secret token of the web page and its one-time codes. A code holds its time of issue, a nonce, and an HMAC of both.
//! A user who can read the token's file can make a code without asking the daemon. Time and randomness are arguments.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Lifetime of a code in seconds.
pub const CODE_SECONDS_MAX: u64 = 300;
/// Tolerated backward step of the clock, in seconds. Both sides use the same host's clock.
const CLOCK_STEP_SECONDS: u64 = 5;

const SECRET_BYTES: usize = 32;
const NONCE_BYTES: usize = 16;
const TIME_BYTES: usize = 8;
const CODE_BYTES: usize = TIME_BYTES + NONCE_BYTES + SECRET_BYTES;

/// Secret that signs one-time links.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; SECRET_BYTES]);

impl Token {
    /// Creates a random token. None if the system has no random bytes.
    pub fn random() -> Option<Self> {
        random().map(Self)
    }

    /// Parses the hexadecimal form that the token's file holds.
    pub fn from_hex(text: &str) -> Option<Self> {
        Some(Self(unhex(text)?.try_into().ok()?))
    }

    /// Returns the hexadecimal form for the token's file.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Creates a one-time code. `issued` is in seconds since 1970. None if the system has no random bytes.
    pub fn code(&self, issued: u64) -> Option<String> {
        random().map(|nonce| self.code_of(issued, nonce))
    }

    fn code_of(&self, issued: u64, nonce: [u8; NONCE_BYTES]) -> String {
        let signed = [issued.to_be_bytes().as_slice(), &nonce].concat();
        let mac = self.mac(&signed).map(|mac| mac.finalize().into_bytes().to_vec()).unwrap_or_default();
        hex(&[signed, mac].concat())
    }

    /// Returns the time of issue and the nonce of a code. None if this token did not sign the code.
    fn opened(&self, code: &str) -> Option<(u64, [u8; NONCE_BYTES])> {
        let bytes = unhex(code).filter(|bytes| bytes.len() == CODE_BYTES)?;
        let (signed, mac) = bytes.split_at(TIME_BYTES + NONCE_BYTES);
        // `verify_slice` compares in constant time.
        self.mac(signed)?.verify_slice(mac).ok()?;
        let (issued, nonce) = signed.split_at(TIME_BYTES);
        Some((u64::from_be_bytes(issued.try_into().ok()?), nonce.try_into().ok()?))
    }

    fn mac(&self, of: &[u8]) -> Option<Hmac<Sha256>> {
        Some(Hmac::<Sha256>::new_from_slice(&self.0).ok()?.chain_update(of))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Reason why a code is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The code is not signed by this token.
    Wrong,
    /// The code is older than [`CODE_SECONDS_MAX`] or than the daemon.
    Expired,
    /// The code was already used.
    Used,
}

/// Used codes that have not expired yet. Only holders of the token can make codes, so no outsider can fill this
/// table.
#[derive(Debug)]
pub(crate) struct Codes {
    token: Token,
    /// Start time in seconds since 1970. Older codes are refused, because their use may have been forgotten.
    started: u64,
    used: BTreeMap<[u8; NONCE_BYTES], u64>,
}

impl Codes {
    pub(crate) const fn new(token: Token, started: u64) -> Self {
        Self { token, started, used: BTreeMap::new() }
    }

    /// Marks a code as used. Fails if the code is wrong, expired or already used.
    pub(crate) fn take(&mut self, code: &str, now: u64) -> Result<(), Refused> {
        let (issued, nonce) = self.token.opened(code.trim()).ok_or(Refused::Wrong)?;
        let is_good = |issued: u64| issued <= now + CLOCK_STEP_SECONDS && issued.saturating_add(CODE_SECONDS_MAX) > now;
        if !is_good(issued) || issued < self.started {
            return Err(Refused::Expired);
        }
        self.used.retain(|_, issued| is_good(*issued));
        match self.used.insert(nonce, issued) {
            None => Ok(()),
            Some(_) => Err(Refused::Used),
        }
    }
}

/// Returns random bytes from the system. None if there are none.
pub(crate) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| u8::try_from(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn token(byte: u8) -> Token {
        Token([byte; SECRET_BYTES])
    }

    #[test]
    fn a_code_opens_once_and_only_the_page_of_the_token_that_made_it() {
        let mut codes = Codes::new(token(1), NOW);
        let code = token(1).code_of(NOW, [7; NONCE_BYTES]);
        assert_eq!(codes.take(&token(2).code_of(NOW, [7; NONCE_BYTES]), NOW), Err(Refused::Wrong));
        assert_eq!(codes.take(&code, NOW), Ok(()));
        assert_eq!(codes.take(&code, NOW + 1), Err(Refused::Used));
        assert_eq!(codes.take(&token(1).code_of(NOW, [8; NONCE_BYTES]), NOW), Ok(()), "another opens too");
    }

    #[test]
    fn each_changed_digit_of_a_code_and_each_length_is_wrong() {
        let mut codes = Codes::new(token(1), NOW);
        let code = token(1).code_of(NOW, [7; NONCE_BYTES]);
        for at in 0..code.len() {
            let mut changed = code.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(codes.take(&String::from_utf8(changed).unwrap(), NOW), Err(Refused::Wrong), "{at}");
            assert_eq!(codes.take(&code[..at], NOW), Err(Refused::Wrong), "{at}");
        }
        assert_eq!(codes.take(&format!("{code}00"), NOW), Err(Refused::Wrong));
        assert_eq!(codes.take("ü", NOW), Err(Refused::Wrong));
        assert_eq!(codes.take(&code, NOW), Ok(()));
    }

    #[test]
    fn a_code_opens_until_its_time_and_none_from_before_the_start_opens() {
        let mut codes = Codes::new(token(1), NOW);
        let code = |issued: u64| token(1).code_of(issued, [u8::try_from(issued % 251).unwrap(); NONCE_BYTES]);
        assert_eq!(codes.take(&code(NOW), NOW + CODE_SECONDS_MAX - 1), Ok(()));
        assert_eq!(codes.take(&code(NOW + 1), NOW + 1 + CODE_SECONDS_MAX), Err(Refused::Expired));
        assert_eq!(codes.take(&code(NOW - 1), NOW), Err(Refused::Expired), "what was used before is not known");
        assert_eq!(codes.take(&code(NOW + 60), NOW), Err(Refused::Expired), "of a time to come");
        assert_eq!(codes.take(&code(u64::MAX), NOW), Err(Refused::Expired));
        codes.take(&code(NOW + 9_000), NOW + 9_000).unwrap();
        assert_eq!(codes.used.len(), 1, "what has expired is not remembered");
    }

    #[test]
    fn a_token_is_read_as_it_is_written_and_never_printed() {
        let token = Token::random().unwrap();
        assert_eq!(Token::from_hex(&token.to_hex()), Some(token.clone()));
        assert_ne!(Token::random(), Some(token.clone()));
        assert_eq!((Token::from_hex("00"), Token::from_hex("")), (None, None));
        assert_eq!(format!("{token:?}"), "Token");
    }
}
