//! Tests of the documents against `ratelimitd`: each command, flag and key that they name exists, and each example file
//! passes `check-config`. `cargo xtask tidy` checks lengths, links, names and words.
#![expect(clippy::expect_used, reason = "a test that cannot read the documents fails")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use clap::error::ErrorKind;
use ratelimit_policy::config::keys::TABLES;
use ratelimit_userspace::cli::definition;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the paths of the documents in a directory, without its subdirectories.
fn chapters(directory: &'static str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(root().join(directory)).expect(directory);
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.map(move |name| format!("{directory}/{}", name.to_string_lossy())).filter(|name| name.ends_with(".md"))
}

/// Returns every document with its text.
fn documents() -> Vec<(String, String)> {
    // The transcript has the output of commands, which is not typed.
    let chapters = chapters("docs").chain(chapters("docs/recipes")).filter(|name| name != "docs/SYSTEMD-TRANSCRIPT.md");
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        ".github/PULL_REQUEST_TEMPLATE.md",
        "examples/README.md",
    ];
    let names: Vec<_> = chapters.chain(others.map(str::to_owned)).collect();
    assert!(names.len() >= 29, "{names:?}");
    names.into_iter().map(|name| (name.clone(), std::fs::read_to_string(root().join(&name)).expect(&name))).collect()
}

/// Code in a document.
#[derive(Debug, PartialEq, Eq)]
enum Code {
    /// Code between backticks, perhaps only a part of a command.
    Span(String),
    /// A line of an example with its continuation lines, which works as typed.
    Line(String),
    /// The language and the text of a whole example.
    Block(String, String),
}

fn codes(text: &str) -> Vec<(usize, Code)> {
    let mut codes = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<_> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```")).collect();
            codes.push((at + 1, Code::Block(language.to_owned(), block.join("\n") + "\n")));
        } else if line.starts_with("    ") {
            let mut whole = line.trim().to_owned();
            while let Some(open) = whole.strip_suffix('\\') {
                whole = format!("{open} {}", lines.next().map_or("", |(_, line)| line.trim()));
            }
            codes.push((at + 1, Code::Line(whole)));
        } else {
            codes.extend(line.split('`').skip(1).step_by(2).map(|code| (at + 1, Code::Span(code.trim().to_owned()))));
        }
    }
    codes
}

/// Splits a line as a shell does: returns the words of each command in it, without comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut word, mut quote) = (vec![Vec::new()], None::<String>, None);
    for c in line.chars().chain([' ']) {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (' ' | '|' | ';' | '<' | '>', None) => {
                let last = commands.last_mut().expect("there is always one");
                last.extend(word.take());
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            ('#', None) if word.is_none() => break,
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    commands
}

/// Documents in which a lone flag belongs to `cargo xtask` or to the measured peers.
const OTHERS_FLAGS: [&str; 3] = ["CONTRIBUTING.md", "docs/PERFORMANCE.md", "docs/ACCURACY.md"];

/// Returns faults in what a document says about `ratelimitd`.
fn problems(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, code) in codes(text) {
        let problem = match &code {
            Code::Span(code) if code.starts_with("--") && OTHERS_FLAGS.contains(&name) => None,
            Code::Span(code) => span_problem(code),
            Code::Line(line) => line_problem(line, false),
            Code::Block(language, block) if language == "toml" => file_problem(block),
            Code::Block(..) => None,
        };
        problems.extend(problem.map(|problem| format!("{name}:{at}: {problem}")));
    }
    problems
}

fn line_problem(line: &str, is_part: bool) -> Option<String> {
    let ours = |words: &Vec<String>| {
        let words = words.iter().skip_while(|word| *word == "sudo");
        let words: Vec<_> = words.cloned().collect();
        (words.first().map(String::as_str) == Some("ratelimitd") && words.len() > 1).then_some(words)
    };
    commands(line).iter().filter_map(ours).find_map(|words| command_problem(&words, is_part))
}

/// Returns why the command line is invalid. With `is_part`, required arguments may be missing.
fn command_problem(words: &[String], is_part: bool) -> Option<String> {
    let error = definition().try_get_matches_from(words).err()?;
    let kind = error.kind();
    let is_help = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let lacks_the_rest = kind == ErrorKind::MissingRequiredArgument
        || kind == ErrorKind::InvalidValue && error.to_string().contains("a value is required");
    let is_fine = is_help || is_part && lacks_the_rest;
    (!is_fine).then(|| format!("`{}`: {}", words.join(" "), error.to_string().lines().next().unwrap_or_default()))
}

