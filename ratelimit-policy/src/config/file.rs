//! The configuration file: from TOML to [`Settings`] with places, and the list files that it names. With `crate::files` the one here that reads files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use ipnet::IpNet;

use self::shape::{OVERRIDE_KEYS, RULE_KEYS, SAFETY_KEYS, TABLES, TOP_KEYS, Top};
use super::Config;
use super::lists::{self, KnownLists, LIST_BYTES_MAX};
use super::settings::Settings;
use super::syntax::{near_miss, shortened};
use crate::diagnostic::{Diagnostic, Excerpt, Place};
use crate::files;

pub mod shape;

/// The longest configuration file. Long lists are in files of their own.
const BYTES_MAX: u64 = 1 << 20;

/// Reads and parses the file at `path`.
pub fn load(path: &Path) -> Result<Config, Diagnostic> {
    parse(path, &read_text(path)?, read_list)
}

/// All of the file at `path`.
pub fn read_text(path: &Path) -> Result<String, Diagnostic> {
    let nowhere = |problem: String, help: &str| Diagnostic {
        problem,
        place: Place::File { path: path.to_owned(), excerpt: None },
        help: vec![help.to_owned()],
    };
    let bytes = read(path, BYTES_MAX).map_err(|error| {
        let help = if error.kind() == std::io::ErrorKind::NotFound {
            "name another file, or do without: ratelimitd --iface IF --limit N/DUR"
        } else {
            "check the path and who may read it"
        };
        nowhere(format!("cannot read the configuration file: {}", reason(&error)), help)
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let excerpt = Excerpt::of(&String::from_utf8_lossy(error.as_bytes()), at..at + 1);
        Diagnostic {
            problem: format!("the configuration file is not UTF-8 text: byte {at} cannot be read"),
            place: Place::File { path: path.to_owned(), excerpt: Some(Box::new(excerpt)) },
            help: vec!["save it as UTF-8".to_owned()],
        }
    })
}

