//! Bans: how long the next one is. Knows no map.

use crate::time::Nanos;

/// Lengths that a rule's bans grow through.
pub const STEPS_MAX: usize = 4;

/// How a rule bans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// The first ban's length, the second's, and so on; the last of `steps_len` for all after it. Nanoseconds.
    pub steps_ns: [u64; STEPS_MAX],
    /// So long after the end of a ban the next is the first again. Nanoseconds.
    pub forget_ns: u64,
    /// How many steps there are; 0 never bans.
    pub steps_len: u32,
    /// Part of the state's key, as a limit's slot is.
    pub slot: u32,
}

const _: () = assert!(size_of::<Rule>() == 8 * STEPS_MAX + 16);

/// One source's ban by one rule, the newest. It is kept after its end, until `forgotten_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ban {
    /// When it ends.
    pub until_ns: u64,
    /// From when on the next ban is the first again.
    pub forgotten_ns: u64,
    /// How many bans came before it since the last reset.
    pub step: u32,
    /// 1: the source was admitted again since its end, so what is too much now is another offence.
    pub admitted: u32,
    /// Packets that it has dropped.
    pub dropped: u64,
}

const _: () = assert!(size_of::<Ban>() == 32);

impl Ban {
    /// Whether it holds.
    #[inline(always)]
    pub const fn holds(&self, now: Nanos) -> bool {
        now.0 < self.until_ns
    }

    /// Whether what is too much at `now` begins another. A source that is still over the limit when a ban ends is
    /// refused, and not banned once more for the same.
    #[inline(always)]
    pub const fn may_be_followed(&self, now: Nanos) -> bool {
        !self.holds(now) && (self.admitted != 0 || now.0 >= self.forgotten_ns)
    }

    /// The ban that begins now, after this one.
    #[inline(always)]
    pub fn next(&self, rule: &Rule, now: Nanos) -> Self {
        let step = if now.0 < self.forgotten_ns { self.step.saturating_add(1) } else { 0 };
        Self { dropped: self.dropped, ..Self::at(rule, step, now) }
    }

    /// The first ban, beginning now.
    #[inline(always)]
    pub fn first(rule: &Rule, now: Nanos) -> Self {
        Self::at(rule, 0, now)
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
    fn one_offence_is_one_ban_until_the_source_was_admitted_or_the_ban_is_reset() {
        let ban = Ban::first(&RULE, NOW);
        assert!(!ban.may_be_followed(Nanos(ban.until_ns)));
        assert!(ban.may_be_followed(Nanos(ban.forgotten_ns)));
        let admitted = Ban { admitted: 1, ..ban };
        assert!(admitted.may_be_followed(Nanos(ban.until_ns)));
        assert!(!admitted.may_be_followed(Nanos(ban.until_ns - 1)));
    }
}
