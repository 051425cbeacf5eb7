//! Messages for failures, and their exit codes. The only module that prints errors.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Style};

use ratelimit_control::client::ClientError;
use ratelimit_control::proto::ProblemKind;
use ratelimit_control::socket::SocketError;
use ratelimit_crowdsec::{Error as CrowdsecError, Trouble};
use ratelimit_daemon::DaemonError;
use ratelimit_datapath::DatapathError;
use ratelimit_policy::text::syntax::printable;
use terminal_size::{Width, terminal_size_of};

pub use ratelimit_policy::diagnostic::{Diagnostic, Diagnostics, Excerpt, Place};

/// Exit code of the program. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command is done.
    Done = 0,
    /// A failure that the user did not cause.
    Internal = 1,
    /// A bad flag, a bad limit, or a missing interface.
    Usage = 2,
    /// `check`: the source is blocked. `unblock`, `unallow`: something else still blocks or allows it. `import`, and a
    /// command on lines of standard input: some entries are refused, the others hold.
    Blocked = 3,
    /// The kernel or driver lacks support, or no daemon answers (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// Something else is in the way, which may go (`EX_TEMPFAIL`).
    Occupied = 75,
    /// Missing privileges (`EX_NOPERM`).
    NotPrivileged = 77,
    /// A bad configuration file (`EX_CONFIG`).
    Config = 78,
}

