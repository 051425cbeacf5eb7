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
        "Which fleet it is, of those that share the store",
    )
    .more("Every key in the store begins with `rl:NAME:`."),
    key(
        "secret_file",
        Value::Text("path"),
        "none, for a store on this machine alone",
        "File with the fleet's secret, the same on all its hosts",
    )
    .flag("--fleet-secret-file", "PATH")
    .more("32 bytes or more: `head -c 32 /dev/urandom | base64`. For root alone to read; relative to the file that names it."),
    key("username", Value::Text("word"), "`default`", "The store's user for this fleet")
        .more("`check-config` prints the line that lets it do what is needed and nothing more."),
    key("password_file", Value::Text("path"), "none", "File whose first line is the user's password")
        .more("It is read anew at each connection, as the certificates are."),
    key("ca_file", Value::Text("path of a PEM file"), "the system's", "What the store's certificate is signed by"),
    key("cert_file", Value::Text("path of a PEM file"), "none", "The certificate that the store is shown")
        .more("With `key_file`, for a store that asks for one."),
    key("key_file", Value::Text("path of a PEM file"), "none", "The private key of `cert_file`"),
    key(
        "interval",
        Value::Other("time of 200ms to 1m"),
        "\"1s\"",
        "How often hosts tell each other what is not urgent",
    )
    .more("What is urgent is told at once. Windows shorter than 30 intervals gain little."),
    key("hosts", Value::Integer(2, 1024), "8", "The most hosts of the fleet")
        .more("The bound is for so many. The same on all hosts: sums of more than this times the limit are dropped."),
    key("bans", Value::Boolean, "true", "Whether bans reach all hosts"),
    key("floor", Value::Other("`\"0%\"` to `\"99%\"`"), "\"0%\"", "The share of each limit that no store can take")
        .more("It bounds what a poisoned store does, and adds as much on each host to what a window admits."),
];
