//! The classic cases from a configuration file to the packet, with the real parser, the real program and a clock that
//! the test sets.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, IPV6, V4, V6, frame, tcp};
use integration_test::program::{Program, TEN_O_CLOCK};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_policy::config::file;

/// Source that no override names, in both families.
const ANYONE: [&str; 2] = ["198.51.100.9", "2001:db8:1:9::1"];
const POLLER: [&str; 2] = ["203.0.113.7", "2001:db8:7::1"];
const IMPORTER: [&str; 2] = ["203.0.113.8", "2001:db8:8::1"];

/// Step of a timeline: time, source, number of attempted connections, number of opened ones. The time is such as
/// `10:06:00`, or a nanosecond before it (`<10:06:00`).
type Step = (&'static str, [&'static str; 2], u64, u64);

/// A configuration file and its timeline.
type Row<'a> = (&'static str, &'a [Step]);

/// Converts a time of day to the program's time.
fn at(time: &str) -> Nanos {
    let (early_ns, time) = time.strip_prefix('<').map_or((0, time), |time| (1, time));
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().expect("a number")).collect();
    let [hours, minutes, seconds] = parts[..] else { panic!("{time} is no time") };
    Nanos(TEN_O_CLOCK.0 + ((hours - 10) * 3600 + minutes * 60 + seconds) * SECOND_NS - early_ns)
}

fn syn(source: IpAddr) -> Vec<u8> {
    match source {
        IpAddr::V4(source) => frame(IPV4, V4 { source: source.octets(), ..V4::of(TCP) }.around(tcp(443, SYN))),
        IpAddr::V6(source) => frame(IPV6, V6 { source: source.octets(), ..V6::of(TCP) }.around(tcp(443, SYN))),
    }
}

/// Returns a source of the same family that has sent nothing yet.
fn bystander(family: usize, number: u16) -> IpAddr {
    if family == 0 {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(192, 0, high, low).into()
    } else {
        Ipv6Addr::new(0x2001, 0xdb8, 0xffff, number, 0, 0, 0, 1).into()
    }
}

fn run((name, steps): Row<'_>, family: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/classic").join(name);
    let config = file::load(&path).expect("a configuration");
    let mut program = Program::new(&config.policy);
    for (number, (time, source, tries, admitted)) in (0..).zip(steps) {
        program.set_now(at(time));
        let source = source[family].parse().expect("an address");
        assert_eq!(program.passed(&syn(source), *tries), *admitted, "{name}: {tries} of {source} at {time}");
        assert!(program.passes(&syn(bystander(family, number))), "{name}: another source at {time}");
    }
}

fn run_all(rows: &[Row<'_>]) {
    for row in rows {
        (0..2).for_each(|family| run(*row, family));
    }
}

#[test]
fn a_thousand_in_five_minutes_by_file_to_the_packet() {
    needs_root!();
    let before = [("10:00:00", ANYONE, 250, 250), ("10:02:00", ANYONE, 500, 500), ("10:04:00", ANYONE, 250, 250)];
    let calm = [&before[..], &[("10:06:00", ANYONE, 100, 100)]].concat();
    let excess = [&before[..], &[("10:06:00", ANYONE, 300, 250), ("<10:07:00", ANYONE, 1, 0)]].concat();
    // The 500 of 10:02 count until the end of 10:07, or in a lenient window until the end of 10:06.
    let strict = [&excess[..], &[("<10:08:00", ANYONE, 1, 0), ("10:08:00", ANYONE, 600, 500)]].concat();
    let lenient = [&excess[..], &[("10:07:00", ANYONE, 600, 500)]].concat();
    run_all(&[
        ("1000-in-5m.toml", &calm),
        ("1000-in-5m-lenient.toml", &calm),
        ("1000-in-5m.toml", &strict),
        ("1000-in-5m-lenient.toml", &lenient),
    ]);
}

#[test]
fn thirty_in_five_minutes_by_file_to_the_packet() {
    needs_root!();
    let both = [("10:45:00", ANYONE, 13, 13), ("10:46:00", ANYONE, 7, 7), ("10:47:00", ANYONE, 11, 10)];
    let strict = [&both[..], &[("<10:51:00", ANYONE, 1, 0), ("10:51:00", ANYONE, 20, 13)]].concat();
    let lenient = [&both[..], &[("<10:50:00", ANYONE, 1, 0), ("10:50:00", ANYONE, 20, 13)]].concat();
    run_all(&[("30-in-5m.toml", &strict), ("30-in-5m-lenient.toml", &lenient)]);
}

#[test]
fn six_in_thirty_seconds_by_file_are_a_burst_of_six_and_one_every_five_seconds() {
    needs_root!();
    run_all(&[(
        "6-in-30s-gcra.toml",
        &[
            ("10:00:00", ANYONE, 6, 6),
            ("10:00:00", ANYONE, 1, 0),
            ("<10:00:05", ANYONE, 1, 0),
            ("10:00:05", ANYONE, 2, 1),
            ("<10:00:10", ANYONE, 1, 0),
            ("10:00:10", ANYONE, 2, 1),
            ("<10:00:15", ANYONE, 1, 0),
            ("10:00:15", ANYONE, 2, 1),
            // Two intervals later there is room for two, and after half a minute of silence for six.
            ("10:00:25", ANYONE, 9, 2),
            ("10:00:55", ANYONE, 9, 6),
        ],
    )]);
}

#[test]
fn two_clients_of_one_rule_have_each_a_limit_and_a_time_scale_of_their_own() {
    needs_root!();
    run_all(&[(
        "two-clients.toml",
        &[
            ("10:00:00", POLLER, 9, 4),
            ("10:00:00", IMPORTER, 400, 400),
            ("10:00:00", ANYONE, 40, 30),
            // Five buckets of 2 s, and the bucket of the admissions.
            ("<10:00:12", POLLER, 9, 0),
            ("10:00:12", POLLER, 9, 4),
            ("10:00:12", IMPORTER, 200, 100),
            ("<10:06:00", ANYONE, 1, 0),
            ("10:06:00", ANYONE, 40, 30),
            ("10:06:00", IMPORTER, 1, 0),
            ("10:06:00", POLLER, 9, 4),
            // Six buckets of 10 min, and the bucket of the admissions.
            ("<11:10:00", IMPORTER, 1, 0),
            ("11:10:00", IMPORTER, 600, 500),
            ("11:10:00", POLLER, 9, 4),
            ("11:10:00", ANYONE, 40, 30),
        ],
    )]);
}
