//! Input files of a [`Replay`]: opening, decompressing, recognizing their format, and merging by time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fs::File;
use std::io::{self, Cursor, Read as _};
use std::path::{Path, PathBuf};

use ratelimit_common::time::Nanos;

use super::capture::{self, CaptureError, CaptureStream};
use super::gzip::{self, Condition, Gunzip};
use super::log::{Clock, FORMATS, LogStream, Looks, looks, packed};
use super::{FileRead, Kind, Present, Read, Replay, Report, Suggested};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{Limit, Policy};

/// Maximum number of bytes that are inspected to recognize a file's format.
const START_BYTES: u64 = 1 << 16;

/// Reason why nothing was replayed.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file cannot be opened.
    #[error("open {name}")]
    Open {
        /// Name of the file.
        name: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Reading fails after the file was opened.
    #[error("read {name}")]
    Read {
        /// Name of the file.
        name: String,
        /// Cause of the failure, if it is known.
        source: Option<io::Error>,
    },
    /// The file contains nothing that can be replayed.
    #[error("{name}: {problem}")]
    Unusable {
        /// Name of the file.
        name: String,
        /// Problem with the file, as a clause.
        problem: String,
        /// Remedy to suggest to the user.
        help: String,
    },
}

/// Origin of the ports to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Default ports of the policy.
    Default,
    /// Ports named by the user.
    Said,
}

/// Request to replay files.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Policy with the limits and the prefix lengths of a client.
    pub policy: &'a Policy,
    /// Origin of the ports.
    pub ports: Ports,
    /// Clock that completes times without a zone or year.
    pub clock: Clock,
    /// List files for which refusals are reported.
    pub lists: &'a [ListFile],
}

/// Replays the files at these paths as one; `-` is standard input. Fails if a file cannot be read or replayed.
pub fn read(paths: &[PathBuf], asked: &Asked<'_>) -> Result<Report, InputError> {
    let (replay, read, files) = play(opened(paths)?, asked, |kind| Replay::new(asked.policy, kind))?;
    Ok(replay.finish(read, files, asked.lists))
}

/// Proposes limits from the files at these paths; `-` is standard input.
pub fn suggest(paths: &[PathBuf], asked: &Asked<'_>, present: Present) -> Result<Suggested, InputError> {
    let begin = |kind| Replay::observing(asked.policy, kind, present);
    let (replay, read, files) = play(opened(paths)?, asked, begin)?;
    replay.suggest(read, files, asked.lists).ok_or_else(|| InputError::Read { name: names(&[]), source: None })
}

/// Input with the name that errors show.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) input: Input,
}

/// Source of the bytes of a file.
type Input = Box<dyn io::Read + Send>;

fn opened(paths: &[PathBuf]) -> Result<Vec<Named>, InputError> {
    let is_stdin = |path: &&PathBuf| path.as_os_str() == "-";
    if paths.iter().filter(is_stdin).count() > 1 {
        let problem = "it can be read only once".to_owned();
        return Err(InputError::Unusable { name: "-".to_owned(), problem, help: "name - once".to_owned() });
    }
    if let Some(twice) = named_twice(paths) {
        let problem = "it is named twice, and its requests would count twice".to_owned();
        return Err(InputError::Unusable {
            name: twice.display().to_string(),
            problem,
            help: "name it once".to_owned(),
        });
    }
    paths.iter().map(|path| opened_one(path)).collect()
}

/// Returns the first path of a regular file that an earlier path also names, under another name or by a link.
fn named_twice(paths: &[PathBuf]) -> Option<&PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let mut seen = BTreeSet::new();
    let file = |path: &PathBuf| path.metadata().ok().filter(|of| of.is_file()).map(|of| (of.dev(), of.ino()));
    paths.iter().find(|path| file(path).is_some_and(|file| !seen.insert(file)))
}

fn opened_one(path: &Path) -> Result<Named, InputError> {
    if path.as_os_str() == "-" {
        return Ok(Named { name: "standard input".to_owned(), input: Box::new(io::stdin()) });
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok(Named { name, input: Box::new(file) }),
        Err(source) => Err(InputError::Open { name, source }),
    }
}

