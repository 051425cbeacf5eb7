//! Windows of a layout with other keys: copied, then charged with what was admitted after the copy.

use std::collections::HashMap;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use ratelimit_common::layout::{Limit, Source, SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, map};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use ratelimit_common::window::{CELLS, Cell};
use ratelimit_crash::{Point, reach};

use super::super::clients::Client;
use super::super::{limits_of, map_ref, rules_len, state};
use super::{Kernel, Move, open};
use crate::{DatapathError, batch};

/// Size of a window in bytes.
pub(super) const VALUE: usize = size_of::<Source>();

/// Key of a window in today's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    client: Client,
    slot: u32,
}

/// Rule, limit and side of one of the policy's windows.
struct Charged {
    rule: usize,
    limit: Limit,
    side: Side,
}

impl Kernel {
    /// Copies the windows that changed since the last copy. Returns their number.
    pub(super) fn copy_windows(&mut self, moving: &mut Move) -> Result<usize, DatapathError> {
        let Some(slots) = self.slots(moving)? else { return Ok(0) };
        moving.copied_at = self.read_clock()?;
        Ok(self.copy_map::<{ size_of::<SourceKeyV4>() }>(map::SOURCES_V4, &slots, moving)?
            + self.copy_map::<{ size_of::<SourceKeyV6>() }>(map::SOURCES_V6, &slots, moving)?
            + self.copy_map::<{ size_of::<SourceKeyV6Wide>() }>(map::SOURCES_V6_WIDE, &slots, moving)?)
    }

    fn copy_map<const KEY: usize>(
        &self,
        name: &'static str,
        slots: &HashMap<u32, u32>,
        moving: &mut Move,
    ) -> Result<usize, DatapathError> {
        let (mut keys, mut values) = (Vec::<[u8; KEY]>::new(), Vec::<[u8; VALUE]>::new());
        self.visit_earlier(name, KEY, slots, |window, value| {
            if moving.windows.insert(window, *value) != Some(*value) {
                keys.extend(window.key::<KEY>());
                values.push(*value);
            }
        })?;
        let map = state::data(map_ref(&self.ebpf, name)?)?.fd().as_fd();
        // SAFETY: `visit_earlier` has checked that the map holds windows with keys of this length.
        unsafe { batch::update(map, &keys, &values) }
            .map_err(|stopped| stopped.error)
            .with_context(|| format!("write {name}"))?;
        Ok(keys.len())
    }

    /// Charges what the earlier program admitted after the last copy. A resumed move charges the amount by which
    /// earlier windows exceed today's. Returns the number of windows charged.
    pub(super) fn add_windows(&mut self, moving: &Move, is_resumed: bool) -> Result<usize, DatapathError> {
        let Some(slots) = self.slots(moving)? else { return Ok(0) };
        let mut changed = Vec::new();
        for (name, key_len) in [
            (map::SOURCES_V4, size_of::<SourceKeyV4>()),
            (map::SOURCES_V6, size_of::<SourceKeyV6>()),
            (map::SOURCES_V6_WIDE, size_of::<SourceKeyV6Wide>()),
        ] {
            self.visit_earlier(name, key_len, &slots, |window, value| {
                if is_resumed || moving.windows.get(&window) != Some(value) {
                    changed.push((window, *value));
                }
            })?;
        }
        let policy = self.charged()?;
        let mut added = 0;
        for (window, value) in changed {
            let Some(Charged { rule, limit, side }) = policy.get(&window.slot) else { continue };
            let copied = match is_resumed {
                true => self.window(window.client, window.slot)?.unwrap_or_default().cells,
                false => moving.windows.get(&window).map_or([0; CELLS], cells),
            };
            let amount = admitted_since(limit, &copied, &cells(&value), moving.copied_at);
            if amount != 0 {
                self.add_to_window(window.client, (*rule, *limit, *side), amount)?;
                added += 1;
                reach(Point::MoveCharged);
            }
        }
        Ok(added)
    }

    /// Visits the earlier windows of limits under their keys of today. Visits nothing if the earlier map was removed.
    fn visit_earlier(
        &self,
        name: &'static str,
        key_len: usize,
        slots: &HashMap<u32, u32>,
        mut visit: impl FnMut(Window, &[u8; VALUE]),
    ) -> Result<(), DatapathError> {
        let (path, expected) = (self.earlier()?.map(name), state::expected_of(name)?);
        if !path.exists() {
            return Ok(());
        }
        state::check_pin(&self.earlier()?.dir, expected)?;
        let data = open(&path)?;
        let entries = data.info().with_context(|| format!("inspect {}", path.display()))?.max_entries();
        batch::visit(data.fd().as_fd(), key_len, VALUE, entries, |key, value| {
            let Some((window, value)) = Window::of(key).zip(value.try_into().ok()) else { return };
            if let Some(&slot) = slots.get(&window.slot) {
                visit(Window { slot, ..window }, value);
            }
        })
        .with_context(|| format!("read {}", path.display()))?;
        Ok(())
    }

    /// Maps each earlier slot to its slot of today. None if windows are taken over unchanged, or if nothing is left to
    /// take over.
    fn slots(&self, moving: &Move) -> Result<Option<HashMap<u32, u32>>, DatapathError> {
        let Some(sides) = moving.layout.windows else { return Ok(None) };
        if !self.earlier()?.map(map::CONFIG).exists() {
            return Ok(None);
        }
        let generations = (moving.layout.config)(self.earlier()?)?;
        let limits = generations.iter().flat_map(|of| &of.rules).flat_map(|rule| &rule.limits);
        let slots = limits.filter(|limit| limit.bucket_ns != 0).map(|limit| limit.slot);
        let of_sides = |slot| sides.iter().map(move |then| (slot ^ then.flipped, then.side.slot(slot)));
        Ok(Some(slots.flat_map(of_sides).collect()))
    }

