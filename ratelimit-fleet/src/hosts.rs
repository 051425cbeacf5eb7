//! Records that the hosts of a fleet publish about themselves once per interval. Pure.
//!
//! A record is encrypted: reading or creating one requires the fleet's secret. The store prepends its own time, so all
//! hosts judge a record's age by one clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::{HostId, Names};
use ratelimit_policy::fleet::FleetLimit;

/// Silence after which a host is removed from the list.
pub const GONE_AFTER: Duration = Duration::from_secs(3600);

/// Silence after which a host does not count as a current member of the fleet.
pub const SILENT_AFTER: Duration = Duration::from_secs(60);

/// Time for which a host that lost its state is still listed under its earlier id.
pub const REPLACED_AFTER: Duration = Duration::from_secs(5);

/// Record that a host publishes about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Display name of the host.
    pub name: String,
    /// Version of the daemon on the host.
    pub version: String,
    /// Host clock minus store clock, in nanoseconds. None while unknown.
    pub ahead_ns: Option<i64>,
    /// Admissions under fleet limits in the last minute.
    pub admitted_last_minute: u64,
    /// Number of store outages since the process began. When it grows, other hosts request their counts again.
    pub outages: u64,
    /// Random number of the process. Two processes with one host id are a restart, or two machines with a copied state.
    pub process: u64,
    /// Number of hosts in this host's configuration. 0 if unknown.
    #[serde(default)]
    pub hosts: u32,
    /// Shared limits, as returned by [`mark`]. None if unknown or if there are more than [`LIMITS_MAX`].
    #[serde(default)]
    pub limits: Option<Vec<u32>>,
    /// Hash of the machine id, independent of the kernel state. 0 if unknown.
    #[serde(default)]
    pub machine: u64,
    /// Time that the process has been in the fleet, in milliseconds. None if unknown.
    #[serde(default)]
    pub up_ms: Option<u64>,
    /// Maximum time that its reports take, in milliseconds. None if unknown.
    #[serde(default)]
    pub delay_ms: Option<u64>,
}

/// Maximum number of limits in a record. Each takes 11 bytes, and every host reads the records of all hosts in every
/// beat.
pub const LIMITS_MAX: usize = 256;

/// Returns a hash that represents a machine in a record. The machine id itself must stay private, see machine-id(5).
pub fn machine_of(id: &[u8]) -> u64 {
    let hash = ring::digest::digest(&ring::digest::SHA256, &[b"ratelimitd fleet ", id].concat());
    hash.as_ref().iter().take(8).fold(0, |machine, byte| machine << 8 | u64::from(*byte))
}

/// Returns a hash that represents a limit in a record. Hosts that sum a limit together have equal hashes.
pub fn mark(limit: &FleetLimit) -> u32 {
    let FleetLimit { identity, bucket_ns, full_buckets, amount: _, sum: _ } = limit;
    let named = format!("{identity} {bucket_ns} {full_buckets}");
    let hash = ring::digest::digest(&ring::digest::SHA256, named.as_bytes());
    hash.as_ref().iter().take(4).fold(0, |mark, byte| mark << 8 | u32::from(*byte))
}

/// Returns the hashes of all shared limits. None if there are more than [`LIMITS_MAX`].
pub fn marks<'a>(limits: impl ExactSizeIterator<Item = &'a FleetLimit>) -> Option<Vec<u32>> {
    (limits.len() <= LIMITS_MAX).then(|| limits.map(mark).collect())
}

/// One host in the list of `ratelimitd fleet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Id of the host's kernel state.
    pub id: HostId,
    /// Time since the host's last record.
    pub age: Duration,
    /// Last record of the host.
    pub record: Record,
}

/// Hosts that published a record.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    known: BTreeMap<HostId, Host>,
    /// Ids of hosts that lost their state. Their machine now publishes under another id.
    replaced: BTreeSet<HostId>,
    /// Ages of records encrypted with another secret.
    unread: Vec<Duration>,
}

/// Changes that a new list of hosts shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A host is new, restarted or returned after an outage.
    pub rejoined: bool,
    /// Another process uses this host's id. The state was copied, and both are counted as one host.
    pub doubled: bool,
}

