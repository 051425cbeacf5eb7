//! Names of hosts, for people.

use ratelimit_fleet::names::HostId;
use ratelimit_fleet::run::Status;
use ratelimit_policy::config::syntax::printable;

/// This host's name.
pub(super) fn own_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The name of a host, as it said it; its id where it has not been heard of.
pub(super) fn name_of(host: [u8; 8], status: &Status) -> String {
    let id = HostId(host);
    let known = status.hosts.iter().find(|host| host.id == id);
    known.map_or_else(|| id.to_string(), |host| printable(&host.record.name))
}
