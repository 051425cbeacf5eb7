//! What keeps rules from dropping whatever the configuration says: `panic`, `mode dry-run`, and the breaker.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::breaker::{Share, Trip};
use super::engine::{Engine, Moment};
use ratelimit_control::Requester;
use ratelimit_control::proto::{ModeReport, ModeWord, Problem};
use ratelimit_datapath::{Datapath, Reading};
use ratelimit_policy::config::OnExit;
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::desired::{Mode, Policy, Rule};
use ratelimit_report::snapshot::{self, RuleMode, SCHEMA};

/// The file that remembers it, where the filter outlives the daemon.
const FILE: &str = "mode.json";

/// Somebody has said that nothing is to be dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    word: ModeWord,
    user: String,
    since: Timestamp,
}

impl Hold {
    fn label(&self) -> &'static str {
        match self.word {
            ModeWord::Panic => "PANIC",
            ModeWord::DryRun | ModeWord::Enforce => "DRY RUN",
        }
    }

    /// In a clause, for the log and the status line.
    pub(super) fn words(&self) -> String {
        format!("{} by {} since {}, NOTHING IS DROPPED", self.label(), self.user, self.since.strftime("%F %T UTC"))
    }

    /// The same in the statistics.
    pub(super) fn report(&self) -> snapshot::Hold {
        let is_panic = self.word == ModeWord::Panic;
        snapshot::Hold { panic: is_panic, by: self.user.clone(), since: self.since }
    }
}

impl<D: Datapath> Engine<D> {
    /// Finds again what was said to an earlier run. Where the filter ends with the daemon, so does this.
    pub(super) fn recall_hold(&mut self) {
        if self.config.on_exit == OnExit::Detach {
            return;
        }
        self.hold = self.host.store.load(FILE).map(|hold: Hold| Hold { user: printable(&hold.user), ..hold });
        if let Some(hold) = &self.hold {
            tracing::error!("{}; `ratelimitd mode enforce` ends it", hold.words());
        }
    }

    /// Makes every rule drop nothing, or what the configuration says.
    pub(super) fn set_mode(&mut self, word: ModeWord, by: &Requester, moment: Moment) -> Result<ModeReport, Problem> {
        let now = self.clocks(moment)?.now;
        let user = by.to_string();
        let mut notes = Vec::new();
        let hold = match word {
            ModeWord::Enforce => {
                self.settled(now)?;
                None
            }
            ModeWord::DryRun | ModeWord::Panic => {
                if self.pending.is_some() {
                    notes.push("the file that was on trial is rolled back".to_owned());
                    self.forget_trial("the mode was changed before it was confirmed");
                }
                Some(Hold { word, user: user.clone(), since: moment.wall })
            }
        };
        let changed = hold.is_some() != self.hold.is_some() || (hold.is_none() && self.breaker.tripped().count() > 0);
        let before = std::mem::replace(&mut self.hold, hold);
        if word == ModeWord::Enforce {
            self.breaker.close();
        }
        if let Err(error) = self.put_in_force(now) {
            self.hold = before;
            return Err(Problem::datapath(error));
        }
        self.remember_hold(&mut notes);
        match &self.hold {
            Some(hold) => tracing::error!(user, "{}; `ratelimitd mode enforce` ends it", hold.words()),
            None => tracing::warn!(user, "mode enforce, as {user} said: {}", what_each_does(&self.desired.policy)),
        }
        self.newest = None;
        let rules = self.desired.policy.rules.iter();
        let rules = rules.map(|rule| RuleMode { name: rule.name.clone(), mode: rule.mode.into() }).collect();
        Ok(ModeReport { schema: SCHEMA, mode: word, changed, rules, notes })
    }

    fn remember_hold(&self, notes: &mut Vec<String>) {
        match (&self.hold, self.config.on_exit) {
            (Some(hold), OnExit::Keep) => {
                if let Err(error) = self.host.store.save(FILE, hold) {
                    tracing::error!("{error}; a restart ends it");
                    notes.push(format!("a restart ends it: {error}"));
                }
            }
            (Some(_), OnExit::Detach) | (None, _) => self.host.store.remove(FILE),
        }
    }

    /// Rules that drop more than they may fall back to dry-run; one of a file on trial rolls that back.
    pub(super) fn watch_breaker(&mut self, reading: &Reading, moment: Moment) {
        let Some(percent) = self.config.safety.breaker else { return };
        let hold = Duration::from_nanos(self.config.safety.breaker_after_ns);
        let trips = self.breaker.observe(&self.desired.policy, reading, moment.uptime, Share { percent, hold });
        let Some(first) = trips.first() else { return };
        if self.pending.is_some() {
            trips.iter().for_each(|trip| self.breaker.take_back(trip));
            self.forget_trial(&format!("rule {} {}", first.rule, what_it_did(first, percent)));
        } else {
            for trip in &trips {
                tracing::error!(
                    rule = trip.rule,
                    "RULE {} FALLS BACK TO DRY RUN: it {}; see whether its limit is right, then `ratelimitd mode enforce`",
                    trip.rule,
                    what_it_did(trip, percent)
                );
            }
        }
        if let Err(error) = self.put_in_force(reading.now) {
            tracing::error!("fall back: {:#}", anyhow::Error::from(error));
        }
    }

    /// The rules with what keeps them from dropping.
    pub(super) fn hold_back(&self, policy: &mut Policy) {
        for rule in &mut policy.rules {
            if self.hold.is_some() || self.breaker.has_tripped(&rule.name) {
                rule.mode = Mode::DryRun;
            }
        }
    }
}

/// What is in dry run now that nothing holds it back is so by the configuration.
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
