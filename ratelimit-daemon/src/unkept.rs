//! Changes by commands that could not be saved. Saving is retried, because a full disk may be emptied.

use std::io;
use std::time::Duration;

use super::engine::Engine;
use super::moment::Moment;
use ratelimit_datapath::Datapath;
use ratelimit_report::snapshot::Clocks;

/// Interval between retries. The saved grants may be megabytes.
const TRY_EVERY: Duration = Duration::from_secs(10);

/// Reasons why the state files are not up to date, if any.
#[derive(Debug, Default)]
pub(super) struct Unkept {
    access: Option<String>,
    hold: Option<String>,
    again_at: Option<Duration>,
}

impl<D: Datapath> Engine<D> {
    /// Saves the grants of commands for later runs.
    pub(super) fn keep_grants(&mut self, clocks: Clocks) -> io::Result<()> {
        let kept = self.overrides.grants.keep(&self.host.store, clocks);
        self.unkept.access = why(&kept);
        kept
    }

    /// Saves the hold for later runs.
    pub(super) fn keep_hold(&mut self) -> io::Result<()> {
        let kept = self.overrides.keep_hold(&self.host.store, self.enforced.config.on_exit);
        self.unkept.hold = why(&kept);
        kept
    }

    /// Describes what a restart would forget, and why.
    pub(super) fn unkept_words(&self) -> Option<String> {
        self.unkept_changes().or_else(|| {
            let why = self.list_copies.trouble()?;
            Some(format!("A RESTART FORGETS which version of a list file is in force: {why}; saving is tried again"))
        })
    }

    fn unkept_changes(&self) -> Option<String> {
        let why = [self.unkept.access.as_deref(), self.unkept.hold.as_deref(), self.fleet.unkept()];
        let why = why.into_iter().flatten().next()?;
        Some(format!("A RESTART FORGETS the changes by commands: {why}; saving is tried again"))
    }

    /// Retries failed saves when due.
    pub(super) fn keep_again(&mut self, clocks: Clocks, moment: Moment) {
        if self.unkept_changes().is_none() {
            self.unkept.again_at = None;
            return;
        }
        if *self.unkept.again_at.get_or_insert(moment.uptime + TRY_EVERY) > moment.uptime {
            return;
        }
        self.unkept.again_at = Some(moment.uptime + TRY_EVERY);
        // The reason is shown elsewhere, and the first failure was logged.
        let _ = self.unkept.access.is_some().then(|| self.keep_grants(clocks));
        let _ = self.unkept.hold.is_some().then(|| self.keep_hold());
        self.fleet.keep_again(&self.host.store);
        if self.unkept_changes().is_none() {
            tracing::info!("the changes by commands are saved now: a restart keeps them");
        }
        self.statistics.outdate();
    }
}

fn why(kept: &io::Result<()>) -> Option<String> {
    kept.as_ref().err().map(ToString::to_string)
}
