//! Parsed and checked configuration, from flags or from a file. A [`Config`] cannot hold a value that does not work.

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
use crate::desired::{DesiredState, Limit, Policy};
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

/// Default path of the control socket.
pub const SOCKET_DEFAULT: &str = "/run/ratelimitd/control.sock";
/// Default path of the configuration file.
pub const FILE_DEFAULT: &str = "/etc/ratelimitd/ratelimitd.toml";
/// Minimum of `max_sources`, the number of remembered sources of each family.
pub const MAX_SOURCES_MIN: u32 = 256;
/// Maximum of `max_sources`, the number of remembered sources of each family. // 16777216 x 128 B = 2.1 GB
pub const MAX_SOURCES_MAX: u32 = 16_777_216;

/// The configuration of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Names of the interfaces to protect: sorted, without duplicates, at least one.
    pub interfaces: Vec<String>,
    /// Hook that the program is attached to.
    pub hook: HookChoice,
    /// XDP mode in which the program is attached.
    pub xdp_mode: XdpModeChoice,
    /// Fate of the filter when the daemon ends.
    pub on_exit: OnExit,
    /// Maximum number of remembered sources of each family, 256 to 16 777 216.
    pub max_sources: u32,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Address on which metrics, health and the read-only API are served over HTTP. None if they are not served.
    pub listen: Option<SocketAddr>,
    /// Certificate and key that encrypt connections to `listen`. None for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Permits the web page on `listen` even if that address is not a loopback address.
    pub insecure_web: bool,
    /// Rules, allowed and denied prefixes, and prefix lengths by which packets are judged.
    pub policy: Policy,
    /// Settings that protect the administrator from a lockout.
    pub safety: Safety,
    /// Settings of the history database.
    pub history: History,
    /// Fleet of hosts that share limits. None if this host belongs to no fleet.
    pub fleet: Option<Fleet>,
    /// Notes by rule name, in the order of the rules. Rules without a note are left out.
    pub notes: Vec<(String, String)>,
    /// Candidate limits by rule name, in the order of the rules. Rules without candidates are left out. A candidate
    /// is an alternative to one of the rule's limits; only its amount differs. It is compared with observed traffic.
    pub candidates: Vec<(String, Vec<Limit>)>,
    /// Prefixes that both `allow` and `deny` name, sorted. They are exempt.
    pub overruled: Vec<IpNet>,
    /// Prefixes that only list files put into `allow` or `deny` and that are too wide for a list file, sorted. They
    /// are ignored.
    pub too_wide: Vec<IpNet>,
    /// Name of each named list, with its number of prefixes.
    pub lists: Vec<(String, usize)>,
    /// List files that were read for this configuration, by path.
    pub list_files: Vec<ListFile>,
    /// Bounds on how many addresses the list files of `deny` may cover, and on how fast they may grow.
    pub list_bounds: ListBounds,
    /// Entries of `allow` and `deny`, from which the access prefixes are derived.
    pub listings: Vec<Listing>,
}

/// Settings that protect the administrator from a lockout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safety {
    /// Exempts the peer of the SSH session from which the daemon or a command is started.
    pub exempt_ssh_peer: bool,
    /// Exempts the default gateways.
    pub exempt_gateway: bool,
    /// Exempts the name servers of this host.
    pub exempt_resolvers: bool,
    /// Share of dropped packets, in percent, 1 to 99, above which a rule is switched to dry run. None disables the
    /// breaker.
    pub breaker: Option<u8>,
    /// Time for which a rule must stay above `breaker` before it is switched, in nanoseconds, 5 s to 1 h.
    pub breaker_after_ns: u64,
    /// Time without a daemon after which the filter drops nothing, in nanoseconds, 2 s to 30 d. None means never.
    pub without_daemon_ns: Option<u64>,
}

impl Default for Safety {
    /// Returns defaults without a limit on the time without a daemon. The breaker is off because only the server's
    /// operator knows which drop share is usual under an attack.
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
    /// Returns the fleet terms of a limit. None if the limit is not shared or the host belongs to no fleet.
    pub fn terms(&self, limit: &Limit) -> Option<Terms> {
        // The terms do not depend on the rule's name, so an empty name is passed.
        Some(Terms::new(&limit.fleet_limit("")?, self.fleet.as_ref()?.hosts))
    }

    /// Returns the keys of `wanted` that differ and that a running daemon cannot change, in the order of the file.
    pub fn restart_needed(&self, wanted: &Self) -> Vec<&'static str> {
        let tls = |of: &Self| of.tls.clone().map_or((None, None), |of| (Some(of.cert), Some(of.key)));
        let ((old_cert, old_key), (cert, key)) = (tls(self), tls(wanted));
        // The key format of IPv6 sources is fixed, because their map is created once.
        let ipv6_family = |of: &Self| Family::of_ipv6_prefix(of.policy.ipv6_prefix);
        [
            ("hook", self.hook != wanted.hook),
            ("xdp_mode", self.xdp_mode != wanted.xdp_mode),
            ("on_exit", self.on_exit != wanted.on_exit),
            ("max_sources", self.max_sources != wanted.max_sources),
            ("socket", self.socket != wanted.socket),
            ("listen", self.listen != wanted.listen),
            ("tls_cert_file", old_cert != cert),
            ("tls_key_file", old_key != key),
            ("insecure_web", self.insecure_web != wanted.insecure_web),
            ("ipv6_prefix from up to /64 to a longer one or back", ipv6_family(self) != ipv6_family(wanted)),
        ]
        .into_iter()
        .filter_map(|(key, is_changed)| is_changed.then_some(key))
        .collect()
    }
}

impl From<&Config> for DesiredState {
    fn from(config: &Config) -> Self {
        Self { interfaces: config.interfaces.clone(), policy: config.policy.clone() }
    }
}
