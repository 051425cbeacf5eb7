//! Tests of `check` and `list`, compared with the verdicts on real packets.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::Write;

use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, Lab, SERVER, once};
use netlab::{HttpServer, Output, needs_root};
use serde_json::Value;

fn done(output: &Output) -> &str {
    assert_eq!(output.code(), 0, "{}{}", output.stdout, output.stderr);
    &output.stdout
}

/// Returns the report of `check`, and asserts that the exit code agrees with the verdict.
fn check(lab: &Lab, source: &str) -> Value {
    let output = lab.ratelimitd(&["check", source, "--json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.stderr));
    let expected = if report["verdict"] == "drop" { 3 } else { 0 };
    assert_eq!(output.code(), expected, "{report:#}");
    report
}

/// Returns the verdict on a port, and its reason.
fn at(report: &Value, ports: &str) -> (String, String) {
    let verdicts = report["verdicts"].as_array().unwrap();
    let found = verdicts.iter().find(|of| of["ports"] == ports).unwrap_or_else(|| panic!("{report:#}"));
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    (text("verdict"), text("reason"))
}

fn is(verdict: &str, reason: &str) -> (String, String) {
    (verdict.to_owned(), reason.to_owned())
}

fn server(lab: &Lab, address: &str, port: u16) -> HttpServer {
    let address = if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
    HttpServer::start(&lab.server, address.parse().unwrap()).unwrap()
}

fn run(lab: &Lab, text: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    fs::write(&file, format!("interfaces = [\"s0\"]\nsocket = {:?}\n{text}", lab.socket())).unwrap();
    lab.start(&["run", "--config", file.to_str().unwrap()])
}

/// Runs the commands that a verdict names for undoing it.
fn undo(lab: &Lab, report: &Value) {
    let commands = report["verdicts"][0]["undo"].as_str().unwrap();
    for command in commands.split(" && ") {
        let words: Vec<&str> = command.strip_prefix("sudo ratelimitd ").unwrap().split(' ').collect();
        done(&lab.ratelimitd(&words));
    }
}

#[test]
fn a_source_that_one_rule_bans_is_told_that_the_others_serve_it() {
    needs_root!();
    let lab = Lab::new();
    let (_login, _web) = (server(&lab, SERVER[0], 81), server(&lab, SERVER[0], 80));
    let _daemon = run(
        &lab,
        "[[rule]]\nname = \"login\"\nports = \"81/tcp\"\nlimits = [\"1/1h connections\"]\nblock_for = \"1h\"\n\
         [[rule]]\nname = \"web\"\nports = \"80/tcp\"\nlimits = [\"100/1h connections\"]\n",
    );
    let mut open = lab.open(CLIENTS[0], 81);
    lab.assert_blocked(CLIENTS[0], 81);
    open.write_all(b"GET").unwrap();
    let is_banned = || at(&check(&lab, CLIENTS[0]), "81/tcp") == is("drop", "banned");
    once(|| is_banned().then_some(())).expect("it is banned");
    lab.open(CLIENTS[0], 80);
    let report = check(&lab, CLIENTS[0]);
    assert_eq!((&report["verdict"], at(&report, "80/tcp")), (&"drop".into(), is("pass", "within_limit")));
    let said = lab.ratelimitd(&["check", CLIENTS[0]]).stdout;
    assert!(said.starts_with("10.9.0.2 is blocked on port 81/tcp and passes on port 80/tcp.\n"), "{said}");

    // Once the source is allowed, its ban is listed, but no longer decides.
    done(&lab.ratelimitd(&["allow", CLIENTS[0]]));
    lab.open(CLIENTS[0], 81);
    let listed: Value = serde_json::from_str(done(&lab.ratelimitd(&["list", CLIENTS[0], "--json"]))).unwrap();
    let rows: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|of| (&of["state"], &of["decides"])).collect();
    assert_eq!(rows, [(&"exempt".into(), &true.into()), (&"banned".into(), &false.into())]);
    assert!(done(&lab.ratelimitd(&["list", "--rule", "login"])).contains("banned, overridden by allow "));
    assert_eq!(at(&check(&lab, CLIENTS[0]), "81/tcp"), is("pass", "exempt"));
    assert_eq!(lab.ratelimitd(&["list", "--rule", "none"]).code(), 2);
}

#[test]
fn the_verdict_is_of_the_very_address_and_its_way_out_works() {
    needs_root!();
    let lab = Lab::new();
    let _web = server(&lab, SERVER[1], 80);
    let _daemon = lab.limit(&["--limit", "100/1h", "--count", "connections"]);
    let [denied, neighbour, _] = CLIENTS_V6;
    done(&lab.ratelimitd(&["deny", &format!("{denied}/128")]));
    lab.assert_blocked(denied, 80);
    lab.open(neighbour, 80);
    let report = check(&lab, denied);
    assert_eq!((&report["verdict"], &report["address"]), (&"drop".into(), &denied.into()));
    assert_eq!(check(&lab, neighbour)["verdict"], "pass");
    assert_eq!(lab.ratelimitd(&["check", "fd09:0:0:a::/64"]).code(), 3, "a part of it is blocked");
    undo(&lab, &report);
    lab.open(denied, 80);
    assert_eq!(lab.ratelimitd(&["check", "fd09:0:0:a::/64"]).code(), 0);

    // The reverse case.
    done(&lab.ratelimitd(&["deny", "fd09:0:0:a::/64"]));
    done(&lab.ratelimitd(&["allow", &format!("{neighbour}/128")]));
    lab.assert_blocked(denied, 80);
    lab.open(neighbour, 80);
    assert_eq!(check(&lab, neighbour)["reason"], "exempt");
    let report = check(&lab, denied);
    assert_eq!(report["reason"], "denied");
    undo(&lab, &report);
    lab.open(denied, 80);
}

#[test]
fn a_source_that_a_list_denies_is_told_its_line_and_passes_in_a_panic() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let list = lab.directory().join("bad.txt");
    fs::write(&list, "# a feed\n192.0.2.0/24\n10.9.0.2 ; SBL7\n").unwrap();
    let _daemon =
        run(&lab, "deny = [\"@bad\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nlimits = [\"300/5m connections\"]\n");
    lab.assert_blocked(CLIENTS[0], 80);
    let report = check(&lab, CLIENTS[0]);
    let of = &report["verdicts"][0];
    let place = format!("{} line 3", list.display());
    assert_eq!(of["decided_by"], format!("list bad ({place}: SBL7), which denies 10.9.0.2"));
    let undo = of["undo"].as_str().unwrap();
    assert!(undo.starts_with(&format!("take 10.9.0.2 out of {place}, then: sudo ratelimitd reload")), "{undo}");
    assert!(done(&lab.ratelimitd(&["list", "--reason", "sbl7"])).contains(" list bad line 3: SBL7\n"));

    done(&lab.ratelimitd(&["panic"]));
    lab.open(CLIENTS[0], 80);
    let report = check(&lab, CLIENTS[0]);
    assert_eq!((&report["verdict"], &report["reason"]), (&"pass".into(), &"dry_run".into()));
    assert_eq!(report["verdicts"][0]["would"], "denied");
    done(&lab.ratelimitd(&["mode", "enforce"]));
    lab.assert_blocked(CLIENTS[0], 80);

    // Following the advice lets the source pass.
    fs::write(&list, "# a feed\n192.0.2.0/24\n").unwrap();
    done(&lab.ratelimitd(&["reload"]));
    lab.open(CLIENTS[0], 80);
    assert_eq!(check(&lab, CLIENTS[0])["verdict"], "pass");
}
