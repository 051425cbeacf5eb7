//! Reports to the history what is enforced, whenever that changes. A change comes from a command, a file, a trial,
//! the breaker, a rule's expiry, or a time without a daemon. The history then ends the episodes of what is no longer
//! enforced.

use std::time::Duration;

use jiff::Timestamp;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::hold::Hold;
use super::moment::Moment;
use super::past::Past;
use ratelimit_datapath::Datapath;
use ratelimit_history::{InForce, Judged, RuleInForce};
use ratelimit_policy::desired::{Limit, Mode, Policy, Rule};

/// Last report to the history.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// Reports that precede the next policy: a time without enforcement, or new maps.
    before: Vec<InForce>,
    latest: Option<Latest>,
    /// Time since the next change happened, if it is noticed late.
    changed_ago: Option<Duration>,
}

#[derive(Debug)]
struct Latest {
    rules: Vec<Judging>,
    is_panic: bool,
}

/// Properties of a rule that matter for episodes.
#[derive(Debug)]
struct Judging {
    name: String,
    mode: Mode,
    limits: Vec<Limit>,
    shadow_limits: Vec<Limit>,
}

impl Announced {
    /// Queues a report to precede the next policy: that nothing was enforced from a time on, or that all windows and
    /// bans are new.
    pub(super) fn precede(&mut self, of: InForce) {
        self.before.push(of);
        self.latest = None;
    }

    /// Forces a new report, because a newly opened history knows nothing.
    pub(super) fn outdate(&mut self) {
        self.latest = None;
    }

    /// Notes that the next change happened this long before it is noticed.
    pub(super) const fn happened_ago(&mut self, ago: Duration) {
        self.changed_ago = Some(ago);
    }

    /// Reports what is in force, if it changed. A report that does not fit into the queue is repeated with the next
    /// call.
    pub(super) fn tell(&mut self, past: &Past, policy: &Policy, is_panic: bool, now: Nanos, wall: Timestamp) {
        while let Some(of) = self.before.first() {
            if !past.in_force(of.clone()) {
                return;
            }
            self.before.remove(0);
        }
        let judging = || policy.rules.iter().filter(|rule| rule.until.is_none_or(|until| until > now));
        if self.latest.as_ref().is_some_and(|latest| latest.is_of(judging(), is_panic)) {
            return;
        }
        let time = self.changed_ago.and_then(|ago| wall.checked_sub(ago).ok()).unwrap_or(wall);
        let rules = judging().map(in_words).collect();
        if past.in_force(InForce { time, judged: Judged::By { rules, is_panic } }) {
            self.latest = Some(Latest { rules: judging().map(Judging::of).collect(), is_panic });
            self.changed_ago = None;
        }
    }
}

impl Latest {
    fn is_of<'a>(&self, mut rules: impl Iterator<Item = &'a Rule>, is_panic: bool) -> bool {
        self.is_panic == is_panic
            && self.rules.iter().all(|of| rules.next().is_some_and(|rule| of.is_of(rule)))
            && rules.next().is_none()
    }
}

impl Judging {
    fn of(rule: &Rule) -> Self {
        let Rule { name, mode, limits, shadow_limits, .. } = rule;
        Self { name: name.clone(), mode: *mode, limits: limits.clone(), shadow_limits: shadow_limits.clone() }
    }

    fn is_of(&self, rule: &Rule) -> bool {
        self.name == rule.name
            && self.mode == rule.mode
            && self.limits == rule.limits
            && self.shadow_limits == rule.shadow_limits
    }
}

fn in_words(rule: &Rule) -> RuleInForce {
    let names = |limits: &[Limit]| limits.iter().map(ToString::to_string).collect();
    RuleInForce {
        name: rule.name.clone(),
        is_enforced: rule.mode == Mode::Enforce,
        limits: names(&rule.limits),
        shadow_limits: names(&rule.shadow_limits),
    }
}

impl<D: Datapath> Engine<D> {
    /// Reports to the history what is in force, if it changed.
    pub(super) fn tell_in_force(&mut self, moment: Moment) {
        if self.is_shut_down() {
            return;
        }
        // If the clock cannot be read, the next call reports the change.
        let Ok(now) = self.datapath.now() else { return };
        let is_panic = self.overrides.hold.as_ref().is_some_and(Hold::is_panic);
        let (past, policy) = (&self.journal.past, &self.enforced.desired.policy);
        self.announced.tell(past, policy, is_panic, now, moment.wall);
    }
}
