//! The keys under `[fleet]`. Pure data.

use super::{Key, Value, key};

/// Under `[fleet]`.
pub const FLEET: &[Key] = &[
    key(
        "url",
        Value::Texts("address, or list of a cluster's nodes"),
        "required",
        "Share limits with other hosts by this Redis or Valkey: redis://HOST:PORT, rediss:// for TLS, unix:///PATH; \
        repeatable for a cluster",
    )
    .flags("--fleet", "URL")
    .more("It holds no user and no password. See [FLEET.md](FLEET.md)."),
    key(
        "name",
        Value::Other("letters, digits, `-` and `_`, at most 32"),
        "\"default\"",
        "Name of the fleet among those that share the store",
    )
    .more("Every key in the store begins with `rl:NAME:`."),
    key(
        "secret_file",
        Value::Text("path"),
        "none, only for a store on this machine",
        "File with the fleet's secret, the same on all its hosts",
    )
    .flag("--fleet-secret-file", "PATH")
    .more(
        "32 bytes or more: `head -c 32 /dev/urandom | base64`. Only root should be able to read it. A relative path \
        starts at the file that names it.",
    ),
    key("username", Value::Text("word"), "`default`", "The store's user for this fleet")
        .more("`check-config` prints the ACL line with the permissions that it needs."),
    key("password_file", Value::Text("path"), "none", "File whose first line is the user's password")
        .more("It is read again for each connection, like the certificates."),
    key(
        "ca_file",
        Value::Text("path of a PEM file"),
        "the system's",
        "CA certificates that verify the store's certificate",
    ),
    key("cert_file", Value::Text("path of a PEM file"), "none", "Client certificate for the store")
        .more("With `key_file`, for a store that asks for one."),
    key("key_file", Value::Text("path of a PEM file"), "none", "The private key of `cert_file`"),
    key(
        "interval",
        Value::Other("time of 200ms to 1m"),
        "\"1s\"",
        "How often hosts exchange reports that are not urgent",
    )
    .more("Urgent reports are sent at once. Windows shorter than 30 intervals gain little."),
    key("hosts", Value::Integer(2, 1024), "8", "Maximum number of hosts of the fleet").more(
        "The bound holds for this number. It must be the same on all hosts: sums of more than this times the \
            limit are dropped.",
    ),
    key("bans", Value::Boolean, "true", "Whether bans reach all hosts"),
    key(
        "floor",
        Value::Other("`\"0%\"` to `\"99%\"`"),
        "\"0%\"",
        "Share of each limit that each host keeps, whatever the store says",
    )
    .more("It bounds the harm of a poisoned store, and adds that share for each host to what a window admits."),
];
