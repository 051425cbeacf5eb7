//! Events and steps that the program sends to the daemon.

use super::ChargeOrder;
use crate::events::Kind;

/// Event of a source that begins to be refused or banned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Time of the event by the coarse clock, in nanoseconds.
    pub time_ns: u64,
    /// Prefix of the source, as words in network order. IPv4 is in the lower half of the first word.
    pub prefix: [u64; 2],
    /// Value of [`super::Rule::name`].
    pub rule: u64,
    /// Amount in the limit's window. For a leaky bucket, the nanoseconds until it is empty.
    pub used: u64,
    /// End of a ban, in nanoseconds.
    pub until_ns: u64,
    /// Value of [`super::Limit::slot`].
    pub slot: u32,
    /// Number of bans in a row before this one.
    pub step: u32,
    /// Code of a [`Kind`].
    pub kind: u8,
    /// Code of the map that holds the source, as [`ChargeOrder::family`].
    pub family: u8,
    /// Code of a [`crate::verification::Side`]: one of the limit's windows.
    pub side: u8,
    /// Padding, always 0.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<Event>() == 64);
const _: () = assert!(ChargeOrder::V6_WIDE <= u8::MAX as u32);

/// Message that the admissions of a source on this host have passed a step, see [`crate::window::Parts::step_bits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Prefix of the source, as in [`Event`].
    pub prefix: [u64; 2],
    /// Number of the bucket that was charged.
    pub bucket: u64,
    /// Value of [`super::Limit::slot`].
    pub slot: u32,
    /// Code of the map that holds the source, as in [`Event`].
    pub family: u8,
    /// Code of the side, as in [`Event`].
    pub side: u8,
    /// Padding, always 0.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Step>() == 32);

/// Bytes of [`super::map::STEPS`]: a power of two, in whole pages. The ring holds 26214 steps, with 8 bytes before
/// each.
pub const STEPS_BYTES: u32 = 1 << 20;

/// Bytes of [`super::map::EVENTS`]: a power of two, in whole pages.
pub const EVENTS_BYTES: u32 = 1 << 20;

/// Number of events that the ring holds: 14563. The kernel puts 8 bytes before each.
pub const EVENTS_MAX: usize = EVENTS_BYTES as usize / (size_of::<Event>() + 8);

/// Bytes of [`super::map::EVENTS`] that refusal events may fill. The rest is reserved for bans.
pub const EVENTS_OF_REFUSALS_BYTES: u32 = EVENTS_BYTES / 8 * 7;

/// Number of cells of [`super::map::EVENT_TALLIES`]: one for each [`Kind`] of packets, then one for each kind of
/// orders. Packets may interrupt orders.
pub const EVENT_TALLIES: u32 = 2 * Kind::COUNT;
