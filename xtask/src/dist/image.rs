//! Container image: an OCI image layout in a tar archive, made without a builder. It also contains Docker's own
//! manifest, for versions of `docker load` that read no other.
//!
//! The single layer contains the program, the configuration in dry run, the licences, and the directories for mounts.
//! There is no shell and there are no certificates. There is no group `ratelimitd`, because giving the socket to a
//! group needs CAP_CHOWN.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{HOMEPAGE, VERSION, architecture, read_text, tree};
use crate::install::{self, File, Layout};
use crate::{run, workspace};

const NAME: &str = "ratelimitd";
/// Name of the image in `docker run` and dist/kubernetes. It belongs to no registry.
const REPOSITORY: &str = "localhost/ratelimitd";

const OF_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OF_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OF_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OF_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Directories for mounts or writing, with their modes. All others have mode 0755.
const DIRECTORIES: [(&str, u32); 6] = [
    ("dev", 0o755),
    ("proc", 0o555),
    ("run/ratelimitd", 0o750),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var/lib/ratelimitd", 0o750),
];

/// Trade-off between build time and image size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Compressed layer, for users.
    Compressed,
    /// Uncompressed layer, for tests.
    Plain,
}

/// Creates `ratelimitd-VERSION-ARCHITECTURE-image.tar` in `out`. `binary` must be built for this machine. It is static,
/// or its libraries exist here. `epoch` is the time stamp of the files.
pub(crate) fn build(binary: &Path, licences: &str, out: &Path, epoch: u64, layer: Layer) -> Result<PathBuf> {
    let work = out.join(".image");
    install::start_empty(&work)?;
    let root = work.join("root");
    lay(&root, binary, licences)?;
    let tar = work.join("layer.tar");
    archive(&root, &tar, epoch)?;
    let diff_id = sha256(&tar)?;
    let (blob, of_layer) = match layer {
        Layer::Plain => (tar, OF_LAYER.to_owned()),
        Layer::Compressed => {
            tree::gzip(&[tar])?;
            (work.join("layer.tar.gz"), format!("{OF_LAYER}+gzip"))
        }
    };

    let image = Image { dir: work.join("image") };
    let created = time(epoch)?;
    let labels = labels(&created);
    let layer = image.add(&blob, &of_layer)?;
    let config = image.add_json(&config(&created, &labels, &diff_id)?, OF_CONFIG)?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OF_MANIFEST, "config": config, "layers": [layer], "annotations": labels,
    });
    let tag = format!("{REPOSITORY}:{VERSION}");
    let mut described = image.add_json(&manifest, OF_MANIFEST)?;
    described["platform"] = json!({ "architecture": architecture()?, "os": "linux" });
    described["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        "io.containerd.image.name": tag,
    });
    image.write("index.json", &json!({ "schemaVersion": 2, "mediaType": OF_INDEX, "manifests": [described] }))?;
    image.write("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
    image.write(
        "manifest.json",
        &json!([{ "Config": path_of(&config)?, "Layers": [path_of(&layer)?], "RepoTags": [tag] }]),
    )?;

    let package = out.join(format!("ratelimitd-{VERSION}-{}-image.tar", std::env::consts::ARCH));
    archive(&image.dir, &package, epoch)?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    Ok(package)
}

/// Creates the file system of the container.
fn lay(root: &Path, binary: &Path, licences: &str) -> Result<()> {
    let layout = Layout::below(Path::new("/usr"));
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut files = vec![
        File::program(layout.program(), read(binary)?),
        File::text(layout.config(), read_text(&workspace::root().join("dist/ratelimitd.toml"))?),
        // User names for the program and for tools that print them.
        File::text("/etc/passwd".into(), "root:x:0:0:root:/:/usr/bin/ratelimitd\n"),
        File::text("/etc/group".into(), "root:x:0:\n"),
        File::text("/etc/nsswitch.conf".into(), "hosts: files dns\n"),
        File::text(layout.document("THIRD-PARTY-LICENSES"), licences),
    ];
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.push(File::text(layout.document(licence), read_text(&workspace::root().join(licence))?));
    }
    for library in libraries(binary)? {
        files.push(File::program(library.clone(), read(&library)?));
    }
    for (directory, _) in DIRECTORIES {
        // The file makes the directory and its parents, and is removed afterwards.
        files.push(File::text(Path::new("/").join(directory).join(".made"), ""));
    }
    tree::make(root, &files)?;
    for (directory, mode) in DIRECTORIES {
        let path = root.join(directory);
        let made = fs::remove_file(path.join(".made"));
        let made = made.and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        made.with_context(|| format!("make {}", path.display()))?;
    }
    Ok(())
}

