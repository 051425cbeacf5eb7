//! Settings of a fleet that shares limits between hosts: `[fleet]`. Pure.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ratelimit_common::time::SECOND_NS;

use super::duration;
use super::network::parse_number;
use super::rule::check_name;
use super::syntax::{SyntaxError, near_miss};
use super::values::Values;
use super::written::{Source, Written};
use crate::diagnostic::{Diagnostic, Excerpt, Found, Place, in_address};
use crate::fleet::{HOSTS_MAX, Terms};

/// Default name of a fleet.
pub const NAME_DEFAULT: &str = "default";
/// Default number of hosts in a fleet.
pub const HOSTS_DEFAULT: u32 = 8;
/// Default interval between reports that are not urgent.
pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

const INTERVAL_NS_MIN: u64 = SECOND_NS / 5;
const INTERVAL_NS_MAX: u64 = 60 * SECOND_NS;
const FLOOR_MAX: u64 = 99;
const NODES_MAX: usize = 64;

/// Addresses of the store, and credentials for it. Passwords and keys are kept in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Addresses of one server, or of several nodes of a cluster; at least one. All are `redis://`, all `rediss://`,
    /// or it is one `unix://`.
    pub urls: Vec<String>,
    /// User name at the store. None for the user `default`.
    pub username: Option<String>,
    /// Path of a file with the password in its first line.
    pub password_file: Option<PathBuf>,
    /// Path of the CA certificates for the store's certificate. None for those of the system. Only with TLS.
    pub ca_file: Option<PathBuf>,
    /// Path of the client certificate, used together with `key_file`. Only with TLS.
    pub cert_file: Option<PathBuf>,
    /// Path of the client certificate's private key. Only with TLS.
    pub key_file: Option<PathBuf>,
}

/// A group of hosts that share limits, and the store through which they exchange reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Store through which the hosts exchange reports.
    pub store: Access,
    /// Name that separates fleets with a common store.
    pub name: String,
    /// Path of a file with the secret shared by the hosts. Required unless [`Fleet::is_local`].
    pub secret_file: Option<PathBuf>,
    /// Interval between reports that are not urgent, 200 ms to 1 min.
    pub interval: Duration,
    /// Maximum number of hosts, 2 to [`HOSTS_MAX`].
    pub hosts: u32,
    /// Shares bans with all hosts.
    pub bans: bool,
    /// Share of each limit, in percent, that this host keeps whatever the store reports, 0 to 99.
    pub floor_percent: u8,
}

/// Settings of a [`Fleet`], as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSettings(pub(super) Values);

/// A parsed address of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Url<'a> {
    scheme: Scheme,
    /// Host name or address, in brackets if it is IPv6. Empty for a socket.
    host: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Plain,
    Tls,
    Socket,
}

impl Fleet {
    /// Returns a fleet with one store, no secret and defaults, for tests.
    #[cfg(any(test, feature = "fixture"))]
    pub fn at(url: &str) -> Self {
        Self {
            store: Access { urls: vec![url.to_owned()], ..Access::default() },
            name: NAME_DEFAULT.to_owned(),
            secret_file: None,
            interval: INTERVAL_DEFAULT,
            hosts: HOSTS_DEFAULT,
            bans: true,
            floor_percent: 0,
        }
    }

    /// Returns [`Terms::bound`] plus the floor of each other host.
    pub fn bound_of(&self, terms: Terms) -> u64 {
        let floors = u64::from(terms.hosts - 1).saturating_mul(terms.floor(self.floor_percent));
        terms.bound().saturating_add(floors).min(terms.bound_alone())
    }

    /// Returns the stores that are written as IP addresses, except loopback addresses.
    pub fn stores(&self) -> Vec<IpAddr> {
        let hosts = self.store.urls.iter().filter_map(|url| Some(parse_url(url).ok()?.host.trim_matches(['[', ']'])));
        let addresses = hosts.filter_map(|host| host.parse().ok());
        addresses.filter(|address: &IpAddr| !address.is_loopback()).collect()
    }

    /// Returns true if only this machine reaches the store: through a Unix socket or loopback.
    pub fn is_local(&self) -> bool {
        self.store.urls.iter().all(|url| parse_url(url).is_ok_and(Url::is_local))
    }
}

