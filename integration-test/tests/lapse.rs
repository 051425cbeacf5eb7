//! Tests of the dead man's switch. A filter without a daemon enforces for the configured time, then drops nothing, and
//! enforces again once a daemon is back.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use integration_test::frames::syn;
use integration_test::lab::{
    CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, SERVER, assert_refused, binary, number, once,
};
use integration_test::program::{Program, limit, policy, rule};
use netlab::{Child, HttpServer, needs_root};
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::{Datapath as _, Trial};
use ratelimit_policy::desired::{Access, Bans, Grant, Mode, Policy, Rule, WindowForm};
use serde_json::Value;

const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Unit of a lapse time, in nanoseconds.
const UNIT_NS: u64 = 1 << 28;

/// Returns a policy that drops frames for every reason that one frame can have: limit, ban, denial, too many tags.
fn strict() -> Policy {
    let denied = Access { prefix: "203.0.113.0/24".parse().unwrap(), grant: Grant::Denied, until: None };
    let mut policy = Policy { access: vec![denied], ..policy(&[limit(2, Unit::Packets, WindowForm::Strict)]) };
    policy.rules[0].bans = Some(Bans { steps_ns: vec![10 * MINUTE_NS], forget_ns: 0, needs_proof: false });
    policy
}

fn tagged_thrice() -> Vec<u8> {
    let inner = syn("198.51.100.77", 80);
    let tags = [0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1];
    [&inner[..12], &tags, &inner[12..]].concat()
}

/// Returns five verdicts: on a source over its limit and banned, on a denied one, and on a packet with too many tags.
/// The last two are on a source within its limit, and on a port without a rule.
fn verdicts(program: &mut Program, innocent: &str) -> [&'static str; 5] {
    let frames = [
        syn("198.51.100.1", 80),
        syn("203.0.113.9", 80),
        tagged_thrice(),
        syn(innocent, 80),
        syn("198.51.100.1", 9999),
    ];
    frames.map(|frame| program.verdict(&frame))
}

const ENFORCED: [&str; 5] = ["banned", "denied", "too_many_tags", "within_limit", "not_protected"];
const LAPSED: [&str; 5] = ["dry_run", "dry_run", "dry_run", "within_limit", "not_protected"];

#[test]
fn packets_pass_only_after_enforcement_lapses_and_until_it_is_restored() {
    needs_root!();
    let mut program = Program::new(&strict());
    assert_eq!(program.passed(&syn("198.51.100.1", 80), 5), 2);
    assert_eq!(verdicts(&mut program, "198.51.100.11"), ENFORCED);
    let at = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().lapse_at(Some(at)).unwrap();
    let told = program.kernel().lapse().unwrap().unwrap();
    assert!((at.0..at.0 + UNIT_NS).contains(&told.0), "{told:?} is not {at:?}");
    program.set_now(Nanos(at.0 - 1));
    assert_eq!(verdicts(&mut program, "198.51.100.12"), ENFORCED);
    program.set_now(Nanos(at.0 + UNIT_NS));
    let before = program.counts();
    assert_eq!(verdicts(&mut program, "198.51.100.13"), LAPSED);
    assert_eq!(
        program.counts()["dry_run"] - before.get("dry_run").copied().unwrap_or(0),
        3,
        "they are counted as such"
    );
    // The filter stays lapsed whatever is applied, until a daemon reports that it is back.
    let other = Policy { rules: vec![Rule { name: "other".into(), ..strict().rules[0].clone() }], ..strict() };
    program.apply(&other);
    assert_eq!(program.passed(&syn("198.51.100.20", 80), 5), 5);
    program.apply(&strict());
    assert_eq!(verdicts(&mut program, "198.51.100.14"), LAPSED);
    let later = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().lapse_at(Some(later)).unwrap();
    assert_eq!(verdicts(&mut program, "198.51.100.15"), ENFORCED);
    program.advance(9 * 365 * 86_400 * SECOND_NS);
    assert_eq!(program.verdict(&syn("203.0.113.9", 80)), "dry_run", "nine years later too");
    program.kernel().lapse_at(None).unwrap();
    assert_eq!(program.verdict(&syn("203.0.113.9", 80)), "denied");
}

