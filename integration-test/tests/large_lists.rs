//! Times for lists of a million prefixes, and for packed ones: until they are in force, updated, and taken over.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{HANGS_AFTER, Lab, assert_refused, number};
use integration_test::layouts::{Fixture, Kind, configuration};
use netlab::{PacketSocket, needs_root};
use ratelimit_common::layout::{PREFIXES_MAX, VERSION};

/// Maximum CPU time of the daemon, whatever else runs on the machine. A service manager waits 30 s in real time.
const CPU_MAX: Duration = Duration::from_secs(15);

/// Returns an address in 16.0.0.0/4. The addresses are spread widely, and none is next to another.
fn address(at: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x1000_0000 | at.wrapping_mul(0x9e37_79b1) >> 4)
}

/// Writes a list file of all addresses except one, followed by other lines.
fn list(lab: &Lab, left_out: Option<u32>, added: &str) {
    let mut text = String::new();
    for at in (0..PREFIXES_MAX - 1).filter(|at| Some(*at) != left_out) {
        writeln!(text, "{}", address(at)).unwrap();
    }
    let new = lab.directory().join("million.new");
    fs::write(&new, text + added).unwrap();
    fs::rename(new, lab.directory().join("million.txt")).unwrap();
}

/// Asserts that packets of the `refused` sources are dropped as denied, and those of the others are not.
fn assert_denied(lab: &Lab, refused: &[Ipv4Addr], others: &[Ipv4Addr]) {
    let denied = || number(&lab.stats(), "/reasons/denied");
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let mut before = denied();
    for (sources, expected) in [(refused, refused.len() as u64), (others, 0)] {
        for source in sources {
            let packet = V4 { source: source.octets(), ..V4::of(TCP) }.around(tcp(80, SYN));
            sender.send(&frame(IPV4, packet)).unwrap();
        }
        // A veth delivers frames at once, and the statistics are queried afterwards.
        let after = denied();
        assert_eq!(after - before, expected, "of {sources:?}");
        before = after;
    }
}

/// Returns an address within 198.51.N.0/24.
fn of(network: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, network, 7)
}

