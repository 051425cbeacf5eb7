//! Saved grants of commands, which survive the daemon.

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::grants::Grants;
use super::store::Store;
use ratelimit_policy::access::{By, ENTRIES_MAX, Entry, KEPT_FOR_ALLOW};
use ratelimit_policy::config::syntax::printable;
use ratelimit_policy::desired::Grant;
use ratelimit_report::snapshot::Clocks;

/// Name of the state file.
const FILE: &str = "access.json";

/// Contents of the state file [`FILE`].
#[derive(Serialize, Deserialize)]
struct Kept {
    entries: Vec<KeptEntry>,
}

#[derive(Serialize, Deserialize)]
struct KeptEntry {
    prefix: IpNet,
    grant: KeptGrant,
    user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    reason: Option<String>,
    forced: bool,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptGrant {
    Exempt,
    Denied,
}

impl Grants {
    /// Restores the grants that commands entered in earlier runs.
    pub(super) fn recall(&mut self, store: &Store, clocks: Clocks) {
        let Some(kept) = store.load::<Kept>(FILE) else { return };
        for entry in kept.entries {
            let entry = entry.entered(clocks);
            if entry.holds(clocks.now) && !self.ledger.restore(entry) {
                tracing::warn!("more than {} entries were kept: the rest is left out", ENTRIES_MAX + KEPT_FOR_ALLOW);
                break;
            }
        }
    }

    /// Saves the grants of commands for later runs.
    pub(super) fn keep(&self, store: &Store, clocks: Clocks) -> std::io::Result<()> {
        let entries = self.ledger.entries().map(|entry| KeptEntry::of(entry, clocks)).collect();
        store.save(FILE, Kept { entries })
    }
}

impl KeptEntry {
    fn entered(self, clocks: Clocks) -> Entry {
        Entry {
            prefix: self.prefix.trunc(),
            grant: match self.grant {
                KeptGrant::Exempt => Grant::Exempt,
                KeptGrant::Denied => Grant::Denied,
            },
            // Typed text contains no terminal escapes, but an edited file may.
            by: By::Command { user: printable(&self.user), is_forced: self.forced },
            owner: self.owner.map(|owner| printable(&owner)),
            reason: self.reason.map(|reason| printable(&reason)),
            since: self.since,
            until: self.until.map(|until| clocks.datapath_of(until)),
        }
    }

    fn of(entry: &Entry, clocks: Clocks) -> Self {
        let (user, forced) = match &entry.by {
            By::Command { user, is_forced } => (user.clone(), *is_forced),
            By::Configuration | By::Safety => (String::new(), false),
        };
        Self {
            prefix: entry.prefix,
            grant: match entry.grant {
                Grant::Exempt => KeptGrant::Exempt,
                Grant::Denied => KeptGrant::Denied,
            },
            user,
            owner: entry.owner.clone(),
            reason: entry.reason.clone(),
            forced,
            since: entry.since,
            until: entry.until.map(|until| clocks.wall_of(until)),
        }
    }
}
