//! Tests of `doctor` and `bug-report` on hosts with real faults.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use integration_test::lab::{CLIENTS, Lab, binary, run};
use netlab::{Output, needs_root};
use ratelimit_kernel::held_maps;
use serde_json::Value;

/// Maps with a copy of each value for each processor.
const PER_CPU: [&str; 4] = ["COUNTERS", "FAULTS", "BANS_BEGUN", "EVENT_TALLIES"];

/// Writes a configuration file that begins with `top`, and returns its path.
fn configured(lab: &Lab, top: &str) -> String {
    let path = lab.directory().join("ratelimitd.toml");
    fs::write(&path, format!("socket = {:?}\n{top}\n[rule]\nlimits = [\"3/1h connections\"]\n", lab.socket())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn checks(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.stderr));
    assert_eq!(report["schema"], 1);
    report["checks"].as_array().unwrap().clone()
}

/// Returns the state and the observation of a check.
fn found(checks: &[Value], id: &str) -> (String, String) {
    let of = checks.iter().find(|of| of["id"] == id).unwrap_or_else(|| panic!("{id}: {checks:#?}"));
    (of["state"].as_str().unwrap().to_owned(), of["seen"].as_str().unwrap().to_owned())
}

#[test]
fn on_a_veth_all_that_is_tried_is_there_and_nothing_is_attached_or_left() {
    needs_root!();
    let lab = Lab::new();
    let config = configured(&lab, "interfaces = [\"s0\"]");
    let before = lab.server.ip(&["-details", "link", "show"]).unwrap();
    let output = lab.ratelimitd(&["doctor", "--json", "--config", &config]);
    let checks = checks(&output);
    for id in
        ["kernel.features", "kernel.program", "kernel.btf", "bpffs.mounted", "interface.ethernet", "interface.mtu"]
    {
        assert_eq!(found(&checks, id).0, "ok", "{id}: {:?}", found(&checks, id));
    }
    assert!(found(&checks, "kernel.program").1.contains("the verifier takes the program"));
    assert!(found(&checks, "interface.lro").0 != "unknown" && found(&checks, "interface.vlan").0 == "ok");
    assert!(found(&checks, "interface.reset").1.contains("veth"), "{checks:#?}");
    assert_eq!(found(&checks, "interface.xdp").1, "no XDP program is attached");
    assert_eq!(lab.server.ip(&["-details", "link", "show"]).unwrap(), before);
    assert!(!lab.pins().exists());
    let problems = checks.iter().any(|of| of["state"] == "problem");
    assert_eq!(output.code(), i32::from(problems), "{checks:#?}");
}