/// Replays all inputs merged by time, the earliest item first.
pub(super) fn play(
    inputs: Vec<Named>,
    asked: &Asked<'_>,
    begin: impl Fn(Kind) -> Option<Replay>,
) -> Result<(Replay, Read, Vec<FileRead>), InputError> {
    let all = names(&inputs);
    let is_one = inputs.len() == 1;
    let (mut streams, mut read) = (Vec::new(), Read::default());
    for input in inputs {
        let name = input.name.clone();
        match Stream::open(input, asked) {
            Ok(stream) => streams.push(stream),
            // A freshly rotated log is still empty.
            Err(InputError::Unusable { problem, .. }) if !is_one && problem == EMPTY => {
                read.warnings.push(format!("{name} is empty"));
            }
            Err(error) => return Err(error),
        }
    }
    let Some(first) = streams.first() else {
        return Err(unusable(&all, "there is nothing in them", FORMATS));
    };
    let kind = first.kind();
    if let Some(other) = streams.iter().find(|stream| stream.kind() != kind) {
        let (capture, log) = if kind == Kind::Capture { (first, other) } else { (other, first) };
        let problem = format!("it is a capture, and {} is a log: they cannot be judged together", log.name);
        return Err(unusable(&capture.name, &problem, "replay one, then the other"));
    }
    let Some(mut replay) = begin(kind) else {
        return Err(unusable(&all, "there is no limit to judge it by", "give one, as in --limit 1000/5m"));
    };
    let mut next: BinaryHeap<_> =
        streams.iter().enumerate().filter_map(|(at, stream)| Some(Reverse((stream.next()?, at)))).collect();
    while let Some(mut earliest) = next.peek_mut() {
        let Reverse((_, at)) = *earliest;
        let stream = &mut streams[at];
        stream.play(&mut replay)?;
        match stream.next() {
            Some(time) => *earliest = Reverse((time, at)),
            None => drop(std::collections::binary_heap::PeekMut::pop(earliest)),
        }
    }
    let mut files = Vec::new();
    for stream in streams {
        let of = if is_one { String::new() } else { format!("{}: ", stream.name) };
        let (file, one) = stream.finish()?;
        read.items += one.items;
        read.unreadable += one.unreadable;
        read.cut_off += one.cut_off;
        read.facts = read.facts.and(one.facts);
        read.warnings.extend(one.warnings.into_iter().map(|warning| of.clone() + &warning));
        files.push(file);
    }
    read.warnings.extend(read.facts.remarks(&asked.clock));
    Ok((replay, read, files))
}

fn names(inputs: &[Named]) -> String {
    inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Problem of an empty file.
const EMPTY: &str = "it is empty";

/// File that is being read.
struct Stream {
    name: String,
    of: Of,
    /// State of the decompression, if the file is compressed.
    condition: Option<Condition>,
    /// First bytes of a log.
    start: Vec<u8>,
}

enum Of {
    Log(Box<LogStream>),
    Capture(Box<CaptureStream>),
}

impl Stream {
    fn open(named: Named, asked: &Asked<'_>) -> Result<Self, InputError> {
        let Named { name, mut input } = named;
        let mut condition = None;
        let mut begun = begin(&mut input).map_err(|error| failed(&name, error))?;
        if begun.start.starts_with(&gzip::MAGIC) {
            let (unpacked, of) = Gunzip::new(Cursor::new(begun.start).chain(input));
            input = Box::new(unpacked);
            condition = Some(of);
            begun = begin(&mut input).map_err(|error| failed(&name, error))?;
            if let Some(problem) = condition.as_ref().and_then(Condition::problem).filter(|_| begun.start.is_empty()) {
                return Err(unusable(&name, problem, "copy it again, or leave it out"));
            }
        }
        let format = capture::Format::of(&begun.start);
        if format.is_none() {
            if let Some(Looks { what, help }) = packed(&begun.start) {
                return Err(unusable(&name, &what, &help));
            }
            if let Some((problem, help)) = more_than_a_log_tells(asked) {
                return Err(unusable(&name, &problem, help));
            }
        }
        let whole = Box::new(Cursor::new(begun.start.clone()).chain(input));
        let of = match format {
            Some(format) => {
                if let Some(limit) = limits(asked).find(|limit| limit.condition.is_some()) {
                    let problem = format!("the limit {limit} counts what a capture does not show");
                    return Err(unusable(&name, &problem, "replay the server's access log"));
                }
                let stream = CaptureStream::new(format, whole).map_err(|error| failed_capture(&name, &error))?;
                Of::Capture(Box::new(stream))
            }
            None => {
                let conditions = limits(asked).filter_map(|limit| limit.condition).collect();
                Of::Log(Box::new(LogStream::new(&begun, whole, asked.clock.clone(), conditions)))
            }
        };
        let mut stream = Self { name, of, condition, start: begun.start };
        stream.advance()?;
        Ok(stream)
    }

    const fn kind(&self) -> Kind {
        match self.of {
            Of::Log(_) => Kind::AccessLog,
            Of::Capture(_) => Kind::Capture,
        }
    }

    /// Returns the time of the next item; none at the end.
    fn next(&self) -> Option<Nanos> {
        match &self.of {
            Of::Log(log) => log.next().map(|(request, _)| request.at),
            Of::Capture(capture) => capture.next().map(|(at, _)| at),
        }
    }

    /// Replays the next item and reads on.
    fn play(&mut self, replay: &mut Replay) -> Result<(), InputError> {
        match &self.of {
            Of::Log(log) => {
                if let Some((request, met)) = log.next() {
                    replay.request(request.at, request.source, met);
                }
            }
            Of::Capture(capture) => {
                if let Some((at, frame)) = capture.next() {
                    let _reason = replay.frame(at, &frame);
                }
            }
        }
        self.advance()
    }

    fn advance(&mut self) -> Result<(), InputError> {
        match &mut self.of {
            Of::Log(log) => log.advance().map_err(|error| failed(&self.name, error)),
            Of::Capture(capture) => capture.advance().map_err(|error| failed_capture(&self.name, &error)),
        }
    }

    fn finish(self) -> Result<(FileRead, Read), InputError> {
        let Self { name, of, condition, start } = self;
        let mut read = match of {
            Of::Log(log) => {
                let (read, first_wrong) = log.finish();
                if let Some(first) = first_wrong {
                    let unpacked =
                        condition.as_ref().and_then(Condition::problem).map(|problem| format!(", and {problem}"));
                    let unpacked = unpacked.unwrap_or_default();
                    return Err(match looks(&start) {
                        Some(Looks { what, help }) => unusable(&name, &format!("{what}{unpacked}"), &help),
                        None => {
                            let problem = format!("no line of it is a request of an access log{unpacked}; {first}");
                            unusable(&name, &problem, FORMATS)
                        }
                    });
                }
                if read.items == 0 {
                    return Err(unusable(&name, "it has comments alone", FORMATS));
                }
                read
            }
            Of::Capture(capture) => capture.finish().map_err(|error| failed_capture(&name, &error))?,
        };
        if let Some(problem) = condition.as_ref().and_then(Condition::problem) {
            read.warnings.push(format!("{problem}, and is judged up to there"));
        }
        let file = FileRead {
            name,
            compression: condition.map(|_| "gzip"),
            formats: std::mem::take(&mut read.formats),
            read: read.items,
            unreadable: read.unreadable,
        };
        Ok((file, read))
    }
}

/// Beginning of an input, after the blank part.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Bytes that were already taken from the input.
    pub(super) start: Vec<u8>,
    /// Number of NUL bytes skipped before `start`.
    pub(super) nuls: u64,
    /// Number of blank lines skipped before `start`.
    pub(super) blank_lines: u64,
}

