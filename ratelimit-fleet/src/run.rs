//! The task that joins the core, the kernel and the store. It waits for no answer: calls are on their way while it
//! looks, and what asks it something is answered at once.

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

/// Messages that wait for the task; more are lost, and counted.
const MESSAGES_MAX: usize = 16_384;

/// Acts of others that wait for the daemon.
const ACTS_MAX: usize = 1024;

/// What the task needs of the kernel.
pub trait Kernel: Send + 'static {
    /// The counts in the window of each source, in the order asked; an empty list of a source that has none, and none of one
    /// that could not be looked up.
    fn read(&mut self, subjects: Vec<Subject>) -> impl Future<Output = Vec<Option<Vec<Count>>>> + Send;

    /// Puts what the others admitted beside the own counts. A source or bucket that is not there any more is skipped.
    fn write(&mut self, told: Vec<Told>) -> impl Future<Output = ()> + Send;

    /// From now on ids are places in this list, see [`Fleet::set_limits`].
    fn set_limits(&mut self, limits: &[FleetLimit]);
}

/// What a fleet begins with.
#[derive(Debug)]
pub struct Begin {
    /// This host's state in the kernel.
    pub host: HostId,
    /// Of this process alone: random.
    pub process: u64,
    /// This host's name, for people.
    pub name: String,
    /// Of the machine: the same whatever its state in the kernel. 0 where that is not known.
    pub machine: u64,
    /// The version of ratelimitd.
    pub version: String,
    /// The fleet's names.
    pub names: Names,
    /// What the core is told.
    pub settings: Settings,
    /// The limits; each one's id is its place.
    pub limits: Vec<FleetLimit>,
    /// The store.
    pub access: Access,
}

/// What the daemon holds of its fleet. Nothing here waits for the store.
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
    /// A fleet, the acts of other hosts for the daemon to carry out, and the task to spawn. It ends when every `Fleet` is
    /// dropped, at once, whatever the store does. `now` is the clock of packets.
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

    /// The kernel says that a count crossed a step.
    pub fn crossed(&self, subject: Subject, bucket: BucketIndex) {
        let _is_sent = self.send(Message::Crossed(subject, bucket));
    }

    /// The kernel had no room to say so.
    pub fn crossings_lost(&self, count: u64) {
        let _is_sent = self.send(Message::CrossingsLost(count));
    }

    /// All hosts are to do what this one did. False where there was no room to say so, which is counted.
    #[must_use]
    pub fn spread(&self, begun: Begun) -> bool {
        self.send(Message::Act(begun))
    }

    /// What this host admitted under fleet limits in the last minute, for the list of hosts.
    pub fn admitted_last_minute(&self, count: u64) {
        let _is_sent = self.send(Message::Admitted(count));
    }

    /// Other limits are in force: from now on ids are places in this list. False where there was no room to say so; then
    /// the ids are those of before.
    #[must_use]
    pub fn set_limits(&self, limits: Vec<FleetLimit>) -> bool {
        self.messages.try_send(Message::Limits(limits)).is_ok()
    }

    /// How a source stands in the fleet; none where it is not reported.
    pub async fn standing(&self, subject: Subject) -> Option<Standing> {
        let (answer, answered) = oneshot::channel();
        if !self.send(Message::Standing(subject, answer)) {
            return None;
        }
        // A task that is looking up ten thousand sources is not waited for.
        tokio::time::timeout(Duration::from_millis(200), answered).await.ok()?.ok()?
    }

    /// Messages that were lost for want of room.
    pub fn lost(&self) -> u64 {
        self.lost.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How the fleet does, now.
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
