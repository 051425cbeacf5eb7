//! Facts of a host, as plain values: `read` collects them, tests make them up, and checks judge them.

use std::path::PathBuf;
use std::time::Duration;

use ratelimit_datapath::Orphans;
use ratelimit_datapath::path::Link;
use ratelimit_kernel::device::Device;
use ratelimit_kernel::probe::Feature;
use ratelimit_policy::config::Config;
use ratelimit_policy::safety::Around;
use ratelimit_report::snapshot::Snapshot;

use crate::distribution::Distribution;

/// A fact, or the reason why it could not be read.
pub type Known<T> = Result<T, String>;

/// All facts of a host.
#[derive(Clone, Debug)]
pub struct Facts {
    /// State of the running kernel.
    pub kernel: Kernel,
    /// The BPF file system, where pins would lie.
    pub bpffs: Known<BpfFs>,
    /// Processors and memory of the host.
    pub machine: Machine,
    /// The existing interfaces among the wanted ones.
    pub devices: Known<Vec<Device>>,
    /// Names of all existing interfaces.
    pub present: Vec<String>,
    /// Relations between all interfaces.
    pub links: Vec<Link>,
    /// Names of the interfaces to examine.
    pub wanted: Vec<String>,
    /// The configuration file, as it was read.
    pub file: ConfigFile,
    /// The daemon at the control socket.
    pub daemon: Daemon,
    /// Permissions of the files and directories that matter.
    pub files: Vec<FileSeen>,
    /// The service's systemd unit.
    pub unit: Unit,
    /// Addresses that the host and its administrator depend on.
    pub around: Around,
    /// Entries and capacity of the connection-tracking table; `None` if it is not used.
    pub conntrack: Option<(u64, u64)>,
    /// State of the clocks.
    pub clock: Clock,
    /// Web servers that run on this host.
    pub servers: Vec<Server>,
    /// The state directory and its free space.
    pub state_dir: StateDir,
    /// True if this process runs as root.
    pub is_root: bool,
}

/// Web server that runs on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name of the server, for people.
    pub name: String,
    /// Access logs that the server has open.
    pub logs: Known<Vec<OpenLog>>,
}

/// Access log that a server has open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenLog {
    /// Path of the log.
    pub path: PathBuf,
    /// Users that may read the log.
    pub readers: Readers,
}

/// Users that may read a file, as its mode says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readers {
    /// Every user may read it.
    Everyone,
    /// Only the owner and the members of this group may read it.
    Group(String),
    /// Only the owner may read it.
    Owner,
}

/// State of the running kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Release, for example `6.12.0-amd64`.
    pub release: String,
    /// Distribution of the host, which selects the packages in advice.
    pub distribution: Distribution,
    /// Kernel features that the program needs, each tried.
    pub features: Vec<Feature>,
    /// Result of loading the real program.
    pub program: Program,
    /// Ok if the kernel provides its type information (BTF).
    pub type_information: Known<()>,
    /// Value of the sysctl `net.core.bpf_jit_enable`.
    pub jit: Known<u32>,
    /// Lockdown mode; `None` if the kernel has no lockdown.
    pub lockdown: Option<String>,
    /// Value of the sysctl `kernel.unprivileged_bpf_disabled`.
    pub unprivileged: Known<u32>,
    /// Memory that this process may lock, in bytes; `None` without a limit.
    pub memlock: Option<u64>,
    /// True if the kernel can close open connections.
    pub ends_connections: Known<bool>,
    /// Capabilities that this process lacks to load the program.
    pub lacks: Vec<String>,
}

/// Result of loading the real program without attaching it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The kernel accepted it.
    Taken {
        /// Instructions that the verifier walked, if the kernel reports them.
        instructions: Option<u32>,
        /// True if the JIT compiler translated the program, if the kernel reports that.
        is_jited: Option<bool>,
        /// Duration of the load.
        took: Duration,
    },
    /// The kernel refused it.
    Refused {
        /// Reason of the refusal.
        why: String,
        /// The verifier's complete log, if there is one.
        log: Option<String>,
    },
    /// Loading was not tried, for this reason.
    NotTried(String),
}

