//! The only reader of facts. It changes nothing, and reports facts that it cannot read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit};
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::Stats;
use ratelimit_kernel::orphans::orphans_of_host;
use ratelimit_kernel::{clock, connections, device, interface_names, load_alone, pins, privileges, probe};
use ratelimit_policy::config::syntax::near_miss;
use ratelimit_policy::files;
use ratelimit_policy::safety::Around;
use ratelimit_report::snapshot::Snapshot;

use crate::distribution::Distribution;
use crate::facts::{
    BpfFs, Clock, ConfigFile, Daemon, Facts, FileSeen, Kernel, Known, Machine, Permissions, Program, Rule, StateDir,
    Unit,
};
use crate::servers;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Mount point of the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// Name of the systemd service.
const SERVICE: &str = "ratelimitd.service";
/// Directories of systemd units, the administrator's first.
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"];
/// Properties that `systemctl show` is asked for.
const SHOWN: &str = "ActiveState,SubState,Result,NRestarts,NeedDaemonReload,FragmentPath";

/// Maximum size of a unit file in bytes.
const UNIT_BYTES_MAX: u64 = 1 << 20;

/// Request to examine a host.
#[derive(Debug)]
pub struct Asked {
    /// The only interface to examine; `None` for those of the configuration.
    pub interface: Option<String>,
    /// The configuration file, already read.
    pub file: ConfigFile,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Path of the state directory.
    pub state_dir: PathBuf,
}

/// Returns a hint if the interface does not exist: the likely name, and all existing ones. `None` if it exists, or if
/// the interfaces cannot be listed.
pub fn absent(name: &str) -> Option<String> {
    let present = interface_names().ok()?;
    let meant = near_miss(name, present.iter().map(String::as_str));
    let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? "));
    let is_absent = !present.iter().any(|of| of == name);
    is_absent.then(|| format!("{meant}there are {}", present.join(", ")))
}

/// Reads all facts of the host.
pub async fn read(asked: Asked) -> Facts {
    let Asked { interface, file, socket, state_dir } = asked;
    let present = interface_names().unwrap_or_default();
    let wanted = match (interface, file.config()) {
        (Some(name), _) => vec![name],
        (None, Some(config)) => config.interfaces.clone(),
        (None, None) => Vec::new(),
    };
    let devices = device::devices(None).map_err(|error| words(&error));
    let files = files(&file, &socket, &state_dir);
    Facts {
        kernel: kernel(),
        bpffs: bpf_file_system(),
        machine: machine(),
        devices,
        present,
        links: ratelimit_kernel::links().unwrap_or_default(),
        wanted,
        around: Around::look(ratelimit_kernel::default_gateways().unwrap_or_default())
            .with(file.config().and_then(|config| config.fleet.as_ref())),
        daemon: daemon(&socket).await,
        files,
        unit: unit(),
        conntrack: conntrack(),
        clock: Clock {
            is_synchronised: clock::is_synchronised().map_err(|error| words(&error)),
            suspended: clock::suspended().map_err(|error| words(&error)),
        },
        servers: servers::running(Path::new("/proc")),
        state_dir: StateDir { free: free(&state_dir), path: state_dir },
        is_root: nix::unistd::geteuid().is_root(),
        file,
    }
}

/// Returns the error's text in lower case, without the number that Rust appends.
pub(crate) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

fn kernel() -> Kernel {
    let lacks: Vec<String> = privileges::missing().iter().map(ToString::to_string).collect();
    let program = if lacks.is_empty() {
        match load_alone() {
            Ok(of) => Program::Taken { instructions: of.instructions, is_jited: of.is_jited, took: of.took },
            Err(refusal) => Program::Refused { why: refusal.error.to_string(), log: refusal.log },
        }
    } else {
        Program::NotTried(format!("it needs {}", lacks.join(", ")))
    };
    Kernel {
        release: release(),
        distribution: distribution(),
        features: probe::features(),
        program,
        type_information: probe::type_information().map_err(|error| format!("{error:#}")),
        jit: number("/proc/sys/net/core/bpf_jit_enable"),
        lockdown: fs::read_to_string("/sys/kernel/security/lockdown").ok().as_deref().and_then(chosen),
        unprivileged: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        memlock: getrlimit(Resource::RLIMIT_MEMLOCK)
            .ok()
            .map(|(soft, _)| soft)
            .filter(|soft| *soft != nix::sys::resource::rlim_t::MAX),
        ends_connections: connections::can_end().map_err(|error| error.to_string()),
        lacks,
    }
}

/// Returns the distribution. All fields are empty without /etc/os-release.
fn distribution() -> Distribution {
    let read = |path: &str| fs::read_to_string(path).ok();
    let text = read("/etc/os-release").or_else(|| read("/usr/lib/os-release"));
    Distribution::parse(&text.unwrap_or_default())
}

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned())
}

/// Returns the word in brackets: `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn number<T: std::str::FromStr>(path: &str) -> Known<T> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {}", words(&error)))?;
    text.trim().parse().map_err(|_| format!("{path} says {}", text.trim()))
}

