//! `cargo xtask lines`: counts the shipped lines of code per crate. Blank lines, comments and test-only code
//! (`#[cfg(test)]` and the feature `fixture`) do not count.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::source::Source;
use super::tracked_files;
use crate::workspace;

/// Crates that run in the kernel, or in both kernel and user space.
const OF_KERNEL: [&str; 2] = ["ratelimit-common", "ratelimit-ebpf"];

pub(crate) fn run() -> Result<ExitCode> {
    let mut sources = BTreeMap::new();
    for path in tracked_files()?.into_iter().filter(|path| path.starts_with("ratelimit-") && path.ends_with(".rs")) {
        let file = workspace::root().join(&path);
        if file.exists() && (path.contains("/src/") || path.ends_with("/build.rs")) {
            let text = std::fs::read_to_string(file).with_context(|| format!("read {path}"))?;
            sources.insert(path, Source::of(&text));
        }
    }
    let for_tests: Vec<String> = sources.iter().flat_map(|(path, source)| modules_for_tests(path, source)).collect();
    let is_for_tests = |path: &str| {
        let of = |module: &String| path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']));
        for_tests.iter().any(of)
    };
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, source) in sources.iter().filter(|(path, _)| !is_for_tests(path)) {
        let lines = source.shipped_code.lines().filter(|line| !line.trim().is_empty()).count();
        *crates.entry(path.split('/').next().unwrap_or_default()).or_default() += lines;
    }
    crates.iter().for_each(|(name, lines)| println!("{lines:6} {name}"));
    let user_space = crates.iter().filter(|(name, _)| !OF_KERNEL.contains(name)).map(|(_, lines)| lines).sum::<usize>();
    println!("{user_space:6} in user space, {} in all", crates.values().sum::<usize>());
    Ok(ExitCode::SUCCESS)
}

/// Returns the path prefixes of the modules that a file declares for tests only.
fn modules_for_tests(path: &str, source: &Source) -> Vec<String> {
    let (directory, file) = path.rsplit_once('/').unwrap_or(("", path));
    let beside = match file {
        "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let lines = source.code.lines().zip(source.shipped_code.lines()).filter(|(_, shipped)| shipped.trim().is_empty());
    let name = |(line, _): (&str, _)| Some(line.trim().strip_suffix(';')?.rsplit_once("mod ")?.1.to_owned());
    lines.filter_map(name).map(|name| format!("{beside}/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_for_tests_is_told_from_the_others() {
        let text = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(any(test, feature = \"fixture\"))]\npub mod c;\n";
        assert_eq!(modules_for_tests("x/src/lib.rs", &Source::of(text)), ["x/src/b", "x/src/c"]);
        assert_eq!(modules_for_tests("x/src/y.rs", &Source::of(text)), ["x/src/y/b", "x/src/y/c"]);
    }
}
