//! Comparison of verified segments on real connections between the real program, which queries the sockets, and the
//! fake datapath, which is given their state.
//!
//! The oracle and a replay have no sockets. Test frames reach no socket, so each connection's server has received
//! nothing. One verdict may differ. A drop-cache entry against connections over the limit also drops other segments in
//! their source's name. The fake does not see what the entry drops, because the program has charged nothing. The
//! program also resets a connection with a refused request that waits too long, and the fake does not. Such a packet
//! charges nothing, and the fake does not see it.
//!
//! A run prints its seed, and RATELIMITD_SEED repeats the run.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_test::fake::{Fake, bans, used};
use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, Segment, V4, frame, udp_from};
use integration_test::numbers;
use integration_test::program::{Program, is_pass, limit_over};
use integration_test::random::Random;
use ratelimit_common::conversation::Peer;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_common::verification::ConnectionState;
use ratelimit_datapath::fake::Sender;
use ratelimit_datapath::{Datapath as _, SourceReading};
use ratelimit_policy::desired::{Bans, Guard, Limit, Mode, Policy, Ports, Refuse, Rule, WindowForm};

const STEPS: u32 = 30_000;
const STEPS_BETWEEN_READINGS: u32 = 100;
const CONNECTIONS: usize = 6;
/// Time between two policies, longer than a window.
const BETWEEN_POLICIES_NS: u64 = 120 * SECOND_NS;
const STEP_NS_MAX: u64 = SECOND_NS / 2;
/// Age of a refused request above which the program resets its connection. Below that, it never does.
const WAITS_NS_MIN: u64 = 2 << 28;

/// Numbers of a connection from this host to itself.
#[derive(Clone, Copy)]
struct Connection {
    source_port: u16,
    sequence: u32,
    acknowledged: u32,
}

struct Host {
    port: u16,
    connections: Vec<Connection>,
    /// Client sides, held open.
    _streams: Vec<TcpStream>,
    _listener: TcpListener,
}

impl Host {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let streams: Vec<_> =
            (0..CONNECTIONS).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        let of = |stream: &TcpStream| {
            let (sequence, acknowledged) = numbers::of(stream).unwrap();
            Connection { source_port: stream.local_addr().unwrap().port(), sequence, acknowledged }
        };
        let connections = streams.iter().map(of).collect();
        Self { port, connections, _streams: streams, _listener: listener }
    }

    /// Returns a packet to the server from its own host, and what the sockets say about its sender.
    fn random_packet(&self, random: &mut Random) -> (Vec<u8>, Sender) {
        let of = random.of(&self.connections);
        let any_port = 1 + u16::try_from(random.below(4)).unwrap();
        let Connection { source_port, sequence, acknowledged } = of;
        let sent = Segment { source_port, sequence, acknowledged, ..Segment::to(self.port, ACK) };
        let get = b"GET / HTTP/1.1\r\n\r\n";
        let (protocol, bytes, connection_state) = match random.below(16) {
            0..6 => (TCP, sent.bytes(), ConnectionState::Established),
            6 => (TCP, Segment { data: get, ..sent }.bytes(), ConnectionState::Established),
            // Beyond the end of any window.
            7 => (TCP, Segment { sequence: sequence.wrapping_add(1 << 30), ..sent }.bytes(), ConnectionState::Ignored),
            8..10 => (TCP, Segment { source_port: any_port, ..sent }.bytes(), ConnectionState::Unknown),
            10 => (TCP, Segment { source_port: any_port, data: get, ..sent }.bytes(), ConnectionState::Unknown),
            11..14 => (TCP, Segment { source_port: any_port, flags: SYN, ..sent }.bytes(), ConnectionState::Unknown),
            _ => (UDP, udp_from(any_port, self.port, [0; 20]), ConnectionState::Unknown),
        };
        let mut frame = frame(IPV4, V4 { source: Ipv4Addr::LOCALHOST.octets(), ..V4::of(protocol) }.around(bytes));
        // Offset behind the Ethernet header. The program ignores the checksum.
        frame[14 + 16..14 + 20].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
        // The server still waits for the first byte. It reports its window size to the program alone, and no frame here
        // is that long.
        let peer = Peer {
            received: sequence,
            window_end: sequence.wrapping_add(1 << 14),
            said: acknowledged,
            is_first: 1,
            ..Peer::default()
        };
        (frame, Sender { connection_state, peer: (connection_state == ConnectionState::Established).then_some(peer) })
    }

    fn random_policy(&self, random: &mut Random) -> Policy {
        let mut limits: Vec<Limit> = (0..=random.below(3)).map(|_| random_limit(random)).collect();
        limits.sort_by_key(|limit| limit.slot);
        limits.dedup_by_key(|limit| limit.slot);
        let bans = random.one_in(2).then(|| Bans {
            steps_ns: vec![1 + random.below(20 * SECOND_NS)],
            forget_ns: random.below(60 * SECOND_NS),
            needs_proof: random.one_in(2),
        });
        let port = vec![(self.port, self.port)];
        let rule = Rule {
            mode: if random.one_in(8) { Mode::DryRun } else { Mode::Enforce },
            // Only the program counts for the guard.
            guard: Guard::Off,
            refuse: if random.one_in(3) { Refuse::All } else { Refuse::Excess },
            bans,
            ..Rule::new("default".into(), Ports { tcp: port.clone(), udp: port, other_protocols: false }, limits)
        };
        Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules: vec![rule] }
    }
}

