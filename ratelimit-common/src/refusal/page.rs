//! Page that answers a refused HTTP/1 request in the clear: code 429, the time of the next try, and the end of the
//! connection. All pages have one length, so lengths and most of the checksum are computed at compile time.

use super::{IPV4_WORDS, IPV6_WORDS, TCP_BYTES, TCP_WORDS, Way, checksum, ipv4, ipv6, pseudo, with_high_half};
use crate::packet::{Frame, TCP_FLAG_ACK, TCP_FLAG_PSH, TCP_FLAGS};

/// Text of the page, with zeros for the seconds at [`SECONDS_AT`].
const TEXT_BYTES: [u8; 4 * TEXT_WORDS] = *b"HTTP/1.1 429 Too Many Requests\r\n\
    Connection: close\r\n\
    Retry-After: \0\0\0\0\0\0\0\0\r\n\r\n\
    Too many requests.\r\n";
/// Number of words in the text.
pub const TEXT_WORDS: usize = 24;
/// Words of the text; those of the seconds are 0.
const TEXT: [u32; TEXT_WORDS] = {
    let (mut words, mut at) = ([0; TEXT_WORDS], 0);
    while at < TEXT_WORDS {
        let [a, b, c, d] = [4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3];
        words[at] = u32::from_ne_bytes([TEXT_BYTES[a], TEXT_BYTES[b], TEXT_BYTES[c], TEXT_BYTES[d]]);
        at += 1;
    }
    words
};
/// Index of the first word of the seconds. The next constant is the number of these words.
const SECONDS_AT: usize = 16;
const SECONDS_WORDS: usize = 2;
const _: () = assert!(TEXT[SECONDS_AT] == 0 && TEXT[SECONDS_AT + 1] == 0 && TEXT[SECONDS_AT - 1] != 0);
/// Maximum number of seconds that the field holds.
const SECONDS_MAX: u64 = 99_999_999;
/// Sum of all words of the text except the seconds.
const TEXT_SUM: u64 = sum(&TEXT);

/// Number of words in the TCP timestamp option, with two bytes of padding before it (RFC 7323, appendix A).
const TIME_WORDS: usize = 3;
/// Bytes before the timestamps: padding, kind and length of the option.
const BEFORE_TIME: [u8; 4] = [1, 1, 8, 10];

/// Page without its constant text: IP and TCP headers, `OPTIONS` words of TCP options, and the seconds in digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<const IP: usize, const OPTIONS: usize> {
    /// IP header of the page.
    pub ip: [u32; IP],
    /// TCP header of the page.
    pub tcp: [u32; TCP_WORDS],
    /// TCP options of the page.
    pub options: [u32; OPTIONS],
    /// Words of the text that contain the seconds.
    pub seconds: [u32; SECONDS_WORDS],
}

impl<const IP: usize, const OPTIONS: usize> Page<IP, OPTIONS> {
    /// Number of bytes of TCP, header included.
    #[expect(clippy::cast_possible_truncation, reason = "a few words")]
    const TCP_BYTES: u8 = TCP_BYTES + 4 * (OPTIONS + TEXT_WORDS) as u8;
    /// Number of words of the whole packet.
    pub const WORDS: usize = {
        let words = IP + TCP_WORDS + OPTIONS + TEXT_WORDS;
        assert!(4 * words <= u8::MAX as usize, "lengths are bytes");
        words
    };

    /// Creates a page with this IP header, whose addresses have this sum.
    #[inline(always)]
    const fn behind(
        (ip, addresses): ([u32; IP], u64),
        tcp: [u32; TCP_WORDS],
        options: [u32; OPTIONS],
        payload_bytes: u32,
        seconds: u64,
    ) -> Self {
        let seconds = digits(seconds);
        let tcp = answer(tcp, &options, payload_bytes, addresses + pseudo(Self::TCP_BYTES) + sum(&seconds));
        Self { ip, tcp, options, seconds }
    }

    /// Returns the word at this index of the text.
    #[inline(always)]
    pub const fn text(&self, at: usize) -> u32 {
        match at {
            SECONDS_AT => self.seconds[0],
            at if at == SECONDS_AT + 1 => self.seconds[1],
            _ => TEXT[at],
        }
    }
}

impl<const OPTIONS: usize> Page<IPV4_WORDS, OPTIONS> {
    /// Returns the answer to an IPv4 segment with these headers and `payload_bytes` bytes of payload. The client may
    /// try again in `seconds`.
    #[inline(always)]
    pub const fn v4(
        ip: [u32; IPV4_WORDS],
        tcp: [u32; TCP_WORDS],
        options: [u32; OPTIONS],
        payload_bytes: u32,
        seconds: u64,
    ) -> Self {
        Self::behind(ipv4(ip, Way::Back, Self::TCP_BYTES), tcp, options, payload_bytes, seconds)
    }
}

