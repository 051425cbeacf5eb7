//! Tests of changing a running daemon by its file: a valid change takes effect without forgetting a source, an invalid
//! one changes nothing.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use integration_test::lab::{CLIENTS, Daemon, HANGS_AFTER, Lab, ask, assert_refused, binary, number, once, run};
use nix::sys::signal::Signal;
use ratelimit_control::Call as _;
use ratelimit_control::proto::{Detach, ReloadRequest};
use serde_json::Value;

const LISTEN: &str = "127.0.0.1:9464";

fn write(lab: &Lab, text: &str) -> String {
    let path = lab.directory().join("ratelimitd.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the text of a file with this limit and further keys at its top.
fn file(lab: &Lab, limit: &str, top: &str) -> String {
    let socket = lab.socket();
    format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\nlisten = \"{LISTEN}\"\n{top}\n[rule]\nlimits = [\"{limit} connections\"]\n",
        socket.display()
    )
}

fn start(lab: &Lab, limit: &str) -> Daemon {
    let path = write(lab, &file(lab, limit, ""));
    lab.start(&["run", "--config", &path])
}

fn get(lab: &Lab, path: &str) -> String {
    let address = LISTEN.parse().unwrap();
    let mut stream = lab.server.inside(|| Ok(TcpStream::connect_timeout(&address, Duration::from_secs(5))?)).unwrap();
    ask(&mut stream, path)
}

/// Waits until the metrics contain this line. Metrics over TCP are at most a second old.
fn await_metric(lab: &Lab, line: &str) {
    once(|| get(lab, "/metrics").lines().any(|has| has == line).then_some(()))
        .unwrap_or_else(|| panic!("no {line:?} in: {}", get(lab, "/metrics")));
}

#[test]
fn a_new_limit_holds_from_now_on_and_no_source_is_reset() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = start(&lab, "2/1h");
    lab.assert_admitted(CLIENTS[0], 80, 2);

    write(&lab, &file(&lab, "5/1h", ""));
    let reloaded = lab.ratelimitd(&["reload"]);
    assert_eq!(reloaded.code(), 0, "{}", reloaded.stderr);
    lab.assert_admitted(CLIENTS[0], 80, 3);

    write(&lab, &file(&lab, "4/1h", ""));
    daemon.child.signal(Signal::SIGHUP).unwrap();
    lab.stats_once(|stats| stats.pointer("/rules/0/limits/0/amount").unwrap() == 4);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 4);
    await_metric(&lab, "ratelimitd_config_last_reload_successful 1");
}

#[test]
fn a_bad_file_changes_nothing_and_is_seen_in_the_metrics() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = start(&lab, "2/1h");
    lab.assert_admitted(CLIENTS[0], 80, 2);
    let bad = [
        ("interfaces = [\n".to_owned(), "ratelimitd.toml"),
        (file(&lab, "9/1h", "intrefaces = []"), "intrefaces"),
        (file(&lab, "nine/1h", ""), "rule.limits"),
        (file(&lab, "9/1h", "max_sources = 512"), "max_sources"),
        (file(&lab, "9/1h", "").replace("\"s0\"", "\"s0\", \"s7\""), "s7"),
    ];
    for (text, word) in bad {
        write(&lab, &text);
        let refused = lab.ratelimitd(&["reload"]);
        assert_ne!(refused.code(), 0, "{text}");
        assert!(refused.stderr.contains(word), "no {word:?} in: {}", refused.stderr);
        await_metric(&lab, "ratelimitd_config_last_reload_successful 0");
        lab.assert_blocked(CLIENTS[0], 80);
        assert_eq!(lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 2);

        write(&lab, &file(&lab, "2/1h", ""));
        assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
        await_metric(&lab, "ratelimitd_config_last_reload_successful 1");
    }
    fs::remove_file(lab.directory().join("ratelimitd.toml")).unwrap();
    daemon.child.signal(Signal::SIGHUP).unwrap();
    daemon.child.wait_for_line("nothing was changed", HANGS_AFTER).unwrap();
    let said = daemon.child.stderr();
    for line in said.lines().filter(|line| line.contains("nothing was changed")) {
        assert_eq!(line.matches("ratelimitd.toml").count(), 1, "{line}");
    }
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 2);
}