#[test]
fn a_million_prefixes_are_in_force_followed_and_taken_over() {
    needs_root!();
    let lab = Lab::quiet();
    let distinct: BTreeSet<_> = (0..PREFIXES_MAX).map(address).collect();
    assert_eq!(distinct.len(), PREFIXES_MAX as usize);
    list(&lab, None, "198.51.100.0/24\n");
    let file = lab.directory().join("ratelimitd.toml");
    let text = format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\non_exit = \"keep\"\ndeny = [\"file:million.txt\"]\n[rule]\nlimits = [\"1000/1h\"]\n",
        lab.socket().display()
    );
    fs::write(&file, text).unwrap();
    let start = || {
        let began = Instant::now();
        let daemon = lab.start(&["run", "--config", file.to_str().unwrap()]);
        (daemon, began.elapsed())
    };
    let (daemon, started) = start();
    let cpu_started = daemon.child.cpu_time().unwrap();
    let first_and_last = [address(0), address(PREFIXES_MAX - 2), of(100)];
    assert_denied(&lab, &first_and_last, &[address(PREFIXES_MAX - 1), of(101)]);

    let timed = |what: &str| {
        let (began, before) = (Instant::now(), daemon.child.cpu_time().unwrap());
        let done = lab.ratelimitd(&["reload"]);
        assert_eq!(done.code(), 0, "{}", done.stderr);
        println!("{what}: {:?}, of CPU {:?}", began.elapsed(), daemon.child.cpu_time().unwrap() - before);
        daemon.child.cpu_time().unwrap() - before
    };
    let unchanged = timed("a reload of the same");
    list(&lab, Some(7), "198.51.101.0/24\n");
    let first = timed("a reload of another one");
    assert_denied(&lab, &[of(101), address(8)], &[of(100), address(7)]);
    list(&lab, Some(8), "198.51.100.0/24\n");
    let second = timed("and one more");
    assert_denied(&lab, &[of(100), address(7)], &[of(101), address(8)]);
    // With one prefix too many, the previous list stays in force.
    list(&lab, None, "198.51.100.0/24\n198.51.103.0/24\n");
    let done = lab.ratelimitd(&["reload"]);
    assert!(done.code() != 0 && done.stderr.contains("more than 1048576 prefixes"), "{}", done.stderr);
    assert_denied(&lab, &[of(100), address(7)], &[of(103), address(8)]);
    list(&lab, Some(8), "198.51.100.0/24\n");

    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
    daemon.kill();
    let (daemon, taken_over) = start();
    let cpu_taken_over = daemon.child.cpu_time().unwrap();
    println!(
        "started in {started:?}, of CPU {cpu_started:?}; taken over in {taken_over:?}, of CPU {cpu_taken_over:?}; {peak}"
    );
    assert!(!daemon.child.stderr().contains("writing"), "what is there is written again: {}", daemon.child.stderr());
    assert_denied(&lab, &[of(100), address(7)], &[of(101), address(8)]);
    for took in [cpu_started, unchanged, first, second, cpu_taken_over] {
        assert!(took < CPU_MAX, "{took:?}");
    }
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn packed_lists_are_followed_and_damaged_ones_leave_the_previous_list() {
    needs_root!();
    let lab = Lab::quiet();
    let file = lab.directory().join("ratelimitd.toml");
    let text = format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\ndeny = [\"file:feed\"]\n[rule]\nlimits = [\"1000/1h\"]\n",
        lab.socket().display()
    );
    fs::write(&file, text).unwrap();
    let put = |bytes: &[u8]| {
        fs::write(lab.directory().join("feed.new"), bytes).unwrap();
        fs::rename(lab.directory().join("feed.new"), lab.directory().join("feed")).unwrap();
    };
    let (one, other) = (of(100), of(101));
    put(&packed(b"198.51.100.0/24 # one\n"));
    let daemon = lab.start(&["run", "--config", file.to_str().unwrap()]);
    assert_denied(&lab, &[one], &[other]);
    let whole = packed(b"198.51.101.0/24 # another\n");
    put(&whole[..whole.len() - 4]);
    daemon.child.wait_for_line("it is packed by gzip, and cut off", HANGS_AFTER).unwrap();
    assert_denied(&lab, &[one], &[other]);
    put(&packed(&vec![b'#'; (64 << 20) + 1]));
    let done = lab.ratelimitd(&["reload"]);
    assert!(done.code() == 78 && done.stderr.contains("unpacked it is longer than 67108864 bytes"), "{}", done.stderr);
    assert_denied(&lab, &[one], &[other]);
    put(&whole);
    assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
    assert_denied(&lab, &[other], &[one]);
}

/// A layout with smaller tries in its first versions: 131 072 prefixes for each family.
const SMALLER: u32 = 12;

#[test]
fn smaller_pinned_tries_refuse_lists_beyond_their_room_and_keep_enforcing() {
    needs_root!();
    let lab = Lab::quiet();
    Fixture::of(SMALLER, Kind::Plain).restore(&lab);
    let lines: String = (0..131_073).map(|at| format!("{}\n", address(at))).collect();
    fs::write(lab.directory().join("list.txt"), lines).unwrap();
    let text = fs::read_to_string(configuration()).unwrap();
    let configured = |name: &str, deny: &str| {
        let text = text.replace("deny = [", &format!("deny = [{deny}"));
        let file = lab.directory().join(name);
        fs::write(&file, format!("socket = \"{}\"\n{text}", lab.socket().display())).unwrap();
        file.display().to_string()
    };
    let (more, fewer) = (configured("more.toml", "\"file:list.txt\", "), configured("fewer.toml", ""));
    if VERSION == SMALLER {
        let output = lab.ratelimitd(&["run", "--config", &more]);
        assert_refused(&output, 69, &["room for 131072 prefixes, and 1310", "stays in force", "`ratelimitd detach`"]);
        assert!(lab.has_xdp("s0"));
        lab.start(&["run", "--config", &fewer]).kill();
        assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    }
    let _daemon = lab.start(&["run", "--config", &more]);
    assert_denied(&lab, &[address(131_072)], &[address(131_073)]);
}
