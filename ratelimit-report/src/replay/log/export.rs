//! Reader for `journalctl -o export`. Entries consist of fields, `NAME=value` or a name with a length and bytes, and
//! end at an empty line.

use std::io;

use super::lines::Lines;
use super::time::Stamp;

/// Entry of a journal.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Text of the log message.
    pub(super) message: Vec<u8>,
    /// Time at which the journal received the message.
    pub(super) stamp: Option<Stamp>,
}

/// Returns true if a file that begins with `start` is a journal export.
pub(super) fn is_export(start: &[u8]) -> bool {
    start.starts_with(b"__CURSOR=") || start.starts_with(b"__REALTIME_TIMESTAMP=")
}

/// Returns the next entry; none at the end.
pub(super) fn entry<R: io::Read>(lines: &mut Lines<R>) -> io::Result<Option<Entry>> {
    let (mut entry, mut has_any) = (Entry::default(), false);
    while let Some(line) = lines.next()? {
        if line.is_empty() {
            if has_any {
                return Ok(Some(entry));
            }
            continue;
        }
        has_any = true;
        if let Some(message) = line.strip_prefix(b"MESSAGE=") {
            entry.message = message.to_vec();
        } else if let Some(time) = line.strip_prefix(b"__REALTIME_TIMESTAMP=") {
            entry.stamp = Stamp::epoch(time);
        } else if line.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_') {
            let is_message = line == b"MESSAGE";
            let len = lines.exactly::<8>()?.map(u64::from_le_bytes);
            let Some(len) = len else { break };
            let bytes = lines.bytes(len)?;
            if is_message {
                entry.message = bytes.to_vec();
            }
        }
    }
    Ok(has_any.then_some(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_message_as_a_line_or_as_bytes() {
        let mut text =
            b"__CURSOR=a\n__REALTIME_TIMESTAMP=1791665736000000\nMESSAGE=one\n\n__CURSOR=b\nMESSAGE\n".to_vec();
        text.extend_from_slice(&7_u64.to_le_bytes());
        text.extend_from_slice(b"two\n\n\0x\nPRIORITY=6\n\n\n__CURSOR=c\nMESSAGE=three");
        assert!(is_export(&text));
        let mut lines = Lines::new(io::Cursor::new(text));
        let mut messages = Vec::new();
        while let Some(entry) = entry(&mut lines).expect("read") {
            messages.push((String::from_utf8(entry.message).expect("a text"), entry.stamp.is_some()));
        }
        let messages: Vec<_> = messages.iter().map(|(message, has_stamp)| (message.as_str(), *has_stamp)).collect();
        assert_eq!(messages, [("one", true), ("two\n\n\0x", false), ("three", false)]);
    }

    #[test]
    fn a_length_that_is_no_length_ends_with_the_file() {
        for len in [u64::MAX, 1 << 40, 0] {
            let text = [b"__CURSOR=a\nMESSAGE\n".as_slice(), &len.to_le_bytes(), b"abc"].concat();
            let mut lines = Lines::new(io::Cursor::new(text));
            assert!(entry(&mut lines).expect("read").is_some());
            assert!(entry(&mut lines).expect("read").is_none());
        }
    }
}
