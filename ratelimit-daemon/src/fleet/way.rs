//! Bounded channel from the fleet's task to the owner of the datapath. Each request is small enough for the owner to
//! serve in a moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_common::window::Cell;
use tokio::sync::{mpsc, oneshot};

use super::limits::SharedLimits;
use crate::engine::Engine;
use crate::moment::Moment;
use ratelimit_datapath::{Datapath, DatapathError, LimitAt};
use ratelimit_fleet::acts::Act;
use ratelimit_fleet::run::Kernel;
use ratelimit_fleet::tracked::{Count, LimitId, Subject, Told};
use ratelimit_policy::fleet::FleetLimit;

/// Capacity of the channel. The task sends one request at a time, and acts of other hosts use it too.
const ASKS_MAX: usize = 4;
/// Maximum number of sources looked up by one request. // a microsecond each
const READ_AT_ONCE: usize = 512;
/// Maximum number of sums written by one request. // some microseconds each, as a program writes them
const WRITTEN_AT_ONCE: usize = 256;

/// Request of a fleet's task to the owner of the datapath.
#[derive(Debug)]
pub(crate) struct Ask {
    generation: u64,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Read { limits: Arc<[FleetLimit]>, subjects: Vec<Subject>, reply: oneshot::Sender<Vec<Option<Vec<Count>>>> },
    Write { limits: Arc<[FleetLimit]>, told: Vec<Told>, reply: oneshot::Sender<()> },
    Hear(Act),
}

/// Receiving end of the requests.
pub(crate) type Asks = mpsc::Receiver<Ask>;

/// Creates the channel of at most [`ASKS_MAX`] waiting requests.
pub(super) fn channel() -> (mpsc::Sender<Ask>, Asks) {
    mpsc::channel(ASKS_MAX)
}

/// Access to the datapath for the task of one fleet.
#[derive(Debug)]
pub(super) struct Way {
    asks: mpsc::Sender<Ask>,
    generation: u64,
    /// Limits as the task numbers them.
    limits: Arc<[FleetLimit]>,
}

/// Forwarder of other hosts' acts to the owner of the datapath.
#[derive(Debug)]
pub(super) struct Hear {
    asks: mpsc::Sender<Ask>,
    generation: u64,
}

impl Way {
    pub(super) fn new(asks: mpsc::Sender<Ask>, generation: u64, limits: Vec<FleetLimit>) -> Self {
        Self { asks, generation, limits: limits.into() }
    }

    pub(super) fn hear(&self) -> Hear {
        Hear { asks: self.asks.clone(), generation: self.generation }
    }

    /// Sends a request and waits for the answer. Returns the default value if the daemon has ended or the request was
    /// dropped.
    async fn ask<T: Default>(&self, work: impl FnOnce(oneshot::Sender<T>) -> Work) -> T {
        let (reply, answer) = oneshot::channel();
        if self.asks.send(Ask { generation: self.generation, work: work(reply) }).await.is_err() {
            return T::default();
        }
        answer.await.unwrap_or_default()
    }
}

impl Hear {
    /// Forwards all acts, one by one.
    pub(super) async fn all(self, mut acts: mpsc::Receiver<Act>) {
        while let Some(act) = acts.recv().await {
            if self.asks.send(Ask { generation: self.generation, work: Work::Hear(act) }).await.is_err() {
                return;
            }
        }
    }
}

impl Kernel for Way {
    async fn read(&mut self, subjects: Vec<Subject>) -> Vec<Option<Vec<Count>>> {
        let mut read = Vec::with_capacity(subjects.len());
        for piece in subjects.chunks(READ_AT_ONCE) {
            let (limits, subjects) = (Arc::clone(&self.limits), piece.to_vec());
            let mut counts = self.ask(|reply| Work::Read { limits, subjects, reply }).await;
            counts.resize(piece.len(), None);
            read.append(&mut counts);
        }
        read
    }

    async fn write(&mut self, told: Vec<Told>) {
        for piece in told.chunks(WRITTEN_AT_ONCE) {
            let (limits, told) = (Arc::clone(&self.limits), piece.to_vec());
            self.ask(|reply| Work::Write { limits, told, reply }).await;
        }
    }

