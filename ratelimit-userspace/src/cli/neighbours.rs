//! Commands for related programs: CrowdSec, lists of others, nft and ipset.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use ratelimit_crowdsec::Options;
use tokio::time::Duration;

use super::ask::{Daemon, client};
use super::change::parse_seconds;
use super::host::around;
use super::run::{block_on, print, print_words};
use super::{Global, ListArgs, OutputFormat, Socket};
use crate::error::{Diagnostic, Exit, Place};
use crate::mmdb::Selector;
use ratelimit_policy::config::file;
use ratelimit_policy::config::lists::bounds::ListBounds;
use ratelimit_policy::files::others_may_write;
use ratelimit_report::entries::{self, Format};
use ratelimit_report::snapshot::ListFilter;

/// Maximum number of entries that are named one by one.
const NAMED_MAX: usize = 16;

/// Output formats of `list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Denied and banned addresses as a list file, with ends and reasons after a #
    Plain,
    /// Denied and banned addresses as a script for nft -f, without overlaps
    Nft,
    /// Denied and banned addresses as a script for ipset restore
    Ipset,
    /// All entries, as --json prints them
    Json,
}

/// Subcommands of the command `lists`.
#[derive(Clone, Debug, Subcommand)]
pub enum ListsCommand {
    /// Check list files, and say how many prefixes each has; exit code 78 if one cannot be used
    Check {
        /// The files
        #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Put a refused version of a list file in force: one that covers more addresses than a `deny` list may, or grew
    /// too fast
    Accept {
        /// The file, as the configuration names it
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The version to accept, as `stats` and the log name it; any other version is refused
        #[arg(value_name = "VERSION")]
        version: Option<String>,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Make a list file of autonomous systems and countries from a database in MaxMind's format
    #[command(after_help = super::texts::FROM_MMDB_EXAMPLES)]
    FromMmdb(FromMmdbArgs),
}

/// Arguments of `lists from-mmdb`.
#[derive(Clone, Debug, Args)]
pub struct FromMmdbArgs {
    /// The database: .mmdb of MaxMind, DB-IP, IPinfo or others
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The networks of this autonomous system; repeatable
    #[arg(long, value_name = "N", value_parser = Selector::asn)]
    pub asn: Vec<Selector>,
    /// The networks of this country, by its two letters; repeatable
    #[arg(long, value_name = "XX", value_parser = Selector::country)]
    pub country: Vec<Selector>,
    /// The list file to replace; without it or with -, standard output
    #[arg(short = 'o', long = "out", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    // Replaces the global flag, because `-o` is the list file here.
    /// How to print what was made: human or json
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "human", hide_possible_values = true)]
    pub output: OutputFormat,
}

/// Arguments of the command `crowdsec`.
#[derive(Clone, Debug, Args)]
pub struct CrowdsecArgs {
    /// The local API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080/")]
    pub url: String,
    /// The file with the key that `cscli bouncers add ratelimitd` prints
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: PathBuf,
    /// The list file to keep up to date; a list in the daemon's configuration names it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Time between two pulls
    #[arg(long, value_name = "DUR", default_value = "10s")]
    pub interval: String,
    /// Scopes to ask for: ip, range, or both with a comma between them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "ip,range", ignore_case = true,
          value_parser = ["ip", "range"], hide_possible_values = true)]
    pub scopes: Vec<String>,
    /// Origins to ask for, as in crowdsec,cscli,CAPI; all of them without it
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub origins: Vec<String>,
    /// Length of the prefix that is denied for an IPv6 address
    #[arg(long, value_name = "LENGTH", default_value_t = 64, value_parser = clap::value_parser!(u8).range(16..=128))]
    pub ipv6_prefix: u8,
    /// Maximum number of prefixes: this host's own decisions first, then those that last longest
    #[arg(long, value_name = "N", default_value_t = ratelimit_crowdsec::list::PREFIXES_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(ratelimit_crowdsec::list::PREFIXES_MAX)))]
    pub most: u32,
    /// A file with `login:` and `password:`, as `cscli machines add` writes it; with it, bans on this host are reported
    /// to CrowdSec
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub machine_file: Option<PathBuf>,
    /// Certificates in PEM to trust in place of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca_file: Option<PathBuf>,
    /// Pull once, write the file and end
    #[arg(long)]
    pub once: bool,
    /// The daemon to ask.
    #[command(flatten)]
    pub socket: Socket,
}

