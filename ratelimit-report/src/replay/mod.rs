//! Replay of captures or access logs under given limits. The kernel program's own code (`ratelimit_common`) judges,
//! under the limits that the daemon would install ([`ratelimit_policy::desired`]).
//!
//! [`Replay`] is the pure part. It takes packets or requests one by one with their times, and produces a [`Report`], or
//! [`Suggested`] limits. Readers are in [`capture`] and [`log`]; `input` opens files and merges them by time. Memory
//! does not grow with the size of the input.

use std::net::IpAddr;

use ratelimit_common::conversation::Walk;
use ratelimit_common::packet::{self, Parsed};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use ratelimit_datapath::memory;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::Policy;

pub mod capture;
mod fared;
mod gzip;
mod input;
pub mod log;
mod observing;
mod order;
mod proxies;
mod report;

pub use self::input::{Asked, InputError, Ports, read, suggest};
pub use self::log::Clock;
pub use self::observing::Suggested;
pub use self::report::{FileRead, Input, Kind, LimitReport, Limited, ListBusy, ListLimited, PrefixLimited, Report};

use self::fared::Judge;
use self::observing::Observing;
use self::order::{Order, Waiting};
use self::report::Counts;

#[cfg(test)]
mod tests;

/// Replay in progress: the limits of one policy, and the state of all sources.
pub struct Replay {
    judge: Judge,
    /// Observations, if limits are to be proposed.
    observing: Option<Observing>,
    kind: Kind,
    /// Log requests that are not judged yet.
    order: Order,
    newest: Nanos,
    oldest: Option<Nanos>,
    judged: u64,
    out_of_order: u64,
    malformed: u64,
}

impl Replay {
    /// Creates an empty replay. Only the first rule judges, because the command line defines one rule.
    pub fn new(policy: &Policy, kind: Kind) -> Option<Self> {
        Self::of(Judge::new(policy)?, None, kind)
    }

    /// Creates an empty replay that proposes limits. The policy's limits only define what is counted; no source exceeds
    /// them.
    pub fn observing(policy: &Policy, kind: Kind, present: Present) -> Option<Self> {
        Self::of(Judge::of_all(policy)?, Some(Observing::new(policy, present)?), kind)
    }

    fn of(judge: Judge, observing: Option<Observing>, kind: Kind) -> Option<Self> {
        Some(Self {
            judge,
            observing,
            kind,
            order: Order::default(),
            newest: Nanos(0),
            oldest: None,
            judged: 0,
            out_of_order: 0,
            malformed: 0,
        })
    }

    /// Sets a reorder window that is small enough for a test.
    #[cfg(test)]
    fn within(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Takes a frame from its Ethernet header on, whole or cut off. Returns the kernel program's reason in a dry run.
    pub fn frame<F: Walk>(&mut self, at: Nanos, frame: &F) -> Reason {
        let packet = match packet::parse(frame) {
            Parsed::Ip(packet) => packet,
            Parsed::NotIp => return Reason::NotIp,
            Parsed::Malformed => {
                self.malformed += 1;
                return Reason::Malformed;
            }
            Parsed::TooManyTags => {
                self.malformed += 1;
                return self.judge.too_many_tags(at);
            }
        };
        let reason = self.judge.choice(&packet, self.newest.max(at)).reason;
        if reason == Reason::TooManyHeaders {
            // The headers cannot be parsed, so the rule drops the packet from every source.
            self.malformed += 1;
        }
        if reason != Reason::NotCounted {
            return self.judge.enforced(reason);
        }
        let now = self.now(at);
        self.judged += 1;
        let reason = self.judge.frame(frame, &packet, now);
        self.observe(memory::address(packet.source), reason);
        reason
    }

    /// Takes the next request of a log. `met` has one bit for each limit with a condition, in the order of the limits.
    /// The request is judged once the reorder window is full of younger ones.
    pub fn request(&mut self, at: Nanos, source: IpAddr, met: u8) {
        self.order.push(Waiting { at, source, met });
        while let Some(request) = self.order.pop_ready() {
            self.judge_request(request);
        }
    }

    fn judge_request(&mut self, request: Waiting) {
        let now = self.now(request.at);
        let reason = self.judge.request(now, request.source, request.met);
        self.judged += 1;
        self.observe(request.source, reason);
    }

    fn observe(&mut self, source: IpAddr, reason: Reason) {
        let is_charged = !matches!(reason, Reason::NotCounted | Reason::NotAdmitted);
        if let Some(observing) = self.observing.as_mut().filter(|_| is_charged) {
            observing.charged(self.judge.client(source));
        }
    }

    /// Advances the clock, which never goes back: a late item counts at the newest time so far.
    fn now(&mut self, at: Nanos) -> Nanos {
        if let Some(observing) = &mut self.observing {
            observing.advance(self.newest.max(at), &self.judge);
        }
        if at < self.newest {
            self.out_of_order += 1;
        }
        self.newest = self.newest.max(at);
        self.oldest.get_or_insert(at);
        self.newest
    }

    /// Judges all waiting requests, since no older one can arrive any more.
    fn end(&mut self) {
        while let Some(request) = self.order.pop() {
            self.judge_request(request);
        }
    }

    /// Ends the replay and returns the effect of the limits. Names those of `lists` that contain limited sources.
    pub fn finish(mut self, read: Read, files: Vec<FileRead>, lists: &[ListFile]) -> Report {
        self.end();
        let input = self.input(&read, files);
        Report::new(self.judge, input, read, lists)
    }

    /// Ends the replay and returns proposed limits. Returns none unless [`Self::observing`] created the replay.
    pub fn suggest(mut self, read: Read, files: Vec<FileRead>, lists: &[ListFile]) -> Option<Suggested> {
        self.end();
        let input = self.input(&read, files);
        let warnings = self.judge.warnings(&input, read);
        Some(self.observing?.finish(self.newest, &self.judge, input, warnings, lists))
    }

    fn input(&self, read: &Read, files: Vec<FileRead>) -> Input {
        let span = self.oldest.map(|oldest| (oldest, self.newest));
        let counts = Counts {
            judged: self.judged,
            malformed: self.malformed,
            reordered: self.order.straggled().saturating_sub(self.out_of_order),
            out_of_order: self.out_of_order,
        };
        Input::new(self.kind, read, span, counts, files)
    }
}

/// Origin of the limits that a proposal starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// The user named the limits, and they count as the limits in force.
    Said,
    /// The limits are assumed, and only their window and unit matter.
    Assumed,
}

/// Counts and facts from a reader of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Number of packets of a capture, or lines of a log.
    pub items: u64,
    /// Number of items that could not be read.
    pub unreadable: u64,
    /// Number of packets that the capture contains only in part.
    pub cut_off: u64,
    /// Facts about how sources and times of a log were determined.
    pub facts: log::Facts,
    /// Names of the formats.
    pub formats: Vec<String>,
    /// Warnings about the input, one sentence each without a full stop.
    pub warnings: Vec<String>,
}