impl Exit {
    /// All exit codes, in ascending order.
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Internal,
        Self::Usage,
        Self::Blocked,
        Self::Unavailable,
        Self::Occupied,
        Self::NotPrivileged,
        Self::Config,
    ];

    /// Returns the meaning of the code, in the words of help and documents.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Internal => "internal error; `doctor`: a problem",
            Self::Usage => {
                "usage: a bad flag, a bad limit, no such interface, a file that cannot be replayed, a change that \
                 needs `--force`"
            }
            Self::Blocked => {
                "`check`: a rule drops packets of it; `unblock`: something else still blocks it; `unallow`: something \
                 else allows it; `import`, and a command on the lines of standard input: some entries are refused, the \
                 others hold"
            }
            Self::Unavailable => {
                "the kernel or driver lacks support, or no daemon answers; `crowdsec`: no local API answers"
            }
            Self::Occupied => {
                "the interface has another XDP program, the socket another daemon, or a trial has to be confirmed first"
            }
            Self::NotPrivileged => "not privileged; `crowdsec`: the local API refuses the key",
            Self::Config => "bad configuration file",
        }
    }

    /// Returns the more important code of two, for a command that did several things.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        // Failures of the daemon or host outrank mistakes of the user, which outrank findings.
        let rank = |exit: Self| match exit {
            Self::Done => 0,
            Self::Blocked => 1,
            Self::Usage => 2,
            Self::Config => 3,
            Self::Occupied => 4,
            Self::NotPrivileged => 5,
            Self::Unavailable => 6,
            Self::Internal => 7,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Diagnostic> for Exit {
    fn from(diagnostic: &Diagnostic) -> Self {
        match diagnostic.place {
            Place::CommandLine | Place::Flag { .. } => Self::Usage,
            Place::File { .. } => Self::Config,
        }
    }
}

impl From<&DatapathError> for Exit {
    fn from(error: &DatapathError) -> Self {
        match error {
            DatapathError::NoSuchInterface { .. } => Self::Usage,
            DatapathError::SharedPath { .. } => Self::Config,
            DatapathError::Occupied { .. } | DatapathError::InUse { .. } => Self::Occupied,
            DatapathError::Unsupported { .. } | DatapathError::Pins { .. } => Self::Unavailable,
            DatapathError::NotPrivileged { .. } | DatapathError::Forbidden { .. } => Self::NotPrivileged,
            DatapathError::Other(_) => Self::Internal,
        }
    }
}

impl From<&DaemonError> for Exit {
    fn from(error: &DaemonError) -> Self {
        match error {
            DaemonError::Datapath(error) => error.into(),
            _ if error.is_for_want_of_privilege() => Self::NotPrivileged,
            DaemonError::Socket(SocketError::Busy { .. }) => Self::Occupied,
            DaemonError::Socket(SocketError::NotASocket { .. } | SocketError::Io { .. })
            | DaemonError::Listen { .. } => Self::Usage,
            DaemonError::Refused { .. } => Self::Config,
            DaemonError::WebLink { .. } => Self::Unavailable,
            DaemonError::System { .. } | DaemonError::Panicked => Self::Internal,
        }
    }
}

impl From<&ClientError> for Exit {
    /// Returns the exit code of a command without a successful answer.
    fn from(error: &ClientError) -> Self {
        match error {
            ClientError::NoDaemon { .. } | ClientError::TimedOut { .. } | ClientError::Unanswered { .. } => {
                Self::Unavailable
            }
            ClientError::NotPermitted { .. } => Self::NotPrivileged,
            ClientError::Unintelligible { .. } => Self::Internal,
            ClientError::Refused(problem) => match problem.kind {
                ProblemKind::BadRequest | ProblemKind::NotFound => Self::Usage,
                ProblemKind::NotPermitted => Self::NotPrivileged,
                ProblemKind::Conflict => Self::Occupied,
                ProblemKind::Config => Self::Config,
                ProblemKind::Datapath | ProblemKind::Stopping => Self::Unavailable,
                ProblemKind::Internal => Self::Internal,
            },
        }
    }
}

impl From<&anyhow::Error> for Exit {
    /// Returns the code of the outermost error in the chain that has one.
    fn from(error: &anyhow::Error) -> Self {
        // anyhow finds a typed context only through itself, and a typed cause only through the chain.
        let context = [
            error.downcast_ref().map(|error: &Diagnostic| error.into()),
            error.downcast_ref().map(|error: &Diagnostics| error.first().into()),
            error.downcast_ref().map(|error: &DatapathError| error.into()),
        ];
        let outermost = context.into_iter().flatten().next();
        outermost.or_else(|| error.chain().find_map(exit_of_cause)).unwrap_or(Self::Internal)
    }
}

impl From<&CrowdsecError> for Exit {
    fn from(error: &CrowdsecError) -> Self {
        match error.trouble() {
            Trouble::Usage => Self::Usage,
            Trouble::Config => Self::Config,
            Trouble::NotPermitted => Self::NotPrivileged,
            Trouble::Unavailable => Self::Unavailable,
            Trouble::Internal => Self::Internal,
        }
    }
}

fn exit_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    let diagnostic = cause.downcast_ref::<Diagnostic>().map(Exit::from);
    let diagnostics = || cause.downcast_ref::<Diagnostics>().map(|of| Exit::from(of.first()));
    let datapath = || cause.downcast_ref::<DatapathError>().map(Exit::from);
    let daemon = || cause.downcast_ref::<DaemonError>().map(Exit::from);
    let client = || cause.downcast_ref::<ClientError>().map(Exit::from);
    let crowdsec = || cause.downcast_ref::<CrowdsecError>().map(Exit::from);
    diagnostic.or_else(diagnostics).or_else(datapath).or_else(daemon).or_else(client).or_else(crowdsec)
}

/// Environment variable with the path of the control socket, which a flag overrides.
pub const SOCKET_VARIABLE: &str = "RATELIMITD_SOCKET";

/// Maximum number of columns of a line on a terminal.
const WIDTH: usize = 100;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();
const FAINT: Style = AnsiColor::Blue.on_default().bold();

/// Prints an error with its whole chain of causes on standard error. Returns the exit code.
pub fn report(error: &anyhow::Error) -> Exit {
    let exit = Exit::from(error);
    let mut text = render(error);
    // Root would have the same key, so `sudo` does not help.
    let is_of_crowdsec = error.chain().any(|cause| cause.is::<CrowdsecError>());
    if exit == Exit::NotPrivileged && !is_of_crowdsec && !nix::unistd::geteuid().is_root() {
        let socket = std::env::var(SOCKET_VARIABLE).ok();
        push_help(&mut text, &format!("type: {}", with_sudo(std::env::args().skip(1), socket.as_deref())));
    }
    if let Some((Width(width), _)) = terminal_size_of(std::io::stderr()) {
        text = text.lines().map(|line| folded(line, usize::from(width).min(WIDTH))).collect();
    }
    // If standard error is gone, no one can read the message.
    let _gone = anstream::stderr().write_all(text.as_bytes());
    exit
}

