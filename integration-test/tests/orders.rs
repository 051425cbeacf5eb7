//! Tests of commands that change the running limiter, with real packets.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, Lab, SERVER, assert_refused};
use netlab::{Output, needs_root};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;

const KEEP: [&str; 6] = ["--limit", "1/1h", "--count", "connections", "--on-exit", "keep"];

fn done(output: &Output) -> &str {
    assert_eq!(output.code(), 0, "{}", output.stderr);
    &output.stdout
}

fn json(lab: &Lab, args: &[&str]) -> Value {
    serde_json::from_str(done(&lab.ratelimitd(&[args, &["--json"]].concat()))).unwrap()
}

#[test]
fn an_allowed_source_passes_at_once_and_after_a_restart() {
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
        assert_refused(&lab.ratelimitd(&["deny", prefix]), 2, &["--force "]);
    }
    assert_refused(&lab.ratelimitd(&["confirm"]), 2, &["nothing to confirm"]);
}

/// Starts a daemon with this rule in a file.
fn run(lab: &Lab, rule: &str) -> Daemon {
    let path = lab.directory().join("ratelimitd.toml");
    write(lab, rule);
    lab.start(&["run", "--config", path.to_str().unwrap()])
}

fn write(lab: &Lab, rule: &str) {
    let top = format!(
        "interfaces = [\"s0\"]\non_exit = \"keep\"\nmax_sources = 4096\nsocket = \"{}\"",
        lab.socket().display()
    );
    let text = format!("{top}\ndeny = [\"file:deny.txt\"]\n[rule]\n{rule}\n");
    fs::write(lab.directory().join("deny.txt"), "10.9.0.4\n").unwrap();
    fs::write(lab.directory().join("ratelimitd.toml"), text).unwrap();
}

#[test]
fn an_unblocked_source_passes_at_once_with_its_whole_limit() {
    needs_root!();
    for bans in ["", "\nblock_for = \"1h\"\nban_unverified = true"] {
        let lab = Lab::new();
        let _web = lab.web();
        let _daemon = run(&lab, &format!("limits = [\"2/1h connections\"]{bans}"));
        lab.assert_admitted(CLIENTS[1], 80, 2);
        for asked in [CLIENTS[0], "10.9.0.2/31"] {
            lab.assert_admitted(CLIENTS[0], 80, 2);
            let reason = if bans.is_empty() { "over_limit" } else { "banned" };
            let check = lab.ratelimitd(&["check", CLIENTS[0], "--json"]).stdout;
            assert_eq!(serde_json::from_str::<Value>(&check).unwrap()["reason"], reason);
            let report = json(&lab, &["unblock", asked]);
            assert_eq!(report["freed"][0], CLIENTS[0], "{report:#}");
        }
        lab.assert_admitted(CLIENTS[0], 80, 2);
        lab.assert_admitted(CLIENTS[1], 80, 2);
    }
}

#[test]
fn several_are_denied_and_freed_at_once_and_what_fails_is_said() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = run(&lab, "limits = [\"100/1h connections\"]");
    let list = lab.directory().join("list.txt");
    fs::write(&list, format!("# today's\n\n{}\n{} # a comment\n", CLIENTS[0], CLIENTS[1])).unwrap();
    let mut command = lab.command(integration_test::lab::binary());
    command.args(["deny", "-", "--for", "permanent"]).env("SUDO_USER", "alice");
    command.stdin(fs::File::open(&list).unwrap());
    let output = integration_test::lab::run(command);
    assert_eq!(done(&output), format!("{} is denied permanently\n{} is denied permanently\n", CLIENTS[0], CLIENTS[1]));
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_blocked(CLIENTS[1], 80);
    let listed = json(&lab, &["list"]);
    assert_eq!(listed["entries"][0]["user"], "root (alice)");

    let freed = lab.ratelimitd(&["unblock", CLIENTS[0], "10.9.0.999", CLIENTS[2], CLIENTS[1]]);
    assert_refused(&freed, 2, &["error: unblock 10.9.0.999", "is not an IP address"]);
    let file = lab.directory().join("deny.txt");
    let still = format!("{} is STILL DENIED permanently by {} line 1\n  to lift it: ", CLIENTS[2], file.display());
    for words in [&format!("{}: denial by root (alice) lifted\n", CLIENTS[0]), &still] {
        assert!(freed.stdout.contains(words.as_str()), "{}", freed.stdout);
    }
    lab.open(CLIENTS[0], 80);
    lab.open(CLIENTS[1], 80);
    lab.assert_blocked(CLIENTS[2], 80);
    let listed = lab.ratelimitd(&["unblock", CLIENTS[2]]);
    assert_eq!((listed.code(), listed.stderr.as_str()), (3, ""), "{}", listed.stdout);
    let each = lab.ratelimitd(&["unblock", CLIENTS[2], CLIENTS[0], "--json"]);
    let report: Value = serde_json::from_str(&each.stdout).unwrap();
    let codes = [0, 1].map(|at| &report["results"][at]["exit_code"]);
    assert_eq!((each.code(), codes), (3, [&3.into(), &0.into()]), "{report:#}");

    done(&lab.ratelimitd(&["deny", CLIENTS[0], CLIENTS[1]]));
    let all = lab.ratelimitd(&["unblock", "--all"]);
    assert!(done(&all).ends_with(&format!("note: 1 prefix stays denied by {}\n", file.display())), "{}", all.stdout);
    lab.open(CLIENTS[0], 80);
    lab.assert_blocked(CLIENTS[2], 80);
    done(&lab.ratelimitd(&["allow", CLIENTS[2]]));
    lab.open(CLIENTS[2], 80);
    done(&lab.ratelimitd(&["unallow", CLIENTS[2]]));
    lab.assert_blocked(CLIENTS[2], 80);
}

