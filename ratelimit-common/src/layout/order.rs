//! What the daemon has charged without a packet.

/// What [`super::CHARGE_PROGRAM`] is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ChargeOrder {
    /// The source's prefix in network order: IPv4 in the first 4 bytes.
    pub prefix: [[u8; 8]; 2],
    /// How much, in the limit's unit. Of others: units of [`crate::window::Parts::unit_bits`].
    pub amount: u64,
    /// Of others: the bucket that they admitted it in.
    pub bucket: u64,
    /// Which map the source is in: [`ChargeOrder::V4`], [`ChargeOrder::V6`] or [`ChargeOrder::V6_WIDE`].
    pub family: u32,
    /// [`ChargeOrder::CHARGE`] or another of these.
    pub step: u32,
}

const _: () = assert!(size_of::<ChargeOrder>() == 40);

impl ChargeOrder {
    /// [`map::SOURCES_V4`].
    pub const V4: u32 = 0;
    /// [`map::SOURCES_V6`].
    pub const V6: u32 = 1;
    /// [`map::SOURCES_V6_WIDE`].
    pub const V6_WIDE: u32 = 2;
    /// Charge the limit.
    pub const CHARGE: u32 = 0;
    /// Ban by the rule.
    pub const BAN: u32 = 1;
    /// Charge the limit's window of verified traffic.
    pub const CHARGE_VERIFIED: u32 = 2;
    /// Charge the limit's window of the evidence for a ban.
    pub const CHARGE_EVIDENCE: u32 = 3;
    /// Write what other hosts admitted, in the limit's own window.
    pub const OTHERS: u32 = 4;
    /// The same in its window of verified traffic.
    pub const OTHERS_VERIFIED: u32 = 5;
}
