//! A small policy and configuration for tests, packets for it, and a snapshot.

use std::net::IpAddr;

pub(crate) use ratelimit_policy::fixture::{MINUTE_NS, config, limit, policy};

use crate::datapath::fake::FakePacket;
use crate::snapshot::Snapshot;

/// A packet of 100 bytes that opens a connection, and is its first request.
pub(crate) fn opening(source: &str) -> FakePacket {
    FakePacket { source: address(source), opens: true, requests: 1, bytes: 100 }
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One snapshot with something in every corner.
pub(crate) fn snapshot() -> Snapshot {
    serde_json::from_str(include_str!("fixture/stats.json")).unwrap()
}
