//! A small policy and configuration for tests, packets for it, and a snapshot.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::net::IpAddr;

pub use ratelimit_policy::fixture::{MINUTE_NS, config, limit, policy};

use crate::snapshot::Snapshot;
use ratelimit_common::time::Nanos;
use ratelimit_common::window;
use ratelimit_datapath::fake::FakePacket;
use ratelimit_policy::desired;

/// A packet of 100 bytes that opens a connection, and is its first request.
pub fn opening(source: &str) -> FakePacket {
    FakePacket { source: address(source), opens: true, requests: 1, bytes: 100 }
}

/// An address.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One snapshot with something in every corner.
pub fn snapshot() -> Snapshot {
    serde_json::from_str(include_str!("fixture/stats.json")).unwrap()
}

/// The words of a window of which `used` is charged at `now`.
pub fn window_of(limit: &desired::Limit, used: u64, now: Nanos) -> [u64; window::CELLS] {
    let mut cells = [0; window::CELLS];
    assert!(window::open(&mut cells, limit.arithmetic(), now.bucket(limit.bucket_ns), used));
    cells
}
