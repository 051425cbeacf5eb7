//! Promises of the demo, checked against its measurements.

use std::fmt;

use super::LIMIT;
use super::client::CRAWLER_ADDRESSES;
use super::phase::{Measured, Phase};

/// Promise, and whether it holds.
#[derive(Debug)]
pub(super) struct Promise {
    text: &'static str,
    pub(super) holds: bool,
    /// Measured values.
    found: String,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, holds, found } = self;
        write!(f, "{}  {text}: {found}", if *holds { "ok    " } else { "FAILED" })
    }
}

/// Checks all promises. `left` describes leftovers of the demo.
pub(super) fn of(phases: &[Measured], left: &[String]) -> Vec<Promise> {
    let of_phase = |phase: Phase| phases.iter().find(move |measured| measured.phase == phase);
    let mut promises = vec![good_lost_nothing(phases)];
    promises.extend(of_phase(Phase::DryRun).map(dry_run_dropped_nothing));
    promises.extend(of_phase(Phase::Enforce).map(bad_got_its_limit));
    promises.extend(of_phase(Phase::Crawler).map(crawler_got_what_one_client_gets));
    let found = if left.is_empty() { "no namespace, process, file or pin".to_owned() } else { left.join(", ") };
    promises.push(Promise { text: "nothing is left behind", holds: left.is_empty(), found });
    promises
}

fn good_lost_nothing(phases: &[Measured]) -> Promise {
    let lost = |measured: &Measured| measured.good.lost() + measured.stats.map_or(0, |stats| stats.dropped_of_good);
    let is_tried = phases.iter().all(|measured| measured.good.tried > 0);
    let (answered, tried) = phases
        .iter()
        .fold((0, 0), |(answered, tried), phase| (answered + phase.good.answered(), tried + phase.good.tried));
    Promise {
        text: "the good client lost nothing in any phase",
        holds: is_tried && phases.len() == Phase::ALL.len() && phases.iter().all(|measured| lost(measured) == 0),
        found: format!("{answered} of {tried} answered"),
    }
}

fn dry_run_dropped_nothing(measured: &Measured) -> Promise {
    let stats = measured.stats;
    Promise {
        text: "the dry run dropped nothing, and says what it would have",
        holds: measured.bad.lost() == 0 && stats.is_some_and(|stats| stats.dropped == 0 && stats.would_drop > 0),
        found: stats.map_or_else(
            || "no statistics".to_owned(),
            |stats| format!("{} dropped, {} would have been", stats.dropped, stats.would_drop),
        ),
    }
}

/// Compares three independent counts: the client's, the web server's and the limiter's.
fn bad_got_its_limit(measured: &Measured) -> Promise {
    let used = measured.stats.map_or(0, |stats| stats.used_by_bad);
    let accounts = [measured.bad.answered(), measured.bad_seen_by_web, used];
    Promise {
        text: "the bad client got exactly its limit when it was enforced",
        holds: measured.bad.tried > LIMIT && accounts.iter().all(|&account| account == LIMIT),
        found: format!(
            "{} answered, {} seen by the web server, {} admitted by the limiter, of {} tried",
            accounts[0], accounts[1], accounts[2], measured.bad.tried
        ),
    }
}

/// Each crawler address is far below the limit of a source. Together they count as one client.
fn crawler_got_what_one_client_gets(measured: &Measured) -> Promise {
    let used = measured.stats.map_or(0, |stats| stats.used_by_crawler);
    let accounts = [measured.bad.answered(), measured.bad_seen_by_web, used];
    Promise {
        text: "a crawler of 2000 addresses got exactly what one client gets",
        holds: measured.bad.tried == u64::from(CRAWLER_ADDRESSES) && accounts.iter().all(|&account| account == LIMIT),
        found: format!(
            "{} answered, {} seen by the web server, {} admitted by the limiter, of {} tried",
            accounts[0], accounts[1], accounts[2], measured.bad.tried
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::client::Outcome;
    use crate::demo::limiter::Stats;

    fn measured(phase: Phase, [dropped, would_drop]: [u64; 2], [tried, answered]: [u64; 2]) -> Measured {
        let used = if phase == Phase::Crawler { [0, answered] } else { [answered, 0] };
        let [used_by_bad, used_by_crawler] = used;
        let stats = Stats { admitted: 1, dropped, would_drop, dropped_of_good: 0, used_by_bad, used_by_crawler };
        Measured {
            phase,
            good: Outcome::of(50, 50),
            bad: Outcome::of(tried, usize::try_from(answered).unwrap()),
            bad_seen_by_web: answered,
            web_cpu: None,
            stats: (phase != Phase::NoLimiter).then_some(stats),
            limiter: None,
        }
    }

    fn held(enforced: Measured, left: &[String]) -> Vec<bool> {
        held_of(enforced, measured(Phase::Crawler, [1_900, 0], [2_000, LIMIT]), left)
    }

    fn held_of(enforced: Measured, crawled: Measured, left: &[String]) -> Vec<bool> {
        let free = measured(Phase::NoLimiter, [0, 0], [900, 900]);
        let phases = [free, measured(Phase::DryRun, [0, 800], [900, 900]), enforced, crawled];
        of(&phases, left).iter().map(|promise| promise.holds).collect()
    }

    #[test]
    fn the_limit_is_kept_neither_with_one_more_nor_with_one_less() {
        let enforced = |answered| measured(Phase::Enforce, [800, 0], [900, answered]);
        assert_eq!(held(enforced(LIMIT), &[]), [true; 5]);
        assert_eq!(held(enforced(LIMIT + 1), &[]), [true, true, false, true, true]);
        assert_eq!(held(enforced(LIMIT - 1), &[]), [true, true, false, true, true]);
    }

    #[test]
    fn a_crawler_gets_what_one_client_gets_and_asks_with_every_address() {
        let of = |tried, answered| {
            let crawled = measured(Phase::Crawler, [1_900, 0], [tried, answered]);
            held_of(measured(Phase::Enforce, [800, 0], [900, LIMIT]), crawled, &[])[3]
        };
        assert_eq!([of(2_000, LIMIT), of(2_000, LIMIT + 1), of(2_000, LIMIT - 1)], [true, false, false]);
        assert!(!of(1_999, LIMIT));
    }

    #[test]
    fn leftover_namespaces_are_reported() {
        let enforced = measured(Phase::Enforce, [800, 0], [900, LIMIT]);
        assert_eq!(held(enforced, &["namespace rl-demo-server-1-0".to_owned()]), [true, true, true, true, false]);
    }
}
