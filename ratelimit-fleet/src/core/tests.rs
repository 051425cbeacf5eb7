//! Unit tests of the reports and of the evaluation of answers, one case each. The simulation tests them together.

use super::*;
use crate::tracked::{Count, Told};
use crate::wire::{Call, Said};
use ratelimit_common::time::SECOND_NS;
use ratelimit_policy::fleet::Sum;

const START: u64 = 1_750_000_000 * SECOND_NS;
const BUCKET: BucketIndex = BucketIndex(START / (60 * SECOND_NS));

fn limit() -> FleetLimit {
    let identity = "default/requests".to_owned();
    FleetLimit { identity, amount: 1000, bucket_ns: 60 * SECOND_NS, full_buckets: 5, sum: Sum::Verified }
}

fn core(settings: Settings) -> Core {
    Core::new(HostId([1; 8]), Names::new("web", &[7; 32]).unwrap(), settings, vec![limit()])
}

fn four() -> Settings {
    Settings { hosts: 4, ..Settings::default() }
}

fn source(last: u8) -> Subject {
    Subject { limit: LimitId(0), source: format!("192.0.2.{last}/32").parse().unwrap() }
}

/// Returns the instant `ms` milliseconds after the start.
fn at(ms: u64) -> Nanos {
    Nanos(START + ms * 1_000_000)
}

/// Performs one read: the kernel has `own` admissions for each due source in the current bucket.
fn look(core: &mut Core, now: Nanos, own: u64) -> Vec<Call> {
    let due = core.due(now);
    let read: Vec<_> = due.iter().map(|_| Some(vec![Count { bucket: limit().bucket(now), own, others: 0 }])).collect();
    core.round(now, &due, &read).calls
}

fn answer(core: &mut Core, call: &Call, had_mine: bool, others: u64, now: Nanos) -> Vec<Told> {
    let said: Vec<_> = call
        .entries()
        .map(|entry| Said { had_mine, others: if entry.bucket == BUCKET { others } else { 0 } })
        .collect();
    core.answered(call, &said, now)
}

fn told_now(told: &[Told]) -> Option<u64> {
    told.iter().find(|told| told.bucket == BUCKET).map(|told| told.others)
}

/// Returns a core with one source that reported `own` and received `others`.
fn known(settings: Settings, own: u64, others: u64) -> Core {
    let mut core = core(settings);
    core.due(at(0));
    core.crossed(source(1), BUCKET, at(0));
    for call in look(&mut core, at(1000), own) {
        answer(&mut core, &call, false, others, at(1001));
    }
    core
}

#[test]
fn a_first_step_waits_for_the_interval_and_what_could_pass_the_bound_does_not() {
    let mut core = core(four());
    assert!(core.due(at(0)).is_empty());
    core.crossed(source(1), BUCKET, at(1));
    assert_eq!(core.wakes_at(), at(20), "no sooner than 20 ms after the last look");
    assert!(look(&mut core, at(20), 16).is_empty());
    core.crossed(source(1), BUCKET, at(30));
    assert_eq!(core.wakes_at(), at(40));
    assert!(look(&mut core, at(40), 93).is_empty());
    core.crossed(source(1), BUCKET, at(50));
    assert!(!look(&mut core, at(60), 94).is_empty());
}

#[test]
fn past_half_of_the_limit_every_step_is_said_at_once() {
    let mut core = known(four(), 16, 484);
    core.crossed(source(1), BUCKET, at(1100));
    assert_eq!(look(&mut core, at(1100), 32).len(), 1, "32 here and 484 elsewhere");
    let mut core = known(four(), 16, 460);
    core.crossed(source(1), BUCKET, at(1100));
    assert!(look(&mut core, at(1100), 32).is_empty());
}

#[test]
fn remote_admissions_are_told_to_the_kernel_bucket_by_bucket() {
    let core = known(four(), 16, 588);
    let standing = core.standing(source(1), at(1100)).unwrap();
    assert_eq!(standing, Standing { here: 16, elsewhere: 588, told_at: Some(at(1001)) });
    assert_eq!(core.standing(source(1), at(7 * 60_000)).unwrap().elsewhere, 0, "expired with its bucket");
}

