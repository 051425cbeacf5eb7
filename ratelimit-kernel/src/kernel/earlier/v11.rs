//! Layout 11: like layout 10, with events. Window cells had no part for other hosts' admissions: the whole count was
//! the host's own, as today for a limit that no fleet shares.

use super::{Layout, SINCE_7, SINCE_8, SINCE_11, v10};

pub(super) const LAYOUT: Layout = Layout { version: 11, same: &[SINCE_7, SINCE_8, SINCE_11], ..v10::LAYOUT };
