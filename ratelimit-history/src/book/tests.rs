//! Tests of the life of an episode, with examples and with random sequences of events.

use std::collections::HashMap;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::in_force::{Judged, RuleInForce};

const LIMIT: &str = "10/1m requests";
const MINUTE: Millis = 60_000;

fn source(last: u8) -> IpNet {
    IpNet::from(std::net::IpAddr::from([192, 0, 2, last]))
}

fn event(kind: EventKind, at: Millis) -> Event {
    let mut event = Event::new(Timestamp::from_millisecond(at).unwrap(), kind, String::new());
    event.rule = Some("web".to_owned());
    event.limit = Some(LIMIT.to_owned());
    event.reason = Some("over_limit".to_owned());
    event.used = Some(10);
    event
}

fn ban(at: Millis, until: Millis) -> Event {
    Event { until: Some(Timestamp::from_millisecond(until).unwrap()), ..event(EventKind::Ban, at) }
}

fn refused(at: Millis, packets: u64) -> Refused {
    Refused { at, packets, bytes: packets * 60, used: 10 + packets }
}

/// Returns every episode as the database would have it, ordered by row.
fn all(book: &mut Book) -> Vec<(Key, Episode)> {
    book.unwrite();
    let mut all: Vec<_> = book.unwritten().map(|(key, episode)| (key.clone(), episode.clone())).collect();
    all.sort_unstable_by_key(|(_, episode)| episode.id);
    all
}

#[test]
fn refusals_form_one_episode_that_ends_at_the_last_one_after_the_window() {
    let mut book = Book::new(10);
    book.event(&event(EventKind::Refused, 1_000), Some(source(1)));
    book.progress(source(1), "web", LIMIT, false, refused(2_000, 5));
    book.event(&event(EventKind::Refused, 50_000), Some(source(1)));
    book.progress(source(1), "web", LIMIT, false, refused(60_000, 2));
    book.tick(60_000 + MINUTE);
    assert_eq!(all(&mut book)[0].1.ended, None);
    book.tick(60_000 + MINUTE + 1);
    let all = all(&mut book);
    let of = &all[0].1;
    assert_eq!((all.len(), of.began, of.ended), (1, 1_000, Some(60_000)));
    assert_eq!((of.packets, of.bytes, of.peak, &*of.reason), (7, 420, 15, "over_limit"));
}

#[test]
fn a_reading_without_refusals_keeps_no_episode_open() {
    let mut book = Book::new(10);
    book.event(&event(EventKind::Refused, 0), Some(source(1)));
    book.progress(source(1), "web", LIMIT, false, refused(MINUTE, 0));
    book.tick(MINUTE + 1);
    assert_eq!(all(&mut book)[0].1.ended, Some(0));
}

#[test]
fn a_ban_keeps_the_episode_open_until_its_end_or_until_it_is_lifted() {
    let mut book = Book::new(10);
    for last in [1, 2, 3] {
        book.event(&event(EventKind::Refused, 0), Some(source(last)));
        book.event(&ban(1_000, 600_000), Some(source(last)));
    }
    book.tick(600_000);
    book.event(&event(EventKind::BanEnd, 600_001), Some(source(1)));
    book.event(&event(EventKind::Unblock, 600_002), Some(source(2)));
    book.tick(600_000 + BAN_IS_TOLD_WITHIN);
    assert_eq!(book.open.len(), 1, "what the ban has dropped may follow");
    book.tick(600_001 + BAN_IS_TOLD_WITHIN);
    let all = all(&mut book);
    let ends: Vec<_> = all.iter().map(|(_, of)| (&*of.reason, of.ended)).collect();
    assert_eq!(ends, [("banned", Some(600_001)), ("banned", Some(600_002)), ("banned", Some(600_000))]);
}

#[test]
fn a_rules_ban_end_leaves_others_and_a_command_ends_all_in_its_prefix() {
    let mut book = Book::new(10);
    let of_rule = |rule: &str| Event { rule: Some(rule.to_owned()), ..ban(0, 600_000) };
    book.event(&of_rule("web"), Some(source(1)));
    book.event(&of_rule("ssh"), Some(source(1)));
    book.event(&of_rule("ssh"), Some(source(200)));
    book.event(&event(EventKind::BanEnd, 5), Some(source(1)));
    let open = |book: &Book| {
        let mut open: Vec<_> = book.open.keys().map(|key| (key.source, key.rule.to_string())).collect();
        open.sort_unstable();
        open
    };
    assert_eq!(open(&book), [(source(1), "ssh".to_owned()), (source(200), "ssh".to_owned())]);
    book.event(&event(EventKind::Reset, 6), Some("192.0.2.0/25".parse().unwrap()));
    assert_eq!(open(&book), [(source(200), "ssh".to_owned())]);
}

