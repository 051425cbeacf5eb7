//! Layout 9: like layout 8, with a separate hash key for places in tables.

use ratelimit_common::hash::HashKey;

use super::facts::{Facts, Rest};
use super::v8::Rule;
use super::{Layout, SINCE_7, SINCE_8};

pub(super) const LAYOUT: Layout =
    Layout { version: 9, same: &[SINCE_7, SINCE_8], windows: None, counters: None, config: super::read::<Config> };

/// A configuration of layouts 9 to 11.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::kernel) struct Config {
    wall_offset_ns: u64,
    seed: HashKey,
    places: u64,
    rest: Rest<Rule>,
}

const _: () = assert!(size_of::<Config>() == 8 + 16 + 8 + size_of::<Rest<Rule>>());

impl From<Config> for Facts {
    fn from(of: Config) -> Self {
        of.rest.facts(of.wall_offset_ns, Some(of.seed))
    }
}
