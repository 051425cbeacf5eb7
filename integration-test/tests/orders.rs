//! What commands change while the limiter runs, with real packets.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use integration_test::lab::{CLIENTS, Lab, SERVER, assert_refused};
use netlab::{Output, needs_root};
use nix::sys::signal::Signal;
use serde_json::Value;

const KEEP: [&str; 6] = ["--limit", "1/1h", "--count", "connections", "--on-exit", "keep"];

fn done(output: &Output) -> &str {
    assert_eq!(output.code(), 0, "{}", output.stderr);
    &output.stdout
}

fn json(lab: &Lab, args: &[&str]) -> Value {
    serde_json::from_str(done(&lab.ratelimitd(&[args, &["--json"]].concat()))).unwrap()
}

#[test]
fn whoever_is_allowed_passes_at_once_and_after_a_restart() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 1);
    let report = json(&lab, &["allow", CLIENTS[0], "--reason", "a test"]);
    assert_eq!((&report["frees"][0], &report["entry"]["reason"]), (&CLIENTS[0].into(), &"a test".into()));
    lab.open(CLIENTS[0], 80);
    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    let _daemon = lab.limit(&KEEP);
    lab.open(CLIENTS[0], 80);
    let listed = json(&lab, &["list"]);
    let row = &listed["entries"][0];
    assert_eq!((&row["prefix"], &row["state"], &row["by"]), (&CLIENTS[0].into(), &"exempt".into(), &"command".into()));
    lab.assert_admitted(CLIENTS[1], 80, 1);
    let explained = json(&lab, &["explain", CLIENTS[1], "--to", "80"]);
    assert_eq!((&explained["verdict"], &explained["reason"]), (&"drop".into(), &"over_limit".into()));
    assert_eq!(json(&lab, &["explain", CLIENTS[0], "--to", "80"])["reason"], "exempt");
    assert_eq!(json(&lab, &["explain", CLIENTS[1], "--to", "22"])["reason"], "not_protected");
}

#[test]
fn panic_passes_everything_until_it_is_ended() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections"]);
    lab.assert_admitted(CLIENTS[0], 80, 1);
    done(&lab.ratelimitd(&["panic"]));
    lab.open(CLIENTS[0], 80);
    let stats = lab.stats();
    assert_eq!((&stats["mode"], &stats["hold"]["panic"]), (&"dry-run".into(), &true.into()));
    done(&lab.ratelimitd(&["mode", "enforce"]));
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn the_host_itself_is_not_denied_by_mistake() {
    needs_root!();
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections"]);
    for prefix in [SERVER[0], SERVER[1], "10.9.0.0/24", "0.0.0.0/0", "::/0"] {
        assert_refused(&lab.ratelimitd(&["deny", prefix]), 2, &["--force insists"]);
    }
    assert_refused(&lab.ratelimitd(&["confirm"]), 2, &["nothing to confirm"]);
}
