//! What limits would have made of traffic that is past: captures, or web servers' access logs. Judged by the code that
//! the kernel runs (`ratelimit_common`), under the limits that the daemon would give it ([`ratelimit_policy::desired`]).
//!
//! [`Replay`] is the pure part: it takes what came in, one by one, each with its time, and ends in a [`Report`], or in
//! [`Suggested`] where limits are to be proposed. What reads files stands beside it, in [`capture`] and [`log`]; `input`
//! opens them and merges them by time. Nothing here is as large as what is read.

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
pub use self::report::{FileRead, Input, Kind, LimitReport, Limited, ListLimited, PrefixLimited, Report};

use self::fared::Judge;
use self::observing::Observing;
use self::order::{Order, Waiting};
use self::report::Counts;

#[cfg(test)]
mod tests;

/// The limits of one policy, and what has come in so far.
pub struct Replay {
    judge: Judge,
    /// Where limits are to be proposed.
    observing: Option<Observing>,
    kind: Kind,
    /// Requests of logs that are not judged yet.
    order: Order,
    newest: Nanos,
    oldest: Option<Nanos>,
    judged: u64,
    out_of_order: u64,
    malformed: u64,
}

impl Replay {
    /// Nothing has come in yet. Only the first rule judges: flags make no other.
    pub fn new(policy: &Policy, kind: Kind) -> Option<Self> {
        Self::of(Judge::new(policy)?, None, kind)
    }

    /// Likewise, to propose limits by it: what these say is how it is counted, and nothing is over them.
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

    /// Orders requests within a window that a test can reach.
    #[cfg(test)]
    fn within(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// A frame came in, whole or cut off, from its Ethernet header on. Says what the kernel would in a dry run.
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
            // It cannot be parsed: the rule drops it from every source.
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

    /// Takes the next request of a log, and the conditions that it meets: a bit for each, in the order of the limits that
    /// have one. It is judged once the reorder window is full of younger ones.
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

    /// Time never goes back: what is late came when the newest before it did.
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

    /// Judges all requests that wait, since no older one can come any more.
    fn end(&mut self) {
        while let Some(request) = self.order.pop() {
            self.judge_request(request);
        }
    }

    /// What the limits would have made of it. Says which of these list files what is refused came from.
    pub fn finish(mut self, read: Read, files: Vec<FileRead>, lists: &[ListFile]) -> Report {
        self.end();
        let input = self.input(&read, files);
        Report::new(self.judge, input, read, lists)
    }

    /// What limits are proposed by it, likewise: none where it was not to be observed.
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

/// Where a proposal is asked for, whether the limits are those in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// The user has named them.
    Said,
    /// They say a window and a unit alone.
    Assumed,
}

/// What a reader has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Packets of a capture, lines of a log.
    pub items: u64,
    /// Of those, such as could not be read.
    pub unreadable: u64,
    /// Packets of which not all is in the capture.
    pub cut_off: u64,
    /// How sources and times of a log were told.
    pub facts: log::Facts,
    /// What its formats are called.
    pub formats: Vec<String>,
    /// What is to be said about it, a sentence each without a full stop.
    pub warnings: Vec<String>,
}
