//! The image in a container, as a cluster's node runs it: its layers unpacked, confined as a manifest says, by crun.
//!
//! Does the work of the kubelet and a container runtime: volumes become mounts, a ConfigMap becomes a directory of
//! links. Knows the layout of images and the runtime's configuration, and knows nothing about the program.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use netlab::{Child, Output};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::lab::{HANGS_AFTER, Lab, once, run};
use crate::manifests;

/// Environment variable with the image's path, set by `cargo xtask test`.
const IMAGE: &str = "RATELIMITD_IMAGE";
/// Path below `target` at which `cargo xtask setup` unpacks a runtime.
const UNPACKED: &str = "kernels/crun/usr/bin/crun";
/// Paths of /proc and /sys that runtimes hide, and those that they make read-only.
const MASKED: [&str; 7] = [
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/scsi",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Returns the reason why no container can be run, or `None`.
pub fn obstacle() -> Option<String> {
    if std::env::var_os(IMAGE).is_none() {
        return Some(format!("{IMAGE} names no image: `cargo xtask test` makes one"));
    }
    crun().is_none().then(|| "there is no crun: `cargo xtask setup` unpacks one".to_owned())
}

fn crun() -> Option<PathBuf> {
    let named = std::env::var_os("CRUN").map(PathBuf::from);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(UNPACKED);
    let system = ["/usr/bin/crun", "/usr/local/bin/crun"].map(PathBuf::from);
    named.into_iter().chain([target]).chain(system).find(|path| path.is_file())
}

/// An image with its layers unpacked into a directory.
pub struct Image {
    directory: tempfile::TempDir,
    /// The image's own configuration: `Entrypoint`, `Env`, `Labels`.
    pub config: Value,
}

impl Image {
    /// Unpacks the image that `RATELIMITD_IMAGE` names, and checks each blob against its digest.
    pub fn under_test() -> Self {
        let archive = std::env::var_os(IMAGE).expect("an image");
        let blobs = members(&fs::read(archive).expect("the image is read"));
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
        assert_eq!(json(&blobs["oci-layout"])["imageLayoutVersion"], "1.0.0");
        let manifest = json(blob(&blobs, &json(&blobs["index.json"])["manifests"][0]));
        let about = json(blob(&blobs, &manifest["config"]));
        let layers = manifest["layers"].as_array().expect("layers");
        let directory = tempfile::tempdir().expect("a directory");
        for (layer, diff_id) in layers.iter().zip(about["rootfs"]["diff_ids"].as_array().expect("digests")) {
            let mut tar = blob(&blobs, layer).to_vec();
            if layer["mediaType"].as_str().expect("a type").ends_with("+gzip") {
                let packed = std::mem::take(&mut tar);
                GzDecoder::new(packed.as_slice()).read_to_end(&mut tar).expect("gzip");
            }
            assert_eq!(digest(&tar), *diff_id);
            let mut archive = tar::Archive::new(tar.as_slice());
            archive.set_preserve_permissions(true);
            archive.unpack(directory.path().join("rootfs")).expect("the layer is unpacked");
        }
        Self { directory, config: about["config"].clone() }
    }

    /// Returns the directory with the image's files, the container's root.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("rootfs")
    }
}

fn members(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let mut members = BTreeMap::new();
    for entry in archive.entries().expect("a tar archive") {
        let mut entry = entry.expect("a member");
        let name = entry.path().expect("a name").to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its contents");
        members.insert(name, bytes);
    }
    members
}

fn blob<'a>(blobs: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let name = descriptor["digest"].as_str().expect("a digest");
    let blob = &blobs[&format!("blobs/{}", name.replace(':', "/"))];
    assert_eq!((digest(blob), blob.len() as u64), (name.to_owned(), descriptor["size"].as_u64().expect("a size")));
    blob
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A cluster's node: the server of a laboratory, and a directory that stands for the host's file system.
pub struct Node<'a> {
    lab: &'a Lab,
    image: &'a Image,
    /// Text of the ConfigMap's file.
    config: String,
    /// Seccomp section of the runtime's configuration, if system calls are to be refused.
    pub seccomp: Option<Value>,
}

impl<'a> Node<'a> {
    /// Returns a node with a ConfigMap that has a file with this text.
    pub const fn new(lab: &'a Lab, image: &'a Image, config: String) -> Self {
        Self { lab, image, config, seccomp: None }
    }