    /// Returns the windows of the policy's limits, by slot.
    fn charged(&mut self) -> Result<HashMap<u32, Charged>, DatapathError> {
        let words = self.config_words()?;
        let mut charged = HashMap::new();
        for (rule, of) in words.rules[..rules_len(&words)].iter().enumerate() {
            for limit in limits_of(of) {
                for side in [Side::Unverified, Side::Verified, Side::Evidence] {
                    charged.insert(side.slot(limit.slot), Charged { rule, limit: *limit, side });
                }
            }
        }
        Ok(charged)
    }
}

impl Window {
    /// Parses the bytes of a key.
    fn of(key: &[u8]) -> Option<Self> {
        let (prefix, slot) = key.split_at_checked(key.len().checked_sub(size_of::<u32>())?)?;
        Some(Self { client: Client::from_bytes(prefix)?, slot: u32::from_ne_bytes(slot.try_into().ok()?) })
    }

    /// Returns the bytes of the key, or none if they do not have this length.
    fn key<const KEY: usize>(self) -> Option<[u8; KEY]> {
        let prefix = match &self.client {
            Client::V4(prefix) => prefix.as_slice(),
            Client::V6(prefix) => prefix.as_slice(),
            Client::V6Wide(halves) => halves.as_flattened(),
        };
        [prefix, &self.slot.to_ne_bytes()].concat().try_into().ok()
    }
}

/// Returns the cells of a window from its bytes. The first word counts refusals.
fn cells(value: &[u8; VALUE]) -> [u64; CELLS] {
    let (words, _) = value.as_chunks::<{ size_of::<u64>() }>();
    std::array::from_fn(|at| words.get(at + 1).map_or(0, |word| u64::from_ne_bytes(*word)))
}

/// Returns the amount that a window has admitted since it was copied, in the limit's unit.
fn admitted_since(limit: &Limit, copied: &[u64; CELLS], now: &[u64; CELLS], copied_at: Nanos) -> u64 {
    if limit.is_gcra != 0 {
        let filled_ns = u128::from(now[0].saturating_sub(copied[0].max(copied_at.0)));
        let amount = (filled_ns * u128::from(limit.amount)).div_ceil(u128::from(limit.bucket_ns.max(1)));
        return u64::try_from(amount).unwrap_or(u64::MAX);
    }
    let cell = |words: &[u64; CELLS], at: usize| Cell::decode(words[at], at, limit.parts);
    let of = |at: usize| {
        let (before, after) = (cell(copied, at), cell(now, at));
        match after.bucket.cmp(&before.bucket) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => after.count.saturating_sub(before.count),
            std::cmp::Ordering::Greater => after.count,
        }
    };
    (0..CELLS).map(of).sum()
}

#[cfg(test)]
mod tests {
    use ratelimit_common::time::{BucketIndex, SECOND_NS};
    use ratelimit_common::window::{self, Parts};

    use super::*;

    const MINUTE: Limit = Limit {
        amount: 10,
        bucket_ns: 60 * SECOND_NS,
        slot: 1,
        unit: 0,
        full_buckets: 5,
        told_sides: 0,
        is_gcra: 0,
        burst: u64::MAX,
        guarded_segments: 0,
        parts: Parts::alone(60 * SECOND_NS),
    };

    fn window(counts: &[(u64, u64)]) -> [u64; CELLS] {
        let mut cells = [0; CELLS];
        for (bucket, count) in counts {
            let cell = Cell { bucket: BucketIndex(*bucket), sealed: false, count: *count, others: 0 };
            cells[window::index(BucketIndex(*bucket))] = cell.encode(MINUTE.parts);
        }
        cells
    }

    #[test]
    fn admissions_since_the_copy_are_what_the_buckets_gained() {
        let since = |before: &[_], after: &[_]| admitted_since(&MINUTE, &window(before), &window(after), Nanos(0));
        assert_eq!(since(&[], &[(100, 3)]), 3, "a source that was not there");
        assert_eq!(since(&[(100, 3)], &[(100, 3)]), 0);
        assert_eq!(since(&[(100, 3)], &[(100, 5), (101, 2)]), 4, "the bucket turned");
        assert_eq!(since(&[(93, 9)], &[(101, 2)]), 2, "what lay in its place was another bucket");
        assert_eq!(since(&[(100, 5)], &[(100, 4)]), 0, "one was taken back");
        assert_eq!(since(&[(101, 2)], &[(93, 9)]), 0, "what is there now is later than the earlier one");
    }

    #[test]
    fn a_leaky_buckets_fill_since_the_copy_is_its_later_drain_time() {
        let leaky = Limit { is_gcra: 1, bucket_ns: 30 * SECOND_NS, amount: 6, ..MINUTE };
        let since = |before: u64, after: u64| {
            let of = |seconds: u64| [seconds * SECOND_NS, 0, 0, 0, 0, 0, 0, 0];
            admitted_since(&leaky, &of(before), &of(after), Nanos(100 * SECOND_NS))
        };
        assert_eq!(since(110, 120), 2);
        assert_eq!(since(110, 110), 0);
        assert_eq!(since(50, 105), 1, "it was empty when it was copied");
    }

    #[test]
    fn a_key_survives_its_window() {
        let key = [10, 9, 0, 2, 1, 0, 0, 0x80];
        assert_eq!(Window::of(&key).unwrap().key::<8>(), Some(key));
        assert_eq!(Window::of(&key).unwrap().key::<12>(), None);
        let wide: [u8; 20] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        assert_eq!(Window::of(&wide).unwrap().key::<20>(), Some(wide));
    }
}
