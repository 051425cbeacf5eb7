//! A lossy wire: carries frames between two interfaces of a namespace, and loses or delays some.
//!
//! Used on kernels without netem, and for a limiter that must not see lost frames: a frame is lost before it arrives.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{Namespace, PacketSocket};

/// Interval at which a relay checks whether it should stop.
const TICK: Duration = Duration::from_millis(20);
const FRAME_BYTES_MAX: usize = 65_536;
/// Number of frames to which [`Trouble`] refers.
const MILLE: u64 = 1000;

/// Loss and delay of frames, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Number of lost frames in a thousand.
    pub lost: u64,
    /// Number of delayed frames in a thousand.
    pub held: u64,
    /// Duration of a delay. Frames that arrive meanwhile overtake the delayed ones.
    pub hold: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Number of frames so far, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Frames carried, delayed or not.
    pub carried: u64,
    /// Frames lost on purpose.
    pub lost: u64,
    /// Carried frames that were delayed.
    pub held: u64,
}

#[derive(Debug, Default)]
struct Counts {
    carried: AtomicU64,
    lost: AtomicU64,
    held: AtomicU64,
}

/// A relay of two threads, one for each direction, until it is dropped.
#[derive(Debug)]
pub struct Relay {
    is_over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Relay {
    /// Joins two interfaces of a namespace. Neither may have addresses, and offloads must be off at every end of both
    /// wires (see [`crate::without_offloads`]).
    ///
    /// # Errors
    /// Fails if the namespace has no such interface, or without `CAP_NET_RAW`.
    pub fn start(namespace: &Namespace, interfaces: [&str; 2], trouble: Trouble) -> Result<Self> {
        let [one, other] = interfaces.map(|interface| PacketSocket::listener(namespace, interface).map(Arc::new));
        let (one, other) = (one?, other?);
        let (is_over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        // A socket does not receive its own frames, so each one receives for one direction and sends for the other.
        let directions = [(Arc::clone(&one), Arc::clone(&other), 1), (other, one, 2)];
        let threads = directions.map(|(from, to, salt)| {
            let (is_over, counts) = (Arc::clone(&is_over), Arc::clone(&counts));
            let chance = Chance(trouble.seed.wrapping_mul(2).wrapping_add(salt));
            thread::spawn(move || carry(&from, &to, trouble, chance, &is_over, &counts))
        });
        Ok(Self { is_over, counts, threads: threads.into() })
    }

    /// Returns the number of frames so far.
    pub fn forwarded(&self) -> Forwarded {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Forwarded { carried: of(&self.counts.carried), lost: of(&self.counts.lost), held: of(&self.counts.held) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that failed carried nothing more, which its caller has noticed.
            let _failed = thread.join();
        }
    }
}

/// A delayed frame: its due time and a number, so that frames of the same time keep their order.
type Held = Reverse<(Instant, u64, Vec<u8>)>;

fn carry(
    from: &PacketSocket,
    to: &PacketSocket,
    trouble: Trouble,
    mut chance: Chance,
    is_over: &AtomicBool,
    counts: &Counts,
) -> Result<()> {
    let mut frame = vec![0; FRAME_BYTES_MAX];
    let mut held: BinaryHeap<Held> = BinaryHeap::new();
    while !is_over.load(Ordering::Relaxed) {
        let next = held.peek().map(|Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
        let heard = from.receive_within(next.unwrap_or(TICK).min(TICK), &mut frame)?;
        while held.peek().is_some_and(|Reverse((due, ..))| *due <= Instant::now()) {
            if let Some(Reverse((.., frame))) = held.pop() {
                to.send(&frame)?;
            }
        }
        let Some(frame) = heard.and_then(|len| frame.get(..len)) else { continue };
        if chance.of_mille(trouble.lost) {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let number = counts.carried.fetch_add(1, Ordering::Relaxed);
        if chance.of_mille(trouble.held) {
            counts.held.fetch_add(1, Ordering::Relaxed);
            held.push(Reverse((Instant::now() + trouble.hold, number, frame.to_vec())));
        } else {
            to.send(frame)?;
        }
    }
    Ok(())
}

/// Random numbers of `SplitMix64` (Steele, Lea, Flood 2014), which are good enough to choose frames to lose.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn of_mille(&mut self, share: u64) -> bool {
        self.next() % MILLE < share
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_keeps_to_its_share() {
        let mut chance = Chance(7);
        let hits = (0..100_000).filter(|_| chance.of_mille(50)).count();
        assert!((4_700..5_300).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| chance.of_mille(0)));
    }
}
