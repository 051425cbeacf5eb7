//! Overrides that stop rules from dropping, whatever the configuration says: `panic`, `mode dry-run`, and the
//! breaker.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::breaker::{Share, Trip};
use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use super::overrides::Overrides;
use super::store::Store;
use ratelimit_control::Requester;
use ratelimit_control::proto::{ModeReport, ModeWord, Problem};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Datapath, Reading};
use ratelimit_policy::config::OnExit;
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::desired::{Mode, Policy, Rule};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{self, RuleMode, SCHEMA};

/// Name of the state file with the hold, used if the filter survives the daemon.
const FILE: &str = "mode.json";

/// Order of an administrator that nothing is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    word: ModeWord,
    user: String,
    since: Timestamp,
}

impl Hold {
    /// Creates a hold that starts at `since`.
    pub(super) fn new(word: ModeWord, by: &Requester, since: Timestamp) -> Self {
        Self { word, user: by.to_string(), since }
    }

    fn label(&self) -> &'static str {
        match self.word {
            ModeWord::Panic => "PANIC",
            ModeWord::DryRun | ModeWord::Enforce => "DRY RUN",
        }
    }

    /// Returns true if everything must pass.
    pub(super) fn is_panic(&self) -> bool {
        self.word == ModeWord::Panic
    }

    /// Describes the hold in a clause for the log and the status line.
    pub(super) fn words(&self) -> String {
        format!("{} by {} since {}, NOTHING IS DROPPED", self.label(), self.user, self.since.strftime("%F %T UTC"))
    }

    /// Returns the hold for the statistics.
    pub(super) fn report(&self) -> snapshot::Hold {
        snapshot::Hold { panic: self.is_panic(), by: self.user.clone(), since: self.since }
    }
}

impl Overrides {
    /// Saves the hold for later runs if the filter survives the daemon. Otherwise removes the file.
    pub(super) fn keep_hold(&self, store: &Store, on_exit: OnExit) -> io::Result<()> {
        match (&self.hold, on_exit) {
            (Some(hold), OnExit::Keep) => store.save(FILE, hold),
            (Some(_), OnExit::Detach) | (None, _) => {
                store.remove(FILE);
                Ok(())
            }
        }
    }
}

impl<D: Datapath> Engine<D> {
    /// Restores the hold of an earlier run. If the filter ends with the daemon, so does the hold.
    pub(super) fn recall_hold(&mut self) {
        if self.enforced.config.on_exit == OnExit::Detach {
            return;
        }
        self.overrides.hold = self.host.store.load(FILE).map(|hold: Hold| Hold { user: printable(&hold.user), ..hold });
        if let Some(hold) = &self.overrides.hold {
            tracing::error!("{}; `ratelimitd mode enforce` ends it", hold.words());
        }
    }

    /// Sets the mode of all rules: drop nothing, or follow the configuration.
    pub(super) fn set_mode(&mut self, word: ModeWord, by: &Requester, moment: Moment) -> Result<ModeReport, Problem> {
        let now = self.clocks(moment)?.now;
        let user = by.to_string();
        let mut notes = Vec::new();
        let hold = match word {
            ModeWord::Enforce => {
                self.trials.settled(now)?;
                None
            }
            ModeWord::DryRun | ModeWord::Panic => {
                if self.trials.pending.is_some() {
                    notes.push("the file that was on trial is rolled back".to_owned());
                    self.forget_trial("the mode was changed before it was confirmed");
                }
                Some(Hold::new(word, by, moment.wall))
            }
        };
        let changed = hold.is_some() != self.overrides.hold.is_some()
            || (hold.is_none() && self.overrides.breaker.tripped().count() > 0);
        let before = (std::mem::replace(&mut self.overrides.hold, hold), self.overrides.breaker.clone());
        if word == ModeWord::Enforce {
            for rule in self.overrides.breaker.tripped() {
                let said = format!("rule {rule} follows the configuration again, by command of {user}");
                self.journal.add(Occurrence::new(EventKind::Breaker, said).of(rule).by(by));
            }
            self.overrides.breaker.close();
        }
        if let Err(error) = self.put_in_force(now) {
            (self.overrides.hold, self.overrides.breaker) = before;
            return Err(Problem::datapath(error));
        }
        reach(Point::ModeApplied);
        self.remember_hold(&mut notes);
        reach(Point::ModeKept);
        let said = match &self.overrides.hold {
            Some(hold) => {
                tracing::error!(user, "{}; `ratelimitd mode enforce` ends it", hold.words());
                hold.words()
            }
            None => {
                let said =
                    format!("mode enforce, by command of {user}: {}", what_each_does(&self.enforced.desired.policy));
                tracing::warn!(user, "{said}");
                said
            }
        };
        self.journal.add(Occurrence::new(EventKind::Reload, said).by(by));
        self.statistics.outdate();
        let rules = self.enforced.desired.policy.rules.iter();
        let rules = rules.map(|rule| RuleMode { name: rule.name.clone(), mode: rule.mode }).collect();
        Ok(ModeReport { schema: SCHEMA, mode: word, changed, rules, notes })
    }

    fn remember_hold(&mut self, notes: &mut Vec<String>) {
        if let Err(error) = self.keep_hold() {
            tracing::error!("{error}; a restart ends it, unless it is saved before then");
            notes.push(format!("a restart ends it: {error}; saving is tried again"));
        }
    }

    /// Puts rules that drop too large a share into dry run. During a trial, rolls the trial back instead.
    pub(super) fn watch_breaker(&mut self, reading: &Reading, moment: Moment) {
        let Some(percent) = self.enforced.config.safety.breaker else { return };
        let hold = Duration::from_nanos(self.enforced.config.safety.breaker_after_ns);
        let trips = self.overrides.breaker.observe(
            &self.enforced.desired.policy,
            reading,
            moment.uptime,
            Share { percent, hold },
        );
        let Some(first) = trips.first() else { return };
        if self.trials.pending.is_some() {
            trips.iter().for_each(|trip| self.overrides.breaker.take_back(trip));
            self.forget_trial(&format!("rule {} {}", first.rule, what_it_did(first, percent)));
        } else {
            for trip in &trips {
                tracing::error!(
                    rule = trip.rule,
                    "RULE {} FALLS BACK TO DRY RUN: it {}; see whether its limit is right, then `ratelimitd mode enforce`",
                    trip.rule,
                    what_it_did(trip, percent)
                );
                let said = format!("rule {} falls back to dry run: it {}", trip.rule, what_it_did(trip, percent));
                self.journal.add(Occurrence::new(EventKind::Breaker, said).of(&trip.rule));
            }
        }
        if let Err(error) = self.put_in_force(reading.now) {
            tracing::error!("put rules into dry run: {:#}", anyhow::Error::from(error));
        }
    }
}

/// Describes the mode of each rule. Without a hold, a rule in dry run follows the configuration.
fn what_each_does(policy: &Policy) -> String {
    let word = |rule: &Rule| match rule.mode {
        Mode::Enforce => format!("rule {} drops what is over its limit", rule.name),
        Mode::DryRun => format!("rule {} stays in dry run, as the configuration says", rule.name),
    };
    policy.rules.iter().map(word).collect::<Vec<_>>().join("; ")
}

fn what_it_did(trip: &Trip, percent: u8) -> String {
    format!("dropped {} of {} packets, more than {percent} %", trip.dropped, trip.packets)
}
