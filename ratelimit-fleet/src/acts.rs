//! Bans, grants and resets that apply to all hosts. Pure.
//!
//! An act is encrypted: it names an address, and only hosts with the fleet's secret can read or create one. Each host
//! publishes its own acts at once and again after [`AGAIN_AFTER`]. While an act is in force, the host repeats it every
//! hour, in case the store lost its data. A host ignores an act that it already received, or that is older than the
//! newest act of the same kind. After a restart, a host receives its own earlier acts like any other act, so lifted
//! bans stay lifted.

use std::collections::HashMap;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use crate::core::after;
use crate::names::{HostId, Names};

/// Maximum number of remembered acts, separately for this host's own and for received ones.
pub const ACTS_MAX: usize = 10_000;

/// Maximum number of acts published, and received, in one round.
pub const ROUND_MAX: usize = 256;

/// Delay after which a new act is published a second time.
pub const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Interval at which an act is published after the second time.
pub const REPEATED_EACH: Duration = Duration::from_secs(3600);

/// Time for which the store keeps an act, and hosts accept it, after its last publication.
pub const KEPT: Duration = Duration::from_secs(86_400);

/// Maximum age of a reset. An older reset would erase newer counts.
pub const RESET_FOR: Duration = Duration::from_secs(60);

const CONTEXT: &str = "act";

/// Operation that all hosts carry out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A rule banned the source because of its verified traffic.
    Ban {
        /// Name of the rule.
        rule: String,
        /// Expiry in nanoseconds since 1970.
        until_ns: u64,
    },
    /// The bans of all sources within the prefix are lifted.
    Unblock {
        /// User who gave the command.
        by: String,
    },
    /// The counters of the source are reset.
    Reset {
        /// User who gave the command.
        by: String,
    },
    /// The prefix is allowed.
    Allow {
        /// Expiry in nanoseconds since 1970. None is permanent.
        until_ns: Option<u64>,
        /// Reason that the user gave.
        reason: Option<String>,
        /// User who gave the command.
        by: String,
    },
    /// The prefix is denied.
    Deny {
        /// Expiry in nanoseconds since 1970. None is permanent.
        until_ns: Option<u64>,
        /// Reason that the user gave.
        reason: Option<String>,
        /// User who gave the command.
        by: String,
    },
    /// Allow entries within the prefix are removed.
    Unallow {
        /// User who gave the command.
        by: String,
    },
    /// Deny entries within the prefix are removed.
    Undeny {
        /// User who gave the command.
        by: String,
    },
}

/// One act as hosts exchange it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// Time of the act in nanoseconds since 1970, by the clock of its host.
    pub at_ns: u64,
    /// Time of the last publication in nanoseconds since 1970, by the clock of its host. Without the secret, a replayed
    /// act keeps this time and expires.
    pub said_ns: u64,
    /// Id of the host that began the act.
    pub host: [u8; 8],
    /// Source or prefix that the act concerns.
    pub prefix: IpNet,
    /// Operation to carry out on the prefix.
    #[serde(flatten)]
    pub what: What,
}

/// Kind of act. For each prefix and kind, only the newest act counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Ban(String),
    Unblock,
    Reset,
    Grant,
}

/// Act that this host began and has to publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Number of the act. Later acts of the same process have higher numbers.
    pub number: u64,
    /// Time of the act in nanoseconds since 1970.
    pub at_ns: u64,
    /// Source or prefix that the act concerns.
    pub prefix: IpNet,
    /// Operation to carry out on the prefix.
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug)]
struct Own {
    number: u64,
    act: Act,
    says_at: Nanos,
    said: u32,
}

/// Acts that this host publishes and acts that it received.
#[derive(Debug, Default)]
pub struct Ledger {
    newest: HashMap<(IpNet, Kind), u64>,
    own: HashMap<(IpNet, Kind), Own>,
    lost: u64,
}

impl What {
    fn kind(&self) -> Kind {
        match self {
            Self::Ban { rule, .. } => Kind::Ban(rule.clone()),
            Self::Unblock { .. } => Kind::Unblock,
            Self::Reset { .. } => Kind::Reset,
            Self::Allow { .. } | Self::Deny { .. } | Self::Unallow { .. } | Self::Undeny { .. } => Kind::Grant,
        }
    }