    /// Returns the path that stands for a path on the host in a manifest.
    pub fn host(&self, path: &str) -> PathBuf {
        if path == "/sys/fs/bpf" {
            return self.lab.pins().parent().expect("pins lie in a file system").to_owned();
        }
        self.lab.directory().join("host").join(path.trim_start_matches('/'))
    }

    /// Starts a container of a pod. `root` is the directory of another image's files, if the container uses another
    /// image.
    pub fn start(&self, pod: &Value, name: &str, root: Option<&Path>) -> Container {
        let container = manifests::container(pod, name);
        let bundle = tempfile::tempdir().expect("a directory");
        let mounts: Vec<_> = container["volumeMounts"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|mount| self.mount(mount, manifests::volume(pod, &mount["name"]), bundle.path()))
            .collect();
        let root = root.map_or_else(|| self.image.root(), Path::to_owned);
        let config = self.runtime_config(container, &root, mounts);
        fs::write(bundle.path().join("config.json"), config.to_string()).expect("the runtime's configuration");
        Container::start(bundle)
    }

    /// Replaces the text of the ConfigMap's file as the kubelet does, by one rename of a link.
    pub fn change_config(&mut self, container: &Container, config: String) {
        self.config = config;
        self.write_config(&container.bundle.path().join("config"));
    }

    fn write_config(&self, directory: &Path) {
        let version = (0..).map(|number| format!("..version_{number}")).find(|name| !directory.join(name).exists());
        let version = version.expect("a name that is free");
        fs::create_dir_all(directory.join(&version)).expect("a directory");
        fs::write(directory.join(&version).join("ratelimitd.toml"), &self.config).expect("the configuration");
        symlink(&version, directory.join("..data_tmp")).expect("a link");
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).expect("the link is in place");
        let file = directory.join("ratelimitd.toml");
        if !file.is_symlink() {
            symlink("..data/ratelimitd.toml", file).expect("a link");
        }
    }

    /// Returns the runtime's mount for a manifest's mount and its volume.
    fn mount(&self, mount: &Value, volume: &Value, bundle: &Path) -> Value {
        let made = |path: PathBuf, mode: u32| {
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
            path
        };
        let source = if let Some(path) = volume["hostPath"]["path"].as_str() {
            let path = self.host(path);
            match volume["hostPath"]["type"].as_str() {
                Some("DirectoryOrCreate") if !path.exists() => made(path, 0o755),
                _ => path,
            }
        } else if volume["configMap"].is_object() {
            let path = made(bundle.join("config"), 0o777);
            self.write_config(&path);
            path
        } else {
            assert!(volume["emptyDir"].is_object(), "{volume}");
            made(bundle.join(volume["name"].as_str().expect("a name")), 0o777)
        };
        assert!(source.is_dir(), "the host has no {}", source.display());
        let propagation = match mount["mountPropagation"].as_str() {
            None | Some("None") => "rprivate",
            Some("HostToContainer") => "rslave",
            Some(other) => panic!("{other} takes a privileged container"),
        };
        let access = if mount["readOnly"] == true { "ro" } else { "rw" };
        let options = ["rbind", propagation, access];
        json!({ "destination": mount["mountPath"], "type": "bind", "source": source, "options": options })
    }

    fn runtime_config(&self, container: &Value, root: &Path, mounts: Vec<Value>) -> Value {
        let confined = &container["securityContext"];
        assert_eq!(confined["privileged"], false);
        let capabilities = manifests::capabilities(container);
        let of_image = |key: &str| self.image.config[key].clone();
        // A manifest's command replaces both the image's Entrypoint and Cmd; its arguments replace Cmd only.
        let mut args = manifests::texts(&container["command"]);
        let (entry, cmd) = (of_image("Entrypoint"), of_image("Cmd"));
        if args.is_empty() {
            args = manifests::texts(&entry);
            args.extend(manifests::texts(if container["args"].is_array() { &container["args"] } else { &cmd }));
        }
        let ids = ["runAsUser", "runAsGroup"].map(|key| confined[key].as_u64().expect("a user and a group"));
        let file_systems = [
            ("/proc", "proc", vec![]),
            ("/dev", "tmpfs", vec!["nosuid", "strictatime", "mode=755", "size=65536k"]),
            ("/sys", "sysfs", vec!["nosuid", "noexec", "nodev", "ro"]),
        ];
        let file_systems = file_systems.map(
            |(path, kind, options)| json!({ "destination": path, "type": kind, "source": kind, "options": options }),
        );
        let mut linux = json!({
            "namespaces": [
                { "type": "mount" }, { "type": "pid" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "network", "path": format!("/run/netns/{}", self.lab.server.name()) },
            ],
            "maskedPaths": MASKED, "readonlyPaths": READ_ONLY,
        });
        if let Some(seccomp) = &self.seccomp {
            linux["seccomp"] = seccomp.clone();
        }
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": ids[0], "gid": ids[1] },
                "args": args,
                "env": of_image("Env"),
                "cwd": "/",
                "noNewPrivileges": confined["allowPrivilegeEscalation"] == false,
                "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            },
            "root": { "path": root, "readonly": confined["readOnlyRootFilesystem"] == true },
            "hostname": "node",
            "mounts": file_systems.into_iter().chain(mounts).collect::<Vec<_>>(),
            "linux": linux,
        })
    }
}

