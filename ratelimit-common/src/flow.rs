//! Classification of datagrams: which one opens a UDP flow, and which one is a request. The code is pure: the
//! remembered flow and the time are arguments.
//!
//! Used only where connections or requests are counted. A flow is one (source, source port, destination port).
//!
//! QUIC headers are trusted only on ports that speak QUIC. On other ports, an attacker could imitate them to be
//! miscounted. There, the first datagram opens a flow, and each datagram is a request.

use core::ops::RangeInclusive;

use crate::time::{Nanos, SECOND_NS};

/// Time in nanoseconds after which a silent flow is new again: conntrack's own time for a UDP stream
/// (`nf_conntrack_udp_timeout_stream`).
pub const IDLE_NS: u64 = 120 * SECOND_NS;

/// Maximum number of QUIC Initial datagrams of one handshake, before the next one counts as another connection. It
/// covers a ClientHello of two datagrams, each sent three times, and the acknowledgements. So one port hides at most
/// this many connections.
pub const INITIALS_PER_CONNECTION_MAX: u16 = 8;

/// Payload bytes of a datagram with a short QUIC header that is a request. Shorter ones are acknowledgements (30 to 62
/// bytes, as measured with Chromium and aioquic), and longer ones are parts of a body.
pub const QUIC_REQUEST_BYTES: RangeInclusive<u16> = 64..=1000;

/// Number of datagrams of a QUIC flow that are no requests, for which the guard counts one.
// The guard allows at least 16 384 counted ones, so 4.2 million: a download of 10 GB takes up to that many
// acknowledgements.
pub const DATAGRAMS_PER_COUNTED: u16 = 256;

/// Weight of a datagram that is no request.
const WEIGHT: u16 = 2;
/// Weight of a datagram that is part of a body.
// An upload of 10 GB takes up to 8.4 million datagrams.
const WEIGHT_OF_BODY: u16 = 1;
/// Total weight for which the guard counts one datagram.
const WEIGHT_COUNTED: u16 = WEIGHT * DATAGRAMS_PER_COUNTED;
const _: () = assert!(WEIGHT_COUNTED.is_power_of_two());
/// Lowest bit of the time, in nanoseconds, that no sender can choose.
const CHANCE_SHIFT: u32 = 12;

/// State that is remembered of a UDP flow: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Time of the newest datagram, as in [`Nanos`].
    pub last_seen_ns: u64,
    /// Number of QUIC Initial datagrams since the flow's newest connection was counted; 0 if the flow is not QUIC.
    pub initials: u16,
    /// Weight of the datagrams without a request since the guard counted one. It is at least 1 after any other
    /// datagram.
    pub idle: u16,
    /// 1 if the newest connection's first request was seen. Its Initial was counted for that request.
    pub asked: u16,
    /// 1 if the newest datagram was part of a body, so the next one may be, too.
    pub in_body: u16,
}

const _: () = assert!(size_of::<Flow>() == 16);

impl Flow {
    /// Returns whether the guard counts the datagram that led to this state, if it is no request.
    #[inline(always)]
    pub const fn is_due(&self) -> bool {
        self.idle == 0
    }

    /// Makes the guard count the datagram that led to this state.
    #[inline(always)]
    pub const fn make_due(&mut self) {
        self.idle = 0;
    }

    /// Adds datagrams that look like requests but charge nothing, since the rule's access log contains their requests.
    #[inline(always)]
    pub const fn add_logged(&mut self, datagrams: u32) {
        const MOST: u32 = DATAGRAMS_PER_COUNTED as u32;
        #[expect(clippy::cast_possible_truncation, reason = "it is at most 256")]
        let datagrams = if datagrams < MOST { datagrams as u16 } else { MOST as u16 };
        self.add_idle(WEIGHT * datagrams);
    }

    #[inline(always)]
    const fn add_idle(&mut self, weight: u16) {
        let idle = self.idle + weight;
        self.idle = if idle >= WEIGHT_COUNTED { 0 } else { idle };
    }
}

