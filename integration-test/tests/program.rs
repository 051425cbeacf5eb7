//! Tests of the whole program in the kernel: every named frame, each cut short, the design's timelines, and both sides
//! of each edge.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::thread;

use caps::{CapSet, CapsHashSet};
use etherparse::{PacketHeaders, TransportHeader};
use integration_test::fixtures::{self, Fate, Fixture};
use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{DEST_OPTIONS, TCP, UDP};
use integration_test::frames::{
    IPV4, IPV6, SOURCE_V4, SOURCE_V6, V4, V6, extension, frame, quic, tcp, tcp_with, udp, v4,
};
use integration_test::program::{Program, Room, limit, limit_over, options, policy};
use integration_test::unit;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{SysconfVar, sysconf};
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_datapath::{Attachment, Datapath as _, DatapathError};
use ratelimit_kernel::{Clock, Kernel, Link, Merged, Options, has_tcx};
use ratelimit_policy::config::HookChoice;
use ratelimit_policy::desired::{Access, Limit, Mode, Per, Refuse, RefuseWith, Unparsable, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Time longer than any window here, and than a UDP flow is remembered.
const AGE_NS: u64 = 3600 * SECOND_NS;
/// Minimum length of a frame for BPF_PROG_TEST_RUN (`bpf_test_init`, net/bpf/test_run.c, Linux 6.18).
const FRAME_MIN: usize = 14;

/// Maximum number of instructions for the verifier, which gives up at a million.
const VERIFIED_MAX: u32 = 600_000;

fn runnable() -> impl Iterator<Item = Fixture> {
    let is_tcx = integration_test::hook() == HookChoice::Tcx;
    let frames = fixtures::all().into_iter().filter(|fixture| fixture.frame.len() >= FRAME_MIN);
    frames.filter(move |fixture| !is_tcx || is_run_at_tcx(fixture))
}

/// Returns whether the frame is also run at TCX. It needs data behind the Ethernet header, and a whole IP header if it
/// is IP.
fn is_run_at_tcx(fixture: &Fixture) -> bool {
    let frame = &fixture.frame;
    let least = match frame.get(12..FRAME_MIN) {
        Some([0x08, 0x00]) => 20,
        Some([0x86, 0xdd]) => 40,
        Some(_) | None => 1,
    };
    // The frame must also fit into one page together with the kernel's own data.
    (FRAME_MIN + least..3000).contains(&frame.len())
}

fn syn_from(source: [u8; 4]) -> Vec<u8> {
    frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(80, SYN)))
}

/// Returns the expected verdict by a packet's fate. `counted` is the verdict on a packet that the limit counts.
fn word(fate: Fate, unit: Unit, counted: &'static str) -> &'static str {
    match (fate, unit) {
        (Fate::NotIp, _) => "not_ip",
        (Fate::Malformed, _) => "malformed",
        (Fate::TooManyTags, _) => "too_many_tags",
        (Fate::TooManyHeaders, _) => "too_many_headers",
        (Fate::NotProtected, _) => "not_protected",
        (_, Unit::Requests) => panic!("a row says nothing of requests"),
        (Fate::GoesOn, Unit::Connections) => "not_counted",
        (Fate::Opens, Unit::Connections) | (Fate::Opens | Fate::GoesOn, Unit::Packets | Unit::Bytes) => counted,
    }
}

/// Runs each named frame `before` times, an hour after the previous one, and once more for its verdict.
fn each_gets(program: &mut Program, unit: Unit, before: u64, counted: &'static str) {
    each_of(runnable(), program, unit, before, counted);
}

/// Runs each of these frames as [`each_gets`] does.
fn each_of(
    frames: impl Iterator<Item = Fixture>,
    program: &mut Program,
    unit: Unit,
    before: u64,
    counted: &'static str,
) {
    let mut wrong = Vec::new();
    for fixture in frames {
        program.advance(AGE_NS);
        program.passed(&fixture.frame, before);
        let is = program.verdict(&fixture.frame);
        let expected = word(fixture.fate, unit, counted);
        if is != expected {
            wrong.push(format!("{}: {is}, expected {expected}", fixture.name));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_named_frame_is_judged_as_its_row_says_where_connections_are_counted() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(1, Unit::Connections, WindowForm::Strict)]));
    each_gets(&mut program, Unit::Connections, 0, "within_limit");
    program.apply(&policy(&[limit(0, Unit::Connections, WindowForm::Strict)]));
    each_gets(&mut program, Unit::Connections, 0, "over_limit");
}