#[test]
fn a_sum_above_what_all_hosts_admit_is_garbage() {
    let mut core = known(four(), 16, 4000);
    assert_eq!(core.standing(source(1), at(1100)).unwrap().elsewhere, 4000);
    let calls = look(&mut core, at(2000), 17);
    let told = answer(&mut core, &calls[0], true, 4001, at(2001));
    assert_eq!(told_now(&told), None);
    assert_eq!(core.counters().garbage, 1);
}

#[test]
fn the_floor_is_what_no_store_can_take() {
    let mut core = core(Settings { floor_percent: 10, ..four() });
    core.due(at(0));
    core.crossed(source(1), BUCKET, at(0));
    let mut told = Vec::new();
    for call in look(&mut core, at(1000), 16) {
        told.extend(answer(&mut core, &call, false, 4000, at(1001)));
    }
    assert_eq!(told_now(&told), Some(900));
}

#[test]
fn an_answer_that_comes_late_changes_nothing() {
    let mut core = known(four(), 16, 100);
    let first = look(&mut core, at(2000), 17);
    let second = look(&mut core, at(3000), 18);
    answer(&mut core, &second[0], true, 300, at(3001));
    let told = answer(&mut core, &first[0], true, 200, at(3002));
    assert_eq!(told_now(&told), None);
    assert_eq!(core.standing(source(1), at(3003)).unwrap().elsewhere, 300);
    assert!(core.counters().late > 0);
}

#[test]
fn reports_beyond_the_room_are_counted_and_take_no_memory() {
    let mut core = core(Settings { sources_max: 10, round_max: 4, ..four() });
    core.due(at(0));
    (0..30).for_each(|last| core.crossed(source(last), BUCKET, at(0)));
    assert_eq!((core.tracked(), core.counters().reports_lost), (10, 20));
    let of = |calls: Vec<Call>| {
        let mut sources: Vec<_> = calls.iter().flat_map(Call::entries).map(|entry| entry.subject).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    };
    let first = of(look(&mut core, at(1000), 16));
    let second = of(look(&mut core, at(2000), 16));
    assert_eq!((first.len(), second.len()), (4, 4));
    assert!(first.iter().all(|source| !second.contains(source)), "those that waited are the next");
}

#[test]
fn past_a_quarter_of_a_bucket_a_limit_is_neither_reported_nor_told() {
    let mut core = known(four(), 16, 100);
    for _ in 0..8 {
        core.learn_time(at(1500), at(1500), at(17_000));
    }
    assert_eq!(core.not_summed(), [LimitId(0)]);
    assert!(look(&mut core, at(2000), 400).is_empty());
}

#[test]
fn a_store_that_lost_its_registers_is_told_all_of_them_again() {
    let mut core = known(four(), 16, 0);
    let calls = look(&mut core, at(2000), 16);
    answer(&mut core, &calls[0], false, 0, at(2001));
    assert_eq!(core.counters().store_lost, 1);
    let again = look(&mut core, at(3000), 16);
    assert!(again[0].entries().any(|entry| entry.bucket == BUCKET && entry.count == Some(16)));
}

#[test]
fn sequences_grow_also_where_the_clock_stands_still() {
    let mut core = known(four(), 16, 0);
    core.tick_at = at(0);
    let first = look(&mut core, at(1000), 17)[0].sequence;
    core.tick_at = at(0);
    let second = look(&mut core, at(1000), 18)[0].sequence;
    assert!(second > first);
}

#[test]
fn a_source_that_failed_is_tried_again_soon_and_is_not_urgent() {
    let mut core = known(four(), 16, 0);
    let calls = look(&mut core, at(2000), 900);
    core.failed(&calls[0], at(2100));
    core.crossed(source(1), BUCKET, at(2150));
    assert!(look(&mut core, at(2150), 960).is_empty());
    assert_eq!(core.wakes_at(), at(2400));
    assert_eq!(look(&mut core, at(2400), 960).len(), 1);
}

