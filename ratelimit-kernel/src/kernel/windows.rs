//! Assignment of entries in the source maps to limits and their windows.

use std::collections::BTreeMap;

use ratelimit_common::layout::{LIMITS_MAX, Limit, Rule, Unit};
use ratelimit_common::verification::Side;

use super::groups::Holder;
use super::{ConfigWords, rules_len};

/// The windows of a configuration's limits, by the slot in their keys.
#[derive(Debug)]
pub(super) struct Windows {
    of: BTreeMap<u32, Window>,
    /// Holders of the windows that belong to a group instead of a source.
    holders: BTreeMap<u32, Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// Window of the limit with this slot. The flag marks verified traffic.
    Of(u32, bool),
    /// Window of a guard. Shown only for a single source, with its own slot.
    Guard,
    /// Window that is never shown: evidence for bans, and windows of a guard that is off.
    Hidden,
}

impl Windows {
    pub(super) fn of(words: &ConfigWords) -> Self {
        Self::of_rules(&words.rules[..rules_len(words)])
    }

    fn of_rules(rules: &[Rule]) -> Self {
        let of_groups = rules.iter().flat_map(|rule| {
            (rule.own_len.into()..usize::from(rule.limits_len).min(LIMITS_MAX)).flat_map(|position| {
                let sides = Side::ALL.map(|side| side.slot(rule.limits[position].slot));
                sides.map(|slot| (slot, Holder::of(rule, position)))
            })
        });
        Self { of: rules.iter().flat_map(Self::of_rule).collect(), holders: of_groups.collect() }
    }

    /// Returns the holder of the window with this slot.
    pub(super) fn holder(&self, slot: u32) -> Holder {
        // Called for each of a million windows.
        if self.holders.is_empty() {
            Holder::Source
        } else {
            self.holders.get(&slot).copied().unwrap_or(Holder::Source)
        }
    }

    fn of_rule(rule: &Rule) -> impl Iterator<Item = (u32, Window)> {
        let (held, beside) = rule.limits.split_at(LIMITS_MAX);
        let window = |limit: &Limit, is_verified: bool| {
            let side = if is_verified { Side::Verified } else { Side::Unverified };
            (side.slot(limit.slot), Window::Of(limit.slot, is_verified))
        };
        let windows = move |limit: &Limit| {
            let (slot, is_guarded) = (limit.slot, rule.guard != 0 && limit.unit == Unit::Requests as u8);
            let beside = Side::ALL.into_iter().filter(|side| !matches!(side, Side::Unverified | Side::Verified));
            let beside = beside.map(move |side| {
                let window = if is_guarded && side.is_guard() { Window::Guard } else { Window::Hidden };
                (side.slot(slot), window)
            });
            let verified = (limit.unit != Unit::Connections as u8).then(|| window(limit, true));
            beside.chain([window(limit, false)]).chain(verified)
        };
        let held = held.iter().take(rule.limits_len.into()).flat_map(windows);
        held.chain(beside.iter().take(rule.shadows_len.into()).map(move |limit| window(limit, false)))
    }

    /// Returns the slot of the limit that a window belongs to, and whether the window counts verified traffic. None if
    /// the window limits nobody. A window of no current limit keeps its own slot.
    pub(super) fn limit(&self, slot: u32) -> Option<(u32, bool)> {
        match self.of.get(&slot) {
            Some(Window::Of(limit, is_verified)) => Some((*limit, *is_verified)),
            Some(Window::Guard | Window::Hidden) => None,
            None => Some((slot, false)),
        }
    }

    /// Returns the slot of each shown window, the slot of its limit, and whether the window counts verified traffic. A
    /// guard's window has its own slot instead of the limit's, see [`ratelimit_policy::desired::Limit::guard`].
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, u32, bool)> {
        self.of.iter().filter_map(|(key, window)| match window {
            Window::Of(limit, is_verified) => Some((*key, *limit, *is_verified)),
            Window::Guard => Some((*key, *key, false)),
            Window::Hidden => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_evidence_for_a_ban_holds_no_source() {
        let limit = |slot, unit: Unit| Limit { slot, unit: unit as u8, ..Limit::default() };
        let mut rule = Rule { limits_len: 2, own_len: 2, shadows_len: 1, ..Rule::default() };
        rule.limits[0] = limit(7, Unit::Connections);
        rule.limits[1] = limit(8, Unit::Requests);
        rule.limits[LIMITS_MAX] = limit(9, Unit::Packets);
        let windows = Windows::of_rules(&[rule]);
        let of = |slot: u32| windows.limit(slot);
        assert_eq!(
            (of(7), of(8), of(9), of(70)),
            (Some((7, false)), Some((8, false)), Some((9, false)), Some((70, false)))
        );
        for side in [Side::Evidence, Side::Attempts, Side::Opened, Side::Segments, Side::Datagrams, Side::Repeated] {
            assert_eq!([7, 8].map(|slot| of(side.slot(slot))), [None, None]);
        }
        assert_eq!(of(Side::Verified.slot(8)), Some((8, true)));
        assert_eq!(windows.all().count(), 4);
    }

    #[test]
    fn guard_windows_are_read_per_source_and_never_visited() {
        let mut rule = Rule { limits_len: 2, own_len: 2, guard: 1, ..Rule::default() };
        rule.limits[0] = Limit { slot: 7, unit: Unit::Connections as u8, ..Limit::default() };
        rule.limits[1] = Limit { slot: 8, unit: Unit::Requests as u8, ..Limit::default() };
        let windows = Windows::of_rules(&[rule]);
        let of_guard = [Side::Attempts, Side::Opened, Side::Segments, Side::Datagrams].map(|side| side.slot(8));
        assert_eq!(of_guard.map(|slot| windows.limit(slot)), [None; 4]);
        let asked: Vec<_> = windows.all().collect();
        assert!(of_guard.iter().all(|slot| asked.contains(&(*slot, *slot, false))), "{asked:?}");
        assert_eq!(asked.len(), 7, "and those of the limits: {asked:?}");
    }
}