#[test]
fn every_named_frame_is_judged_as_its_row_says_where_packets_are_counted() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(1, Unit::Packets, WindowForm::Strict)]));
    each_gets(&mut program, Unit::Packets, 0, "within_limit");
    each_gets(&mut program, Unit::Packets, 1, "over_limit");
}

#[test]
fn every_named_frame_is_judged_as_its_row_says_where_bytes_are_counted() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(9000, Unit::Bytes, WindowForm::Strict)]));
    each_gets(&mut program, Unit::Bytes, 0, "within_limit");
    program.apply(&policy(&[limit(19, Unit::Bytes, WindowForm::Strict)]));
    each_gets(&mut program, Unit::Bytes, 0, "over_limit");
}

#[test]
fn a_frame_cut_short_at_any_length_is_malformed_or_judged_as_it_was() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(u64::from(u32::MAX), Unit::Packets, WindowForm::Strict)]));
    for fixture in runnable() {
        let before = program.counts();
        for len in FRAME_MIN..=fixture.frame.len() {
            program.passes(&fixture.frame[..len]);
        }
        let expected = word(fixture.fate, Unit::Packets, "within_limit");
        for (word, count) in program.counts() {
            let is_allowed = word == "malformed" || word == expected;
            assert!(is_allowed || count == before[word], "{} cut short is also {word}", fixture.name);
        }
    }
}

#[test]
fn ports_behind_the_first_buffer_drop_a_packet_or_count_it_as_opening() {
    needs_root!();
    let behind = |len, packet| extension(DEST_OPTIONS, 256, extension(DEST_OPTIONS, len, packet));
    let with_ports_at = |len| frame(IPV6, V6::of(DEST_OPTIONS).around(behind(len, extension(TCP, 1, tcp(22, ACK)))));
    let mut program = Program::new(&policy(&[limit(1, Unit::Connections, WindowForm::Strict)]));
    // The kernel puts one page of a test's frame into the first buffer, less about 600 bytes.
    assert_eq!(program.verdict(&with_ports_at(100)), "not_protected");
    if !matches!(sysconf(SysconfVar::PAGE_SIZE), Ok(Some(4096))) {
        // With a larger page, as some kernels of aarch64 have, the first buffer contains the whole frame.
        assert_eq!(program.verdict(&with_ports_at(256)), "not_protected");
        return;
    }
    assert_eq!(program.verdict(&with_ports_at(256)), "too_many_headers");
    let mut counting = policy(&[limit(1, Unit::Connections, WindowForm::Strict)]);
    counting.rules[0].unparsable = Unparsable::Count;
    program.apply(&counting);
    assert_eq!(program.verdict(&with_ports_at(256)), "within_limit");
    assert_eq!(program.verdict(&with_ports_at(256)), "over_limit");
}

#[test]
fn a_frame_is_judged_the_same_behind_one_tag_or_two() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(1, Unit::Packets, WindowForm::Strict)]));
    let tags = [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]];
    for fixture in runnable().filter(|fixture| ![0x81, 0x88, 0x91].contains(&fixture.frame[12])) {
        for tags in tags {
            program.advance(AGE_NS);
            let tagged = [&fixture.frame[..12], tags, &fixture.frame[12..]].concat();
            assert_eq!(program.verdict(&tagged), word(fixture.fate, Unit::Packets, "within_limit"), "{}", fixture.name);
        }
    }
}

#[test]
fn the_classic_timeline_of_1000_in_5_minutes_holds_to_the_packet_in_both_forms() {
    needs_root!();
    for syn in [frame(IPV4, V4::of(TCP).around(tcp(80, SYN))), frame(IPV6, V6::of(TCP).around(tcp(443, SYN)))] {
        for form in [WindowForm::Strict, WindowForm::Lenient] {
            for (last, admitted) in [(100, 100), (300, 250)] {
                let mut program = Program::new(&policy(&[limit(1000, Unit::Connections, form)]));
                assert_eq!(program.passed(&syn, 250), 250);
                program.advance(2 * MINUTE_NS);
                assert_eq!(program.passed(&syn, 500), 500);
                program.advance(2 * MINUTE_NS);
                assert_eq!(program.passed(&syn, 250), 250);
                program.advance(2 * MINUTE_NS);
                assert_eq!(program.passed(&syn, last), admitted, "{form:?}");
            }
        }
    }
}

