//! Faults of a store, named so that operators can act on them.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::bounded::Excess;
use super::dial::NO_TLS_IN_TIME;

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// No connection, for an unknown reason.
    Away,
    /// No connection, because nothing listens at the address.
    NotListening,
    /// No connection, because the host name does not resolve.
    NoHost,
    /// No connection, because there is no route to the host.
    NoRoute,
    /// No connection, because the Unix socket is missing or access is denied.
    NoSocket,
    /// Connection without an answer in time.
    Hung,
    /// Wrong user or password.
    Refused,
    /// Missing password.
    NoPassword,
    /// The user lacks a permission.
    NoPermission,
    /// Protected mode: the store accepts only clients on its own host.
    ProtectedMode,
    /// The store has reached its maximum number of clients.
    TooManyClients,
    /// Invalid certificate, or another TLS error.
    Tls,
    /// The store answers plain text with TLS.
    SpeaksTls,
    /// The store answers TLS with plain text.
    SpeaksPlain,
    /// The store does not answer a TLS handshake in time.
    NoHandshake,
    /// The server is a read-only replica.
    ReadOnly,
    /// The store is out of memory.
    OutOfMemory,
    /// The store cannot save to its disk and refuses writes.
    NotSaving,
    /// The cluster does not serve requests.
    ClusterDown,
    /// One server is configured, but it belongs to a cluster.
    IsCluster,
    /// Several servers are configured, but they are not a cluster.
    NoCluster,
    /// A slot is moving or has moved.
    Moved,
    /// The store is loading its data.
    Loading,
    /// The server is a replica that has lost its master.
    NoMaster,
    /// A script keeps the store busy.
    Busy,
    /// The store lacks a required command.
    UnknownCommand,
    /// The store does not have the script with this SHA-1.
    NoScript,
    /// The answer has an unexpected type or length.
    Garbled,
    /// The answer is larger than any valid one, so the connection was ended.
    Oversized,
    /// Any other fault.
    Other,
}

/// All kinds, the worst first.
pub const ALL: [Trouble; 30] = [
    Trouble::NoPassword,
    Trouble::ProtectedMode,
    Trouble::TooManyClients,
    Trouble::NotListening,
    Trouble::NoHost,
    Trouble::NoRoute,
    Trouble::NoSocket,
    Trouble::Away,
    Trouble::Hung,
    Trouble::Refused,
    Trouble::NoPermission,
    Trouble::SpeaksTls,
    Trouble::SpeaksPlain,
    Trouble::NoHandshake,
    Trouble::Tls,
    Trouble::ReadOnly,
    Trouble::NoMaster,
    Trouble::OutOfMemory,
    Trouble::NotSaving,
    Trouble::ClusterDown,
    Trouble::IsCluster,
    Trouble::NoCluster,
    Trouble::Moved,
    Trouble::Loading,
    Trouble::Busy,
    Trouble::UnknownCommand,
    Trouble::NoScript,
    Trouble::Oversized,
    Trouble::Garbled,
    Trouble::Other,
];

