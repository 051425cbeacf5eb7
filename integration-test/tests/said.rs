//! Tests of the limiter's messages in its log, and to users without permission, with real packets and users.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, assert_refused, binary, run};
use nix::sys::signal::Signal;

/// User ID of nobody, an unprivileged user without files.
const NOBODY: &str = "65534";

/// Exceeds a limit of one connection by data on an open one, because a SYN alone bans nobody.
fn exceed(lab: &Lab, from: &str) {
    let mut open = lab.open(from, 80);
    lab.assert_blocked(from, 80);
    open.write_all(b"GET").unwrap();
}

#[test]
fn bans_are_logged_with_rule_and_end_and_runs_from_start_to_detach() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let limit = ["--limit", "1/1h", "--count", "connections", "--name", "web", "--block-for", "3s"];
    let mut daemon = lab.limit(&[&limit[..], &["--listen", "127.0.0.1:0", "--on-exit", "keep"]].concat());
    let said = daemon.child.stderr();
    let expected = "limiting each source on s0: rule \"web\" 1/1h connections on ports 80,443 (enforced)";
    assert!(said.lines().any(|line| line.ends_with(expected)), "{said}");
    assert!(said.contains("metrics at http://127.0.0.1:") && said.contains("/metrics, health at"), "{said}");

    exceed(&lab, CLIENTS[0]);
    let ban = daemon.child.wait_for_line("10.9.0.2 banned by rule \"web\" until ", HANGS_AFTER).unwrap();
    assert!(ban.ends_with(": used 1 of 1/1h connections"), "{ban}");
    assert!(!ban.contains("source="), "what is a field for programs is not said twice: {ban}");
    daemon.child.wait_for_line("10.9.0.2: ban by rule \"web\" expired, ", HANGS_AFTER).unwrap();
    lab.ratelimitd(&["deny", CLIENTS[1], "--for", "1h", "--reason", "a test"]);
    daemon.child.wait_for_line("10.9.0.3/32 denied until ", HANGS_AFTER).unwrap();
    lab.ratelimitd(&["unblock", CLIENTS[1]]);
    daemon.child.wait_for_line("10.9.0.3/32 unblocked by ", HANGS_AFTER).unwrap();
    daemon.child.signal(Signal::SIGTERM).unwrap();
    assert_eq!(daemon.child.wait(HANGS_AFTER).unwrap().code(), Some(0));
    let last = daemon.child.wait_for_line("s0 stays limited without the daemon; ", HANGS_AFTER).unwrap();
    assert!(last.contains(" dropped in ") && !last.contains("; 0 packets"), "{last}");

    let daemon = lab.limit(&[&limit[..], &["--on-exit", "keep"]].concat());
    assert!(daemon.child.stderr().contains("took over the filter on s0, which ran without a daemon"));
    assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    let last = daemon.child.wait_for_line("detached from s0 by root; ", HANGS_AFTER).unwrap();
    assert!(last.contains("packets dropped in "), "{last}");
}

#[test]
fn dry_run_logs_and_lists_bans_that_it_prevents() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    // Rounds are half a bucket apart, so 5 seconds.
    let daemon = lab.limit(&["--limit", "1/1m", "--count", "connections", "--block-for", "10m", "--dry-run"]);
    assert!(daemon.child.stderr().contains("DRY RUN, nothing is dropped; counting each source on s0: "));
    for _ in 0..3 {
        lab.open(CLIENTS[0], 80);
    }
    let would = daemon.child.wait_for_line("10.9.0.2 would be banned by rule ", HANGS_AFTER).unwrap();
    assert!(would.ends_with(": used 1 of 1/1m connections (dry run)"), "{would}");
    let listed = lab.ratelimitd(&["list"]).stdout;
    assert!(listed.contains("These would be banned:\n") && listed.contains("\n 10.9.0.2 "), "{listed}");
    assert_eq!(lab.stats().pointer("/rules/0/would_ban/sources").unwrap(), 1);
    lab.open(CLIENTS[0], 80);
}

#[test]
fn unprivileged_users_are_told_who_may_run_a_command_and_what_to_type() {
    needs_root!();
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections"]);
    // Everybody may access the other directories on the way to the socket.
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o711)).unwrap();
    let copy = lab.directory().join("ratelimitd");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = lab.command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]).arg(&copy).args(args);
        command.env_remove("RATELIMITD_SOCKET").args(["--socket"]).arg(lab.socket());
        run(command)
    };
    let typed = |command: &str| format!("sudo ratelimitd {command} --socket {}", lab.socket().display());
    let denied = as_nobody(&["deny", "192.0.2.7"]);
    assert_refused(&denied, 77, &["only root and the user that the daemon runs as", &typed("deny 192.0.2.7")]);
    assert!(!denied.stderr.contains("usermod"), "its group may not either: {}", denied.stderr);
    assert_refused(&as_nobody(&["stats"]), 77, &["members of the group ratelimitd may read", &typed("stats")]);
    // A user who may read the socket, like a member of its group.
    fs::set_permissions(lab.socket(), Permissions::from_mode(0o666)).unwrap();
    assert_eq!(as_nobody(&["stats"]).code(), 0);
    assert_refused(&as_nobody(&["deny", "192.0.2.7"]), 77, &["only root and the user", &typed("deny 192.0.2.7")]);
}
