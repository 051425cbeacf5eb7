//! `lists from-mmdb`: makes a list file from a database. Reads the file, limits the time, and writes the list.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ratelimit_crowdsec::list;
use ratelimit_policy::files;
use serde::Serialize;

use super::neighbours::FromMmdbArgs;
use super::run::{print, show, warn};
use super::{Global, OutputFormat};
use crate::error::{Diagnostic, Exit, Place};
use crate::mmdb::{self, BYTES_MAX, Listed, MmdbError, Selector};

/// Maximum time for reading a database. One of 10 million networks takes a few seconds.
const TAKES_AT_MOST: Duration = Duration::from_secs(300);
/// First bytes of compressed files: gzip, zip, zstd.
const PACKED: [&[u8]; 3] = [&[0x1f, 0x8b], b"PK\x03\x04", &[0x28, 0xb5, 0x2f, 0xfd]];
/// Help if no list is made and an old one exists.
const KEPT: &str = "the list file is unchanged";

/// The command's result in JSON.
#[derive(Debug, Serialize)]
struct Made<'a> {
    schema: u32,
    file: &'a Path,
    database: String,
    built: Option<String>,
    ipv4_prefixes: usize,
    ipv6_prefixes: usize,
    not_found: Vec<String>,
}

/// Makes the list file, or prints the list.
pub(super) fn from_mmdb(args: FromMmdbArgs, global: &Global) -> anyhow::Result<Exit> {
    let asked = [args.asn, args.country].concat();
    if asked.is_empty() {
        let (problem, help) = ("--asn or --country is missing", "say which networks: `--asn 64496`, `--country XX`");
        let problem = problem.to_owned();
        return Err(Diagnostic { problem, place: Place::CommandLine, help: vec![help.to_owned()] }.into());
    }
    let out = args.out.as_deref().filter(|path| *path != Path::new("-"));
    let is_of = |path: &Path| path.metadata().map(|of| (of.dev(), of.ino())).ok();
    if out.and_then(is_of).is_some_and(|there| Some(there) == is_of(&args.file)) {
        let problem = "the list would replace the database".to_owned();
        return Err(
            Diagnostic { problem, place: Place::CommandLine, help: vec!["name another file".to_owned()] }.into()
        );
    }
    let listed = read(&args.file, &asked, out)?;
    let of = args.file.display();
    let missing = listed.missing.iter().map(|of_it| format!("{of}: no network belongs to {of_it}"));
    let whole = listed.prefixes.iter().filter(|prefix| prefix.prefix_len() == 0);
    let whole = whole
        .map(|prefix| format!("{of}: the list has {prefix}, which is every address: to deny it locks out everybody"));
    warn(&missing.chain(whole).collect::<Vec<_>>(), global);
    let text = mmdb::text(&listed, &asked);
    let Some(out) = out else { return print(text.as_bytes()) };
    list::replace(out, &text).map_err(|error| Diagnostic {
        problem: format!("cannot write the list file: {error}"),
        place: Place::File { path: out.to_owned(), excerpt: None },
        help: vec![format!("{KEPT}; may you write to its directory?")],
    })?;
    let ipv4_prefixes = listed.prefixes.iter().filter(|prefix| prefix.addr().is_ipv4()).count();
    let made = Made {
        schema: 1,
        file: out,
        database: listed.database.kind.clone(),
        built: listed.database.built.map(|built| built.to_string()),
        ipv4_prefixes,
        ipv6_prefixes: listed.prefixes.len() - ipv4_prefixes,
        not_found: listed.missing.iter().map(ToString::to_string).collect(),
    };
    let words = |made: &Made<'_>| {
        let Made { file, ipv4_prefixes, ipv6_prefixes, .. } = made;
        let file = file.display();
        format!("{file}: {ipv4_prefixes} prefixes of IPv4 and {ipv6_prefixes} of IPv6, from {}\n", listed.database)
    };
    let is_json = global.json || args.output == OutputFormat::Json;
    show(&made, words, if is_json { OutputFormat::Json } else { OutputFormat::Human })
}

fn read(file: &Path, asked: &[Selector], out: Option<&Path>) -> Result<Listed, Diagnostic> {
    let kept = || out.filter(|path| path.exists()).map(|_| KEPT.to_owned());
    let in_file = |problem: String, help: Option<&str>| Diagnostic {
        problem,
        place: Place::File { path: file.to_owned(), excerpt: None },
        help: help.map(str::to_owned).into_iter().chain(kept()).collect(),
    };
    let bytes = files::read_of_anyone(file, BYTES_MAX)
        .map_err(|error| in_file(format!("cannot read the database: {error}"), None))?;
    if PACKED.iter().any(|mark| bytes.starts_with(mark)) {
        return Err(in_file("the database is packed".to_owned(), Some("unpack it first, as in gunzip -k FILE")));
    }
    let began = Instant::now();
    mmdb::list(&bytes, asked, || began.elapsed() > TAKES_AT_MOST).map_err(|error| {
        let problem = error.to_string();
        match error {
            MmdbError::Damaged(_) | MmdbError::Overdue => in_file(problem, Some("fetch it again")),
            MmdbError::TooMany => in_file(problem, Some("select less")),
            MmdbError::NoAsns(_) => in_file(problem, Some("name a database of autonomous systems, or leave out --asn")),
            MmdbError::NoCountries(_) => in_file(problem, Some("name a database of countries, or leave out --country")),
            MmdbError::Nothing { .. } => {
                let help = ["check the spelling, and whether the database is recent enough".to_owned()]
                    .into_iter()
                    .chain(kept());
                Diagnostic { problem, place: Place::CommandLine, help: help.collect() }
            }
        }
    })
}