impl Trouble {
    /// Returns the label of the metric. All kinds of absence share a label, as do the kinds that a password fixes.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Away | Self::NotListening | Self::NoHost | Self::NoRoute | Self::NoSocket => "away",
            Self::Hung | Self::NoHandshake => "hung",
            Self::Refused | Self::NoPassword => "wrong_password",
            Self::NoPermission => "no_permission",
            Self::ProtectedMode => "protected_mode",
            Self::TooManyClients => "max_clients",
            Self::Tls | Self::SpeaksTls | Self::SpeaksPlain => "tls",
            Self::ReadOnly => "read_only",
            Self::OutOfMemory => "out_of_memory",
            Self::ClusterDown => "cluster_down",
            Self::Moved | Self::IsCluster | Self::NoCluster => "moved",
            Self::Loading | Self::NotSaving | Self::NoMaster | Self::Busy => "busy",
            Self::UnknownCommand => "unknown_command",
            Self::NoScript => "no_script",
            Self::Garbled => "garbled",
            Self::Oversized => "oversized",
            Self::Other => "other",
        }
    }

    /// Classifies an error of the client. Its text is never passed on, because it may repeat the request.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum may grow")]
    pub fn of(error: &RedisError) -> Self {
        let text = || error.to_string();
        match error.kind() {
            ErrorKind::Server(kind) => Self::of_server(kind, error),
            ErrorKind::AuthenticationFailed => hidden(&text()).unwrap_or(Self::Refused),
            ErrorKind::Io if error.is_timeout() => Self::Hung,
            ErrorKind::Io if of_tls(&text()).is_some() => of_tls(&text()).unwrap_or(Self::Tls),
            ErrorKind::ClusterConnectionNotFound | ErrorKind::Io => hidden(&text()).unwrap_or(Self::Away),
            ErrorKind::Extension => of_code(error.code().unwrap_or_default()).unwrap_or(Self::Other),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Garbled,
            _ => hidden(&text()).unwrap_or(Self::Other),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "likewise")]
    fn of_server(kind: ServerErrorKind, error: &RedisError) -> Self {
        match kind {
            ServerErrorKind::NoScript => Self::NoScript,
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain => Self::Moved,
            ServerErrorKind::ClusterDown => Self::ClusterDown,
            ServerErrorKind::BusyLoading => Self::Loading,
            ServerErrorKind::MasterDown => Self::NoMaster,
            ServerErrorKind::ReadOnly => Self::ReadOnly,
            ServerErrorKind::NoPerm => Self::NoPermission,
            // Some versions report errors of commands within a script this way.
            _ => hidden(&error.to_string()).unwrap_or(Self::Other),
        }
    }

    /// Classifies the store's error text. None if it matches no known kind.
    pub fn of_words(words: &str) -> Option<Self> {
        let code = words.split(' ').next().unwrap_or_default();
        of_code(code).or_else(|| hidden(words))
    }

    /// Classifies the reason why this side ended the connection.
    pub const fn of_excess(excess: Excess) -> Self {
        match excess {
            Excess::Bytes | Excess::Elements | Excess::Depth | Excess::Line => Self::Oversized,
            Excess::Slow | Excess::Unasked => Self::Oversized,
            Excess::Tls => Self::SpeaksTls,
            Excess::Garbled => Self::Garbled,
        }
    }

    /// Returns true if the store reports this fault in an error text of its own.
    pub const fn is_said(self) -> bool {
        match self {
            Self::Away | Self::NotListening | Self::NoHost | Self::NoRoute | Self::NoSocket | Self::Hung => false,
            Self::Tls | Self::SpeaksTls | Self::SpeaksPlain | Self::NoHandshake => false,
            Self::Garbled | Self::Oversized => false,
            Self::Refused | Self::NoPassword | Self::NoPermission | Self::ProtectedMode | Self::TooManyClients => true,
            Self::ReadOnly | Self::NoMaster | Self::OutOfMemory | Self::NotSaving | Self::Loading | Self::Busy => true,
            Self::ClusterDown | Self::IsCluster | Self::NoCluster | Self::Moved => true,
            Self::UnknownCommand | Self::NoScript | Self::Other => true,
        }
    }

    /// Returns true if a new connection may help.
    pub const fn wants_connection(self) -> bool {
        match self {
            Self::Away | Self::NotListening | Self::NoHost | Self::NoRoute | Self::NoSocket => true,
            Self::Hung | Self::Refused | Self::NoPassword | Self::ProtectedMode | Self::TooManyClients => true,
            Self::Tls | Self::SpeaksTls | Self::SpeaksPlain | Self::NoHandshake => true,
            Self::ReadOnly | Self::Garbled | Self::Oversized | Self::IsCluster | Self::NoCluster => true,
            Self::UnknownCommand | Self::Other => true,
            Self::NoPermission | Self::OutOfMemory | Self::NotSaving | Self::ClusterDown | Self::Moved => false,
            Self::Loading | Self::NoMaster | Self::Busy | Self::NoScript => false,
        }
    }

    /// Returns true if the fault makes the current connection useless.
    pub const fn ends_connection(self) -> bool {
        matches!(self, Self::Oversized | Self::SpeaksTls | Self::Garbled)
            || matches!(self, Self::Away | Self::NotListening | Self::NoHost | Self::NoRoute | Self::NoSocket)
    }
}

