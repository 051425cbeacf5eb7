//! The command line: its commands, flags and help. [`run`] carries the commands out.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint};

use crate::error::{Diagnostic, Place, SOCKET_VARIABLE};
use ratelimit_policy::config::{FILE_DEFAULT, SOCKET_DEFAULT};

pub use self::doctor::{BugReportArgs, DoctorArgs};
pub use self::limiter::Limiter;
pub use self::neighbours::{CrowdsecArgs, ListFormat, ListsCommand};
pub use self::past::{EventsArgs, HistoryArgs};
pub use self::replay::{FromArgs, ReplayArgs};
pub use self::run::run;

mod ask;
mod change;
mod colour;
mod doctor;
mod each;
mod from_mmdb;
mod host;
mod import;
mod limiter;
mod manual;
mod neighbours;
mod orphan;
mod paint;
mod past;
mod pipe;
mod refused;
mod replay;
mod run;
mod texts;
mod warnings;

#[cfg(test)]
mod tests;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Limits each source at the network level: what is over the limit is dropped before the server sees it
#[derive(Debug, Parser)]
#[command(
    name = "ratelimitd",
    bin_name = "ratelimitd",
    version,
    styles = STYLES,
    max_term_width = 100,
    subcommand_help_heading = "Commands",
    override_usage = texts::USAGE,
    after_help = texts::EXAMPLES_SHORT,
    after_long_help = texts::EXAMPLES,
)]
pub struct Cli {
    /// What to limit, without a file.
    #[command(flatten)]
    pub limiter: Limiter,
    /// What belongs to every command.
    #[command(flatten)]
    pub global: Global,
    /// A command other than limiting in the foreground.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Global {
    /// How to print what was asked for: human or json
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        global = true,
        default_value = "human",
        hide_possible_values = true
    )]
    pub output: OutputFormat,
    /// Short for --output json
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours: auto, always or never; NO_COLOR is respected
    #[arg(long, value_enum, value_name = "WHEN", global = true, default_value = "auto", hide_possible_values = true)]
    pub color: Color,
    /// Say more on standard error; twice for even more
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Say less on standard error; twice for errors only
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub quiet: u8,
}

impl Global {
    /// Returns the output format that either flag selects.
    pub fn format(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.output }
    }
}

/// Output formats of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    Human,
    /// For programs
    Json,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On terminals
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Repetition of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Prints one time only.
    Once,
    /// Prints every second until interrupted.
    Watch,
}