#[test]
fn a_renamed_interface_is_protected_and_counted_under_its_new_name() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for keep in ["", "on_exit = \"keep\""] {
        let path = write(&lab, &file(&lab, "2/1h", keep));
        let daemon = lab.start(&["run", "--config", &path]);
        lab.assert_admitted(CLIENTS[0], 80, 2);
        for arguments in [&["down"][..], &["name", "s9"]] {
            lab.server.ip(&[&["link", "set", "s0"], arguments].concat()).unwrap();
        }
        lab.server.ip(&["link", "set", "s9", "up"]).unwrap();
        write(&lab, &file(&lab, "2/1h", keep).replace("s0", "s9"));
        let reloaded = lab.ratelimitd(&["reload"]);
        assert_eq!(reloaded.code(), 0, "{}", reloaded.stderr);
        lab.assert_blocked(CLIENTS[0], 80);
        let stats = lab.stats();
        let names: Vec<_> = stats["interfaces"].as_array().unwrap().iter().map(|of| &of["name"]).collect();
        assert_eq!(names, ["s9"]);
        assert!(lab.has_xdp("s9"));
        assert_ne!(stats.pointer("/interfaces/0/packets/dropped").unwrap(), 0, "{stats:#}");
        daemon.child.signal(Signal::SIGKILL).unwrap();
        drop(daemon);
        assert_eq!(lab.has_xdp("s9"), !keep.is_empty());
        for arguments in [&["down"][..], &["name", "s0"]] {
            lab.server.ip(&[&["link", "set", "s9"], arguments].concat()).unwrap();
        }
        lab.server.ip(&["link", "set", "s0", "up"]).unwrap();
    }
}

#[test]
fn over_tcp_nothing_names_a_source_and_nothing_writes() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = start(&lab, "2/1h");
    lab.assert_admitted(CLIENTS[0], 80, 2);
    assert!(lab.stats().to_string().contains(CLIENTS[0]), "over the socket it does");
    for (path, word) in [
        ("/metrics", "ratelimitd_packets_total"),
        ("/healthz", "\"healthy\":true"),
        ("/api/v1/stats", "\"sources_over_limit\""),
    ] {
        let answer = get(&lab, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(answer.replace(": ", ":").contains(word), "{path}: {answer}");
        assert!(!answer.contains(CLIENTS[0]) && !answer.contains("\"top\""), "{path}: {answer}");
    }
    let check = get(&lab, &format!("/api/v1/check/{}", CLIENTS[0]));
    assert!(check.starts_with("HTTP/1.1 4"), "{check}");
    let address = LISTEN.parse().unwrap();
    for path in [ReloadRequest::ROUTE.path, Detach::ROUTE.path] {
        let answer = lab
            .server
            .inside(|| {
                use std::io::{Read as _, Write as _};
                let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
                let request =
                    format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes())?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            })
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_the_daemon_goes_on_answering() {
    needs_root!();
    let lab = Lab::new();
    let daemon = start(&lab, "2/1h");
    let path = lab.directory().join("ratelimitd.toml");
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for command in [&["reload"][..], &["apply", path.to_str().unwrap()], &["check-config", path.to_str().unwrap()]] {
        assert_refused(&lab.ratelimitd(command), 78, &["it is a pipe, not a file"]);
    }
    assert_eq!(number(&lab.stats(), "/rules/0/limits/0/amount"), 2);
    assert_eq!(daemon.end(Signal::SIGTERM), 0);
}

#[test]
fn a_command_that_was_given_up_while_the_daemon_stood_still_is_not_carried_out() {
    needs_root!();
    let lab = Lab::new();
    let daemon = start(&lab, "2/1h");
    daemon.child.signal(Signal::SIGSTOP).unwrap();
    for command in ["panic", "detach"] {
        let mut given_up = lab.command("timeout");
        given_up.args(["--signal=KILL", "0.5"]).arg(binary()).arg(command);
        assert_ne!(run(given_up).code(), 0, "{command}");
    }
    daemon.child.signal(Signal::SIGCONT).unwrap();
    for command in ["/v1/mode", "/v1/detach"] {
        daemon.child.wait_for_line(&format!("{command} was not run"), HANGS_AFTER).unwrap();
    }
    assert!(lab.stats().get("hold").is_none() && lab.has_xdp("s0"));
}

#[test]
fn metrics_are_served_at_an_address_that_the_host_gets_later_and_limits_hold_before() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let later = "192.0.2.77:9464";
    let path = write(&lab, &file(&lab, "2/1h", "").replace(LISTEN, later));
    let daemon = lab.start(&["run", "--config", &path]);
    assert!(daemon.child.stderr().contains("192.0.2.77 is no address of this host yet"));
    lab.assert_admitted(CLIENTS[0], 80, 2);
    lab.server.add_address("lo", "192.0.2.77/32").unwrap();
    let address = later.parse().unwrap();
    let mut stream = lab.server.inside(|| Ok(TcpStream::connect_timeout(&address, Duration::from_secs(5))?)).unwrap();
    assert!(ask(&mut stream, "/metrics").contains("ratelimitd_attached"));
}