impl FleetSettings {
    /// Returns the fleet with defaults filled in. Errors are added to `found`.
    pub(super) fn fleet(&self, source: &Source, found: &mut Found) -> Fleet {
        let before = found.count();
        let urls = self.urls(source, found);
        let are_right = found.count() == before;
        let is_tls = urls.iter().any(|url| url.scheme == Scheme::Tls);
        let username = found.keep(source.read_if(self.0.one("username"), parse_username)).flatten();
        let mut path = |key: &str| {
            let path = self.0.one(key).map(|written| source.beside(written, "/etc/ratelimitd/fleet.secret"));
            found.keep(path.transpose()).flatten()
        };
        let fleet = Fleet {
            secret_file: path("secret_file"),
            store: Access {
                urls: self.0.all("url").iter().map(|written| written.text.clone()).collect(),
                password_file: path("password_file"),
                ca_file: path("ca_file"),
                cert_file: path("cert_file"),
                key_file: path("key_file"),
                username,
            },
            name: found
                .keep(source.read_if(self.0.one("name"), |text| check_name(text).map(|()| text.to_owned())))
                .flatten()
                .unwrap_or_else(|| NAME_DEFAULT.to_owned()),
            interval: found
                .keep(source.read_if(self.0.one("interval"), parse_interval))
                .flatten()
                .unwrap_or(INTERVAL_DEFAULT),
            hosts: self.hosts(source, found),
            bans: found.keep(source.is_set(self.0.one("bans"), true)).unwrap_or(true),
            floor_percent: found.keep(source.read_if(self.0.one("floor"), parse_floor)).flatten().unwrap_or(0),
        };
        // These checks depend on the addresses, so they run only if those are valid.
        if are_right {
            found.keep(self.check_secret(&urls, source));
            found.keep(self.check_tls(is_tls, source));
        }
        fleet
    }

    /// Returns the number of hosts, even if other settings are invalid.
    pub(super) fn hosts(&self, source: &Source, found: &mut Found) -> u32 {
        let hosts = source.read_if(self.0.one("hosts"), |text| parse_number(text, 2, HOSTS_MAX.into()));
        let hosts = found.keep(hosts).flatten().and_then(|hosts| u32::try_from(hosts).ok());
        hosts.unwrap_or(HOSTS_DEFAULT)
    }

    fn urls(&self, source: &Source, found: &mut Found) -> Vec<Url<'_>> {
        if self.0.all("url").is_empty() {
            let why = "name the store through which the hosts share their counts";
            let example = "\"redis://192.0.2.1:6379\"";
            found.missing("fleet.url", source.missing("--fleet", "fleet.url", None, why, example));
        }
        // Several addresses may stand on one line, so one password hides all of them.
        let is_secret = self.0.all("url").iter().any(|written| may_have_password(&written.text));
        let mut urls: Vec<Url<'_>> = Vec::new();
        for written in self.0.all("url") {
            let url = parse_url(&written.text).and_then(|url| match urls.first() {
                _ if urls.len() == NODES_MAX => {
                    let error =
                        SyntaxError::new(0..written.text.len(), format!("there are more than {NODES_MAX} addresses"));
                    Err(error.with_help("some nodes of a cluster are enough: they name the others"))
                }
                Some(first) if first.scheme != url.scheme || url.scheme == Scheme::Socket => {
                    let problem = "it cannot be combined with the first address";
                    let error = SyntaxError::new(0..written.text.len(), problem);
                    Err(error.with_help("the nodes of a cluster are all redis://, or all rediss://"))
                }
                Some(_) | None => Ok(url),
            });
            match url {
                Ok(url) => urls.push(url),
                Err(error) => {
                    let wrong = source.wrong(written, error);
                    found.push(if is_secret { without_text(wrong) } else { wrong });
                }
            }
        }
        urls
    }

    fn check_secret(&self, urls: &[Url<'_>], source: &Source) -> Result<(), Diagnostic> {
        if self.0.one("secret_file").is_some() || urls.iter().all(|url| url.is_local()) {
            return Ok(());
        }
        let why = "without a secret everyone who reaches the store can read the addresses and ban any address: make \
            one with head -c 32 /dev/urandom | base64, and copy the file to each host";
        let example = "\"/etc/ratelimitd/fleet.secret\"";
        Err(source.missing("--fleet-secret-file", "fleet.secret_file", None, why, example))
    }

    fn check_tls(&self, is_tls: bool, source: &Source) -> Result<(), Diagnostic> {
        let wrong = |written: &Written, problem: &str, help: &str| {
            Err(source.wrong(written, SyntaxError::new(0..written.text.len(), problem).with_help(help)))
        };
        match (self.0.one("ca_file"), self.0.one("cert_file"), self.0.one("key_file")) {
            (Some(file), _, _) | (None, Some(file), _) | (None, None, Some(file)) if !is_tls => {
                wrong(file, "the addresses of the store do not use TLS", "write rediss:// in `url`, or leave this out")
            }
            (_, Some(one), None) => wrong(one, "a certificate needs its key", "add key_file"),
            (_, None, Some(one)) => wrong(one, "a key needs its certificate", "add cert_file"),
            (_, Some(_), Some(_)) | (_, None, None) => Ok(()),
        }
    }
}

