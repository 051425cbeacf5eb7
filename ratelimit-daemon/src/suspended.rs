//! A machine that was suspended: the kernel's monotonic clock stood still, and all that ends, ends later by that. So the
//! packet path's clock is moved ahead, once for each time.

use std::time::Duration;

use ratelimit_common::time::SECOND_NS;

use super::engine::Engine;
use super::journal::Occurrence;
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::duration;
use ratelimit_report::event::EventKind;

impl<D: Datapath> Engine<D> {
    /// Looks whether the machine was suspended. What was left of windows, bans and entries goes on at the time that it is
    /// now.
    pub(super) fn notice_suspension(&mut self) {
        match self.datapath.catch_up() {
            Ok(None) => {}
            Ok(Some(suspended)) => {
                // Before packets have the new time, by which the last beat may be long ago.
                self.beat();
                self.enforced.must_apply = true;
                let seconds = (suspended + Duration::from_millis(500)).as_secs().saturating_mul(SECOND_NS);
                let said = format!(
                    "the machine was suspended for {}: windows, bans and entries go on at the time that it is now",
                    duration::words(seconds)
                );
                tracing::info!("{said}");
                self.journal.add(Occurrence::new(EventKind::Reload, said));
            }
            Err(error) => tracing::debug!("look whether the machine was suspended: {:#}", anyhow::Error::from(error)),
        }
    }
}
