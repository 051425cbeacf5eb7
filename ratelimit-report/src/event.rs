//! Event in the form that `events --json`, the web page and the history share.
//!
//! Field names are those of schema 1: fields are added, never renamed. The module knows no datapath, no log and no
//! clock.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::SCHEMA;
use ratelimit_policy::labels;

/// Event that concerns a source, or an action of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Time of the event.
    pub time: Timestamp,
    /// Kind of the event.
    pub kind: EventKind,
    /// Address, or the prefix if it counts as one client; none if the event concerns no source.
    pub source: Option<String>,
    /// Name of the rule.
    pub rule: Option<String>,
    /// Limit in words, as in `1000/5m requests`.
    pub limit: Option<String>,
    /// Label of the reason, as in `stats`, `check` and metrics.
    pub reason: Option<String>,
    /// Amount used of the limit, in its unit.
    pub used: Option<u64>,
    /// Expiry; none if there is no end or no duration.
    pub until: Option<Timestamp>,
    /// Author, as in `root (alice)`; none if a rule acted.
    pub by: Option<String>,
    /// Description of the event in words, on one line.
    pub detail: String,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A rule begins to refuse a source.
    Refused,
    /// A rule bans a source.
    Ban,
    /// A ban expires, or is lifted.
    BanEnd,
    /// A rule in dry run, or a shadow limit, would begin to refuse a source.
    WouldRefuse,
    /// A rule in dry run would ban a source.
    WouldBan,
    /// A command allows a prefix, or the permission ends.
    Allow,
    /// A command denies a prefix, or the denial ends.
    Deny,
    /// A command unblocks a prefix.
    Unblock,
    /// A command removes a permission of `allow`.
    Unallow,
    /// A command resets a source's counters.
    Reset,
    /// An application charges a source.
    Charge,
    /// More new sources arrive than can be tracked or are admitted, or this state ends.
    Overload,
    /// A rule falls back to dry run, or this state ends.
    Breaker,
    /// A file is put in force for a while, kept, or rolled back.
    Trial,
    /// A configuration is applied or refused, or the mode changes.
    Reload,
    /// An interface becomes protected.
    Attach,
    /// An interface is no longer protected.
    Detach,
    /// The connection to the fleet is made or lost.
    Fleet,
}

labels!(pub EventKind {
    Refused => "refused", Ban => "ban", BanEnd => "ban_end", WouldRefuse => "would_refuse", WouldBan => "would_ban",
    Allow => "allow", Deny => "deny", Unblock => "unblock", Unallow => "unallow", Reset => "reset",
    Charge => "charge", Overload => "overload", Breaker => "breaker", Trial => "trial", Reload => "reload",
    Attach => "attach", Detach => "detach", Fleet => "fleet",
});

impl EventKind {
    /// Returns true if a command, an application or the daemon caused the event, and false if a rule did.
    pub const fn is_act(self) -> bool {
        match self {
            Self::Refused | Self::Ban | Self::BanEnd | Self::WouldRefuse | Self::WouldBan => false,
            Self::Allow
            | Self::Deny
            | Self::Unblock
            | Self::Unallow
            | Self::Reset
            | Self::Charge
            | Self::Overload
            | Self::Breaker
            | Self::Trial
            | Self::Reload
            | Self::Attach
            | Self::Detach
            | Self::Fleet => true,
        }
    }
}

impl Event {
    /// Creates an event of a kind with only a description.
    pub const fn new(time: Timestamp, kind: EventKind, detail: String) -> Self {
        Self {
            schema: SCHEMA,
            time,
            kind,
            source: None,
            rule: None,
            limit: None,
            reason: None,
            used: None,
            until: None,
            by: None,
            detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name_in_json_and_on_the_command_line() {
        for kind in EventKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.label());
        }
    }

    #[test]
    fn an_event_has_every_field_also_where_it_is_null() {
        let event = Event::new(Timestamp::UNIX_EPOCH, EventKind::Reload, "reloaded".to_owned());
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"schema":1,"time":"1970-01-01T00:00:00Z","kind":"reload","source":null,"rule":null,"limit":null,"reason":null,"used":null,"until":null,"by":null,"detail":"reloaded"}"#
        );
    }
}