fn span_problem(code: &str) -> Option<String> {
    let first = code.split_whitespace().next()?;
    if first == "sudo" || first == "ratelimitd" {
        return line_problem(code, true);
    }
    if let Some(flag) = first.strip_prefix("--") {
        let flag = flag.split('=').next().unwrap_or(flag);
        return (!has_flag(flag)).then(|| format!("no command has the flag --{flag}"));
    }
    if let Some((key, value)) = code.split_once(" = ") {
        let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '.');
        let is_written = format!("x = {value}").parse::<toml::Table>().is_ok();
        return (is_key && is_written && !has_key(key)).then(|| format!("the file has no key {key}"));
    }
    if ["rule.", "safety.", "fleet."].iter().any(|table| code.starts_with(table)) && !code.contains(' ') {
        return (!has_key(code)).then(|| format!("the file has no key {code}"));
    }
    let is_command =
        definition().get_subcommands().any(|command| command.get_name_and_visible_aliases().contains(&first));
    if is_command && code.contains(" --") {
        return line_problem(&format!("ratelimitd {code}"), true);
    }
    None
}

fn has_flag(flag: &str) -> bool {
    let root = definition();
    let has = |command: &clap::Command| command.get_arguments().any(|argument| argument.get_long() == Some(flag));
    let below = |command: &clap::Command| has(command) || command.get_subcommands().any(has);
    has(&root) || root.get_subcommands().any(below) || ["help", "version"].contains(&flag)
}

fn has_key(key: &str) -> bool {
    let mut keys = TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table.prefix, key.name)));
    keys.any(|(table, name)| key == name || key == format!("{table}{name}"))
}

/// Checks a configuration that a document shows, beside the list files that it names.
fn file_problem(contents: &str) -> Option<String> {
    with_lists(contents, checked)
}

/// Writes a configuration beside the list files that it names, and calls a function with its path.
fn with_lists<T>(contents: &str, use_it: impl Fn(&Path) -> T) -> T {
    let directory = tempfile::tempdir().expect("a directory");
    let lists = contents.split("\"file:").skip(1).filter_map(|rest| rest.split_once('"'));
    let mut beside = contents.to_owned();
    for (list, _) in lists {
        // A list that a timer keeps has an absolute path, which does not exist where the tests run.
        let name = Path::new(list).file_name().expect("a list is a file").to_string_lossy();
        beside = beside.replace(&format!("\"file:{list}\""), &format!("\"file:{name}\""));
        std::fs::write(directory.path().join(&*name), "198.51.100.0/24\n").expect("write a list");
    }
    std::fs::write(directory.path().join("r.toml"), beside).expect("write a file");
    use_it(&directory.path().join("r.toml"))
}