#[test]
fn the_classic_timeline_of_30_in_5_minutes_holds_to_the_packet_in_both_forms() {
    needs_root!();
    for form in [WindowForm::Strict, WindowForm::Lenient] {
        let mut program = Program::new(&policy(&[limit(30, Unit::Connections, form)]));
        let syn = syn_from(SOURCE_V4);
        for (tries, admitted) in [(13, 13), (7, 7), (11, 10)] {
            assert_eq!(program.passed(&syn, tries), admitted, "{form:?}");
            program.advance(MINUTE_NS);
        }
    }
}

#[test]
fn strict_refuses_one_bucket_longer_than_lenient() {
    needs_root!();
    for (form, freed_after) in [(WindowForm::Strict, 6), (WindowForm::Lenient, 5)] {
        let mut program = Program::new(&policy(&[limit(10, Unit::Connections, form)]));
        let syn = syn_from(SOURCE_V4);
        let start = program.now();
        assert_eq!(program.passed(&syn, 11), 10);
        program.set_now(Nanos(start.0 + freed_after * MINUTE_NS - 1));
        assert_eq!(program.passed(&syn, 1), 0, "{form:?}");
        program.set_now(Nanos(start.0 + freed_after * MINUTE_NS));
        assert_eq!(program.passed(&syn, 11), 10, "{form:?}");
    }
}

#[test]
fn the_limit_passes_one_more_drops_and_one_of_another_source_passes() {
    needs_root!();
    for (unit, amount) in [(Unit::Connections, 5), (Unit::Packets, 5), (Unit::Bytes, 5 * 40 + 39)] {
        let mut program = Program::new(&policy(&[limit(amount, unit, WindowForm::Strict)]));
        assert_eq!(program.passed(&syn_from([198, 51, 100, 7]), 5), 5);
        assert_eq!(program.verdict(&syn_from([198, 51, 100, 7])), "over_limit");
        assert_eq!(program.verdict(&syn_from([198, 51, 100, 8])), "within_limit");
        assert_eq!(program.verdict(&frame(IPV4, V4::of(TCP).around(tcp(22, SYN)))), "not_protected");
    }
}

#[test]
fn a_slash_64_is_one_client_and_its_neighbour_another() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(2, Unit::Connections, WindowForm::Strict)]));
    let mut from = |byte: usize, value: u8| {
        let mut source = SOURCE_V6;
        source[byte] = value;
        program.verdict(&frame(IPV6, V6 { source, ..V6::of(TCP) }.around(tcp(80, SYN))))
    };
    assert_eq!(from(15, 1), "within_limit");
    assert_eq!(from(8, 0xff), "within_limit");
    assert_eq!(from(15, 2), "over_limit");
    assert_eq!(from(7, 3), "within_limit");
}

#[test]
fn only_counted_packets_are_refused_unless_the_rule_refuses_everything() {
    needs_root!();
    let ack = frame(IPV4, V4::of(TCP).around(tcp(80, ACK)));
    let mut excess = policy(&[limit(1, Unit::Connections, WindowForm::Strict)]);
    let mut program = Program::new(&excess);
    assert_eq!(program.passed(&syn_from(SOURCE_V4), 2), 1);
    assert_eq!(program.verdict(&ack), "not_counted");
    excess.rules[0].refuse = Refuse::All;
    program.apply(&excess);
    assert_eq!(program.verdict(&ack), "over_limit");
    assert_eq!(program.verdict(&frame(IPV4, V4::of(TCP).around(tcp(22, ACK)))), "not_protected");
    program.advance(AGE_NS);
    assert_eq!(program.verdict(&ack), "not_counted");
}