fn begin(input: &mut Input) -> io::Result<Begun> {
    let mut begun = Begun::default();
    let is_blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let count = |bytes: &[u8], of: u8| bytes.iter().filter(|byte| **byte == of).count() as u64;
    loop {
        begun.start.clear();
        input.by_ref().take(START_BYTES).read_to_end(&mut begun.start)?;
        // Line ends of the last piece stay, because a capture may begin with them.
        let is_all_blank = !begun.start.is_empty() && begun.start.iter().all(is_blank);
        let holes = begun.start.iter().take_while(|byte| **byte == 0).count();
        let left_out: Vec<u8> = begun.start.drain(..if is_all_blank { begun.start.len() } else { holes }).collect();
        begun.nuls = begun.nuls.saturating_add(count(&left_out, 0));
        begun.blank_lines = begun.blank_lines.saturating_add(count(&left_out, b'\n'));
        if !is_all_blank {
            return Ok(begun);
        }
    }
}

fn unusable(name: &str, problem: &str, help: &str) -> InputError {
    InputError::Unusable { name: name.to_owned(), problem: problem.to_owned(), help: help.to_owned() }
}

fn failed(name: &str, source: io::Error) -> InputError {
    if source.kind() == io::ErrorKind::IsADirectory {
        return unusable(
            name,
            "it is a directory",
            "name the files in it: ratelimitd replay /var/log/nginx/access.log*",
        );
    }
    InputError::Read { name: name.to_owned(), source: Some(source) }
}

fn failed_capture(name: &str, error: &CaptureError) -> InputError {
    let help = match error {
        CaptureError::Read => return InputError::Read { name: name.to_owned(), source: None },
        CaptureError::Header => "capture it again: tcpdump -i IF -s 0 -w FILE",
        CaptureError::Link(_) => "capture on the Ethernet interface, or on all: tcpdump -i any -s 0 -w FILE",
    };
    unusable(name, &error.to_string(), help)
}

/// Returns the limits of the rule that judges.
fn limits<'a>(asked: &Asked<'a>) -> impl Iterator<Item = &'a Limit> {
    asked.policy.rules.first().into_iter().flat_map(|rule| &rule.limits)
}

/// Returns the part of the request that no log can answer, and the remedy. Returns none if there is no such part.
fn more_than_a_log_tells(asked: &Asked<'_>) -> Option<(String, &'static str)> {
    let mut limits = asked.policy.rules.iter().flat_map(|rule| &rule.limits);
    let other = limits.find(|limit| limit.unit != ratelimit_common::layout::Unit::Requests);
    if let Some(limit) = other {
        let unit = ratelimit_policy::desired::unit_label(limit.unit);
        let problem = format!("an access log has only requests, and the limit {limit} counts {unit}");
        return Some((problem, "count requests, or replay a capture: tcpdump -i IF -s 0 -w FILE"));
    }
    let problem = "an access log does not have the port of a request".to_owned();
    (asked.ports == Ports::Said).then_some((problem, "leave --port out: every line is judged"))
}