#[test]
fn problems_are_reported_with_their_remedy_and_the_exit_code() {
    needs_root!();
    let lab = Lab::new();
    lab.connect_second_ends();
    lab.attach_foreign("s0");
    lab.server.ip(&["link", "set", "dev", "s1", "mtu", "9000"]).unwrap();
    let secret = lab.directory().join("fleet.secret");
    fs::write(&secret, "s".repeat(40)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let top = format!(
        "interfaces = [\"s0\", \"s1\", \"s7\"]\nhook = \"xdp\"\n[fleet]\nurl = \"redis://192.0.2.1:6379\"\nname = \"web\"\nsecret_file = \"{}\"",
        secret.display()
    );
    let config = configured(&lab, &top);
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = lab.ratelimitd(&["doctor", "--json", "--config", &config]);
    assert_eq!(output.code(), 1, "{}", output.stderr);
    let checks = checks(&output);
    let open = checks.iter().filter(|of| of["id"] == "files.directory" && of["state"] == "problem");
    let seen: Vec<&str> = open.map(|of| of["seen"].as_str().unwrap()).collect();
    assert!(
        seen.len() == 1 && seen[0].contains(lab.directory().to_str().unwrap()) && seen[0].contains("0777"),
        "the sticky /tmp above it is none: {checks:#?}"
    );
    let (state, seen) = found(&checks, "interface.xdp");
    assert!(state == "problem" && seen.contains("/sys/fs/bpf/foreign"), "{seen}");
    assert_eq!(found(&checks, "files.fleet's_secret").0, "problem");
    let (state, seen) = found(&checks, "interface.present");
    assert!(state == "warning" && seen.contains("no interface s7; did you mean s0?"), "{seen}");
    let mtus: Vec<&str> =
        checks.iter().filter(|of| of["id"] == "interface.mtu").map(|of| of["seen"].as_str().unwrap()).collect();
    assert!(mtus.iter().any(|seen| seen.contains("MTU 9000")), "{mtus:?}");
    assert!(!output.stdout.contains(&"s".repeat(40)));

    let words = lab.ratelimitd(&["doctor", "--config", &config]);
    assert_eq!(words.code(), 1);
    for part in ["interface s0\n", "PROBLEM  another XDP program is attached", "mend: ", "why: ", " problems, "] {
        assert!(words.stdout.contains(part), "{part}: {}", words.stdout);
    }
    fs::write(&config, "interfaces = [\"s0\"]\nlimitss = 3\n").unwrap();
    let bad = lab.ratelimitd(&["doctor", "s1", "--json", "--config", &config]);
    assert_eq!((bad.code(), found(&self::checks(&bad), "configuration.file").0.as_str()), (1, "problem"));
    let absent = lab.ratelimitd(&["doctor", "s9"]);
    assert_eq!(absent.code(), 2);
    assert!(
        absent.stderr.contains("did you mean s0?") || absent.stderr.contains("did you mean s1?"),
        "{}",
        absent.stderr
    );
}

#[test]
fn a_non_utf8_interface_hides_no_other_and_jit_is_known_in_any_namespace() {
    needs_root!();
    let lab = Lab::new();
    let mut command = lab.command("sh");
    command.args([
        "-c",
        "n=$(printf 'a\\377\\376b') && ip link add \"$n\" type veth peer name p9 && ip link set \"$n\" alias \"$n\"",
    ]);
    let added = run(command);
    assert_eq!(added.code(), 0, "{}", added.stderr);
    let output = lab.ratelimitd(&["doctor", "s0", "--json"]);
    let checks = checks(&output);
    assert_eq!(found(&checks, "interface.ethernet").0, "ok", "{checks:#?}");
    assert_eq!(found(&checks, "interface.reset").1, "attaching is not known to reset the link (veth)");
    // The sysctl does not exist in a namespace, but the result of loading the program does.
    let (state, seen) = found(&checks, "kernel.jit");
    assert_eq!(state, "ok", "{seen}");
    let _daemon = lab.limit(&["--limit", "1000/1m"]);
    assert_eq!(lab.stats()["interfaces"][0]["attached"], true);
    let absent = lab.ratelimitd(&["doctor", "nope"]);
    assert_eq!(absent.code(), 2, "{}", absent.stderr);
}

#[test]
fn a_place_that_is_no_bpf_file_system_is_a_problem() {
    needs_root!();
    let lab = Lab::new();
    let mut command = lab.command("sh");
    command.arg("-c").arg("mount -t tmpfs none /sys/fs/bpf && exec \"$0\" doctor s0 --json").arg(binary());
    let output = run(command);
    assert_eq!(
        (output.code(), found(&checks(&output), "bpffs.mounted").0.as_str()),
        (1, "problem"),
        "{}",
        output.stderr
    );
}

/// Unpacks a report, and returns its texts by name.
fn unpacked(lab: &Lab, path: &Path) -> Vec<(String, String)> {
    let into = lab.directory().join("unpacked");
    let _gone = fs::remove_dir_all(&into);
    fs::create_dir(&into).unwrap();
    let tar = Command::new("tar").arg("-xzf").arg(path).arg("-C").arg(&into).status().unwrap();
    assert!(tar.success());
    let mut left = vec![into.join("ratelimitd-report")];
    let mut texts = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                texts.push((
                    path.strip_prefix(&into).unwrap().display().to_string(),
                    fs::read_to_string(&path).unwrap(),
                ));
            }
        }
    }
    texts
}

