//! Layout 10: like layout 9, but the caches have other names. Caches are not carried over.

use super::{Layout, v9};

pub(super) const LAYOUT: Layout = Layout { version: 10, ..v9::LAYOUT };
