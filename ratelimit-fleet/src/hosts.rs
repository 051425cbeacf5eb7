//! The hosts of a fleet: what each says of itself once an interval. Pure.
//!
//! A record is sealed: without the fleet's secret nobody can read or make one. The store puts its own time
//! before it, so that all judge its age by one clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::{HostId, Names};
use ratelimit_policy::fleet::FleetLimit;

/// A host that was not heard of in this time is gone.
pub const GONE_AFTER: Duration = Duration::from_secs(3600);

/// A host that was not heard of in this time does not count as one of the fleet now.
pub const SILENT_AFTER: Duration = Duration::from_secs(60);

/// How long a host that lost its state is listed under its earlier id.
pub const REPLACED_AFTER: Duration = Duration::from_secs(5);

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name, for people.
    pub name: String,
    /// The version of ratelimitd.
    pub version: String,
    /// By how much its clock is ahead of the store's; none where it does not know yet.
    pub ahead_ns: Option<i64>,
    /// What it admitted under fleet limits in the last minute.
    pub admitted_last_minute: u64,
    /// How often it was away from the store since its process began: who sees this grow asks again.
    pub outages: u64,
    /// Of its process: two with one id are two machines with one state, or one that was begun again.
    pub process: u64,
    /// How many hosts it says there are; 0 where it does not say.
    #[serde(default)]
    pub hosts: u32,
    /// The limits that it shares, by [`mark`]; none where it does not say, or has more than [`LIMITS_MAX`].
    #[serde(default)]
    pub limits: Option<Vec<u32>>,
    /// Of its machine: the same whatever its state in the kernel; 0 where that is not known.
    #[serde(default)]
    pub machine: u64,
    /// How long its process has been in the fleet; none where it does not say.
    #[serde(default)]
    pub up_ms: Option<u64>,
    /// What its reports take at most; none where it does not say, or does not know yet.
    #[serde(default)]
    pub delay_ms: Option<u64>,
}

/// The most limits that a record names. // x 11 bytes, from each host to each at each beat
pub const LIMITS_MAX: usize = 256;

/// What stands for a machine in a record. The id itself is not to leave the machine, see machine-id(5).
pub fn machine_of(id: &[u8]) -> u64 {
    let hash = ring::digest::digest(&ring::digest::SHA256, &[b"ratelimitd fleet ", id].concat());
    hash.as_ref().iter().take(8).fold(0, |machine, byte| machine << 8 | u64::from(*byte))
}

/// What stands for a limit in a record: the same on hosts that sum it together.
pub fn mark(limit: &FleetLimit) -> u32 {
    let FleetLimit { identity, bucket_ns, full_buckets, amount: _, sum: _ } = limit;
    let named = format!("{identity} {bucket_ns} {full_buckets}");
    let hash = ring::digest::digest(&ring::digest::SHA256, named.as_bytes());
    hash.as_ref().iter().take(4).fold(0, |mark, byte| mark << 8 | u32::from(*byte))
}

/// The marks of all that a host shares.
pub fn marks<'a>(limits: impl ExactSizeIterator<Item = &'a FleetLimit>) -> Option<Vec<u32>> {
    (limits.len() <= LIMITS_MAX).then(|| limits.map(mark).collect())
}

/// A host, as `ratelimitd fleet` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its state in the kernel.
    pub id: HostId,
    /// How long ago it was heard.
    pub age: Duration,
    /// What it said.
    pub record: Record,
}

/// What is known of the hosts.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    known: BTreeMap<HostId, Host>,
    /// Those of them that have lost their state since: their machine is heard under another id.
    replaced: BTreeSet<HostId>,
    /// The ages of records that another secret sealed.
    unread: Vec<Duration>,
}

/// What changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Another host was away, or is new.
    pub rejoined: bool,
    /// Another process says it is this host: it has a copy of the state, and both are counted as one.
    pub doubled: bool,
}

impl Record {
    /// The record for the store, of this host alone: beside another id it does not open. `nonce` is random.
    pub fn seal(&self, id: HostId, names: &Names, nonce: [u8; 12]) -> Vec<u8> {
        names.seal(&context(id), &serde_json::to_vec(self).unwrap_or_default(), nonce)
    }

    fn open(id: HostId, names: &Names, sealed: &[u8]) -> Option<Self> {
        serde_json::from_slice(&names.open(&context(id), sealed)?).ok()
    }
}

