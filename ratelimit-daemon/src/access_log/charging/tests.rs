//! Tests of the charges for lines, over the fake datapath.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ratelimit_common::layout::Unit;
use ratelimit_common::window;
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel, FakePacket};
use ratelimit_report::fixture;

use super::super::batch::Counted;
use super::*;

/// Host with one rule of 10 requests in five minutes, and its log.
struct Host {
    datapath: FakeDatapath,
    kernel: FakeKernel,
    policy: Policy,
    logs: AccessLogs,
    log: AccessLog,
    client: IpNet,
}

impl Host {
    fn new() -> Self {
        let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let log = AccessLog::File(PathBuf::from("/log"));
        let mut policy = fixture::policy(vec![fixture::limit(10, Unit::Requests)]);
        policy.rules[0].access_logs = vec![log.clone()];
        datapath.apply(&policy).unwrap();
        datapath.attach("eth0").unwrap();
        let mut logs = AccessLogs::default();
        logs.log(&log, Duration::ZERO);
        Self { datapath, kernel, policy, logs, log, client: "192.0.2.7/32".parse().unwrap() }
    }

    /// Has the kernel count a request.
    fn count(&self) {
        let packet = FakePacket { source: self.client.addr(), opens: false, requests: 1, bytes: 100 };
        assert!(self.kernel.packet("eth0", packet).is_some());
    }

    /// Charges lines, or lets them wait.
    fn charge(&mut self, lines: u64, is_due: bool) {
        let now = self.datapath.now().unwrap();
        let counts: Arc<[Counted]> = self.policy.rules[0].limits.iter().filter_map(Counted::of).collect();
        let of = Of { policy: &self.policy, at: 0, log: &self.log, charges_conditions: true, now };
        let sources = BTreeMap::from([(self.client, Requests { lines, counts: vec![lines] })]);
        let mut waiting = std::mem::take(&mut self.logs.waiting);
        let part = waiting.part(&self.log, of.rule(), &counts);
        self.logs.charge_sources(&mut self.datapath, of, &sources, part, is_due, &mut Vec::new()).unwrap();
        self.logs.waiting = waiting;
    }

    fn used(&mut self) -> u64 {
        let limit = &self.policy.rules[0].limits[0];
        let bucket = self.datapath.now().unwrap().bucket(limit.bucket_ns);
        let windows = self.datapath.source(self.client.addr()).unwrap();
        let window = windows.iter().find(|reading| reading.slot == limit.slot);
        window.map_or(0, |reading| window::used(&reading.window.cells, limit.arithmetic(), bucket))
    }
}

#[test]
fn lines_within_a_limit_wait_until_the_kernels_count_is_final() {
    let mut host = Host::new();
    host.count();
    host.charge(2, false);
    assert_eq!(host.used(), 1);
    host.count();
    host.charge(0, true);
    assert_eq!(host.used(), 2, "the second line was counted late");
    host.charge(3, false);
    host.charge(0, true);
    assert_eq!(host.used(), 5);
}

#[test]
fn lines_of_a_source_without_a_count_wait_as_a_whole() {
    let mut host = Host::new();
    host.charge(1, false);
    host.count();
    host.charge(0, true);
    assert_eq!(host.used(), 1);
    assert_eq!(host.logs.logs[&host.log].peers.outcomes().charged, 1);
}

#[test]
fn lines_beyond_a_limit_are_charged_at_once_with_those_that_wait() {
    let mut host = Host::new();
    host.count();
    host.charge(8, false);
    assert_eq!(host.used(), 1);
    host.charge(4, false);
    assert_eq!(host.used(), 12);
}
