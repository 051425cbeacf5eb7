//! The daemon under the restrictions of the shipped unit, as read from the unit file, from its start to its end.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use integration_test::lab::{CLIENTS, Daemon, Lab, ask, once};
use integration_test::unit;
use netlab::needs_root;
use nix::sys::signal::Signal;

/// Returns the reason why the unit's restrictions cannot be applied here, or `None`.
fn why_unconfinable() -> Option<String> {
    unit::system_calls().err().map(|reason| format!("{reason:#}"))
}

fn write_config(lab: &Lab, list: &str) -> String {
    let text = format!(
        "interfaces = [\"s0\"]\non_exit = \"keep\"\nlisten = \"127.0.0.1:9464\"\nsocket = \"{}\"\ndeny = [\"file:list\"]\n\
         [rule]\nlimits = [\"3/1h\"]\ncount = \"connections\"\n",
        lab.socket().display()
    );
    let path = lab.directory().join("ratelimitd.toml");
    fs::write(lab.directory().join("list"), list).unwrap();
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Starts a daemon with this configuration file.
fn start(lab: &Lab, config: &str) -> Daemon {
    unit::start(lab, env!("CARGO_BIN_EXE_confine"), &["run", "--config", config])
}

/// Returns a field of a process's `/proc/PID/status`.
fn status(daemon: &Daemon, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

fn mask(names: &[&str]) -> String {
    let bits = names.iter().map(|name| 1_u64 << name.parse::<caps::Capability>().unwrap().index());
    format!("{:016x}", bits.sum::<u64>())
}

#[test]
fn the_daemon_does_all_that_it_is_for_under_the_restrictions_of_its_unit() {
    needs_root!(why_unconfinable());
    let lab = Lab::new();
    let web = lab.web();
    let config = write_config(&lab, "192.0.2.0/24\n");
    let daemon = start(&lab, &config);
    let of_unit = mask(&unit::capabilities());
    let kept = mask(&["CAP_BPF", "CAP_NET_ADMIN"]);
    let fields = ["CapBnd", "CapPrm", "CapEff", "CapInh", "NoNewPrivs", "Seccomp"].map(|field| status(&daemon, field));
    assert_eq!(fields, [&of_unit, &kept, &kept, "0000000000000000", "1", "2"]);

    let socket = fs::metadata(lab.socket()).unwrap();
    assert_eq!((socket.gid(), socket.permissions().mode() & 0o777), (unit::GID, 0o660));
    assert!(!daemon.child.stderr().contains("WARN"), "{}", daemon.child.stderr());
    lab.assert_admitted(CLIENTS[0], 80, 3);

    // Entries of commands are kept in files that only root can change.
    let denied = lab.ratelimitd(&["deny", CLIENTS[1]]);
    assert!(denied.code() == 0 && !denied.stdout.contains("forgets"), "{}{}", denied.stdout, denied.stderr);
    lab.assert_blocked(CLIENTS[1], 80);
    let state = lab.directory().join("state");
    for (path, mode) in [(state.clone(), 0o700), (state.join("access.json"), 0o600)] {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode, "{}", path.display());
    }
    for path in [lab.pins(), fs::read_dir(lab.pins()).unwrap().next().unwrap().unwrap().path()] {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700, "{}", path.display());
    }

    // Creates new maps, and attaches a new program.
    lab.open(CLIENTS[2], 80);
    write_config(&lab, &format!("{}\n", CLIENTS[2]));
    let reloaded = lab.ratelimitd(&["reload"]);
    assert_eq!(reloaded.code(), 0, "{}", reloaded.stderr);
    lab.assert_blocked(CLIENTS[2], 80);
    lab.client.ip(&["link", "del", "c0"]).unwrap();
    lab.connect_ends();
    once(|| lab.has_xdp("s0").then_some(())).unwrap_or_else(|| panic!("{}", daemon.child.stderr()));
    lab.assert_blocked(CLIENTS[0], 80);
    let address = "127.0.0.1:9464".parse().unwrap();
    let mut stream =
        lab.server.inside(|| Ok(std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?)).unwrap();
    let health = ask(&mut stream, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert_eq!(daemon.end(Signal::SIGTERM), 0);

    // The next daemon takes over the pins that this one has left.
    assert!(lab.has_xdp("s0"));
    let daemon = start(&lab, &config);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_blocked(CLIENTS[1], 80);
    let detached = lab.ratelimitd(&["detach"]);
    assert_eq!(detached.code(), 0, "{}", detached.stderr);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists(), "{}", daemon.child.stderr());
    drop(web);
}
