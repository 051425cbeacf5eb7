//! Starts and ends of conditions: protected interfaces, and new sources beyond what can be tracked or is admitted.
//! Pure: times are durations since the daemon's start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ratelimit_common::verdict::Reason;

use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use ratelimit_datapath::{Datapath, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Overload, overload};

/// Time without a packet after which a condition has ended.
const QUIET: Duration = Duration::from_secs(30);

/// Conditions as of the last look.
#[derive(Debug, Default)]
pub(super) struct Spells {
    protected: BTreeSet<String>,
    overload: Spell,
    /// Excess of new sources by rule name.
    rules: BTreeMap<String, Rule>,
}

#[derive(Debug, Default)]
struct Rule {
    spell: Spell,
    /// Dropped packets of new sources, as of the last look.
    dropped: Option<u64>,
}

/// Condition that comes and goes, with the time of its last observation.
#[derive(Clone, Copy, Debug, Default)]
struct Spell(Option<Duration>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Begins,
    Ends,
}

impl Spell {
    /// Updates the condition. Returns a change if it starts or ends.
    fn look(&mut self, is_seen: bool, now: Duration) -> Option<Change> {
        match (self.0, is_seen) {
            (seen, true) => {
                self.0 = Some(now);
                seen.is_none().then_some(Change::Begins)
            }
            (Some(seen), false) if now.saturating_sub(seen) >= QUIET => {
                self.0 = None;
                Some(Change::Ends)
            }
            (Some(_) | None, false) => None,
        }
    }
}

impl Spells {
    /// Returns the conditions that started or ended since the last look.
    fn look(&mut self, reading: &Reading, policy: &Policy, attached: Vec<String>, now: Duration) -> Vec<Occurrence> {
        let mut notes = self.interfaces(attached);
        let words = match self.overload.look(overload(reading) == Overload::Sampling, now) {
            Some(Change::Begins) => {
                Some("more new sources come than can be remembered: packets of unknown ones are sampled")
            }
            Some(Change::Ends) => Some("all new sources can be remembered again"),
            None => None,
        };
        notes.extend(words.map(|words| Occurrence::new(EventKind::Overload, words)));
        self.rules.retain(|name, _| policy.rules.iter().any(|rule| rule.name == *name));
        for (at, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| rule.new_sources.is_some()) {
            let of = reading.interfaces.iter().filter_map(|interface| interface.rules.get(at));
            let dropped = of.fold(0, |sum: u64, of| sum.saturating_add(of.of(Reason::NewSourceBudget).packets));
            let known = self.rules.entry(rule.name.clone()).or_default();
            let is_seen = known.dropped.replace(dropped).is_some_and(|before| dropped > before);
            let words = match known.spell.look(is_seen, now) {
                Some(Change::Begins) => format!(
                    "rule {}: more new sources come than it admits: packets of the others are dropped",
                    rule.name
                ),
                Some(Change::Ends) => format!("rule {}: all new sources are admitted again", rule.name),
                None => continue,
            };
            notes.push(Occurrence::new(EventKind::Overload, words).of(&rule.name));
        }
        notes
    }

    fn interfaces(&mut self, attached: Vec<String>) -> Vec<Occurrence> {
        let attached: BTreeSet<String> = attached.into_iter().collect();
        let before = std::mem::replace(&mut self.protected, attached);
        let come = self.protected.difference(&before);
        let come = come.map(|name| Occurrence::new(EventKind::Attach, format!("{name} is protected")));
        let gone = before.difference(&self.protected);
        let gone = gone.map(|name| Occurrence::new(EventKind::Detach, format!("{name} is NOT PROTECTED any more")));
        come.chain(gone).collect()
    }

    /// Forgets an interface that a command detached and already reported.
    pub(super) fn detached(&mut self, interface: &str) {
        self.protected.remove(interface);
    }
}

impl<D: Datapath> Engine<D> {
    /// Reports started and ended conditions, continuing refusals, and totals of each minute.
    pub(super) fn tell_state(&mut self, reading: &Reading, moment: Moment) {
        let attached = self.watched.links.attached_names();
        let policy = &self.enforced.desired.policy;
        for note in self.watched.spells.look(reading, policy, attached, moment.uptime) {
            if note.kind == EventKind::Overload {
                tracing::warn!(rule = note.rule, "{}", note.detail);
            }
            self.journal.add(note);
        }
        if let Some((minute, rows)) = self.watched.totals.look(reading, policy, moment.wall) {
            let _is_kept = self.journal.past.totals(minute, rows);
        }
        self.tell_progress(reading, moment);
        self.take_up(reading, moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_begins_at_once_and_ends_when_it_was_quiet_for_a_while() {
        let mut spell = Spell::default();
        let mut look = |is_seen, second| spell.look(is_seen, Duration::from_secs(second));
        assert_eq!(look(false, 0), None);
        assert_eq!(look(true, 2), Some(Change::Begins));
        assert_eq!(look(false, 4), None);
        assert_eq!(look(true, 30), None);
        assert_eq!(look(false, 59), None, "seen 29 seconds before");
        assert_eq!(look(false, 60), Some(Change::Ends));
        assert_eq!(look(false, 62), None);
        assert_eq!(look(true, 64), Some(Change::Begins));
    }

    #[test]
    fn an_interface_is_told_of_when_it_comes_and_when_it_goes() {
        let mut spells = Spells::default();
        let mut look = |names: &[&str]| {
            let notes = spells.interfaces(names.iter().map(ToString::to_string).collect());
            notes.into_iter().map(|note| (note.kind, note.detail)).collect::<Vec<_>>()
        };
        assert_eq!(look(&["eth0"]), [(EventKind::Attach, "eth0 is protected".to_owned())]);
        assert_eq!(look(&["eth0"]), []);
        let gone = (EventKind::Detach, "eth0 is NOT PROTECTED any more".to_owned());
        assert_eq!(look(&["eth1"]), [(EventKind::Attach, "eth1 is protected".to_owned()), gone]);
        spells.detached("eth1");
        assert!(spells.interfaces(vec![]).is_empty(), "a command has told it");
    }
}
