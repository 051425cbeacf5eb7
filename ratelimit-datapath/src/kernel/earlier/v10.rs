//! Layout 10: as 9; the caches, which are not carried over, have other names.

use super::{Layout, v9};

pub(super) const LAYOUT: Layout = Layout { version: 10, ..v9::LAYOUT };