#[test]
fn a_report_has_no_address_and_no_text_of_others_with_and_without_a_daemon_and_root() {
    needs_root!();
    const SECRET: &str = "hunter2-Tr0ub4dor-and-more-than-32-bytes";
    let lab = Lab::new();
    let _web = lab.web();
    let secret = lab.directory().join("fleet.secret");
    fs::write(&secret, SECRET).unwrap();
    let config = configured(
        &lab,
        &format!(
            "# password: {SECRET}\n# was 198.51.100.7 and 2001:DB8::77\ninterfaces = [\"s0\"]\nallow = [\"198.51.100.0/24\", \"2001:db8:77::/48\"]\non_exit = \"keep\""
        ),
    );
    let report = |name: &str, more: &[&str]| {
        let path = lab.directory().join(name);
        let arguments = [&["bug-report", "--config", &config, "--out", path.to_str().unwrap()][..], more].concat();
        (lab.ratelimitd(&arguments), path)
    };
    let is_clean = |texts: &[(String, String)]| {
        for (name, text) in texts {
            for gone in [SECRET, "cookie", "198.51.100", "2001:db8:77", "2001:DB8", CLIENTS[0], "fd09:"] {
                assert!(!text.contains(gone), "{gone} in {name}: {text}");
            }
        }
    };
    let has = |texts: &[(String, String)], name: &str| texts.iter().any(|(of, _)| of.ends_with(name));

    let daemon = lab.start(&["run", "--config", &config]);
    for (client, reason) in [(CLIENTS[1], "stole a cookie: see \"ticket 7\""), (CLIENTS[2], &format!("token {SECRET}"))]
    {
        assert_eq!(lab.ratelimitd(&["deny", client, "--reason", reason]).code(), 0);
    }
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.assert_blocked(CLIENTS[0], 80);
    let (output, path) = report("one.tar.gz", &[]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let texts = unpacked(&lab, &path);
    is_clean(&texts);
    for name in [
        "doctor.json",
        "doctor.txt",
        "stats.json",
        "events.jsonl",
        "list.json",
        "version.json",
        "config.json",
        "pins.txt",
    ] {
        assert!(has(&texts, name) && output.stdout.contains(name), "{name}: {}", output.stdout);
    }
    for (name, text) in texts.iter().filter(|(name, _)| name.ends_with(".json")) {
        assert!(serde_json::from_str::<Value>(text).is_ok(), "{name}: {text}");
    }
    let text_of = |name: &str| &texts.iter().find(|(of, _)| of.ends_with(name)).unwrap().1;
    let list: Value = serde_json::from_str(text_of("list.json")).unwrap();
    let denied = list["entries"].as_array().unwrap().iter().filter(|of| of["state"] == "denied");
    let denied: Vec<&str> = denied.map(|of| of["prefix"].as_str().unwrap()).collect();
    assert!(denied.len() == 2 && denied.iter().all(|prefix| prefix.starts_with("<ipv4:")), "{list:#}");
    assert!(text_of("README.txt").contains("prefixes are masked as"));
    let again = report("one.tar.gz", &[]).0;
    assert_eq!(again.code(), 2, "{}", again.stderr);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    let (whole, path) = report("whole.tar.gz", &["--with-addresses"]);
    assert_eq!(whole.code(), 0);
    let texts = unpacked(&lab, &path);
    assert!(texts.iter().any(|(_, text)| text.contains(CLIENTS[0])));
    assert!(texts.iter().all(|(name, text)| !text.contains(SECRET) || panic!("{name}")));

    daemon.kill();
    let (output, path) = report("dead.tar.gz", &["--json"]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let listed: Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(listed["entries"].as_array().unwrap().len() > 8, "{listed:#}");
    let texts = unpacked(&lab, &path);
    is_clean(&texts);
    assert!(has(&texts, "daemon.txt") && texts.iter().any(|(_, text)| text.contains("STILL ENFORCING on s0")));

    // A user without privileges, in a directory of their own.
    let home = lab.directory().join("home");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(lab.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o777)).unwrap();
    let copy = lab.directory().join("ratelimitd");
    fs::copy(binary(), &copy).unwrap();
    let mut command = lab.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&copy);
    command.args(["bug-report", "--config", &config, "--out"]).arg(home.join("user.tar.gz"));
    let output = run(command);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    let texts = unpacked(&lab, &home.join("user.tar.gz"));
    is_clean(&texts);
    assert!(texts.iter().any(|(_, text)| text.contains("this process lacks CAP_BPF")), "{texts:#?}");
    assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
}

#[test]
fn memory_reported_for_possible_processors_matches_the_kernels() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = lab.limit(&["--limit", "3/1h", "--count", "packets"]);
    let held = held_maps(daemon.child.id()).unwrap();
    let per_cpu: u64 = PER_CPU.iter().map(|name| held[*name]).sum();
    let output = lab.ratelimitd(&["doctor", "s0", "--json"]);
    let (_, seen) = found(&checks(&output), "kernel.processors");
    let words: Vec<&str> = seen.split_whitespace().collect();
    let (&[.., amount, unit], possible) = (words.as_slice(), words[2]) else { panic!("{seen}") };
    let factor = [("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)].iter().find(|(name, _)| *name == unit).unwrap().1;
    let said = amount.parse::<f64>().unwrap() * factor;
    #[expect(clippy::cast_precision_loss, reason = "within a tenth")]
    let ratio = said / per_cpu as f64;
    assert!((0.9..1.1).contains(&ratio), "{seen}; the kernel: {per_cpu} of {held:?}");
    assert!(possible.parse::<u32>().unwrap() > 0);
}

#[test]
fn the_memory_that_is_promised_is_what_the_kernel_takes() {
    needs_root!();
    let lab = Lab::quiet();
    for more in [&["--ipv6-prefix", "128"][..], &["--max-sources", "100000"], &["--max-sources", "16384"]] {
        let args = [&["--limit", "3/1h", "--count", "packets"], more].concat();
        let daemon = lab.limit(&args);
        let held = held_maps(daemon.child.id()).unwrap();
        let held: u64 = held.iter().filter(|(name, _)| !PER_CPU.contains(&name.as_str())).map(|(_, bytes)| bytes).sum();
        let said = lab.ratelimitd(&[&["check-config", "--json", "--iface", "s0"], &args[..]].concat());
        let said: Value = serde_json::from_str(&said.stdout).unwrap();
        let promised = said["memory_bytes"].as_u64().unwrap();
        assert!(promised.abs_diff(held) < held / 50, "{more:?}: {promised} B are promised, the kernel takes {held}");
        daemon.kill();
    }
}
