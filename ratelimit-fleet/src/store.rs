//! The store: Redis 7 or Valkey 8, one server or a cluster.
//!
//! The client is the crate `redis`, without its retries: the next round is the retry. A connection is thrown away by
//! [`pulse`], since the client itself never notices a master that hangs.

pub mod access;
pub mod bounded;
pub mod dial;
pub mod link;
pub mod pulse;
pub mod said;
pub mod trouble;

use std::sync::LazyLock;

/// A script and its name in the store.
#[derive(Debug)]
pub struct Script {
    code: &'static str,
    sha: String,
}

/// Stores one host's registers in a shard, and answers the others' sums.
pub static EXCHANGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("store/exchange.lua")));

/// Says what a host is, and what all do.
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