/// Facts about a datagram that matter to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// True if the destination port speaks QUIC. A flow whose beginning was not seen is then taken for QUIC.
    pub speaks_quic: bool,
    /// True if the datagram may hold a QUIC Initial packet.
    pub quic_initial: bool,
    /// True if the datagram begins with a short header, in case it is QUIC.
    pub quic_short: bool,
    /// Length of the payload in bytes.
    pub payload_bytes: u16,
}

/// Result of judging a datagram of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// True if the datagram opens a connection.
    pub opens: bool,
    /// Number of requests: 0 or 1.
    pub requests: u32,
    /// State to remember once the datagram is admitted.
    pub newest: Flow,
}

/// Judges one datagram of the flow with the remembered state `known`.
#[inline(always)]
pub fn step(known: Option<Flow>, now: Nanos, datagram: Datagram) -> Step {
    let is_known = match known {
        Some(flow) => now.0.saturating_sub(flow.last_seen_ns) <= IDLE_NS,
        None => false,
    };
    if !datagram.speaks_quic {
        let newest = Flow { last_seen_ns: now.0, ..Flow::default() };
        return Step { opens: !is_known, requests: 1, newest };
    }
    let flow = match known {
        Some(flow) if is_known => flow,
        // The flow is in the middle of a QUIC connection, whose first request was earlier. A random share of first
        // datagrams is counted. Otherwise many flows of one datagram each would never count.
        Some(_) | None => {
            #[expect(clippy::cast_possible_truncation, reason = "its low bits")]
            let idle = (now.0 >> CHANCE_SHIFT) as u16 & (WEIGHT_COUNTED - 1);
            Flow { asked: datagram.quic_short as u16, idle, ..Flow::default() }
        }
    };
    let mut step = step_of_quic(flow, is_known, datagram);
    step.newest.last_seen_ns = now.0;
    step.newest.idle = flow.idle;
    if step.requests == 0 {
        let is_of_body = datagram.payload_bytes > *QUIC_REQUEST_BYTES.end();
        step.newest.add_idle(if is_of_body { WEIGHT_OF_BODY } else { WEIGHT });
    } else if flow.idle == 0 {
        step.newest.idle = WEIGHT_OF_BODY;
    }
    step
}

