//! Client of the store: Redis 7 or Valkey 8, one server or a cluster.
//!
//! The client is the crate `redis` without its retries, because the next round is the retry. [`pulse`] decides when to
//! drop a connection, because the client never notices a master that hangs.

pub mod access;
pub mod bounded;
pub mod dial;
pub mod link;
pub mod pulse;
pub mod said;
pub mod trouble;

use std::sync::LazyLock;

/// Lua script and its SHA-1, by which the store names it.
#[derive(Debug)]
pub struct Script {
    code: &'static str,
    sha: String,
}

/// Script that stores one host's registers of a shard and returns the sums of the other hosts.
pub static EXCHANGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("store/exchange.lua")));

/// Script that publishes a host's record and its acts, and returns the hosts and new acts.
pub static BEAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("store/beat.lua")));

impl Script {
    fn new(code: &'static str) -> Self {
        Self { code, sha: redis::Script::new(code).get_hash().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_named_by_their_sha1() {
        assert_eq!(EXCHANGE.sha.len(), 40);
        assert_ne!(EXCHANGE.sha, BEAT.sha);
    }
}