impl Url<'_> {
    fn is_local(self) -> bool {
        match self.scheme {
            Scheme::Socket => true,
            Scheme::Plain | Scheme::Tls => {
                let host = self.host.trim_matches(['[', ']']);
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

/// Removes the quoted text from a diagnostic, because an invalid address may hold a password too.
fn without_text(diagnostic: Diagnostic) -> Diagnostic {
    let place = match diagnostic.place {
        Place::File { path, excerpt } => {
            let hidden = |of: Box<Excerpt>| Box::new(Excerpt { text: None, span: 0..0, ..*of });
            Place::File { path, excerpt: excerpt.map(hidden) }
        }
        Place::Flag { .. } | Place::CommandLine => Place::CommandLine,
    };
    Diagnostic { place, ..diagnostic }
}

fn may_have_password(text: &str) -> bool {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if scheme == "unix" { rest.contains(['@', '?']) } else { in_address(rest) }
}

fn parse_url(text: &str) -> Result<Url<'_>, SyntaxError> {
    const FORMS: &str = "write redis://HOST:PORT, rediss://HOST:PORT for TLS, or unix:///PATH";
    const SCHEMES: [(&str, Scheme); 3] = [("redis", Scheme::Plain), ("rediss", Scheme::Tls), ("unix", Scheme::Socket)];
    if may_have_password(text) {
        let error = SyntaxError::new(0..text.len(), "an address holds no user, no password and no parameters");
        let help = "name the user by `username`, and a file with the password by `password_file`; a port is a number";
        return Err(error.with_help(help));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is not an address of a store"));
        return Err(error.with_help(FORMS));
    };
    let at = text.len() - rest.len();
    let Some((_, kind)) = SCHEMES.into_iter().find(|(name, _)| *name == scheme) else {
        let meant = near_miss(scheme, SCHEMES.map(|(name, _)| name)).map(|meant| format!("did you mean {meant}://?"));
        let error = SyntaxError::new(0..scheme.len(), format!("`{scheme}://` is not a store's"));
        return Err(error.with_help(FORMS).with_help_if(meant));
    };
    if kind == Scheme::Socket {
        if !rest.starts_with('/') || rest.ends_with('/') || rest.contains('\0') {
            let error = SyntaxError::new(at..text.len(), "it is not an absolute path of a socket");
            return Err(error.with_help("begin it with `/`, as in unix:///run/redis/redis.sock"));
        }
        return Ok(Url { scheme: kind, host: "" });
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if let Some(behind) = authority.find(['/', '#']) {
        let error = SyntaxError::new(at + behind..text.len(), "an address ends with the port");
        return Err(error.with_help("leave it out: fleets that share a store are told apart by `name`"));
    }
    let (host, port) = match authority.rfind(':') {
        Some(colon) if !authority.ends_with(']') => (&authority[..colon], Some(&authority[colon + 1..])),
        Some(_) | None => (authority, None),
    };
    let is_address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            !host.is_empty() && host.bytes().all(is_plain)
        }
    };
    if !is_address {
        let error = SyntaxError::new(at..at + host.len(), format!("`{host}` is not a host"));
        return Err(error.with_help("write a name, an IPv4 address, or an IPv6 address in brackets"));
    }
    if let Some(port) = port {
        let start = at + host.len() + 1;
        parse_number(port, 1, u16::MAX.into()).map_err(|error| error.shifted(start))?;
    }
    Ok(Url { scheme: kind, host })
}

fn parse_username(text: &str) -> Result<String, SyntaxError> {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let error = SyntaxError::new(0..text.len(), "the name of a user of the store is one word");
        return Err(error.with_help("leave the key out for the user `default`"));
    }
    Ok(text.to_owned())
}

fn parse_interval(text: &str) -> Result<Duration, SyntaxError> {
    let interval_ns = duration::parse(text)?;
    if (INTERVAL_NS_MIN..=INTERVAL_NS_MAX).contains(&interval_ns) {
        return Ok(Duration::from_nanos(interval_ns));
    }
    Err(SyntaxError::new(0..text.len(), "an interval is 200ms to 1m").with_help("1s is usual"))
}

fn parse_floor(text: &str) -> Result<u8, SyntaxError> {
    let Some(number) = text.strip_suffix('%') else {
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is not a share"));
        return Err(error.with_help("write a share of each limit, as in \"10%\""));
    };
    let share = parse_number(number, 0, FLOOR_MAX)?;
    Ok(u8::try_from(share).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests;