fn of_code(code: &str) -> Option<Trouble> {
    Some(match code {
        "OOM" => Trouble::OutOfMemory,
        "NOAUTH" => Trouble::NoPassword,
        "WRONGPASS" => Trouble::Refused,
        "NOPERM" => Trouble::NoPermission,
        "DENIED" => Trouble::ProtectedMode,
        "READONLY" => Trouble::ReadOnly,
        "CLUSTERDOWN" => Trouble::ClusterDown,
        "MOVED" | "ASK" | "TRYAGAIN" => Trouble::Moved,
        "MISCONF" => Trouble::NotSaving,
        "LOADING" => Trouble::Loading,
        "MASTERDOWN" => Trouble::NoMaster,
        "BUSY" => Trouble::Busy,
        "NOSCRIPT" => Trouble::NoScript,
        _ => return None,
    })
}

/// Finds the error code or a known phrase in the text of a wrapped error.
fn hidden(text: &str) -> Option<Trouble> {
    let words = text.split(|letter: char| !letter.is_ascii_uppercase()).filter(|word| word.len() > 2);
    let by_code = words.filter_map(of_code).next();
    let by_words = [
        ("running script requires", Trouble::OutOfMemory),
        ("command not allowed when used memory", Trouble::OutOfMemory),
        ("can't run this command or subcommand", Trouble::NoPermission),
        ("can't access at least one of the keys", Trouble::NoPermission),
        ("max number of clients", Trouble::TooManyClients),
        ("unknown command", Trouble::UnknownCommand),
        ("Unknown Redis command", Trouble::UnknownCommand),
        ("cluster support disabled", Trouble::NoCluster),
        ("without any password configured", Trouble::Refused),
        ("assword authentication failed", Trouble::Refused),
        ("invalid username-password", Trouble::Refused),
        ("uthentication required", Trouble::NoPassword),
        // Answer to a command of more than ten words.
        ("unauthenticated multibulk length", Trouble::NoPassword),
        ("unauthenticated bulk length", Trouble::NoPassword),
        ("read only replica", Trouble::ReadOnly),
        ("onnection refused", Trouble::NotListening),
        ("failed to lookup address", Trouble::NoHost),
        ("No address found for host", Trouble::NoHost),
        ("etwork is unreachable", Trouble::NoRoute),
        ("o route to host", Trouble::NoRoute),
        ("No such file or directory", Trouble::NoSocket),
        ("Permission denied", Trouble::NoSocket),
    ];
    by_code
        .or_else(|| by_words.iter().find(|(words, _)| text.contains(words)).map(|(_, trouble)| *trouble))
        .or_else(|| of_tls(text))
}

fn of_tls(text: &str) -> Option<Trouble> {
    if text.contains(NO_TLS_IN_TIME) {
        return Some(Trouble::NoHandshake);
    }
    // Plain text from a server without TLS is not a valid TLS record.
    if ["InvalidContentType", "CorruptMessage", "UnknownProtocolVersion"].iter().any(|word| text.contains(word)) {
        return Some(Trouble::SpeaksPlain);
    }
    let words = ["certificate", "Certificate", "TLS", "tls handshake", "HandshakeFailure"];
    words.iter().any(|word| text.contains(word)).then_some(Trouble::Tls)
}