/// Folds a line with colour codes to at most `width` columns, aligned below its first word. Quotations and lines with a
/// command stay whole, so that they can be copied.
fn folded(line: &str, width: usize) -> String {
    let plain = anstream::adapter::strip_str(line).to_string();
    let starts = ["error: ", "warning: ", "  because: ", "  help: "];
    let start = starts.iter().find(|start| plain.starts_with(**start)).filter(|_| !plain.contains("ratelimitd"));
    let Some((start, said)) = start.and_then(|start| Some((start, plain.strip_prefix(start)?))) else {
        return format!("{line}\n");
    };
    let styled = line.strip_suffix(said).unwrap_or(start);
    let indent = " ".repeat(start.len());
    let lines = ratelimit_view::wrap_at(&format!("{indent}{said}"), width, start.len());
    let lines: Vec<&str> = lines.iter().map(|line| line.strip_prefix(&*indent).unwrap_or(line)).collect();
    format!("{styled}{}\n", lines.join(&format!("\n{indent}")))
}

/// Returns the same command for root, with the socket's variable, which root does not inherit.
fn with_sudo(arguments: impl IntoIterator<Item = String>, socket: Option<&str>) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=@%+".contains(c);
    let quoted = |word: String| {
        if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let socket = socket.map(|path| format!("{SOCKET_VARIABLE}={}", quoted(path.to_owned())));
    let words = ["sudo".to_owned()].into_iter().chain(socket).chain(["ratelimitd".to_owned()]);
    words.chain(arguments.into_iter().map(quoted)).collect::<Vec<_>>().join(" ")
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    let line = format!("{WARNING}warning{WARNING:#}: {}\n", printable(text));
    let line = match terminal_size_of(std::io::stderr()) {
        Some((Width(width), _)) => folded(line.trim_end(), usize::from(width).min(WIDTH)),
        None => line,
    };
    let _gone = anstream::stderr().write_all(line.as_bytes());
}

/// Returns an error as [`report`] prints it, with colour codes.
pub fn render(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for (position, cause) in error.chain().enumerate() {
        if position > 0
            && error.chain().nth(position - 1).is_some_and(|outer| outer.to_string().contains(&cause.to_string()))
        {
            continue;
        }
        let title = if position == 0 { format!("{ERROR}error{ERROR:#}: ") } else { "  because: ".to_owned() };
        if let Some(diagnostic) = cause.downcast_ref::<Diagnostic>() {
            push_diagnostic(&mut out, &title, diagnostic);
        } else if let Some(all) = cause.downcast_ref::<Diagnostics>() {
            all.iter().for_each(|diagnostic| push_diagnostic(&mut out, &title, diagnostic));
            if all.more() > 0 {
                push_line(&mut out, &title, &format!("there are {} more", all.more()));
            }
        } else {
            // Quoted text may contain line ends, and must not look like another error.
            let text = cause.to_string();
            for (at, line) in text.lines().enumerate() {
                push_line(&mut out, if at == 0 { &title } else { "  " }, &printable(line));
            }
        }
    }
    for help in error.chain().flat_map(help_of_cause) {
        push_help(&mut out, &help);
    }
    out
}

/// Returns what to do about a cause, if it has help besides its message.
fn help_of_cause(cause: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let client = cause.downcast_ref::<ClientError>().map(ClientError::help);
    let daemon = || cause.downcast_ref::<DaemonError>().map(DaemonError::help);
    let crowdsec = || cause.downcast_ref::<CrowdsecError>().map(CrowdsecError::help);
    client.or_else(daemon).or_else(crowdsec).unwrap_or_default()
}

