//! Shared code of the tests: frames as bytes, the table of named frames, the naive oracle, and a laboratory of
//! namespaces.
#![expect(clippy::expect_used, reason = "all of this is test code: where it cannot go on, the test fails")]

use ratelimit_policy::config::HookChoice;

pub mod browser;
pub mod clients;
pub mod container;
pub mod cost;
pub mod crash;
pub mod established;
pub mod fail2ban;
pub mod fake;
pub mod fixtures;
pub mod fleet;
pub mod flood;
pub mod frames;
pub mod lab;
pub mod layouts;
pub mod logged;
pub mod machine;
pub mod manifests;
pub mod numbers;
pub mod oracle;
pub mod program;
pub mod random;
pub mod raw;
pub mod refused;
pub mod site;
pub mod steady;
pub mod terminal;
pub mod twins;
pub mod unit;

/// Returns the default hook of tests, which `RATELIMITD_TEST_HOOK=tcx` changes to TCX for another run.
pub fn hook() -> HookChoice {
    match std::env::var("RATELIMITD_TEST_HOOK").as_deref() {
        Ok("tcx") => HookChoice::Tcx,
        Ok(_) | Err(_) => HookChoice::Auto,
    }
}
