//! What a file is, and its way into a [`Replay`].

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read as _};
use std::path::Path;

use super::capture::{self, CaptureError, Format};
use super::{Kind, Replay, Report, access_log};
use ratelimit_policy::desired::Policy;

/// What is looked at to tell what a file is.
const START_BYTES: u64 = 1 << 16;

/// Why nothing was replayed.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be opened.
    #[error("open {name}")]
    Open {
        /// The file.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// It cannot be read on.
    #[error("read {name}")]
    Read {
        /// The file.
        name: String,
        /// Why, where it is known.
        source: Option<io::Error>,
    },
    /// There is nothing in it that can be replayed.
    #[error("{name}: {problem}")]
    Unusable {
        /// The file.
        name: String,
        /// What is wrong with it, a clause.
        problem: String,
        /// What to do.
        help: String,
    },
}

/// What is asked of a file besides its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// As it comes.
    Default,
    /// Ports were named.
    Said,
}

/// Replays the file at `path`, or standard input where that is `-`.
pub fn read(path: &Path, policy: &Policy, ports: Ports) -> Result<Report, InputError> {
    if path.as_os_str() == "-" {
        return Named { name: "standard input".to_owned() }.replay(io::stdin(), policy, ports);
    }
    let named = Named { name: path.display().to_string() };
    let file = File::open(path).map_err(|source| InputError::Open { name: named.name.clone(), source })?;
    named.replay(file, policy, ports)
}

/// What is read, as it is called in errors.
pub(super) struct Named {
    pub(super) name: String,
}

impl Named {
    pub(super) fn replay(
        &self,
        mut input: impl io::Read + Send,
        policy: &Policy,
        ports: Ports,
    ) -> Result<Report, InputError> {
        let mut start = Vec::new();
        input.by_ref().take(START_BYTES).read_to_end(&mut start).map_err(|error| self.failed(error))?;
        let format = Format::of(&start);
        if format.is_none() {
            if let Some((problem, help)) = neither(&start) {
                return Err(self.unusable(problem, help));
            }
            if let Some((problem, help)) = more_than_a_log_tells(policy, ports) {
                return Err(self.unusable(&problem, help));
            }
        }
        let kind = if format.is_some() { Kind::Capture } else { Kind::AccessLog };
        let Some(mut replay) = Replay::new(policy, kind) else {
            return Err(self.unusable("there is no limit to hold it to", "say one, as in --limit 1000/5m"));
        };
        let whole = Cursor::new(start).chain(input);
        let read = match format {
            Some(format) => capture::replay(format, whole, &mut replay).map_err(|error| self.failed_capture(&error))?,
            None => {
                let lines = access_log::replay(BufReader::new(whole), &mut replay);
                let lines = lines.map_err(|error| self.failed(error))?;
                if let Some(first) = lines.first_wrong {
                    let problem = format!("no line of it is a request in an access log; {first}");
                    return Err(self.unusable(&problem, FORMATS));
                }
                lines.read
            }
        };
        Ok(replay.finish(read))
    }

    fn unusable(&self, problem: &str, help: &str) -> InputError {
        InputError::Unusable { name: self.name.clone(), problem: problem.to_owned(), help: help.to_owned() }
    }

    fn failed(&self, source: io::Error) -> InputError {
        if source.kind() == io::ErrorKind::IsADirectory {
            return self.unusable("it is a directory", FORMATS);
        }
        InputError::Read { name: self.name.clone(), source: Some(source) }
    }

    fn failed_capture(&self, error: &CaptureError) -> InputError {
        let help = match error {
            CaptureError::Read => return InputError::Read { name: self.name.clone(), source: None },
            CaptureError::Header => "capture it anew: tcpdump -i IF -s 0 -w FILE",
            CaptureError::Link(_) => "capture on the Ethernet interface, or on all: tcpdump -i any -s 0 -w FILE",
        };
        self.unusable(&error.to_string(), help)
    }
}

const FORMATS: &str =
    "it reads captures (pcap, pcapng) and access logs in the common or combined format, as nginx and Apache write them";

/// What it is where it is neither a capture nor a text, and what to do about it.
fn neither(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let packed = "unpack it on the way: zcat FILE | ratelimitd replay - --limit N/DUR";
    if start.trim_ascii().is_empty() {
        return Some(("it is empty", FORMATS));
    }
    match start {
        [0x1f, 0x8b, ..] => return Some(("it is compressed (gzip)", packed)),
        [b'B', b'Z', b'h', ..] => return Some(("it is compressed (bzip2)", "unpack it on the way, with bzcat")),
        [0xfd, b'7', b'z', b'X', ..] => return Some(("it is compressed (xz)", "unpack it on the way, with xzcat")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Some(("it is compressed (zstd)", "unpack it on the way, with zstdcat")),
        _ => {}
    }
    start.contains(&0).then_some(("it is neither a capture nor an access log", FORMATS))
}

/// What is asked that no log can answer, and what to do about it.
fn more_than_a_log_tells(policy: &Policy, ports: Ports) -> Option<(String, &'static str)> {
    let mut limits = policy.rules.iter().flat_map(|rule| &rule.limits);
    let other = limits.find(|limit| limit.unit != ratelimit_common::layout::Unit::Requests);
    if let Some(limit) = other {
        let unit = ratelimit_policy::desired::unit_label(limit.unit);
        let problem = format!("an access log has requests alone, and the limit {limit} counts {unit}");
        return Some((problem, "count requests, or replay a capture: tcpdump -i IF -s 0 -w FILE"));
    }
    let problem = "an access log does not say to which port a request was sent".to_owned();
    (ports == Ports::Said).then_some((problem, "leave --port out: every line is judged"))
}
