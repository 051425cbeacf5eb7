//! The configuration file: from TOML to settings with places, and the list files that it names. In `config`
//! only this module reads files, by means of `crate::files`.

use std::io::{self, Read as _};
use std::path::Path;

use flate2::bufread::GzDecoder;
use ipnet::IpNet;
use toml::de::DeTable;

use super::Config;
use super::lists::{self, Contents, KnownLists, LIST_BYTES_MAX};
use crate::diagnostic::{Diagnostic, Diagnostics, Excerpt, Found, Place};
use crate::files;

mod broken;
pub mod shape;

/// Maximum length of a configuration file, in bytes. Long lists belong in list files.
const BYTES_MAX: u64 = 1 << 20;
/// Magic bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads and parses the file at `path`.
pub fn load(path: &Path) -> Result<Config, Diagnostics> {
    parse(path, &read_text(path)?, read_list)
}

/// Returns the whole text of the file at `path`. Fails if the file is too long or not UTF-8.
pub fn read_text(path: &Path) -> Result<String, Diagnostic> {
    let bytes = files::read_named(path, BYTES_MAX).map_err(|error| {
        let help = if error.kind() == std::io::ErrorKind::NotFound {
            "name another file, or run without one: ratelimitd --iface IF --limit N/DUR"
        } else {
            "check the path and who may read it"
        };
        unreadable(path, format!("cannot read the configuration file: {}", reason(&error)), help)
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

fn unreadable(path: &Path, problem: String, help: &str) -> Diagnostic {
    Diagnostic { problem, place: Place::File { path: path.to_owned(), excerpt: None }, help: vec![help.to_owned()] }
}

/// Returns the text of the list file at `path`, or the reason why it cannot be read.
pub fn read_list(path: &Path) -> Result<String, String> {
    files::read_of_anyone(path, LIST_BYTES_MAX).and_then(list_text).map_err(|error| reason(&error))
}

/// Returns the text of a list, unpacked if gzip packed it. Invalid UTF-8 is replaced; it can occur only in comments
/// and in mistakes, which the parser reports.
pub fn list_text(bytes: Vec<u8>) -> io::Result<String> {
    let bytes = if bytes.starts_with(&GZIP) { unpacked(&bytes)? } else { bytes };
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Maximum number of members in a gzip file. Each member takes time, even an empty one. `bgzip` writes members of 64
/// kB.
const GZIP_MEMBERS_MAX: usize = 4096;

/// Unpacks all gzip members. Fails if the result is longer than a list file may be.
fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let mut rest = bytes;
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut member = GzDecoder::new(rest);
        let room = (LIST_BYTES_MAX + 1).saturating_sub(unpacked.len() as u64);
        (&mut member).take(room).read_to_end(&mut unpacked).map_err(|error| {
            let what = if error.kind() == io::ErrorKind::UnexpectedEof { "cut off" } else { "damaged" };
            io::Error::other(format!("it is packed by gzip, and {what}: {error}"))
        })?;
        if unpacked.len() as u64 > LIST_BYTES_MAX {
            return Err(io::Error::other(format!("unpacked it is longer than {LIST_BYTES_MAX} bytes")));
        }
        rest = member.into_inner();
        if rest.is_empty() {
            return Ok(unpacked);
        }
    }
    Err(io::Error::other(format!("it is packed by gzip with more than {GZIP_MEMBERS_MAX} members")))
}

/// Returns the prefixes of the list file at `path`, read on its own. Errors name that file.
pub fn load_list(path: &Path) -> Result<Vec<IpNet>, Diagnostics> {
    let contents = read_list(path).map_err(|reason| Diagnostic {
        problem: format!("cannot read the list file: {reason}"),
        place: Place::File { path: path.to_owned(), excerpt: None },
        help: Vec::new(),
    })?;
    lists::parse(path, &contents)
}

/// Returns the message of an I/O error in lower case, without the error number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Parses the text of the file at `path`. The path is used only in errors and to find list files, which `read_list`
/// reads.
pub fn parse(
    path: &Path,
    contents: &str,
    read_list: impl Fn(&Path) -> Result<String, String>,
) -> Result<Config, Diagnostics> {
    parse_with(path, contents, &KnownLists::new(), read_list)
}

/// Parses the text of the file at `path`. List files are read from disk, unless `known` has their prefixes.
pub fn parse_beside(path: &Path, contents: &str, known: &KnownLists) -> Result<Config, Diagnostics> {
    parse_with(path, contents, known, read_list)
}

fn parse_with(
    path: &Path,
    contents: &str,
    known: &KnownLists,
    read_list: impl Fn(&Path) -> Result<String, String>,
) -> Result<Config, Diagnostics> {
    parse_by(path, contents, |path| match known.get(path) {
        Some(prefixes) => Contents::Known(prefixes.clone()),
        None => Contents::Read(read_list(path)),
    })
}

/// Parses the text of the file at `path`. `read_list` returns the contents of each list file.
pub fn parse_by(path: &Path, contents: &str, read_list: impl Fn(&Path) -> Contents) -> Result<Config, Diagnostics> {
    let (top, errors) = DeTable::parse_recoverable(contents);
    let mut found = Found::default();
    let mut settings = shape::settings(path, contents, top.clone(), &mut found);
    found.keep(settings.read_lists_by(read_list));
    let config = settings.config_beside(found);
    if errors.is_empty() {
        return config;
    }
    let mut found = Found::default();
    let config = found.keep(config);
    broken::add(path, contents, &top, &errors, &mut found);
    found.into_result(config)?.ok_or_else(|| unreadable(path, "the file cannot be read".to_owned(), "mend it").into())
}

#[cfg(test)]
mod tests {
    mod all_at_once;

    use super::*;
    use proptest::prelude::*;

    fn wrong(contents: &str) -> Vec<(String, usize, usize, String)> {
        let errors = parse(Path::new("r.toml"), contents, |_| Err("no such file".into())).expect_err(contents);
        let said = errors.iter().map(|error| {
            let Place::File { excerpt, .. } = &error.place else { panic!("not in the file") };
            let (line, column) = excerpt.as_ref().map_or((0, 0), |excerpt| (excerpt.line, excerpt.column));
            (error.problem.clone(), line, column, error.help.join("; "))
        });
        said.collect()
    }

    #[test]
    fn a_packed_list_file_is_unpacked_within_a_bound() {
        use std::io::Write as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list.gz");
        let packed = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        std::fs::write(&path, packed(b"192.0.2.0/24\n")).unwrap();
        assert_eq!(load_list(&path).unwrap(), ["192.0.2.0/24".parse().unwrap()]);
        let whole = packed(b"192.0.2.0/24\n");
        for cut in 2..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let error = load_list(&path).unwrap_err().to_string();
            assert!(error.contains("it is packed by gzip, and cut off"), "{cut} bytes: {error}");
        }
        for at in [2, whole.len() - 8] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            let error = load_list(&path).unwrap_err().to_string();
            assert!(error.contains("it is packed by gzip, and damaged"), "byte {at}: {error}");
        }
        // Several members form one file. A file of the maximum unpacked length is accepted.
        std::fs::write(&path, [packed(b"192.0.2.0/25\n"), packed(b"192.0.2.128/25\n")].concat()).unwrap();
        assert_eq!(load_list(&path).unwrap().len(), 2);
        std::fs::write(&path, packed(&vec![b'\n'; usize::try_from(LIST_BYTES_MAX).unwrap()])).unwrap();
        assert!(load_list(&path).unwrap().is_empty());
        std::fs::write(&path, packed(&vec![b'#'; usize::try_from(LIST_BYTES_MAX).unwrap() + 1])).unwrap();
        let error = load_list(&path).unwrap_err().to_string();
        assert!(error.contains("unpacked it is longer than"), "{error}");
        std::fs::write(&path, packed(b"").repeat(GZIP_MEMBERS_MAX)).unwrap();
        assert!(load_list(&path).unwrap().is_empty());
        std::fs::write(&path, packed(b"").repeat(GZIP_MEMBERS_MAX + 1)).unwrap();
        let error = load_list(&path).unwrap_err().to_string();
        assert!(error.contains("more than 4096 members"), "{error}");
    }

    #[test]
    fn an_error_names_line_and_column() {
        for (contents, problem, line, column, help) in [
            ("interfaces = [\"eth0\"]\n[rule]\nlimts = []\n", "unknown key `limts`", 3, 1, "`limits`"),
            ("limits = []\n", "unknown key `limits`", 1, 1, "under [rule]"),
            ("[rule]\non-exit = \"keep\"\n", "unknown key `on-exit`", 2, 1, "above the first [table]"),
            ("[rule]\nfoo = 1\n", "unknown key `foo`", 2, 1, "the keys here are name, from"),
            ("rule = 1\n", "bad value for `rule`: a number without quotes cannot stand here", 1, 8, "[rule]"),
            (
                "interfaces = 5\n",
                "bad value for `interfaces`: a number without quotes cannot stand here",
                1,
                14,
                "quotes",
            ),
            (
                "[rule]\nlimits = [[\"1/s\"]]\n",
                "bad value for `rule.limits`: a list cannot stand here",
                2,
                11,
                "one list",
            ),
            ("mode = [\"x\"]\n", "unknown key `mode`", 1, 1, "`mode` belongs under [rule]"),
            ("[rule]\nmode = [\"x\"]\n", "bad value for `rule.mode`: a list cannot stand here", 2, 8, "brackets"),
            ("max_sources = \"many\"\n", "bad value for `max_sources`: `m` is not a digit", 1, 16, "a whole number"),
            ("max_sources = 1e3\n", "bad value for `max_sources`: `e` is not a digit", 1, 16, "a whole number"),
            (
                "max_sources = 99999999999999999999\n",
                "bad value for `max_sources`: the number is too large",
                1,
                15,
                "a whole number",
            ),
            (
                "[[rule]]\n[[rule.override]]\nuntil = 2027-02-30\n",
                "invalid date, expected day between 01 and 28",
                3,
                9,
                "a date that exists",
            ),
            (
                "interfaces = [\"e\\u202e0\"]\n[rule]\nlimits = [\"1/1s\"]\n",
                "bad value for `interfaces`: an interface's name cannot hold '\\u{202e}'",
                1,
                15,
                "ip",
            ),
            ("socket = 1\n", "bad value for `socket`: a number without quotes cannot stand here", 1, 10, "quotes"),
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
            let all = wrong(contents);
            let found = all.iter().find(|found| (found.0.as_str(), found.1, found.2) == (problem, line, column));
            assert!(found.is_some_and(|found| found.3.contains(help)), "{contents}: {all:?}");
        }
    }

    #[test]
    fn a_text_with_escapes_is_marked_whole() {
        let (problem, line, column, _) = &wrong("interfaces = [\"a\\tb\"]\n[rule]\nlimits = [\"1/1s\"]\n")[0];
        let expected = "bad value for `interfaces`: an interface's name cannot hold '\\t'";
        assert_eq!((problem.as_str(), *line, *column), (expected, 1, 15));
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
                "rule login: it also limits your own SSH logins; put your address into `allow` first",
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
            assert!(load(&path).expect_err(file).first().problem.contains(problem), "{file}");
        }
        write("r.toml", b"interfaces = [\"eth0\"]\n# caf\xe9\n");
        let Place::File { excerpt: Some(excerpt), .. } = load(&path).expect_err("not UTF-8").first().place.clone()
        else {
            panic!("no place")
        };
        assert_eq!((excerpt.line, excerpt.column), (2, 6));
        write("r.toml", &vec![b'#'; (1 << 20) + 1]);
        assert!(load(&path).expect_err("too long").first().problem.contains("longer than 1048576 bytes"));
    }

    #[test]
    fn a_configuration_that_is_no_file_is_refused_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::os::unix::fs::symlink(at("pipe"), at("link")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        let (zero, here) = (std::path::PathBuf::from("/dev/zero"), directory.path().to_owned());
        for (path, what) in [
            (at("pipe"), "pipe"),
            (at("link"), "pipe"),
            (at("socket"), "socket"),
            (zero, "device"),
            (here, "directory"),
        ] {
            let problem = load(&path).expect_err(what).first().problem.clone();
            assert_eq!(problem, format!("cannot read the configuration file: it is a {what}, not a file"));
        }
    }

    proptest! {
        #[test]
        fn no_file_panics(contents in "\\PC{0,80}|([a-z_]{1,11} ?= ?[\\[\"]{0,2}[0-9a-z/]{0,6}[\\]\"]{0,2}\n){0,4}(\\[rule\\]\nlimits = \\[\".{0,9}\"\\])?") {
            let _either = parse(Path::new("r.toml"), &contents, |_| Err("no such file".into()));
        }
    }
}
