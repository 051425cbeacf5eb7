//! Commands that users of this host gave for the whole fleet. They are saved in a state file until the store has
//! them, so a restart while the store is away loses none. Bans are not saved: this host's kernel state keeps them,
//! and other hosts start their own.

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use crate::store::Store;
use ratelimit_fleet::acts::{ACTS_MAX, Begun, What};
use ratelimit_fleet::run::{Fleet, Status};

/// Name of the state file.
const NAME: &str = "fleet-acts.json";

/// Commands that the store has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Kept {
    saved: Saved,
    /// Number of the last command.
    last: u64,
    /// Number of the last command given to this fleet's task.
    given: u64,
    /// Reason why the file is not up to date, if it is not.
    unsaved: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    /// Name of the fleet that the commands are for.
    fleet: String,
    /// Commands in the order of their numbers.
    acts: Vec<Begun>,
}

impl Kept {
    /// Restores the commands that an earlier run did not deliver, and numbers them again.
    pub(super) fn recall(&mut self, store: &Store) {
        self.saved = store.load(NAME).unwrap_or_default();
        for act in &mut self.saved.acts {
            self.last += 1;
            act.number = self.last;
        }
    }

    /// Prepares for a new task, which is given all commands again. Drops commands for another fleet.
    pub(super) fn begin(&mut self, fleet: &str, store: &Store) {
        self.given = 0;
        if self.saved.fleet != fleet && !self.saved.acts.is_empty() {
            let count = self.saved.acts.len();
            tracing::warn!("fleet: {count} commands were not sent to fleet {}, and are dropped", self.saved.fleet);
            self.saved.acts.clear();
            self.save(store).unwrap_or_else(|error| tracing::warn!("{error}"));
        }
        fleet.clone_into(&mut self.saved.fleet);
    }

    /// Adds commands for all hosts, and saves them.
    ///
    /// # Errors
    /// Fails if a restart would lose the commands.
    pub(super) fn add(
        &mut self,
        fleet: &str,
        said: impl IntoIterator<Item = (IpNet, What)>,
        now: Nanos,
        store: &Store,
    ) -> std::io::Result<()> {
        if self.saved.fleet != fleet {
            self.begin(fleet, store);
        }
        for (prefix, what) in said {
            if self.saved.acts.len() == ACTS_MAX {
                return Err(std::io::Error::other(format!("{ACTS_MAX} commands wait already")));
            }
            self.last += 1;
            self.saved.acts.push(Begun { number: self.last, at_ns: now.0, prefix, what });
        }
        self.save(store)
    }

    /// Gives the task the commands that it lacks, in order, until its queue is full.
    pub(super) fn give(&mut self, fleet: &Fleet) {
        let given = self.given;
        for act in self.saved.acts.iter().filter(|act| act.number > given) {
            if !fleet.spread(act.clone()) {
                return;
            }
            self.given = act.number;
        }
    }

    /// Removes commands that the store has or that are obsolete.
    pub(super) fn settle(&mut self, status: &Status, store: &Store) {
        let is_open = |act: &Begun| act.number > status.acts_taken || status.acts_unsaid.contains(&act.number);
        let before = self.saved.acts.len();
        self.saved.acts.retain(is_open);
        if self.saved.acts.len() != before
            && let Err(error) = self.save(store)
        {
            tracing::warn!("{error}; a restart sends the fleet these commands once more");
        }
    }

    /// Returns the reason why a restart would lose commands, if it would.
    pub(super) fn unsaved(&self) -> Option<&str> {
        self.unsaved.as_deref()
    }

    /// Retries a failed save.
    pub(super) fn save_again(&mut self, store: &Store) {
        if self.unsaved.is_some() {
            // The reason is shown elsewhere, and the first failure was logged.
            let _ = self.save(store);
        }
    }

    fn save(&mut self, store: &Store) -> std::io::Result<()> {
        let saved = if self.saved.acts.is_empty() {
            store.remove(NAME);
            Ok(())
        } else {
            store.save(NAME, &self.saved)
        };
        self.unsaved = saved.as_ref().err().map(ToString::to_string);
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undeny() -> (IpNet, What) {
        ("192.0.2.0/24".parse().unwrap(), What::Undeny { by: "root".to_owned() })
    }

    #[test]
    fn acts_not_taken_by_the_store_survive_a_restart_and_taken_ones_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let mut kept = Kept::default();
        kept.add("web", [undeny(), undeny(), undeny()], Nanos(5), &store).unwrap();
        let numbers = |kept: &Kept| kept.saved.acts.iter().map(|act| (act.number, act.at_ns)).collect::<Vec<_>>();
        kept.settle(&Status { acts_taken: 2, acts_unsaid: vec![2], ..Status::default() }, &store);
        assert_eq!(numbers(&kept), [(2, 5), (3, 5)], "the third is on its way to the task");
        let mut anew = Kept::default();
        anew.recall(&store);
        anew.begin("web", &store);
        assert_eq!(numbers(&anew), [(1, 5), (2, 5)]);
        anew.settle(&Status::default(), &store);
        assert_eq!(anew.saved.acts.len(), 2, "a task that was not given them says nothing of them");
        anew.settle(&Status { acts_taken: 2, ..Status::default() }, &store);
        assert!(anew.saved.acts.is_empty() && !store.path(NAME).exists());
    }

    #[test]
    fn acts_for_one_fleet_are_not_sent_to_another() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let mut kept = Kept::default();
        kept.add("web", [undeny()], Nanos(5), &store).unwrap();
        kept.begin("other", &store);
        assert!(kept.saved.acts.is_empty() && !store.path(NAME).exists());
    }

    #[test]
    fn acts_that_cannot_be_kept_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let mut kept = Kept::default();
        let many = || (0..ACTS_MAX).map(|_| undeny());
        kept.add("web", many(), Nanos(5), &store).unwrap();
        let full = kept.add("web", [undeny()], Nanos(5), &store).unwrap_err();
        assert!(full.to_string().contains("wait already"), "{full}");
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(Kept::default().add("web", [undeny()], Nanos(5), &Store::at(file)).is_err());
    }
}