fn push_diagnostic(out: &mut String, title: &str, diagnostic: &Diagnostic) {
    push_line(out, title, &printable(&diagnostic.problem));
    match &diagnostic.place {
        Place::CommandLine => {}
        Place::Flag { flag, text, span } => {
            let quote = if text.is_empty() || text.contains(char::is_whitespace) { "\"" } else { "" };
            let before = format!("  {flag} {quote}");
            push_line(out, &before, &format!("{}{quote}", printable(text)));
            push_line(out, &" ".repeat(before.chars().count()), &mark(text, span));
        }
        Place::File { path, excerpt: None } => {
            push_line(out, &format!("  {FAINT}-->{FAINT:#} "), &printable(&path.display().to_string()));
        }
        Place::File { path, excerpt: Some(excerpt) } => {
            let margin = " ".repeat(excerpt.line.to_string().len());
            let place = format!("{}:{}:{}", path.display(), excerpt.line, excerpt.column);
            push_line(out, &format!("{margin}{FAINT}-->{FAINT:#} "), &printable(&place));
            if let Some(text) = &excerpt.text {
                push_line(out, &format!("{margin} {FAINT}|{FAINT:#}"), "");
                push_line(out, &format!("{FAINT}{} |{FAINT:#} ", excerpt.line), &printable(text));
                push_line(out, &format!("{margin} {FAINT}|{FAINT:#} "), &mark(text, &excerpt.span));
            }
        }
    }
    for help in &diagnostic.help {
        push_help(out, help);
    }
}

fn push_help(out: &mut String, help: &str) {
    push_line(out, &format!("  {HELP}help{HELP:#}: "), &printable(help));
}

fn push_line(out: &mut String, start: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(out, "{start}{rest}");
}

