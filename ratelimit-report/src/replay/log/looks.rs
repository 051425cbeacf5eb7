//! Recognition of files that cannot be read as a log, with advice.

/// Kind of an unreadable file, and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) struct Looks {
    /// Description as a clause, "it is …".
    pub(in crate::replay) what: String,
    /// Advice on what to do.
    pub(in crate::replay) help: String,
}

/// Description of the formats that are read.
pub(in crate::replay) const FORMATS: &str = "it reads captures and access logs, also packed by gzip; \
    `ratelimitd replay --help` has the formats";

/// Magic bytes of files that need another program, with a description and the command that converts them to text.
const PACKED: [(&[u8], &str, &str); 9] = [
    (b"\x1f\x8b", "compressed by gzip twice", "unpack it on the way: zcat FILE"),
    (b"\x1f\x9d", "compressed (compress)", "unpack it on the way: zcat FILE"),
    (b"\xfd7zXZ", "compressed (xz)", "unpack it on the way: xzcat FILE"),
    (b"\x28\xb5\x2f\xfd", "compressed (zstd)", "unpack it on the way: zstdcat FILE"),
    (b"\x04\x22\x4d\x18", "compressed (lz4)", "unpack it on the way: lz4cat FILE"),
    (b"PK\x03\x04", "a zip archive", "unpack it on the way: unzip -p FILE"),
    (b"LPKSHHRH", "a journal of systemd", "read it with journalctl: journalctl --file FILE -o json"),
    (b"\xff\xfe", "a text in UTF-16", "convert it on the way: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "a text in UTF-16", "convert it on the way: iconv -f UTF-16 -t UTF-8 FILE"),
];

/// Recognizes an empty or packed file. Returns none if it may be a log. NUL bytes do not matter, because a client may
/// send them.
pub(in crate::replay) fn packed(start: &[u8]) -> Option<Looks> {
    if start.trim_ascii().is_empty() {
        return Some(Looks { what: "it is empty".to_owned(), help: FORMATS.to_owned() });
    }
    let packed = PACKED.iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, what, help)| (*what, *help));
    // A log line may have the same letters there. In a tar archive, NUL bytes pad the file name before them.
    let is_tar = start.get(257..262) == Some(b"ustar") && start[..257].contains(&0);
    let tar = is_tar.then_some(("a tar archive", "unpack it on the way: tar -xOf FILE"));
    // A host name may begin with the same letters.
    let is_bzip2 = start.starts_with(b"BZh") && start.get(4..10) == Some(b"1AY&SY");
    let bzip2 = is_bzip2.then_some(("compressed (bzip2)", "unpack it on the way: bzcat FILE"));
    let (what, help) = packed.or(bzip2).or(tar)?;
    Some(Looks { what: format!("it is {what}"), help: format!("{help} | ratelimitd replay -") })
}

/// Returns true if a line contains NUL bytes. NULs at the start of a line are the rest of a hole and do not count.
fn is_binary(start: &[u8]) -> bool {
    start.split(|byte| *byte == b'\n').any(|line| {
        let holes = line.iter().take_while(|byte| **byte == 0).count();
        line[holes..].contains(&0)
    })
}

/// Describes a file in which no line is a request. Returns none if its kind is unknown.
pub(in crate::replay) fn looks(start: &[u8]) -> Option<Looks> {
    if !super::export::is_export(start) && is_binary(start) {
        return Some(Looks { what: "it is neither a capture nor an access log".to_owned(), help: FORMATS.to_owned() });
    }
    let text = String::from_utf8_lossy(&start[..start.len().min(1 << 14)]);
    let any = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let (what, help) = if text.starts_with("[{") || text.starts_with("[\n") && text.contains('{') {
        (
            "it looks like one JSON array, but each line must be one object",
            "split it into lines: jq -c '.[]' FILE | ratelimitd replay -",
        )
    } else if text.starts_with("{\n") || text.starts_with("{\r\n") {
        (
            "it looks like JSON objects of several lines each, but each line must be one object",
            "put each on one line: jq -c . FILE | ratelimitd replay -",
        )
    } else if any(&[" [error] ", " [warn] ", " [crit] "]) && any(&[": *", ", client: "]) {
        (
            "it looks like nginx's error log, which has no requests",
            "replay its access log (access_log in its configuration)",
        )
    } else if any(&["[client ", ":error] [", ":notice] ["]) {
        (
            "it looks like Apache's error log, which has no requests",
            "replay its access log (CustomLog in its configuration)",
        )
    } else if any(&[" sshd[", " sshd-session["]) {
        (
            "it looks like sshd's log, which has no requests",
            "replay a capture for connections: tcpdump -i IF -s 0 -w FILE 'port 22'",
        )
    } else if any(&[" haproxy[", "Connect from "]) {
        ("it looks like HAProxy's log without its requests", "write `option httplog` in HAProxy's configuration")
    } else if text.contains("\n    MESSAGE=") {
        ("it looks like journalctl -o verbose", "export it as JSON: journalctl -u nginx -o json | ratelimitd replay -")
    } else if any(&["<html", "<HTML", "<?xml", "<!DOCTYPE", "<!doctype"]) {
        ("it looks like HTML or XML", FORMATS)
    } else {
        return None;
    };
    Some(Looks { what: what.to_owned(), help: help.to_owned() })
}
