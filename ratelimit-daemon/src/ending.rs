//! Detaching of interfaces by command, and the end of the daemon.

use super::engine::Engine;
use super::journal::{Event, Occurrence};
use super::moment::Moment;
use super::past::CLOSE_WITHIN;
use ratelimit_control::Requester;
use ratelimit_control::proto::{DetachReport, Problem, ProblemKind};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Datapath, DatapathError};
use ratelimit_policy::config::OnExit;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::SCHEMA;

impl<D: Datapath> Engine<D> {
    /// Detaches one interface, or all. After the last one, the daemon stops.
    pub(super) fn detach(
        &mut self,
        interface: Option<&str>,
        by: &Requester,
        moment: Moment,
    ) -> Result<DetachReport, Problem> {
        let Some(interface) = interface else { return self.detach_all(by, moment) };
        if !self.enforced.desired.interfaces.iter().any(|known| known == interface) {
            let ours = self.enforced.desired.interfaces.join(", ");
            let why = format!("this daemon does not protect {interface}; it protects {ours}");
            return Err(Problem::new(ProblemKind::NotFound, why));
        }
        if self.enforced.desired.interfaces.len() == 1 {
            return self.detach_all(by, moment);
        }
        self.datapath.detach(interface).map_err(Problem::datapath)?;
        self.enforced.desired.interfaces.retain(|known| known != interface);
        self.watched.links.forget(interface);
        self.statistics.outdate();
        tracing::info!(interface, "detached from {interface} by command; a reload attaches it again");
        self.journal.add(Occurrence::new(EventKind::Detach, format!("detached from {interface} by {by}")).by(by));
        self.watched.spells.detached(interface);
        Ok(DetachReport { schema: SCHEMA, detached: vec![interface.to_owned()], stopping: false })
    }

    fn detach_all(&mut self, by: &Requester, moment: Moment) -> Result<DetachReport, Problem> {
        self.end(OnExit::Detach, Some(by), moment).map_err(Problem::datapath)?;
        let detached = std::mem::take(&mut self.enforced.desired.interfaces);
        Ok(DetachReport { schema: SCHEMA, detached, stopping: true })
    }

    /// Returns true if everything is detached, so that nothing is left to do.
    pub(super) fn is_shut_down(&self) -> bool {
        self.enforced.desired.interfaces.is_empty()
    }

    /// Ends as the configuration says, unless everything is detached already.
    pub(super) fn shutdown(&mut self, moment: Moment) -> Result<(), DatapathError> {
        if self.is_shut_down() {
            return Ok(());
        }
        self.end(self.enforced.config.on_exit, None, moment)
    }

    fn end(&mut self, left: OnExit, by: Option<&Requester>, moment: Moment) -> Result<(), DatapathError> {
        self.tell_begun(moment);
        self.settle_fleet();
        self.settle_logs(moment);
        let reading = self.datapath.read().ok();
        let done = self.statistics.done(reading.as_ref(), moment.uptime);
        reach(Point::EndTold);
        self.datapath.shutdown(left)?;
        reach(Point::EndDatapath);
        let interfaces = self.watched.links.attached_names();
        if !interfaces.is_empty() {
            let by = by.map(ToString::to_string);
            self.journal.tell(Event::Detach { interfaces, left, by, done }, moment);
        }
        self.journal.say_unlogged();
        if left == OnExit::Detach {
            self.journal.past.ends_detached(moment.wall);
        }
        self.journal.past.close(CLOSE_WITHIN);
        reach(Point::EndHistory);
        Ok(())
    }
}
