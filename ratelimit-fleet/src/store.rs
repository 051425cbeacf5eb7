//! The store: Redis 7 or Valkey 8, one server or a cluster.
//!
//! The client is the crate `redis`, without its retries: the next round is the retry. A connection is thrown away by
//! [`pulse`], since the client itself never notices a master that hangs.

pub mod access;
pub mod link;
pub mod pulse;
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

/// The line of a Redis or Valkey ACL file that lets `user` do what the fleet `name` needs, and nothing more. Instead of
/// `PASSWORD` stands what is in `password_file`.
pub fn acl_line(user: &str, name: &str) -> String {
    let prefix = crate::names::prefix(name);
    format!(
        "user {user} on >PASSWORD resetchannels ~{prefix}* -@all +eval +evalsha +hmget +hset +hgetall +hdel +pexpire \
         +xadd +xrange +time +ping +cluster|slots"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acl_line_names_the_fleets_keys_alone() {
        let line = acl_line("rl", "web");
        assert!(line.starts_with("user rl on >PASSWORD resetchannels ~rl:web:* -@all "), "{line}");
    }

    #[test]
    fn scripts_are_named_by_their_sha1() {
        assert_eq!(EXCHANGE.sha.len(), 40);
        assert_ne!(EXCHANGE.sha, BEAT.sha);
    }
}
