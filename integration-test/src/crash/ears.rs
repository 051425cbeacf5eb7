//! Frames to the limiter, and a count by source and port of those that pass the whole way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::{Namespace, PacketSocket};

use super::policies::Judged;
use super::{Cast, DENIED, Load, WORKS};
use crate::frames::flag::SYN;
use crate::frames::{IPV4, V4, frame, proto, tcp};
use crate::lab::HANGS_AFTER;
use crate::random::Random;

/// Port that no rule has.
const FREE_PORT: u16 = 9;
/// Interval between two looks.
const LOOK: Duration = Duration::from_micros(200);
/// Interval between two rounds of traffic.
const ROUND: Duration = Duration::from_millis(2);
/// Interval between two frames of the source within its limit, and the maximum number of those frames. Together they
/// keep the source within its limit, however long a run takes.
const SLOWLY: Duration = Duration::from_millis(100);
const SLOWLY_MAX: u32 = 8;
/// Number of other sources of a flood, in a round and in all.
const OTHERS: usize = 8;
const OTHERS_MAX: u64 = 4_096;

type Heard = HashMap<([u8; 4], u16), u64>;

/// Counter of the frames that pass the limiter.
pub struct Ears {
    sender: PacketSocket,
    heard: Arc<Mutex<Heard>>,
    is_over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
    sent: AtomicU32,
}

impl Ears {
    /// Listens on an interface of the server. Frames are sent by `sender`.
    pub fn open(server: &Namespace, interface: &str, sender: PacketSocket) -> Self {
        let listener = PacketSocket::listener(server, interface).expect(WORKS);
        let (heard, is_over) = (Arc::<Mutex<Heard>>::default(), Arc::<AtomicBool>::default());
        let (tally, over) = (Arc::clone(&heard), Arc::clone(&is_over));
        let listening = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // An interface that is down for a moment makes the socket fail once.
                match listener.receive_at() {
                    Ok(Some((_, frame))) => {
                        if let Some(of) = source_and_port(&frame) {
                            *lock(&tally).entry(of).or_default() += 1;
                        }
                    }
                    Ok(None) | Err(_) => thread::sleep(LOOK),
                }
            }
        });
        Self { sender, heard, is_over, listening: Some(listening), sent: AtomicU32::new(0) }
    }

    /// Sends `count` frames of a source to a port.
    pub fn send(&self, source: [u8; 4], port: u16, count: u64) {
        self.send_by(&self.sender, source, port, count);
    }

    /// Sends `count` frames of a source to a port through another interface.
    pub fn send_by(&self, sender: &PacketSocket, source: [u8; 4], port: u16, count: u64) {
        let frame = frame_of(source, port);
        (0..count).for_each(|_| sender.send(&frame).expect(WORKS));
    }

    /// Returns how many frames of a source to a port have passed since the counts were cleared.
    pub fn heard(&self, source: [u8; 4], port: u16) -> u64 {
        lock(&self.heard).get(&(source, port)).copied().unwrap_or(0)
    }

    /// Clears all counts.
    pub fn clear(&self) {
        lock(&self.heard).clear();
    }

    /// Returns an address with this first octet that no frame has used.
    fn next(&self, first: u8) -> [u8; 4] {
        let [_, second, third, fourth] = self.sent.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        [first, second, third, fourth]
    }

    /// Waits until every frame sent from here has passed or was dropped, which is when a later frame passes.
    pub fn fence(&self) {
        let behind = self.next(12);
        self.send(behind, FREE_PORT, 1);
        let since = Instant::now();
        while self.heard(behind, FREE_PORT) == 0 {
            assert!(since.elapsed() < HANGS_AFTER, "nothing comes through any more");
            thread::sleep(LOOK);
        }
    }

    /// Returns the configuration that judges frames. Panics if frames are judged by parts of two.
    pub fn judge(&self) -> Judged {
        let one = self.next(13);
        let signs = Judged::signs(one);
        for (source, port, count) in signs {
            self.send(source, port, count);
        }
        let before = signs.map(|_| 0);
        self.fence();
        let mut passed = before;
        for (passed, (source, port, _)) in passed.iter_mut().zip(signs) {
            *passed = lock(&self.heard).remove(&(source, port)).unwrap_or(0);
        }
        Judged::of(passed).unwrap_or_else(|| panic!("frames are judged by half of each: {passed:?} of {signs:?}"))
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(listening) = self.listening.take() {
            let _has_ended = listening.join();
        }
    }
}

/// Background traffic, until it is stopped.
pub struct Traffic {
    is_over: Arc<AtomicBool>,
    sending: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Sends the traffic of this load from its own thread.
    pub fn start(load: Load, cast: Cast, sender: PacketSocket) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let sending = (load != Load::Idle).then(|| thread::spawn(move || send_on(load, cast, &sender, &over)));
        Self { is_over, sending }
    }

    /// Stops the background traffic.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(sending) = self.sending.take() {
            let _has_ended = sending.join();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

fn send_on(load: Load, cast: Cast, sender: &PacketSocket, is_over: &AtomicBool) {
    let send = |source, port| sender.send(&frame_of(source, port)).expect(WORKS);
    let mut random = Random(1);
    let (mut last, mut slowly) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        send(cast.offender, 80);
        send(DENIED, 80);
        if last.elapsed() >= SLOWLY && slowly < SLOWLY_MAX {
            send(cast.within, 80);
            (last, slowly) = (Instant::now(), slowly + 1);
        }
        if load == Load::Flood {
            send(cast.banned, 82);
            send([192, 0, 2, 128 + (slowly % 64) as u8], 80);
            for _ in 0..OTHERS {
                let [.., third, fourth] = random.below(OTHERS_MAX).to_be_bytes();
                send([11, 64, third, fourth], random.of(&[80, 81, 82, 443]));
            }
        }
        thread::sleep(ROUND);
    }
}

fn frame_of(source: [u8; 4], port: u16) -> Vec<u8> {
    frame(IPV4, V4 { source, ..V4::of(proto::TCP) }.around(tcp(port, SYN)))
}

/// Returns the source and destination port of a frame that was sent here.
fn source_and_port(frame: &[u8]) -> Option<([u8; 4], u16)> {
    let source = frame.get(26..30)?.try_into().ok()?;
    let port = frame.get(36..38)?.try_into().ok()?;
    (frame.get(12..14)? == [8, 0]).then_some((source, u16::from_be_bytes(port)))
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
