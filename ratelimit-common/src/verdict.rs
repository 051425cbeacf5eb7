//! Reasons for verdicts on packets: the one list that code, maps, metrics, JSON and docs share.

/// Kernel's action on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet goes on to the network stack.
    Pass,
    /// The packet is dropped before the network stack sees it.
    Drop,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, $action:ident;)*) => {
        /// Reason why a packet passes or is dropped. Codes are stable and append-only: they index the counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name = $code,)* }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the reason's name in metrics, JSON and docs.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// Returns the reason of a code. An unknown code gives `InternalError`.
            #[inline(always)]
            pub const fn from_code(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::InternalError,
                }
            }

            /// Returns the reason's action. No other code decides on actions.
            #[inline(always)]
            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }
        }
    };
}

reasons! {
    /// The packet is not IPv4 or IPv6: ARP, LLDP, spanning tree.
    NotIp = 0, "not_ip", Pass;
    /// The packet is IP, but no rule protects its port.
    NotProtected = 1, "not_protected", Pass;
    /// The packet's port is protected, but none of the rule's limits counts the packet. Example: an acknowledgement
    /// under a connection limit.
    NotCounted = 2, "not_counted", Pass;
    /// The packet was counted, and is within every limit of its rule.
    WithinLimit = 3, "within_limit", Pass;
    /// The source is in an exempt prefix.
    Exempt = 4, "exempt", Pass;
    /// The packet would have been dropped if its rule were enforced.
    DryRun = 5, "dry_run", Pass;
    /// The headers contradict themselves or end too early; the network stack drops the packet itself.
    Malformed = 6, "malformed", Pass;
    /// The source could not be remembered: the state map refused the insertion.
    StateFull = 7, "state_full", Pass;
    /// A configuration map could not be read.
    InternalError = 8, "internal_error", Pass;
    /// The packet is over a limit of its rule.
    OverLimit = 9, "over_limit", Drop;
    /// The packet seemed to be within the limit, but other CPUs changed the source's count at every try to charge it.
    Contended = 10, "contended", Drop;
    /// The source is banned.
    Banned = 11, "banned", Drop;
    /// The source is in a denied prefix.
    Denied = 12, "denied", Drop;
    /// The source could not be admitted: the budget of new sources was spent.
    NewSourceBudget = 13, "new_source_budget", Drop;
    /// The frame has more VLAN tags than the parser skips, and the network stack might still accept it.
    TooManyTags = 14, "too_many_tags", Drop;
    /// The source is unknown and was sampled out: more new sources came than can be remembered.
    NotAdmitted = 15, "not_admitted", Pass;
    /// The packet is over the bounds of a request limit's guard. It opens a connection, or is a segment or QUIC
    /// datagram that begins no request.
    Guard = 16, "guard", Drop;
    /// The packet's headers cannot be parsed to the end: they are too many, or end or go on where they cannot be read.
    /// The network stack might still accept the packet.
    TooManyHeaders = 17, "too_many_headers", Drop;
    /// The packet was refused, and a reset tells its client. No byte of the packet reaches the server. A segment of a
    /// connection is replaced by its client's reset, and a SYN is answered by a reset.
    Reset = 18, "reset", Drop;
    /// The packet was refused, and a page with code 429 tells its client and ends its connection.
    Page = 19, "page", Drop;
}

/// Part of the program that can give a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidBy {
    /// No rule: the packet was judged by none.
    NoRule,
    /// Only a rule.
    Rule,
    /// A rule, or the program without one.
    Either,
}

impl Reason {
    /// Returns which part of the program can give this reason.
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

/// Decision about one packet.
#[must_use = "a verdict that is not accounted and acted on is a packet lost to the statistics"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Reason of the decision.
    pub reason: Reason,
    /// Row of the rule that judged, or [`Verdict::NO_RULE`].
    pub rule: u8,
}

impl Verdict {
    /// Rule index of a packet that no rule judged.
    pub const NO_RULE: u8 = u8::MAX;

    /// Returns a verdict in which no rule took part.
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
