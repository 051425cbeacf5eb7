//! Framing of netlink messages of all protocols (include/uapi/linux/netlink.h).

use std::io;

use netlink_sys::{Socket, SocketAddr};

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// A message without its header.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// Requested data.
    Of(&'a [u8]),
    /// End of the data.
    Done,
    /// Success of an operation, or its error.
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

/// Returns the messages of one answer, up to the first that is cut off.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(match kind {
            DONE => Message::Done,
            ERROR => Message::Answer(match i32::from_ne_bytes(*body.first_chunk()?) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            }),
            _ => Message::Of(body),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_where_one_is_broken_and_an_error_of_none_is_none() {
        let answer = |code: i32| request(ERROR, 0, &code.to_ne_bytes());
        let all =
            [request(20, 2, b"abcde"), vec![0; 3], answer(0), answer(-libc::ENOENT), request(DONE, 0, &[])].concat();
        let words: Vec<String> = messages(&all)
            .map(|message| match message {
                Message::Of(body) => String::from_utf8_lossy(body).into_owned(),
                Message::Done => "done".to_owned(),
                Message::Answer(Ok(())) => "ok".to_owned(),
                Message::Answer(Err(error)) => format!("{:?}", error.kind()),
            })
            .collect();
        assert_eq!(words, ["abcde", "ok", "NotFound", "done"]);
        for len in 0..all.len() {
            assert!(messages(&all[..len]).count() <= 4);
        }
        assert_eq!(messages(&[4, 0, 0, 0, 0, 0, 0, 0]).count(), 0, "shorter than its header");
    }
}