/// Description of the fault and its remedy.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "the store does not answer: no connection",
            Self::NotListening => {
                "the store does not answer: the connection is refused; does it run, and listen on this address and port?"
            }
            Self::NoHost => "the store does not answer: its host name does not resolve; compare `url` with the DNS",
            Self::NoRoute => "the store does not answer: there is no route to it, or a firewall refuses it",
            Self::NoSocket => "the store does not answer: its socket does not exist, or this user may not open it",
            Self::Hung => "the store does not answer in time",
            Self::NoPassword => "the store wants a password: set `username` and `password_file`",
            Self::Refused => {
                "the store refuses the user or password: compare `username` and `password_file` with its ACL"
            }
            Self::NoPermission => "the store's ACL forbids what is needed: `check-config` prints the line to paste",
            Self::ProtectedMode => {
                "the store is in protected mode, and accepts only clients on its own host: give its default user a \
                 password (`requirepass`), or turn that user off (`user default off`)"
            }
            Self::TooManyClients => "the store accepts no more clients: raise its `maxclients`, or end idle ones",
            Self::SpeaksTls => "the store speaks TLS on this port: write rediss:// in `url`, or give its plain port",
            Self::SpeaksPlain => {
                "the store answers TLS with plain text: give its TLS port in `url`, or write redis:// without TLS"
            }
            Self::NoHandshake => {
                "the store does not finish the TLS handshake in time: if this port does not speak TLS, write redis:// \
                 in `url`"
            }
            Self::Tls => "the TLS handshake with the store failed: compare `ca_file`, `cert_file` and `key_file` with \
                its certificates",
            Self::ReadOnly => "the store is a read-only replica: give the master's address, or those of a cluster's \
                nodes",
            Self::OutOfMemory => "the store is out of memory: raise its `maxmemory`",
            Self::ClusterDown => "the cluster does not serve these slots: see `redis-cli cluster info`",
            Self::Moved => "a slot of the cluster is moving",
            Self::NotSaving => {
                "the store cannot save to its disk, so it accepts no writes: see its log, or \
                 `CONFIG SET stop-writes-on-bgsave-error no`"
            }
            Self::IsCluster => "this server belongs to a cluster: list its nodes in `url`",
            Self::NoCluster => "these servers are not a cluster: give one address in `url`",
            Self::Loading => "the store is loading its data, and answers once that is done",
            Self::NoMaster => {
                "the store is a replica that has lost its master: give the master's address, or mend the replication"
            }
            Self::Busy => "a script keeps the store busy: see its log, or `SCRIPT KILL`",
            Self::UnknownCommand => {
                "the store lacks a required command: it must be Redis 7, Valkey 8 or later, with no command renamed"
            }
            Self::Oversized => {
                "the store sent more than it was asked for, and the connection was closed: check who runs this store"
            }
            Self::NoScript => "the store did not keep the script",
            Self::Garbled => "the server does not answer like a store: check that this address is a Redis or Valkey",
            Self::Other => "the store answers with an error",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn no_connection_says_why_and_a_missing_password_what_to_set() {
        let io = |kind: io::ErrorKind, text: &str| RedisError::from(io::Error::new(kind, text.to_owned()));
        let other = io::ErrorKind::Other;
        for (error, trouble, words) in [
            (
                io(io::ErrorKind::ConnectionRefused, "Connection refused (os error 111)"),
                Trouble::NotListening,
                "refused",
            ),
            (
                io(other, "failed to lookup address information: Name or service not known"),
                Trouble::NoHost,
                "host name",
            ),
            (io(other, "No route to host (os error 113)"), Trouble::NoRoute, "no route"),
            (io(other, "No such file or directory (os error 2)"), Trouble::NoSocket, "socket"),
            (io(io::ErrorKind::BrokenPipe, "broken pipe"), Trouble::Away, "no connection"),
            (io(other, "redis://rl:hunter2@192.0.2.1: Connection refused"), Trouble::NotListening, "refused"),
            (
                (ErrorKind::ClusterConnectionNotFound, "Failed to create initial connections", "NOAUTH".into()).into(),
                Trouble::NoPassword,
                "the store wants a password: set `username` and `password_file`",
            ),
        ] {
            assert_eq!(Trouble::of(&error), trouble, "{error}");
            let said = trouble.to_string();
            assert!(said.contains(words) && !said.contains("hunter2"), "{said}");
        }
    }
}