#[test]
fn nobody_is_banned_and_no_event_tells_of_a_refusal_while_enforcement_has_lapsed() {
    needs_root!();
    let mut program = Program::new(&strict());
    let kinds = |program: &mut Program| -> Vec<_> {
        program.events().into_iter().map(|event| std::mem::discriminant(&event.kind)).collect()
    };
    let at = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().lapse_at(Some(at)).unwrap();
    assert_eq!(program.passed(&syn("198.51.100.1", 80), 5), 2);
    let begun = |program: &mut Program| program.kernel().bans().unwrap().len();
    assert_eq!(begun(&mut program), 1);
    let enforced = kinds(&mut program);
    program.set_now(Nanos(at.0 + UNIT_NS));
    assert_eq!(program.passed(&syn("198.51.100.2", 80), 5), 5);
    assert_eq!(begun(&mut program), 1, "the second is not banned");
    let lapsed = kinds(&mut program);
    assert!(!lapsed.is_empty() && lapsed.iter().all(|kind| !enforced.contains(kind)), "{enforced:?}, {lapsed:?}");
    // With a daemon the source is refused and banned, because it is still over its limit.
    program.kernel().lapse_at(None).unwrap();
    assert_eq!(program.passed(&syn("198.51.100.2", 80), 5), 0);
    assert_eq!(begun(&mut program), 2);
}

#[test]
fn a_trial_ends_and_a_dry_run_goes_on_whether_enforcement_has_lapsed_or_not() {
    needs_root!();
    let before = Policy { rules: vec![rule("web", &[80], 0)], ..policy(&[]) };
    let tried = Policy { rules: vec![rule("web", &[80], 0), rule("more", &[81], 0)], ..policy(&[]) };
    let dry = |policy: &Policy| {
        let rules = policy.rules.iter().map(|rule| Rule { mode: Mode::DryRun, ..rule.clone() }).collect();
        Policy { rules, ..policy.clone() }
    };
    let both = |program: &mut Program| [80, 81].map(|port| program.verdict(&syn("198.51.100.1", port)));
    for (lapses_in, ends_in) in [(MINUTE_NS, 3 * MINUTE_NS), (3 * MINUTE_NS, MINUTE_NS)] {
        let mut program = Program::new(&before);
        let began = program.now().0;
        program.kernel().lapse_at(Some(Nanos(began + lapses_in))).unwrap();
        program.kernel().apply_until(&tried, Nanos(began + ends_in)).unwrap();
        for (minutes, expected) in [
            (0, ["over_limit", "over_limit"]),
            (2, if lapses_in < ends_in { ["dry_run", "dry_run"] } else { ["over_limit", "not_protected"] }),
            (4, ["dry_run", "not_protected"]),
        ] {
            program.set_now(Nanos(began + minutes * MINUTE_NS + UNIT_NS));
            assert_eq!(both(&mut program), expected, "lapse in {lapses_in}, end in {ends_in}, after {minutes} minutes");
        }
        assert_eq!(program.kernel().trial().unwrap(), Trial::Over);
        program.kernel().lapse_at(None).unwrap();
        assert_eq!(both(&mut program), ["over_limit", "not_protected"]);
    }
    let mut program = Program::new(&dry(&before));
    for lapse in [None, Some(Nanos(program.now().0 - SECOND_NS)), Some(Nanos(program.now().0 + MINUTE_NS))] {
        program.kernel().lapse_at(lapse).unwrap();
        assert_eq!(both(&mut program), ["dry_run", "not_protected"], "{lapse:?}");
    }
    let before_now = Nanos(program.now().0 - SECOND_NS);
    program.kernel().lapse_at(Some(before_now)).unwrap();
    program.apply(&before);
    assert_eq!(both(&mut program), ["dry_run", "not_protected"]);
}

fn write(lab: &Lab, without_daemon: &str) {
    let config = format!(
        "interfaces = [\"s0\"]\non_exit = \"keep\"\nmax_sources = 4096\nsocket = \"{}\"\n[safety]\n\
         without_daemon = \"{without_daemon}\"\n[rule]\nlimits = [\"2/1h connections\"]\n",
        lab.socket().display()
    );
    fs::write(lab.directory().join("r.toml"), config).unwrap();
}

fn start(lab: &Lab) -> Daemon {
    lab.start(&["run", "--config", lab.directory().join("r.toml").to_str().unwrap()])
}