impl<const OPTIONS: usize> Page<IPV6_WORDS, OPTIONS> {
    /// Returns the answer to an IPv6 segment with these headers and `payload_bytes` bytes of payload. The client may
    /// try again in `seconds`.
    #[inline(always)]
    pub const fn v6(
        ip: [u32; IPV6_WORDS],
        tcp: [u32; TCP_WORDS],
        options: [u32; OPTIONS],
        payload_bytes: u32,
        seconds: u64,
    ) -> Self {
        Self::behind(ipv6(ip, Way::Back, Self::TCP_BYTES), tcp, options, payload_bytes, seconds)
    }
}

/// Returns the TCP header of the answer. It continues at the client's acknowledgement number, and closes the server's
/// side. `others` is the sum of everything else that the checksum covers, except the text.
#[inline(always)]
const fn answer<const OPTIONS: usize>(
    of: [u32; TCP_WORDS],
    options: &[u32; OPTIONS],
    payload_bytes: u32,
    others: u64,
) -> [u32; TCP_WORDS] {
    /// Flags FIN, PSH and ACK. The next constant is the high byte of a window in which the client can close its side
    /// too.
    const FLAGS: u8 = 0x19;
    const WINDOW: u8 = 2;
    #[expect(clippy::cast_possible_truncation, reason = "a few words")]
    let header_words = (TCP_WORDS + OPTIONS) as u8;
    let (ports, sequence) = (of[0].rotate_left(16), of[2]);
    let acknowledged = u32::from_be(of[1]).wrapping_add(payload_bytes).to_be();
    let flags = u32::from_ne_bytes([header_words << 4, FLAGS, WINDOW, 0]);
    let words = ports as u64 + sequence as u64 + acknowledged as u64 + flags as u64;
    let sum = checksum(words + sum(options) + TEXT_SUM + others);
    [ports, sequence, acknowledged, flags, with_high_half(sum)]
}

/// TCP options of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// No options.
    None,
    /// Timestamps (RFC 7323), in the form that systems send.
    Time([u32; TIME_WORDS]),
}

/// Returns the options of the answer to a segment with this header at offset `at`. Returns None if the segment cannot
/// be answered: it has other options, opens or closes a connection, or is urgent.
#[inline(always)]
pub fn options<F: Frame>(frame: &F, at: usize, tcp: &[u32; TCP_WORDS]) -> Option<Options> {
    const FLAGS: u8 = TCP_FLAG_ACK | TCP_FLAG_PSH;
    /// Data offset byte of a header without options. The next constant is that with timestamps.
    const NONE: u8 = 5 << 4;
    const TIME: u8 = 8 << 4;
    const { assert!(TCP_WORDS == 5 && TIME_WORDS == 3) };
    let [offset, flags, _, _] = tcp[3].to_ne_bytes();
    if flags & TCP_FLAGS & !FLAGS != 0 {
        return None;
    }
    match offset & 0xf0 {
        NONE => Some(Options::None),
        TIME => {
            let at = at + 4 * TCP_WORDS;
            let [kind, said, heard]: [[u8; 4]; TIME_WORDS] =
                [frame.bytes(at)?, frame.bytes(at + 4)?, frame.bytes(at + 8)?];
            // The answer echoes the client's value, and sends the value that the client echoed.
            (kind == BEFORE_TIME).then_some(Options::Time([kind, heard, said].map(u32::from_ne_bytes)))
        }
        _ => None,
    }
}

/// Returns whether an HTTP/1 request that a page can answer begins at this offset, by its method. HEAD is excluded,
/// since its answer has no body.
#[inline(always)]
pub fn begins_request<F: Frame>(frame: &F, at: usize) -> bool {
    const METHODS: [&[u8]; 6] = [b"GET ", b"PUT ", b"POST ", b"PATCH ", b"DELETE ", b"OPTIONS "];
    let Some(bytes) = frame.bytes::<8>(at) else { return false };
    let begins = u64::from_le_bytes(bytes);
    let mut is_one = false;
    for method in METHODS {
        let (mut name, mut mask) = (0, 0);
        for (position, &byte) in method.iter().enumerate() {
            name |= (byte as u64) << (8 * position);
            mask |= 0xff << (8 * position);
        }
        is_one |= begins & mask == name;
    }
    is_one
}

/// Returns a number in digits, padded with blanks on the left.
#[inline(always)]
const fn digits(number: u64) -> [u32; SECONDS_WORDS] {
    const DIGITS: usize = 4 * SECONDS_WORDS;
    let mut left = if number < SECONDS_MAX { number } else { SECONDS_MAX };
    let (mut digits, mut at) = ([b' '; DIGITS], DIGITS);
    while at > 0 {
        at -= 1;
        let digit = (left % 10) as u8;
        if left != 0 || at == DIGITS - 1 {
            digits[at] = b'0' + digit;
        }
        left /= 10;
    }
    let [a, b, c, d, e, f, g, h] = digits;
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// Returns the sum of the words.
#[inline(always)]
const fn sum<const WORDS: usize>(words: &[u32; WORDS]) -> u64 {
    let (mut sum, mut at) = (0, 0);
    while at < WORDS {
        sum += words[at] as u64;
        at += 1;
    }
    sum
}

#[cfg(test)]
mod tests;
