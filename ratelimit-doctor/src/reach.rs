//! Warnings about configured paths that the service cannot use. These are files that its unit hides, files that only
//! CAP_DAC_OVERRIDE could read, and a socket outside of the writable directories.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Group;
use ratelimit_control::socket::GROUP;
use ratelimit_policy::config::{Config, FILE_DEFAULT};

/// Directories that the unit hides, and the setting that does so.
const HIDDEN: [(&str, &str); 5] = [
    ("/root", "ProtectHome=yes"),
    ("/home", "ProtectHome=yes"),
    ("/run/user", "ProtectHome=yes"),
    ("/tmp", "PrivateTmp=yes"),
    ("/var/tmp", "PrivateTmp=yes"),
];
/// Directories in which the unit may create a socket.
const OF_SOCKETS: [&str; 2] = ["/run/ratelimitd", "/var/lib/ratelimitd"];

const READ: u32 = 0o4;
const SEARCH: u32 = 0o1;

/// Returns warnings about the configuration that the service is started with; none for any other file.
pub fn out_of_reach(file: &Path, config: &Config) -> Vec<String> {
    let is_of_service = file == Path::new(FILE_DEFAULT);
    if !is_of_service {
        return Vec::new();
    }
    let group = Group::from_name(GROUP).ok().flatten().map(|group| group.gid.as_raw());
    warnings(file, config, group)
}

fn warnings(file: &Path, config: &Config, group: Option<u32>) -> Vec<String> {
    let mut named: Vec<(&str, &Path)> = vec![("configuration", file)];
    named.extend(config.list_files.iter().map(|list| ("list", list.path.as_path())));
    if let Some(fleet) = &config.fleet {
        let of = [
            ("secret_file", &fleet.secret_file),
            ("password_file", &fleet.store.password_file),
            ("ca_file", &fleet.store.ca_file),
            ("cert_file", &fleet.store.cert_file),
            ("key_file", &fleet.store.key_file),
        ];
        named.extend(of.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?))));
    }
    if let Some(tls) = &config.tls {
        named.extend([("tls_cert_file", tls.cert.as_path()), ("tls_key_file", tls.key.as_path())]);
    }
    let mut warnings: Vec<String> = named
        .into_iter()
        .filter_map(|(what, path)| {
            let why = unread(path, group)?;
            Some(format!("the service cannot read {what} {}: {why}", path.display()))
        })
        .collect();
    let socket = &config.socket;
    if !OF_SOCKETS.iter().any(|directory| socket.starts_with(directory)) {
        let (path, directory) = (socket.display(), OF_SOCKETS[0]);
        warnings.push(format!(
            "the service cannot make its socket {path}: its unit lets it write below {directory} alone; put it there, or add \
             a drop-in with ReadWritePaths="
        ));
    }
    warnings
}

/// Returns the reason why the service cannot read an existing file.
fn unread(path: &Path, group: Option<u32>) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let real = fs::canonicalize(&absolute).ok()?;
    for path in [&absolute, &real] {
        if let Some((directory, setting)) = HIDDEN.iter().find(|(directory, _)| path.starts_with(directory)) {
            return Some(format!("its unit hides {directory} ({setting}); move it to /etc/ratelimitd"));
        }
    }
    let parts: Vec<PathBuf> = real.ancestors().map(Path::to_owned).collect();
    parts.iter().rev().find_map(|part| {
        let of = fs::metadata(part).ok()?;
        let wanted = if of.is_dir() { SEARCH } else { READ };
        (!may(&of, wanted, group)).then(|| {
            let (part, owner, mode) = (part.display(), of.uid(), of.mode() & 0o7777);
            format!(
                "{part} belongs to user {owner}, mode {mode:04o}, and the service is root without CAP_DAC_OVERRIDE; \
                 sudo chown root {part}"
            )
        })
    })
}

/// Returns true if root may use a file by its mode alone, with root's group and the service's group.
fn may(of: &Metadata, wanted: u32, group: Option<u32>) -> bool {
    let shift = if of.uid() == 0 {
        6
    } else if of.gid() == 0 || Some(of.gid()) == group {
        3
    } else {
        0
    };
    (of.mode() >> shift) & wanted == wanted
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    fn config(directory: &Path) -> Config {
        let mut config = ratelimit_report::fixture::config(directory, 1);
        config.socket = "/run/ratelimitd/control.sock".into();
        config.fleet = None;
        config.tls = None;
        config.list_files.clear();
        config
    }

    #[test]
    fn hidden_files_and_misplaced_sockets_are_named_for_the_service_file_only() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let path = directory.path().join("r.toml");
        fs::write(&path, "").unwrap();
        let mut config = config(directory.path());
        let said = warnings(&path, &config, None);
        assert!(said.len() == 1 && said[0].contains("hides /tmp (PrivateTmp=yes)"), "{said:?}");
        assert_eq!(out_of_reach(&path, &config), Vec::<String>::new(), "it is not the service's");
        // The service can read this file.
        let there = Path::new("/etc/hostname");
        assert_eq!(warnings(there, &config, None), Vec::<String>::new());
        config.socket = directory.path().join("s");
        let said = warnings(there, &config, None);
        assert!(said.len() == 1 && said[0].contains("cannot make its socket /tmp/"), "{said:?}");
        for socket in ["/run/ratelimitd/x.sock", "/var/lib/ratelimitd/x.sock"] {
            config.socket = socket.into();
            assert_eq!(warnings(there, &config, None), Vec::<String>::new(), "{socket}");
        }
    }

    #[test]
    fn root_without_the_capability_reads_what_the_mode_says_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, "").unwrap();
        let rows = [
            (0, 0, 0o600, true),
            (0, 0, 0o040, false),
            (33, 33, 0o600, false),
            (33, 33, 0o604, true),
            (33, 0, 0o640, true),
            (33, 7, 0o640, true),
        ];
        for (owner, group, mode, expected) in rows {
            if chown(&path, Some(owner), Some(group)).is_err() {
                println!("skipped: files of other users: needs root");
                return;
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let of = fs::metadata(&path).unwrap();
            assert_eq!(may(&of, READ, Some(7)), expected, "{owner}:{group} {mode:o}");
        }
    }
}
