//! A client that wants to be miscounted, at random: its segments in any order, overlapping, repeated, lost on the way, and
//! with whatever in them; before a server that reads as servers do. What the server accepts is held against what was
//! counted.
//!
//! In the clear, no more requests are accepted than were counted, and one of a connection; of HTTP/2 as long as its
//! segments come in order, and no more *turns* have requests than twice what was counted or held to the guard,
//! whatever comes. Under TLS, several requests of one burst cannot be told apart: no more *turns* have requests than
//! twice what was counted, held to the guard, or sent in units of 4 KB, and one of a connection.
//!
//! `ADVERSARY_CASES` says how many cases of each kind, `ADVERSARY_SEED` with which to begin; each case is a seed of
//! its own. The most that was run: 78 million of HTTP/1 in the clear, of which one had two requests too many (seed
//! 11035952464, mended since and a row of `found`), 6 million of HTTP/2 there and 14 million under TLS, of which none
//! broke its bound, which had no units of 4 KB then.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

mod clear;
mod clients;
mod found;
mod frames;
mod http1;
mod http2;
mod link;
mod random;
mod sealed;
mod sender;
mod tcp;
mod tls;

/// Cases of each kind, unless the environment says how many.
const CASES: u64 = 170_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a case for each seed. It says what was wrong; it is run again then, to tell how that came.
fn each_case(kind: &str, mut case: impl FnMut(u64, bool) -> Result<(), String>) {
    let first = from_environment("ADVERSARY_SEED").unwrap_or(0);
    let cases = from_environment("ADVERSARY_CASES").unwrap_or(CASES);
    println!("{kind}: seeds {first} to {}", first + cases - 1);
    for seed in first..first + cases {
        if case(seed, false).is_err()
            && let Err(told) = case(seed, true)
        {
            panic!("{kind}, ADVERSARY_SEED={seed} ADVERSARY_CASES=1: {told}");
        }
    }
}
