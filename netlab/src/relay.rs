//! A wire with trouble: carries frames between two interfaces of a namespace, and loses or delays some.
//!
//! For kernels without netem, and for a limiter that must not see what is lost: it happens before the frame arrives.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{Namespace, PacketSocket};

/// How often a relay looks whether it should stop.
const TICK: Duration = Duration::from_millis(20);
const FRAME_BYTES_MAX: usize = 65_536;
/// Out of so many frames.
const MILLE: u64 = 1000;

/// What befalls frames, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Of a thousand frames, how many are lost.
    pub lost: u64,
    /// Of a thousand frames, how many are delayed.
    pub held: u64,
    /// For how long: those that come meanwhile overtake them.
    pub hold: Duration,
    /// Where the chance begins.
    pub seed: u64,
}

/// What became of the frames so far, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Carried, sooner or later.
    pub carried: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Of those carried, how many were delayed.
    pub held: u64,
}

#[derive(Debug, Default)]
struct Counts {
    carried: AtomicU64,
    lost: AtomicU64,
    held: AtomicU64,
}

/// Two threads, one a direction, until it is dropped.
#[derive(Debug)]
pub struct Relay {
    is_over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Relay {
    /// Joins two interfaces of a namespace. Neither may have addresses, and no end of either wire may leave work to its
    /// peer (see [`crate::without_offloads`]).
    ///
    /// # Errors
    /// If there is no such interface in there, or without `CAP_NET_RAW`.
    pub fn start(namespace: &Namespace, interfaces: [&str; 2], trouble: Trouble) -> Result<Self> {
        let [one, other] = interfaces.map(|interface| PacketSocket::listener(namespace, interface).map(Arc::new));
        let (one, other) = (one?, other?);
        let (is_over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        // A socket does not hear what it sends itself, so each serves one direction's hearing and the other's sending.
        let directions = [(Arc::clone(&one), Arc::clone(&other), 1), (other, one, 2)];
        let threads = directions.map(|(from, to, salt)| {
            let (is_over, counts) = (Arc::clone(&is_over), Arc::clone(&counts));
            let chance = Chance(trouble.seed.wrapping_mul(2).wrapping_add(salt));
            thread::spawn(move || carry(&from, &to, trouble, chance, &is_over, &counts))
        });
        Ok(Self { is_over, counts, threads: threads.into() })
    }

    /// What became of the frames so far.
    pub fn forwarded(&self) -> Forwarded {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Forwarded { carried: of(&self.counts.carried), lost: of(&self.counts.lost), held: of(&self.counts.held) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that failed carried nothing any more, which its caller has seen: no answer came.
            let _failed = thread.join();
        }
    }
}

/// A delayed frame: when it goes on, and its number, so that two of one time keep their order.
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

/// `SplitMix64` (Steele, Lea, Flood 2014): small, and good enough to lose frames by.
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
