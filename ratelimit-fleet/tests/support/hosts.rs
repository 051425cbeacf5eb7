//! Hosts for tests: the shipped task over an in-memory kernel that counts like the real one.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos, SECOND_NS};
use ratelimit_fleet::acts::{Act, Begun, What};
use ratelimit_fleet::core::Settings;
use ratelimit_fleet::names::{HostId, Names};
use ratelimit_fleet::run::{Begin, Fleet, Kernel};
use ratelimit_fleet::store::access::Access;
use ratelimit_fleet::tracked::{Count, LimitId, Subject, Told};
use ratelimit_policy::fleet::{FleetLimit, Sum, Terms};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) fn now() -> Nanos {
    Nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap())
}

/// Returns a strict limit of 1000 per minute.
pub(crate) fn limit() -> FleetLimit {
    FleetLimit {
        identity: "default/requests".to_owned(),
        amount: 1000,
        bucket_ns: 10 * SECOND_NS,
        full_buckets: 6,
        sum: Sum::Verified,
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    own: u64,
    others: u64,
}

type Cells = HashMap<IpNet, BTreeMap<u64, Cell>>;

/// Windows of sources in memory.
#[derive(Clone, Default)]
pub(crate) struct Windows(Arc<Mutex<Cells>>);

impl Kernel for Windows {
    fn read(&mut self, subjects: Vec<Subject>) -> impl Future<Output = Vec<Option<Vec<Count>>>> + Send {
        let cells = self.0.lock().unwrap();
        let count =
            |(bucket, cell): (&u64, &Cell)| Count { bucket: BucketIndex(*bucket), own: cell.own, others: cell.others };
        let read = |subject: &Subject| Some(cells.get(&subject.source).into_iter().flatten().map(count).collect());
        std::future::ready(subjects.iter().map(read).collect())
    }

    fn write(&mut self, told: Vec<Told>) -> impl Future<Output = ()> + Send {
        let mut cells = self.0.lock().unwrap();
        for Told { subject, bucket, others } in told {
            if let Some(window) = cells.get_mut(&subject.source) {
                window.entry(bucket.0).or_default().others = others;
            }
        }
        std::future::ready(())
    }

    fn set_limits(&mut self, _limits: &[FleetLimit]) {}
}

pub(crate) struct Host {
    pub(crate) id: HostId,
    pub(crate) fleet: Fleet,
    pub(crate) acts: mpsc::Receiver<Act>,
    pub(crate) windows: Windows,
    pub(crate) task: JoinHandle<()>,
    terms: Terms,
}

impl Host {
    pub(crate) fn begin(number: u8, hosts: u32, name: &str, secret: u8, access: &Access) -> Self {
        Self::with(HostId([number; 8]), hosts, name, secret, access, Windows::default())
    }

    pub(crate) fn with(id: HostId, hosts: u32, name: &str, secret: u8, access: &Access, windows: Windows) -> Self {
        let begin = Begin {
            host: id,
            process: now().0,
            name: format!("host {id}"),
            machine: u64::from(id.0[0]),
            version: "0.2.0".to_owned(),
            names: Names::new(name, &[secret; 32]).unwrap(),
            settings: Settings { hosts, ..Settings::default() },
            limits: vec![limit()],
            access: access.clone(),
        };
        let (fleet, acts, task) = Fleet::begin(begin, windows.clone(), now);
        Self { id, fleet, acts, windows, task: tokio::spawn(task), terms: Terms::new(&limit(), hosts) }
    }

    /// Sends `requests` requests of a source. Returns the number admitted.
    pub(crate) fn send(&self, source: IpNet, requests: u64) -> u64 {
        let bucket = limit().bucket(now()).0;
        let mut cells = self.windows.0.lock().unwrap();
        let window = cells.entry(source).or_default();
        let from = bucket - u64::from(limit().full_buckets);
        let mut admitted = 0;
        for _ in 0..requests {
            let used: u64 = window.range(from..=bucket).map(|(_, cell)| cell.own + cell.others).sum();
            if used + 1 > limit().amount {
                break;
            }
            let cell = window.entry(bucket).or_default();
            cell.own += 1;
            admitted += 1;
            if cell.own.is_multiple_of(self.terms.step) {
                self.fleet.crossed(Subject { limit: LimitId(0), source }, BucketIndex(bucket));
            }
        }
        admitted
    }

    /// Publishes an act of this host to all hosts.
    pub(crate) fn spread(&self, prefix: IpNet, what: What) {
        let at_ns = now().0;
        assert!(self.fleet.spread(Begun { number: at_ns, at_ns, prefix, what }), "there is room");
    }

    /// Sends one step of requests per source, the smallest amount that is reported.
    pub(crate) fn send_all(&self, sources: &[IpNet]) {
        for source in sources {
            self.send(*source, self.terms.step);
        }
    }

    pub(crate) fn own(&self, source: IpNet) -> u64 {
        self.sum(source, |cell| cell.own)
    }

    pub(crate) fn others(&self, source: IpNet) -> u64 {
        self.sum(source, |cell| cell.others)
    }

    fn sum(&self, source: IpNet, part: impl Fn(&Cell) -> u64) -> u64 {
        let bucket = limit().bucket(now()).0;
        let cells = self.windows.0.lock().unwrap();
        let from = bucket - u64::from(limit().full_buckets);
        cells.get(&source).map_or(0, |window| window.range(from..=bucket).map(|(_, cell)| part(cell)).sum())
    }
}

/// Returns 100 sources that cover every shard and differ for each `round`.
pub(crate) fn sources(round: u8) -> Vec<IpNet> {
    (1..=100_u8).map(|last| format!("198.51.{round}.{last}/32").parse().unwrap()).collect()
}

/// Returns true if each host has the other hosts' complete counts of these sources.
pub(crate) fn are_told(hosts: &[Host], sources: &[IpNet]) -> bool {
    sources.iter().all(|source| {
        let all: u64 = hosts.iter().map(|host| host.own(*source)).sum();
        hosts.iter().all(|host| host.others(*source) == all - host.own(*source))
    })
}

/// Sends new sources of every shard. Returns the time until every host has complete sums of these and of the `before`
/// sources.
pub(crate) async fn whole_after(hosts: &[Host], round: u8, before: &[IpNet], limit: Duration) -> Duration {
    let began = std::time::Instant::now();
    let sources = sources(round);
    hosts.iter().for_each(|host| host.send_all(&sources));
    while !(are_told(hosts, &sources) && are_told(hosts, before)) {
        let untold: Vec<_> = sources.iter().chain(before).filter(|source| !are_told(hosts, &[**source])).collect();
        let status: Vec<_> = hosts
            .iter()
            .map(|host| host.fleet.status())
            .map(|status| (status.state, status.trouble, status.failed))
            .collect();
        assert!(began.elapsed() < limit, "{} sources are not summed: {untold:?} {status:?}", untold.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}
