//! Web servers that run on this host, and the access logs that they have open.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group};

use crate::facts::{Known, OpenLog, Readers, Server};
use crate::read::words;

/// Process names, and the server that each belongs to.
const SERVERS: [(&str, &str); 6] = [
    ("nginx", "nginx"),
    ("apache2", "Apache"),
    ("httpd", "Apache"),
    ("caddy", "Caddy"),
    ("haproxy", "HAProxy"),
    ("lighttpd", "lighttpd"),
];
/// Open flags of a file that is only read, in `/proc/PID/fdinfo`.
const ACCESS_MODE: u32 = 0o3;

/// Returns the servers that run here and not in a container, each once. `proc` is `/proc`.
pub(crate) fn running(proc: &Path) -> Vec<Server> {
    let mut servers: BTreeMap<&str, Server> = BTreeMap::new();
    let own_files = fs::read_link(proc.join("self/ns/mnt")).ok();
    let Ok(processes) = fs::read_dir(proc) else { return Vec::new() };
    for process in processes.flatten().map(|process| process.path()) {
        let is_process = process.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        let Some(name) = fs::read_to_string(process.join("comm")).ok().filter(|_| is_process) else { continue };
        let Some((_, name)) = SERVERS.iter().find(|(comm, _)| *comm == name.trim_end()) else { continue };
        // A path in another mount namespace is not valid on this host.
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|files| own_files.as_ref() != Some(&files)) {
            continue;
        }
        let logs = open_logs(&process);
        let server = servers.entry(name).or_insert_with(|| Server { name: (*name).to_owned(), logs: Ok(Vec::new()) });
        match (&mut server.logs, logs) {
            (Ok(known), Ok(more)) => known.extend(more),
            (Err(_), Ok(more)) => server.logs = Ok(more),
            (Ok(known), Err(why)) if known.is_empty() => server.logs = Err(why),
            (_, Err(_)) => {}
        }
    }
    let sorted = |mut server: Server| {
        if let Ok(logs) = &mut server.logs {
            logs.sort();
            logs.dedup();
        }
        server
    };
    servers.into_values().map(sorted).collect()
}

/// Returns the files named as access logs that a process has open to write.
fn open_logs(process: &Path) -> Known<Vec<OpenLog>> {
    let files = fs::read_dir(process.join("fd")).map_err(|error| words(&error))?;
    let log = |file: PathBuf| {
        let path = fs::read_link(process.join("fd").join(&file)).ok()?;
        let is_named = path.file_name()?.to_string_lossy().to_lowercase().contains("access");
        let flags = fs::read_to_string(process.join("fdinfo").join(&file)).ok()?;
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
        let is_written = u32::from_str_radix(&flags, 8).ok()? & ACCESS_MODE != 0;
        let metadata = fs::metadata(&path).ok().filter(|metadata| metadata.is_file() && is_named && is_written)?;
        Some(OpenLog { readers: readers(metadata.mode(), metadata.gid()), path })
    };
    Ok(files.flatten().filter_map(|file| log(file.file_name().into())).collect())
}

/// Returns the users that may read a file of that mode and group.
fn readers(mode: u32, gid: u32) -> Readers {
    if mode & 0o004 != 0 {
        return Readers::Everyone;
    }
    if mode & 0o040 == 0 {
        return Readers::Owner;
    }
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    Readers::Group(group.map_or_else(|| gid.to_string(), |group| group.name))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, pid: &str, comm: &str, open: &[(&Path, u32)]) {
        let process = proc.join(pid);
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::create_dir_all(process.join("fdinfo")).unwrap();
        fs::create_dir_all(process.join("ns")).unwrap();
        symlink("mnt:[1]", process.join("ns/mnt")).unwrap();
        fs::write(process.join("comm"), format!("{comm}\n")).unwrap();
        for (number, (path, flags)) in open.iter().enumerate() {
            symlink(path, process.join("fd").join(number.to_string())).unwrap();
            fs::write(process.join("fdinfo").join(number.to_string()), format!("pos:\t0\nflags:\t{flags:o}\n"))
                .unwrap();
        }
    }

    #[test]
    fn a_mode_says_who_reads() {
        assert_eq!(readers(0o100_644, 0), Readers::Everyone);
        assert_eq!(readers(0o100_640, 0), Readers::Group("root".to_owned()));
        assert_eq!(readers(0o100_640, 4_000_000_000), Readers::Group("4000000000".to_owned()));
        assert_eq!(readers(0o100_600, 0), Readers::Owner);
    }

    #[test]
    fn the_logs_that_servers_write_are_found_and_no_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["site.access.log", "error.log", "old-access.log"] {
            File::create(at(name)).unwrap();
        }
        let proc = at("proc");
        process(&proc, "self", "ratelimitd", &[]);
        let written = 0o102_001;
        let (log, error, old) = (at("site.access.log"), at("error.log"), at("old-access.log"));
        process(&proc, "10", "nginx", &[(&log, written), (&error, written), (&old, 0o100_000)]);
        process(&proc, "11", "nginx", &[(&log, written)]);
        process(&proc, "12", "haproxy", &[]);
        process(&proc, "13", "bash", &[(&log, written)]);
        process(&proc, "14", "caddy", &[(&log, written)]);
        fs::remove_file(proc.join("14/ns/mnt")).unwrap();
        symlink("mnt:[2]", proc.join("14/ns/mnt")).unwrap();
        let found = running(&proc);
        let names: Vec<_> = found.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["HAProxy", "nginx"], "that of a container is not here");
        let paths: Vec<_> = found[1].logs.as_ref().unwrap().iter().map(|log| &log.path).collect();
        assert_eq!(paths, [&log]);
        assert_eq!(found[0].logs, Ok(Vec::new()));
    }
}
