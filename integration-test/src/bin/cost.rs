//! What the program costs a packet, by BPF_PROG_TEST_RUN, as JSON on stdout. `cargo xtask bench` runs it as root and shows it.
//!
//! Arguments: rounds, and runs a round. Rounds are interleaved: in each one every row has its turn after the empty program's, so
//! that whatever else the machine does in that time falls on both.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, it fails")]

use anyhow::{Context as _, Result, ensure};
use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, IPV6, Segment, VLAN, frame, padded, tagged, tcp, v4, v6};
use integration_test::machine;
use integration_test::program::{Program, limit_over, policy};
use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_userspace::datapath::kernel::Bare;
use ratelimit_userspace::desired::{Access, Limit, Policy, WindowForm};
use serde_json::json;

/// Enough that it admits while the benchmark lasts.
const ENOUGH: u64 = 1 << 38;
/// Before it is timed, a frame is run so often, which takes its source over its limit.
const RUNS_BEFORE: u64 = 4;

struct Row {
    name: &'static str,
    /// What comes before it, once.
    before: Vec<Vec<u8>>,
    frame: Vec<u8>,
    policy: Policy,
    /// What becomes of it.
    verdict: &'static str,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |what| -> Result<u32> {
        arguments.next().with_context(|| format!("{what} is missing"))?.parse().with_context(|| format!("read {what}"))
    };
    let (rounds, repeat) = (number("the number of rounds")?, number("the number of runs a round")?);
    ensure!(rounds > 0 && repeat > 0, "nothing to measure");

    let rows = rows();
    let mut bare = Bare::load()?;
    let mut programs: Vec<Program> = Vec::new();
    for row in &rows {
        let mut program = Program::on_the_kernels_clock(&row.policy);
        for frame in &row.before {
            program.passed(frame, 1);
        }
        program.passed(&row.frame, RUNS_BEFORE);
        let verdict = program.verdict(&row.frame);
        ensure!(verdict == row.verdict, "{}: the verdict is {verdict}, not {}", row.name, row.verdict);
        programs.push(program);
    }

    let mut bare_ns = Vec::new();
    let mut rows_ns: Vec<Vec<(u64, i64)>> = vec![Vec::new(); rows.len()];
    for round in 0..rounds {
        eprint!("\rround {} of {rounds}", round + 1);
        for ((row, program), times_ns) in rows.iter().zip(&mut programs).zip(&mut rows_ns) {
            let before = nanos(bare.test_run(&row.frame, repeat)?.duration);
            let time_ns = nanos(program.time(&row.frame, repeat));
            let after = nanos(bare.test_run(&row.frame, repeat)?.duration);
            bare_ns.extend([before, after]);
            times_ns.push((time_ns, time_ns.cast_signed() - before.midpoint(after).cast_signed()));
        }
    }
    eprintln!();
    for (row, program) in rows.iter().zip(&mut programs) {
        let verdict = program.verdict(&row.frame);
        ensure!(verdict == row.verdict, "{}: the verdict was {verdict} in the end, not {}", row.name, row.verdict);
    }

    let size = programs.first_mut().context("there are rows")?.size();
    let rows: Vec<_> = rows.iter().zip(&rows_ns).map(|(row, times_ns)| measured(row, times_ns)).collect();
    let report = json!({
        "kernel": machine::kernel(),
        "processor": machine::processor(),
        "rounds": rounds,
        "repeat": repeat,
        "verified_instructions": size.verified_instructions,
        "translated_bytes": size.translated_bytes,
        "jited_bytes": size.jited_bytes,
        "functions": size.functions,
        "bare_ns": spread(bare_ns.iter().map(|time_ns| time_ns.cast_signed()).collect()),
        "rows": rows,
    });
    println!("{report:#}");
    Ok(())
}