fn checked(file: &Path) -> Option<String> {
    let mut command = Command::cargo_bin("ratelimitd").expect("built with the tests");
    let output = command.arg("check-config").arg(file).env_clear().output().expect("run");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_program_does_what_documents_say() {
    let problems: Vec<_> = documents().iter().flat_map(|(name, text)| problems(name, text)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_example_file_passes_check_config() {
    let files =
        std::fs::read_dir(root().join("examples")).expect("examples/").map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let files: Vec<_> = files.chain([root().join("dist/ratelimitd.toml")]).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(checked(&file), None, "{}", file.display());
    }
}

#[test]
fn every_command_stands_in_some_chapter() {
    let all: String = documents().into_iter().map(|(_, text)| text).collect();
    let missing: Vec<_> = definition().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let is_missing = |name: &String| {
        name != "help"
            && ![format!("ratelimitd {name}"), format!("`{name}`"), format!("`{name} ")]
                .iter()
                .any(|of| all.contains(of))
    };
    let missing: Vec<_> = missing.into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no document names the commands {missing:?}");
}

#[test]
fn errors_in_a_document_are_found() {
    for good in [
        "`ratelimitd stats --watch`",
        "`ratelimitd deny`",
        "`--limit 1000/5m`",
        "`rule.block_for` and `guard = \"off\"`",
        "`received = passed + dropped`",
        "`apply --confirm`",
        "    sudo ratelimitd --iface eth0 --limit \"500/5m connections\"   # drops it",
        "    zcat a.gz | ratelimitd replay - --limit 3/1m --json | jq '.limits[]'",
        "    ratelimitd --iface eth0 \\\n        --limit 3/1m",
        "```toml\ninterfaces = [\"eth0\"]\ndeny = [\"file:bad.txt\"]\n[rule]\nlimits = [\"3/1m\"]\n```",
        "```toml\ninterfaces = [\"eth0\"]\nallow = [\"file:/var/lib/feeds/bad.txt\"]\n[rule]\nlimits = [\"3/1m\"]\n```",
        "```sh\nratelimitd is not checked in other blocks\n```",
    ] {
        assert_eq!(problems("X.md", &format!("{good}\n")), Vec::<String>::new(), "{good}");
    }
    for broken in [
        "`ratelimitd charge`",
        "`ratelimitd stats --watching`",
        "`apply --confirmed 60s`",
        "`--limits 1000/5m`",
        "`rule.blockfor`",
        "`gaurd = \"off\"`",
        "    sudo ratelimitd deny   # whom?",
        "    sudo ratelimitd mode sleep",
        "    zcat a.gz | ratelimitd reply - --limit 3/1m",
        "    ratelimitd --iface eth0 \\\n        --limt 3/1m",
        "```toml\n[rule]\nlimits = [\"3/1m\"]\n```",
    ] {
        assert_eq!(problems("X.md", &format!("{broken}\n")).len(), 1, "{broken}: {:?}", problems("X.md", broken));
    }
}

#[test]
fn each_recipe_has_one_file_in_dry_run_and_says_how_to_start_and_undo_it() {
    let all = documents();
    let of_recipes = all.iter().filter_map(|(path, text)| Some((path.strip_prefix("docs/recipes/")?, text)));
    let (index, pages): (Vec<_>, Vec<_>) = of_recipes.partition(|(name, _)| *name == "README.md");
    let [(_, index)] = &index[..] else { panic!("docs/recipes/README.md is there") };
    assert!(pages.len() >= 14, "{} pages", pages.len());
    for (name, text) in pages {
        let is_file = |code: &Code| matches!(code, Code::Block(language, _) if language == "toml");
        let files: Vec<_> = codes(text).into_iter().map(|(_, code)| code).filter(is_file).collect();
        let [Code::Block(_, file)] = &files[..] else { panic!("{name}: {} files", files.len()) };
        let number_of = |lines: &[&str]| file.lines().filter(|line| lines.contains(line)).count();
        let (rules, dry) = (number_of(&["[rule]", "[[rule]]"]), number_of(&["mode = \"dry-run\""]));
        assert!(rules > 0 && rules == dry, "{name}: {dry} of {rules} rules begin in dry run");
        for command in ["ratelimitd check-config", "ratelimitd panic", "`mode = \"enforce\"`"] {
            assert!(text.contains(command), "{name}: no {command}");
        }
        assert!(text.lines().count() <= 70, "{name} has at most 70 lines");
        assert!(index.contains(&format!("({name})")), "README.md has no row for {name}");
    }
}

/// Returns the memory of a configuration's maps in MB, as `check-config` prints it.
fn memory_mb(file: &Path) -> u64 {
    let mut command = Command::cargo_bin("ratelimitd").expect("built with the tests");
    let output = command.arg("check-config").arg(file).env_clear().output().expect("run");
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = said.split_once("together ").expect("check-config says how much memory the maps take");
    rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number of MB")
}

#[test]
fn recipes_name_the_memory_that_their_files_take() {
    let rounded = |mb: u64| (mb + 5) / 10 * 10;
    let all = documents();
    let (mut least, mut most, mut named) = (u64::MAX, 0, 0);
    for (path, text) in all.iter().filter(|(path, _)| path.starts_with("docs/recipes/")) {
        let blocks = codes(text).into_iter().map(|(_, code)| code);
        for code in blocks {
            let Code::Block(language, file) = code else { continue };
            if language != "toml" {
                continue;
            }
            let mb = rounded(with_lists(&file, memory_mb));
            (least, most) = (least.min(mb), most.max(mb));
            if let Some((_, rest)) = file.split_once("# some ") {
                assert!(rest.starts_with(&format!("{mb} MB of memory")), "{path}: {mb} MB, and not {rest}");
                named += 1;
            }
        }
    }
    let (_, index) = all.iter().find(|(path, _)| path == "docs/recipes/README.md").expect("the index is there");
    let index = index.replace('\n', " ");
    assert!(index.contains(&format!("The files take {least} to {most} MB of kernel memory")), "{least} to {most}");
    assert!(named >= 6, "{named} files name their memory");
}
