//! Which interfaces are attached, and when to try again with those that are not. Pure: times are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use ratelimit_datapath::XdpMode;

/// The first retry after a failed one comes so much later, the next after twice that.
const RETRY_FIRST: Duration = Duration::from_secs(1);

/// Retries are never further apart.
const RETRY_LAST: Duration = Duration::from_secs(30);

/// The interfaces that should be attached.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<String, Link>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    Attached,
    Away { since: Duration, retry_at: Duration, delay: Duration, why: String },
}

impl Links {
    /// It is attached. True if it was away.
    pub(super) fn attached(&mut self, interface: &str, mode: XdpMode) -> bool {
        let before = self.0.insert(interface.to_owned(), Link::Attached);
        if !matches!(before, Some(Link::Attached)) {
            warn_of(interface, mode);
        }
        matches!(before, Some(Link::Away { .. }))
    }

    /// It is not attached. Says so loudly the first time; true when it is time to try.
    pub(super) fn away(&mut self, interface: &str, now: Duration) -> bool {
        match self.0.get(interface) {
            Some(Link::Away { retry_at, .. }) => *retry_at <= now,
            Some(Link::Attached) | None => {
                tracing::error!(interface, "NOT PROTECTED: {interface} is gone or was taken from us");
                let why = "it is gone or was taken from us".to_owned();
                let away = Link::Away { since: now, retry_at: now, delay: RETRY_FIRST, why };
                self.0.insert(interface.to_owned(), away);
                true
            }
        }
    }

    /// Trying again failed. An interface that is not there is looked for at every look; one that refuses, ever more rarely.
    pub(super) fn failed(&mut self, interface: &str, now: Duration, reason: String, is_absent: bool) {
        let Some(Link::Away { retry_at, delay, why, .. }) = self.0.get_mut(interface) else { return };
        if !is_absent {
            tracing::warn!(interface, "attach again: {reason}; next try in {} s", delay.as_secs());
            *retry_at = now.saturating_add(*delay);
            *delay = delay.saturating_mul(2).min(RETRY_LAST);
        }
        *why = reason;
    }

    /// Something has changed: try at once.
    pub(super) fn hurry(&mut self) {
        for link in self.0.values_mut() {
            match link {
                Link::Away { retry_at, .. } => *retry_at = Duration::ZERO,
                Link::Attached => {}
            }
        }
    }

    /// It is no longer wanted.
    pub(super) fn forget(&mut self, interface: &str) {
        self.0.remove(interface);
    }

    /// One sentence for each that is away.
    pub(super) fn problems(&self, now: Duration) -> Vec<String> {
        let problem = |(name, link): (&String, &Link)| match link {
            Link::Attached => None,
            Link::Away { since, why, .. } => {
                let seconds = now.saturating_sub(*since).as_secs();
                Some(format!("{name} is not attached since {seconds} s: {why}"))
            }
        };
        self.0.iter().filter_map(problem).collect()
    }
}

fn warn_of(interface: &str, mode: XdpMode) {
    match mode {
        XdpMode::Native => tracing::info!(interface, "attached to {interface} in native mode"),
        XdpMode::Generic => tracing::warn!(
            interface,
            "attached to {interface} in GENERIC mode, behind the driver: it works, but a dropped packet costs several \
             times as much; a driver with native XDP would do better"
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
        assert_eq!(links.problems(at(9)), ["eth0 is not attached since 9 s: no interface eth0"]);
        assert!(links.attached("eth0", XdpMode::Native));
        assert!(links.problems(at(10)).is_empty());
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
