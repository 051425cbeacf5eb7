//! RPM package with the same files as the other packages, made by cargo-generate-rpm without rpmbuild.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use super::tools::GENERATE_RPM;
use super::{VERSION, read_text, tree};
use crate::install::{self, File, Layout};
use crate::{run, workspace};

/// Section `package.metadata.generate-rpm` of a manifest, for cargo-generate-rpm.
#[derive(Serialize)]
struct Metadata {
    name: &'static str,
    version: &'static str,
    license: &'static str,
    summary: String,
    description: String,
    assets: Vec<Asset>,
    post_install_script: String,
    pre_uninstall_script: String,
    post_uninstall_script: String,
    requires: std::collections::BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
struct Asset {
    source: PathBuf,
    dest: PathBuf,
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'static str>,
    doc: bool,
}

/// Creates `ratelimitd-VERSION-1.ARCHITECTURE.rpm` in `out`.
pub(super) fn build(binary: &Path, licences: &str, out: &Path, epoch: u64) -> Result<PathBuf> {
    let layout = Layout::below(Path::new("/usr"));
    let mut files = install::files(binary, &layout)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.push(File::text(layout.document(licence), read_text(&workspace::root().join(licence))?));
    }
    files.push(File::text(layout.document("THIRD-PARTY-LICENSES"), licences));
    let root = out.join(".rpm");
    tree::make(&root, &files)?;
    let mut pages = Vec::new();
    let mut assets = Vec::new();
    for file in &files {
        let (mut source, mut dest) = (install::below(&root, &file.path), file.path.clone());
        if dest.starts_with("/usr/share/man") {
            pages.push(source.clone());
            source.add_extension("gz");
            dest.add_extension("gz");
        }
        let doc = dest.starts_with("/usr/share/doc");
        let config = file.is_kept.then_some("noreplace");
        assets.push(Asset { source, dest, mode: format!("{:o}", file.mode), config, doc });
    }
    tree::gzip(&pages)?;

    let debian = read_text(&workspace::root().join("dist/debian/control"))?;
    let (summary, description) = described(&debian).context("dist/debian/control has no description")?;
    let script = |name: &str| read_text(&workspace::root().join("dist/rpm").join(name));
    let metadata = Metadata {
        name: "ratelimitd",
        version: VERSION,
        license: "MIT OR Apache-2.0",
        summary,
        description,
        assets,
        post_install_script: script("post")?,
        pre_uninstall_script: script("preun")?,
        post_uninstall_script: script("postun")?,
        requires: [("systemd", "*")].into(),
    };
    let table = root.join("metadata.toml");
    fs::write(&table, toml::to_string(&metadata).context("write the metadata")?).context("write the metadata")?;

    let package = out.join(format!("ratelimitd-{VERSION}-1.{}.rpm", std::env::consts::ARCH));
    let mut generate = Command::new(GENERATE_RPM.ensure()?);
    generate.current_dir(workspace::root()).args(["--package", "ratelimit-userspace", "--payload-compress", "gzip"]);
    generate.args(["--auto-req", "builtin", "--source-date", &epoch.to_string(), "--metadata-overwrite"]).arg(&table);
    generate.arg("--output").arg(&package);
    run::answer(&mut generate)?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(package)
}

/// Returns the first line of a control file's description, and the other lines without their leading blank.
fn described(control: &str) -> Option<(String, String)> {
    let (summary, rest) = control.split_once("Description: ")?.1.split_once('\n')?;
    let lines = rest.lines().map_while(|line| line.strip_prefix(' '));
    let lines = lines.map(|line| if line == "." { "" } else { line });
    Some((summary.to_owned(), lines.collect::<Vec<_>>().join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_that_of_the_other_package() {
        let control = read_text(&workspace::root().join("dist/debian/control")).unwrap();
        let (summary, description) = described(&control).unwrap();
        assert!(summary.starts_with("per-source rate limiter"), "{summary}");
        assert!(description.contains("\n\nAfter the installation nothing is limited"), "{description}");
    }
}