impl Record {
    /// Encrypts the record for the store. It decrypts only under the same `id`. `nonce` must be random.
    pub fn seal(&self, id: HostId, names: &Names, nonce: [u8; 12]) -> Vec<u8> {
        names.seal(&context(id), &serde_json::to_vec(self).unwrap_or_default(), nonce)
    }

    fn open(id: HostId, names: &Names, sealed: &[u8]) -> Option<Self> {
        serde_json::from_slice(&names.open(&context(id), sealed)?).ok()
    }
}

impl Hosts {
    /// Replaces the list with the store's: pairs of id and value. A value is the store's time in milliseconds and the
    /// encrypted record. Records with another secret are counted. `me` is this host's id and process number.
    pub fn learn(&mut self, names: &Names, now_ms: u64, list: &[(Vec<u8>, Vec<u8>)], me: (HostId, u64)) -> News {
        let mut news = News::default();
        let mut known = BTreeMap::new();
        self.unread.clear();
        for (id, value) in list {
            let Some((id, age, sealed)) = split(now_ms, id, value) else {
                continue;
            };
            let Some(record) = Record::open(id, names, sealed) else {
                // A record under this host's own id is from before the secret was changed.
                self.unread.extend((id != me.0).then_some(age));
                continue;
            };
            let host = Host { id, age, record };
            let before = self.known.get(&host.id);
            if host.id == me.0 {
                // A record from before a restart precedes the first record of this process.
                news.doubled |= host.record.process != me.1 && before.is_some();
            } else {
                let same = |before: &Host| {
                    before.record.outages == host.record.outages && before.record.process == host.record.process
                };
                news.rejoined |= !before.is_some_and(same);
            }
            known.insert(host.id, host);
        }
        self.replaced = replaced(&known);
        self.known = known;
        news
    }

    /// Returns all listed hosts in the order of their ids. `silence` is the time since the list was received.
    pub fn all(&self, silence: Duration) -> impl Iterator<Item = Host> {
        let now = move |host: &Host| Host { age: host.age + silence, ..host.clone() };
        let is_listed = move |host: &Host| {
            let is_replaced = host.age >= REPLACED_AFTER && self.replaced.contains(&host.id);
            host.age < GONE_AFTER && !is_replaced
        };
        self.known.values().map(now).filter(is_listed)
    }

    /// Returns the number of hosts with a record in the last [`SILENT_AFTER`].
    pub fn heard(&self, silence: Duration) -> usize {
        self.heard_now(silence).count()
    }

    /// Returns the longest report time of the current hosts. None if no host publishes one.
    pub fn delay(&self, silence: Duration) -> Option<Duration> {
        self.heard_now(silence).filter_map(|host| host.record.delay_ms).max().map(Duration::from_millis)
    }

    fn heard_now(&self, silence: Duration) -> impl Iterator<Item = &Host> {
        let is_heard = move |host: &&Host| host.age + silence < SILENT_AFTER && !self.replaced.contains(&host.id);
        self.known.values().filter(is_heard)
    }

    /// Returns the number of current hosts with records that this fleet's secret does not decrypt.
    pub fn unread(&self, silence: Duration) -> usize {
        self.unread.iter().filter(|age| **age + silence < SILENT_AFTER).count()
    }
}

/// Returns the ids that were last used before their machine took another id.
fn replaced(known: &BTreeMap<HostId, Host>) -> BTreeSet<HostId> {
    let machine = |host: &Host| (host.record.name.clone(), host.record.machine);
    let mut began: HashMap<_, Duration> = HashMap::new();
    for host in known.values() {
        let Some(up_ms) = host.record.up_ms else { continue };
        let ago = host.age.saturating_add(Duration::from_millis(up_ms));
        began.entry(machine(host)).and_modify(|of| *of = ago.min(*of)).or_insert(ago);
    }
    let is_replaced = |host: &&Host| began.get(&machine(host)).is_some_and(|ago| host.age > *ago);
    known.values().filter(is_replaced).map(|host| host.id).collect()
}

fn context(id: HostId) -> String {
    format!("host {id}")
}

