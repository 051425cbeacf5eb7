//! A small policy and configuration for tests.

use std::net::IpAddr;
use std::path::Path;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;

use crate::config::{Config, OnExit, Safety, XdpModeChoice};
use crate::datapath::fake::FakePacket;
use crate::desired::{Limit, Policy, Ports, Rule, WindowForm};
use crate::snapshot::Snapshot;

pub(crate) const MINUTE_NS: u64 = 60 * SECOND_NS;

/// `amount` units in five minutes.
pub(crate) fn limit(amount: u64, unit: Unit) -> Limit {
    Limit {
        amount,
        unit,
        window_ns: 5 * MINUTE_NS,
        buckets: 5,
        bucket_ns: MINUTE_NS,
        form: WindowForm::Strict,
        burst: None,
        slot: 7 + unit as u32,
    }
}

/// One enforced rule with these limits, on 80 and 443.
pub(crate) fn policy(limits: Vec<Limit>) -> Policy {
    let ports = vec![(80, 80), (443, 443)];
    Policy {
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        access: Vec::new(),
        rules: vec![Rule::new(
            "default".to_owned(),
            Ports { tcp: ports.clone(), udp: ports, other_protocols: false },
            limits,
        )],
    }
}

/// `amount` connections in five minutes on eth0, with the socket in `directory`.
pub(crate) fn config(directory: &Path, amount: u64) -> Config {
    Config {
        interfaces: vec!["eth0".to_owned()],
        xdp_mode: XdpModeChoice::Auto,
        on_exit: OnExit::Detach,
        max_sources: 262_144,
        socket: directory.join("control.sock"),
        listen: None,
        policy: policy(vec![limit(amount, Unit::Connections)]),
        safety: Safety::default(),
        notes: Vec::new(),
        candidates: Vec::new(),
        overruled: Vec::new(),
        lists: Vec::new(),
        list_files: Vec::new(),
    }
}

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
