//! Wrappers that make layout types usable with aya.

use aya::Pod;
use ratelimit_common::admission::Admission;
use ratelimit_common::ban::Ban;
use ratelimit_common::drop_cache::CacheSet;
use ratelimit_common::events::EventTally;
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{
    Active, ChargeOrder, Config, Counters, Event, PortTable, Prefix, PrefixFilter, RuleSet, SocketFields, Source,
    SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, Step,
};
use ratelimit_common::multiplicity::Multiplicity;

use super::earlier::v12;

/// A layout type that is valid for any bytes and has no padding.
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
    Event,
    EventTally,
    Flow,
    CacheSet,
    Multiplicity,
    PortTable,
    Prefix,
    PrefixFilter,
    RuleSet,
    SocketFields,
    Source,
    SourceKeyV4,
    SourceKeyV6,
    SourceKeyV6Wide,
    Step,
    v12::Config
);

/// Wraps a boxed table for aya without a copy on the stack.
pub(super) fn plain_box<T>(table: Box<T>) -> Box<Plain<T>> {
    let raw = Box::into_raw(table).cast::<Plain<T>>();
    // SAFETY: `Plain` is transparent, so the allocation has its layout. `into_raw` has just given it to us.
    unsafe { Box::from_raw(raw) }
}
