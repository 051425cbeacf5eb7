//! One window of one source, as it is read.

use ipnet::IpNet;
use ratelimit_common::layout::Source;
use ratelimit_common::time::Nanos;

/// One window of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceReading {
    /// The source: an address with its full length, or the prefix that is one client.
    pub prefix: IpNet,
    /// Which limit's window, see [`ratelimit_policy::desired::Limit::slot`].
    pub slot: u32,
    /// Whether it is the limit's window of verified traffic (see [`ratelimit_common::verification`]).
    pub is_verified: bool,
    /// Its words; as of an unknown source where it was evicted.
    pub window: Source,
    /// Until when the drop cache refuses this source for this limit, by the datapath's clock.
    pub refused_until: Option<Nanos>,
    /// Refused packets that only repeat a request that the window had refused before.
    pub repeated: u64,
}

/// A source, and whether it is its windows of verified traffic: each is held to the limits for itself.
pub type Whose = (IpNet, bool);

impl SourceReading {
    /// Whose window it is.
    pub const fn whose(&self) -> Whose {
        (self.prefix, self.is_verified)
    }
}