#[test]
fn refuse_all_lets_the_last_connection_within_the_limit_go_on() {
    needs_root!();
    let ack = frame(IPV4, V4::of(TCP).around(tcp(80, ACK)));
    let mut all = policy(&[limit(2, Unit::Connections, WindowForm::Strict)]);
    all.rules[0].refuse = Refuse::All;
    let mut program = Program::new(&all);
    assert_eq!(program.passed(&syn_from(SOURCE_V4), 2), 2);
    assert_eq!(program.verdict(&ack), "not_counted");
    assert_eq!(program.verdict(&syn_from(SOURCE_V4)), "over_limit");
    assert_eq!(program.verdict(&ack), "over_limit");
}

#[test]
fn refuse_all_refuses_small_packets_too_until_the_next_bucket() {
    needs_root!();
    let mut all = policy(&[limit(1100, Unit::Bytes, WindowForm::Strict)]);
    all.rules[0].refuse = Refuse::All;
    let (small, large) = (syn_from(SOURCE_V4), frame(IPV4, V4::of(TCP).around(tcp_with(80, ACK, &[], &[0; 900]))));
    let mut program = Program::new(&all);
    assert_eq!(program.verdict(&large), "within_limit");
    assert_eq!(program.verdict(&small), "within_limit");
    assert_eq!(program.verdict(&large), "over_limit");
    assert_eq!(program.verdict(&small), "over_limit");
    program.advance(MINUTE_NS);
    assert_eq!(program.verdict(&small), "within_limit");
}

#[test]
fn refuse_all_attributes_a_refusal_to_the_first_exceeded_limit() {
    needs_root!();
    let mut all = policy(&[
        limit(900, Unit::Bytes, WindowForm::Strict),
        limit_over(1, Unit::Connections, WindowForm::Gcra, 1, SECOND_NS),
    ]);
    all.rules[0].refuse = Refuse::All;
    let (ack, large) = (tcp(80, ACK), tcp_with(80, ACK, &[], &[0; 900]));
    let [ack, large] = [ack, large].map(|segment| frame(IPV4, V4::of(TCP).around(segment)));
    let mut program = Program::new(&all);
    assert_eq!(program.verdict(&syn_from(SOURCE_V4)), "within_limit");
    assert_eq!(program.verdict(&syn_from(SOURCE_V4)), "over_limit");
    assert_eq!(program.verdict(&large), "over_limit");
    // The bucket of connections has leaked. Bytes were refused too, which lasts until the end of their bucket.
    program.advance(5 * SECOND_NS);
    assert_eq!(program.verdict(&ack), "over_limit");
    program.advance(MINUTE_NS);
    assert_eq!(program.verdict(&ack), "within_limit");
}

#[test]
fn dry_run_says_what_it_would_drop_and_drops_nothing() {
    needs_root!();
    let mut dry = policy(&[limit(1, Unit::Connections, WindowForm::Strict)]);
    dry.rules[0].mode = Mode::DryRun;
    let mut program = Program::new(&dry);
    assert_eq!(program.verdict(&syn_from(SOURCE_V4)), "within_limit");
    assert_eq!(program.verdict(&syn_from(SOURCE_V4)), "dry_run");
    let tags = runnable().find(|fixture| fixture.fate == Fate::TooManyTags).expect("a row");
    assert_eq!(program.verdict(&tags.frame), "dry_run");
}

#[test]
fn an_exempt_prefix_is_never_limited_and_its_neighbour_is() {
    needs_root!();
    let mut some = policy(&[limit(0, Unit::Packets, WindowForm::Strict)]);
    let mut program = Program::new(&some);
    assert_eq!(program.verdict(&syn_from([198, 51, 100, 7])), "over_limit");
    some.access =
        ["198.51.100.0/28", "2001:db8:1:2::/64"].map(|net| Access::exempt(net.parse().expect("a prefix"))).to_vec();
    program.apply(&some);
    let syn_v6 = frame(IPV6, V6::of(TCP).around(tcp(80, SYN)));
    assert_eq!(program.verdict(&syn_from([198, 51, 100, 15])), "exempt");
    assert_eq!(program.verdict(&syn_from([198, 51, 100, 16])), "over_limit");
    assert_eq!(program.verdict(&syn_v6), "exempt");
    some.access.clear();
    program.apply(&some);
    assert_eq!(program.verdict(&syn_from([198, 51, 100, 15])), "over_limit");
    assert_eq!(program.verdict(&syn_v6), "over_limit");
}

