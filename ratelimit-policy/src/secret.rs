//! Files that hold the secrets of a fleet: their contents, and problems with them, each with advice.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::config::fleet::Fleet;
use crate::files;

/// Minimum length of a fleet's secret, in bytes.
pub const BYTES_MIN: usize = 32;

/// Maximum lengths of a file with a secret, and of any other file, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// User that owns the service's files.
const ROOT: u32 = 0;

/// Mode bits that give access to group and others.
const OPEN_TO_OTHERS: u32 = 0o077;

/// Reads the secret in a file. Trailing spaces and line ends are removed, so that all hosts take the same secret.
///
/// # Errors
/// Fails if the file cannot be read, or if the secret is shorter than [`BYTES_MIN`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let secret = files::read_of_anyone(path, SECRET_BYTES_MAX)?.trim_ascii_end().to_vec();
    if secret.len() < BYTES_MIN {
        let problem = format!("it has {} bytes, and a secret has {BYTES_MIN} at least", secret.len());
        return Err(io::Error::other(problem));
    }
    Ok(secret)
}

/// Returns the problems with the files that a fleet names, one sentence each without a full stop.
pub fn trouble(fleet: &Fleet) -> Vec<String> {
    trouble_of(fleet, ROOT)
}

/// Returns the problems with the access to the secret files: others may read or write them, or the service cannot
/// read them. The service runs as root without the capability to ignore file modes. One sentence each, without a full
/// stop.
pub fn access_trouble(fleet: &Fleet) -> Vec<String> {
    access_trouble_of(fleet, ROOT)
}

fn access_trouble_of(fleet: &Fleet, reader: u32) -> Vec<String> {
    let files =
        [("secret", &fleet.secret_file), ("password", &fleet.store.password_file), ("key", &fleet.store.key_file)];
    let files = files.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?)));
    files.flat_map(|(what, path)| [of_another(what, path, reader), open_to_others(what, path)]).flatten().collect()
}

fn trouble_of(fleet: &Fleet, reader: u32) -> Vec<String> {
    let mut said = access_trouble_of(fleet, reader);
    if let Some(path) = &fleet.secret_file {
        let make = "make it on one host, `head -c 32 /dev/urandom | base64`, and copy it to the others";
        said.extend(read(path).err().map(|error| sentence("secret", path, &error, make)));
    }
    if let Some(path) = &fleet.store.password_file {
        let first_line = files::read_of_anyone(path, FILE_BYTES_MAX).and_then(|bytes| match bytes.first() {
            None | Some(b'\n' | b'\r') => Err(io::Error::other("its first line is empty")),
            Some(_) => Ok(()),
        });
        let write = "write the password of the store's user into its first line";
        said.extend(first_line.err().map(|error| sentence("password", path, &error, write)));
    }
    let certificates =
        [("CA", &fleet.store.ca_file), ("certificate", &fleet.store.cert_file), ("key", &fleet.store.key_file)];
    for (what, path) in certificates.iter().filter_map(|(what, path)| Some((what, path.as_ref()?))) {
        let read = files::read_of_anyone(path, FILE_BYTES_MAX);
        said.extend(read.err().map(|error| sentence(what, path, &error, "put a PEM file there")));
    }
    said
}

fn sentence(what: &str, path: &Path, error: &io::Error, help: &str) -> String {
    let text = error.to_string();
    let reason = text.split(" (os error").next().unwrap_or(&text).to_lowercase();
    format!("the fleet's {what} cannot be taken from {}: {reason}; {help}", path.display())
}

fn of_another(what: &str, path: &Path, reader: u32) -> Option<String> {
    let (owner, path) = (fs::metadata(path).ok()?.uid(), path.display());
    (owner != reader).then(|| {
        format!("the fleet's {what} belongs to UID {owner}: the service cannot read it: sudo chown root {path}")
    })
}

fn open_to_others(what: &str, path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.mode() & 0o777;
    let is_open = mode & OPEN_TO_OTHERS != 0;
    let path = path.display();
    is_open.then(|| format!("others than its owner may read or write the fleet's {what}: chmod 600 {path}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::fleet::Access;

    /// Returns the user that runs this test.
    fn reader() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> std::path::PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_secret_is_what_stands_before_the_end_of_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let secret = "s".repeat(BYTES_MIN);
        for text in [format!("{secret}\n"), format!("{secret} \r\n"), secret.clone()] {
            assert_eq!(read(&file(dir.path(), "secret", &text, 0o600)).unwrap(), secret.as_bytes());
        }
        let error = read(&file(dir.path(), "secret", &format!("{}\n", &secret[1..]), 0o600)).unwrap_err();
        assert_eq!(error.to_string(), "it has 31 bytes, and a secret has 32 at least");
    }

    #[test]
    fn problems_of_secret_files_are_reported_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let secret = "s".repeat(BYTES_MIN);
        let fleet =
            Fleet { secret_file: Some(file(dir.path(), "secret", &secret, 0o600)), ..Fleet::at("rediss://192.0.2.1") };
        let fleet = Fleet {
            store: Access { password_file: Some(file(dir.path(), "password", "p\n", 0o600)), ..fleet.store.clone() },
            ..fleet
        };
        assert_eq!(trouble_of(&fleet, reader()), [""; 0]);
        let of_another = trouble_of(&fleet, reader() + 1);
        let path = dir.path().join("secret");
        let expected = format!(
            "the fleet's secret belongs to UID {}: the service cannot read it: sudo chown root {}",
            reader(),
            path.display()
        );
        assert_eq!((of_another.len(), &of_another[0]), (2, &expected));
        let of = |change: &dyn Fn(&mut Fleet)| {
            let mut fleet = fleet.clone();
            change(&mut fleet);
            trouble_of(&fleet, reader()).join("\n")
        };
        let path = |name: &str| Some(dir.path().join(name));
        let short = of(&|of| of.secret_file = Some(file(dir.path(), "short", "s", 0o600)));
        assert!(short.contains("short: it has 1 bytes, and a secret has 32 at least; make it on one host"), "{short}");
        let none = of(&|of| of.secret_file = path("none"));
        assert!(none.contains("none: no such file or directory; make it on one host"), "{none}");
        let open = of(&|of| of.secret_file = Some(file(dir.path(), "open", &secret, 0o640)));
        let expected = format!(
            "others than its owner may read or write the fleet's secret: chmod 600 {}",
            dir.path().join("open").display()
        );
        assert_eq!(open, expected);
        let empty = of(&|of| of.store.password_file = Some(file(dir.path(), "empty", "\n", 0o600)));
        assert!(empty.contains("empty: its first line is empty; write the password"), "{empty}");
        let ca = of(&|of| of.store.ca_file = path("ca"));
        assert!(ca.contains("the fleet's CA cannot be taken from"), "{ca}");
        let key = of(&|of| of.store.key_file = Some(file(dir.path(), "key", "k", 0o604)));
        assert!(key.starts_with("others than its owner may read or write the fleet's key: chmod 600"), "{key}");
        assert!(![short, open, empty, key].join("").contains(&secret));
    }
}
