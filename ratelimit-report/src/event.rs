//! Something that has happened, as `events --json`, the page and the history have it: one shape for all of them.
//!
//! Field names are those of schema 1: fields are added, never renamed. Knows no datapath, no log and no clock.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::SCHEMA;
use ratelimit_policy::labels;

/// Something that has happened to a source, or that a user did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When.
    pub time: Timestamp,
    /// What sort of event.
    pub kind: EventKind,
    /// The address, or the prefix where one is one client; none where it is about no source.
    pub source: Option<String>,
    /// The rule's name.
    pub rule: Option<String>,
    /// The limit, as in `1000/5m requests`.
    pub limit: Option<String>,
    /// The label of the reason that `stats`, `check` and metrics have.
    pub reason: Option<String>,
    /// Used of the limit, in its unit.
    pub used: Option<u64>,
    /// When it ends; none where it has no end, or no length.
    pub until: Option<Timestamp>,
    /// Who did it, as in `root (alice)`; none where a rule did.
    pub by: Option<String>,
    /// It in words, on one line.
    pub detail: String,
}

/// What sort of event.
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
    /// A command allows a prefix, or that ends.
    Allow,
    /// A command denies a prefix, or that ends.
    Deny,
    /// A command frees a prefix.
    Unblock,
    /// A command ends what `allow` has allowed.
    Unallow,
    /// A command resets a source's counters.
    Reset,
    /// An application charges a source.
    Charge,
    /// More new sources come than can be remembered or are admitted, or that ends.
    #[serde(rename = "pressure")]
    Overload,
    /// A rule falls back to dry run, or that ends.
    Breaker,
    /// A file is put in force for a while, kept, or rolled back.
    Trial,
    /// A configuration is carried out, or refused; or the mode is changed.
    Reload,
    /// An interface is protected.
    Attach,
    /// An interface is not protected any more.
    Detach,
    /// The fleet is connected, or lost.
    Fleet,
}

labels!(pub EventKind {
    Refused => "refused", Ban => "ban", BanEnd => "ban_end", WouldRefuse => "would_refuse", WouldBan => "would_ban",
    Allow => "allow", Deny => "deny", Unblock => "unblock", Unallow => "unallow", Reset => "reset",
    Charge => "charge", Overload => "pressure", Breaker => "breaker", Trial => "trial", Reload => "reload",
    Attach => "attach", Detach => "detach", Fleet => "fleet",
});

impl EventKind {
    /// Whether a command, an application or the daemon did it; else a rule does it to a source, by itself.
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
    /// Of a kind, with nothing but words.
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