    fn set_limits(&mut self, limits: &[FleetLimit]) {
        self.limits = limits.into();
    }
}

impl<D: Datapath> Engine<D> {
    /// Carries out a request of the fleet. Drops requests of an earlier fleet.
    pub(crate) fn carry_out_of_fleet(&mut self, ask: Ask, moment: Moment) {
        // The limits must match those in force.
        self.up_to_date().follow_fleet(moment);
        let Ask { generation, work } = ask;
        if generation != self.fleet.generation {
            return;
        }
        let failed = |what: &str, error| tracing::debug!("{what}: {:#}", anyhow::Error::from(error));
        match work {
            Work::Read { limits, subjects, reply } => {
                let counts = self.counts(&limits, &subjects).unwrap_or_else(|error| {
                    failed("read the counts of this host", error);
                    Vec::new()
                });
                // The task may be gone.
                drop(reply.send(counts));
            }
            Work::Write { limits, told, reply } => {
                if let Err(error) = self.write_told(&limits, &told) {
                    failed("write the counts of other hosts", error);
                }
                let _is_awaited = reply.send(());
            }
            Work::Hear(act) => self.hear(act, moment),
        }
    }

    fn counts(
        &mut self,
        limits: &[FleetLimit],
        subjects: &[Subject],
    ) -> Result<Vec<Option<Vec<Count>>>, DatapathError> {
        let mut counts = vec![None; subjects.len()];
        let Some(shared) = self.fleet.enforced() else { return Ok(counts) };
        for (at, places) in by_limit(shared, limits, subjects.iter().map(|subject| subject.limit)) {
            let clients: Vec<IpNet> =
                places.iter().filter_map(|place| subjects.get(*place)).map(|subject| subject.source).collect();
            let rule = self.enforced.desired.policy.rules.get(at.rule);
            let unit_bits = rule.and_then(|rule| rule.limits.get(at.limit)).map_or(0, |of| of.parts().unit_bits());
            let cells = self.datapath.admitted(at, &clients)?;
            for (place, cells) in places.into_iter().zip(cells) {
                let used = cells.iter().filter(|cell| cell.count > 0 || cell.others > 0);
                let count =
                    |cell: &Cell| Count { bucket: cell.bucket, own: cell.count, others: cell.others << unit_bits };
                counts[place] = Some(used.map(count).collect());
            }
        }
        Ok(counts)
    }

    fn write_told(&mut self, limits: &[FleetLimit], told: &[Told]) -> Result<(), DatapathError> {
        let Some(shared) = self.fleet.enforced() else { return Ok(()) };
        for (at, places) in by_limit(shared, limits, told.iter().map(|told| told.subject.limit)) {
            let rule = self.enforced.desired.policy.rules.get(at.rule);
            let Some(limit) = rule.and_then(|rule| rule.limits.get(at.limit)) else { continue };
            let unit_bits = limit.parts().unit_bits();
            let in_units = |told: &Told| ratelimit_datapath::Told {
                client: told.subject.source,
                bucket: told.bucket,
                // Rounding down favours the source by less than one unit per bucket.
                units: told.others >> unit_bits,
            };
            let told: Vec<_> = places.iter().filter_map(|place| told.get(*place)).map(in_units).collect();
            self.datapath.tell_others(at, &told)?;
        }
        Ok(())
    }
}

/// Groups indices of the list by the limit that they name. Skips limits that the policy no longer has.
fn by_limit(
    shared: &SharedLimits,
    limits: &[FleetLimit],
    named: impl Iterator<Item = LimitId>,
) -> BTreeMap<LimitAt, Vec<usize>> {
    let mut by_limit: BTreeMap<LimitAt, Vec<usize>> = BTreeMap::new();
    for (place, id) in named.enumerate() {
        if let Some(shared) = shared.named(limits, id) {
            by_limit.entry(shared.at).or_default().push(place);
        }
    }
    by_limit
}