/// Judges a datagram on a port that speaks QUIC, apart from guard and time.
#[inline(always)]
fn step_of_quic(flow: Flow, is_known: bool, datagram: Datagram) -> Step {
    let Datagram { quic_initial, quic_short, payload_bytes, .. } = datagram;
    let initials = flow.initials.saturating_add(quic_initial as u16);
    let opens = !is_known || initials > INITIALS_PER_CONNECTION_MAX;
    let newest = match (opens, quic_initial) {
        (true, true) => Flow { initials: 1, asked: 0, in_body: 0, ..flow },
        (true, false) => Flow { initials: 0, ..flow },
        (false, _) => Flow { initials, ..flow },
    };
    let is = |requests, newest| Step { opens, requests, newest };
    let is_quic = newest.initials != 0 || newest.asked != 0;
    if !is_quic {
        return is(1, newest);
    }
    if !quic_short {
        // An Initial that opens a connection stands for its first request.
        let is_first = quic_initial && (opens || flow.initials == 0);
        return is(is_first as u32, newest);
    }
    let in_body = (payload_bytes > *QUIC_REQUEST_BYTES.end()) as u16;
    let newest = Flow { in_body, ..newest };
    if !QUIC_REQUEST_BYTES.contains(&payload_bytes) || flow.in_body != 0 {
        return is(0, newest);
    }
    is((newest.asked != 0) as u32, Flow { asked: 1, ..newest })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1_800_000_000 * SECOND_NS);

    const OTHER: Datagram = Datagram { speaks_quic: false, quic_initial: false, quic_short: true, payload_bytes: 100 };
    const INITIAL: Datagram =
        Datagram { speaks_quic: true, quic_initial: true, quic_short: false, payload_bytes: 1200 };

    const fn short(payload_bytes: u16) -> Datagram {
        Datagram { speaks_quic: true, quic_initial: false, quic_short: true, payload_bytes }
    }

    fn requests(datagrams: &[Datagram]) -> u32 {
        let mut known = None;
        let mut requests = 0;
        for &datagram in datagrams {
            let step = step(known, NOW, datagram);
            requests += step.requests;
            known = Some(step.newest);
        }
        requests
    }

    #[test]
    fn the_first_datagram_opens_and_the_second_continues() {
        let first = step(None, NOW, OTHER);
        assert!(first.opens);
        assert!(!step(Some(first.newest), Nanos(NOW.0 + 1), OTHER).opens);
    }

    #[test]
    fn a_flow_is_new_again_only_after_it_was_silent_for_the_idle_time() {
        let flow = Flow { last_seen_ns: NOW.0, ..Flow::default() };
        assert!(!step(Some(flow), Nanos(NOW.0 + IDLE_NS), OTHER).opens);
        assert!(step(Some(flow), Nanos(NOW.0 + IDLE_NS + 1), OTHER).opens);
    }

    #[test]
    fn one_connection_is_counted_for_each_run_of_initials() {
        let mut known = None;
        let mut opened = 0;
        for _ in 0..3 * INITIALS_PER_CONNECTION_MAX {
            let step = step(known, NOW, INITIAL);
            opened += u32::from(step.opens);
            known = Some(step.newest);
        }
        assert_eq!(opened, 3);
    }

    #[test]
    fn a_clock_that_went_back_does_not_reopen_a_flow() {
        let flow = Flow { last_seen_ns: NOW.0, ..Flow::default() };
        assert!(!step(Some(flow), Nanos(NOW.0 - SECOND_NS), OTHER).opens);
    }

    #[test]
    fn each_datagram_is_a_request_where_it_is_not_quic() {
        assert_eq!(requests(&[OTHER; 5]), 5);
    }

    #[test]
    fn a_quic_connection_is_one_request_with_its_handshake_and_what_it_asks_first() {
        let handshake = Datagram { quic_short: false, ..short(366) };
        assert_eq!(requests(&[INITIAL, INITIAL, handshake, short(33), short(68), short(35)]), 1);
    }

    #[test]
    fn later_quic_requests_are_recognized_by_their_length() {
        let (shortest, longest) = (*QUIC_REQUEST_BYTES.start(), *QUIC_REQUEST_BYTES.end());
        for (bytes, counted) in [(shortest - 1, 0), (shortest, 1), (longest, 1), (longest + 1, 0)] {
            assert_eq!(requests(&[INITIAL, short(100), short(bytes)]), 1 + counted, "{bytes} bytes");
        }
    }

    #[test]
    fn the_end_of_a_body_is_no_request() {
        assert_eq!(requests(&[INITIAL, short(100), short(1200), short(1200), short(300), short(80)]), 2);
    }

    #[test]
    fn quic_lookalikes_on_other_ports_make_no_later_datagram_free() {
        let elsewhere = |datagram| Datagram { speaks_quic: false, ..datagram };
        assert_eq!(requests(&[INITIAL, short(33), short(33)].map(elsewhere)), 3);
        // The state from when the port spoke QUIC has no effect either.
        let known = Flow { last_seen_ns: NOW.0, initials: 3, idle: 9, asked: 1, in_body: 1 };
        let step = step(Some(known), NOW, elsewhere(short(1200)));
        assert_eq!((step.opens, step.requests, step.newest.initials, step.newest.asked), (false, 1, 0, 0));
    }

    fn is_guarded(step: &Step) -> bool {
        step.requests == 0 && step.newest.is_due()
    }

    /// Sends datagrams of one size on a known flow. Returns the number that the guard counts, and the number of
    /// requests.
    fn counted(payload_bytes: u16, datagrams: u64) -> (u32, u32) {
        let mut flow = step(None, NOW, INITIAL).newest;
        let (mut guarded, mut requests) = (0, 0);
        for _ in 0..datagrams {
            let step = step(Some(flow), NOW, short(payload_bytes));
            guarded += u32::from(is_guarded(&step));
            requests += step.requests;
            flow = step.newest;
        }
        (guarded, requests)
    }

    #[test]
    fn the_guard_counts_one_in_256_of_small_datagrams_and_one_in_512_of_bodies() {
        assert_eq!(counted(40, 25_600), (100, 0));
        assert_eq!(counted(1_200, 51_200), (100, 0));
        assert_eq!(counted(100, 3_200), (0, 3_199), "requests are no part of it");
    }

    #[test]
    fn the_guard_counts_one_in_256_of_requests_that_a_log_has() {
        for (merged, expected) in [(1, 100), (16, 100), (100, 86), (1_000, 25)] {
            let mut flow = step(None, NOW, INITIAL).newest;
            let mut due = 0;
            for _ in 0..25_600 / merged {
                flow.add_logged(merged);
                due += u32::from(flow.is_due());
            }
            assert_eq!(due, expected, "{merged} at once");
        }
    }

    #[test]
    fn downloads_uploads_and_calls_stay_within_the_least_that_the_guard_allows() {
        use crate::verification::GUARDED_SEGMENTS_MIN;
        // 9 GB, with an acknowledgement for every second packet of 1200 bytes.
        let download = counted(40, (9_u64 << 30) / 1_200 / 2).0;
        let upload = counted(1_200, (9_u64 << 30) / 1_200).0;
        // One hour of 300 packets a second.
        let call = counted(1_100, 300 * 3_600).0;
        for (what, guarded) in [("download", download), ("upload", upload), ("call", call)] {
            assert!(u64::from(guarded) < GUARDED_SEGMENTS_MIN, "{what}: {guarded}");
        }
    }

    #[test]
    fn the_guard_counts_one_in_256_of_flows_of_one_datagram_each() {
        let at = |number: u64| Nanos(NOW.0 + (number << CHANCE_SHIFT));
        let counted = (0..51_200).filter(|number| is_guarded(&step(None, at(*number), short(40)))).count();
        assert_eq!(counted, 200);
        assert!((0..512).all(|number| !is_guarded(&step(None, at(number), INITIAL))), "it is a request");
        assert!((0..512).all(|number| !is_guarded(&step(None, at(number), OTHER))));
    }

    #[test]
    fn a_new_connection_of_the_same_flow_does_not_begin_the_count_of_the_guard_anew() {
        let mut known = step(None, NOW, INITIAL).newest;
        let mut guarded = 0;
        for at in 0..5_120 {
            let initial = Datagram { quic_initial: true, quic_short: false, ..short(40) };
            let step = step(Some(known), NOW, if at % 8 == 0 { initial } else { short(40) });
            guarded += u32::from(is_guarded(&step));
            known = step.newest;
        }
        assert!(guarded >= 17, "{guarded} of 4480 and those Initials that were no request");
    }

    proptest::proptest! {
        #[test]
        fn non_quic_datagrams_are_a_request_each_and_the_first_opens(
            datagrams in proptest::collection::vec((0_u8..4, 0_u16..1500), 1..40)
        ) {
            let mut known = None;
            for (at, (looks, payload_bytes)) in datagrams.into_iter().enumerate() {
                let (quic_initial, quic_short) = (looks & 1 != 0, looks & 2 != 0);
                let step = step(known, NOW, Datagram { speaks_quic: false, quic_initial, quic_short, payload_bytes });
                proptest::prop_assert_eq!((step.opens, step.requests), (at == 0, 1));
                known = Some(step.newest);
            }
        }
    }

    #[test]
    fn a_quic_connection_whose_beginning_was_not_seen_is_known_by_its_port() {
        assert_eq!(requests(&[short(33), short(100), short(34)]), 1);
        let elsewhere = |bytes| Datagram { speaks_quic: false, ..short(bytes) };
        assert_eq!(requests(&[elsewhere(33), elsewhere(100), elsewhere(34)]), 3);
    }
}
