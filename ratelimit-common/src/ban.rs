//! Lengths of bans, and their succession. This module knows no map.

use crate::time::Nanos;

/// Maximum number of lengths through which a rule's bans grow.
pub const STEPS_MAX: usize = 4;

/// Bans of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Lengths in nanoseconds of the first ban, the second, and so on. The last of `steps_len` lengths applies to all
    /// later bans.
    pub steps_ns: [u64; STEPS_MAX],
    /// Nanoseconds after the end of a ban until the next ban counts as the first again.
    pub forget_ns: u64,
    /// Number of lengths in `steps_ns`; 0 if the rule never bans.
    pub steps_len: u32,
    /// Part of the state's key, like a limit's slot.
    pub slot: u32,
}

const _: () = assert!(size_of::<Rule>() == 8 * STEPS_MAX + 16);

/// Newest ban of one source by one rule. It is kept after its end, until `forgotten_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ban {
    /// Time at which the ban ends, in nanoseconds.
    pub until_ns: u64,
    /// Time in nanoseconds from which the next ban counts as the first again.
    pub forgotten_ns: u64,
    /// Number of bans before this one since the last reset.
    pub step: u32,
    /// 1 if the source was admitted again since the ban's end, so a further excess is a new offence.
    pub admitted: u32,
    /// Number of packets that the ban has dropped.
    pub dropped: u64,
}

const _: () = assert!(size_of::<Ban>() == 32);

impl Ban {
    /// Returns whether the ban is in force.
    #[inline(always)]
    pub const fn holds(&self, now: Nanos) -> bool {
        now.0 < self.until_ns
    }

    /// Returns whether an excess at `now` begins another ban. A source that is still over the limit when a ban ends is
    /// refused, but not banned again for the same offence.
    #[inline(always)]
    pub const fn may_be_followed(&self, now: Nanos) -> bool {
        !self.holds(now) && (self.admitted != 0 || now.0 >= self.forgotten_ns)
    }

    /// Returns the ban that begins now, after this one.
    #[inline(always)]
    pub fn next(&self, rule: &Rule, now: Nanos) -> Self {
        let step = if now.0 < self.forgotten_ns { self.step.saturating_add(1) } else { 0 };
        Self { dropped: self.dropped, ..Self::at(rule, step, now) }
    }

    /// Returns the first ban, beginning now.
    #[inline(always)]
    pub fn first(rule: &Rule, now: Nanos) -> Self {
        Self::at(rule, 0, now)
    }

    /// Returns the ban to store for another host's ban until `until_ns`, given the newest ban here. Returns None if
    /// that one lasts as long, if `until_ns` is past, or if the rule never bans.
    pub fn until(newest: Option<Self>, rule: &Rule, now: Nanos, until_ns: u64) -> Option<Self> {
        let of = match newest {
            None => Self::first(rule, now),
            Some(newest) if newest.holds(now) => newest,
            Some(newest) => newest.next(rule, now),
        };
        let is_longer = newest.is_none_or(|newest| newest.until_ns < until_ns) && now.0 < until_ns;
        let forgotten_ns = until_ns.saturating_add(rule.forget_ns);
        (is_longer && rule.steps_len != 0).then_some(Self { until_ns, forgotten_ns, admitted: 0, ..of })
    }

    #[inline(always)]
    fn at(rule: &Rule, step: u32, now: Nanos) -> Self {
        let last = rule.steps_len.saturating_sub(1);
        let at = if step < last { step } else { last };
        let length = rule.steps_ns[at as usize & (STEPS_MAX - 1)];
        let until_ns = now.0.saturating_add(length);
        Self { until_ns, forgotten_ns: until_ns.saturating_add(rule.forget_ns), step, admitted: 0, dropped: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NS;

    const MINUTE_NS: u64 = 60 * SECOND_NS;
    const NOW: Nanos = Nanos(1_767_261_600_000_000_000);
    const RULE: Rule = Rule {
        steps_ns: [MINUTE_NS, 10 * MINUTE_NS, 60 * MINUTE_NS, 0],
        forget_ns: 1440 * MINUTE_NS,
        steps_len: 3,
        slot: 7,
    };

    #[test]
    fn bans_grow_up_to_the_last_step() {
        let mut now = NOW;
        let mut ban = Ban::first(&RULE, now);
        let mut lengths = vec![ban.until_ns - now.0];
        for _ in 0..4 {
            assert!(ban.holds(Nanos(ban.until_ns - 1)) && !ban.holds(Nanos(ban.until_ns)));
            now = Nanos(ban.until_ns);
            ban = ban.next(&RULE, now);
            lengths.push(ban.until_ns - now.0);
        }
        assert_eq!(lengths, [1, 10, 60, 60, 60].map(|minutes| minutes * MINUTE_NS));
    }

    #[test]
    fn a_ban_that_is_reset_is_followed_by_the_first() {
        let ban = Ban::first(&RULE, NOW);
        assert_eq!(ban.next(&RULE, Nanos(ban.forgotten_ns - 1)).step, 1);
        assert_eq!(ban.next(&RULE, Nanos(ban.forgotten_ns)).step, 0);
    }

    #[test]
    fn another_hosts_ban_holds_to_its_end_and_never_shortens_one_of_this_host() {
        let until = |newest, seconds: u64| Ban::until(newest, &RULE, NOW, NOW.0 + seconds * SECOND_NS);
        let heard = until(None, 90).unwrap();
        assert_eq!((heard.until_ns, heard.step, heard.dropped), (NOW.0 + 90 * SECOND_NS, 0, 0));
        assert_eq!(heard.forgotten_ns, heard.until_ns + RULE.forget_ns);
        assert_eq!(until(Some(heard), 90), None, "heard again");
        assert_eq!(until(Some(heard), 60), None);
        assert_eq!(until(Some(heard), 120).unwrap().step, 0, "the same one, longer");
        assert_eq!(until(None, 0), None, "over");
        let ended = Ban { until_ns: NOW.0 - 1, forgotten_ns: NOW.0 + 1, step: 1, admitted: 1, dropped: 7 };
        let next = until(Some(ended), 90).unwrap();
        assert_eq!((next.step, next.admitted, next.dropped), (2, 0, 7), "the next in a row");
        assert_eq!(Ban::until(None, &Rule { steps_len: 0, ..RULE }, NOW, u64::MAX), None);
    }

    #[test]
    fn one_offence_is_one_ban_until_the_source_was_admitted_or_the_ban_is_reset() {
        let ban = Ban::first(&RULE, NOW);
        assert!(!ban.may_be_followed(Nanos(ban.until_ns)));
        assert!(ban.may_be_followed(Nanos(ban.forgotten_ns)));
        let admitted = Ban { admitted: 1, ..ban };
        assert!(admitted.may_be_followed(Nanos(ban.until_ns)));
        assert!(!admitted.may_be_followed(Nanos(ban.until_ns - 1)));
    }
}