fn random_limit(random: &mut Random) -> Limit {
    let unit = random.of(&[Unit::Connections, Unit::Connections, Unit::Packets, Unit::Bytes, Unit::Requests]);
    let form = random.of(&[WindowForm::Strict, WindowForm::Lenient, WindowForm::Fixed, WindowForm::Gcra]);
    let amount = match unit {
        Unit::Connections => 1 + random.below(8),
        Unit::Requests => random.below(8),
        Unit::Packets => random.below(40),
        Unit::Bytes => random.below(2000),
    };
    let (buckets, bucket_ns) = match form {
        WindowForm::Strict | WindowForm::Lenient => (5, 10 * SECOND_NS),
        // With the oldest bucket, this window is as long as those of the other forms. The program keeps connections for
        // the longest window.
        WindowForm::Fixed | WindowForm::Gcra => (1, 30 * SECOND_NS),
    };
    let limit = limit_over(amount, unit, form, buckets, bucket_ns);
    Limit { slot: limit.slot | u32::from(form == WindowForm::Gcra) << 19, ..limit }
}

/// Returns whether a frame is a TCP segment other than a SYN.
fn opens_nothing(frame: &[u8]) -> bool {
    frame[14 + 9] == TCP && frame[14 + 20 + 13] != SYN
}

/// Returns whether the drop cache has an entry against the host's connections, for a limit of packets or bytes. Such an
/// entry also drops other segments in the host's name, which belong to no connection and are counted separately.
fn is_cached(program: &mut Program, policy: &Policy) -> bool {
    let now = program.now();
    let readings = program.kernel().source(Ipv4Addr::LOCALHOST.into()).unwrap();
    let is_of_volume = |slot: u32| {
        let limit = policy.rules[0].limits.iter().find(|limit| limit.slot == slot);
        limit.is_some_and(|limit| matches!(limit.unit, Unit::Packets | Unit::Bytes))
    };
    let holds = |of: &SourceReading| of.is_verified && of.refused_until.is_some_and(|until| now < until);
    readings.iter().any(|of| holds(of) && is_of_volume(of.slot))
}

/// Returns the source port of a segment, or `None` for a datagram or a segment without payload.
fn source_port(frame: &[u8]) -> Option<u16> {
    let has_payload = frame[14 + 9] == TCP && frame.len() > 14 + 20 + 20;
    has_payload.then(|| u16::from_be_bytes([frame[14 + 20], frame[14 + 21]]))
}

