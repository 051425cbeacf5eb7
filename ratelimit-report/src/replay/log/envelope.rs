//! Prefixes that a log daemon, a journal or a container runtime puts before a server's own line.

use super::time::Stamp;

/// Envelope of a server's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope<'a> {
    /// Time at which the line was recorded, if the envelope has it.
    pub(super) stamp: Option<Stamp>,
    /// Line of the server itself.
    pub(super) message: &'a [u8],
}

/// Removes one envelope. Returns none if the line has none.
pub(super) fn take_off(text: &[u8]) -> Option<Envelope<'_>> {
    match priority(text) {
        Some(rest) => rfc5424(rest).or_else(|| of_daemon(rest)).or_else(|| tagged(rest, None)),
        None => of_daemon(text).or_else(|| of_container(text)).or_else(|| of_compose(text)).or_else(|| of_python(text)),
    }
}

/// Returns the text after a priority such as `<34>`.
fn priority(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"<")?;
    let end = rest.iter().take(4).position(|byte| *byte == b'>')?;
    (end > 0 && rest[..end].iter().all(u8::is_ascii_digit)).then(|| &rest[end + 1..])
}

/// Parses `1 2003-10-11T22:14:15.003Z host app procid msgid [data] message`.
fn rfc5424(text: &[u8]) -> Option<Envelope<'_>> {
    let (stamp, mut rest) = word(text.strip_prefix(b"1 ")?)?;
    for _ in 0..4 {
        rest = word(rest)?.1;
    }
    let rest = match rest {
        [b'-', rest @ ..] => rest,
        [b'[', ..] => structured_data(rest)?,
        _ => return None,
    };
    let message = rest.trim_ascii_start();
    Some(Envelope { stamp: Stamp::iso(stamp), message: message.strip_prefix(b"\xef\xbb\xbf").unwrap_or(message) })
}

/// Returns the text after `[id name="value"][...]`. Brackets and quotation marks in a value are escaped by backslashes.
fn structured_data(text: &[u8]) -> Option<&[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted && text.get(at + 1) != Some(&b'[') => return text.get(at + 1..),
            _ => {}
        }
    }
    None
}

/// Parses `TIME host tag[pid]: message`, as written by RFC 3164, rsyslog and every short form of `journalctl`. Lines
/// that servers send to a local socket have no host.
fn of_daemon(text: &[u8]) -> Option<Envelope<'_>> {
    if let Some((stamp, rest)) = Stamp::syslog(text) {
        let rest = rest.trim_ascii_start();
        return tagged(rest, Some(stamp)).or_else(|| tagged(word(rest)?.1, Some(stamp)));
    }
    let (first, rest) = word(text)?;
    if let Some(stamp) = Stamp::iso(first).or_else(|| Stamp::epoch(first)) {
        return tagged(word(rest)?.1, Some(stamp));
    }
    // journalctl -o short-full: Sat 2026-10-10 13:55:36 UTC host tag[pid]: message
    let (date, rest) = word(rest)?;
    let (time, rest) = word(rest)?;
    let (zone, rest) = word(rest)?;
    let stamp = Stamp::iso(&[date, b"T", time, zone].concat()).or_else(|| Stamp::iso(&[date, b"T", time].concat()))?;
    tagged(word(rest)?.1, Some(stamp))
}

/// Parses `tag[pid]: message` or `tag: message`.
fn tagged(text: &[u8], stamp: Option<Stamp>) -> Option<Envelope<'_>> {
    let (tag, message) = word(text)?;
    let name = tag.strip_suffix(b":")?;
    (!name.is_empty()).then_some(Envelope { stamp, message })
}