/// Returns the libraries of a dynamic binary and its loader, as paths on this machine. Empty for a static binary.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").env("LC_ALL", "C").arg(binary).output().context("start ldd")?;
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("statically linked") || complained.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd {}: {}", binary.display(), complained.trim());
    libraries_in(&said).with_context(|| format!("the libraries of {}", binary.display()))
}

/// Parses lines like `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)`, or a path alone. `linux-vdso.so.1` has no
/// path. Fails for a missing library.
fn libraries_in(said: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for line in said.lines() {
        ensure!(!line.contains("not found"), "{} here", line.trim());
        found.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from));
    }
    ensure!(!found.is_empty(), "ldd names none in {said:?}");
    Ok(found)
}

/// Returns the image configuration: the default user, command and environment.
fn config(created: &str, labels: &Value, diff_id: &str) -> Result<Value> {
    let layout = Layout::below(Path::new("/usr"));
    Ok(json!({
        "architecture": architecture()?,
        "os": "linux",
        "created": created,
        "config": {
            // Pins in a BPF file system of mode 0700 belong to root. Of root's privileges only three capabilities are
            // needed.
            "User": "0:0",
            "Entrypoint": [layout.program()],
            "Cmd": ["run", "--config", layout.config()],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    }))
}

fn labels(created: &str) -> Value {
    json!({
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.description": "Per-source rate limiter in XDP, in front of a web server",
        "org.opencontainers.image.url": HOMEPAGE,
        "org.opencontainers.image.source": super::REPOSITORY,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.created": created,
    })
}

/// Image layout under construction.
struct Image {
    dir: PathBuf,
}

impl Image {
    /// Moves a file to the blobs and returns its descriptor.
    fn add(&self, file: &Path, media_type: &str) -> Result<Value> {
        let digest = sha256(file)?;
        let size = fs::metadata(file).with_context(|| format!("look at {}", file.display()))?.len();
        let descriptor = json!({ "mediaType": media_type, "digest": digest, "size": size });
        let blob = self.dir.join(path_of(&descriptor)?);
        let made = fs::create_dir_all(blob.parent().context("blobs lie in a directory")?);
        made.and_then(|()| fs::rename(file, &blob)).with_context(|| format!("write {}", blob.display()))?;
        Ok(descriptor)
    }

    fn add_json(&self, value: &Value, media_type: &str) -> Result<Value> {
        self.write(".json", value)?;
        self.add(&self.dir.join(".json"), media_type)
    }

    fn write(&self, name: &str, value: &Value) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, serde_json::to_vec(value).context("write JSON")?)
            .with_context(|| format!("write {}", path.display()))
    }
}

/// Returns the path of a descriptor's blob.
fn path_of(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str().context("a descriptor has a digest")?;
    Ok(format!("blobs/{}", digest.replacen(':', "/", 1)))
}