#[test]
fn lifting_all_bans_ends_their_episodes_and_resetting_all_ends_every_one() {
    let mut book = Book::new(10);
    let of_ssh = |event: Event| Event { rule: Some("ssh".to_owned()), ..event };
    book.event(&ban(0, 600_000), Some(source(1)));
    book.event(&of_ssh(event(EventKind::Refused, 1)), Some(source(1)));
    book.event(&event(EventKind::Refused, 2), Some(source(2)));
    book.event(&Event { kind: EventKind::WouldBan, ..ban(3, 600_000) }, Some(source(3)));
    book.event(&event(EventKind::Unblock, 4), None);
    let open = |book: &Book| {
        let mut open: Vec<_> = book.open.keys().map(|key| key.source).collect();
        open.sort_unstable();
        open
    };
    assert_eq!(open(&book), [source(2), source(3)], "who is refused without a ban stays so");
    assert!(all(&mut book).iter().take(2).all(|(key, of)| key.source == source(1) && of.ended == Some(4)));
    book.event(&event(EventKind::Reset, 5), None);
    assert_eq!(open(&book), []);
}

#[test]
fn would_be_refusals_are_a_separate_episode() {
    let mut book = Book::new(10);
    book.event(&event(EventKind::Refused, 0), Some(source(1)));
    book.event(&event(EventKind::WouldRefuse, 1), Some(source(1)));
    book.event(&Event { until: None, ..event(EventKind::WouldBan, 2) }, Some(source(1)));
    book.progress(source(1), "web", LIMIT, true, refused(3, 4));
    book.event(&event(EventKind::BanEnd, 4), Some(source(1)));
    let all = all(&mut book);
    let got: Vec<_> = all.iter().map(|(key, of)| (key.would, &*of.reason, of.packets, of.ended)).collect();
    assert_eq!(got, [(false, "over_limit", 0, Some(4)), (true, "dry_run", 4, None)]);
}

#[test]
fn beyond_the_most_that_are_open_an_episode_has_ended_at_once() {
    let mut book = Book::new(2);
    for last in 0..5 {
        book.event(&event(EventKind::Refused, last.into()), Some(source(last)));
    }
    let ended: Vec<_> = all(&mut book).iter().map(|(_, of)| of.ended).collect();
    assert_eq!(ended, [None, None, Some(2), Some(3), Some(4)]);
    assert_eq!(book.open.len(), 2);
}

#[test]
fn a_clock_set_back_a_year_neither_ends_nor_prolongs_an_episode() {
    let year = 365 * 86_400_000;
    let mut book = Book::new(10);
    book.event(&event(EventKind::Refused, year), Some(source(1)));
    book.tick(1_000);
    assert_eq!(all(&mut book)[0].1.ended, None);
    book.tick(1_000 + MINUTE + 1);
    // An episode never ends before it began.
    assert_eq!(all(&mut book)[0].1.ended, Some(year));
}

#[test]
fn names_are_kept_once_and_at_most_so_many() {
    let mut book = Book::new(10);
    let one = book.name("web");
    assert!(Arc::ptr_eq(&one, &book.name("web")));
    for number in 0..3 * NAMES_MAX {
        book.name(&number.to_string());
    }
    assert!(book.names.len() <= NAMES_MAX);
}