/// The BPF file system, where pins would lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFs {
    /// True if a BPF file system is mounted there.
    pub is_mounted: bool,
    /// UID of its owner.
    pub owner: u32,
    /// Mode bits of its root.
    pub mode: u32,
    /// Reason why existing pins may not be ours, and the command that corrects it.
    pub foreign: Option<(String, String)>,
}

/// Processors and memory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of processors that the kernel reserves memory for.
    pub possible_cpus: Known<u32>,
    /// Number of running processors.
    pub online_cpus: Known<u32>,
    /// Available memory in bytes.
    pub available: Known<u64>,
    /// Size of a page in bytes: 4096, or 16 384 or 65 536 on some aarch64 kernels.
    pub page_bytes: u32,
    /// True if the kernel has TCX, which exists since Linux 6.6.
    pub has_tcx: bool,
}

/// The configuration file, as it was read.
#[derive(Clone, Debug)]
pub enum ConfigFile {
    /// No file at this path.
    Missing(PathBuf),
    /// A file that cannot be read, for this reason.
    Unreadable(PathBuf, String),
    /// A file with these mistakes.
    Bad(PathBuf, String),
    /// A valid file, with the warnings of `check-config`.
    Good(PathBuf, Box<Config>, Vec<String>),
}

impl ConfigFile {
    /// Returns the configuration of a valid file.
    pub fn config(&self) -> Option<&Config> {
        match self {
            Self::Good(_, config, _) => Some(config),
            Self::Missing(_) | Self::Unreadable(..) | Self::Bad(..) => None,
        }
    }
}

/// The daemon at the control socket.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// A daemon, with the age of its reading in seconds: less than one, unless a clock was stepped.
    Answers(Box<Snapshot>, f64),
    /// A daemon that accepts the request and does not answer, with the error.
    Hangs(String),
    /// No daemon, with the filters that an earlier one left.
    Silent(Orphans),
    /// Unknown, for this reason.
    Unknown(String),
}

/// A file that matters, and its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSeen {
    /// Kind of the file, for example `configuration`.
    pub what: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// Requirement on its permissions.
    pub rule: Rule,
    /// Permissions of the file; `None` if it does not exist.
    pub seen: Known<Option<Permissions>>,
}

/// Requirement on a file's permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Only root writes to the file.
    WrittenByRoot,
    /// Only the owner writes to the file. The owner may be the user of a unit that fetches it.
    List,
    /// Only the owner, root, reads the file.
    Secret,
    /// Only root and its group use the socket.
    Socket,
    /// Only root and its group reach the directory's contents.
    Directory,
    /// A directory above other files: only root adds or removes entries.
    Above,
    /// A directory above a list only, which may belong to another user.
    AboveList,
}

/// Permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// UID of the owner.
    pub owner: u32,
    /// Mode bits without the file type.
    pub mode: u32,
}

/// The service's systemd unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// True if systemd runs on this host.
    pub is_systemd: bool,
    /// Path and text of the installed unit file.
    pub file: Option<(PathBuf, String)>,
    /// Paths and texts of its drop-ins.
    pub drop_ins: Vec<(PathBuf, String)>,
    /// Properties from `systemctl show`: `ActiveState`, `NRestarts`, `Result`.
    pub shown: Vec<(String, String)>,
}

/// State of the clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// True if the wall clock is synchronised with a server's.
    pub is_synchronised: Known<bool>,
    /// Time that the host spent suspended since it started.
    pub suspended: Known<Duration>,
}

/// The state directory and its free space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    /// Path of the directory.
    pub path: PathBuf,
    /// Free bytes in it, for root; `None` if the directory does not exist.
    pub free: Option<u64>,
}
