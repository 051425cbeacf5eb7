//! Small policy and configuration for tests, packets for it, and a snapshot.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::net::IpAddr;

pub use ratelimit_policy::fixture::{MINUTE_NS, config, limit, policy};

use crate::fleet::{Fleet, FleetLimit, FleetState, RoundSeconds, Summed};
use crate::snapshot::{AccessLogLines, AccessLogReport, Limit, Snapshot, Unit, WindowForm};
use ratelimit_common::time::Nanos;
use ratelimit_common::window;
use ratelimit_datapath::fake::FakePacket;
use ratelimit_policy::desired;

/// Returns a packet of 100 bytes that opens a connection and contains its first request.
pub fn opening(source: &str) -> FakePacket {
    FakePacket { source: address(source), opens: true, requests: 1, bytes: 100 }
}

/// Parses an address.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an access log that is read in time, and has added requests to its rule.
pub fn access_log() -> AccessLogReport {
    AccessLogReport {
        log: "/var/log/nginx/access.log".into(),
        state: "is followed".into(),
        trouble: None,
        behind_seconds: 0.3,
        behind_bytes: Some(0),
        lines: AccessLogLines { reconciled: 1_000, not_a_peer: 3, malformed: 2, ..AccessLogLines::default() },
        skipped_bytes: 0,
        requests_added: [("default".to_owned(), 588)].into(),
        turn_requests_max: [("default".to_owned(), 12)].into(),
    }
}

/// Returns a snapshot in which most optional parts have a value.
pub fn snapshot() -> Snapshot {
    serde_json::from_str(include_str!("fixture/stats.json")).unwrap()
}

/// Returns a connected fleet of two hosts.
pub fn fleet() -> Fleet {
    let limit = Limit {
        amount: 1000,
        window_seconds: 300.0,
        unit: Unit::Requests,
        bucket_seconds: 60.0,
        window: WindowForm::Strict,
        per: None,
        condition: None,
    };
    let limit = FleetLimit {
        rule: "default".to_owned(),
        limit,
        text: "1000/5m requests".to_owned(),
        sum: Summed::Verified,
        summed: true,
        bound: 1250,
        bound_words: "at most 1000 + 1x250".to_owned(),
        shared_with: None,
    };
    let up_to = vec![0.001, 0.005, 0.1];
    Fleet {
        state: FleetState::Connected,
        hosts: 2,
        last_exchange_seconds: Some(0.42),
        rounds: 70,
        rounds_failed: 3,
        reports: 5_678,
        reports_lost: 9,
        name: "web".to_owned(),
        store_says: None,
        slow: false,
        round_trip_seconds: Some(0.004),
        delay_seconds: Some(0.1),
        clock_ahead_seconds: Some(-0.25),
        failures: [("hung".to_owned(), 2), ("moved".to_owned(), 1)].into(),
        round_seconds: RoundSeconds { sum: 0.5, up_to, counts: vec![40, 20, 8, 2] },
        garbage: 1,
        sources: 12,
        limits: vec![limit],
        ..Fleet::default()
    }
}

/// Returns the cells of a window with `used` charged at `now`.
pub fn window_of(limit: &desired::Limit, used: u64, now: Nanos) -> [u64; window::CELLS] {
    let mut cells = [0; window::CELLS];
    assert!(window::open(&mut cells, limit.arithmetic(), now.bucket(limit.bucket_ns), used));
    cells
}
