//! What can be said of a packet, and why: the one list that code, maps, metrics, JSON and docs share.

/// What the kernel does with the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// On to the network stack.
    Pass,
    /// Gone before the network stack sees it.
    Drop,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, $action:ident;)*) => {
        /// Why a packet passes or is dropped. Codes are stable and append-only: they index the counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name = $code,)* }

        impl Reason {
            /// Every reason, by code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason's name in metrics, JSON and docs.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// The reason of a code; one that is none is an internal error.
            #[inline(always)]
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::InternalError,
                }
            }

            /// The one place where a reason becomes an action.
            #[inline(always)]
            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }
        }
    };
}

reasons! {
    /// Not IPv4 or IPv6: ARP, LLDP, spanning tree.
    NotIp = 0, "not_ip", Pass;
    /// IP, but to no port that a rule protects.
    NotProtected = 1, "not_protected", Pass;
    /// To a protected port, but none of the rule's limits counts this packet: an acknowledgement where connections are
    /// counted.
    NotCounted = 2, "not_counted", Pass;
    /// Counted, and within every limit of its rule.
    WithinLimit = 3, "within_limit", Pass;
    /// From an exempt prefix.
    Exempt = 4, "exempt", Pass;
    /// Would have been dropped, were its rule enforced.
    DryRun = 5, "dry_run", Pass;
    /// Headers that contradict themselves or end too early; the network stack drops them itself.
    Malformed = 6, "malformed", Pass;
    /// Its source could not be remembered: the state map refused the insertion.
    StateFull = 7, "state_full", Pass;
    /// A configuration map could not be read.
    InternalError = 8, "internal_error", Pass;
    /// Over a limit of its rule.
    OverLimit = 9, "over_limit", Drop;
    /// Within the limit as far as could be told, but other CPUs changed this source's count at every try to charge it.
    Contended = 10, "contended", Drop;
    /// From a banned source.
    Banned = 11, "banned", Drop;
    /// From a denied prefix.
    Denied = 12, "denied", Drop;
    /// From a source that could not be admitted: the budget of new sources was spent.
    NewSourceBudget = 13, "new_source_budget", Drop;
    /// Behind more tags than are looked behind, where the network stack might still take it off them.
    TooManyTags = 14, "too_many_tags", Drop;
    /// From an unknown source, sampled out: more new sources came than can be remembered.
    NotAdmitted = 15, "not_admitted", Pass;
    /// Over what the guard of a limit of requests allows beside them: connections, segments that begin no request, or
    /// datagrams of QUIC that are none.
    Guard = 16, "guard", Drop;
    /// Behind more headers than are looked behind, or behind some that end or go on where that cannot be read: the
    /// network stack might still take what is there.
    TooManyHeaders = 17, "too_many_headers", Drop;
    /// Refused, and its client told by a reset: no byte of it reaches the server. In the place of a connection's
    /// segment the server has its client's reset; a SYN is answered by one.
    Reset = 18, "reset", Drop;
    /// Refused, and its client told by a page with code 429, which ends its connection.
    Page = 19, "page", Drop;
}

/// Who can say a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidBy {
    /// No rule: the packet was not judged by any.
    NoRule,
    /// A rule alone.
    Rule,
    /// Either.
    Either,
}

impl Reason {
    /// Who can say it.
    pub const fn said_by(self) -> SaidBy {
        match self {
            Self::NotIp | Self::NotProtected | Self::Malformed => SaidBy::NoRule,
            Self::InternalError => SaidBy::Either,
            Self::NotCounted
            | Self::WithinLimit
            | Self::Exempt
            | Self::DryRun
            | Self::StateFull
            | Self::OverLimit
            | Self::Contended
            | Self::Banned
            | Self::Denied
            | Self::NewSourceBudget
            | Self::TooManyTags
            | Self::NotAdmitted
            | Self::Guard
            | Self::TooManyHeaders
            | Self::Reset
            | Self::Page => SaidBy::Rule,
        }
    }
}

/// What was decided about one packet.
#[must_use = "a verdict that is not accounted and acted on is a packet lost to the statistics"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why.
    pub reason: Reason,
    /// Row of the rule that judged, or [`Verdict::NO_RULE`].
    pub rule: u8,
}

impl Verdict {
    /// The rule index of a packet that no rule judged.
    pub const NO_RULE: u8 = u8::MAX;

    /// A verdict that no rule had a part in.
    #[inline(always)]
    pub const fn unruled(reason: Reason) -> Self {
        Self { reason, rule: Self::NO_RULE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_positions_in_the_list() {
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, position);
            assert_eq!(Reason::from_code(*reason as u32), *reason);
        }
    }

    #[test]
    fn labels_are_unique_snake_case() {
        let mut labels: Vec<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        assert!(labels.iter().all(|label| label.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Reason::ALL.len());
    }
}
