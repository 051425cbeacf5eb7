//! Tests of the commands in docs/FLEET.md, verbatim, on a Redis as Debian ships it.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::path::Path;

use integration_test::fleet::store;
use integration_test::lab::{HANGS_AFTER, binary, once, run};
use netlab::{Bpffs, Child, Namespace, needs_root};

/// Access settings of Debian's redis.conf (7.0.15).
const AS_SHIPPED: &str = "bind 127.0.0.1 -::1\nprotected-mode yes\nport 6379\ndaemonize no\nsave \"\"\n";

/// Returns the indented lines below a heading of the document, without those for this machine's own services.
fn lines_of(document: &str, heading: &str) -> String {
    let section = document.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("    "));
    lines.filter(|line| !line.contains("systemctl")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_lines_of_the_document_join_a_fleet_on_a_redis_as_debian_ships_it() {
    needs_root!(store::obstacle());
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs/FLEET.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (etc, conf) = (dir.path().join("ratelimitd"), dir.path().join("redis.conf"));
    fs::create_dir(&etc).unwrap();
    fs::write(&conf, AS_SHIPPED).unwrap();
    let namespace = Namespace::new().unwrap();
    namespace.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]).unwrap();
    namespace.ip(&["addr", "add", "192.0.2.1/24", "dev", "eth0"]).unwrap();
    ["eth0", "eth1"].iter().for_each(|link| drop(namespace.ip(&["link", "set", link, "up"]).unwrap()));
    let bpffs = Bpffs::mount().unwrap();
    let socket = dir.path().join("control.sock");
    let rule = format!(
        "interfaces = [\"eth0\"]\nsocket = \"{}\"\non_exit = \"detach\"\n[[rule]]\nname = \"web\"\nlimits = [\"1000/5m\"]\n",
        socket.display()
    );
    fs::write(etc.join("ratelimitd.toml"), &rule).unwrap();
    let here = |lines: &str| {
        let etc = etc.display().to_string();
        lines
            .replace("sudo ", "")
            .replace("/etc/ratelimitd", &etc)
            .replace("/etc/redis/redis.conf", &conf.display().to_string())
            .replace("ratelimitd check-config", &format!("{} check-config {etc}/ratelimitd.toml", binary().display()))
            .replace("ratelimitd reload", &format!("{} reload", binary().display()))
            .replace("ratelimitd fleet", &format!("{} fleet", binary().display()))
    };
    let sh = |lines: &str| {
        let mut command = namespace.command_with(&bpffs, "sh");
        command.args(["-euc", lines]).env("RATELIMITD_SOCKET", &socket).env("RATELIMITD_STATE_DIR", dir.path());
        run(command)
    };
    let prepare = sh(&here(&lines_of(&document, "Prepare the store")));
    assert_eq!(prepare.code(), 0, "{}{}", prepare.stderr, prepare.stdout);
    let mut redis = namespace.command("env");
    if let Some(libraries) = std::env::var_os("REDIS_LIBRARIES") {
        redis.arg(format!("LD_LIBRARY_PATH={}", libraries.display()));
    }
    redis.arg(store::program().unwrap()).arg(&conf).current_dir(dir.path());
    let _redis = Child::start(redis).unwrap();
    let mut daemon = namespace.command_with(&bpffs, binary());
    daemon.args(["run", "--config"]).arg(etc.join("ratelimitd.toml")).env("RATELIMITD_STATE_DIR", dir.path());
    let daemon = Child::start(daemon).unwrap();
    daemon.wait_for_line("ratelimitd: ready", HANGS_AFTER).unwrap();
    let joined = sh(&here(&lines_of(&document, "Set up")));
    assert_eq!(joined.code(), 0, "{}{}", joined.stderr, joined.stdout);
    let connected = once(|| {
        let said = sh(&here("ratelimitd fleet")).stdout;
        said.contains("Fleet default: connected").then_some(said)
    });
    assert!(connected.is_some(), "{}{}", sh(&here("ratelimitd fleet")).stdout, daemon.stderr());
    let password = fs::read_to_string(etc.join("fleet.password")).unwrap();
    assert!(!daemon.stderr().contains(password.trim()));
}