    /// Returns the time at which the act has no further effect.
    fn ends_at(&self, at_ns: u64) -> Nanos {
        let at = Nanos(at_ns);
        match self {
            Self::Ban { until_ns, .. } => Nanos(*until_ns),
            Self::Allow { until_ns, .. } | Self::Deny { until_ns, .. } => Nanos(until_ns.unwrap_or(u64::MAX)),
            Self::Reset { .. } => after(at, RESET_FOR),
            // Kept while an act that this one revokes may still be received.
            Self::Unblock { .. } | Self::Unallow { .. } | Self::Undeny { .. } => after(at, KEPT),
        }
    }

    /// Returns true if the act needs no action on a host that receives it. A revocation is always carried out, because
    /// the act that it revokes may have arrived first.
    fn has_ended(&self, at_ns: u64, now: Nanos) -> bool {
        match self {
            Self::Unblock { .. } | Self::Unallow { .. } | Self::Undeny { .. } => false,
            Self::Ban { .. } | Self::Allow { .. } | Self::Deny { .. } | Self::Reset { .. } => {
                self.ends_at(at_ns) <= now
            }
        }
    }
}

impl Act {
    /// Encrypts the act for the store. `nonce` must be random.
    pub fn seal(&self, names: &Names, nonce: [u8; 12]) -> Vec<u8> {
        names.seal(CONTEXT, &serde_json::to_vec(self).unwrap_or_default(), nonce)
    }

    /// Decrypts an act that a host of this fleet encrypted. None for anything else.
    pub fn open(names: &Names, sealed: &[u8]) -> Option<Self> {
        serde_json::from_slice(&names.open(CONTEXT, sealed)?).ok()
    }
}

impl Ledger {
    /// Records an act of this host for publication. Skips an expired act, and an act older than [`AGAIN_AFTER`] if a
    /// newer one of its kind exists, as after a restart. Without room the act is counted as lost.
    pub fn begin(&mut self, host: HostId, Begun { number, at_ns, prefix, what }: Begun, now: Nanos) {
        let key = (prefix, what.kind());
        let is_overtaken = self.newest.get(&key).is_some_and(|newest| *newest > at_ns);
        if (is_overtaken && after(Nanos(at_ns), AGAIN_AFTER) < now) || what.ends_at(at_ns) <= now {
            return;
        }
        // Bans cannot fill the table: acts of users have another `ACTS_MAX` entries.
        let most = if matches!(what, What::Ban { .. }) { ACTS_MAX } else { 2 * ACTS_MAX };
        if self.own.len() >= most && !self.own.contains_key(&key) {
            self.lost += 1;
            return;
        }
        // Acts with equal times still need an order.
        let at_ns = at_ns.max(self.newest.get(&key).map_or(0, |newest| newest + 1));
        let act = Act { at_ns, said_ns: at_ns, host: host.0, prefix, what };
        self.remember(&act);
        self.lift(&act);
        self.own.insert(key, Own { number, act, says_at: now, said: 0 });
    }

    /// Returns the acts to publish now, at most [`ROUND_MAX`]. Acts of users come before bans, each oldest first. Only
    /// [`Ledger::said`] marks them as published.
    pub fn due(&mut self, now: Nanos) -> Vec<Act> {
        self.own.retain(|_, own| own.act.what.ends_at(own.act.at_ns) > now);
        let mut due: Vec<_> = self.own.values().filter(|own| own.says_at <= now).collect();
        due.sort_unstable_by_key(|own| (matches!(own.act.what, What::Ban { .. }), own.says_at, own.act.at_ns));
        due.into_iter().take(ROUND_MAX).map(|own| Act { said_ns: now.0, ..own.act.clone() }).collect()
    }