fn split<'a>(now_ms: u64, id: &[u8], value: &'a [u8]) -> Option<(HostId, Duration, &'a [u8])> {
    let id = HostId(id.try_into().ok()?);
    let (at_ms, sealed) = value.split_first_chunk::<8>()?;
    let age = Duration::from_millis(now_ms.saturating_sub(u64::from_be_bytes(*at_ms)));
    (age < GONE_AFTER).then_some((id, age, sealed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: (HostId, u64) = (HostId([1; 8]), 5);

    fn names(secret: u8) -> Names {
        Names::new("web", &[secret; 32]).unwrap()
    }

    fn record(process: u64, outages: u64) -> Record {
        let name = "a".to_owned();
        let version = "0.2.0".to_owned();
        Record { name, version, ahead_ns: Some(-5), admitted_last_minute: 7, outages, process, ..Record::default() }
    }

    fn listed(id: u8, at_ms: u64, record: &Record, names: &Names) -> (Vec<u8>, Vec<u8>) {
        (vec![id; 8], [&at_ms.to_be_bytes()[..], &record.seal(HostId([id; 8]), names, [3; 12])].concat())
    }

    #[test]
    fn hosts_are_listed_with_their_age_by_the_stores_clock() {
        let mut hosts = Hosts::default();
        let list = [
            listed(1, 9_000, &record(5, 0), &names(1)),
            listed(2, 400, &record(9, 0), &names(1)),
            listed(3, 9_000, &record(9, 0), &names(2)),
            (vec![4; 7], vec![]),
            (vec![5; 8], vec![0; 30]),
        ];
        hosts.learn(&names(1), 10_000, &list, ME);
        let at = |hosts: &Hosts, silence| -> Vec<_> {
            hosts.all(silence).map(|host| (host.id.0[0], host.age.as_millis())).collect()
        };
        assert_eq!(at(&hosts, Duration::ZERO), [(1, 1_000), (2, 9_600)], "what another secret sealed is none of ours");
        assert_eq!(hosts.heard(Duration::ZERO), 2);
        let silence = Duration::from_secs(55);
        assert_eq!(at(&hosts, silence), [(1, 56_000), (2, 64_600)], "they grow older while the store is away");
        assert_eq!(hosts.heard(silence), 1);
        hosts.learn(&names(1), 3_600_400, &list, ME);
        assert_eq!(hosts.all(Duration::ZERO).count(), 1, "an hour of silence");
        assert_eq!(hosts.heard(Duration::ZERO), 0);
    }

    #[test]
    fn a_limits_mark_ignores_its_amount_and_differs_if_not_summed_together() {
        let limit = FleetLimit {
            identity: "web/requests".to_owned(),
            amount: 1000,
            bucket_ns: 60,
            full_buckets: 5,
            sum: ratelimit_policy::fleet::Sum::Verified,
        };
        let same = FleetLimit { amount: 10, sum: ratelimit_policy::fleet::Sum::All, ..limit.clone() };
        let others = [
            FleetLimit { identity: "wed/requests".to_owned(), ..limit.clone() },
            FleetLimit { bucket_ns: 61, ..limit.clone() },
            FleetLimit { full_buckets: 6, ..limit.clone() },
        ];
        assert_eq!(mark(&limit), mark(&same));
        assert!(others.iter().all(|other| mark(other) != mark(&limit)));
        let many = vec![limit; LIMITS_MAX + 1];
        assert_eq!((marks(many.iter()), marks(many[1..].iter()).map(|of| of.len())), (None, Some(LIMITS_MAX)));
    }

    #[test]
    fn records_of_older_hosts_are_read_and_state_no_limits() {
        let older =
            br#"{"name":"a","version":"0.2.0","ahead_ns":null,"admitted_last_minute":0,"outages":0,"process":9}"#;
        let sealed = names(1).seal(&context(HostId([2; 8])), older, [3; 12]);
        let mut hosts = Hosts::default();
        hosts.learn(&names(1), 10, &[(vec![2; 8], [&9_u64.to_be_bytes()[..], &sealed].concat())], ME);
        let host = hosts.all(Duration::ZERO).next().unwrap();
        assert_eq!((host.record.limits, host.record.hosts), (None, 0));
    }

    #[test]
    fn hosts_with_another_secret_are_counted_while_present_without_this_one() {
        let mut hosts = Hosts::default();
        let list = [1, 2, 3].map(|id| listed(id, 9_000, &record(9, 0), &names(2)));
        hosts.learn(&names(1), 10_000, &list, ME);
        assert_eq!((hosts.unread(Duration::ZERO), hosts.heard(Duration::ZERO)), (2, 0));
        assert_eq!(hosts.unread(SILENT_AFTER), 0);
        hosts.learn(&names(2), 10_000, &list, ME);
        assert_eq!(hosts.unread(Duration::ZERO), 0);
    }

    #[test]
    fn a_record_that_a_user_of_the_store_copied_to_another_host_is_none() {
        let mut hosts = Hosts::default();
        let (_, theirs) = listed(2, 9_000, &record(9, 0), &names(1));
        let list = [listed(1, 9_000, &record(5, 0), &names(1)), (vec![1; 8], theirs.clone()), (vec![3; 8], theirs)];
        let news = hosts.learn(&names(1), 10_000, &list, ME);
        assert_eq!((news.doubled, hosts.heard(Duration::ZERO)), (false, 1));
    }

    #[test]
    fn a_host_that_lost_its_state_replaces_its_earlier_self_and_no_other() {
        let mut hosts = Hosts::default();
        let of = |name: &str, machine, up_ms| Record { name: name.to_owned(), machine, up_ms, ..record(9, 0) };
        let list = [
            // The new id began 4 s ago, and its last record is 1 s old.
            listed(1, 99_000, &of("a", 7, Some(3_000)), &names(1)),
            listed(2, 92_000, &of("a", 7, Some(80_000)), &names(1)),
            // Two machines with one name, and two states of one machine that are both active.
            listed(3, 92_000, &of("a", 8, Some(80_000)), &names(1)),
            listed(4, 99_000, &of("b", 7, Some(80_000)), &names(1)),
            listed(5, 99_500, &of("b", 7, Some(2_000)), &names(1)),
            // An older version does not publish its uptime.
            listed(6, 92_000, &of("c", 0, None), &names(1)),
            listed(7, 99_000, &of("c", 0, None), &names(1)),
        ];
        hosts.learn(&names(1), 100_000, &list, (HostId([9; 8]), 5));
        let ids = |hosts: &Hosts| hosts.all(Duration::ZERO).map(|host| host.id.0[0]).collect::<Vec<_>>();
        assert_eq!((ids(&hosts), hosts.heard(Duration::ZERO)), (vec![1, 3, 4, 5, 6, 7], 6));
        // The machine is back under its earlier id.
        hosts.learn(
            &names(1),
            100_500,
            &[&list[..1], &[listed(2, 100_400, &of("a", 7, Some(90_000)), &names(1))]].concat(),
            ME,
        );
        assert_eq!((ids(&hosts), hosts.heard(Duration::ZERO)), (vec![1, 2], 2));
    }

    #[test]
    fn the_longest_delay_of_the_hosts_that_are_heard_counts() {
        let mut hosts = Hosts::default();
        let of = |delay_ms| Record { delay_ms, ..record(9, 0) };
        let list = [
            listed(1, 99_000, &of(Some(100)), &names(1)),
            listed(2, 90_000, &of(Some(480)), &names(1)),
            listed(3, 99_000, &of(None), &names(1)),
        ];
        hosts.learn(&names(1), 100_000, &list, ME);
        assert_eq!(hosts.delay(Duration::ZERO), Some(Duration::from_millis(480)));
        assert_eq!(hosts.delay(Duration::from_secs(55)), Some(Duration::from_millis(100)));
    }

    #[test]
    fn a_host_that_was_away_or_started_again_is_news_once() {
        let mut hosts = Hosts::default();
        let mut learn = |record: &Record| hosts.learn(&names(1), 10, &[listed(2, 9, record, &names(1))], ME).rejoined;
        assert!(learn(&record(9, 0)));
        assert!(!learn(&record(9, 0)));
        assert!(learn(&record(9, 1)));
        assert!(learn(&record(10, 1)));
        assert!(!learn(&record(10, 1)));
    }

    #[test]
    fn two_processes_with_one_state_are_noticed_and_a_restart_is_not() {
        let mut hosts = Hosts::default();
        let mut learn =
            |process| hosts.learn(&names(1), 10, &[listed(1, 9, &record(process, 0), &names(1))], ME).doubled;
        assert!(!learn(4), "this host's process before");
        assert!(!learn(5));
        assert!(learn(77), "another has overwritten what this one said");
        assert!(learn(77), "and does so still");
        assert!(!learn(5), "and no more");
    }
}
