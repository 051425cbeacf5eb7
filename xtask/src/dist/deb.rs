//! Debian package: the files of `cargo xtask install` below /usr, and dist/debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{HOMEPAGE, VERSION, architecture, licences, read_text, tree};
use crate::install::{self, File, Layout};
use crate::{run, workspace};

/// File with the licences of the linked libraries.
const LICENCES: &str = "THIRD-PARTY-LICENSES";
/// Scripts that dpkg runs at installation, removal and purge.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Trade-off between build time and package size.
#[derive(Clone, Copy)]
pub(crate) enum Compression {
    /// Small package, for users.
    Small,
    /// Uncompressed package, for tests.
    Quick,
}

impl Compression {
    /// Returns dpkg-deb's compression flag. Compressing an unoptimised binary takes half a minute.
    fn flag(self) -> &'static str {
        match self {
            Self::Small => "-Zxz",
            Self::Quick => "-Znone",
        }
    }
}

/// Creates `ratelimitd_VERSION_ARCHITECTURE.deb` in `out`. `binary` must run on this machine. `epoch` is the time stamp
/// of the files.
pub(crate) fn build(binary: &Path, out: &Path, epoch: u64, compression: Compression) -> Result<PathBuf> {
    let debian = workspace::root().join("dist/debian");
    let changelog = read_text(&debian.join("changelog"))?;
    let layout = Layout::debian();
    let mut files = install::files(binary, &layout)?;
    files.push(File::text(layout.document("copyright"), copyright(&debian)?));
    files.push(File::text(layout.document("changelog"), changelog.clone()));
    files.push(File::text(layout.document(LICENCES), licences::texts()?));
    let config: Vec<_> = files.iter().filter(|file| file.is_kept).map(|file| file.path.clone()).collect();

    let root = out.join(".deb");
    tree::make(&root, &files)?;
    let is_compressed = |path: &&PathBuf| {
        path.starts_with(root.join("usr/share/man")) || path.ends_with("changelog") || path.ends_with(LICENCES)
    };
    let all = tree::walk(&root)?;
    tree::gzip(&all.iter().filter(|path| path.is_file()).filter(is_compressed).cloned().collect::<Vec<_>>())?;

    let installed: Vec<_> = tree::walk(&root)?.into_iter().filter(|path| path.is_file()).collect();
    let sums = tree::sums("md5sum", &root, &installed)?;
    let fields = [
        ("@VERSION@", VERSION.to_owned()),
        ("@ARCHITECTURE@", architecture()?.to_owned()),
        ("@HOMEPAGE@", HOMEPAGE.to_owned()),
        ("@MAINTAINER@", maintainer(&changelog)?.to_owned()),
        ("@INSTALLED_SIZE@", kilobytes(&installed)?.to_string()),
        ("@DEPENDS@", depends(binary, &out.join(".shlibdeps"))?),
    ];
    let template = read_text(&debian.join("control"))?;
    let control = fields.iter().fold(template, |text, (name, value)| text.replace(name, value));
    let mut members = vec![
        File::text("/DEBIAN/control".into(), control),
        File::text("/DEBIAN/md5sums".into(), sums),
        File::text(
            "/DEBIAN/conffiles".into(),
            config.iter().map(|path| format!("{}\n", path.display())).collect::<String>(),
        ),
    ];
    for script in SCRIPTS {
        members.push(File::program(Path::new("/DEBIAN").join(script), read_text(&debian.join(script))?));
    }
    for member in &members {
        install::place(member, &install::below(&root, &member.path)).context("write DEBIAN")?;
    }

    let package = out.join(format!("ratelimitd_{VERSION}_{}.deb", architecture()?));
    let mut build = Command::new("dpkg-deb");
    // Files belong to root. No file is newer than the sources: dpkg-deb takes the maximum time from the variable.
    build.args(["--root-owner-group", compression.flag(), "--build"]).arg(&root).arg(&package);
    run::answer(build.env("SOURCE_DATE_EPOCH", epoch.to_string()))?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(package)
}

fn copyright(debian: &Path) -> Result<String> {
    let licence = read_text(&workspace::root().join("LICENSE-MIT"))?;
    let body = licence.split_once("\n\n").map_or(&*licence, |(_, body)| body);
    // Continuation lines of a field begin with a blank, and an empty line is a full stop.
    let lines = body.lines().map(|line| if line.is_empty() { " .".to_owned() } else { format!(" {line}") });
    Ok(read_text(&debian.join("copyright"))?.replace("@MIT@", &lines.collect::<Vec<_>>().join("\n")))
}

/// Returns the maintainer from ` -- NAME <ADDRESS>  DATE`, the trailer of the newest version.
fn maintainer(changelog: &str) -> Result<&str> {
    let trailer =
        changelog.lines().find_map(|line| line.strip_prefix(" -- ")).context("dist/debian/changelog has no trailer")?;
    let (name, _) = trailer.split_once("  ").context("the changelog's trailer has no date")?;
    Ok(name)
}

/// Returns the installed size as dpkg computes it, with each file rounded up to whole kilobytes.
fn kilobytes(files: &[PathBuf]) -> Result<u64> {
    let sizes = files.iter().map(|file| {
        let metadata = fs::metadata(file).with_context(|| format!("look at {}", file.display()))?;
        Ok(metadata.len().div_ceil(1024))
    });
    sizes.sum()
}

/// Returns the packages of the linked libraries, in versions with all the symbols that the binary uses.
fn depends(binary: &Path, scratch: &Path) -> Result<String> {
    install::start_empty(scratch)?;
    let source = "Source: ratelimitd\n\nPackage: ratelimitd\nArchitecture: any\n";
    install::place(&File::text("/debian/control".into(), source), &scratch.join("debian/control"))
        .context("write a control file")?;
    let binary = fs::canonicalize(binary).with_context(|| format!("find {}", binary.display()))?;
    let said = run::answer(Command::new("dpkg-shlibdeps").current_dir(scratch).arg("-O").arg("-e").arg(binary))?;
    fs::remove_dir_all(scratch).with_context(|| format!("remove {}", scratch.display()))?;
    let depends = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(depends.with_context(|| format!("dpkg-shlibdeps said {said:?}"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changelog_begins_with_this_version_and_names_a_maintainer() {
        let changelog = read_text(&workspace::root().join("dist/debian/changelog")).unwrap();
        assert!(changelog.starts_with(&format!("ratelimitd ({VERSION}) ")), "{changelog}");
        assert!(maintainer(&changelog).unwrap().ends_with('>'), "{changelog}");
    }

    #[test]
    fn the_copyright_has_the_whole_licence_as_lines_of_a_field() {
        let text = copyright(&workspace::root().join("dist/debian")).unwrap();
        assert!(!text.contains('@') && text.contains("\n .\n The above copyright notice"), "{text}");
        assert!(text.contains("\n DEALINGS IN THE SOFTWARE."), "{text}");
    }

    #[test]
    fn no_script_starts_or_enables_what_was_not() {
        for script in SCRIPTS {
            let text = read_text(&workspace::root().join("dist/debian").join(script)).unwrap();
            let commands: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
            assert!(
                !commands.iter().any(|line| line.contains("invoke start") || line.contains("systemctl start")),
                "{script}"
            );
            let enables = commands.iter().filter(|line| line.contains("deb-systemd-helper enable")).count();
            assert!(
                enables == usize::from(script == "postinst") && text.contains("was-enabled") == (enables == 1),
                "{script}"
            );
        }
    }
}
