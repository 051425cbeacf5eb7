//! Test of the maximum number of sources in the design.

use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{Lab, number, packets};
use netlab::{PacketSocket, needs_root};

const SOURCES: u32 = 1_000_000;
const SENDERS: u32 = 2;
/// Maximum CPU time of the daemon itself, whatever else runs on the machine.
const CPU_MAX: Duration = Duration::from_millis(1500);

#[test]
fn statistics_of_a_million_sources_come_in_time() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = lab.limit(&["--limit", "10/1h", "--count", "connections", "--max-sources", "1048576"]);
    let start = Instant::now();
    thread::scope(|scope| {
        for part in 0..SENDERS {
            let lab = &lab;
            scope.spawn(move || {
                let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
                let mut syn = frame(IPV4, V4::of(TCP).around(tcp(80, SYN)));
                for source in (part..SOURCES).step_by(SENDERS as usize) {
                    // From 20.0.0.0 on. Nobody checks the checksum.
                    syn[26..30].copy_from_slice(&(0x1400_0000 + source).to_be_bytes());
                    sender.send(&syn).unwrap();
                }
            });
        }
    });
    let sent = start.elapsed();
    lab.stats_once(|stats| packets(stats)[0] == u64::from(SOURCES));
    let cpu = || daemon.child.cpu_time().unwrap();
    let mut times: Vec<Duration> = (0..3)
        .map(|_| {
            let before = cpu();
            let stats = lab.stats();
            assert_eq!(number(&stats, "/sources/tracked"), u64::from(SOURCES), "{stats:#}");
            cpu() - before
        })
        .collect();
    times.sort_unstable();
    println!("{SOURCES} sources sent in {sent:?}; stats took {times:?} of CPU");
    assert!(times[1] < CPU_MAX, "stats took {times:?} of CPU");
}