fn bpf_file_system() -> Known<BpfFs> {
    let of = fs::metadata(BPFFS).map_err(|error| words(&error))?;
    let kind = nix::sys::statfs::statfs(BPFFS).map_err(|errno| words(&errno.into()))?;
    let foreign = match fs::read_dir(pins::ROOT) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Ok(_) | Err(_) => pins::refuse_foreign(Path::new(pins::ROOT)).err().map(foreign),
    };
    Ok(BpfFs { is_mounted: kind.filesystem_type().0 == BPF_FS_MAGIC, owner: of.uid(), mode: of.mode(), foreign })
}

/// Returns the reason why the pins are not ours, and the command that corrects it. If the file system itself is
/// foreign, the command changes its owner.
fn foreign(error: pins::PinsError) -> (String, String) {
    let why = error.to_string();
    if let pins::PinsError::Foreign { path, .. } = error
        && path == Path::new(BPFFS)
    {
        return (why, format!("sudo chown root:root {BPFFS}; sudo chmod 0700 {BPFFS}"));
    }
    (why, format!("sudo rm -r {}, then start again", pins::ROOT))
}

fn machine() -> Machine {
    let processors = probe::processors().map_err(|error| error.to_string());
    Machine {
        possible_cpus: processors.clone().map(|(possible, _)| possible),
        online_cpus: processors.map(|(_, online)| online),
        available: available_memory(),
        page_bytes: page_bytes(),
        has_tcx: ratelimit_kernel::has_tcx(),
    }
}

/// Returns the size of a page in bytes; 4096 if the C library does not report it.
fn page_bytes() -> u32 {
    let said = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    said.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(4096)
}

/// Returns the available memory in bytes, or why it is not known.
pub fn available_memory() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|error| words(&error))?;
    available_in(&text).ok_or_else(|| "/proc/meminfo has no MemAvailable".to_owned())
}

/// Returns the bytes from a line such as `MemAvailable:  123 kB`.
fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns a client that looks for filters without a daemon if none answers.
pub(crate) fn client(socket: &Path) -> Client {
    Client::new(socket).with_orphan_search(orphans_of_host)
}

async fn daemon(socket: &Path) -> Daemon {
    told(client(socket).call(&Stats::now()).await)
}

fn told(answer: Result<Snapshot, ClientError>) -> Daemon {
    match answer {
        Ok(snapshot) => {
            let apart = Timestamp::now().duration_since(snapshot.time).as_secs_f64();
            Daemon::Answers(Box::new(snapshot), apart)
        }
        Err(ClientError::NoDaemon { orphans, .. }) => Daemon::Silent(orphans),
        Err(error @ (ClientError::TimedOut { .. } | ClientError::Unanswered { .. })) => {
            Daemon::Hangs(error.to_string())
        }
        Err(error) => Daemon::Unknown(error.to_string()),
    }
}

