//! Access logs of any server, read line by line into a stream of requests with source and time. Each line's format and
//! envelope is recognized on its own, so a file may mix formats.

use std::io::{self, Read as IoRead};
use std::net::IpAddr;

use ratelimit_common::time::Nanos;

use super::Read;
use super::input::Begun;
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::desired::Condition;

mod asked;
mod common;
mod envelope;
mod export;
mod fields;
mod json;
mod lines;
mod looks;
mod time;

pub use self::asked::Asked;
pub use self::json::mended;
pub(super) use self::looks::{FORMATS, Looks, looks, packed};
pub use self::time::Clock;

use self::common::Told;
use self::fields::Columns;
use self::json::Found;
use self::lines::Lines;
use self::time::{Stamp, Times};

/// Maximum depth of nested envelopes: a container's line in a journal's in a collector's.
const ENVELOPES_MAX: usize = 3;

/// Maximum number of bytes shown of a line that cannot be read.
const SHOWN_MAX: usize = 80;

/// Request in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address that sent the request.
    pub source: IpAddr,
    /// Time by the server's clock.
    pub at: Nanos,
}

/// Format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Common or combined format.
    Common,
    /// JSON, one object per line.
    Json,
    /// W3C extended format, of IIS and CloudFront.
    W3c,
    /// HAProxy's HTTP log.
    Haproxy,
    /// Log of an AWS load balancer.
    LoadBalancer,
    /// Squid's native format.
    Squid,
    /// Text format of Envoy and Istio.
    Envoy,
}

/// Returns true if a line is the HTTP/2 preface, which lighttpd logs in addition to the connection's requests.
fn is_preface(text: &[u8]) -> bool {
    const PREFACE: &[u8] = b"] \"PRI * HTTP/2.0\" ";
    let request = text.windows(3).position(|part| part == b"] \"");
    request.is_some_and(|at| text[at..].starts_with(PREFACE))
}

impl Format {
    /// Returns the name of the format for users.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Common => "common or combined format",
            Self::Json => "JSON lines",
            Self::W3c => "W3C extended format",
            Self::Haproxy => "HAProxy's HTTP log",
            Self::LoadBalancer => "AWS load balancer log",
            Self::Squid => "Squid's own format",
            Self::Envoy => "Envoy's text format",
        }
    }
}

/// Parser of lines. Formats and envelopes may vary from one line to the next.
#[derive(Debug)]
pub struct Parser {
    times: Times,
    last: common::Last,
    columns: Option<Columns>,
    facts: Facts,
    /// Formats seen so far, each with whether it was in an envelope.
    formats: Vec<(Format, bool)>,
}

impl Parser {
    /// Creates a parser that has read nothing yet.
    pub fn new(clock: Clock) -> Self {
        let (times, last) = (Times::new(clock), common::Last::default());
        Self { times, last, columns: None, facts: Facts::default(), formats: Vec::new() }
    }

    /// Reads one line. Returns none for a comment, and a clause on what is wrong if the line cannot be read.
    pub fn line(&mut self, text: &[u8]) -> Result<Option<Request>, String> {
        if let Some(names) = text.strip_prefix(b"#Fields:") {
            self.columns = Some(Columns::of(names)?);
            return Ok(None);
        }
        // Directives of W3C extended logs, and the separators that `journalctl` prints between boots.
        if text.starts_with(b"#") || text.starts_with(b"-- ") || is_preface(text) {
            return Ok(None);
        }
        self.message(text, None).map(Some)
    }

    /// Reads one line of a server to which clients connect directly. Unlike [`Self::line`], it takes no source from a
    /// header.
    ///
    /// # Errors
    /// Fails where [`Self::line`] fails, and on a line whose only address is from `X-Forwarded-For`.
    pub fn direct(&mut self, text: &[u8]) -> Result<Option<Request>, String> {
        let forwarded = self.facts.forwarded;
        let request = self.line(text)?;
        match self.facts.forwarded == forwarded {
            true => Ok(request),
            false => Err("its only address is one of X-Forwarded-For".to_owned()),
        }
    }

    /// Reads a server's line that was recorded at `stamp`.
    fn message(&mut self, text: &[u8], stamp: Option<Stamp>) -> Result<Request, String> {
        let (mut text, mut stamp) = (text, stamp);
        let mut owned: Vec<u8>;
        let mut first_wrong = None;
        for depth in 0..=ENVELOPES_MAX {
            let is_wrapped = depth > 0;
            if text.starts_with(b"{") {
                let found = Found::of(text)?;
                stamp = found.stamp().or(stamp);
                if let Some((source, told)) = of_object(&found) {
                    let stamp = stamp.ok_or("no field has a time that can be read")?;
                    return self.request(Format::Json, is_wrapped, source, told, stamp);
                }
                let wrong = "no field has a client's address";
                owned = found.message().ok_or(wrong)?.trim_ascii().to_vec();
                text = &owned;
                // If the message is no server's line, the error is about the object.
                first_wrong = Some(wrong.to_owned());
                continue;
            }
            match self.plain(text, is_wrapped) {
                Ok(request) => return Ok(request),
                Err(wrong) => first_wrong = first_wrong.or(Some(wrong)),
            }
            let Some(envelope) = envelope::take_off(text) else { break };
            // Errors are about the innermost line, the server's own.
            (text, stamp, first_wrong) = (envelope.message.trim_ascii(), envelope.stamp.or(stamp), None);
        }
        Err(first_wrong.unwrap_or_else(|| "it is an envelope within envelopes".to_owned()))
    }

