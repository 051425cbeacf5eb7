//! Ordering of log requests by their own time, in bounded memory. A server writes a line when its transfer ends, but
//! with the time of its start. A line may therefore be older than many before it. Pure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use ratelimit_common::layout::LIMITS_MAX;
use ratelimit_common::time::Nanos;

/// Reorder window: maximum number of waiting requests. Beyond it the oldest is judged at once. A window of time would
/// end early if one line had a wrong time.
// 2^21 requests of 32 bytes: 64 MB.
pub(super) const HELD_MAX: usize = 1 << 21;

/// Waiting request. The order is by time, then by position in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    at: u64,
    /// Position in the files, above the bit mask of the conditions met. Two fields would make a request 40 bytes long.
    arrival_and_met: u64,
    source: [u8; 16],
}

/// Number of low bits of [`Held::arrival_and_met`] that hold the conditions met.
const MET_BITS: u32 = u8::BITS;
const _: () = assert!(LIMITS_MAX <= MET_BITS as usize);

/// Log request to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) at: Nanos,
    pub(super) source: IpAddr,
    /// Bit mask of the conditions that the request meets, in the order of the limits that have one.
    pub(super) met: u8,
}

/// Queue that delays each request until the reorder window is full of younger ones.
#[derive(Debug)]
pub(super) struct Order {
    held_max: usize,
    /// Requests that arrived in order. A sorted log has all its requests here, which needs no heap.
    run: VecDeque<Held>,
    /// Requests that are older than the last one of the run.
    stragglers: BinaryHeap<Reverse<Held>>,
    arrivals: u64,
    straggled: u64,
}

impl Default for Order {
    fn default() -> Self {
        Self::new(HELD_MAX)
    }
}

impl Order {
    pub(super) const fn new(held_max: usize) -> Self {
        Self { held_max, run: VecDeque::new(), stragglers: BinaryHeap::new(), arrivals: 0, straggled: 0 }
    }

    /// Adds the next request in the order of the files.
    pub(super) fn push(&mut self, request: Waiting) {
        let source = match request.source {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let arrival_and_met = self.arrivals << MET_BITS | u64::from(request.met);
        let held = Held { at: request.at.0, arrival_and_met, source: source.octets() };
        self.arrivals += 1;
        if self.run.back().is_some_and(|last| held.at < last.at) {
            self.straggled += 1;
            self.stragglers.push(Reverse(held));
        } else {
            self.run.push_back(held);
        }
    }

    /// Removes and returns the oldest request, if more wait than the window holds.
    pub(super) fn pop_ready(&mut self) -> Option<Waiting> {
        if self.held() > self.held_max { self.pop() } else { None }
    }

    /// Removes and returns the oldest request, after the files have ended.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let oldest = self.oldest()?;
        if self.run.front() == Some(&oldest) {
            self.run.pop_front();
        } else {
            self.stragglers.pop();
        }
        let source = IpAddr::V6(Ipv6Addr::from(oldest.source)).to_canonical();
        let [met, ..] = oldest.arrival_and_met.to_le_bytes();
        Some(Waiting { at: Nanos(oldest.at), source, met })
    }

    /// Returns the number of requests that were older than one before them.
    pub(super) const fn straggled(&self) -> u64 {
        self.straggled
    }

    fn held(&self) -> usize {
        self.run.len() + self.stragglers.len()
    }

    fn oldest(&self) -> Option<Held> {
        let straggler = self.stragglers.peek().map(|Reverse(held)| held);
        self.run.front().into_iter().chain(straggler).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(at: u64, number: u8) -> Waiting {
        Waiting { at: Nanos(at), source: IpAddr::from([192, 0, 2, number]), met: number }
    }

    #[test]
    fn an_entry_has_the_size_that_the_bound_is_made_of() {
        assert_eq!(size_of::<Held>(), 32);
    }

    #[test]
    fn no_order_of_requests_holds_more_than_the_bound() {
        const HELD_MAX: usize = 64;
        type TimeOf = fn(u64) -> u64;
        let orders: [(&str, TimeOf); 4] = [
            ("rising", |number| number),
            ("falling", |number| 100_000 - number),
            ("equal", |_| 7),
            ("one far ahead of all", |number| if number == 0 { 99_999 } else { number }),
        ];
        for (what, time_of) in orders {
            let mut order = Order::new(HELD_MAX);
            let mut popped = 0;
            for number in 0..100_000 {
                order.push(request(time_of(number), 7));
                while order.pop_ready().is_some() {
                    popped += 1;
                }
                assert!(order.held() <= HELD_MAX, "{what}: {}", order.held());
            }
            let capacity = order.run.capacity() + order.stragglers.capacity();
            assert!(capacity <= 4 * HELD_MAX, "{what}: {capacity}");
            while order.pop().is_some() {
                popped += 1;
            }
            assert_eq!(popped, 100_000, "{what}");
        }
    }

    #[test]
    fn a_request_waits_until_the_window_is_full_of_younger_ones() {
        let mut order = Order::new(2);
        order.push(request(u64::MAX, 2));
        order.push(request(5, 1));
        assert_eq!(order.pop_ready(), None, "one of time 4 may still come");
        order.push(request(16, 3));
        assert_eq!(order.pop_ready(), Some(request(5, 1)));
        assert_eq!(order.pop_ready(), None);
    }

    proptest! {
        #[test]
        fn any_order_within_the_window_comes_out_sorted_and_equal_times_keep_theirs(
            gaps in proptest::collection::vec((0_u64..4, 0_u64..50), 1..300),
            wrong in proptest::option::of((0_usize..300, any::<u64>())),
        ) {
            let mut began = 0;
            let mut requests: Vec<(u64, u64)> = gaps
                .iter()
                .map(|(gap, length)| {
                    began += gap;
                    (began, began + length)
                })
                .collect();
            // A server writes lines in the order of ends. During the longest transfer fewer requests arrive than the
            // window holds.
            requests.sort_by_key(|(_, end)| *end);
            // One line has a wrong time.
            if let Some((at, time)) = wrong.filter(|(at, _)| *at < requests.len()) {
                requests[at].0 = time;
            }
            let mut order = Order::new(300);
            let mut out = Vec::new();
            let waiting = |(arrival, (at, _)): (usize, &(u64, u64))| {
                let arrival = u32::try_from(arrival).unwrap();
                let [.., met] = arrival.wrapping_mul(77).to_be_bytes();
                Waiting { at: Nanos(*at), source: IpAddr::from(arrival.to_be_bytes()), met }
            };
            for of in requests.iter().enumerate() {
                order.push(waiting(of));
                out.extend(std::iter::from_fn(|| order.pop_ready()));
            }
            out.extend(std::iter::from_fn(|| order.pop()));
            let mut sorted: Vec<Waiting> = requests.iter().enumerate().map(waiting).collect();
            sorted.sort_by_key(|of| of.at);
            prop_assert_eq!(out, sorted);
        }
    }
}
