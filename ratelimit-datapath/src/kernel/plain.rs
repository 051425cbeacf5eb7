//! Layout types as aya wants to see them.

use aya::Pod;
use ratelimit_common::admission::Admission;
use ratelimit_common::ban::Ban;
use ratelimit_common::drop_cache::CacheSet;
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{
    Active, ChargeOrder, Config, Counters, PortTable, Prefix, RuleSet, SocketFields, Source, SourceKeyV4, SourceKeyV6,
    SourceKeyV6Wide,
};

/// A layout type whose bytes are all there is to it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Plain<T>(pub(super) T);

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: a `repr(C)` struct of integers and arrays of them, without padding (its size is asserted in
            // `layout`), and so valid for any bytes.
            unsafe impl Pod for Plain<$type> {}
        )*
    };
}

plain!(
    Active,
    Admission,
    Ban,
    ChargeOrder,
    Config,
    Counters,
    Flow,
    CacheSet,
    PortTable,
    Prefix,
    RuleSet,
    SocketFields,
    Source,
    SourceKeyV4,
    SourceKeyV6,
    SourceKeyV6Wide
);
