//! Framing of netlink messages and their attributes, for all protocols (include/uapi/linux/netlink.h).

use std::io;

use netlink_sys::{Socket, SocketAddr};

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST` with `NLM_F_DUMP`.
const DUMP: u16 = 1 | 0x300;
/// Bytes of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// Mask that removes the flag bits from an attribute's type.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// A message without its header.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// Message type, and the requested data.
    Of(u16, &'a [u8]),
    /// End of the data.
    Done,
    /// Success of an operation, or its error. A message that is cut off is an error too.
    Answer(io::Result<()>),
}

/// Opens a socket of this protocol in this thread's network namespace.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn open(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Builds a request.
pub(crate) fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Sequence and port stay 0, because there is one request at a time.
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// Sends a dump request and passes the type and data of every received object to `take`.
///
/// # Errors
/// Returns the kernel's error, or fails if a message is cut off.
pub(crate) fn dump(socket: &Socket, kind: u16, body: &[u8], take: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
    socket.send(&request(kind, DUMP, body), 0)?;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        for message in messages(&answer) {
            match message {
                Message::Of(kind, body) => take(kind, body),
                Message::Done => return Ok(()),
                Message::Answer(Ok(())) => {}
                Message::Answer(Err(error)) => return Err(error),
            }
        }
    }
}

/// Returns the messages of one answer. The last one is an error if it is cut off.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((message, len)) = first(rest) else {
            let error = format!("a netlink message is cut off after {} bytes", rest.len());
            rest = &[];
            return Some(Message::Answer(Err(io::Error::other(error))));
        };
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Returns the first message and its length in bytes. None if the message is cut off.
fn first(rest: &[u8]) -> Option<(Message<'_>, usize)> {
    let len = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let body = rest.get(HEADER..len)?;
    let message = match kind {
        DONE => Message::Done,
        ERROR => Message::Answer(match i32::from_ne_bytes(*body.first_chunk()?) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        }),
        _ => Message::Of(kind, body),
    };
    Some((message, len))
}

/// Builds one attribute, padded to four bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(usize::from(len).next_multiple_of(4));
    bytes.extend(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the types and values of the attributes, up to the first that is cut off.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & ATTRIBUTE_TYPE;
        let value = rest.get(ATTRIBUTE_HEADER..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute with this type.
pub(crate) fn find(rest: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(rest).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

/// Returns the number in an attribute with this type. None if the attribute is missing or shorter than a number.
pub(crate) fn find_u32(rest: &[u8], kind: u16) -> Option<u32> {
    find(rest, kind)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the text in an attribute's value, up to its end or the first zero byte.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_with_an_error_where_one_is_cut_off_and_an_error_of_none_is_none() {
        let answer = |code: i32| request(ERROR, 0, &code.to_ne_bytes());
        let padding = vec![0; 3];
        let all = [request(20, 2, b"abcde"), padding, answer(0), answer(-libc::ENOENT), request(DONE, 0, &[])].concat();
        let words = |bytes: &[u8]| -> Vec<String> {
            let word = |message| match message {
                Message::Of(kind, body) => format!("{kind} {}", String::from_utf8_lossy(body)),
                Message::Done => "done".to_owned(),
                Message::Answer(Ok(())) => "ok".to_owned(),
                Message::Answer(Err(error)) => format!("{:?}", error.kind()),
            };
            messages(bytes).map(word).collect()
        };
        assert_eq!(words(&all), ["20 abcde", "ok", "NotFound", "done"]);
        for len in 0..all.len() {
            let is_complete = [0, 21, 22, 23, 24, 44, 64].contains(&len);
            assert_eq!(words(&all[..len]).last().is_some_and(|word| word == "Other"), !is_complete, "{len}");
        }
        assert_eq!(words(&[4, 0, 0, 0, 0, 0, 0, 0]), ["Other"], "shorter than its header");
    }

    #[test]
    fn attributes_are_found_within_attributes_and_broken_ones_end_them() {
        const NESTED: u16 = 1 << 15;
        let inner = [attribute(2, b"rx-lro\0"), attribute(1, &7_u32.to_ne_bytes()), attribute(3, b"abc")].concat();
        let outer = [attribute(9, b"x"), attribute(1 | NESTED, &inner)].concat();
        let nested = find(&outer, 1).unwrap();
        assert_eq!(find(nested, 2).map(text), Some("rx-lro".to_owned()));
        assert_eq!((find_u32(nested, 1), find_u32(nested, 3), find_u32(nested, 4)), (Some(7), None, None));
        assert_eq!(text(b"a\xffb\0c"), "a\u{fffd}b");
        for len in 0..outer.len() {
            assert!(attributes(&outer[..len]).count() <= 2);
        }
        for broken in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[255, 255, 1, 0, 1]] {
            assert_eq!(attributes(broken).count(), 0, "{broken:?}");
        }
    }
}
