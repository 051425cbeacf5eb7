//! The heartbeat of the dead man's switch: how long enforcement goes on without this process.

use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use ratelimit_datapath::Datapath;
use ratelimit_history::{InForce, Judged};
use ratelimit_policy::config::Config;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::Clocks;

/// Reading a file and its lists and putting them in force takes no longer: a million prefixes take some seconds.
const BUSY_NS: u64 = 60_000_000_000;

impl<D: Datapath> Engine<D> {
    /// Says to the packet path that a daemon runs. Called far more often than the shortest time that it waits.
    pub(super) fn beat(&mut self) {
        self.beat_for(0);
    }

    /// Before what may take longer than the packet path waits: it waits for the next beat by a minute more.
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
            (Ok(()), false) => tracing::info!("the packet path knows again that this daemon runs"),
            (Err(error), true) => {
                let error = anyhow::Error::from(error);
                tracing::error!("tell the packet path that this daemon runs: {error:#}");
            }
            (Err(error), false) => tracing::debug!("likewise: {:#}", anyhow::Error::from(error)),
        }
    }

    /// Another configuration holds from now on: the packet path knows its `without_daemon` before anyone is told. Returns
    /// the one before.
    pub(super) fn hold_to(&mut self, config: Config) -> Config {
        let before = std::mem::replace(&mut self.enforced.config, config);
        self.beat();
        before
    }

    /// A beat. Where enforcement had lapsed before it, as no daemon ran, or this one hung, that is told.
    pub(super) fn beat_and_tell(&mut self, moment: Moment) {
        let lapsed = match (self.datapath.lapse(), self.datapath.now()) {
            (Ok(Some(at)), Ok(now)) if at <= now => Some(Clocks { now, wall: moment.wall }.wall_of(at)),
            (Ok(_) | Err(_), _) => None,
        };
        self.beat();
        if let Some(since) = lapsed {
            let said = format!(
                "NOTHING WAS DROPPED since {}, as no daemon had run, or it hung, for the time of without_daemon; it enforces again",
                since.strftime("%F %T UTC")
            );
            tracing::warn!("{said}");
            self.announced.precede(InForce { time: since, judged: Judged::WithoutDaemon });
            self.journal.add(Occurrence::new(EventKind::Attach, said));
        }
    }
}