    /// Reads a line that is in no envelope and no object.
    fn plain(&mut self, text: &[u8], is_wrapped: bool) -> Result<Request, String> {
        let of_columns = self.columns.map(|columns| columns.line(text));
        if let Some(Ok((source, stamp))) = of_columns {
            return self.request(Format::W3c, is_wrapped, source, Told::Alone, stamp);
        }
        let wrong = match common::line(text, &mut self.last) {
            Ok(of) => return self.request(Format::Common, is_wrapped, of.source, of.told, of.stamp),
            Err(wrong) => wrong,
        };
        if let Some(of) = fields::haproxy(text) {
            let (source, stamp) = of?;
            return self.request(Format::Haproxy, is_wrapped, source, Told::Alone, stamp);
        }
        if let Some(of) = fields::load_balancer(text) {
            let (source, stamp) = of?;
            return self.request(Format::LoadBalancer, is_wrapped, source, Told::Alone, stamp);
        }
        if let Some((source, stamp)) = fields::squid(text) {
            return self.request(Format::Squid, is_wrapped, source, Told::Alone, stamp);
        }
        if let Some(of) = fields::envoy(text) {
            let (source, told, stamp) = of?;
            return self.request(Format::Envoy, is_wrapped, source, told, stamp);
        }
        Err(of_columns.and_then(Result::err).unwrap_or(wrong))
    }

    fn request(
        &mut self,
        format: Format,
        is_wrapped: bool,
        source: IpAddr,
        told: Told,
        stamp: Stamp,
    ) -> Result<Request, String> {
        let at = self.times.at(stamp)?;
        if !self.formats.contains(&(format, is_wrapped)) {
            self.formats.push((format, is_wrapped));
        }
        match told {
            Told::Alone => {}
            Told::Forwards => self.facts.forwards += 1,
            Told::Forwarded => self.facts.forwarded += 1,
            Told::Second => self.facts.second += 1,
        }
        self.facts.local = self.times.local;
        Ok(Request { source, at })
    }
}

/// Counts of lines by how their source and time were determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    forwards: u64,
    forwarded: u64,
    second: u64,
    local: u64,
}

impl Facts {
    /// Returns the sums over two files.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            forwards: self.forwards.saturating_add(other.forwards),
            forwarded: self.forwarded.saturating_add(other.forwarded),
            second: self.second.saturating_add(other.second),
            local: self.local.saturating_add(other.local),
        }
    }

    /// Returns remarks for the user, one clause each.
    pub(super) fn remarks(self, clock: &Clock) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.forwards > 0 {
            remarks.push(format!(
                "{} X-Forwarded-For and the address that connected: the source is the latter, as the limiter sees it",
                of_lines(self.forwards, "have", "has")
            ));
        }
        if self.forwarded > 0 {
            remarks.push(format!(
                "{} only X-Forwarded-For: the source is the last public address in it; the limiter sees the address \
                 that connects, which may be a proxy",
                of_lines(self.forwarded, "have", "has")
            ));
        }
        if self.second > 0 {
            remarks.push(format!(
                "{} with two addresses: the source is the second, as behind a virtual host or X-Forwarded-For",
                of_lines(self.second, "begin", "begins")
            ));
        }
        if self.local > 0 {
            remarks.push(format!(
                "{} a time without an offset: it is taken as local time of this machine ({}); set TZ if the server has \
                 another",
                of_lines(self.local, "have", "has"),
                clock.name()
            ));
        }
        remarks
    }
}

/// Formats a count of lines with its verb: `1 line has`, `3 lines have`.
fn of_lines(count: u64, many: &str, one: &str) -> String {
    if count == 1 { format!("1 line {one}") } else { format!("{count} lines {many}") }
}

fn of_object(found: &Found) -> Option<(IpAddr, Told)> {
    match (found.source(), found.forwarded()) {
        (Some(source), Some(_)) => Some((source, Told::Forwards)),
        (Some(source), None) => Some((source, Told::Alone)),
        // The server's own line may name the address that connected.
        (None, Some(_)) if found.message().is_some() => None,
        (None, forwarded) => forwarded.map(|source| (source, Told::Forwarded)),
    }
}

/// Request with one bit for each condition that it meets.
type Asking = (Request, u8);

