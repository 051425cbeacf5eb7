//! Lines that wait before they are reconciled.
//!
//! The kernel counts some requests only when their client's next segment arrives, and takes others back then. So the
//! lines of a source within its limits wait, and the counts that they are compared with are final.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_policy::desired::AccessLog;

use super::batch::{Counted, Requests};

/// Maximum number of sources with waiting lines, for each rule and log. A source takes about 200 bytes.
const SOURCES_MAX: usize = 1 << 16;

/// Lines of one source that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Lines that are not judged yet, because the kernel had counted nothing of their source.
    pub(super) unjudged: Requests,
    /// Lines that may charge. Limits with conditions are charged for them already.
    pub(super) judged: Requests,
}

/// Lines that wait, by log and rule name.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    parts: BTreeMap<(AccessLog, String), Part>,
}

/// Lines of one log under one rule.
#[derive(Debug)]
pub(super) struct Part {
    /// Selection of lines for each count of the lines.
    pub(super) counts: Arc<[Counted]>,
    pub(super) lines: BTreeMap<IpNet, Lines>,
}

impl Part {
    /// Returns true if no further source's lines can wait.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= SOURCES_MAX
    }
}

impl Waiting {
    /// Returns the part of a log and rule, created with these counts if missing.
    pub(super) fn part(&mut self, log: &AccessLog, rule: &str, counts: &Arc<[Counted]>) -> &mut Part {
        let part = self.parts.entry((log.clone(), rule.to_owned()));
        part.or_insert_with(|| Part { counts: counts.clone(), lines: BTreeMap::new() })
    }

    /// Removes and returns all lines.
    pub(super) fn drain(&mut self) -> BTreeMap<(AccessLog, String), Part> {
        std::mem::take(&mut self.parts)
    }

    /// Removes clients after their windows were erased.
    pub(super) fn forget(&mut self, clients: &[IpNet]) {
        for part in self.parts.values_mut() {
            for client in clients {
                part.lines.remove(client);
            }
        }
    }
}
