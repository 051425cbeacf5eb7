//! Random tests of HTTP/2 in the clear.

use crate::each_case;
use crate::http2::{Http2, preface};
use crate::link::{Link, Sent, Server as _};
use crate::random::Random;
use crate::sealed::{frames, held_to_bound};
use crate::sender::Sender;

/// Maximum bytes from the server that are no answer: settings, a window update.
const QUIET_BYTES: u32 = 25;

/// Lengths of bodies. The segments of a longer body would take long and test nothing more.
const BODIES: [usize; 4] = [1, 17, 100, 1500];

fn link(random: &mut Random, is_told: bool) -> Link<Http2> {
    let answers: Vec<u32> = (0..3).map(|_| random.of_these(&[40, 60, 200, 700, 5_000, 100_000])).collect();
    let server = Http2::new(&answers, random.of_these(&[4096, 16_384]));
    let mut link = Link::new(server, random, u64::MAX);
    link.log = is_told.then(Vec::new);
    link
}

/// Runs a case with segments of any size, in order, several at once. Frame positions are then known.
fn in_order(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let mut link = link(random, is_told);
    if random.once_in(2) {
        link = link.without_socket();
    }
    let sizes = random.of_these(&[(1, 3), (1, 60), (8, 200), (1448, 1448), (1, 4200)]);
    let mut stream = preface();
    let mut at = 0;
    for _ in 0..random.between(1, 20) {
        for _ in 0..random.of_these(&[1, 1, 4, 40]) {
            stream.extend(frames(random, &BODIES));
        }
        while at < stream.len() {
            let end = (at + random.between(sizes.0, sizes.1)).min(stream.len());
            let acknowledged = link.tcp.said;
            let place = i64::try_from(at).unwrap();
            link.sends(&Sent { at: place, payload: &stream[at..end], acknowledged, is_lost: false });
            at = end;
            if random.once_in(3) {
                link.settles();
            }
        }
        link.settles();
    }
    let (accepted, counted) = (link.server.accepted().len() as u64, link.limiter.counted);
    // The preface counts in place of the first request.
    if counted == accepted.max(1) {
        return Ok(());
    }
    Err(format!("{accepted} accepted, {counted} counted\n{}", link.log.unwrap_or_default().join("\n")))
}

fn adversary(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let mut link = link(random, is_told);
    link.limiter.limit = random.of_these(&[3, 20, u64::MAX / 2, u64::MAX / 2]);
    let mut sender = Sender::new(random);
    sender.stream = preface();
    for _ in 0..random.between(1, 12) {
        for _ in 0..random.of_these(&[1, 1, 2, 10]) {
            sender.stream.extend(frames(random, &BODIES));
        }
        for _ in 0..random.between(1, 6) {
            sender.step(&mut link, random);
        }
    }
    sender.finish(&mut link, random);
    held_to_bound(link, QUIET_BYTES)
}

#[test]
fn each_stream_of_http2_in_the_clear_counts_and_nothing_else() {
    each_case("HTTP/2 in the clear, in order", in_order);
}

#[test]
fn clear_text_http2_turns_with_requests_are_counted_or_held_to_the_guard() {
    each_case("HTTP/2 in the clear", adversary);
}
