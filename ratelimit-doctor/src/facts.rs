//! What checks are made of: values, read by `read` from a host, or made by a test.

use std::path::PathBuf;
use std::time::Duration;

use ratelimit_datapath::device::Device;
use ratelimit_datapath::orphans::Orphans;
use ratelimit_datapath::path::Link;
use ratelimit_datapath::probe::Feature;
use ratelimit_policy::config::Config;
use ratelimit_policy::safety::Around;
use ratelimit_report::snapshot::Snapshot;

/// What was read, or why it could not be.
pub type Known<T> = Result<T, String>;

/// Everything.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The running kernel.
    pub kernel: Kernel,
    /// Where pins would lie.
    pub bpffs: Known<BpfFs>,
    /// Processors and memory.
    pub machine: Machine,
    /// The interfaces to look at, those that there are.
    pub devices: Known<Vec<Device>>,
    /// The names of all interfaces that there are.
    pub present: Vec<String>,
    /// How all interfaces are joined.
    pub links: Vec<Link>,
    /// Those that are to be looked at, by name.
    pub wanted: Vec<String>,
    /// The configuration file.
    pub file: ConfigFile,
    /// Who answers at the control socket.
    pub daemon: Daemon,
    /// Files that matter.
    pub files: Vec<FileSeen>,
    /// The unit.
    pub unit: Unit,
    /// What the host depends on.
    pub around: Around,
    /// Entries and room of the kernel's table of connections; none where it is not used.
    pub conntrack: Option<(u64, u64)>,
    /// The clocks.
    pub clock: Clock,
    /// Web servers that run here.
    pub servers: Vec<Server>,
    /// Where state is kept.
    pub state_dir: StateDir,
    /// Whether this runs as root.
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

/// The running kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `6.12.0-amd64`.
    pub release: String,
    /// What the program needs, each tried.
    pub features: Vec<Feature>,
    /// What became of the real program.
    pub program: Program,
    /// Whether the kernel shows its own types.
    pub type_information: Known<()>,
    /// `net.core.bpf_jit_enable`.
    pub jit: Known<u32>,
    /// The mode of lockdown; none where the kernel has none.
    pub lockdown: Option<String>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged: Known<u32>,
    /// Memory that this process may lock, in bytes; none without a limit.
    pub memlock: Option<u64>,
    /// Whether it can end open connections.
    pub ends_connections: Known<bool>,
    /// Capabilities that this process lacks to load the program.
    pub lacks: Vec<String>,
}

/// What became of the real program, loaded and attached to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The kernel took it.
    Taken {
        /// Instructions that the verifier walked, where the kernel says.
        instructions: Option<u32>,
        /// Whether the JIT compiler made the machine's instructions of it, where the kernel says.
        is_jited: Option<bool>,
        /// How long it took.
        took: Duration,
    },
    /// It did not.
    Refused {
        /// Why.
        why: String,
        /// All that the verifier said.
        log: Option<String>,
    },
    /// It was not tried.
    NotTried(String),
}

/// Where pins would lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFs {
    /// Whether it is a BPF file system.
    pub is_mounted: bool,
    /// The owner's UID.
    pub owner: u32,
    /// Its mode.
    pub mode: u32,
    /// Why what is pinned there may not be ours, and the command that mends it.
    pub foreign: Option<(String, String)>,
}

/// Processors and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Processors that the kernel has room for.
    pub possible_cpus: Known<u32>,
    /// Those that run.
    pub online_cpus: Known<u32>,
    /// Memory that is free, in bytes.
    pub available: Known<u64>,
    /// Of a page: 4096, and on some kernels of aarch64 16 384 or 65 536.
    pub page_bytes: u32,
    /// Whether the kernel has TCX, since Linux 6.6.
    pub has_tcx: bool,
}

/// The configuration file.
#[derive(Clone, Debug)]
pub enum ConfigFile {
    /// There is none at this path.
    Missing(PathBuf),
    /// It is not for this user, or cannot be read.
    Unreadable(PathBuf, String),
    /// It has mistakes.
    Bad(PathBuf, String),
    /// It is good, and what `check-config` warns of.
    Good(PathBuf, Box<Config>, Vec<String>),
}

impl ConfigFile {
    /// What it says, where it is good.
    pub fn config(&self) -> Option<&Config> {
        match self {
            Self::Good(_, config, _) => Some(config),
            Self::Missing(_) | Self::Unreadable(..) | Self::Bad(..) => None,
        }
    }
}

/// Who answers at the control socket.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// A daemon, and how long ago, by its clock, it read its maps: less than a second, unless a clock was stepped.
    Answers(Box<Snapshot>, f64),
    /// One that takes the request and does not answer: what was said of it.
    Hangs(String),
    /// Nobody; what an earlier one has left.
    Silent(Orphans),
    /// It cannot be told.
    Unknown(String),
}

/// A file that matters, and who may do what with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSeen {
    /// What it is: `configuration`.
    pub what: &'static str,
    /// Where.
    pub path: PathBuf,
    /// What must hold.
    pub rule: Rule,
    /// Who may do what; none where it is not there.
    pub seen: Known<Option<Permissions>>,
}

/// What must hold of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Only root writes to it.
    WrittenByRoot,
    /// Only its owner writes to it, who may be a user of a unit that fetches it.
    List,
    /// Only its owner, root, reads it.
    Secret,
    /// Root and its group use it, nobody else.
    Socket,
    /// Only root and its group reach what is in it.
    Directory,
    /// A directory above others: only root puts files into it, or takes them out.
    Above,
    /// The same of a list, which may be another user's.
    AboveList,
}

/// Who may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The owner.
    pub owner: u32,
    /// The mode, without the kind.
    pub mode: u32,
}

/// The service's unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Whether systemd runs here.
    pub is_systemd: bool,
    /// The installed file and its text.
    pub file: Option<(PathBuf, String)>,
    /// Drop-ins and their texts.
    pub drop_ins: Vec<(PathBuf, String)>,
    /// `systemctl show`: `ActiveState`, `NRestarts`, `Result`.
    pub shown: Vec<(String, String)>,
}

/// The clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Whether the wall clock is held to a server's.
    pub is_synchronised: Known<bool>,
    /// How long the host was suspended.
    pub suspended: Known<Duration>,
}

/// Where state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    /// The directory.
    pub path: PathBuf,
    /// Bytes that are free there for root; none where there is no such directory.
    pub free: Option<u64>,
}
