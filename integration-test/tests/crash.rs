//! Kills the daemon at each crash point under each kind of load, and starts it again. The filter enforces all the time,
//! counts nothing twice, loses only the interrupted operation, and the daemon starts without help.
#![expect(clippy::wildcard_enum_match_arm, reason = "what is looked at is of few points")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Instant, SystemTime};

use integration_test::crash::acts::Act;
use integration_test::crash::moves::Moved;
use integration_test::crash::{Case, Ground, Load};
use integration_test::fleet::clients::innocent;
use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, Host, client_of};
use integration_test::lab::{binary, once};
use netlab::needs_root;
use nix::sys::signal::Signal;
use ratelimit_crash::Point::{
    AccessBefore, AccessTried, AdoptApplied, Adopted, ApplyActive, ApplyBegun, ApplyConfig, ApplyDone, ApplyPorts,
    ApplyPrefixes, ApplyRows, ApplyTargets, BansRemoved, CacheRemoved, CarryApplied, CarryAttached, CarryDetached,
    Confined, ConfirmDone, ConfirmKept, ConfirmSettled, Detached, EndDatapath, EndHistory, EndLetGo, EndLinks, EndMaps,
    EndServed, EndTold, GrantApplied, GrantKept, HistoryBegun, HistoryCommitted, HistoryOpened, HistoryWritten, Lifted,
    Linked, LinksAside, LinksNamed, Listed, MapsMade, ModeApplied, ModeKept, MoveCleared, MoveConverted, MoveDone,
    MoveGone, MoveLink, MoveMarked, MoveShared, MoveSwapped, MoveUnmarked, MoveUnshared, Pinned, PinsLocked, PinsMade,
    ProgramLoaded, Ready, Recalled, ReloadCarried, ReloadRead, ReloadSettled, Replaced, RollBackDone, RollBackRecorded,
    Serving, SocketBeside, SocketBound, StartApplied, Started, StoreRemoved, StoreRenamed, StoreSaved, StoreSynced,
    StoreWritten, TakenOver, TrialApplied, TrialRecorded, Unpinned, WindowsRemoved,
};
use ratelimit_crash::{Point, VARIABLE};
use serde_json::json;

/// Environment variable that selects the runs. `all` selects every run. Otherwise each case has one of the loads, by
/// the seed, and only a third of the moves run.
const RUNS_VARIABLE: &str = "RATELIMITD_CRASH_RUNS";
/// Environment variable with the seed that selects each case's load.
const SEED_VARIABLE: &str = "RATELIMITD_CRASH_SEED";

const APPLY: [Point; 8] =
    [ApplyBegun, ApplyRows, ApplyPrefixes, ApplyTargets, ApplyPorts, ApplyConfig, ApplyActive, ApplyDone];

/// Points at which the daemon is killed, by the operation that is interrupted.
const CASES: &[(Act, &[Point])] = &[
    (
        Act::Start,
        &[
            SocketBeside,
            SocketBound,
            PinsMade,
            PinsLocked,
            MapsMade,
            ProgramLoaded,
            TakenOver,
            Recalled,
            ApplyTargets,
            ApplyActive,
            StartApplied,
            Listed,
            Linked,
            Pinned,
            Started,
            Confined,
            Serving,
            Ready,
            HistoryOpened,
        ],
    ),
    (
        Act::Adopt,
        &[
            SocketBeside,
            SocketBound,
            PinsLocked,
            MapsMade,
            ProgramLoaded,
            TakenOver,
            Recalled,
            Listed,
            Replaced,
            Adopted,
            AdoptApplied,
            Started,
            Confined,
            Serving,
            Ready,
        ],
    ),
    (Act::AdoptOther, &APPLY),
    (Act::AdoptOther, &[Replaced, Adopted, AdoptApplied]),
    (Act::AdoptRenamed, &[LinksAside, LinksNamed]),
    (Act::Reload, &APPLY),
    (Act::Reload, &[ReloadRead, CarryApplied, ReloadCarried, StoreRemoved, ReloadSettled]),
    (Act::AddInterface, &[Listed, Linked, Pinned, CarryAttached]),
    (Act::DropInterface, &[Unpinned, Detached, CarryDetached]),
    (
        Act::Trial,
        &[StoreWritten, StoreSynced, StoreRenamed, StoreSaved, TrialRecorded, ApplyConfig, ApplyActive, TrialApplied],
    ),
    (Act::Confirm, &[ConfirmKept, StoreRemoved, ConfirmSettled, ConfirmDone]),
    (Act::RollBack, &[StoreWritten, StoreRenamed, RollBackRecorded, ApplyBegun, ApplyActive, RollBackDone]),
    (
        Act::Deny,
        &[
            ApplyPrefixes,
            ApplyActive,
            GrantApplied,
            StoreWritten,
            StoreSynced,
            StoreRenamed,
            StoreSaved,
            GrantKept,
            HistoryBegun,
            HistoryWritten,
            HistoryCommitted,
        ],
    ),
    (Act::DenyOnTrial, &[AccessTried, AccessBefore, GrantApplied, GrantKept]),
    (Act::Allow, &[GrantApplied, GrantKept]),
    (Act::Undeny, &[GrantApplied, StoreRenamed, GrantKept]),
    (Act::Unallow, &[GrantApplied, GrantKept]),
    (Act::Unblock, &[WindowsRemoved, BansRemoved, CacheRemoved, Lifted]),
    (Act::Panic, &[ApplyActive, ModeApplied, StoreWritten, StoreRenamed, ModeKept]),
    (Act::Enforce, &[ModeApplied, StoreRemoved, ModeKept]),
    (Act::StopKeep, &[EndTold, EndDatapath, EndHistory, EndServed]),
    (Act::StopDetach, &[EndLetGo, EndServed]),
    (Act::Detach, &[EndTold, EndLetGo, EndLinks, EndMaps, EndDatapath, EndHistory, EndServed]),
    (
        Act::Move(Moved::Whole),
        &[
            MoveCleared,
            MoveShared,
            MapsMade,
            MoveConverted,
            TakenOver,
            ApplyConfig,
            ApplyActive,
            MoveMarked,
            Replaced,
            MoveSwapped,
            MoveUnshared,
            Pinned,
            MoveLink,
            MoveUnmarked,
            MoveDone,
            Adopted,
        ],
    ),
    (Act::Move(Moved::Resumed), &[Replaced, MoveSwapped]),
    (Act::Move(Moved::Widened), &[Linked, Pinned, Replaced]),
    (Act::Move(Moved::Narrowed), &[MoveGone]),
    (Act::Move(Moved::OnTrial), &[ApplyActive, Replaced, MoveUnmarked]),
];

