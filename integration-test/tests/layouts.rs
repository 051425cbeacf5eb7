//! Tests of upgrades over the pins of another layout. Windows, bans, access lists and counters are kept, no packet is
//! unfiltered meanwhile, and unreadable pins are refused with the command to type.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::crash::ears::Ears;
use integration_test::crash::policies::{Judged, Letter, config};
use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, SERVER, assert_refused, number, once};
use integration_test::layouts::{EARLIER, Fixture, Kind, PLACE, RECORD, configuration, directory, restore_trial};
use integration_test::unit;
use netlab::{HttpServer, PacketSocket, needs_root};
use nix::sys::signal::Signal;
use ratelimit_common::layout::{INTERFACES_MAX, VERSION};
use ratelimit_kernel::{dump, object};

const DENIED: [u8; 4] = [198, 51, 100, 9];
const BULK: [u8; 4] = [198, 51, 100, 7];
const BULK_LIMIT: u64 = 200_000;

fn syn(source: [u8; 4], port: u16) -> Vec<u8> {
    frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(port, SYN)))
}

/// Returns the arguments of `run` with the fixtures' configuration, the laboratory's socket and a change.
fn arguments(lab: &Lab, changed: impl Fn(String) -> String) -> [String; 3] {
    let file = lab.directory().join("ratelimitd.toml");
    let text = changed(fs::read_to_string(configuration()).unwrap());
    fs::write(&file, format!("socket = \"{}\"\n{text}", lab.socket().display())).unwrap();
    ["run".into(), "--config".into(), file.display().to_string()]
}

fn start(lab: &Lab) -> Daemon {
    start_changed(lab, |text| text)
}

fn start_changed(lab: &Lab, changed: impl Fn(String) -> String) -> Daemon {
    lab.start(&arguments(lab, changed).each_ref().map(String::as_str))
}

fn servers(lab: &Lab) -> Vec<HttpServer> {
    let addresses = [80, 82].into_iter().flat_map(|port| SERVER.map(|server| (server.parse().unwrap(), port)));
    addresses.map(|(server, port)| HttpServer::start(&lab.server, SocketAddr::new(server, port)).unwrap()).collect()
}

/// Calls `look` for all items in parallel, because most of the time is spent waiting.
fn each<T: Copy + Send + Sync>(all: &[T], look: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for one in all {
            scope.spawn(|| look(*one));
        }
    });
}

/// Returns the names of the layouts' directories.
fn pinned(lab: &Lab) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(lab.pins()).unwrap().map(name).collect();
    names.sort_unstable();
    names
}

fn own() -> String {
    format!("v{VERSION}")
}

/// Returns how much a source has used of a rule's limit, as `check` reports it.
fn used(lab: &Lab, source: &str, rule: &str) -> u64 {
    let check = lab.ratelimitd(&["check", source, "--json"]);
    let check: serde_json::Value = serde_json::from_str(&check.stdout).unwrap();
    let limits = check["limits"].as_array().unwrap().iter().filter(|limit| limit["rule"] == rule);
    limits.map(|limit| number(limit, "/used")).max().unwrap_or(0)
}

/// Returns the banned sources with the ends of their bans, from the map's entries.
fn bans(entries: &[(String, Vec<(usize, String)>)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, runs)| (key.clone(), runs[0].1[..16].to_owned())).collect()
}

fn banned(lab: &Lab) -> u64 {
    number(&lab.stats(), "/sources/banned")
}

/// Returns the packets with this reason, summed over all interfaces and rules of the counters' map.
fn counted(fixture: &Fixture, reason: usize) -> u64 {
    let packets = |runs: &Vec<(usize, String)>| -> u64 {
        let mut value = vec![0_u8; 384];
        for (at, hex) in runs {
            for (place, byte) in (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]).enumerate() {
                value[at + place] = u8::from_str_radix(byte, 16).unwrap();
            }
        }
        u64::from_ne_bytes(value[16 * reason..16 * reason + 8].try_into().unwrap())
    };
    fixture.entries("COUNTERS").iter().map(|(_, runs)| packets(runs)).sum()
}

#[test]
fn the_layout_before_this_one_has_a_fixture() {
    let fixture = Fixture::of(EARLIER, Kind::Plain);
    assert_eq!(fixture.contents.layout, EARLIER);
    assert!(!fixture.entries("BANS_V4").is_empty() && !fixture.entries("SOURCES_V4").is_empty());
    let bytes: u64 =
        fs::read_dir(directory(EARLIER)).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 300_000, "the fixture of layout {EARLIER} has {bytes} bytes");
}

