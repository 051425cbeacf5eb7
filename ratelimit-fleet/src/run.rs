//! Task that connects the core, the kernel and the store. It never waits for the store: calls stay in flight while it
//! reads the kernel and takes messages.

mod state;
mod task;
mod voice;

use std::future::Future;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::FleetLimit;
use tokio::sync::{mpsc, oneshot, watch};

use crate::acts::{Act, Begun};
use crate::core::{Core, Settings, Standing};
use crate::names::{HostId, Names};
use crate::store::access::Access;
use crate::tracked::{Count, Subject, Told};

pub use state::{ROUND_SECONDS, State, Status};

/// Capacity of the task's queue. Further messages are dropped and counted.
const MESSAGES_MAX: usize = 16_384;

/// Capacity of the queue of received acts for the daemon.
const ACTS_MAX: usize = 1024;

/// Access to the kernel's windows.
pub trait Kernel: Send + 'static {
    /// Reads the counts in the window of each source, in the order of `subjects`. The list is empty for a source
    /// without counts. None stands for a failed lookup.
    fn read(&mut self, subjects: Vec<Subject>) -> impl Future<Output = Vec<Option<Vec<Count>>>> + Send;

    /// Writes the other hosts' admissions next to the host's own counts. Sources and buckets that no longer exist are
    /// skipped.
    fn write(&mut self, told: Vec<Told>) -> impl Future<Output = ()> + Send;

    /// Replaces the limits. Limit ids are indexes into `limits` from now on, see [`Fleet::set_limits`].
    fn set_limits(&mut self, limits: &[FleetLimit]);
}

/// Arguments for starting a fleet.
#[derive(Debug)]
pub struct Begin {
    /// Id of this host's kernel state.
    pub host: HostId,
    /// Random number of this process.
    pub process: u64,
    /// Display name of this host.
    pub name: String,
    /// Hash of the machine id, independent of the kernel state. 0 if unknown.
    pub machine: u64,
    /// Version of this program.
    pub version: String,
    /// Key and field names of the fleet.
    pub names: Names,
    /// Settings of the core.
    pub settings: Settings,
    /// Limits. Each limit's id is its index.
    pub limits: Vec<FleetLimit>,
    /// Access to the store.
    pub access: Access,
}

/// Handle of the daemon to its fleet. No method waits for the store.
#[derive(Clone, Debug)]
pub struct Fleet {
    messages: mpsc::Sender<Message>,
    lost: std::sync::Arc<std::sync::atomic::AtomicU64>,
    status: watch::Receiver<Status>,
}

#[derive(Debug)]
enum Message {
    Crossed(Subject, BucketIndex),
    CrossingsLost(u64),
    Act(Begun),
    Admitted(u64),
    Limits(Vec<FleetLimit>),
    Standing(Subject, oneshot::Sender<Option<Standing>>),
}

impl Fleet {
    /// Creates a fleet, the queue of other hosts' acts for the daemon, and the task to spawn. The task ends at once
    /// when every `Fleet` is dropped, whatever the store does. `now` is the packet clock.
    pub fn begin<K: Kernel>(
        begin: Begin,
        kernel: K,
        now: impl Fn() -> Nanos + Send + Sync + 'static,
    ) -> (Self, mpsc::Receiver<Act>, impl Future<Output = ()> + Send) {
        let (messages, inbox) = mpsc::channel(MESSAGES_MAX);
        let (acts, heard) = mpsc::channel(ACTS_MAX);
        let (status, watched) = watch::channel(Status::default());
        let lost = std::sync::Arc::default();
        let fleet = Self { messages, lost: std::sync::Arc::clone(&lost), status: watched };
        let core = Core::new(begin.host, begin.names, begin.settings.clone(), begin.limits);
        let me = task::Me { process: begin.process, name: begin.name, machine: begin.machine, version: begin.version };
        let task = task::Task::new(core, me, begin.access, begin.settings.interval, lost, acts, status);
        (fleet, heard, task.run(kernel, inbox, now))
    }

    /// Reports that a count in the kernel crossed a step.
    pub fn crossed(&self, subject: Subject, bucket: BucketIndex) {
        let _is_sent = self.send(Message::Crossed(subject, bucket));
    }

    /// Reports that the kernel could not signal `count` crossings.
    pub fn crossings_lost(&self, count: u64) {
        let _is_sent = self.send(Message::CrossingsLost(count));
    }

    /// Queues an act of this host for all hosts. Returns false if the queue is full, which is counted.
    #[must_use]
    pub fn spread(&self, begun: Begun) -> bool {
        self.send(Message::Act(begun))
    }

    /// Sets the admissions of this host under fleet limits in the last minute, for the list of hosts.
    pub fn admitted_last_minute(&self, count: u64) {
        let _is_sent = self.send(Message::Admitted(count));
    }

    /// Replaces the limits. Limit ids are indexes into `limits` from now on. Returns false if the queue is full; the
    /// earlier ids then stay valid.
    #[must_use]
    pub fn set_limits(&self, limits: Vec<FleetLimit>) -> bool {
        self.messages.try_send(Message::Limits(limits)).is_ok()
    }

    /// Returns the counts of a source in the fleet. None if the source is not reported or the task does not answer in
    /// 200 ms.
    pub async fn standing(&self, subject: Subject) -> Option<Standing> {
        let (answer, answered) = oneshot::channel();
        if !self.send(Message::Standing(subject, answer)) {
            return None;
        }
        // The task may be busy reading ten thousand sources.
        tokio::time::timeout(Duration::from_millis(200), answered).await.ok()?.ok()?
    }

    /// Returns the number of messages lost because the queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the current status of the fleet.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    fn send(&self, message: Message) -> bool {
        let is_sent = self.messages.try_send(message).is_ok();
        if !is_sent {
            self.lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        is_sent
    }
}
