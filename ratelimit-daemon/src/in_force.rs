//! Tells the history what is enforced, whenever that changes: by a command, a file, a trial, the breaker, a rule's end, or a
//! time without a daemon. The history ends the episodes of whatever is enforced no more.

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

/// What the history was told last.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// What comes before the next policy: a time without enforcement, or new maps.
    before: Vec<InForce>,
    latest: Option<Latest>,
    /// How long ago the next change happened, where it is noticed later.
    changed_ago: Option<Duration>,
}

#[derive(Debug)]
struct Latest {
    rules: Vec<Judging>,
    is_panic: bool,
}

/// A rule, as far as episodes are about it.
#[derive(Debug)]
struct Judging {
    name: String,
    mode: Mode,
    limits: Vec<Limit>,
    shadow_limits: Vec<Limit>,
}

impl Announced {
    /// Says first that nothing was enforced from a time on, or that all windows and bans are new.
    pub(super) fn precede(&mut self, of: InForce) {
        self.before.push(of);
        self.latest = None;
    }

    /// A history that was opened anew knows nothing of it.
    pub(super) fn outdate(&mut self) {
        self.latest = None;
    }

    /// The next change happened so long before it was noticed.
    pub(super) const fn happened_ago(&mut self, ago: Duration) {
        self.changed_ago = Some(ago);
    }

    /// Tells the history what is in force now, where that has changed. What finds no room is told with the next call.
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
    /// Tells the history what is in force now, where that has changed.
    pub(super) fn tell_in_force(&mut self, moment: Moment) {
        if self.is_shut_down() {
            return;
        }
        // Where the clock cannot be read, the next call tells it.
        let Ok(now) = self.datapath.now() else { return };
        let is_panic = self.overrides.hold.as_ref().is_some_and(Hold::is_panic);
        let (past, policy) = (&self.journal.past, &self.enforced.desired.policy);
        self.announced.tell(past, policy, is_panic, now, moment.wall);
    }
}