    /// Records that the store accepted these acts.
    pub fn said(&mut self, acts: &[Act], now: Nanos) {
        for act in acts {
            if let Some(own) = self.own.get_mut(&(act.prefix, act.what.kind())).filter(|own| own.act.at_ns == act.at_ns)
            {
                own.said += 1;
                own.says_at = after(now, if own.said == 1 { AGAIN_AFTER } else { REPEATED_EACH });
            }
        }
    }

    /// Returns the numbers of user acts of this host that the store has not accepted yet.
    pub fn unsaid(&self) -> Vec<u64> {
        let is_unsaid = |own: &&Own| own.said == 0 && !matches!(own.act.what, What::Ban { .. });
        self.own.values().filter(is_unsaid).map(|own| own.number).collect()
    }

    /// Records that the store lost its data. All acts in force are published again.
    pub fn store_lost(&mut self, now: Nanos) {
        self.own.values_mut().for_each(|own| own.says_at = now);
    }

    /// Returns true if this host has to carry out a received act: it has not ended and is newer than any act of its
    /// kind and prefix. Records the act then.
    pub fn hear(&mut self, act: &Act, now: Nanos) -> bool {
        let key = (act.prefix, act.what.kind());
        let is_new = self.newest.get(&key).is_none_or(|newest| *newest < act.at_ns);
        // An act from a clock that is ahead by more would hide later acts.
        let is_later = act.at_ns > after(now, REPEATED_EACH).0;
        let is_old = after(Nanos(act.said_ns), KEPT) <= now;
        if !is_new || is_later || is_old || act.what.has_ended(act.at_ns, now) {
            return false;
        }
        // A ban that was lifted later is not started again.
        let lifted = self.newest.iter().any(|((prefix, kind), at_ns)| {
            *kind == Kind::Unblock && *at_ns >= act.at_ns && prefix.contains(&act.prefix)
        });
        if matches!(act.what, What::Ban { .. }) && lifted {
            return false;
        }
        self.remember(act);
        // The received act replaces this host's own earlier act of the same kind.
        self.own.remove(&key);
        self.lift(act);
        true
    }

    /// Returns the number of acts that were not published because the table was full.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Stops publishing bans that the act lifts.
    fn lift(&mut self, act: &Act) {
        if matches!(act.what, What::Unblock { .. }) {
            self.own.retain(|(prefix, kind), _| !(matches!(kind, Kind::Ban(_)) && act.prefix.contains(prefix)));
        }
    }