fn seed() -> u64 {
    match std::env::var("RATELIMITD_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into(),
    }
}

#[test]
fn fake_and_program_agree_when_sockets_verify_the_segments() {
    needs_root!();
    let seed = seed();
    println!("RATELIMITD_SEED={seed}");
    let (mut random, host) = (Random(seed), Host::new());
    let mut policy = host.random_policy(&mut random);
    let (mut program, mut fake) = (Program::new(&policy), Fake::new(&policy));
    let mut said: BTreeMap<_, u32> = BTreeMap::new();
    let (mut verified_bans, mut refused_beside, mut resets) = (0, 0, 0);
    // Time at which the oldest refused request of each connection was first refused, by the connection's port.
    let mut refused_since: BTreeMap<u16, u64> = BTreeMap::new();
    for step in 0..STEPS {
        if random.one_in(150) {
            // A window does not remember drops by the drop cache as refusals. That matters if the next rule refuses
            // everything.
            program.advance(BETWEEN_POLICIES_NS);
            fake.set_now(program.now());
            policy = host.random_policy(&mut random);
            program.apply(&policy);
            fake.apply(&policy);
        }
        if random.one_in(2) {
            program.advance(random.below(STEP_NS_MAX));
            fake.set_now(program.now());
        }
        let (frame, sender) = host.random_packet(&mut random);
        let is_refused_beside = sender.connection_state != ConnectionState::Established
            && opens_nothing(&frame)
            && is_cached(&mut program, &policy);
        let real = program.judged(&frame);
        if is_refused_beside {
            assert_eq!(
                real,
                ("over_limit", Some(0)),
                "the drop cache drops it: seed {seed}, step {step} under {policy:#?}"
            );
            refused_beside += 1;
            continue;
        }
        let established_port = source_port(&frame).filter(|_| sender.peer.is_some());
        if real == ("reset", Some(0)) {
            let since = established_port.and_then(|port| refused_since.remove(&port));
            let waited_ns = since.map(|since| program.now().0 - since);
            assert!(
                waited_ns.is_some_and(|waited| waited > WAITS_NS_MIN),
                "reset after {waited_ns:?} ns: seed {seed}, step {step} under {policy:#?}"
            );
            resets += 1;
            continue;
        }
        if let Some(port) = established_port
            && !is_pass(real.0)
        {
            refused_since.entry(port).or_insert(program.now().0);
        }
        let faked = fake.judged_of(&frame, sender);
        let at =
            || format!("seed {seed}, step {step}: {sender:?} {frame:02x?} at {} under {policy:#?}", program.now().0);
        assert_eq!(real, faked, "the program, and the fake: {}", at());
        *said.entry((sender.connection_state == ConnectionState::Established, real.0)).or_default() += 1;
        if step % STEPS_BETWEEN_READINGS == 0 {
            let now = program.now();
            let used = (used(program.kernel(), &policy, now), used(fake.datapath(), &policy, now));
            assert_eq!(used.0, used.1, "seed {seed}, step {step} under {policy:#?}");
            let bans = (bans(program.kernel(), &policy), bans(fake.datapath(), &policy));
            assert_eq!(bans.0, bans.1, "seed {seed}, step {step} under {policy:#?}");
            let needs_proof = policy.rules[0].bans.as_ref().is_some_and(|bans| bans.needs_proof);
            verified_bans += usize::from(needs_proof) * bans.0.len();
        }
    }
    println!(
        "{STEPS} steps agree but for {refused_beside} dropped by the cache and {resets} reset, {verified_bans} bans by \
         verified traffic: {said:?}"
    );
    for seen in
        [(true, "within_limit"), (true, "over_limit"), (true, "banned"), (false, "within_limit"), (false, "over_limit")]
    {
        assert!(said.get(&seen).is_some_and(|count| *count > 100), "hardly any is {seen:?}: {said:?}");
    }
    assert!(verified_bans > 0, "no source was banned by its verified traffic");
}