#[test]
fn a_changed_limit_finds_its_counts_again() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(5, Unit::Connections, WindowForm::Strict)]));
    let syn = syn_from(SOURCE_V4);
    assert_eq!(program.passed(&syn, 6), 5);
    program.apply(&policy(&[limit(7, Unit::Connections, WindowForm::Lenient)]));
    assert_eq!(program.passed(&syn, 6), 2);
    program.apply(&policy(&[limit(3, Unit::Connections, WindowForm::Strict)]));
    assert_eq!(program.passed(&syn, 6), 0);
    program.apply(&policy(&[limit(10, Unit::Packets, WindowForm::Strict)]));
    assert_eq!(program.passed(&syn, 11), 10);
    program.apply(&policy(&[limit(8, Unit::Connections, WindowForm::Strict)]));
    assert_eq!(program.passed(&syn, 6), 1);
}

#[test]
fn a_packet_that_one_limit_refuses_is_charged_to_none() {
    needs_root!();
    let both = |packets, bytes| {
        policy(&[limit(packets, Unit::Packets, WindowForm::Strict), limit(bytes, Unit::Bytes, WindowForm::Strict)])
    };
    let mut program = Program::new(&both(10, 100));
    let syn = syn_from(SOURCE_V4);
    assert_eq!(program.passed(&syn, 10), 2);
    program.apply(&both(4, 1_000_000));
    assert_eq!(program.passed(&syn, 10), 2);
}

#[test]
fn the_first_datagram_of_a_flow_opens_and_the_rest_is_not_counted() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(1, Unit::Connections, WindowForm::Strict)]));
    let datagram = frame(IPV4, V4::of(UDP).around(udp(443, [0; 4])));
    let other_flow = frame(IPV4, V4::of(UDP).around(udp(80, [0; 4])));
    assert_eq!(program.verdict(&datagram), "within_limit");
    assert_eq!(program.verdict(&datagram), "not_counted");
    assert_eq!(program.verdict(&other_flow), "over_limit");
    assert_eq!(program.verdict(&other_flow), "over_limit");
    program.advance(AGE_NS);
    assert_eq!(program.verdict(&other_flow), "within_limit");
}

#[test]
fn initials_of_any_version_from_one_port_open_a_connection_for_each_run_of_eight() {
    needs_root!();
    for (first, version) in [(0xc3, 1), (0x83, 1), (0xd3, 0x6b33_43cf), (0xcd, 0xff00_001d), (0xe0, 0x1a2a_3a4a)] {
        let initial = frame(IPV4, V4::of(UDP).around(udp(443, quic(first, version))));
        let mut program = Program::new(&policy(&[limit(2, Unit::Connections, WindowForm::Strict)]));
        assert_eq!(program.passed(&initial, 100), 16, "first byte {first:#x} of version {version:#x}");
    }
}

#[test]
fn a_source_idle_for_years_starts_empty() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(3, Unit::Packets, WindowForm::Strict)]));
    let syn = syn_from(SOURCE_V4);
    for years in [1, 3, 40] {
        assert_eq!(program.passed(&syn, 5), 3);
        program.advance(years * 365 * 24 * 60 * MINUTE_NS);
    }
    assert_eq!(program.passed(&syn, 5), 3);
}

/// Returns the result of `work` on a thread with these capabilities, which can gain no others.
fn confined<T: Send>(capabilities: &[&str], work: impl FnOnce() -> T + Send) -> T {
    let kept: CapsHashSet = capabilities.iter().map(|name| name.parse().unwrap()).collect();
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            caps::all().into_iter().filter(|of| !kept.contains(of)).for_each(|of| {
                // A capability that this kernel does not know need not be dropped.
                let _unknown = caps::drop(None, CapSet::Bounding, of);
            });
            for set in [CapSet::Ambient, CapSet::Inheritable] {
                caps::clear(None, set).unwrap();
            }
            caps::set(None, CapSet::Effective, &kept).unwrap();
            caps::set(None, CapSet::Permitted, &kept).unwrap();
            nix::sys::prctl::set_no_new_privs().unwrap();
            work()
        });
        work.join().unwrap()
    })
}

