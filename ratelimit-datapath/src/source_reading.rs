//! Reading of one window of one source.

use ipnet::IpNet;
use ratelimit_common::layout::Source;
use ratelimit_common::time::Nanos;

/// One window of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReading {
    /// Address with its full length, or prefix that is one client.
    pub prefix: IpNet,
    /// Slot of the limit that the window belongs to, see [`ratelimit_policy::desired::Limit::slot`].
    pub slot: u32,
    /// True if the window counts verified traffic (see [`ratelimit_common::verification`]).
    pub is_verified: bool,
    /// Words of the window. If it was evicted, those of an unknown source.
    pub window: Source,
    /// Expiry of the drop cache's refusal of this source for this limit, on the datapath's clock.
    pub refused_until: Option<Nanos>,
    /// Number of refused packets that only repeat a request refused earlier by the window.
    pub repeated: u64,
}

/// A source, and whether its windows of verified traffic are meant. Both kinds of windows are limited separately.
pub type Whose = (IpNet, bool);

impl SourceReading {
    /// Returns the source and kind of the window.
    pub const fn whose(&self) -> Whose {
        (self.prefix, self.is_verified)
    }
}