fn files(file: &ConfigFile, socket: &Path, state_dir: &Path) -> Vec<FileSeen> {
    let path = match file {
        ConfigFile::Missing(path)
        | ConfigFile::Unreadable(path, _)
        | ConfigFile::Bad(path, _)
        | ConfigFile::Good(path, ..) => path,
    };
    let mut named: Vec<(&'static str, PathBuf, Rule)> = vec![("configuration", path.clone(), Rule::WrittenByRoot)];
    if let Some(config) = file.config() {
        let lists = config.list_files.iter().map(|list| ("list", list.path.clone(), Rule::List));
        named.extend(lists);
        if let Some(fleet) = &config.fleet {
            let secrets = [
                ("fleet's secret", &fleet.secret_file),
                ("fleet's password", &fleet.store.password_file),
                ("fleet's key", &fleet.store.key_file),
            ];
            named.extend(secrets.into_iter().filter_map(|(what, path)| Some((what, path.clone()?, Rule::Secret))));
        }
        named.extend(config.tls.iter().map(|tls| ("TLS key", tls.key.clone(), Rule::Secret)));
    }
    named.push(("control socket", socket.to_owned(), Rule::Socket));
    named.push(("state directory", state_dir.to_owned(), Rule::Directory));
    for name in ["web-token.json", "history.db"] {
        let what = if name == "history.db" { "history" } else { "web page's token" };
        named.push((what, state_dir.join(name), Rule::Secret));
    }
    named.extend(above(&named));
    let seen =
        |(what, path, rule): (&'static str, PathBuf, Rule)| FileSeen { what, seen: permissions(&path), path, rule };
    named.into_iter().map(seen).collect()
}

/// Adds the directories above the named files, along the paths as given and along resolved links.
fn above(named: &[(&'static str, PathBuf, Rule)]) -> Vec<(&'static str, PathBuf, Rule)> {
    let mut above: BTreeMap<PathBuf, Rule> = BTreeMap::new();
    for (_, path, rule) in named {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let rule = if *rule == Rule::List { Rule::AboveList } else { Rule::Above };
        let real = fs::canonicalize(&absolute).ok();
        let directories = absolute.ancestors().skip(1).chain(real.iter().flat_map(|path| path.ancestors().skip(1)));
        for directory in directories.filter(|directory| directory.is_dir()) {
            // A directory above any other file too must be root's.
            let of = above.entry(directory.to_owned()).or_insert(rule);
            if rule == Rule::Above {
                *of = rule;
            }
        }
    }
    above.into_iter().map(|(path, rule)| ("directory", path, rule)).collect()
}

fn permissions(path: &Path) -> Known<Option<Permissions>> {
    match fs::metadata(path) {
        Ok(of) => Ok(Some(Permissions { owner: of.uid(), mode: of.mode() & 0o7777 })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(words(&error)),
    }
}

fn conntrack() -> Option<(u64, u64)> {
    let entries = number("/proc/sys/net/netfilter/nf_conntrack_count").ok()?;
    Some((entries, number("/proc/sys/net/netfilter/nf_conntrack_max").ok()?))
}

/// Returns the free bytes of the file system that holds the directory; `None` if the directory does not exist.
fn free(dir: &Path) -> Option<u64> {
    dir.exists()
        .then(|| nix::sys::statvfs::statvfs(dir).ok())
        .flatten()
        .map(|of| of.blocks_free().saturating_mul(of.fragment_size()))
}

fn unit() -> Unit {
    if !Path::new("/run/systemd/system").exists() {
        return Unit::default();
    }
    let file = UNITS.iter().find_map(|dir| {
        let path = Path::new(dir).join(SERVICE);
        Some((path.clone(), unit_text(&path)?))
    });
    let mut drop_ins = Vec::new();
    for dir in UNITS {
        let entries =
            fs::read_dir(Path::new(dir).join(format!("{SERVICE}.d"))).into_iter().flatten().filter_map(Result::ok);
        let texts = entries.filter_map(|of| Some((of.path(), unit_text(&of.path())?)));
        drop_ins.extend(texts.filter(|(path, _)| path.extension().is_some_and(|ending| ending == "conf")));
    }
    drop_ins.sort();
    let text = output("systemctl", &["show", SERVICE, "--property", SHOWN]).unwrap_or_default();
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Unit { is_systemd: true, file, drop_ins, shown: text.lines().filter_map(pair).collect() }
}

fn unit_text(path: &Path) -> Option<String> {
    String::from_utf8(files::read_named(path, UNIT_BYTES_MAX).ok()?).ok()
}

/// Returns the output of a program, or an error if it is missing or fails.
fn output(program: &str, args: &[&str]) -> Known<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {}", words(&error)))?;
    if !output.status.success() {
        let talk = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{program}: {talk}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_control::client::Wanted;

    #[test]
    fn a_daemon_that_takes_a_request_and_does_not_answer_hangs() {
        let path = PathBuf::from("/run/s");
        let timed_out = ClientError::TimedOut { path: path.clone(), wanted: Wanted::Read };
        let Daemon::Hangs(why) = told(Err(timed_out)) else { panic!("it hangs") };
        assert!(why.contains("/run/s did not answer within"), "{why}");
        let other = told(Err(ClientError::Unintelligible { path, what: "HTTP 418".into() }));
        assert!(matches!(other, Daemon::Unknown(_)), "{other:?}");
    }

    #[test]
    fn directories_above_files_include_those_behind_links() {
        let directory = tempfile::tempdir().unwrap();
        let [real, link] = ["real", "link"].map(|name| directory.path().join(name));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        fs::write(real.join("a.toml"), "").unwrap();
        let named = [("configuration", link.join("a.toml"), Rule::WrittenByRoot), ("list", link.join("a"), Rule::List)];
        let all = above(&named);
        for path in [link.as_path(), &real, directory.path(), Path::new("/")] {
            let of: Vec<Rule> = all.iter().filter(|of| of.1 == path).map(|of| of.2).collect();
            assert_eq!(of, [Rule::Above], "{}", path.display());
        }
        assert_eq!(above(&named[1..]).iter().find(|of| of.1 == link).map(|of| of.2), Some(Rule::AboveList));
    }

    #[test]
    fn the_remedy_for_a_foreign_file_system_removes_nothing_in_it() {
        let of = |path: &str| {
            let why = "belongs to user 33".to_owned();
            foreign(pins::PinsError::Foreign { path: path.into(), why, remedy: "x".into() }).1
        };
        assert!(of("/sys/fs/bpf").starts_with("sudo chown root:root /sys/fs/bpf"), "{}", of("/sys/fs/bpf"));
        assert!(of("/sys/fs/bpf/ratelimitd/v1").starts_with("sudo rm -r /sys/fs/bpf/ratelimitd,"));
    }

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(chosen("none [integrity] confidentiality\n").as_deref(), Some("integrity"));
        assert_eq!(chosen("none\n"), None);
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:      3 kB\n"), Some(3072));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert!(number::<u32>("/nonexistent").unwrap_err().contains("/nonexistent: no such file"));
    }
}