#[test]
fn the_program_loads_and_judges_with_the_capabilities_of_the_unit_and_with_no_fewer() {
    needs_root!();
    let of_unit = unit::capabilities();
    let policy = policy(&[limit(1, Unit::Connections, WindowForm::Strict)]);
    let verdicts = confined(&of_unit, || {
        let mut program = Program::new(&policy);
        [(); 2].map(|()| program.verdict(&syn_from([192, 0, 2, 1])))
    });
    assert_eq!(verdicts, ["within_limit", "over_limit"]);
    for missing in &of_unit {
        let fewer: Vec<_> = of_unit.iter().copied().filter(|of| of != missing).collect();
        let refused = confined(&fewer, || Program::refusal(&policy));
        let refused = refused.unwrap_or_else(|| panic!("it loads without {missing}"));
        assert!(refused.contains(missing) && refused.contains("permission denied"), "without {missing}: {refused}");
    }
}

/// Newer kernels merge paths that older ones walk one by one. A program that the newest kernel verifies easily may be
/// too much for the oldest.
#[test]
fn the_verifier_has_room_left() {
    needs_root!();
    let verified = Program::on_the_kernels_clock(&policy(&[limit(1, Unit::Requests, WindowForm::Strict)]))
        .size()
        .verified_instructions;
    assert!(verified < VERIFIED_MAX, "the verifier looked at {verified} instructions, and gives up at a million");
}

#[test]
fn at_tcx_each_named_frame_is_judged_as_at_xdp_with_an_ethernet_header_and_without() {
    needs_root!();
    for link in [Link::Ethernet, Link::None] {
        let mut program = Program::new(&policy(&[limit(1, Unit::Packets, WindowForm::Strict)]));
        program.by_tcx(link, Merged::default());
        // The header is there all the same, so a frame seems longer than it is.
        let is_long = |fixture: &Fixture| link == Link::None && fixture.fate == Fate::Malformed;
        let frames = runnable().filter(is_run_at_tcx).filter(|fixture| !is_long(fixture));
        each_of(frames, &mut program, Unit::Packets, 1, "over_limit");
    }
}

#[test]
fn at_tcx_what_was_put_together_is_counted_as_the_packets_that_it_was() {
    needs_root!();
    const HEADERS: u64 = 14 + 20 + 20;
    let whole = frame(IPV4, v4(TCP, tcp_with(80, ACK, &[], &[0; 450])));
    let long = whole.len() as u64;
    // Four packets of 100 bytes and one of 50, counted by the kernel or not.
    for packets in [5, 0] {
        let mut program = Program::new(&policy(&[limit(10, Unit::Packets, WindowForm::Strict)]));
        program.by_tcx(Link::Ethernet, Merged { packets, payload_bytes: 100 });
        assert_eq!((0..3).map(|_| program.passes(&whole)).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(program.tally(Reason::WithinLimit), (10, 2 * (long + 4 * HEADERS)));
        assert_eq!(program.tally(Reason::OverLimit), (5, long + 4 * HEADERS));
        program.by_tcx(Link::Ethernet, Merged::default());
        assert!(!program.passes(&whole), "ten were counted, and one more is over");
    }
    let charged = 450 + 5 * (HEADERS - 14);
    for (limited, passes) in [(charged, true), (charged - 1, false)] {
        let mut program = Program::new(&policy(&[limit(limited, Unit::Bytes, WindowForm::Strict)]));
        program.by_tcx(Link::Ethernet, Merged { packets: 5, payload_bytes: 100 });
        assert_eq!(program.passes(&whole), passes, "{limited} bytes");
    }
}

#[test]
fn at_tcx_what_was_put_together_of_more_than_an_ipv4_header_can_say_is_counted_too() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(10, Unit::Packets, WindowForm::Strict)]));
    program.by_tcx(Link::Ethernet, Merged { packets: 10, payload_bytes: 100 });
    // The kernel writes no length into such packets.
    let whole = frame(IPV4, V4::claiming_len(TCP, 0).around(tcp_with(80, ACK, &[], &[0; 1000])));
    assert!(program.passes(&whole));
    assert!(!program.passes(&whole));
    assert_eq!(program.tally(Reason::WithinLimit).0, 10);
}

