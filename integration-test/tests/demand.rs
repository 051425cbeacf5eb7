//! Demand that `suggest` reads from a refusing rule: the requests of clients, without their kernels' retransmissions.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use integration_test::lab::{CLIENTS, CLIENTS_V6, Lab, number};
use integration_test::refused::{site, start};
use netlab::needs_root;
use serde_json::Value;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
const ATTEMPTS: u64 = 50;
const PERIOD: Duration = Duration::from_millis(400);
/// Maximum deviation of `suggest` from the real demand, in percent. A request that is refused in one window and
/// admitted in a later one may be judged twice: 227 were reported for 200.
const TOLERANCE: u64 = 20;

#[test]
fn a_refused_request_is_wanted_once_however_often_it_is_sent_again() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "", "drop", "limits = [\"10/10s\"]");
    let clients = [(CLIENTS[0], 300), (CLIENTS[1], 2_000), (CLIENTS[2], 8_000), (CLIENTS_V6[0], 8_000)];
    let asked = AtomicU64::new(0);
    thread::scope(|scope| {
        for (from, patience_ms) in clients {
            let (lab, asked) = (&lab, &asked);
            scope.spawn(move || {
                thread::scope(|attempts| {
                    for _ in 0..ATTEMPTS {
                        attempts.spawn(move || {
                            let mut stream = lab.open(from, 80);
                            stream.set_read_timeout(Some(Duration::from_millis(patience_ms))).unwrap();
                            stream.write_all(REQUEST).unwrap();
                            asked.fetch_add(1, Ordering::Relaxed);
                            let _answered = stream.read(&mut [0; 64]);
                        });
                        thread::sleep(PERIOD);
                    }
                });
            });
        }
    });
    let output = lab.ratelimitd(&["suggest", "--json"]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let (asked, wanted) = (asked.into_inner(), number(&report, "/rules/0/limits/0/observed/wanted"));
    let sent = number(&lab.stats(), "/reasons/over_limit");
    println!("asked {asked}, wanted {wanted}; {sent} packets were refused");
    assert!(sent > asked, "they are sent again: {sent} packets of {asked} requests");
    let most = asked * TOLERANCE / 100;
    assert!(wanted.abs_diff(asked) <= most, "{wanted} are said to be wanted, {asked} were asked for: {report:#}");
}
