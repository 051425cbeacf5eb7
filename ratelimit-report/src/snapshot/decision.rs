//! Action of a rule on packets of one source, and the reason. `check`, `list`, `explain` and the top of `stats` share
//! this module, so that they agree. Pure.

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use super::check::Window;
use super::guard::GuardStanding;
use super::sources::Retry;
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{Access, Grant, Limit, Mode, Per, Policy, Protocol, Rule};

/// State of one source at `now`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) policy: &'a Policy,
    pub(super) now: Nanos,
    /// Windows of the source.
    pub(super) windows: &'a [SourceReading],
    /// Bans of all sources, including this one.
    pub(super) bans: &'a [Ban],
}

/// Action of one rule on one source, with every possible cause, in the order of the packet path.
pub(super) struct Decision<'a> {
    pub(super) rule: &'a Rule,
    now: Nanos,
    pub(super) access: Option<Access>,
    /// End of the grant in `access`, including later entries that continue it.
    access_ends: Option<Nanos>,
    pub(super) ban: Option<Ban>,
    /// Each limit with its windows, the worst first. Every limit has at least one window.
    pub(super) limits: Vec<(&'a Limit, Vec<Window>)>,
    pub(super) guards: Vec<GuardStanding<'a>>,
}

/// Cause that decides on a source's packets.
#[derive(Clone, Copy)]
pub(super) enum Decider<'d, 'a> {
    /// An entry allows the source.
    Exempt(&'d Access),
    /// An entry denies the source.
    Denied(&'d Access),
    /// The rule has banned the source.
    Banned(&'d Ban),
    /// The source is over this limit.
    OverLimit(&'a Limit, &'d Window),
    /// The guard refuses packets other than requests.
    Guard(&'d GuardStanding<'a>),
    /// The source is within its limits.
    Within,
}

impl<'a> Known<'a> {
    /// Determines the action of the rule with index `at` on an address or a whole prefix.
    pub(super) fn decision(&self, at: usize, rule: &'a Rule, whom: IpNet) -> Decision<'a> {
        let Self { policy, now, windows, bans } = *self;
        let access = policy.grant_around(whom, now);
        let client = policy.client(whom.addr());
        let ban = bans.iter().find(|ban| ban.client == client && ban.rule == at && now < ban.until);
        Decision {
            rule,
            now,
            access,
            access_ends: access.and_then(|access| policy.grant_ends(whom, access)),
            ban: ban.copied(),
            limits: rule
                .limits
                .iter()
                .map(|limit| (limit, Window::all(rule, limit, whom.addr(), windows, now)))
                .collect(),
            guards: GuardStanding::all(rule, whom.addr(), windows, now),
        }
    }
}

impl<'a> Decision<'a> {
    /// Restricts the decision to packets of this protocol.
    pub(super) fn of(mut self, protocol: Protocol) -> Self {
        self.guards = self.guards.into_iter().filter_map(|guard| guard.of_protocol(protocol)).collect();
        self
    }

    /// Restricts the decision to the per-source limits of the rule.
    pub(super) fn of_source(mut self) -> Self {
        self.limits.retain(|(limit, _)| limit.per == Per::Source);
        self.guards.retain(|guard| guard.limit.per == Per::Source);
        self
    }

    /// Returns the deciding cause, whether the rule enforces or not. It is the first in the order of the packet path.
    pub(super) fn cause(&self) -> Decider<'_, 'a> {
        if let Some(access) = &self.access {
            return match access.grant {
                Grant::Exempt => Decider::Exempt(access),
                Grant::Denied => Decider::Denied(access),
            };
        }
        if let Some(ban) = &self.ban {
            return Decider::Banned(ban);
        }
        let windows = self.limits.iter().flat_map(|(limit, windows)| windows.iter().map(move |of| (*limit, of)));
        let over = windows.filter(|(_, window)| window.standing.over);
        if let Some((limit, window)) = over.max_by_key(|(_, window)| window.standing.retry) {
            return Decider::OverLimit(limit, window);
        }
        self.guards.iter().find(|guard| guard.is_over()).map_or(Decider::Within, Decider::Guard)
    }

    /// Returns the reason if the rule were enforced, for all packets or for those that the cause concerns.
    pub(super) fn found(&self) -> Reason {
        match self.cause() {
            Decider::Exempt(_) => Reason::Exempt,
            Decider::Denied(_) => Reason::Denied,
            Decider::Banned(_) => Reason::Banned,
            Decider::OverLimit(..) => Reason::OverLimit,
            Decider::Guard(_) => Reason::Guard,
            Decider::Within => Reason::WithinLimit,
        }
    }

    /// Returns the reason under the rule's mode.
    pub(super) fn reason(&self) -> Reason {
        match (self.cause(), self.rule.mode) {
            (Decider::Exempt(_) | Decider::Within, _) | (_, Mode::Enforce) => self.found(),
            (Decider::Denied(_) | Decider::Banned(_) | Decider::OverLimit(..) | Decider::Guard(_), Mode::DryRun) => {
                Reason::DryRun
            }
        }
    }

    /// Returns when the source passes again, if nothing else is admitted meanwhile.
    pub(super) fn retry(&self) -> Retry {
        let after = |until: Nanos| Retry { never: false, after_ns: until.0.saturating_sub(self.now.0) };
        let denied = match self.access.map(|access| access.grant) {
            Some(Grant::Exempt) => return Retry::default(),
            Some(Grant::Denied) => Some(self.access_ends.map_or(Retry { never: true, after_ns: 0 }, after)),
            None => None,
        };
        let banned = self.ban.map(|ban| after(ban.until));
        let limits = self.limits.iter().flat_map(|(_, windows)| windows).map(|of| of.standing.retry);
        let retries = limits.chain(self.guards.iter().map(GuardStanding::retry)).chain(denied).chain(banned);
        retries.max().unwrap_or_default()
    }
}

/// Returns the reason that matters most for a source under several rules. Drops come before would-be drops, in the
/// order of the packet path.
pub(super) fn worst(reasons: impl IntoIterator<Item = Reason>) -> Option<Reason> {
    const ORDER: [Reason; 7] = [
        Reason::Exempt,
        Reason::Denied,
        Reason::Banned,
        Reason::OverLimit,
        Reason::Guard,
        Reason::DryRun,
        Reason::WithinLimit,
    ];
    reasons.into_iter().min_by_key(|reason| ORDER.iter().position(|of| of == reason))
}