#[test]
fn counts_bans_and_denials_of_the_earlier_layout_continue_under_this_one() {
    needs_root!();
    each(&[EARLIER, VERSION], |layout| {
        let lab = Lab::new();
        let _servers = servers(&lab);
        let fixture = Fixture::of(layout, Kind::Plain);
        fixture.restore(&lab);
        assert_eq!(pinned(&lab), [format!("v{layout}")]);
        // The earlier program judges. Seven of ten were used, and a banned source stays banned.
        lab.open(CLIENTS[0], 80);
        lab.assert_blocked(CLIENTS[1], 80);

        let daemon = start(&lab);
        assert_moved(&lab, layout, &fixture);
        let stats = lab.stats();
        // Within the limit, over it, banned.
        for (reason, label) in [(3, "within_limit"), (9, "over_limit"), (11, "banned")] {
            let (before, after) = (counted(&fixture, reason), number(&stats, &format!("/reasons/{label}")));
            assert!(
                after >= before && (before > 0 || reason == 11),
                "{label} of layout {layout}: {after} after {before}"
            );
        }
        daemon.kill();
        // The next start finds no trace of the move.
        let _daemon = start(&lab);
        lab.assert_blocked(CLIENTS[0], 80);
        lab.assert_blocked(CLIENTS[1], 80);
        assert_eq!(used(&lab, CLIENTS[0], "pages"), 10, "of layout {layout}");
    });
}

/// Asserts that the fixture's sources kept their use, with one more connection of the first, and uses up what is left.
fn assert_moved(lab: &Lab, layout: u32, fixture: &Fixture) {
    let earlier = bans(&fixture.entries("BANS_V4"));
    assert_eq!((pinned(lab), banned(lab)), (vec![own()], earlier.len() as u64), "of layout {layout}");
    assert_eq!((used(lab, CLIENTS[0], "web"), used(lab, CLIENTS[0], "pages")), (8, 7), "of layout {layout}");
    lab.assert_admitted(CLIENTS[0], 80, 2);
    lab.assert_blocked(CLIENTS[1], 80);
    let now = dump(&lab.pins().join(own())).unwrap();
    let now = bans(&now.maps["BANS_V4"].entries);
    for (key, ends) in earlier {
        assert_eq!(now.get(&key), Some(&ends), "{key} of layout {layout} ends when it did");
    }
    (0..12).for_each(|_| drop(lab.open(CLIENTS[2], 80)));
    for _ in 0..3 {
        assert!(lab.http(CLIENTS[0], 82).contains("200"));
    }
    assert_eq!(used(lab, CLIENTS[0], "pages"), 10, "of layout {layout}");
}

#[test]
fn a_move_needs_no_more_than_the_unit_gives() {
    needs_root!(unit::system_calls().err().map(|reason| format!("{reason:#}")));
    let lab = Lab::new();
    let _servers = servers(&lab);
    let fixture = Fixture::of(EARLIER, Kind::Plain);
    fixture.restore(&lab);
    lab.open(CLIENTS[0], 80);
    let arguments = arguments(&lab, |text| text);
    let daemon = unit::start(&lab, env!("CARGO_BIN_EXE_confine"), &arguments.each_ref().map(String::as_str));
    assert!(!daemon.child.stderr().contains("WARN"), "{}", daemon.child.stderr());
    assert_moved(&lab, EARLIER, &fixture);
}

#[test]
fn usage_and_bans_of_ipv6_sources_continue_from_the_earlier_layout() {
    needs_root!();
    let lab = Lab::new();
    let _servers = servers(&lab);
    Fixture::of(EARLIER, Kind::Plain).restore(&lab);
    // Sources of one /64, and of another one, which is banned.
    (0..3).for_each(|_| drop(lab.open(CLIENTS_V6[0], 80)));
    (0..4).for_each(|_| drop(lab.open(CLIENTS_V6[1], 80)));
    exceed(&lab, CLIENTS_V6[2]);
    let _daemon = start(&lab);
    assert_eq!(lab.ratelimitd(&["check", CLIENTS_V6[2]]).code(), 3);
    assert_eq!(banned(&lab), 2, "the fixture's and this one");
    assert_eq!((pinned(&lab), used(&lab, CLIENTS_V6[0], "web")), (vec![own()], 7));
    lab.assert_blocked(CLIENTS_V6[2], 80);
    lab.assert_admitted(CLIENTS_V6[0], 80, 3);
    lab.assert_blocked(CLIENTS_V6[1], 80);
}