/// Cases of a point that was passed once before. The second pass is for the second interface.
const SECOND: &[(Act, &[Point])] = &[(Act::Move(Moved::Whole), &[Replaced, MoveLink])];

/// Points of another test, with two hosts.
const OF_FLEET: [Point; 3] = [Point::FleetJoined, Point::FleetSpread, Point::FleetHeard];

fn cases() -> Vec<Case> {
    let of = |(passes, (act, points)): (u32, &(Act, &'static [Point]))| {
        let act = *act;
        points.iter().map(move |point| Case { point: *point, passes, act })
    };
    let tables = [CASES, SECOND].into_iter().zip(0..);
    tables.flat_map(|(rows, passes)| rows.iter().map(move |row| (passes, row))).flat_map(of).collect()
}

#[test]
fn each_crash_point_has_a_case() {
    let covered: BTreeSet<Point> = cases().iter().map(|case| case.point).collect();
    let missing: Vec<&str> =
        Point::ALL.iter().filter(|of| !covered.contains(of) && !OF_FLEET.contains(of)).map(|of| of.name()).collect();
    assert!(missing.is_empty(), "no case kills the daemon at {missing:?}");
}

/// Returns the runs of this time, the number of all possible runs, and the seed.
fn runs() -> (Vec<(Case, Load)>, usize, u64) {
    let cases = cases();
    let loads = Load::ALL.len();
    let of_now = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let seed = env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(of_now);
    let is_all = env::var(RUNS_VARIABLE).is_ok_and(|runs| runs == "all");
    let only = env::var("RATELIMITD_CRASH_ONLY").ok();
    let mut chosen = Vec::new();
    for (at, load) in Load::ALL.into_iter().enumerate() {
        let is_due = |case: usize, part: usize| (case as u64 + at as u64 + seed).is_multiple_of(part as u64);
        let is_chosen = |case: usize, of: &Case| is_all || is_due(case, loads * of.act.in_every());
        let is_meant = |case: &Case| only.as_ref().is_none_or(|only| case.to_string().contains(only));
        let of_load = cases.iter().enumerate().filter(|(case, of)| is_chosen(*case, of) && is_meant(of));
        chosen.extend(of_load.map(|(_, case)| (*case, load)));
    }
    (chosen, cases.len() * loads, seed)
}

/// Returns whether the binary has crash points.
fn is_armed() -> bool {
    let bytes = fs::read(binary()).unwrap_or_default();
    bytes.windows(VARIABLE.len()).any(|part| part == VARIABLE.as_bytes())
}

/// Returns whether the test must be skipped because the binary has no crash points, and reports that.
fn skips(test: &str) -> bool {
    let is_armed = is_armed();
    if !is_armed {
        println!("skipped: {test}: no crash points: `cargo build -p ratelimit-userspace -p integration-test`");
    }
    !is_armed
}

#[test]
fn killed_at_any_point_under_any_load_it_enforces_loses_nothing_and_starts_again() {
    needs_root!();
    if skips("killed_at_any_point_under_any_load_it_enforces_loses_nothing_and_starts_again") {
        return;
    }
    let (runs, of, seed) = runs();
    println!("seed {seed}: {} of {of} runs", runs.len());
    let began = Instant::now();
    let mut ground = Ground::new();
    let mut failed = Vec::new();
    let mut points = BTreeSet::new();
    for (case, load) in &runs {
        let named = format!("{case} under {load:?}");
        let since = Instant::now();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| ground.run(*case, *load))) {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.or_else(|| panic.downcast_ref::<&str>().map(|why| (*why).to_owned())).unwrap_or_default();
            println!("FAILED {named}: {why}");
            failed.push(format!("{named}: {why}"));
            ground.begin();
        } else {
            points.insert(case.point.name());
        }
        println!("{named}: {:.2} s", since.elapsed().as_secs_f64());
    }
    let seconds = began.elapsed().as_secs_f64();
    let words = format!("{} points, {} of {of} runs in {seconds:.0} s, seed {seed}", points.len(), runs.len());
    println!("crash points: {words}");
    // Figures of a part of the runs would look like those of all runs.
    if runs.len() == of {
        let figures = json!({
            "points": points.len(), "points_in_all": Point::ALL.len(), "cases": cases().len(), "loads": Load::ALL.len(),
            "runs": runs.len(), "failed": failed.len(), "seconds": seconds.round(),
        });
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("crash");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("figures.json"), format!("{figures:#}\n")).unwrap();
    }
    assert!(failed.is_empty(), "{} of {} runs (seed {seed}):\n{}", failed.len(), runs.len(), failed.join("\n\n"));
}

