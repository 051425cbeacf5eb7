//! Which datagram opens a UDP flow. Pure: the remembered flow and the time are arguments.
//!
//! Used only where connections are counted. A flow is one (source, source port, destination port).

use crate::time::{Nanos, SECOND_NS};

/// A flow that was silent for this long is new again: conntrack's own time for a UDP stream (`nf_conntrack_udp_timeout_stream`).
pub const IDLE_NS: u64 = 120 * SECOND_NS;

/// How many QUIC Initial datagrams one handshake may take (a ClientHello of two datagrams, each sent thrice, and
/// the acknowledgements) before the next one counts as another connection. One port so hides at most this many.
pub const INITIALS_PER_CONNECTION_MAX: u64 = 8;

/// What is remembered of a UDP flow: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// When its newest datagram was seen, in [`Nanos`].
    pub last_seen_ns: u64,
    /// QUIC Initial datagrams since the flow's newest connection was counted.
    pub initials: u64,
}

const _: () = assert!(size_of::<Flow>() == 16);

/// What a datagram is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// It belongs to what was already counted; remember this.
    Continues(Flow),
    /// It begins a connection; remember this once it is admitted.
    Opens(Flow),
}

/// Judges one datagram of the flow last remembered as `known`.
#[inline(always)]
pub fn step(known: Option<Flow>, now: Nanos, quic_initial: bool) -> Datagram {
    let opened = Flow { last_seen_ns: now.0, initials: quic_initial as u64 };
    let Some(flow) = known else { return Datagram::Opens(opened) };
    if now.0.saturating_sub(flow.last_seen_ns) > IDLE_NS {
        return Datagram::Opens(opened);
    }
    let initials = flow.initials.saturating_add(quic_initial as u64);
    if initials > INITIALS_PER_CONNECTION_MAX {
        return Datagram::Opens(opened);
    }
    Datagram::Continues(Flow { last_seen_ns: now.0, initials })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1_800_000_000 * SECOND_NS);

    #[test]
    fn the_first_datagram_opens_and_the_second_continues() {
        let Datagram::Opens(flow) = step(None, NOW, false) else { panic!("a new flow must open") };
        assert!(matches!(step(Some(flow), Nanos(NOW.0 + 1), false), Datagram::Continues(_)));
    }

    #[test]
    fn a_flow_is_new_again_only_after_it_was_silent_for_the_idle_time() {
        let flow = Flow { last_seen_ns: NOW.0, initials: 0 };
        assert!(matches!(step(Some(flow), Nanos(NOW.0 + IDLE_NS), false), Datagram::Continues(_)));
        assert!(matches!(step(Some(flow), Nanos(NOW.0 + IDLE_NS + 1), false), Datagram::Opens(_)));
    }

    #[test]
    fn one_connection_is_counted_for_each_run_of_initials() {
        let mut known = None;
        let mut opened = 0;
        for _ in 0..3 * INITIALS_PER_CONNECTION_MAX {
            known = Some(match step(known, NOW, true) {
                Datagram::Continues(flow) => flow,
                Datagram::Opens(flow) => {
                    opened += 1;
                    flow
                }
            });
        }
        assert_eq!(opened, 3);
    }

    #[test]
    fn a_clock_that_went_back_does_not_reopen_a_flow() {
        let flow = Flow { last_seen_ns: NOW.0, initials: 0 };
        assert!(matches!(step(Some(flow), Nanos(NOW.0 - SECOND_NS), false), Datagram::Continues(_)));
    }
}