/// Amount of output: one screen or everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The part that fits the terminal, worst first.
    Screen,
    /// Everything, without a limit.
    All,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Limit as a configuration file says, in the foreground (what the systemd unit runs)
    Run {
        /// The configuration file; SIGHUP reads it again
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = FILE_DEFAULT)]
        config: PathBuf,
    },
    /// Show what passes, what is blocked, and who is near or over a limit
    #[command(visible_alias = "status", after_help = texts::STATS_EXAMPLES)]
    Stats {
        /// Refresh every second until interrupted
        #[arg(short, long)]
        watch: bool,
        /// Show everything, even if the terminal has fewer lines
        #[arg(long)]
        all: bool,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show live statistics in a terminal, inspect one source, and allow, deny or unblock it; ? shows the keys
    Top {
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show whether a source's packets pass or are dropped, and why; exit code 3 if a rule drops any, else 0
    #[command(after_help = texts::CHECK_EXAMPLES)]
    Check {
        /// The address, or a network for a summary
        #[arg(value_name = "IP|CIDR")]
        source: String,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show step by step which rule would judge a packet and whether it would pass, without counting it
    #[command(after_help = texts::EXPLAIN_EXAMPLES)]
    Explain {
        /// The source's address
        #[arg(value_name = "IP")]
        source: String,
        /// The destination port: 443, 53/udp; TCP unless /udp is given
        #[arg(long, value_name = "PORT")]
        to: String,
        /// The destination address, if rules match on one
        #[arg(long, value_name = "IP")]
        to_address: Option<String>,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Propose limits from observed traffic: the demand of sources, and which of them other limits would have blocked
    #[command(after_help = texts::SUGGEST_EXAMPLES)]
    Suggest {
        /// Only for the rule of this name
        #[arg(long, value_name = "NAME", conflicts_with = "files")]
        rule: Option<String>,
        /// What to observe in place of a daemon.
        #[command(flatten)]
        from: FromArgs,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show what is allowed, denied and banned, until when and why
    #[command(after_help = texts::LIST_EXAMPLES)]
    List {
        /// What of it.
        #[command(flatten)]
        which: ListArgs,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Deny the addresses in a file, each until its own end: output of `list --format` as plain, nft, ipset or json, of
    /// `ipset save` or `nft list`, or a list file; exit code 3 if some entries are refused
    Import {
        /// The file, or - for standard input
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// The program that owns these denials, as in `deny --by`
        #[arg(long = "by", value_name = "OWNER")]
        owner: Option<String>,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Check list files before they are used, or make one from a database
    Lists {
        /// What to do.
        #[command(subcommand)]
        what: ListsCommand,
    },
    /// Keep a list file up to date with the decisions of CrowdSec's local API, and report bans to it; needs no
    /// privileges
    Crowdsec {
        /// From where, and where to.
        #[command(flatten)]
        crowdsec: CrowdsecArgs,
    },
    /// Show the state of the fleet: when each host was last heard, which limits are summed, and the bound that holds
    /// now
    #[command(after_help = texts::FLEET_EXAMPLES)]
    Fleet {
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show recent events: new refusals and bans, and changes by commands; -f keeps printing new events
    #[command(after_help = texts::EVENTS_EXAMPLES)]
    Events {
        /// Which events.
        #[command(flatten)]
        which: EventsArgs,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Show the history of an address or network; without one, the sources refused most in the last day
    #[command(after_help = texts::HISTORY_EXAMPLES)]
    History {
        /// What of it.
        #[command(flatten)]
        which: HistoryArgs,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Erase one source from the history and from recent events
    Forget {
        /// The source's address
        #[arg(value_name = "IP")]
        source: String,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Print a link that opens the web page once, within five minutes; the daemon serves it at --listen
    WebToken,
    /// Hand the log lines on standard input to the daemon, for servers that write their access log to a pipe
    #[command(after_help = texts::LOG_EXAMPLES)]
    Log {
        /// The socket of an access_log = ["unix:SOCKET"]
        #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath, default_value = pipe::SOCKET_DEFAULT)]
        socket: PathBuf,
    },
    /// Allow addresses or networks, whatever the limits say, for an hour unless --for says otherwise
    #[command(after_help = texts::ALLOW_EXAMPLES)]
    Allow {
        /// Who, how long and why.
        #[command(flatten)]
        grant: GrantArgs,
    },
    /// Drop everything from addresses or networks to the protected ports, for 4 hours unless --for says otherwise
    #[command(visible_aliases = ["ban", "block"], after_help = texts::DENY_EXAMPLES)]
    Deny {
        /// Who, how long and why.
        #[command(flatten)]
        grant: GrantArgs,
        /// Close open connections of these addresses to the protected ports, on this host; at most 1000 a second
        #[arg(long)]
        kill: bool,
        /// The program that owns the denial, as in fail2ban/sshd; denials of the same address by other owners stay
        /// separate
        #[arg(long = "by", value_name = "OWNER", conflicts_with = "fleet")]
        owner: Option<String>,
    },
    /// Free addresses or networks: lift denials and bans, and reset the counters of sources over a limit; exit code 3
    /// if one stays blocked
    #[command(visible_alias = "unban", after_help = texts::UNBLOCK_EXAMPLES)]
    Unblock {
        /// Addresses or networks, or - for standard input, one a line; a bare IPv6 address means its source, the /64
        #[arg(value_name = "CIDR", required_unless_present = "all")]
        prefixes: Vec<String>,
        /// Lift all bans and all denials by commands; lists and the configuration stay
        #[arg(long, conflicts_with = "prefixes")]
        all: bool,
        /// Lift only the denials of this owner, as in fail2ban/sshd, and of owners below it; bans and counters stay,
        /// and denials by others are no failure
        #[arg(long = "by", value_name = "OWNER", conflicts_with = "fleet")]
        owner: Option<String>,
        /// On every host of the fleet.
        #[command(flatten)]
        fleet: OnFleet,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Remove an exemption that `allow` made; exit code 3 if something else still allows the address
    Unallow {
        /// Addresses or networks, or - for standard input, one a line; a bare IPv6 address means its source, the /64
        #[arg(value_name = "CIDR", required = true)]
        prefixes: Vec<String>,
        /// On every host of the fleet.
        #[command(flatten)]
        fleet: OnFleet,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Reset the counters of sources, and lift their bans
    Reset {
        /// The sources' addresses, or - for standard input, one a line
        #[arg(value_name = "IP", required = true)]
        sources: Vec<String>,
        /// On every host of the fleet.
        #[command(flatten)]
        fleet: OnFleet,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Pass everything now, and keep counting; `mode enforce` ends it
    Panic {
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Drop nothing and count what would be dropped, or follow the configuration again; without MODE, show the mode
    Mode {
        /// dry-run or enforce; to pass everything at once, `ratelimitd panic`
        #[arg(value_enum, value_name = "MODE")]
        mode: Option<ModeArg>,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Put a configuration file in force, and with --confirm roll it back unless `confirm` follows
    #[command(after_help = texts::APPLY_EXAMPLES)]
    Apply {
        /// The file; without one, the daemon's own
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Roll it back after DUR unless `ratelimitd confirm` follows: 60s, 5m; even if this command and the daemon are
        /// gone
        #[arg(long, value_name = "DUR")]
        confirm: Option<String>,
        /// Whether to insist.
        #[command(flatten)]
        insistence: Insistence,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Keep what `apply --confirm` has put in force
    Confirm {
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Roll back what `apply --confirm` has put in force, now
    Rollback {
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Check a configuration file, or flags, and say in words what they mean
    #[command(override_usage = texts::CHECK_CONFIG_USAGE, after_help = texts::CHECK_CONFIG_EXAMPLES)]
    CheckConfig {
        /// The file; without one and without flags, /etc/ratelimitd/ratelimitd.toml
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Flags in place of a file.
        #[command(flatten)]
        limiter: Box<Limiter>,
    },
    /// Show which sources in a capture or a web server's access log would have been limited, when and by how much
    #[command(after_help = texts::REPLAY_EXAMPLES)]
    Replay {
        /// What, and by which limits.
        #[command(flatten)]
        replay: ReplayArgs,
    },
    /// Check this host for problems: kernel, drivers, other programs, files, service, configuration; exit code 1 if
    /// there is one
    #[command(after_help = texts::DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Collect diagnostic data in one file, with addresses masked and without secrets
    #[command(after_help = texts::BUG_REPORT_EXAMPLES)]
    BugReport(BugReportArgs),
    /// Detach the filter from an interface, or from all: nothing is limited there any more
    Detach {
        /// The interface; without it, all of them
        #[arg(value_name = "IF")]
        interface: Option<String>,
        /// Do not fail if nothing is attached, for scripts that run more than once
        #[arg(long)]
        if_attached: bool,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Make the daemon read its configuration file again; a bad file changes nothing
    Reload {
        /// Whether to insist.
        #[command(flatten)]
        insistence: Insistence,
        /// The daemon to ask.
        #[command(flatten)]
        socket: Socket,
    },
    /// Print a completion script for a shell
    #[command(after_help = texts::COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_enum, value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands into a directory
    Man {
        /// Where to write the pages
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
    /// Print the version of the program and of the layout of its pinned maps
    Version,
}

/// Flag to carry out a likely mistake.
#[derive(Clone, Copy, Debug, Args)]
pub struct Insistence {
    /// Apply the file even if it denies or limits your own SSH session
    #[arg(long)]
    pub force: bool,
}

/// Arguments of the command `list`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// Only entries within this network, or entries that contain it
    #[arg(value_name = "CIDR")]
    pub prefix: Option<String>,
    /// Only the bans of the rule of this name
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// Only entries whose reason, list or comment contains this text
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Output for another program: denied and banned addresses without allowed ones, as plain (a list file), nft or
    /// ipset; or all entries as json
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true)]
    pub format: Option<ListFormat>,
    /// Show all entries; otherwise a terminal shows the first 50 of each list
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `allow` and `deny`.
#[derive(Clone, Debug, Args)]
pub struct GrantArgs {
    /// Addresses or networks: 192.0.2.7, 192.0.2.0/24, 2001:db8::/32; or - for standard input, one a line. A bare IPv6
    /// address means its source, the /64; /128 is one address
    #[arg(value_name = "CIDR", required = true)]
    pub prefixes: Vec<String>,
    /// For how long: 10m, 12h, 7d, or permanent. A longer existing entry is kept
    #[arg(long = "for", value_name = "DUR")]
    pub duration: Option<String>,
    /// Use this end even if an existing entry lasts longer
    #[arg(long)]
    pub replace: bool,
    /// Why, for `list` and the log
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do it even if it locks out yourself, this host, its gateway or resolver, or matches almost everyone
    #[arg(long)]
    pub force: bool,
    /// On every host of the fleet.
    #[command(flatten)]
    pub fleet: OnFleet,
    /// The daemon to ask.
    #[command(flatten)]
    pub socket: Socket,
}

/// Reach of a command within the fleet.
#[derive(Clone, Copy, Debug, Args)]
pub struct OnFleet {
    /// On every host of the fleet, not only on this one
    #[arg(long)]
    pub fleet: bool,
}

/// Modes that the command `mode` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Count what would be dropped, and drop nothing
    DryRun,
    /// Do as the configuration says
    Enforce,
}

/// Control socket of the daemon to ask.
#[derive(Clone, Debug, Args)]
pub struct Socket {
    /// Path of the daemon's control socket
    #[arg(
        long = "socket",
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        env = SOCKET_VARIABLE,
        hide_env_values = true,
        default_value = SOCKET_DEFAULT
    )]
    pub path: PathBuf,
}

/// Returns the whole command line, for completions, manual pages and tests.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Parses the command line. For `--help` and `--version`, prints and ends the process.
pub fn parse() -> anyhow::Result<Cli> {
    let definition = definition().color(colour::follow(colour::asked(std::env::args_os())));
    let read = definition.try_get_matches().and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match read {
        Ok(read) => read,
        Err(error) => {
            let arguments: Vec<_> = std::env::args_os().collect();
            return Err(refused::diagnostic(&error, &arguments).unwrap_or_else(|| error.exit()).into());
        }
    };
    if let Some((command, _)) = matches.subcommand() {
        let typed = |id: &clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let limiter = <Limiter as Args>::augment_args(clap::Command::new(""));
        if let Some(flag) = limiter.get_arguments().find(|argument| typed(argument.get_id())) {
            let flag = flag.get_long().unwrap_or_default();
            return Err(misplaced(flag, command).into());
        }
    }
    Ok(cli)
}

fn misplaced(flag: &str, command: &str) -> Diagnostic {
    let help = match flag {
        "socket" if command != "run" => format!("write it after the command: ratelimitd {command} --socket PATH"),
        _ if matches!(command, "check-config" | "replay" | "suggest") => {
            format!("write it after the command: ratelimitd {command} --{flag} …")
        }
        _ if command == "run" => {
            "`run` takes its limits from its file; to limit by flags, leave the command out".to_owned()
        }
        _ => format!("leave out one of the two; `ratelimitd {command} --help` has its options"),
    };
    let problem = format!("--{flag} does not go with the command {command}");
    Diagnostic { problem, place: Place::CommandLine, help: vec![help] }
}
