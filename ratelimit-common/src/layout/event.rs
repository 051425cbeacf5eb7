//! What begins, as the program tells the daemon.

use super::ChargeOrder;
use crate::events::Kind;

/// A source begins to be refused or banned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When, by the coarse clock.
    pub time_ns: u64,
    /// The source's prefix as words in network order: IPv4 in the lower half of the first.
    pub prefix: [u64; 2],
    /// [`super::Rule::name`].
    pub rule: u64,
    /// What the limit's window holds; of a leaky bucket, nanoseconds until it is empty.
    pub used: u64,
    /// When a ban ends.
    pub until_ns: u64,
    /// [`super::Limit::slot`].
    pub slot: u32,
    /// How many bans in a row came before it.
    pub step: u32,
    /// A [`Kind`].
    pub kind: u8,
    /// Which map the source is in, as [`ChargeOrder::family`].
    pub family: u8,
    /// A [`crate::verification::Side`]: which of the limit's windows.
    pub side: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<Event>() == 64);
const _: () = assert!(ChargeOrder::V6_WIDE <= u8::MAX as u32);

/// What a host has admitted of a source has passed a step, see [`crate::window::Parts::step_bits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// The source's prefix, as in [`Event`].
    pub prefix: [u64; 2],
    /// In which bucket.
    pub bucket: u64,
    /// [`super::Limit::slot`].
    pub slot: u32,
    /// As in [`Event`].
    pub family: u8,
    /// As in [`Event`].
    pub side: u8,
    /// Zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Step>() == 32);

/// Bytes of [`super::map::STEPS`]: a power of two, of pages. // 26214 steps, with 8 bytes before each
pub const STEPS_BYTES: u32 = 1 << 20;

/// Bytes of [`super::map::EVENTS`]: a power of two, of pages.
pub const EVENTS_BYTES: u32 = 1 << 20;

/// Events that it holds: the kernel puts 8 bytes before each. // 14563
pub const EVENTS_MAX: usize = EVENTS_BYTES as usize / (size_of::<Event>() + 8);

/// What of it sources that begin to be refused can fill: the rest is for bans.
pub const EVENTS_OF_REFUSALS_BYTES: u32 = EVENTS_BYTES / 8 * 7;

/// Cells of [`super::map::EVENT_TALLIES`]: of packets by [`Kind`], and then of orders, which packets may interrupt.
pub const EVENT_TALLIES: u32 = 2 * Kind::COUNT;