impl Hosts {
    /// Takes in the list that the store has: id, the store's time in milliseconds before the sealed record. What
    /// does not open is another secret's, and counted. `me` says which of them this process is.
    pub fn learn(&mut self, names: &Names, now_ms: u64, list: &[(Vec<u8>, Vec<u8>)], me: (HostId, u64)) -> News {
        let mut news = News::default();
        let mut known = BTreeMap::new();
        self.unread.clear();
        for (id, value) in list {
            let Some((id, age, sealed)) = split(now_ms, id, value) else {
                continue;
            };
            let Some(record) = Record::open(id, names, sealed) else {
                // One's own is from before the secret was changed.
                self.unread.extend((id != me.0).then_some(age));
                continue;
            };
            let host = Host { id, age, record };
            let before = self.known.get(&host.id);
            if host.id == me.0 {
                // One's own from before a restart is older than the first that this process said.
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

    /// All of them, in the order of their ids. `silence` is the time since they were learnt.
    pub fn all(&self, silence: Duration) -> impl Iterator<Item = Host> {
        let now = move |host: &Host| Host { age: host.age + silence, ..host.clone() };
        let is_listed = move |host: &Host| {
            let is_replaced = host.age >= REPLACED_AFTER && self.replaced.contains(&host.id);
            host.age < GONE_AFTER && !is_replaced
        };
        self.known.values().map(now).filter(is_listed)
    }

    /// How many were heard of lately.
    pub fn heard(&self, silence: Duration) -> usize {
        self.heard_now(silence).count()
    }

    /// The longest that a report of a host takes that was heard of lately; none where none says it.
    pub fn delay(&self, silence: Duration) -> Option<Duration> {
        self.heard_now(silence).filter_map(|host| host.record.delay_ms).max().map(Duration::from_millis)
    }

    fn heard_now(&self, silence: Duration) -> impl Iterator<Item = &Host> {
        let is_heard = move |host: &&Host| host.age + silence < SILENT_AFTER && !self.replaced.contains(&host.id);
        self.known.values().filter(is_heard)
    }

    /// How many have said something lately that this fleet's secret does not open.
    pub fn unread(&self, silence: Duration) -> usize {
        self.unread.iter().filter(|age| **age + silence < SILENT_AFTER).count()
    }
}

/// Those that were last heard before their machine took another id.
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
        let version = "0.1.0".to_owned();
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
    fn a_limit_has_one_mark_whatever_its_amount_and_another_where_it_is_not_summed_with_it() {
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
    fn what_an_older_host_says_is_read_and_says_nothing_of_its_limits() {
        let older =
            br#"{"name":"a","version":"0.1.0","ahead_ns":null,"admitted_last_minute":0,"outages":0,"process":9}"#;
        let sealed = names(1).seal(&context(HostId([2; 8])), older, [3; 12]);
        let mut hosts = Hosts::default();
        hosts.learn(&names(1), 10, &[(vec![2; 8], [&9_u64.to_be_bytes()[..], &sealed].concat())], ME);
        let host = hosts.all(Duration::ZERO).next().unwrap();
        assert_eq!((host.record.limits, host.record.hosts), (None, 0));
    }

    #[test]
    fn hosts_of_another_secret_are_counted_while_they_are_there_and_this_one_is_none_of_them() {
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
            // Its new self began 4 s ago, and was heard 1 s ago.
            listed(1, 99_000, &of("a", 7, Some(3_000)), &names(1)),
            listed(2, 92_000, &of("a", 7, Some(80_000)), &names(1)),
            // Two machines of one name, and two states of one machine that both go on.
            listed(3, 92_000, &of("a", 8, Some(80_000)), &names(1)),
            listed(4, 99_000, &of("b", 7, Some(80_000)), &names(1)),
            listed(5, 99_500, &of("b", 7, Some(2_000)), &names(1)),
            // An older version does not say how long it is up.
            listed(6, 92_000, &of("c", 0, None), &names(1)),
            listed(7, 99_000, &of("c", 0, None), &names(1)),
        ];
        hosts.learn(&names(1), 100_000, &list, (HostId([9; 8]), 5));
        let ids = |hosts: &Hosts| hosts.all(Duration::ZERO).map(|host| host.id.0[0]).collect::<Vec<_>>();
        assert_eq!((ids(&hosts), hosts.heard(Duration::ZERO)), (vec![1, 3, 4, 5, 6, 7], 6));
        // It is back under its earlier id.
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