#[test]
fn usage_of_single_ipv6_addresses_continues_from_the_earlier_layout() {
    needs_root!();
    let lab = Lab::new();
    let _servers = servers(&lab);
    Fixture::of(EARLIER, Kind::Wide).restore(&lab);
    let _daemon = start_changed(&lab, wide);
    assert_eq!(banned(&lab), 1);
    assert_eq!((pinned(&lab), used(&lab, CLIENTS_V6[0], "web")), (vec![own()], 7));
    lab.assert_blocked(CLIENTS_V6[1], 80);
    lab.assert_admitted(CLIENTS_V6[0], 80, 3);
}

fn wide(text: String) -> String {
    format!("ipv6_prefix = 128\n{text}")
}

/// End of a trial that the earlier daemon has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The time had passed before this version was started.
    Before,
    /// The time passes while no daemon runs.
    Alone,
    /// `rollback` by a user.
    RollBack,
    /// `confirm` by a user.
    Confirm,
}

#[test]
fn a_trial_goes_on_over_a_move_and_ends_as_it_would_have() {
    needs_root!();
    each(&[End::Before, End::Alone, End::RollBack, End::Confirm], |end| {
        let left = match end {
            End::Before => Duration::ZERO,
            End::Alone => Duration::from_secs(8),
            End::RollBack | End::Confirm => Duration::from_secs(120),
        };
        let lab = Lab::quiet();
        lab.connect_second_ends();
        let ends_at = Instant::now() + left;
        restore_trial(&lab, left);
        let ears = Ears::open(&lab.server, "s0", PacketSocket::sender(&lab.client, "c0").unwrap());
        let [file, tried] = [("ratelimitd.toml", Letter::A), ("other.toml", Letter::B)].map(|(name, letter)| {
            let path = lab.directory().join(name);
            fs::write(&path, config(letter, "keep", &["s0", "s1"], &lab.socket())).unwrap();
            path.to_string_lossy().into_owned()
        });
        let judge = |expected: Judged, when: &str| {
            let judged = ears.judge();
            // On a machine so busy that the time has passed, nothing can be checked.
            let is_late = end == End::Alone && expected == Judged::ByB && Instant::now() >= ends_at;
            assert!(judged == expected || is_late, "{judged:?} {when}, {end:?}");
        };
        let before_move = if end == End::Before { Judged::ByA } else { Judged::ByB };
        judge(before_move, "under the earlier program");
        let daemon = lab.start(&["run", "--config", &file]);
        judge(before_move, "after the move");
        assert_eq!(pinned(&lab), [own()]);
        let last = match end {
            End::Before => Judged::ByA,
            End::Alone => {
                daemon.kill();
                once(|| (ears.judge() == Judged::ByA).then_some(())).expect("the kernel rolls back");
                return;
            }
            End::RollBack | End::Confirm => {
                let command = if end == End::Confirm { "confirm" } else { "rollback" };
                let done = lab.ratelimitd(&[command]);
                assert!(done.code() == 0 && done.stdout.contains(&tried), "{}{}", done.stdout, done.stderr);
                if end == End::Confirm { Judged::ByB } else { Judged::ByA }
            }
        };
        judge(last, "at last");
    });
}

/// Sends to the denied and the limited source's rule through two interfaces until told to end, slowly at first and then
/// as fast as possible. Returns the number of frames of each source.
fn send(lab: &Lab, is_fast: &AtomicBool, sent: &AtomicU64, is_over: &AtomicBool) -> u64 {
    let senders = ["c0", "c1"].map(|interface| PacketSocket::sender(&lab.client, interface).unwrap());
    let (denied, bulk) = (syn(DENIED, 80), syn(BULK, 81));
    let mut rounds = 0;
    for sender in senders.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        sender.send(&denied).unwrap();
        sender.send(&bulk).unwrap();
        rounds += 1;
        sent.store(rounds, Ordering::Relaxed);
        if !is_fast.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_micros(50));
        }
    }
    rounds
}

/// Creates the maximum number of interfaces: two with traffic, and a last one that is removed before the move.
fn interfaces(lab: &Lab) -> Vec<String> {
    lab.connect_second_ends();
    let more = (2..INTERFACES_MAX).map(|number| format!("s{number}"));
    for name in more.clone() {
        lab.server.ip(&["link", "add", &name, "type", "veth", "peer", "name", &format!("p-{name}")]).unwrap();
    }
    ["s0".to_owned(), "s1".to_owned()].into_iter().chain(more).collect()
}