#[test]
fn a_source_that_is_gone_from_the_kernel_is_removed_once_the_store_knows() {
    let mut core = known(four(), 16, 0);
    let calls = look(&mut core, at(2000), 0);
    let said = calls[0].entries().find(|entry| entry.bucket == BUCKET).unwrap().count;
    assert_eq!(said, Some(0));
    answer(&mut core, &calls[0], true, 0, at(2001));
    assert!(look(&mut core, at(3000), 0).is_empty());
    assert_eq!(core.tracked(), 0);
}

#[test]
fn other_limits_keep_what_is_known_of_those_that_stay() {
    let mut core = known(four(), 16, 588);
    let raised = FleetLimit { amount: 2000, ..limit() };
    core.set_limits(vec![FleetLimit { identity: "new".to_owned(), ..limit() }, raised]);
    let moved = Subject { limit: LimitId(1), ..source(1) };
    assert_eq!(core.standing(moved, at(1100)).unwrap().elsewhere, 588);
    assert_eq!(core.limit(LimitId(1)).unwrap().1.amount, 2000);
    core.set_limits(Vec::new());
    assert_eq!(core.tracked(), 0);
}

#[test]
fn an_answer_to_a_call_of_other_limits_tells_the_kernel_nothing() {
    let mut core = core(four());
    core.due(at(0));
    core.crossed(source(1), BUCKET, at(0));
    let calls = look(&mut core, at(1000), 16);
    assert!(!calls.is_empty());
    core.set_limits(vec![FleetLimit { identity: "new".to_owned(), ..limit() }, limit()]);
    for call in &calls {
        let said: Vec<Said> = call.entries().map(|_| Said { had_mine: false, others: 588 }).collect();
        assert_eq!(core.answered(call, &said, at(1010)), []);
    }
    let again = look(&mut core, at(2000), 16);
    assert!(!again.is_empty(), "it is said again, under the place that the limit has now");
    assert!(again.iter().flat_map(Call::entries).all(|entry| entry.subject.limit == LimitId(1)));
}

#[test]
fn a_call_has_a_thousand_entries_at_most() {
    let mut core = core(Settings { hosts: 4, ..Settings::default() });
    core.due(at(0));
    for number in 0..5000_u32 {
        let source = ipnet::IpNet::from(std::net::IpAddr::from(number.to_be_bytes()));
        core.crossed(Subject { limit: LimitId(0), source }, BUCKET, at(0));
    }
    let calls = look(&mut core, at(1000), 16);
    assert_eq!(calls.iter().flat_map(Call::entries).count(), 5000 * 6);
    assert!(calls.iter().all(|call| call.entries().count() <= 1000));
    assert!(calls.iter().all(|call| call.groups.iter().all(|group| !group.entries.is_empty())));
}

#[test]
fn a_failed_lookup_is_neither_zero_nor_given_up_but_repeated() {
    let mut core = known(four(), 16, 588);
    let due = core.due(at(2000));
    assert_eq!(core.round(at(2000), &due, &[None]), Round::default());
    assert_eq!(core.tracked(), 1);
    assert!(core.wakes_at() <= at(2300));
    let calls = look(&mut core, at(2300), 16);
    assert!(calls.iter().flat_map(Call::entries).any(|entry| entry.count == Some(16)), "{calls:?}");
}

#[test]
fn remote_counts_that_the_kernel_lost_are_told_again_and_others_are_not() {
    let mut core = known(four(), 16, 588);
    let mut told = |ms, others| {
        let due = core.due(at(ms));
        let read = vec![Some(vec![Count { bucket: BUCKET, own: 16, others }])];
        let round = core.round(at(ms), &due, &read);
        for call in &round.calls {
            assert_eq!(told_now(&answer(&mut core, call, true, 588, at(ms + 1))), None, "no change");
        }
        told_now(&round.told)
    };
    assert_eq!(told(2000, 588), None);
    assert_eq!(told(3000, 0), Some(588), "a write that was lost");
    assert_eq!(told(4000, 588), None);
    assert_eq!(told(5000, 587), Some(588));
}
