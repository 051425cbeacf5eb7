//! What the user asked for, parsed: a [`Config`] cannot hold a value that does not work. Flags and file make the same one.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use ratelimit_common::source::Family;
use ratelimit_common::time::SECOND_NS;

use self::fleet::Fleet;
use self::history::History;
use self::listing::Listing;
use self::lists::ListFile;
use self::lists::bounds::ListBounds;
use crate::desired::{DesiredState, Fixed, Limit, Policy};
use crate::fleet::Terms;

mod access_log;
pub mod beside;
mod bogons;
pub mod file;
pub mod fleet;
pub mod history;
pub mod keys;
pub mod limit;
mod limits;
pub mod lint;
pub mod listing;
pub mod lists;
pub mod network;
pub mod new_sources;
mod overlap;
pub mod ports;
pub mod rule;
pub mod settings;
pub mod until;
pub mod values;
pub mod without_daemon;
pub mod written;

pub use self::access_log::LOGS_MAX;
pub use crate::desired::{HookChoice, OnExit, TlsFiles, XdpModeChoice};
pub use crate::text::{amount, duration, port, syntax};

/// Where the control socket is unless it is said.
pub const SOCKET_DEFAULT: &str = "/run/ratelimitd/control.sock";
/// Where the configuration file is unless it is said.
pub const FILE_DEFAULT: &str = "/etc/ratelimitd/ratelimitd.toml";
/// The fewest sources that can be remembered.
pub const MAX_SOURCES_MIN: u32 = 256;
/// The most sources that can be remembered. // 16777216 x 128 B = 2.1 GB
pub const MAX_SOURCES_MAX: u32 = 16_777_216;

/// The configuration of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interfaces to protect: sorted, each once, at least one.
    pub interfaces: Vec<String>,
    /// Where to attach.
    pub hook: HookChoice,
    /// How to attach there, of XDP.
    pub xdp_mode: XdpModeChoice,
    /// What happens to the filter when the daemon ends.
    pub on_exit: OnExit,
    /// How many sources of each family are remembered, 256 to 16 777 216.
    pub max_sources: u32,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Where metrics, health and the read-only API are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// What encrypts that.
    pub tls: Option<TlsFiles>,
    /// Whether the web page is served there also where it is no loopback address.
    pub insecure_web: bool,
    /// What packets are judged by.
    pub policy: Policy,
    /// What keeps the administrator from locking himself out.
    pub safety: Safety,
    /// What is remembered.
    pub history: History,
    /// The hosts that hold limits together, where this one is of a fleet.
    pub fleet: Option<Fleet>,
    /// Of rules that have one, by the rule's name, in the rules' order.
    pub notes: Vec<(String, String)>,
    /// Of rules that say some, by the rule's name, in the rules' order: amounts that are held against what is observed. A
    /// candidate is the limit that it would stand for.
    pub candidates: Vec<(String, Vec<Limit>)>,
    /// Prefixes of both `allow` and `deny`, sorted: they are exempt.
    pub overruled: Vec<IpNet>,
    /// Prefixes that list files alone have `allow` or `deny` name and that are too wide for that, sorted: they are passed over.
    pub too_wide: Vec<IpNet>,
    /// The named lists and how many prefixes each has, by name.
    pub lists: Vec<(String, usize)>,
    /// The list files that were read for it, by path.
    pub list_files: Vec<ListFile>,
    /// How much list files of `deny` may cover, and how fast they may grow.
    pub list_bounds: ListBounds,
    /// What `allow` and `deny` name, from which their prefixes come.
    pub listings: Vec<Listing>,
}

/// What keeps the administrator from locking himself out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safety {
    /// The peer of the SSH session that the daemon or a command is started from is exempt.
    pub exempt_ssh_peer: bool,
    /// So are the default gateways.
    pub exempt_gateway: bool,
    /// And the name servers of this host.
    pub exempt_resolvers: bool,
    /// A rule that drops more than this share of its packets, in percent, 1 to 99, goes over to dry run; none is never.
    pub breaker: Option<u8>,
    /// Once it has done so for this long, in nanoseconds, 5 s to 1 h.
    pub breaker_after_ns: u64,
    /// After how long without a daemon nothing is dropped any more, in nanoseconds, 2 s to 30 d; none is never.
    pub without_daemon_ns: Option<u64>,
}

impl Default for Safety {
    /// What a daemon has left goes on enforcing. The breaker is off: only the server's operator knows what share of drops is usual under an attack.
    fn default() -> Self {
        Self {
            exempt_ssh_peer: true,
            exempt_gateway: true,
            exempt_resolvers: true,
            breaker: None,
            breaker_after_ns: 30 * SECOND_NS,
            without_daemon_ns: None,
        }
    }
}

impl Config {
    /// What follows of the fleet for a limit that its hosts share.
    pub fn terms(&self, limit: &Limit) -> Option<Terms> {
        // The rule's name is no part of them.
        Some(Terms::new(&limit.fleet_limit("")?, self.fleet.as_ref()?.hosts))
    }
}

impl From<&Config> for DesiredState {
    fn from(config: &Config) -> Self {
        Self { interfaces: config.interfaces.clone(), policy: config.policy.clone() }
    }
}

impl From<&Config> for Fixed {
    fn from(config: &Config) -> Self {
        Self {
            hook: config.hook,
            xdp_mode: config.xdp_mode,
            on_exit: config.on_exit,
            max_sources: config.max_sources,
            socket: config.socket.clone(),
            listen: config.listen,
            tls: config.tls.clone(),
            insecure_web: config.insecure_web,
            ipv6_family: Family::of_ipv6_prefix(config.policy.ipv6_prefix),
        }
    }
}
