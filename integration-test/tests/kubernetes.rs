//! Tests of the manifests in dist/kubernetes: valid by the schemas of Kubernetes, and no wider than the systemd unit.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use integration_test::lab::{binary, run};
use integration_test::{manifests, unit};
use ratelimit_userspace::cli::definition;
use serde_json::Value;

const DAEMON: &str = "ratelimitd.yaml";
/// Version of the Kubernetes schemas, the first one with all fields that the manifests use.
const KUBERNETES: &str = "1.30";

fn daemon(pod: &Value) -> &Value {
    manifests::container(pod, "ratelimitd")
}

fn all_pods() -> Vec<(String, Value)> {
    let names = manifests::files().into_iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
    names.map(|name| (name.clone(), manifests::pod(&name))).collect()
}

/// Returns the directory of the schemas that `cargo xtask setup` installs below `target`, if it exists.
fn schemas() -> Option<PathBuf> {
    let named = std::env::var_os("KUBERNETES_SCHEMAS").map(PathBuf::from);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kubernetes-schemas");
    named.into_iter().chain([target]).find(|path| path.join("kubernetes_validate").is_dir())
}

fn validate(schemas: &Path, file: &Path) -> netlab::Output {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", schemas).args(["-m", "kubernetes_validate"]);
    command.args(["--strict", "--kubernetes-version", KUBERNETES]).arg(file);
    run(command)
}

#[test]
fn every_manifest_is_what_kubernetes_takes() {
    let Some(schemas) = schemas() else {
        println!("skipped: every_manifest_is_what_kubernetes_takes: `cargo xtask setup` gets the schemas");
        return;
    };
    for file in manifests::files() {
        let output = validate(&schemas, &file);
        assert_eq!(output.code(), 0, "{}: {}{}", file.display(), output.stdout, output.stderr);
    }
    // Checks that errors are reported at all.
    let text = std::fs::read_to_string(manifests::directory().join(DAEMON)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (from, to) in [("hostNetwork: true", "hostNetwork: 1"), ("readOnlyRootFilesystem:", "readOnlyRootFileSystem:")]
    {
        let wrong = directory.path().join("wrong.yaml");
        assert!(text.contains(from));
        std::fs::write(&wrong, text.replace(from, to)).unwrap();
        assert_ne!(validate(&schemas, &wrong).code(), 0, "{to}");
    }
}

#[test]
fn the_daemon_may_what_the_unit_may_and_nothing_else() {
    let pod = manifests::pod(DAEMON);
    assert_eq!(manifests::capabilities(daemon(&pod)), unit::capabilities());
    assert_eq!(pod["hostNetwork"], true);
    // Like the unit, the pod sees neither other processes nor the IPC of other users.
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null());
}

#[test]
fn nothing_in_any_pod_is_privileged_or_writes_to_its_image() {
    for (name, pod) in all_pods() {
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        for container in manifests::containers(&pod) {
            let confined = &container["securityContext"];
            let fields = ["privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem"].map(|key| &confined[key]);
            assert_eq!(fields, [&Value::Bool(false), &Value::Bool(false), &Value::Bool(true)], "{name}");
            let is_ours = container["image"].as_str().unwrap().contains("ratelimitd");
            let may = manifests::capabilities(container);
            assert_eq!(may.is_empty(), !is_ours, "{name}: {} may {may:?}", container["name"]);
        }
    }
}

#[test]
fn the_daemon_has_the_directories_of_the_unit_its_arguments_and_its_time_to_stop() {
    let pod = manifests::pod(DAEMON);
    let daemon = daemon(&pod);
    let mounts = daemon["volumeMounts"].as_array().unwrap();
    let mounted = |path: &str| mounts.iter().find(|mount| mount["mountPath"] == *path);
    let one = |name: &str| unit::setting(name)[0];
    assert_eq!(mounted(&format!("/etc/{}", one("ConfigurationDirectory"))).unwrap()["readOnly"], true);
    let written = [
        format!("/run/{}", one("RuntimeDirectory")),
        format!("/var/lib/{}", one("StateDirectory")),
        one("ReadWritePaths").to_owned(),
        // The unit's PrivateTmp=yes
        "/tmp".to_owned(),
    ];
    assert_eq!(one("PrivateTmp"), "yes");
    for path in &written {
        assert!(mounted(path).unwrap()["readOnly"].is_null(), "{path}");
    }
    assert_eq!(mounts.len(), written.len() + 1, "{mounts:#?}");
    for mount in mounts {
        manifests::volume(&pod, &mount["name"]);
    }
    let args: Vec<&str> = one("ExecStart").split_whitespace().skip(1).collect();
    assert_eq!(manifests::texts(&daemon["args"]), args);
    assert_eq!(pod["terminationGracePeriodSeconds"].to_string(), one("TimeoutStopSec"));
}

#[test]
fn a_rollout_replaces_one_daemon_at_a_time_and_never_has_two_on_a_node() {
    let update = &manifests::of_kind(DAEMON, "DaemonSet")["spec"]["updateStrategy"];
    assert_eq!(update["type"], "RollingUpdate");
    assert_eq!([&update["rollingUpdate"]["maxUnavailable"], &update["rollingUpdate"]["maxSurge"]], [1, 0]);
}

#[test]
fn the_configuration_is_valid_drops_nothing_and_is_kept_over_a_restart() {
    let map = manifests::of_kind(DAEMON, "ConfigMap");
    let text = map["data"]["ratelimitd.toml"].as_str().unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!((table["rule"]["mode"].as_str(), table["on_exit"].as_str()), (Some("dry-run"), Some("keep")));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ratelimitd.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(binary());
    command.arg("check-config").arg(&file);
    let output = run(command);
    assert_eq!(output.code(), 0, "{}{}", output.stdout, output.stderr);

    let pod = manifests::pod(DAEMON);
    let of = &daemon(&pod)["readinessProbe"]["httpGet"];
    let listen = format!("{}:{}", of["host"].as_str().unwrap(), of["port"]);
    assert_eq!(table["listen"].as_str(), Some(&*listen), "the probe asks where the daemon listens");
}

#[test]
fn probes_and_arguments_are_commands_that_there_are() {
    for (name, pod) in all_pods() {
        for container in manifests::containers(&pod) {
            let args = manifests::texts(&container["args"]);
            let probes = ["startupProbe", "livenessProbe", "readinessProbe"];
            let mut commands: Vec<_> =
                probes.iter().map(|probe| manifests::texts(&container[probe]["exec"]["command"])).collect();
            commands.push(if args.is_empty() { args } else { [&["ratelimitd"][..], &args].concat() });
            for command in commands.iter().filter(|command| !command.is_empty()) {
                assert_eq!(command[0], "ratelimitd", "{name}");
                definition()
                    .try_get_matches_from(command)
                    .unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
            }
        }
    }
}

#[test]
fn images_are_the_one_that_is_made_of_this_version() {
    let ours = format!("localhost/ratelimitd:{}", env!("CARGO_PKG_VERSION"));
    for (name, pod) in all_pods() {
        let images: Vec<_> = manifests::containers(&pod).iter().map(|of| of["image"].as_str().unwrap()).collect();
        assert!(images.contains(&&*ours), "{name}: {images:?}");
        for image in images.iter().filter(|image| **image != ours) {
            assert!(image.starts_with("busybox:"), "{name}: {image}");
        }
    }
}