/// Parses `[2026-10-10 13:55:36 +0000] [123] [INFO] message`, which hypercorn writes through Python's logging.
fn of_python(text: &[u8]) -> Option<Envelope<'_>> {
    let (time, rest) = in_brackets(text)?;
    let (pid, rest) = in_brackets(rest.strip_prefix(b" ")?)?;
    let (level, rest) = in_brackets(rest.strip_prefix(b" ")?)?;
    let [date, clock, zone] = [0, 1, 2].map(|at| time.split(|byte| *byte == b' ').nth(at));
    let stamp = Stamp::iso(&[date?, b"T", clock?, zone.unwrap_or_default()].concat())?;
    let is_one = pid.iter().all(u8::is_ascii_digit) && level.iter().all(u8::is_ascii_uppercase);
    is_one.then_some(Envelope { stamp: Some(stamp), message: rest.strip_prefix(b" ")? })
}

/// Returns the text within brackets at the beginning, and the text after them.
fn in_brackets(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = text.strip_prefix(b"[")?;
    let end = rest.iter().position(|byte| *byte == b']')?;
    Some((&rest[..end], &rest[end + 1..]))
}

/// Parses `2016-10-06T00:17:09.669794202Z stdout F message`, the format of container logs in Kubernetes.
fn of_container(text: &[u8]) -> Option<Envelope<'_>> {
    let (time, rest) = word(text)?;
    let (stream, rest) = word(rest)?;
    let (part, message) = word(rest)?;
    let is_one = matches!(stream, b"stdout" | b"stderr") && matches!(part, b"F" | b"P");
    is_one.then(|| Some(Envelope { stamp: Some(Stamp::iso(time)?), message }))?
}

/// Parses `web-1  | message`, the format of `docker compose logs`.
fn of_compose(text: &[u8]) -> Option<Envelope<'_>> {
    let (name, rest) = word(text)?;
    let message = rest.trim_ascii_start().strip_prefix(b"| ")?;
    (!name.starts_with(b"{")).then_some(Envelope { stamp: None, message })
}

/// Returns the first word, and the text after the blank that follows it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ').filter(|at| *at > 0)?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_envelope_is_taken_off() {
        for (before, has_stamp) in [
            ("Oct 10 13:55:36 web nginx: ", true),
            ("Oct  5 13:55:36 web nginx[712]: ", true),
            ("<190>Oct 10 13:55:36 web nginx: ", true),
            ("Oct 10 13:55:36.123456 web nginx[712]: ", true),
            ("2026-10-10T13:55:36+0200 web nginx[712]: ", true),
            ("2026-10-10T13:55:36.123456+02:00 web nginx[712]: ", true),
            ("Sat 2026-10-10 13:55:36 UTC web nginx[712]: ", true),
            ("Sat 2026-10-10 13:55:36 CEST web nginx[712]: ", true),
            ("1791665736.123456 web nginx[712]: ", true),
            ("<34>1 2026-10-10T13:55:36.003Z web nginx 712 ID47 - ", true),
            ("<34>1 2026-10-10T13:55:36.003Z web nginx - - [a@1 b=\"c \\\"] d\"][e@1] \u{feff}", true),
            ("<34>1 - web nginx - - - ", false),
            ("<134>Oct 10 13:55:36 haproxy[712]: ", true),
            ("[2026-10-10 13:55:36 +0000] [712] [INFO] ", true),
            ("<190>nginx: ", false),
            ("2026-10-10T13:55:36.669794202Z stdout F ", true),
            ("web-1  | ", false),
        ] {
            let text = format!("{before}192.0.2.7 - - [x] \"y\"");
            let of = take_off(text.as_bytes()).expect(before);
            assert_eq!(
                (of.message, of.stamp.is_some()),
                (b"192.0.2.7 - - [x] \"y\"".as_slice(), has_stamp),
                "{before}"
            );
        }
        for text in ["", "192.0.2.7 - - [x] \"y\"", "<>a", "<34>", "Oct 10 13:55:36", "{\"a\": | 1}", "a b c d e: f"] {
            assert_eq!(take_off(text.as_bytes()), None, "{text}");
        }
    }
}
