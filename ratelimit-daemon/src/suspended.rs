//! Correction after a suspension of the machine. The kernel's monotonic clock stood still, so all expiries are late
//! by that time. The packet path's clock is moved ahead, once per suspension.

use std::time::Duration;

use ratelimit_common::time::SECOND_NS;

use super::engine::Engine;
use super::journal::Occurrence;
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::duration;
use ratelimit_report::event::EventKind;

impl<D: Datapath> Engine<D> {
    /// Checks whether the machine was suspended, and moves the clock ahead. Windows, bans and entries continue at the
    /// current time.
    pub(super) fn notice_suspension(&mut self) {
        match self.datapath.catch_up() {
            Ok(None) => {}
            Ok(Some(suspended)) => {
                // This precedes the new clock, by which the last heartbeat may be long ago.
                self.beat();
                self.enforced.must_apply = true;
                let seconds = (suspended + Duration::from_millis(500)).as_secs().saturating_mul(SECOND_NS);
                let said = format!(
                    "the machine was suspended for {}: windows, bans and entries continue at the current time",
                    duration::words(seconds)
                );
                tracing::info!("{said}");
                self.journal.add(Occurrence::new(EventKind::Reload, said));
            }
            Err(error) => tracing::debug!("check for a suspension of the machine: {:#}", anyhow::Error::from(error)),
        }
    }
}