#[test]
fn no_packet_is_unfiltered_lost_or_counted_twice_during_a_program_swap() {
    needs_root!();
    for layout in [EARLIER, VERSION] {
        let lab = Lab::quiet();
        let interfaces = interfaces(&lab);
        let fixture = Fixture::of(layout, Kind::Plain);
        fixture.restore_on(&lab, &interfaces.iter().map(String::as_str).collect::<Vec<_>>());
        let (gone, there) = interfaces.split_last().unwrap();
        lab.server.ip(&["link", "del", gone]).unwrap();
        let (is_fast, is_over, sent) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let flow = scope.spawn(|| send(&lab, &is_fast, &sent, &is_over));
            let mut daemon = start_changed(&lab, |text| text.replace("[\"s0\"]", &format!("{there:?}")));
            let before = sent.load(Ordering::Relaxed);
            is_fast.store(true, Ordering::Relaxed);
            while sent.load(Ordering::Relaxed) < before.max(BULK_LIMIT) + 10_000 {
                thread::sleep(Duration::from_millis(20));
            }
            is_over.store(true, Ordering::Relaxed);
            let rounds = flow.join().unwrap();
            let (denied, within) = (counted(&fixture, 12), counted(&fixture, 3));
            let stats = lab.stats_once(|stats| number(stats, "/reasons/denied") + 3 >= denied + rounds);
            let dropped = number(&stats, "/reasons/denied");
            // A CPU may count one packet in the microsecond in which its row is added to.
            assert!(dropped <= denied + rounds, "{stats:#}");
            let admitted = number(&stats, "/reasons/within_limit") - within;
            assert!(admitted + 3 >= BULK_LIMIT, "{admitted} were admitted: {stats:#}");
            assert!(admitted <= BULK_LIMIT, "{admitted} were admitted, of layout {layout}: {stats:#}");
            // Every existing interface is taken over, and the pin of the removed one is gone.
            assert_eq!(pinned(&lab), [own()], "of layout {layout}");
            for interface in &interfaces {
                let is_pinned = lab.pins().join(own()).join(format!("link-{interface}")).exists();
                assert_eq!(is_pinned, interface != gone, "{interface} of layout {layout}");
            }
            let attached = stats["interfaces"].as_array().unwrap().iter().filter(|of| of["attached"] == true).count();
            assert_eq!(attached, there.len(), "of layout {layout}: {stats:#}");
            daemon.child.signal(Signal::SIGKILL).unwrap();
            daemon.child.wait(HANGS_AFTER).unwrap();
        });
    }
}

#[test]
fn pins_of_a_newer_version_are_refused_with_what_to_type_and_enforce_on() {
    needs_root!();
    let lab = Lab::new();
    let _servers = servers(&lab);
    start(&lab).kill();
    lab.open(CLIENTS[0], 80);
    for (name, said) in [
        (format!("v{}", VERSION + 1), format!("a newer version, of layout {}", VERSION + 1)),
        (format!("v{}", EARLIER - 1), format!("a version that is too old, of layout {}", EARLIER - 1)),
        ("vnext".to_owned(), "another version".to_owned()),
    ] {
        let path = |name: &str| lab.pins().join(name);
        fs::rename(path(&own()), path(&name)).unwrap();
        let refused = lab.ratelimitd(&arguments(&lab, |text| text).each_ref().map(String::as_str));
        let remove = format!("sudo rm -r /sys/fs/bpf/ratelimitd/{name}");
        assert_refused(&refused, 69, &[&said, "stays in force", "`sudo ratelimitd detach`", &remove]);
        assert!(lab.has_xdp("s0") && pinned(&lab) == [name.clone()], "nothing is changed");
        fs::rename(path(&name), path(&own())).unwrap();
    }
    let _daemon = start(&lab);
    assert_eq!(used(&lab, CLIENTS[0], "web"), 1);
}

