//! The image in containers that are confined as the Kubernetes manifests say: started, queried, reconfigured, replaced
//! and removed, with clients meanwhile.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration_test::container::{Image, Node, obstacle};
use integration_test::lab::{CLIENTS, Lab, ask, once};
use integration_test::manifests;
use netlab::needs_root;
use nix::sys::signal::Signal;
use serde_json::json;

const DAEMON: &str = "ratelimitd.yaml";
const REMOVAL: &str = "detach.yaml";

/// Returns the ConfigMap's file, changed for the laboratory's interface and for clients that open connections.
fn config(limit: &str, mode: &str) -> String {
    let shipped = manifests::of_kind(DAEMON, "ConfigMap")["data"]["ratelimitd.toml"].as_str().unwrap().to_owned();
    let changes = [
        (r#"interfaces = ["eth0"]"#, r#"interfaces = ["s0"]"#.to_owned()),
        (r#"limits = ["1000/5m"]"#, format!("limits = [\"{limit}\"]")),
        (r#"count = "requests""#, r#"count = "connections""#.to_owned()),
        (r#"mode = "dry-run""#, format!("mode = \"{mode}\"")),
    ];
    changes.iter().fold(shipped, |text, (from, to)| {
        assert!(text.contains(from), "no {from} in {text}");
        text.replace(from, to)
    })
}

fn mask(names: &[String]) -> String {
    let bits = names.iter().map(|name| 1_u64 << name.parse::<caps::Capability>().unwrap().index());
    format!("{:016x}", bits.sum::<u64>())
}

/// Returns whether a probe over HTTP succeeds.
fn is_ready(lab: &Lab, probe: &serde_json::Value) -> bool {
    let of = &probe["httpGet"];
    let address = format!("{}:{}", of["host"].as_str().unwrap(), of["port"]).parse().unwrap();
    let asked = lab.server.inside(|| Ok(std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?));
    asked.is_ok_and(|mut stream| ask(&mut stream, of["path"].as_str().unwrap()).starts_with("HTTP/1.1 200"))
}

#[test]
fn a_container_of_the_daemonset_limits_a_client_and_the_next_one_goes_on_with_it() {
    needs_root!(obstacle());
    let (lab, image) = (Lab::new(), Image::under_test());
    let web = lab.web();
    let pod = manifests::pod(DAEMON);
    let of = manifests::container(&pod, "ratelimitd");
    let probe = |name: &str| manifests::texts(&of[name]["exec"]["command"]);
    let mut node = Node::new(&lab, &image, config("3/1h", "enforce"));
    let container = node.start(&pod, "ratelimitd", None);
    container.wait_for(&probe("startupProbe"));
    assert_eq!(container.exec(&probe("livenessProbe")).code(), 0);
    assert!(is_ready(&lab, &of["readinessProbe"]), "{}", container.child.stderr());
    assert!(!container.child.stderr().contains("WARN"), "{}", container.child.stderr());

    let (of_manifest, kept) =
        (mask(&manifests::capabilities(of)), mask(&["CAP_BPF", "CAP_NET_ADMIN"].map(str::to_owned)));
    let fields = ["CapBnd", "CapPrm", "CapEff", "CapInh", "NoNewPrivs"].map(|field| container.status(field));
    assert_eq!(fields, [&of_manifest, &kept, &kept, "0000000000000000", "1"]);

    lab.assert_admitted(CLIENTS[0], 80, 3);
    let denied = container.exec(&["ratelimitd", "deny", CLIENTS[1]]);
    assert!(denied.code() == 0 && !denied.stdout.contains("forgets"), "{}{}", denied.stdout, denied.stderr);
    lab.assert_blocked(CLIENTS[1], 80);
    for args in [&["ratelimitd", "stats"][..], &["ratelimitd", "check-config"], &["ratelimitd", "version"]] {
        let said = container.exec(args);
        assert_eq!(said.code(), 0, "{args:?}: {}{}", said.stdout, said.stderr);
    }
    let is_in_history = once(|| container.exec(&["ratelimitd", "history"]).stdout.contains(CLIENTS[0]).then_some(()));
    assert_eq!(is_in_history, Some(()), "{}", container.exec(&["ratelimitd", "history"]).stdout);

    // The kubelet writes another file.
    lab.assert_admitted(CLIENTS[2], 80, 3);
    node.change_config(&container, config("4/1h", "enforce"));
    let reloaded = container.exec(&["ratelimitd", "reload"]);
    assert_eq!(reloaded.code(), 0, "{}{}", reloaded.stdout, reloaded.stderr);
    lab.assert_admitted(CLIENTS[2], 80, 1);

    // Replaced: the pins keep enforcing, and the next container starts from them.
    assert_eq!(container.stop(Signal::SIGTERM), 0);
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[2], 80);
    let container = node.start(&pod, "ratelimitd", None);
    container.wait_for(&probe("startupProbe"));
    for client in [CLIENTS[1], CLIENTS[2]] {
        lab.assert_blocked(client, 80);
    }
    lab.assert_admitted(CLIENTS[0], 80, 1);

    // Removed, together with the state that was kept.
    assert_eq!(container.stop(Signal::SIGTERM), 0);
    assert!(node.host("/var/lib/ratelimitd").join("access.json").exists());
    let removal = manifests::pod(REMOVAL);
    let (code, said) = node.start(&removal, "detach", None).end();
    assert!(code == 0 && !lab.has_xdp("s0") && !lab.pins().exists(), "{code}: {said}");
    lab.open(CLIENTS[1], 80);
    let (code, said) = node.start(&removal, "detach", None).end();
    assert_eq!(code, 0, "where nothing is left too: {said}");
    let shell = Shell::new();
    let (code, said) = node.start(&removal, "purge", Some(shell.0.path())).end();
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_dir(node.host("/var/lib/ratelimitd")).unwrap().count(), 0);
    drop(web);
}

/// An image with a shell: busybox under the names that the manifest calls.
struct Shell(tempfile::TempDir);

impl Shell {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(busybox(), bin.join("busybox")).unwrap();
        for name in ["find", "rm", "sleep"] {
            std::os::unix::fs::symlink("busybox", bin.join(name)).unwrap();
        }
        Self(root)
    }
}

/// Returns the path of the busybox that the machines with other kernels use.
fn busybox() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels/busybox-static");
    let all =
        [target.join("usr/bin/busybox"), target.join("bin/busybox"), "/usr/bin/busybox".into(), "/bin/busybox".into()];
    all.into_iter().find(|path| path.is_file()).unwrap()
}

