//! Heartbeat of the dead man's switch, which limits how long enforcement continues without this process.

use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use ratelimit_datapath::Datapath;
use ratelimit_history::{InForce, Judged};
use ratelimit_policy::config::Config;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::Clocks;

/// Upper bound in nanoseconds for reading a file with its lists and applying it. A million prefixes take some
/// seconds.
const BUSY_NS: u64 = 60_000_000_000;

impl<D: Datapath> Engine<D> {
    /// Sends a heartbeat to the packet path. Called far more often than the shortest possible timeout.
    pub(super) fn beat(&mut self) {
        self.beat_for(0);
    }

    /// Sends a heartbeat that extends the timeout by a minute, before an operation that may take longer.
    pub(super) fn beat_ahead(&mut self) {
        self.beat_for(BUSY_NS);
    }

    fn beat_for(&mut self, more_ns: u64) {
        let after = self.enforced.config.safety.without_daemon_ns.map(|after| after.saturating_add(more_ns));
        let until = |now: Nanos| after.map(|after| Nanos(now.0.saturating_add(after)));
        let said = self.datapath.now().and_then(|now| self.datapath.lapse_at(until(now)));
        let was_beating = std::mem::replace(&mut self.watched.is_beating, said.is_ok());
        match (said, was_beating) {
            (Ok(()), true) => {}
            (Ok(()), false) => tracing::info!("the packet path receives this daemon's heartbeat again"),
            (Err(error), true) => {
                let error = anyhow::Error::from(error);
                tracing::error!("send the heartbeat to the packet path: {error:#}");
            }
            (Err(error), false) => {
                tracing::debug!("send the heartbeat to the packet path, again: {:#}", anyhow::Error::from(error))
            }
        }
    }

    /// Switches to another configuration. The packet path learns its `without_daemon` before any user does. Returns
    /// the previous configuration.
    pub(super) fn hold_to(&mut self, config: Config) -> Config {
        let before = std::mem::replace(&mut self.enforced.config, config);
        self.beat();
        before
    }

    /// Sends a heartbeat. Reports if enforcement had lapsed before it, because no daemon ran or this one hung.
    pub(super) fn beat_and_tell(&mut self, moment: Moment) {
        let lapsed = match (self.datapath.lapse(), self.datapath.now()) {
            (Ok(Some(at)), Ok(now)) if at <= now => Some(Clocks { now, wall: moment.wall }.wall_of(at)),
            (Ok(_) | Err(_), _) => None,
        };
        self.beat();
        if let Some(since) = lapsed {
            let said = format!(
                "NOTHING WAS DROPPED since {}: no daemon ran, or it hung, for longer than without_daemon; it enforces \
                 again",
                since.strftime("%F %T UTC")
            );
            tracing::warn!("{said}");
            self.announced.precede(InForce { time: since, judged: Judged::WithoutDaemon });
            self.journal.add(Occurrence::new(EventKind::Attach, said));
        }
    }
}