#[test]
fn the_window_is_read_off_the_limit() {
    for (limit, window) in [
        ("1000/5m requests", 300_000),
        ("10/s", 1_000),
        ("5/1h30m bytes per /24", 5_400_000),
        ("", 300_000),
        ("9/x", 300_000),
    ] {
        assert_eq!(window_of(limit), window, "{limit}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Event(EventKind, u8),
    Progress(u8, bool, u64),
    Tick,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kinds = prop::sample::select(EventKind::ALL.to_vec());
    prop_oneof![
        4 => (kinds, 0..4_u8).prop_map(|(kind, last)| Step::Event(kind, last)),
        4 => (0..4_u8, any::<bool>(), 0..100_u64).prop_map(|(last, would, packets)| Step::Progress(last, would, packets)),
        2 => Just(Step::Tick),
    ]
}

/// Runs the steps. Returns the number of packets that had an open episode.
fn run(book: &mut Book, steps: &[(Millis, Step)]) -> u64 {
    let mut counted = 0;
    for (at, step) in steps {
        match step {
            Step::Event(EventKind::Ban, last) => book.event(&ban(*at, at + 90_000), Some(source(*last))),
            Step::Event(kind, last) => book.event(&event(*kind, *at), Some(source(*last))),
            Step::Progress(last, would, packets) => {
                let key = Key { source: source(*last), rule: "web".into(), limit: LIMIT.into(), would: *would };
                counted += if book.open.contains_key(&key) { *packets } else { 0 };
                book.progress(source(*last), "web", LIMIT, *would, refused(*at, *packets));
            }
            Step::Tick => book.tick(*at),
        }
    }
    counted
}

fn timeline() -> impl Strategy<Value = Vec<(Millis, Step)>> {
    prop::collection::vec((0..40_000_i64, any_step()), 0..60).prop_map(|steps| {
        let mut now = 0;
        steps
            .into_iter()
            .map(|(later, step)| {
                now += later;
                (now, step)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn episodes_of_one_thing_never_overlap_and_have_every_packet_once(steps in timeline()) {
        let mut book = Book::new(100);
        let counted = run(&mut book, &steps);
        let end = steps.last().map_or(0, |(at, _)| *at);
        book.tick(end + 1_000_000);
        let all = all(&mut book);
        prop_assert!(all.iter().all(|(_, of)| of.ended.is_some_and(|ended| of.began <= ended)), "{:?}", all);
        prop_assert_eq!(all.iter().map(|(_, of)| of.packets).sum::<u64>(), counted);
        let mut last: HashMap<&Key, Millis> = HashMap::new();
        for (key, of) in &all {
            let before = last.insert(key, of.ended.unwrap());
            prop_assert!(before.is_none_or(|before| before <= of.began), "{:?}", all);
            prop_assert_eq!(&*of.reason == "dry_run", key.would);
        }
    }

    #[test]
    fn a_restart_at_any_moment_changes_nothing(steps in timeline(), at in 0..60_usize) {
        let (before, after) = steps.split_at(at.min(steps.len()));
        let mut whole = Book::new(100);
        run(&mut whole, &steps);
        let mut first = Book::new(100);
        run(&mut first, before);
        let (ended, open): (Vec<_>, Vec<_>) = all(&mut first).into_iter().partition(|(_, of)| of.ended.is_some());
        let mut second = Book::new(100);
        second.resume(open, first.next_id);
        run(&mut second, after);
        let mut both = ended;
        both.extend(all(&mut second));
        both.sort_unstable_by_key(|(_, of)| of.id);
        prop_assert_eq!(both, all(&mut whole));
    }

    #[test]
    fn any_order_of_times_and_any_room_make_episodes_that_end_after_they_began(
        mut steps in timeline(), times in prop::collection::vec(any::<i32>(), 60), open_max in 0..3_usize,
    ) {
        for ((at, _), time) in steps.iter_mut().zip(times) {
            *at = time.into();
        }
        let mut book = Book::new(open_max);
        run(&mut book, &steps);
        prop_assert!(book.open.len() <= open_max);
        prop_assert!(all(&mut book).iter().all(|(_, of)| of.ended.is_none_or(|ended| of.began <= ended)));
    }

    #[test]
    fn episodes_before_the_database_opened_get_ids_after_existing_rows(steps in timeline(), next_id in 1..1000_i64) {
        let mut book = Book::new(100);
        run(&mut book, &steps);
        let ids = |book: &mut Book| all(book).iter().map(|(_, of)| of.id).collect::<Vec<_>>();
        let before = ids(&mut book);
        book.resume(Vec::new(), next_id);
        prop_assert_eq!(ids(&mut book), before.iter().map(|id| id + next_id - 1).collect::<Vec<_>>());
        prop_assert!(ids(&mut book).iter().all(|id| *id < book.next_id));
    }
}

fn in_force(at: Millis, judged: Judged) -> Arc<InForce> {
    Arc::new(InForce { time: Timestamp::from_millisecond(at).unwrap(), judged })
}

/// Returns a policy with the rule "web" and these limits.
fn by_rule(at: Millis, is_enforced: bool, is_panic: bool, limits: &[&str]) -> Arc<InForce> {
    let limits = limits.iter().map(ToString::to_string).collect();
    let rule = RuleInForce { name: "web".to_owned(), is_enforced, limits, shadow_limits: vec![] };
    in_force(at, Judged::By { rules: vec![rule], is_panic })
}

/// Runs a policy change on two episodes: a refused source, and one banned until 600 s. Returns when and why they end.
fn ends(of: &Arc<InForce>) -> [(Option<Millis>, Option<&'static str>); 2] {
    let mut book = Book::new(10);
    book.in_force(&by_rule(0, true, false, &[LIMIT]));
    book.event(&event(EventKind::Refused, 1_000), Some(source(1)));
    book.event(&ban(1_000, 600_000), Some(source(2)));
    book.in_force(of);
    book.in_force(of);
    let all = all(&mut book);
    assert_eq!(all.len(), 2, "each ends once");
    [0, 1].map(|at| (all[at].1.ended, all[at].1.cause.map(EndCause::label)))
}

#[test]
fn the_end_of_enforcement_ends_bans_and_refusals_with_time_and_cause() {
    let both = |at, cause| [(Some(at), Some(cause)); 2];
    let goes_on = (None, None);
    assert_eq!(ends(&in_force(9_000, Judged::Detached)), both(9_000, "detached"));
    assert_eq!(ends(&in_force(9_000, Judged::WithoutDaemon)), both(9_000, "without_daemon"));
    let none = Judged::By { rules: vec![], is_panic: false };
    assert_eq!(ends(&in_force(9_000, none)), both(9_000, "rule_ended"));
    assert_eq!(ends(&by_rule(9_000, false, true, &[LIMIT])), both(9_000, "panic"));
    assert_eq!(ends(&by_rule(9_000, false, false, &[LIMIT])), both(9_000, "dry_run"));
    let changed = by_rule(9_000, true, false, &["20/1m requests"]);
    assert_eq!(ends(&changed), [(Some(9_000), Some("limit_changed")), goes_on], "a ban is of its rule");
    assert_eq!(ends(&by_rule(9_000, true, false, &[LIMIT])), [goes_on; 2]);
    // The machine was rebooted between the last news and 9 s.
    let boot = |at| in_force(20_000, Judged::Anew { boot: Timestamp::from_millisecond(at).unwrap() });
    assert_eq!(ends(&boot(9_000)), both(9_000, "reboot"));
    assert_eq!(ends(&boot(500)), both(1_000, "filter_gone"), "with the last news, as nothing says since when");
}

#[test]
fn an_episode_that_was_over_before_keeps_its_own_end() {
    let off = in_force(700_000, Judged::Detached);
    assert_eq!(ends(&off), [(Some(1_000), Some("quiet")), (Some(600_000), Some("expired"))]);
}

#[test]
fn episodes_left_open_by_an_earlier_daemon_end_by_what_is_enforced_now() {
    let mut book = Book::new(10);
    book.event(&ban(1_000, 600_000), Some(source(1)));
    let left = all(&mut book);
    let mut next = Book::new(10);
    next.in_force(&in_force(30_000, Judged::WithoutDaemon));
    next.in_force(&by_rule(60_000, true, false, &[LIMIT]));
    next.resume(left, 2);
    let all = all(&mut next);
    assert_eq!((all[0].1.ended, all[0].1.cause), (Some(30_000), Some(EndCause::WithoutDaemon)));
}

#[test]
fn a_refusal_that_was_on_its_way_when_its_rule_ended_opens_nothing() {
    let mut book = Book::new(10);
    book.in_force(&in_force(9_000, Judged::Detached));
    book.event(&event(EventKind::Refused, 8_990), Some(source(1)));
    assert_eq!(all(&mut book)[0].1.ended, Some(9_000));
}

#[test]
fn dry_run_that_becomes_enforcement_ends_what_would_have_been_refused() {
    let mut book = Book::new(10);
    book.in_force(&by_rule(0, false, false, &[LIMIT]));
    book.event(&event(EventKind::WouldRefuse, 1_000), Some(source(1)));
    book.in_force(&by_rule(9_000, true, false, &[LIMIT]));
    let all = all(&mut book);
    assert_eq!((all[0].1.ended, all[0].1.cause), (Some(9_000), Some(EndCause::Enforced)));
}

#[test]
fn a_command_ends_with_its_own_cause() {
    for (kind, cause) in [(EventKind::Unblock, "lifted"), (EventKind::Reset, "reset"), (EventKind::Allow, "allowed")] {
        let mut book = Book::new(10);
        book.event(&ban(1_000, 600_000), Some(source(1)));
        book.event(&Event { rule: None, limit: None, ..event(kind, 9_000) }, Some(source(1)));
        let of = all(&mut book).remove(0).1;
        assert_eq!((of.ended, of.cause.map(EndCause::label)), (Some(9_000), Some(cause)));
    }
    let mut book = Book::new(10);
    book.event(&ban(1_000, 5_000), Some(source(1)));
    book.tick(5_000);
    assert_eq!(all(&mut book).remove(0).1.cause, None, "the window of its last refusal is not over");
    book.tick(5_000 + MINUTE + BAN_IS_TOLD_WITHIN);
    let of = all(&mut book).remove(0).1;
    assert_eq!((of.ended, of.cause), (Some(5_000), Some(EndCause::Expired)));
}
