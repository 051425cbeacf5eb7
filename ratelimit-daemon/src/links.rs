//! State of the interfaces: attached, or away with the time of the next attempt. Pure: times are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_datapath::{Attachment, XdpMode};

/// Delay before the first retry. Each further delay doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);

/// Maximum delay between retries.
const RETRY_LAST: Duration = Duration::from_secs(30);

/// Interfaces that should be attached, with their state.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<String, Link>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    Attached,
    Away { since: Duration, retry_at: Duration, delay: Duration, why: String, before: Before },
}

/// State of an interface before it went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Not present since the daemon started.
    Awaited,
    Attached,
}

impl Links {
    /// Records that an interface is attached, and logs a change. Returns true if the interface was away.
    pub(super) fn attached(&mut self, interface: &str, as_is: impl Into<Attachment>) -> bool {
        let link = self.0.insert(interface.to_owned(), Link::Attached);
        if link != Some(Link::Attached) {
            warn_of(interface, as_is.into());
        }
        let Some(Link::Away { before, .. }) = link else { return false };
        match before {
            Before::Attached => tracing::info!(interface, "{interface} is back and protected again"),
            Before::Awaited => tracing::info!(interface, "{interface} has come and is protected now"),
        }
        true
    }

    /// Records an interface that is missing at the start and will be attached when it appears.
    pub(super) fn awaited(&mut self, interface: &str, now: Duration, why: String) {
        tracing::error!(interface, "NOT PROTECTED: {why}; {interface} is attached when it comes");
        self.0.insert(interface.to_owned(), Link::away(now, why, Before::Awaited));
    }

    /// Returns the sorted names of attached interfaces.
    pub(super) fn attached_names(&self) -> Vec<String> {
        self.0.iter().filter(|(_, link)| **link == Link::Attached).map(|(name, _)| name.clone()).collect()
    }

    /// Iterates over the interfaces that are away, with the reasons.
    pub(super) fn away_names(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter().filter_map(|(name, link)| match link {
            Link::Attached => None,
            Link::Away { why, .. } => Some((name, why)),
        })
    }

    /// Records that an interface is not attached, and logs an error the first time. Returns true if a retry is due.
    pub(super) fn away(&mut self, interface: &str, now: Duration) -> bool {
        match self.0.get(interface) {
            Some(Link::Away { retry_at, .. }) => *retry_at <= now,
            Some(Link::Attached) | None => {
                tracing::error!(interface, "NOT PROTECTED: {interface} is gone or was taken from us");
                let why = "it is gone or was taken from us".to_owned();
                self.0.insert(interface.to_owned(), Link::away(now, why, Before::Attached));
                true
            }
        }
    }

    /// Records a failed retry. A missing interface is tried again at every look. Other failures increase the delay.
    pub(super) fn failed(&mut self, interface: &str, now: Duration, reason: String, is_absent: bool) {
        let Some(Link::Away { retry_at, delay, why, .. }) = self.0.get_mut(interface) else { return };
        if !is_absent {
            tracing::warn!(interface, "attach again: {reason}; next try in {} s", delay.as_secs());
            *retry_at = now.saturating_add(*delay);
            *delay = delay.saturating_mul(2).min(RETRY_LAST);
        }
        *why = reason;
    }

    /// Records why a present interface must not be attached, and logs each new reason. The interface is reconsidered
    /// at every look.
    pub(super) fn waits(&mut self, interface: &str, reason: String) {
        let Some(Link::Away { why, .. }) = self.0.get_mut(interface) else { return };
        if *why != reason {
            tracing::error!(interface, "NOT PROTECTED: {interface} is not attached: {reason}");
            *why = reason;
        }
    }

    /// Makes all retries due immediately.
    pub(super) fn hurry(&mut self) {
        for link in self.0.values_mut() {
            match link {
                Link::Away { retry_at, .. } => *retry_at = Duration::ZERO,
                Link::Attached => {}
            }
        }
    }

    /// Forgets an interface that is no longer wanted.
    pub(super) fn forget(&mut self, interface: &str) {
        self.0.remove(interface);
    }

    /// Describes each interface that is away in one sentence.
    pub(super) fn problems(&self, now: Duration) -> Vec<String> {
        let problem = |(name, link): (&String, &Link)| match link {
            Link::Attached => None,
            Link::Away { since, why, .. } => {
                let seconds = now.saturating_sub(*since).as_secs();
                let since = if seconds == 0 { String::new() } else { format!(", for {seconds} s now") };
                Some(format!("{name} is not attached{since}: {why}"))
            }
        };
        self.0.iter().filter_map(problem).collect()
    }
}

impl Link {
    fn away(now: Duration, why: String, before: Before) -> Self {
        Self::Away { since: now, retry_at: now, delay: RETRY_FIRST, why, before }
    }
}

fn warn_of(interface: &str, attached: Attachment) {
    match attached {
        Attachment::Xdp(XdpMode::Native) => tracing::info!(interface, "attached to {interface} in native mode"),
        Attachment::Xdp(XdpMode::Generic) => tracing::warn!(
            interface,
            "attached to {interface} in GENERIC mode, behind the driver: it works, but a dropped packet costs several \
             times as much; a driver with native XDP would do better"
        ),
        Attachment::Tcx => tracing::warn!(
            interface,
            "attached to {interface} by TCX, after the stack has made a buffer: it works beside other programs, but costs \
             about 350 ns a packet more than XDP"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_that_refuses_is_tried_ever_more_rarely() {
        let mut links = Links::default();
        links.attached("eth0", XdpMode::Native);
        let tries: Vec<u64> = (0..100)
            .filter(|&second| {
                let due = links.away("eth0", at(second));
                if due {
                    links.failed("eth0", at(second), "occupied".into(), false);
                }
                due
            })
            .collect();
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 61, 91]);
    }

    #[test]
    fn one_that_is_not_there_is_looked_for_every_time() {
        let mut links = Links::default();
        links.attached("eth0", XdpMode::Native);
        for second in 0..10 {
            assert!(links.away("eth0", at(second)));
            links.failed("eth0", at(second), "no interface eth0".into(), true);
        }
        assert_eq!(links.problems(at(9)), ["eth0 is not attached, for 9 s now: no interface eth0"]);
        assert!(links.attached("eth0", XdpMode::Native));
        assert!(links.problems(at(10)).is_empty());
    }

    #[test]
    fn one_that_is_awaited_is_looked_for_every_time_and_named_until_it_comes() {
        let mut links = Links::default();
        links.attached("eth0", XdpMode::Native);
        links.awaited("eth9", at(1), "no interface eth9".into());
        assert_eq!(links.attached_names(), ["eth0"]);
        assert_eq!(links.problems(at(1)), ["eth9 is not attached: no interface eth9"]);
        assert!(links.away("eth9", at(2)) && links.away("eth9", at(3)));
        assert_eq!(links.problems(at(4)), ["eth9 is not attached, for 3 s now: no interface eth9"]);
        assert!(links.attached("eth9", XdpMode::Native));
        assert_eq!((links.attached_names().len(), links.away_names().count()), (2, 0));
    }

    #[test]
    fn a_change_makes_the_next_look_try_at_once() {
        let mut links = Links::default();
        assert!(links.away("eth0", at(0)));
        links.failed("eth0", at(0), "occupied".into(), false);
        assert!(!links.away("eth0", at(0)));
        links.hurry();
        assert!(links.away("eth0", at(0)));
    }
}
