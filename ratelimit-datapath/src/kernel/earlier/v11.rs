//! Layout 11: as 10, with events. Cells of a window had no part for what other hosts admitted: all of the count was the
//! host's own, as it is today of a limit that no fleet shares.

use super::{Layout, SINCE_7, SINCE_8, SINCE_11, v10};

pub(super) const LAYOUT: Layout = Layout { version: 11, same: &[SINCE_7, SINCE_8, SINCE_11], ..v10::LAYOUT };
