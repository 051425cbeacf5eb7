//! Charges that the daemon makes without a packet.

/// Order of the daemon for [`super::CHARGE_PROGRAM`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ChargeOrder {
    /// Prefix of the source in network order. IPv4 is in the first 4 bytes.
    pub prefix: [[u8; 8]; 2],
    /// Amount of the charge in the limit's unit. For other hosts' amounts: units of
    /// [`crate::window::Parts::unit_bits`].
    pub amount: u64,
    /// Bucket in which the other hosts admitted the amount; only for their amounts.
    pub bucket: u64,
    /// Code of the map that holds the source: [`ChargeOrder::V4`], [`ChargeOrder::V6`] or [`ChargeOrder::V6_WIDE`].
    pub family: u32,
    /// Action: [`ChargeOrder::CHARGE`] or a later constant.
    pub step: u32,
}

const _: () = assert!(size_of::<ChargeOrder>() == 40);

impl ChargeOrder {
    /// Code of [`super::map::SOURCES_V4`].
    pub const V4: u32 = 0;
    /// Code of [`super::map::SOURCES_V6`].
    pub const V6: u32 = 1;
    /// Code of [`super::map::SOURCES_V6_WIDE`].
    pub const V6_WIDE: u32 = 2;
    /// Charges the limit.
    pub const CHARGE: u32 = 0;
    /// Bans the source by the rule.
    pub const BAN: u32 = 1;
    /// Charges the limit's window of verified traffic.
    pub const CHARGE_VERIFIED: u32 = 2;
    /// Charges the limit's window of evidence for a ban.
    pub const CHARGE_EVIDENCE: u32 = 3;
    /// Writes the amount that other hosts admitted, in the limit's own window.
    pub const OTHERS: u32 = 4;
    /// Writes the amount that other hosts admitted, in the limit's window of verified traffic.
    pub const OTHERS_VERIFIED: u32 = 5;
}