#[test]
fn a_killed_daemons_filter_lapses_in_time_and_enforces_with_a_new_daemon() {
    needs_root!();
    const AFTER: Duration = Duration::from_secs(3);
    let lab = Lab::new();
    let _web =
        SERVER.map(|address| HttpServer::start(&lab.server, (address.parse::<IpAddr>().unwrap(), 80).into()).unwrap());
    write(&lab, "dry-run after 3s");
    let daemon = start(&lab);
    for client in [CLIENTS[0], CLIENTS_V6[0]] {
        lab.assert_admitted(client, 80, 2);
        lab.assert_blocked(client, 80);
    }
    let dropped = number(&lab.stats(), "/rules/0/dropped");

    daemon.kill();
    let killed = Instant::now();
    let said = lab.ratelimitd(&["stats"]);
    assert_refused(&said, 69, &["no daemon answers", "STILL ENFORCING on s0 without a daemon", "in dry run in "]);
    let json: Value = serde_json::from_str(&lab.ratelimitd(&["stats", "--json"]).stdout).unwrap();
    if killed.elapsed() < AFTER - Duration::from_secs(1) {
        assert_eq!((&json["without_daemon"]["dry_run"], &json["mode"]), (&false.into(), &"enforce".into()), "{json:#}");
        lab.assert_blocked(CLIENTS[0], 80);
    }
    once(|| lab.reaches(CLIENTS[0], 80, Duration::from_secs(1)).then_some(())).unwrap();
    assert!(killed.elapsed() + Duration::from_millis(500) >= AFTER, "after {:?} already", killed.elapsed());
    for client in [CLIENTS[0], CLIENTS_V6[0]] {
        lab.open(client, 80);
    }
    for (command, more) in [(&["stats"][..], "would drop"), (&["check", CLIENTS[0]], "")] {
        let said = lab.ratelimitd(command);
        assert_refused(&said, 69, &["NOTHING IS DROPPED on s0: the filter is in dry run for "]);
        assert!(said.stdout.to_lowercase().contains(more) || more.is_empty(), "{}", said.stdout);
    }
    let json: Value = serde_json::from_str(&lab.ratelimitd(&["stats", "--json"]).stdout).unwrap();
    assert_eq!((&json["without_daemon"]["dry_run"], &json["mode"]), (&true.into(), &"dry-run".into()), "{json:#}");
    assert!(number(&json, "/rules/0/would_drop") >= 2, "{json:#}");
    assert!(number(&json, "/rules/0/dropped") >= dropped, "{json:#}");

    let daemon = start(&lab);
    for client in [CLIENTS[0], CLIENTS_V6[0]] {
        lab.assert_blocked(client, 80);
    }
    let told = lab.ratelimitd(&["events", "--since", "1m"]);
    assert!(told.stdout.contains("NOTHING WAS DROPPED since"), "{}", told.stdout);
    // A filter that is configured to enforce for good does so.
    daemon.kill();
    write(&lab, "enforce");
    start(&lab).kill();
    let said = lab.ratelimitd(&["stats"]);
    assert_refused(&said, 69, &["STILL ENFORCING on s0 without a daemon"]);
    assert!(!said.stderr.contains("dry run"), "{}", said.stderr);
}

#[test]
fn windows_of_before_a_suspension_are_as_old_as_they_are_by_the_clock_on_the_wall() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    write(&lab, "enforce");
    let daemon = start(&lab);
    lab.assert_admitted(CLIENTS[0], 80, 2);
    lab.assert_blocked(CLIENTS[0], 80);
    daemon.kill();
    // In this time namespace the machine has been suspended for two hours: the time since boot is ahead of the
    // monotonic clock by two hours.
    let mut command = lab.command("unshare");
    command.args(["--time", "--boottime", "7200", "--fork", "--kill-child"]).arg(binary());
    command.args(["run", "--config", lab.directory().join("r.toml").to_str().unwrap()]);
    let child = Child::start(command).unwrap();
    child.wait_for_line("ratelimitd: ready", HANGS_AFTER).unwrap();
    // In less time than a client's retransmission takes, which would count twice.
    once(|| lab.reaches(CLIENTS[0], 80, Duration::from_millis(500)).then_some(())).unwrap();
    let told = lab.ratelimitd(&["events", "--since", "1m"]);
    assert!(told.stdout.contains("the machine was suspended for 2 hours"), "{}", told.stdout);
    lab.assert_admitted(CLIENTS[0], 80, 1);
    lab.assert_blocked(CLIENTS[0], 80);
}