#[test]
fn a_bad_line_of_standard_input_is_named_by_its_number_and_the_other_lines_hold() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = run(&lab, "limits = [\"100/1h connections\"]");
    let file = lab.directory().join("lines.txt");
    let with_lines = |command: &[&str], lines: &[u8]| {
        fs::write(&file, lines).unwrap();
        let mut typed = lab.command(integration_test::lab::binary());
        typed.args(command).stdin(fs::File::open(&file).unwrap());
        integration_test::lab::run(typed)
    };
    let middle = format!("{}\n10.9.0.999\n{}\n", CLIENTS[0], CLIENTS[1]);
    let words = ["error: line 2: ", "10.9.0.999", "is not an IP address"];
    for (command, is_open) in
        [("deny", [false, false]), ("unblock", [true, true]), ("allow", [true, true]), ("unallow", [true, true])]
    {
        let said = with_lines(&[command, "-"], middle.as_bytes());
        assert_refused(&said, 3, &words);
        assert!(said.stdout.contains(CLIENTS[0]) && said.stdout.contains(CLIENTS[1]), "{command}: {}", said.stdout);
        for (client, is_open) in CLIENTS.into_iter().zip(is_open) {
            assert_eq!(lab.is_blocked(client, 80), !is_open, "{command} {client}");
        }
    }
    assert_refused(&with_lines(&["reset", "-"], middle.as_bytes()), 3, &words);
    let json = with_lines(&["deny", "-", "--json"], middle.as_bytes());
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    let of = |at: usize| (report["results"][at]["line"].clone(), report["results"][at]["exit_code"].clone());
    assert_eq!((json.code(), of(0), of(1)), (3, (1.into(), 0.into()), (2.into(), 2.into())), "{report:#}");
    // Many bad lines: some are named, and the others are counted.
    let mut many = b"192.0.2.1\n".to_vec();
    many.extend(b"\xff\xfe\n".iter().chain(&[b'9'; 5_000]).chain(b"\n"));
    many.extend(b"nobody\n".repeat(58));
    many.extend(b"192.0.2.2\n");
    let said = with_lines(&["deny", "-"], &many);
    assert_refused(
        &said,
        3,
        &["error: line 2: ", "line 3: ", "a line of 5000 bytes", "line 21: ", "and 40 more are refused"],
    );
    assert_eq!(said.stderr.matches("error: line ").count(), 20, "{}", said.stderr);
    assert!(said.stderr.len() < 10_000 && said.stdout.contains("192.0.2.2 is denied"), "{}", said.stderr);
    // Bad lines alone do nothing.
    assert_refused(&with_lines(&["deny", "-"], b"here\nthere\n"), 2, &["line 1: ", "line 2: "]);
}

#[test]
fn denials_and_unblocks_during_a_trial_hold_at_once_and_after_its_end() {
    needs_root!();
    for (end, amount) in [("confirm", 200), ("rollback", 100)] {
        let lab = Lab::new();
        let _web = lab.web();
        let daemon = run(&lab, "limits = [\"100/1h connections\"]");
        done(&lab.ratelimitd(&["deny", CLIENTS[0]]));
        write(&lab, "limits = [\"200/1h connections\"]");
        done(&lab.ratelimitd(&["apply", "--confirm", "10m"]));
        lab.open(CLIENTS[1], 80);
        done(&lab.ratelimitd(&["deny", CLIENTS[1]]));
        done(&lab.ratelimitd(&["unblock", CLIENTS[0]]));
        done(&lab.ratelimitd(&["allow", CLIENTS[2]]));
        let as_told = |lab: &Lab| {
            lab.assert_blocked(CLIENTS[1], 80);
            lab.open(CLIENTS[0], 80);
            lab.open(CLIENTS[2], 80);
        };
        as_told(&lab);
        // The next daemon does not know the contents of the kernel's tries.
        daemon.kill();
        let _daemon = lab.start(&["run", "--config", lab.directory().join("ratelimitd.toml").to_str().unwrap()]);
        as_told(&lab);
        done(&lab.ratelimitd(&["deny", CLIENTS_V6[0]]));
        as_told(&lab);
        assert_eq!(lab.stats()["confirm_within_seconds"].as_f64().map(|left| left > 60.0), Some(true));
        done(&lab.ratelimitd(&[end]));
        as_told(&lab);
        let stats = lab.stats();
        assert_eq!(
            (&stats["rules"][0]["limits"][0]["amount"], &stats["confirm_within_seconds"]),
            (&amount.into(), &Value::Null)
        );
        assert_eq!(stats["config"]["last_reload_successful"], true);
        assert_eq!(stats["config"]["rolled_back"]["why"].as_str(), (end == "rollback").then_some("root said so"));
        assert!(!lab.ratelimitd(&["stats"]).stdout.contains("RELOAD FAILED"));
    }
    let lab = Lab::new();
    let _daemon = run(&lab, "limits = [\"100/1h connections\"]");
    assert_refused(&lab.ratelimitd(&["rollback"]), 2, &["nothing to roll back"]);
}