fn rows() -> Vec<Row> {
    let syn_v4 = padded(frame(IPV4, v4(TCP, tcp(80, SYN))), 60);
    let syn_v6 = frame(IPV6, v6(TCP, tcp(80, SYN)));
    let (one_connection, one_packet) = (limit(1, Unit::Connections), limit(1, Unit::Packets));
    let plenty = [limit(ENOUGH, Unit::Connections), limit(ENOUGH, Unit::Packets)];
    let connections = policy(&[one_connection]);
    let mut one_exempt = policy(&[one_connection]);
    one_exempt.access = vec![Access::exempt("198.51.100.0/24".parse().expect("a prefix"))];
    let mut other_exempt = policy(&[one_connection]);
    other_exempt.access = vec![Access::exempt("203.0.113.0/24".parse().expect("a prefix"))];
    let mut wide = policy(&[one_connection]);
    wide.ipv6_prefix = 128;
    let row = |name, frame: &[u8], policy: &Policy, verdict| Row {
        name,
        before: Vec::new(),
        frame: frame.to_vec(),
        policy: policy.clone(),
        verdict,
    };
    let (one_request, requests) = (policy(&[limit(1, Unit::Requests)]), policy(&[limit(ENOUGH, Unit::Requests)]));
    let refused = |name, frame: &[u8]| Row {
        before: vec![other_port(segment(1000, GET))],
        ..row(name, frame, &one_request, "over_limit")
    };
    let ack = padded(frame(IPV4, v4(TCP, tcp(80, ACK))), 60);
    let body = segment(2000, &[0x55; 1400]);
    let vlan = tagged(&[(VLAN, 5)], IPV4, v4(TCP, tcp(80, SYN)));
    vec![
        row("not IP", &padded(frame(0x0806, [0; 28]), 60), &connections, "not_ip"),
        row("not a protected port", &padded(frame(IPV4, v4(TCP, tcp(22, SYN))), 60), &connections, "not_protected"),
        row("exempt, 1 prefix", &syn_v4, &one_exempt, "exempt"),
        row("not counted: ACK", &ack, &connections, "not_counted"),
        row("not counted: ACK, where requests are", &ack, &requests, "not_counted"),
        row("not counted: data", &body, &connections, "not_counted"),
        row("not counted: data, where requests are", &body, &requests, "not_counted"),
        Row {
            before: vec![segment(1000, GET), segment(9000, b"x")],
            ..row("not counted: late data, where requests are", &body, &requests, "not_counted")
        },
        refused("over the limit: requests, in the clear", &segment(1000, GET)),
        Row {
            before: [vec![other_port(segment(1000, GET))], tls()].concat(),
            ..refused("over the limit: requests, under TLS", &record(1400, 120))
        },
        refused("over the limit: 1400 bytes of line ends", &segment(1000, &[b'\n'; 1400])),
        refused("over the limit: 87 requests in one segment", &segment(1000, &b"A / HTTP/1.1\r\n\r\n".repeat(87))),
        Row {
            before: [vec![other_port(segment(1000, GET))], tls()].concat(),
            ..refused(
                "over the limit: 24 records",
                &segment(1400, &[&[23, 3, 3, 0, 53][..], &[0x55; 53]].concat().repeat(24)),
            )
        },
        row("over the limit: connections", &syn_v4, &connections, "over_limit"),
        row("over the limit: packets", &syn_v4, &policy(&[one_packet]), "over_limit"),
        row("over the limit: bytes", &syn_v4, &policy(&[limit(50, Unit::Bytes)]), "over_limit"),
        row(
            "over the limit: lenient window",
            &syn_v4,
            &policy(&[Limit { form: WindowForm::Lenient, ..one_connection }]),
            "over_limit",
        ),
        row("over the limit: VLAN tag", &vlan, &connections, "over_limit"),
        row("over the limit: IPv6 /64", &syn_v6, &connections, "over_limit"),
        row("over the limit: IPv6 /128", &syn_v6, &wide, "over_limit"),
        row("over the limit: 1 exempt prefix, another's", &syn_v4, &other_exempt, "over_limit"),
        row("over the limit: the second of two", &syn_v4, &policy(&[plenty[0], one_packet]), "over_limit"),
        row("admitted", &syn_v4, &policy(&plenty[..1]), "within_limit"),
        row("admitted, two limits", &syn_v4, &policy(&plenty), "within_limit"),
        row("admitted, IPv6 /64", &syn_v6, &policy(&plenty[..1]), "within_limit"),
    ]
}

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: example.org\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";

/// A segment of one connection, whose client has heard nothing more. One that leaves a gap before it lets what belongs there be
/// judged each time that it comes.
fn segment(sequence: u32, data: &[u8]) -> Vec<u8> {
    let segment = Segment { sequence, data, ..Segment::to(80, ACK) };
    frame(IPV4, v4(TCP, segment.bytes()))
}

/// The same from another port.
fn other_port(mut frame: Vec<u8>) -> Vec<u8> {
    // Ethernet and IPv4 headers are before it.
    frame[14 + 20] ^= 0x10;
    frame
}

/// A record of application data.
fn record(sequence: u32, bytes: u16) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    segment(sequence, &[&[23, 3, 3, high, low], vec![0x55; bytes.into()].as_slice()].concat())
}

/// What a TLS connection begins with, up to byte 1400.
fn tls() -> Vec<Vec<u8>> {
    let hello = [&[22, 3, 1, 1, 0], [0; 256].as_slice()].concat();
    let finished = [&[20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 53], [0; 53].as_slice()].concat();
    vec![segment(1400 - 64 - 261, &hello), segment(1400 - 64, &finished)]
}

/// Over an hour, in six buckets: what is over the limit stays so while the benchmark lasts.
fn limit(amount: u64, unit: Unit) -> Limit {
    limit_over(amount, unit, WindowForm::Strict, 6, 600 * SECOND_NS)
}

fn measured(row: &Row, times_ns: &[(u64, i64)]) -> serde_json::Value {
    json!({
        "name": row.name,
        "verdict": row.verdict,
        "limits": row.policy.rules[0].limits.len(),
        "ns": spread(times_ns.iter().map(|(time_ns, _)| time_ns.cast_signed()).collect()),
        "above_bare_ns": spread(times_ns.iter().map(|(_, above_ns)| *above_ns).collect()),
    })
}

fn spread(mut values: Vec<i64>) -> serde_json::Value {
    values.sort_unstable();
    json!({ "median": values[values.len() / 2], "min": values[0], "max": values[values.len() - 1] })
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