/// Makes the fixture of a layout: today's, or another one with the binary in `RATELIMITD_BIN` and the object in
/// `FIXTURE_OBJECT`. `FIXTURE_KINDS` names the files of maps, if not only the first.
#[test]
#[ignore = "opt-in: it writes a fixture of a layout"]
fn fixtures_are_made_of_real_traffic() {
    needs_root!();
    let kinds = std::env::var("FIXTURE_KINDS").unwrap_or_else(|_| Kind::Plain.file().to_owned());
    for kind in Kind::ALL.into_iter().filter(|kind| kinds.contains(kind.file())) {
        let lab = Lab::new();
        lab.connect_second_ends();
        let _servers = servers(&lab);
        match kind {
            Kind::Plain => fill_plain(&lab),
            Kind::Wide => fill_wide(&lab),
            Kind::Letters => fill_letters(&lab, None),
            Kind::OnTrial => fill_letters(&lab, Some("5m")),
        }
        let [name] = pinned(&lab).try_into().unwrap();
        let contents = dump(&lab.pins().join(&name)).unwrap();
        let dir = directory(contents.layout);
        fs::create_dir_all(&dir).unwrap();
        write(&dir.join(kind.file()), &serde_json::to_vec(&contents).unwrap());
        match kind {
            Kind::Plain => write(&dir.join("object.gz"), &packed_object(&lab)),
            Kind::OnTrial => {
                let record = fs::read_to_string(lab.directory().join("state/trial.json")).unwrap();
                write(&dir.join(RECORD), record.replace(&*lab.directory().to_string_lossy(), PLACE).as_bytes());
            }
            Kind::Letters | Kind::Wide => {}
        }
        println!("made {}", dir.join(kind.file()).display());
    }
}

/// Uses all ten connections of `web`, is refused, and sends data on an open connection, which causes a ban.
fn exceed(lab: &Lab, from: &str) {
    let mut open = lab.open(from, 80);
    (0..9).for_each(|_| drop(lab.http(from, 80)));
    lab.assert_blocked(from, 80);
    open.write_all(b"GET").unwrap();
}

fn be_banned(lab: &Lab, from: &str) {
    exceed(lab, from);
    let is_banned = || (banned(lab) == 1).then_some(());
    once(is_banned).unwrap_or_else(|| panic!("{from} is not banned: {:#}", lab.stats()));
}

fn fill_plain(lab: &Lab) {
    let daemon = start(lab);
    (0..7).for_each(|_| drop(lab.open(CLIENTS[0], 80)));
    (0..7).for_each(|_| drop(lab.http(CLIENTS[0], 82)));
    be_banned(lab, CLIENTS[1]);
    lab.assert_blocked(CLIENTS[1], 80);
    lab.open(CLIENTS[2], 80);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    // Another source exceeds the limit without a connection, which bans nobody.
    (0..12).for_each(|_| sender.send(&syn([198, 51, 100, 20], 80)).unwrap());
    (0..5).for_each(|_| sender.send(&syn(DENIED, 80)).unwrap());
    lab.stats_once(|stats| number(stats, "/reasons/denied") == 5);
    daemon.kill();
}

/// Fills the maps with two addresses of one /64, one of them banned.
fn fill_wide(lab: &Lab) {
    let daemon = start_changed(lab, wide);
    (0..7).for_each(|_| drop(lab.open(CLIENTS_V6[0], 80)));
    be_banned(lab, CLIENTS_V6[1]);
    daemon.kill();
}

fn fill_letters(lab: &Lab, trial: Option<&str>) {
    let file = |name: &str, letter| {
        let path = lab.directory().join(name);
        fs::write(&path, config(letter, "keep", &["s0", "s1"], &lab.socket())).unwrap();
        path.to_string_lossy().into_owned()
    };
    let daemon = lab.start(&["run", "--config", &file("ratelimitd.toml", Letter::A)]);
    if let Some(time) = trial {
        let applied = lab.ratelimitd(&["apply", &file("other.toml", Letter::B), "--confirm", time]);
        assert_eq!(applied.code(), 0, "{}{}", applied.stdout, applied.stderr);
    }
    lab.open(CLIENTS[0], 80);
    daemon.kill();
}

/// Returns the compressed object without debugging information.
fn packed_object(lab: &Lab) -> Vec<u8> {
    let raw = lab.directory().join("object");
    match std::env::var_os("FIXTURE_OBJECT") {
        Some(path) => drop(fs::copy(PathBuf::from(path), &raw).unwrap()),
        None => fs::write(&raw, object()).unwrap(),
    }
    assert!(Command::new("llvm-strip").arg("-g").arg(&raw).status().unwrap().success());
    let mut packed = flate2::GzBuilder::new().write(Vec::new(), flate2::Compression::best());
    packed.write_all(&fs::read(&raw).unwrap()).unwrap();
    packed.finish().unwrap()
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
}