/// Keeps a list file up to date with CrowdSec's decisions.
pub(super) fn crowdsec(args: CrowdsecArgs, global: &Global) -> anyhow::Result<Exit> {
    let interval = parse_seconds("--interval", &args.interval)?;
    let options = Options {
        url: args.url,
        key_file: args.key_file,
        ca_file: args.ca_file,
        out: args.out,
        interval: Duration::from_secs(interval),
        scopes: args.scopes,
        origins: args.origins,
        ipv6_prefix: args.ipv6_prefix,
        most: args.most as usize,
        is_once: args.once,
        machine_file: args.machine_file,
        socket: args.socket.path,
    };
    let level = crate::log::level(tracing::level_filters::LevelFilter::INFO, global.verbose, global.quiet);
    crate::log::start(level);
    block_on(global, async {
        ratelimit_crowdsec::run(&options).await?;
        Ok(Exit::Done)
    })
}

/// Prints what is denied and banned, in another program's format.
pub(super) fn export(daemon: &Daemon<'_>, which: ListArgs, format: Format) -> anyhow::Result<Exit> {
    let prefix = super::ask::prefix_asked(which.prefix.as_deref())?;
    let filter = ListFilter { rule: which.rule, reason: which.reason, prefix, most: None };
    block_on(daemon.global, async {
        // Get all entries: some that are not asked for may exempt a part of those that are.
        let report = client(&daemon.socket).call(&ListFilter::default()).await?;
        print(entries::export(&entries::rows_of(&report, &filter), format, report.time).as_bytes())
    })
}

/// Checks list files by the rules that the daemon applies on this host. Warns of entries that the daemon would skip; a
/// file without any other entry cannot be used.
pub(super) fn check_lists(files: &[PathBuf], global: &Global) -> anyhow::Result<Exit> {
    let (around, mut said) = (around(), String::new());
    for path in files {
        let prefixes = file::load_list(path)?;
        if prefixes.is_empty() {
            let (problem, place) = ("it holds no prefix".to_owned(), Place::File { path: path.clone(), excerpt: None });
            return Err(Diagnostic {
                problem,
                place,
                help: vec!["as a list of `deny` it would have no effect".to_owned()],
            }
            .into());
        }
        let why = |prefix: &ipnet::IpNet| around.objection_to_listing(*prefix);
        let objections: Vec<String> = prefixes.iter().filter_map(why).collect();
        if objections.len() == prefixes.len()
            && let Some(first) = objections.first()
        {
            let problem = format!("every entry in it would be skipped: {first}");
            let place = Place::File { path: path.clone(), excerpt: None };
            return Err(Diagnostic { problem, place, help: Vec::new() }.into());
        }
        let more = objections.len().saturating_sub(NAMED_MAX);
        let of = |why: &String| format!("{}: {why}: `deny` skips it", path.display());
        let mut warnings: Vec<String> = objections.iter().take(NAMED_MAX).map(of).collect();
        if more > 0 {
            warnings.push(format!("{}: {more} more entries are skipped", path.display()));
        }
        warnings.extend(ListBounds::default().objection(&prefixes, None).map(|why| {
            let path = path.display();
            format!("{path}: {why}; as a list of `deny` it is not put in force until: ratelimitd lists accept {path}")
        }));
        warnings.extend(others_may_write(path).map(|why| format!("{}: {why}", path.display())));
        super::run::warn(&warnings, global);
        let passed_over = match objections.len() {
            0 => String::new(),
            count => format!(", of which {count} would be skipped"),
        };
        said += &format!("{}: good, {} prefixes{passed_over}\n", path.display(), prefixes.len());
    }
    print_words(&said)
}