#[test]
fn a_list_that_others_may_write_is_named_wherever_a_configuration_is_looked_at() {
    needs_root!();
    let lab = Lab::quiet();
    let [list, directory] = ["denied.txt", "open/denied.txt"].map(|name| lab.directory().join(name));
    fs::create_dir(directory.parent().unwrap()).unwrap();
    for file in [&list, &directory] {
        fs::write(file, "198.51.100.0/24\n").unwrap();
    }
    let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let top = "deny = [\"file:denied.txt\", \"file:open/denied.txt\"]";
    let path = write(&lab, &file(&lab, "2/1h", top));
    let json = |args: &[&str], field: &str| {
        let output = lab.ratelimitd(args);
        assert_eq!(output.code(), 0, "{args:?}: {}", output.stderr);
        let report: Value = serde_json::from_str(&output.stdout).unwrap();
        let lines = report[field].as_array().unwrap().clone();
        lines.into_iter().filter(|line| line.as_str().unwrap().contains("chmod go-w")).collect::<Vec<_>>()
    };
    let daemon = lab.start(&["run", "--config", &path]);
    let named = || {
        let read = json(&["check-config", "--json", &path], "warnings");
        assert_eq!(json(&["reload", "--json"], "notes"), read);
        read.into_iter().map(|line| line.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(named(), [""; 0]);

    // Writable by others, by a group, or replaceable through its directory.
    for (path, mode, is_safe, words) in [
        (&*list, 0o666, 0o644, "(mode 666): chmod go-w "),
        (&*list, 0o664, 0o644, "(mode 664): chmod go-w "),
        (directory.parent().unwrap(), 0o777, 0o755, "open (mode 777): chmod go-w "),
    ] {
        allow(path, mode);
        let of = named();
        assert!(of.len() == 1 && of[0].contains(words) && of[0].contains("deny (/"), "{of:?}");
        allow(path, is_safe);
    }
    // In a sticky directory nobody can remove another user's file.
    allow(directory.parent().unwrap(), 0o1777);
    assert_eq!(named(), [""; 0]);

    daemon.end(Signal::SIGTERM);
    allow(&list, 0o666);
    let daemon = lab.start(&["run", "--config", &path]);
    assert!(daemon.child.stderr().contains("(mode 666): chmod go-w "), "{}", daemon.child.stderr());
}