/// Archives the contents of a directory, owned by root and sorted by name.
fn archive(dir: &Path, tar: &Path, epoch: u64) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<Result<_, _>>())
        .with_context(|| format!("list {}", dir.display()))?;
    names.sort();
    let mut command = Command::new("tar");
    command.args(["--create", "--format=ustar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    command.arg(format!("--mtime=@{epoch}")).arg("--directory").arg(dir).arg("--file").arg(tar).arg("--").args(names);
    run::answer(&mut command).map(drop)
}

fn sha256(file: &Path) -> Result<String> {
    let said = run::answer(Command::new("sha256sum").arg("--").arg(file))?;
    let sum = said.split_whitespace().next().context("sha256sum printed nothing")?;
    // sha256sum puts a backslash before the line of a file name that contains one.
    Ok(format!("sha256:{}", sum.trim_start_matches('\\')))
}

fn time(epoch: u64) -> Result<String> {
    run::answer(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"]).arg(format!("@{epoch}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds an image of a dynamically linked program that every machine has.
    fn image(dir: &Path, layer: Layer) -> PathBuf {
        build(Path::new("/bin/true"), "licences\n", dir, 1_700_000_000, layer).unwrap()
    }

    fn unpacked(archive: &Path) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        run::answer(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(dir.path())).unwrap();
        dir
    }

    fn value(path: &Path) -> Value {
        serde_json::from_str(&read_text(path).unwrap()).unwrap()
    }

    /// Returns a descriptor's file after checking its size and digest.
    fn blob(dir: &Path, descriptor: &Value) -> PathBuf {
        let path = dir.join(path_of(descriptor).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        assert_eq!(sha256(&path).unwrap(), descriptor["digest"]);
        path
    }

    #[test]
    fn each_descriptor_names_a_blob_of_its_size_and_digest() {
        let out = tempfile::tempdir().unwrap();
        let compressed = format!("{OF_LAYER}+gzip");
        for (layer, media_type) in [(Layer::Plain, OF_LAYER), (Layer::Compressed, compressed.as_str())] {
            let dir = unpacked(&image(out.path(), layer));
            let index = value(&dir.path().join("index.json"));
            let manifest = value(&blob(dir.path(), &index["manifests"][0]));
            let config = value(&blob(dir.path(), &manifest["config"]));
            let of_layer = &manifest["layers"][0];
            assert_eq!(of_layer["mediaType"], media_type);
            let blob = blob(dir.path(), of_layer);
            let tar = match layer {
                Layer::Plain => blob,
                Layer::Compressed => {
                    let tar = dir.path().join("layer.tar");
                    let whole = Command::new("gzip").arg("-dc").arg(blob).output().unwrap();
                    fs::write(&tar, whole.stdout).unwrap();
                    tar
                }
            };
            assert_eq!(config["rootfs"]["diff_ids"], json!([sha256(&tar).unwrap()]));
            let docker = value(&dir.path().join("manifest.json"));
            assert_eq!(docker[0]["Config"], path_of(&manifest["config"]).unwrap());
            assert_eq!(docker[0]["Layers"], json!([path_of(of_layer).unwrap()]));
        }
    }

    #[test]
    fn equal_binaries_give_equal_images_wherever_they_are_made() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [one, other] = dirs.each_ref().map(|dir| fs::read(image(dir.path(), Layer::Plain)).unwrap());
        assert!(one == other);
        let host = [dirs[0].path().to_string_lossy().into_owned(), workspace::root().display().to_string()];
        for path in &host {
            assert!(!one.windows(path.len()).any(|part| part == path.as_bytes()), "{path}");
        }
        let left: Vec<_> = fs::read_dir(dirs[0].path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn the_layer_has_roots_files_of_one_time_and_drops_nothing() {
        let out = tempfile::tempdir().unwrap();
        let dir = unpacked(&image(out.path(), Layer::Plain));
        let manifest = value(&blob(dir.path(), &value(&dir.path().join("index.json"))["manifests"][0]));
        let layer = blob(dir.path(), &manifest["layers"][0]);
        let mut list = Command::new("tar");
        list.env("TZ", "UTC").args(["--list", "--verbose", "--numeric-owner", "--full-time", "--file"]).arg(&layer);
        let list = run::answer(&mut list).unwrap();
        for line in list.lines() {
            assert!(line.contains(" 0/0 ") && line.contains(" 2023-11-14 22:13:20 "), "{line}");
        }
        for (mode, name) in [
            ("-rwxr-xr-x", "usr/bin/ratelimitd"),
            ("-rw-r--r--", "etc/ratelimitd/ratelimitd.toml"),
            ("drwxrwxrwt", "tmp/"),
            ("drwxr-x---", "var/lib/ratelimitd/"),
        ] {
            assert!(
                list.lines().any(|line| line.starts_with(mode) && line.ends_with(&format!(" {name}"))),
                "{name}: {list}"
            );
        }
        let root = unpacked(&layer);
        let config: toml::Table =
            read_text(&root.path().join("etc/ratelimitd/ratelimitd.toml")).unwrap().parse().unwrap();
        assert_eq!(config["rule"]["mode"].as_str(), Some("dry-run"));
        // With its libraries, the program needs nothing else in the image.
        let loader = list.lines().any(|line| line.contains("/ld-linux"));
        assert!(loader, "{list}");
    }

    #[test]
    fn libraries_are_read_with_their_loader_and_a_missing_one_is_an_error() {
        let said = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f1)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";
        let found = libraries_in(said).unwrap();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
        assert!(libraries_in("\tlibx.so.1 => not found\n").unwrap_err().to_string().contains("libx.so.1"));
        assert!(libraries_in("").is_err());
    }
}
