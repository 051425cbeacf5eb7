//! List file with one prefix per line. Each prefix is followed by a `#` comment with its expiry and reason. The file
//! is replaced by a rename, so no reader sees half of it. After a restart it is read again, so denials survive while
//! the local API is away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_policy::files;
use ratelimit_report::entries::UNTIL;

use crate::book::{Denied, Held};

/// Default maximum number of prefixes in the file.
pub const PREFIXES_DEFAULT: u32 = 131_072;
/// Capacity of the kernel for prefixes of one family, which other lists share.
pub const PREFIXES_MAX: u32 = ratelimit_common::layout::PREFIXES_MAX;
/// Maximum size in bytes of a list file.
const BYTES_MAX: u64 = ratelimit_policy::config::lists::LIST_BYTES_MAX;
/// File mode: the daemon reads the file as another user.
const MODE: u32 = 0o644;
/// Placeholder for an empty list, because the daemon rejects a list that became empty. No packet has this source
/// address.
const NOBODY: &str = "0.0.0.0/32 # no decision holds\n";
/// Label prefix of decisions that this host's local API made.
const LOCAL: &str = "local: ";
/// Label prefix of other decisions. Written only if the scenario's own name begins with [`LOCAL`] or [`OTHER`].
const OTHER: &str = "other: ";

/// Returns the text of the list file.
pub fn text(denied: &Denied) -> String {
    let mut text =
        String::from("# Decisions of CrowdSec, written by `ratelimitd crowdsec`: changes by hand are overwritten.\n");
    if denied.left_out > 0 {
        let _ = writeln!(text, "# LEFT OUT, as there is no room: {}", denied.left_out);
    }
    if denied.prefixes.is_empty() {
        text += NOBODY;
    }
    for (prefix, held) in &denied.prefixes {
        let until = held.until.round(jiff::Unit::Second).unwrap_or(held.until);
        let is_unclear = held.label.starts_with(LOCAL) || held.label.starts_with(OTHER);
        let whose = match (held.is_local, is_unclear) {
            (true, _) => LOCAL,
            (false, true) => OTHER,
            (false, false) => "",
        };
        let _ = writeln!(text, "{prefix} # {UNTIL}{until} {whose}{}", held.label);
    }
    text
}

/// Parses a text that [`text`] wrote. Skips lines of any other form.
pub fn parse(text: &str) -> BTreeMap<IpNet, Held> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<(IpNet, Held)> {
    let (prefix, comment) = line.split_once(" # ")?;
    let (until, label) = comment.strip_prefix(UNTIL)?.split_once(' ')?;
    let (label, is_local) = match (label.strip_prefix(LOCAL), label.strip_prefix(OTHER)) {
        (Some(label), _) => (label, true),
        (None, other) => (other.unwrap_or(label), false),
    };
    Some((prefix.parse().ok()?, Held { until: until.parse().ok()?, label: Arc::from(label), is_local }))
}

/// Reads the file that an earlier run wrote. Returns an empty map if there is no file.
pub fn read(path: &Path) -> io::Result<BTreeMap<IpNet, Held>> {
    let file = match files::open_named(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Writes the file atomically: a reader, or a crash, finds the old file or the new one.
pub fn write(path: &Path, denied: &Denied) -> io::Result<()> {
    replace(path, &text(denied))
}

/// Replaces a list file with the given text, readable by all users.
///
/// # Errors
/// Fails if the file system does, or if the path is not a regular file, such as a device, a FIFO or a symbolic link.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it exists already, and is no regular file"));
    }
    let new = beside(path);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    // The mode must not depend on the umask.
    let written = file
        .set_permissions(fs::Permissions::from_mode(MODE))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use proptest::prelude::*;

    fn denied() -> impl Strategy<Value = Denied> {
        let prefix = prop_oneof![
            (any::<u32>(), 0..=32_u8)
                .prop_map(|(bits, length)| IpNet::new(std::net::Ipv4Addr::from(bits).into(), length)),
            (any::<u128>(), 0..=128_u8)
                .prop_map(|(bits, length)| IpNet::new(std::net::Ipv6Addr::from(bits).into(), length)),
        ];
        let prefix = prefix.prop_map(|prefix| prefix.unwrap().trunc());
        let held = (0..4_000_000_000_i64, "(local: |other: ){0,2}[!-~ ]{0,20}[!-~]", any::<bool>()).prop_map(
            |(until, label, is_local)| Held {
                until: Timestamp::from_second(until).unwrap(),
                label: label.into(),
                is_local,
            },
        );
        let prefixes = proptest::collection::btree_map(prefix, held, 0..8);
        prefixes.prop_map(|prefixes| Denied { prefixes, left_out: 0 })
    }

    #[test]
    fn a_file_that_is_not_regular_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        replace(&at("list"), "192.0.2.1\n").unwrap();
        replace(&at("list"), "192.0.2.2\n").unwrap();
        assert_eq!(fs::read_to_string(at("list")).unwrap(), "192.0.2.2\n");
        std::os::unix::fs::symlink(at("list"), at("link")).unwrap();
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert_eq!(read(&at("socket")).unwrap_err().to_string(), "it is a socket, not a file");
        for name in ["link", "socket", "."] {
            let error = replace(&at(name), "192.0.2.3\n").unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{name}: {error}");
        }
        assert_eq!(fs::read_to_string(at("list")).unwrap(), "192.0.2.2\n");
    }

    proptest! {
        #[test]
        fn a_written_list_is_read_back_and_parses_as_the_same_prefixes(denied in denied()) {
            let text = text(&denied);
            prop_assert_eq!(&parse(&text), &denied.prefixes);
            let listed = ratelimit_policy::config::lists::parse(Path::new("list"), &text).unwrap();
            let mut expected: std::collections::BTreeSet<IpNet> = denied.prefixes.keys().copied().collect();
            if expected.is_empty() {
                expected.insert("0.0.0.0/32".parse().unwrap());
            }
            prop_assert_eq!(listed.into_iter().collect::<std::collections::BTreeSet<_>>(), expected);
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_is_readable_by_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("crowdsec.txt");
        assert_eq!(read(&path).unwrap(), BTreeMap::new());
        let held = Held { until: Timestamp::from_second(9).unwrap(), label: "s (o)".into(), is_local: true };
        let denied = Denied { prefixes: [("192.0.2.7/32".parse().unwrap(), held)].into(), left_out: 3 };
        fs::write(beside(&path), "left by a crash").unwrap();
        write(&path, &denied).unwrap();
        write(&path, &denied).unwrap();
        assert_eq!(read(&path).unwrap(), denied.prefixes);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(fs::read_to_string(&path).unwrap().contains("LEFT OUT, as there is no room: 3"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(write(Path::new("/nonexistent/crowdsec.txt"), &denied).is_err());
    }
}