    fn remember(&mut self, act: &Act) {
        if self.newest.len() >= ACTS_MAX {
            let mut times: Vec<u64> = self.newest.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(ACTS_MAX / 2);
            let middle = *middle;
            self.newest.retain(|_, at_ns| *at_ns > middle);
        }
        self.newest.insert((act.prefix, act.what.kind()), act.at_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_common::time::SECOND_NS;

    const ME: HostId = HostId([1; 8]);
    const OTHER: HostId = HostId([2; 8]);
    const NOW: Nanos = Nanos(1_750_000_000 * SECOND_NS);

    fn prefix(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn later(seconds: u64) -> Nanos {
        Nanos(NOW.0 + seconds * SECOND_NS)
    }

    fn ban(seconds: u64) -> What {
        What::Ban { rule: "web".to_owned(), until_ns: later(seconds).0 }
    }

    fn unblock() -> What {
        What::Unblock { by: "root".to_owned() }
    }

    fn reset() -> What {
        What::Reset { by: "root".to_owned() }
    }

    fn undeny() -> What {
        What::Undeny { by: "root".to_owned() }
    }

    fn begin(ledger: &mut Ledger, prefix: IpNet, what: What, now: Nanos) {
        ledger.begin(ME, Begun { number: now.0, at_ns: now.0, prefix, what }, now);
    }

    fn act(what: What, at: Nanos) -> Act {
        Act { at_ns: at.0, said_ns: at.0, host: OTHER.0, prefix: prefix("192.0.2.1/32"), what }
    }

    #[test]
    fn an_act_is_said_at_once_soon_again_and_then_each_hour_until_it_ends() {
        let mut ledger = Ledger::default();
        begin(&mut ledger, prefix("192.0.2.1/32"), ban(7200), NOW);
        let said = |ledger: &mut Ledger, seconds| {
            let due = ledger.due(later(seconds));
            ledger.said(&due, later(seconds));
            due.len()
        };
        assert_eq!(ledger.due(NOW).len(), 1, "still due until the store took it");
        let times: Vec<_> = [0, 1, 9, 10, 11, 3610, 7199, 7200, 9000].map(|at| said(&mut ledger, at)).into();
        assert_eq!(times, [1, 0, 0, 1, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_store_that_lost_all_hears_what_is_in_force_again() {
        let mut ledger = Ledger::default();
        begin(&mut ledger, prefix("192.0.2.1/32"), ban(600), NOW);
        let due = ledger.due(NOW);
        ledger.said(&due, NOW);
        ledger.store_lost(later(5));
        assert_eq!(ledger.due(later(5)).len(), 1);
    }

    #[test]
    fn an_act_is_followed_once_and_never_after_a_newer_one() {
        let mut ledger = Ledger::default();
        assert!(ledger.hear(&act(ban(600), NOW), later(1)));
        assert!(!ledger.hear(&act(ban(600), NOW), later(2)), "again");
        assert!(ledger.hear(&act(ban(900), later(1)), later(2)), "a longer one");
        assert!(!ledger.hear(&act(ban(1), later(2)), later(3)), "over");
        assert!(!ledger.hear(&act(ban(99_999), later(9000)), later(3)), "of a clock that is wrong");
        let denied = |at| act(What::Deny { until_ns: None, reason: None, by: "root".to_owned() }, at);
        assert!(ledger.hear(&act(undeny(), later(3)), later(3)));
        assert!(!ledger.hear(&denied(later(2)), later(3)), "lifted since");
        assert!(ledger.hear(&denied(later(4)), later(4)));
    }

    #[test]
    fn a_ban_that_was_lifted_is_not_begun_again_by_a_repetition() {
        let mut ledger = Ledger::default();
        let network = Act { prefix: prefix("192.0.2.0/24"), ..act(unblock(), later(2)) };
        begin(&mut ledger, prefix("192.0.2.9/32"), ban(600), NOW);
        assert!(ledger.hear(&network, later(2)));
        assert_eq!(ledger.due(later(2)), [], "our own ban within it is not said any more");
        begin(&mut ledger, prefix("192.0.2.8/32"), ban(600), later(2));
        begin(&mut ledger, prefix("192.0.2.8/32"), unblock(), later(2));
        assert!(ledger.due(later(2)).iter().all(|act| matches!(act.what, What::Unblock { .. })), "one's own likewise");
        assert!(!ledger.hear(&act(ban(600), later(1)), later(3)));
        assert!(ledger.hear(&act(ban(600), later(3)), later(3)), "a new one is");
    }

    #[test]
    fn own_lifts_stay_when_all_acts_are_heard_again_after_a_restart() {
        let mine = |what, at| Act { host: ME.0, ..act(what, at) };
        let deny = || What::Deny { until_ns: None, reason: None, by: "root".to_owned() };
        let said = [act(deny(), NOW), act(ban(600), NOW), mine(undeny(), later(1)), mine(unblock(), later(1))];
        let mut ledger = Ledger::default();
        assert_eq!(said.clone().map(|act| ledger.hear(&act, later(2))), [true; 4], "all, in their order");
        assert_eq!(said.map(|act| ledger.hear(&act, later(3))), [false; 4], "once");
        assert_eq!(ledger.due(later(3)), [], "and says none of it for others");
        begin(&mut ledger, prefix("192.0.2.1/32"), deny(), later(4));
        let own = ledger.due(later(4));
        assert!(!ledger.hear(&own[0], later(5)), "what this process did is not done again");
    }

    #[test]
    fn late_lifts_are_followed_and_replays_without_the_secret_are_not() {
        let days = |days: u64| later(days * 86_400);
        let deny = || What::Deny { until_ns: None, reason: None, by: "root".to_owned() };
        let mut ledger = Ledger::default();
        begin(&mut ledger, prefix("192.0.2.1/32"), deny(), NOW);
        let said = ledger.due(days(30));
        assert!(Ledger::default().hear(&said[0], days(30)), "it is in force, and said each hour");
        assert!(!Ledger::default().hear(&said[0], days(31)), "nobody who may has said it for a day");
        assert!(ledger.hear(&Act { said_ns: days(2).0, ..act(undeny(), later(5)) }, days(2)));
    }

    #[test]
    fn user_acts_wait_for_the_store_and_survive_a_restart_unless_overtaken() {
        let mut ledger = Ledger::default();
        let deny = || What::Deny { until_ns: None, reason: None, by: "root".to_owned() };
        let begun =
            |number, seconds, what| Begun { number, at_ns: later(seconds).0, prefix: prefix("192.0.2.1/32"), what };
        ledger.begin(ME, begun(1, 0, deny()), NOW);
        begin(&mut ledger, prefix("192.0.2.9/32"), ban(600), NOW);
        assert_eq!(ledger.unsaid(), [1], "bans are not among them");
        let due = ledger.due(NOW);
        ledger.said(&due, NOW);
        assert_eq!(ledger.unsaid(), [0; 0]);
        ledger.store_lost(later(1));
        assert_eq!(ledger.unsaid(), [0; 0], "others have heard it");

        let mut anew = Ledger::default();
        anew.begin(ME, begun(1, 0, deny()), later(7200));
        let due = anew.due(later(7200));
        assert_eq!((due.len(), due[0].at_ns), (1, NOW.0), "said as of then");
        assert!(anew.hear(&act(undeny(), later(60)), later(7201)), "another host has taken it back since");
        assert_eq!((anew.due(later(7201)), anew.unsaid()), (vec![], vec![]));
        let mut late = Ledger::default();
        assert!(late.hear(&act(undeny(), later(60)), later(7200)));
        late.begin(ME, begun(1, 0, deny()), later(7200));
        assert_eq!(late.due(later(7200)), [], "the same, heard first");
        late.begin(ME, begun(2, 0, reset()), later(7200));
        assert_eq!(late.unsaid(), [0; 0], "a reset of long ago is none");
    }

    #[test]
    fn an_old_reset_takes_nothing() {
        let mut ledger = Ledger::default();
        assert!(!ledger.hear(&act(reset(), NOW), later(60)));
        assert!(ledger.hear(&act(reset(), NOW), later(59)));
    }

    #[test]
    fn acts_are_sealed_and_what_is_forged_is_none() {
        let names = Names::new("web", &[1; 32]).unwrap();
        let by = "root (alice)".to_owned();
        let deny = What::Deny { until_ns: Some(9), reason: Some("scraper".to_owned()), by: by.clone() };
        let allow = What::Allow { until_ns: None, reason: None, by };
        let mut sealed = Vec::new();
        for what in [ban(9), unblock(), reset(), allow, undeny(), deny] {
            let act = act(what, NOW);
            sealed = act.seal(&names, [9; 12]);
            assert_eq!(Act::open(&names, &sealed), Some(act));
        }
        assert_eq!(Act::open(&Names::without_secret("web").unwrap(), &sealed), None);
        assert_eq!(Act::open(&names, b"192.0.2.1/32 allow"), None);
    }

    #[test]
    fn the_memory_for_acts_is_bounded() {
        let mut ledger = Ledger::default();
        for number in 0..20_000_u32 {
            let prefix = IpNet::from(std::net::IpAddr::from(number.to_be_bytes()));
            ledger.hear(&Act { prefix, ..act(ban(600), Nanos(NOW.0 + u64::from(number))) }, later(1));
            begin(&mut ledger, prefix, ban(600), later(2));
        }
        assert!(ledger.newest.len() <= ACTS_MAX);
        assert_eq!(ledger.own.len(), ACTS_MAX);
        assert_eq!(ledger.lost(), 10_000);
        assert_eq!(ledger.due(later(2)).len(), ROUND_MAX);
        begin(&mut ledger, prefix("203.0.113.0/24"), undeny(), later(3));
        assert!(
            matches!(ledger.due(later(3))[0].what, What::Undeny { .. }),
            "what a user says has room, and comes first"
        );
    }
}