/// A running container, killed on drop.
pub struct Container {
    bundle: tempfile::TempDir,
    id: String,
    /// The runtime's process, which ends with the container and forwards its output.
    pub child: Child,
}

impl Container {
    fn start(bundle: tempfile::TempDir) -> Self {
        let name = bundle.path().file_name().expect("a name").to_string_lossy().into_owned();
        let id = format!("rl-{}", name.trim_start_matches('.'));
        let mut command = runtime(bundle.path());
        command.args(["run", "--bundle"]).arg(bundle.path()).arg(&id);
        let child = Child::start(command).expect("the runtime starts");
        Self { bundle, id, child }
    }

    /// Runs a command in the container to its end, as `kubectl exec` and probes do.
    pub fn exec(&self, args: &[&str]) -> Output {
        let mut command = runtime(self.bundle.path());
        command.args(["exec", &self.id]).args(args);
        run(command)
    }

    /// Waits until a probe's command succeeds.
    pub fn wait_for(&self, probe: &[&str]) {
        let passed = once(|| (self.exec(probe).code() == 0).then_some(()));
        passed.unwrap_or_else(|| panic!("{probe:?} fails: {}", self.child.stderr()));
    }

    /// Stops the container as the kubelet does, with this signal, and returns its exit code.
    pub fn stop(mut self, signal: Signal) -> i32 {
        let mut command = runtime(self.bundle.path());
        command.args(["kill", &self.id, signal.as_str().trim_start_matches("SIG")]);
        let killed = run(command);
        assert_eq!(killed.code(), 0, "{}", killed.stderr);
        self.child.wait(HANGS_AFTER).expect("it ends").code().unwrap_or(-1)
    }

    /// Waits until the container ends by itself, and returns its exit code and standard error.
    pub fn end(mut self) -> (i32, String) {
        let code = self.child.wait(HANGS_AFTER).expect("it ends").code().unwrap_or(-1);
        (code, self.child.stderr())
    }

    /// Returns a field of `/proc/PID/status` for the container's first process.
    pub fn status(&self, field: &str) -> String {
        let text = self.exec_state();
        let pid = text["pid"].as_u64().expect("a process");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.expect("a field").trim().to_owned()
    }

    fn exec_state(&self) -> Value {
        let mut command = runtime(self.bundle.path());
        command.args(["state", &self.id]);
        serde_json::from_str(&run(command).stdout).expect("its state")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut command = runtime(self.bundle.path());
        command.args(["delete", "--force", &self.id]);
        // A container that has ended leaves nothing to remove.
        let _gone = command.output();
    }
}

/// Mount point of cgroup v2 on a machine that also has cgroup v1.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// Returns a command for crun with its state in the bundle and without cgroups. crun refuses a machine with both kinds
/// of cgroups, so the command shows crun only cgroup v2 there.
fn runtime(bundle: &Path) -> Command {
    let program = crun().expect("crun");
    let mut command = if Path::new(UNIFIED).is_dir() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sh", "-ec"]);
        command.arg(format!("mount --bind {UNIFIED} /sys/fs/cgroup; exec \"$0\" \"$@\"")).arg(&program);
        command
    } else {
        Command::new(&program)
    };
    // An unpacked crun has its libraries next to it.
    let root = program.ancestors().nth(3).filter(|root| root.ends_with("crun"));
    if let Some(root) = root {
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let libraries = ["usr/lib", "lib"].map(|dir| root.join(dir).join(&triple));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("a path without a colon"));
    }
    command.arg("--cgroup-manager=disabled").arg("--root").arg(bundle.join("state"));
    command
}