#[test]
fn the_images_own_configuration_drops_nothing() {
    needs_root!(obstacle());
    let image = Image::under_test();
    let text = fs::read_to_string(image.root().join("etc/ratelimitd/ratelimitd.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["rule"]["mode"].as_str(), Some("dry-run"));
    let program = fs::metadata(image.root().join("usr/bin/ratelimitd")).unwrap();
    assert_eq!(program.permissions().mode() & 0o777, 0o755);
    assert_eq!(image.config["User"], "0:0");
}

#[test]
fn a_node_without_a_bpf_file_system_is_told_so() {
    needs_root!(obstacle());
    let (lab, image) = (Lab::new(), Image::under_test());
    let mut pod = manifests::pod(DAEMON);
    let volumes = pod["volumes"].as_array_mut().unwrap();
    let bpffs = volumes.iter_mut().find(|volume| volume["name"] == "bpffs").unwrap();
    bpffs["hostPath"] = json!({ "path": "/sys/fs/none", "type": "DirectoryOrCreate" });
    let node = Node::new(&lab, &image, config("3/1h", "enforce"));
    let (code, said) = node.start(&pod, "ratelimitd", None).end();
    assert!(code == 69 && said.contains("mount -t bpf bpf /sys/fs/bpf"), "{code}: {said}");
    assert!(!lab.has_xdp("s0"));
}

#[test]
fn a_profile_that_forbids_bpf_is_named_and_not_root() {
    needs_root!(obstacle());
    let (lab, image) = (Lab::new(), Image::under_test());
    let pod = manifests::pod(DAEMON);
    let mut node = Node::new(&lab, &image, config("3/1h", "enforce"));
    node.seccomp = Some(json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    }));
    let (code, said) = node.start(&pod, "ratelimitd", None).end();
    assert!(
        code == 77 && said.contains("a seccomp or AppArmor profile") && !said.contains("run as root"),
        "{code}: {said}"
    );
    assert!(!lab.has_xdp("s0"));
}