/// Log that is being read, with its next request.
pub(super) struct LogStream {
    lines: Lines<Box<dyn IoRead + Send>>,
    is_export: bool,
    parser: Parser,
    read: Read,
    number: u64,
    first_wrong: Option<String>,
    conditions: Vec<Condition>,
    /// Number of lines with no known status, path or method, counted only if there are conditions.
    unknown: u64,
    next: Option<Asking>,
}

impl LogStream {
    /// Creates a stream over a file that begins with `begun`; `input` still contains `start`.
    pub(super) fn new(begun: &Begun, input: Box<dyn IoRead + Send>, clock: Clock, conditions: Vec<Condition>) -> Self {
        let mut lines = Lines::new(input);
        lines.nuls = begun.nuls;
        Self {
            lines,
            is_export: export::is_export(&begun.start),
            parser: Parser::new(clock),
            read: Read::default(),
            number: begun.blank_lines,
            first_wrong: None,
            conditions,
            unknown: 0,
            next: None,
        }
    }

    /// Returns the next request, if [`Self::advance`] has found one, with one bit for each condition that it meets.
    pub(super) const fn next(&self) -> Option<Asking> {
        self.next
    }

    /// Reads on to the next request and skips everything else.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        self.next = None;
        while self.next.is_none() {
            let Some(request) = self.item()? else { return Ok(()) };
            self.read.items += u64::from(!matches!(request, Ok(None)));
            match request {
                Ok(request) => self.next = request,
                Err(wrong) => {
                    self.read.unreadable += 1;
                    self.first_wrong.get_or_insert(wrong);
                }
            }
        }
        Ok(())
    }

    /// Returns one line, or one entry of a journal; none at the end.
    fn item(&mut self) -> io::Result<Option<Result<Option<Asking>, String>>> {
        let is_first = self.first_wrong.is_none();
        let told = |what: &str, number: u64, text: &[u8], wrong: String| match is_first {
            true => format!("{what} {number}: {wrong}: `{}`", shown(text)),
            false => String::new(),
        };
        if self.is_export {
            let Some(entry) = export::entry(&mut self.lines)? else { return Ok(None) };
            self.number += 1;
            let request = self.parser.message(entry.message.trim_ascii(), entry.stamp);
            let request =
                request.map(|request| Some((request, met(&self.conditions, &entry.message, &mut self.unknown))));
            return Ok(Some(request.map_err(|wrong| told("entry", self.number, &entry.message, wrong))));
        }
        loop {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            self.number += 1;
            let text = line.trim_ascii();
            let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
            if !text.is_empty() {
                let request = self.parser.line(text);
                let request = request.map(|request| Some((request?, met(&self.conditions, text, &mut self.unknown))));
                return Ok(Some(request.map_err(|wrong| told("line", self.number, text, wrong))));
            }
        }
    }

    /// Returns what was read, and the error of the first bad line if no line could be read.
    pub(super) fn finish(self) -> (Read, Option<String>) {
        let Self { lines, parser, mut read, first_wrong, unknown, .. } = self;
        read.formats = parser.formats.iter().map(|(format, is_wrapped)| label(*format, *is_wrapped)).collect();
        if lines.nuls > 0 {
            read.warnings.push(format!(
                "{} NUL bytes before its lines are left out: logrotate's copytruncate leaves them; `create` does not",
                lines.nuls
            ));
        }
        if let Some(first) = first_wrong.as_ref().filter(|_| read.unreadable < read.items) {
            let count =
                if read.unreadable == 1 { "1 line cannot be read and is" } else { "lines cannot be read and are" };
            let count = if read.unreadable == 1 { count.to_owned() } else { format!("{} {count}", read.unreadable) };
            read.warnings.push(format!("{count} left out; the first is {first}"));
        }
        if unknown > 0 {
            let problem = "no status, path or method that is read, so no condition is met";
            read.warnings.push(format!("{} {problem}", of_lines(unknown, "have", "has")));
        }
        read.facts = parser.facts;
        let is_all_wrong = read.unreadable == read.items;
        (read, first_wrong.filter(|_| is_all_wrong))
    }
}

/// Returns one bit for each condition that the line's request meets. Increments `unknown` for a line without known
/// fields.
fn met(conditions: &[Condition], line: &[u8], unknown: &mut u64) -> u8 {
    if conditions.is_empty() {
        return 0;
    }
    let asked = Asked::of(line);
    *unknown += u64::from(asked == Asked::default());
    let met = conditions.iter().map(|condition| asked.meets(condition));
    met.rev().fold(0, |bits, is_met| bits << 1 | u8::from(is_met))
}

fn label(format: Format, is_wrapped: bool) -> String {
    format!("{}{}", format.label(), if is_wrapped { " in lines of syslog, a journal or a container" } else { "" })
}

/// Returns the beginning of a line for display.
fn shown(text: &[u8]) -> String {
    let shown = printable(&String::from_utf8_lossy(&text[..text.len().min(SHOWN_MAX)]));
    if text.len() > SHOWN_MAX { format!("{shown}…") } else { shown }
}