/// Returns carets under `span` of `text`, at least one.
fn mark(text: &str, span: &Range<usize>) -> String {
    let characters = |part: Option<&str>| part.map_or(0, |part| part.chars().count());
    let before = characters(text.get(..span.start));
    let width = characters(text.get(span.clone())).max(1);
    format!("{}{ERROR}{}{ERROR:#}", " ".repeat(before), "^".repeat(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ratelimit_control::client::Wanted;
    use ratelimit_datapath::Orphans;

    fn plain(error: &anyhow::Error) -> String {
        anstream::adapter::strip_str(&render(error)).to_string()
    }

    #[test]
    fn a_flag_is_shown_with_a_mark_under_the_character() {
        let place = Place::Flag { flag: "--limit", text: "1000/5x".into(), span: 6..7 };
        let error = Diagnostic { problem: "no".into(), place, help: vec!["do this".into()] };
        assert_eq!(plain(&error.into()), "error: no\n  --limit 1000/5x\n                ^\n  help: do this\n");
    }

    #[test]
    fn a_long_line_is_folded_for_a_terminal_unless_it_is_to_be_copied() {
        let line = format!("{ERROR}error{ERROR:#}: no daemon answers at the socket");
        assert_eq!(folded(&line, 26), format!("{ERROR}error{ERROR:#}: no daemon answers\n       at the socket\n"));
        assert_eq!(folded(&line, 80), format!("{line}\n"));
        let command = "  help: start it by sudo systemctl start ratelimitd";
        assert_eq!(folded(command, 26), format!("{command}\n"));
        assert_eq!(folded("3 | a = \"a long line of a file\"", 20), "3 | a = \"a long line of a file\"\n");
    }

    #[test]
    fn the_command_to_type_as_root_is_quoted_for_a_shell() {
        let typed = ["deny", "192.0.2.7", "--reason", "it's a scraper", ""].map(str::to_owned);
        assert_eq!(with_sudo(typed, None), r"sudo ratelimitd deny 192.0.2.7 --reason 'it'\''s a scraper' ''");
        let socket = Some("/run/my ratelimitd/control.sock");
        assert_eq!(
            with_sudo(["stats".to_owned()], socket),
            "sudo RATELIMITD_SOCKET='/run/my ratelimitd/control.sock' ratelimitd stats"
        );
    }

    #[test]
    fn a_user_without_permission_is_told_who_has_it() {
        let path = std::path::PathBuf::from("/run/ratelimitd/control.sock");
        let help = |wanted| ClientError::NotPermitted { path: path.clone(), wanted }.help().join("; ");
        assert!(help(Wanted::Read).contains("members of the group ratelimitd may read"), "{}", help(Wanted::Read));
        assert_eq!(help(Wanted::Change), "only root and the user that the daemon runs as may change anything");
    }

    #[test]
    fn a_line_is_shown_with_a_mark_under_the_characters() {
        let contents = "a = 1\nb = \"é\"\tx\n";
        let excerpt = Excerpt::of(contents, 10..14);
        assert_eq!((excerpt.line, excerpt.column), (2, 5));
        let place = Place::File { path: "r.toml".into(), excerpt: Some(Box::new(excerpt)) };
        let error = Diagnostic { problem: "no".into(), place, help: vec![] };
        let expected = "error: no\n --> r.toml:2:5\n  |\n2 | b = \"é\" x\n  |     ^^^\n";
        assert_eq!(plain(&error.into()), expected);
    }

    #[test]
    fn every_cause_is_named_once() {
        let error = anyhow::Error::from(std::io::Error::other("permission denied")).context("open map SOURCES");
        assert_eq!(plain(&error), "error: open map SOURCES\n  because: permission denied\n");
        let transparent = anyhow::Error::from(DatapathError::Other(anyhow::anyhow!("odd")));
        assert_eq!(plain(&transparent), "error: odd\n");
    }

    #[test]
    fn terminals_are_not_sent_what_was_typed() {
        let error = anyhow::anyhow!("interface \u{1b}[31mred\u{7}");
        assert!(!render(&error).contains("\u{1b}[31mred"));
        assert!(!render(&error).contains('\u{7}'));
        let place = Place::File { path: "a\u{1b}[2J\u{202e}.toml".into(), excerpt: None };
        let turned = render(&Diagnostic { problem: "\u{202e}no".into(), place, help: vec![] }.into());
        assert!(!turned.contains('\u{202e}') && !turned.contains("\u{1b}[2J"), "{turned:?}");
        let forged = anyhow::anyhow!("no daemon answers at a\nerror: all is lost");
        assert_eq!(plain(&forged), "error: no daemon answers at a\n  error: all is lost\n");
    }

    #[test]
    fn each_failure_has_its_exit_code() {
        let interface = || "eth0".to_owned();
        let rows: [(DatapathError, u8); 9] = [
            (DatapathError::SharedPath { what: interface(), instead: String::new() }, 78),
            (DatapathError::NoSuchInterface { name: interface(), present: String::new() }, 2),
            (DatapathError::Occupied { interface: interface(), owner: String::new() }, 75),
            (DatapathError::Unsupported { what: interface(), why: String::new() }, 69),
            (DatapathError::NotPrivileged { what: interface() }, 77),
            (DatapathError::Forbidden { what: interface() }, 77),
            (DatapathError::InUse { path: String::new(), remedy: "" }, 75),
            (DatapathError::Pins { path: String::new(), why: String::new() }, 69),
            (DatapathError::Other(anyhow::anyhow!("x")), 1),
        ];
        for (error, code) in rows {
            let wrapped = anyhow::Error::from(error).context("while starting");
            assert_eq!(Exit::from(&wrapped) as u8, code, "{wrapped:#}");
        }
        let flag = Diagnostic { problem: String::new(), place: Place::CommandLine, help: vec![] };
        assert_eq!(Exit::from(&anyhow::Error::from(flag)), Exit::Usage);
        let file = Place::File { path: "f".into(), excerpt: None };
        let file = Diagnostic { problem: String::new(), place: file, help: vec![] };
        assert_eq!(Exit::from(&anyhow::Error::from(file).context("reload")), Exit::Config);
        let silent =
            ClientError::NoDaemon { path: "s".into(), why: std::io::Error::other("x"), orphans: Orphans::Nothing };
        assert_eq!(Exit::from(&anyhow::Error::from(silent)), Exit::Unavailable);
        let daemon = DaemonError::from(DatapathError::NotPrivileged { what: interface() });
        assert_eq!(Exit::from(&anyhow::Error::from(daemon)), Exit::NotPrivileged);
        let as_context = anyhow::anyhow!("x").context(DatapathError::NotPrivileged { what: interface() });
        assert_eq!(Exit::from(&as_context), Exit::NotPrivileged);
        assert_eq!(Exit::from(&anyhow::anyhow!("x")), Exit::Internal);
    }

    proptest! {
        #[test]
        fn no_span_panics(contents in "(\\PC|\n|\r){0,30}", start in 0_usize..60, length in 0_usize..60) {
            let excerpt = Excerpt::of(&contents, start..start + length);
            let text = excerpt.text.clone().unwrap_or_default();
            prop_assert!(text.get(excerpt.span.clone()).is_some() || excerpt.span.is_empty());
            let place = Place::File { path: "f".into(), excerpt: Some(Box::new(excerpt)) };
            let _text = render(&Diagnostic { problem: String::new(), place, help: vec![] }.into());
        }
    }
}