/// Rules of both hosts.
const FLEET_RULES: &str = "[[rule]]\nname = \"minute\"\nports = \"80/tcp\"\nlimits = [\"1000/1m requests\"]\n[[rule]]\nname = \"others\"\nlimits = [\"9/1h connections\"]";

/// A denial by another host's users takes effect here completely or not at all, even if a host is killed meanwhile.
/// Other clients of the host are always answered, and the denied one never is.
#[test]
fn a_host_killed_during_fleet_exchange_restarts_and_follows_the_others() {
    needs_root!(store::obstacle());
    if skips("a_host_killed_during_fleet_exchange_restarts_and_follows_the_others") {
        return;
    }
    let began = Instant::now();
    let mut fleet = Fleet::new(2, Kind::Single);
    fleet.configure("on_exit = \"keep\"\nmax_sources = 4096", &fleet.store.settings(), FLEET_RULES);
    fleet.start();
    fleet.hosts[0].tell(&["deny", "198.51.100.250", "--for", "1d"]);
    let mut number = 100;
    for (clients, point) in [0, 2, 20].into_iter().flat_map(|clients| OF_FLEET.map(|point| (clients, point))) {
        number += 1;
        let named = client_of(number);
        let dies = usize::from(point == Point::FleetHeard);
        let others: Vec<_> =
            (1..=clients).map(|of| fleet.client_of_host(dies, &client_of(of), 80, innocent(20))).collect();
        let denied = fleet.client_of_host(0, "198.51.100.250", 80, innocent(20));
        if point == Point::FleetJoined {
            fleet.hosts[dies].end(Signal::SIGKILL);
            fleet.hosts[dies].arm(point);
            fleet.hosts[dies].start_to_die();
        } else {
            fleet.hosts[dies].arm(point);
            let _is_killed = fleet.hosts[0].ratelimitd(&["deny", &named, "--for", "1h", "--fleet"]);
        }
        fleet.hosts[dies].await_death();
        fleet.hosts[dies].start();
        fleet.wait_until_connected();
        let is_denied = |host: &Host| host.check(&named)["reason"] == "denied";
        match point {
            Point::FleetHeard => {
                // The host hears again in the round after the one that connects.
                let are_both = once(|| fleet.hosts.iter().all(is_denied).then_some(()));
                are_both.unwrap_or_else(|| panic!("{named} is not denied by both"));
            }
            Point::FleetSpread => assert!(is_denied(&fleet.hosts[0]), "{named} is denied where that was said"),
            _ => assert!(!fleet.hosts.iter().any(is_denied)),
        }
        // An entry that is heard again stays one entry.
        let list: serde_json::Value = serde_json::from_str(&fleet.hosts[dies].tell(&["list", "--json"])).unwrap();
        let entries = list["entries"].as_array().unwrap().iter().filter(|of| of["prefix"] == named);
        assert!(entries.count() <= 1, "{list:#}");
        assert_eq!(denied.stop().answered, 0, "the denied client is answered");
        for client in others {
            let tally = client.stop();
            assert!(tally.answered > 0, "clients go on: {tally:?}");
        }
        println!("fleet: killed at {} with {clients} clients", point.name());
    }
    println!("crash points of a fleet: 9 of 9 runs in {:.0} s", began.elapsed().as_secs_f64());
}
