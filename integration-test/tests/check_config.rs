//! Tests of `check-config` in the daemon's environment: in a network namespace with the /sys of another one.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::fs;

use integration_test::lab::{CLIENTS, Lab, SERVER, binary, run};
use serde_json::Value;

/// Returns the warnings for a file that begins with `top`, for a user with an SSH session from the second client.
fn warnings(lab: &Lab, top: &str) -> Vec<String> {
    let path = lab.directory().join("ratelimitd.toml");
    fs::write(&path, format!("{top}\n[rule]\nlimits = [\"10/1m\"]\n")).unwrap();
    let mut command = lab.command(binary());
    command.env("SSH_CONNECTION", format!("{} 50000 {} 22", CLIENTS[1], SERVER[0]));
    command.args(["check-config", "--json"]).arg(&path);
    let output = run(command);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    report["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_interface_is_looked_for_in_the_callers_own_network_namespace() {
    needs_root!();
    let lab = Lab::new();
    assert_eq!(warnings(&lab, "interfaces = [\"s0\", \"lo\"]"), [""; 0]);
    let of = warnings(&lab, "interfaces = [\"s7\", \"uplink\"]");
    let expected =
        ["there is no interface s7 now: did you mean s0?", "there is no interface uplink now: `ip -brief link`"];
    assert!(of.len() == 2 && of.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{of:?}");
}

#[test]
fn a_list_that_holds_whom_the_host_needs_is_named() {
    needs_root!();
    let lab = Lab::new();
    // Each next hop is a gateway.
    let hops = [CLIENTS[0], CLIENTS[2]].map(|hop| ["nexthop", "via", hop]).concat();
    lab.server.ip(&[&["route", "add", "default"], hops.as_slice()].concat()).unwrap();
    fs::write(lab.directory().join("drop.txt"), "198.51.100.0/24\n10.9.0.1\nfd09::/64 ; ours\n").unwrap();
    let top = format!(
        "interfaces = [\"s0\"]\ndeny = [\"file:drop.txt\", \"{}\", \"{}\", \"{}\"]",
        CLIENTS[0], CLIENTS[1], CLIENTS[2]
    );
    let of = warnings(&lab, &top);
    for part in [
        format!("drop.txt): {} is an address of this host: it is ignored", SERVER[0]),
        format!("drop.txt): fd09::/64 holds {}, an address of this host: it is ignored", SERVER[1]),
        format!("deny has {0}/32, which holds {0}, the default gateway: [safety] allows it", CLIENTS[0]),
        format!("deny has {0}/32, which holds {0}, the default gateway: [safety] allows it", CLIENTS[2]),
        format!("deny has {0}/32, which holds {0}, the peer of your SSH session: [safety] allows it", CLIENTS[1]),
    ] {
        assert!(of.iter().any(|line| line.contains(&part)), "{part}: {of:?}");
    }
    assert_eq!(of.len(), 5, "{of:?}");
}
