//! What limits would have made of traffic that is past: a capture, or a web server's access log. Judged by the code that the
//! kernel runs (`ratelimit_common`), under the limits that the daemon would give it ([`ratelimit_policy::desired`]).
//!
//! [`Replay`] is the pure part: it takes what came in, one by one, each with its time, and ends in a [`Report`]. What reads files
//! stands beside it, in [`capture`] and [`access_log`]; nothing here is as large as what is read.

use std::net::IpAddr;

use ratelimit_common::conversation::Walk;
use ratelimit_common::hold::Charges;
use ratelimit_common::packet::{self, Parsed};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use ratelimit_policy::desired::Policy;

pub mod access_log;
pub mod capture;
mod fared;
mod input;
mod report;

pub use self::input::{InputError, Ports, read};
pub use self::report::{Input, Kind, LimitReport, Limited, Report};

use self::fared::Judge;

#[cfg(test)]
mod tests;

/// The limits of one policy, and what has come in so far.
pub struct Replay {
    judge: Judge,
    kind: Kind,
    newest: Nanos,
    oldest: Option<Nanos>,
    judged: u64,
    out_of_order: u64,
    malformed: u64,
}

impl Replay {
    /// Nothing has come in yet. Only the first rule judges: flags make no other.
    pub fn new(policy: &Policy, kind: Kind) -> Option<Self> {
        Some(Self {
            judge: Judge::new(policy)?,
            kind,
            newest: Nanos(0),
            oldest: None,
            judged: 0,
            out_of_order: 0,
            malformed: 0,
        })
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
            // Nobody can tell what it is: the rule drops it, whoever sent it.
            self.malformed += 1;
        }
        if reason != Reason::NotCounted {
            return self.judge.enforced(reason);
        }
        let now = self.now(at);
        self.judged += 1;
        self.judge.frame(frame, &packet, now)
    }

    /// A request came in, as a log has it.
    pub fn request(&mut self, at: Nanos, source: IpAddr) {
        let now = self.now(at);
        let _reason = self.judge.charge(now, source, Charges { requests: 1, ..Charges::default() });
        self.judged += 1;
    }

    /// Time never goes back: what is late came when the newest before it did.
    fn now(&mut self, at: Nanos) -> Nanos {
        if at < self.newest {
            self.out_of_order += 1;
        }
        self.newest = self.newest.max(at);
        self.oldest.get_or_insert(at);
        self.newest
    }

    /// What the limits would have made of it.
    pub fn finish(self, read: Read) -> Report {
        let span = self.oldest.map(|oldest| (oldest, self.newest));
        Report::new(
            self.judge,
            Input::new(self.kind, &read, span, [self.judged, self.out_of_order, self.malformed]),
            read,
        )
    }
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
    /// What is to be said about it, a sentence each without a full stop.
    pub warnings: Vec<String>,
}