#[test]
fn at_tcx_a_group_is_charged_all_that_was_put_together() {
    needs_root!();
    let [own, of_group] = [100, 12].map(|amount| limit(amount, Unit::Packets, WindowForm::Strict));
    let of_group = Limit { per: Per::Prefix { v4: 24, v6: 56 }, slot: own.slot + 1_000_000, ..of_group };
    let mut program = Program::new(&policy(&[own, of_group]));
    program.by_tcx(Link::Ethernet, Merged { packets: 5, payload_bytes: 100 });
    let from = |host| {
        let source = [198, 51, 100, host];
        frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp_with(80, ACK, &[], &[0; 450])))
    };
    assert_eq!([1, 2, 1, 3].map(|host| program.passes(&from(host))), [true, true, false, false]);
    assert_eq!((program.tally(Reason::WithinLimit).0, program.tally(Reason::OverLimit).0), (10, 10));
    program.by_tcx(Link::Ethernet, Merged::default());
    assert_eq!([4, 5, 6].map(|host| program.passes(&from(host))), [true, true, false], "two are left");
}

#[test]
fn an_attachment_at_tcx_succeeds_or_names_the_kernel_that_it_needs() {
    needs_root!();
    // The loopback interface of a namespace without other interfaces.
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        netlab::usual_bpffs().unwrap();
        let policy = policy(&[limit(1, Unit::Packets, WindowForm::Strict)]);
        let at_tcx = Options { hook: HookChoice::Tcx, ..options(&policy, Clock::Kernel, Room::default()) };
        Kernel::load(&at_tcx).unwrap().attach("lo")
    };
    match thread::spawn(run).join().unwrap() {
        Ok(attached) => assert_eq!((attached, has_tcx()), (Attachment::Tcx, true)),
        Err(error) => {
            let is_said = error.to_string().contains("lacks TCX, which mainline has since Linux 6.6") && !has_tcx();
            assert!(is_said && matches!(error, DatapathError::Unsupported { .. }), "{error}");
        }
    }
}

#[test]
fn the_verifier_has_room_left_for_the_program_at_tcx() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit(1, Unit::Packets, WindowForm::Strict)]));
    program.by_tcx(Link::Ethernet, Merged::default());
    let size = program.kernel().classifier_size().unwrap();
    println!("at TCX: {} instructions verified, {} bytes", size.verified_instructions, size.jited_bytes);
    assert!(size.verified_instructions < VERIFIED_MAX, "{size:?}");
}

#[test]
fn a_syn_over_a_limit_of_connections_becomes_its_own_answer() {
    needs_root!();
    let mut policy = policy(&[limit(1, Unit::Connections, WindowForm::Strict)]);
    policy.rules[0].refuse_with = RefuseWith::Reset;
    let mut program = Program::new(&policy);
    for (ether_type, packet) in [
        (IPV4, V4::of(TCP).around(tcp_with(80, SYN, &[2, 4, 5, 180], b"data"))),
        (IPV6, V6::of(TCP).around(tcp_with(80, SYN, &[2, 4, 5, 180], &[]))),
    ] {
        let syn = frame(ether_type, packet);
        let tagged = [&syn[..12], &[0x81, 0, 0, 7], &syn[12..]].concat();
        assert_eq!(program.kernel().test_run_of(&syn).unwrap(), (2, syn.clone()), "within the limit");
        for (syn, link) in [(&syn, 14), (&tagged, 18)] {
            let (action, answer) = program.kernel().test_run_of(syn).unwrap();
            assert_eq!(action, 3, "XDP_TX");
            assert!(answer.len() <= syn.len());
            assert_eq!(answer[..link], [&syn[6..12], &syn[..6], &syn[12..link]].concat());
            let (sent, back) = (
                PacketHeaders::from_ethernet_slice(syn).unwrap(),
                PacketHeaders::from_ethernet_slice(&answer).unwrap(),
            );
            let (Some(TransportHeader::Tcp(sent)), Some(TransportHeader::Tcp(back))) = (sent.transport, back.transport)
            else {
                panic!("no segment")
            };
            assert!(back.rst && back.ack && !back.syn);
            assert_eq!(back.acknowledgment_number, sent.sequence_number.wrapping_add(1));
            assert_eq!((back.source_port, back.destination_port), (sent.destination_port, sent.source_port));
        }
    }
    policy.rules[0].mode = Mode::DryRun;
    program.apply(&policy);
    let syn = frame(IPV4, V4::of(TCP).around(tcp(80, SYN)));
    assert_eq!(program.kernel().test_run_of(&syn).unwrap(), (2, syn), "a dry run changes no packet");
}