/// The contents of a list file, or why there are none. What is not UTF-8 in it is a comment or a mistake, and is seen as such.
pub fn read_list(path: &Path) -> Result<String, String> {
    let bytes = files::read_of_anyone(path, LIST_BYTES_MAX).map_err(|error| reason(&error))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The prefixes of a list file alone; what is wrong is said as being in that file.
pub fn load_list(path: &Path) -> Result<Vec<IpNet>, Diagnostic> {
    let contents = read_list(path).map_err(|reason| Diagnostic {
        problem: format!("cannot read the list file: {reason}"),
        place: Place::File { path: path.to_owned(), excerpt: None },
        help: Vec::new(),
    })?;
    lists::parse(path, &contents)
}

fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// What an IO error says, without the number that nobody knows by heart.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Parses the contents of the file at `path`, which is only named in errors and the directory of list files. `read_list` reads those.
pub fn parse(
    path: &Path,
    contents: &str,
    read_list: impl Fn(&Path) -> Result<String, String>,
) -> Result<Config, Diagnostic> {
    let mut settings = settings(path, contents)?;
    settings.read_lists(read_list)?;
    settings.config()
}

/// The same, where the prefixes of some list files are known; the others are read from where they are.
pub fn parse_beside(path: &Path, contents: &str, known: &KnownLists) -> Result<Config, Diagnostic> {
    let mut settings = settings(path, contents)?;
    settings.read_lists_beside(known, read_list)?;
    settings.config()
}

fn settings(path: &Path, contents: &str) -> Result<Settings, Diagnostic> {
    let top: Top = toml::from_str(contents).map_err(|error| structure(path, contents, &error))?;
    Ok(top.settings(path, contents))
}

/// An error of TOML itself, or of keys and types.
fn structure(path: &Path, contents: &str, error: &toml::de::Error) -> Diagnostic {
    let message = error.message().trim();
    let excerpt = error.span().map(|span| Box::new(Excerpt::of(contents, span)));
    let (problem, help) = match unknown_key(message) {
        Some((key, table)) => (format!("unknown key `{key}`"), vec![unknown_key_help(key, table)]),
        None => (plain(message), vec![structure_help(message).to_owned()]),
    };
    Diagnostic { problem: shortened(problem), place: Place::File { path: path.to_owned(), excerpt }, help }
}

/// What the parser says of a key that it does not know: it names all that it does.
#[cfg(test)]
pub(super) fn unknown_key_message(contents: &str) -> Option<String> {
    toml::from_str::<Top>(contents).err().map(|error| error.message().to_owned())
}

/// A table in words, and its keys.
type TableOf = (&'static str, &'static [&'static str]);

const TABLES_OF_KEYS: [TableOf; 4] = [
    ("at the top of the file, above the first [table]", TOP_KEYS),
    ("under [rule]", RULE_KEYS),
    ("under [[rule.override]]", OVERRIDE_KEYS),
    ("under [safety]", SAFETY_KEYS),
];

/// The key of serde's "unknown field `key`, expected one of `a`, …", and the table that it stands in.
fn unknown_key(message: &str) -> Option<(&str, TableOf)> {
    let (key, expected) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let expects = |key: &&str| expected.contains(&format!("`{key}`"));
    TABLES_OF_KEYS.into_iter().find(|(_, keys)| keys.iter().all(expects)).map(|table| (key, table))
}

fn unknown_key_help(key: &str, (table, keys): TableOf) -> String {
    let key = key.replace('-', "_");
    let tables = if table == TABLES_OF_KEYS[0].0 { TABLES } else { &[] };
    let here: Vec<&str> = keys.iter().chain(tables).copied().collect();
    if let Some(meant) = near_miss(&key, here.iter().copied()) {
        return format!("did you mean `{meant}`?");
    }
    let elsewhere = TABLES_OF_KEYS.into_iter().filter(|(other, _)| *other != table);
    let mut found = elsewhere.filter_map(|(table, keys)| Some((near_miss(&key, keys.iter().copied())?, table)));
    match found.next() {
        Some((meant, table)) => format!("`{meant}` belongs {table}"),
        None => format!("the keys here are {}", here.join(", ")),
    }
}

/// TOML's and serde's words without those of Rust.
fn plain(message: &str) -> String {
    let message = message.lines().collect::<Vec<_>>().join(": ");
    message
        .replace(" as i128", "")
        .replace("expected i64", "expected a whole number")
        .replace("expected a boolean", "expected true or false")
        .replace("a string or a sequence", "a string or a list")
        .replace("expected a sequence", "expected a list")
        .replace("type: sequence", "type: list")
        .replace("type: map", "type: table")
}

fn structure_help(message: &str) -> &'static str {
    if message.contains("expected a table") {
        "write it as a table: [rule], or [[rule]] for each of several"
    } else if message.contains("expected a string or a sequence") {
        "write a text, \"…\", or a list of them, [\"…\"]"
    } else if message.contains("expected a sequence") {
        "put it in brackets: [\"…\"]"
    } else if message.contains("expected a string") {
        "put it in quotes: \"…\""
    } else if message.contains("integer") && message.contains(" as i128") {
        "the number is too large for anything here"
    } else if message.contains("floating point") {
        "write a whole number, in digits alone"
    } else if message.contains("expected i64") {
        "write the number without quotes"
    } else if message.contains("invalid date") || message.contains("invalid time") {
        "write a date that there is, as in 2027-03-31"
    } else if message.contains("expected a boolean") {
        "write true or false, without quotes"
    } else if message.contains("duplicate key") {
        "keep one of the two"
    } else {
        "the file is TOML: key = value on a line, texts in quotes, lists in brackets"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrong(contents: &str) -> (String, usize, usize, String) {
        let error = parse(Path::new("r.toml"), contents, |_| Err("no such file".into())).expect_err(contents);
        let Place::File { excerpt, .. } = error.place else { panic!("not in the file") };
        let (line, column) = excerpt.map_or((0, 0), |excerpt| (excerpt.line, excerpt.column));
        (error.problem, line, column, error.help.join("; "))
    }

    #[test]
    fn an_error_names_line_and_column() {
        for (contents, problem, line, column, help) in [
            ("interfaces = [\"eth0\"]\n[rule]\nlimts = []\n", "unknown key `limts`", 3, 1, "`limits`"),
            ("limits = []\n", "unknown key `limits`", 1, 1, "under [rule]"),
            ("[rule]\non-exit = \"keep\"\n", "unknown key `on-exit`", 2, 1, "above the first [table]"),
            ("[rule]\nfoo = 1\n", "unknown key `foo`", 2, 1, "the keys here are name, from"),
            ("rule = 1\n", "invalid type: integer `1`, expected a table", 1, 8, "[rule]"),
            ("interfaces = \"eth0\"\n", "invalid type: string \"eth0\", expected a list", 1, 14, "brackets"),
            (
                "max_sources = \"1000\"\n",
                "invalid type: string \"1000\", expected a whole number",
                1,
                15,
                "without quotes",
            ),
            (
                "max_sources = 1e3\n",
                "invalid type: floating point `1000.0`, expected a whole number",
                1,
                15,
                "digits alone",
            ),
            (
                "max_sources = 99999999999999999999\n",
                "invalid type: integer `99999999999999999999`, expected a whole number",
                1,
                15,
                "too large",
            ),
            (
                "[[rule]]\n[[rule.override]]\nuntil = 2027-02-30\n",
                "invalid date, expected day between 01 and 28",
                3,
                9,
                "a date that there is",
            ),
            (
                "interfaces = [\"e\\u202e0\"]\n[rule]\nlimits = [\"1/1s\"]\n",
                "bad value for `interfaces`: an interface's name cannot hold '\\u{202e}'",
                1,
                15,
                "ip",
            ),
            ("socket = 1\n", "invalid type: integer `1`, expected a string", 1, 10, "quotes"),
            (
                "interfaces = [\"eth0\"]\n[rule]\nlimits = [\"10/1m\", \"60/1y\"]\n",
                "bad value for `rule.limits`: `y` is not a unit of time",
                3,
                25,
                "units of time",
            ),
            ("interfaces = [\"eth0\"]\n", "`rule.limits` is missing, or empty", 0, 0, "[rule]"),
            ("[rule]\nlimits = [\"1/1s\"]\n", "`interfaces` is missing, or empty", 0, 0, "eth0"),
            ("ipv4_prefix = -1\n", "bad value for `ipv4_prefix`: `-` is not a digit", 1, 15, "0 to 32"),
        ] {
            let found = wrong(contents);
            assert_eq!((found.0.as_str(), found.1, found.2), (problem, line, column), "{contents}");
            assert!(found.3.contains(help), "{contents}: {}", found.3);
        }
    }

    #[test]
    fn a_text_with_escapes_is_marked_whole() {
        let (problem, line, column, _) = wrong("interfaces = [\"a\\tb\"]\n[rule]\nlimits = [\"1/1s\"]\n");
        assert_eq!(
            (problem.as_str(), line, column),
            ("bad value for `interfaces`: an interface's name cannot hold '\\t'", 1, 15)
        );
    }

    #[test]
    fn the_example_of_a_site_is_what_it_says() {
        let contents = include_str!("../../../examples/site.toml");
        let list = include_str!("../../../examples/deny.txt");
        let config = parse(Path::new("site.toml"), contents, |path| {
            assert_eq!(path, Path::new("deny.txt"));
            Ok(list.to_owned())
        });
        let config = config.expect("a configuration");
        let names: Vec<_> = config.policy.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["premium", "login", "api:partner", "api", "web"]);
        assert_eq!(config.policy.access.len(), 3);
        let day = ratelimit_common::time::Nanos(1_800_000_000_000_000_000);
        assert_eq!(
            crate::config::lint::warnings(&config, day),
            [
                "rule login: port 22 is limited: mind your own SSH connections",
                "rules premium and api have packets in common: premium judges those"
            ]
        );
    }

    #[test]
    fn a_list_file_is_read_beside_its_configuration_and_nothing_without_end_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.toml");
        let write = |name: &str, contents: &[u8]| std::fs::write(directory.path().join(name), contents).expect("write");
        write("r.toml", b"interfaces = [\"eth0\"]\ndeny = [\"file:drop.txt\"]\n[rule]\nlimits = [\"1/s\"]\n");
        write("drop.txt", b"192.0.2.0/24 ; caf\xe9\n");
        let config = load(&path).expect("a configuration");
        assert_eq!(config.policy.access.len(), 1);
        let files: Vec<_> =
            config.list_files.iter().map(|file| (file.path.as_path(), file.named_by.as_str())).collect();
        assert_eq!(files, [(directory.path().join("drop.txt").as_path(), "deny")]);
        for (file, problem) in [("/dev/zero", "it is a device"), (".", "it is a directory"), ("no.txt", "no such file")]
        {
            let list = format!("interfaces = [\"eth0\"]\ndeny = [\"file:{file}\"]\n[rule]\nlimits = [\"1/s\"]\n");
            write("r.toml", list.as_bytes());
            assert!(load(&path).expect_err(file).problem.contains(problem), "{file}");
        }
        write("r.toml", b"interfaces = [\"eth0\"]\n# caf\xe9\n");
        let Place::File { excerpt: Some(excerpt), .. } = load(&path).expect_err("not UTF-8").place else {
            panic!("no place")
        };
        assert_eq!((excerpt.line, excerpt.column), (2, 6));
        write("r.toml", &vec![b'#'; (1 << 20) + 1]);
        assert!(load(&path).expect_err("too long").problem.contains("longer than 1048576 bytes"));
    }

    proptest! {
        #[test]
        fn no_file_panics(contents in "\\PC{0,80}|([a-z_]{1,11} ?= ?[\\[\"]{0,2}[0-9a-z/]{0,6}[\\]\"]{0,2}\n){0,4}(\\[rule\\]\nlimits = \\[\".{0,9}\"\\])?") {
            let _either = parse(Path::new("r.toml"), &contents, |_| Err("no such file".into()));
        }
    }
}
