//! Units of other hosts' admissions after a change of a shared limit's amount, which may change the unit.
//!
//! Admissions told in one unit must not count for more in another. A smaller unit makes them count for less until the
//! fleet tells them again. Before a larger unit takes effect, they are removed. Packets may roll back from a trial at
//! any time, so a policy on trial never has a smaller unit than the policy before it.

use std::cmp::Ordering;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use ratelimit_common::layout::{Limit, Source, SourceKeyV4, map};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use ratelimit_common::window::{Cell, Parts};

use super::clients::Lengths;
use super::{ConfigWords, Kernel, map_ref, rules_len, state};
use crate::{DatapathError, LimitAt, Told, batch};

impl Kernel {
    /// Adjusts the units of `config`, which packets read after `known`, so that no told admission counts for more.
    pub(super) fn settle_units(
        &mut self,
        known: &ConfigWords,
        config: &mut ConfigWords,
        until: Option<Nanos>,
    ) -> Result<(), DatapathError> {
        let rules = rules_len(config);
        for rule in &mut config.rules[..rules] {
            let len = usize::from(rule.limits_len).min(rule.limits.len());
            for limit in rule.limits[..len].iter_mut().filter(|limit| limit.parts.own_bits() != Parts::WHOLE) {
                let Some((at, before)) = limit_of(known, limit.slot) else { continue };
                match limit.parts.unit_bits().cmp(&before.parts.unit_bits()) {
                    Ordering::Greater => self.remove_told(known, at, &before)?,
                    Ordering::Less if until.is_some() => {
                        limit.parts = limit.parts.with_unit_bits(before.parts.unit_bits());
                    }
                    Ordering::Less | Ordering::Equal => {}
                }
            }
        }
        Ok(())
    }

    /// Removes other hosts' admissions to a limit, for all sources. Takes half a second for a million windows.
    fn remove_told(
        &mut self,
        words: &ConfigWords,
        (rule, limit): (usize, usize),
        of: &Limit,
    ) -> Result<(), DatapathError> {
        let lengths = Lengths::of(words);
        let slots = Side::ALL.map(|side| (side, side.slot(of.slot)));
        let mut told: Vec<(Side, Told)> = Vec::new();
        for (name, key_len) in [(map::SOURCES_V4, size_of::<SourceKeyV4>()), self.sources.ipv6_map()] {
            let data = state::data(map_ref(&self.ebpf, name)?)?;
            let entries = self.map(name)?.max_entries();
            batch::visit(data.fd().as_fd(), key_len, size_of::<Source>(), entries, |key, value| {
                let Some(reading) = state::source_reading(key, value, |_| lengths) else { return };
                let Some((side, _)) = slots.iter().find(|(_, slot)| *slot == reading.slot) else { return };
                let cells = reading.window.cells.iter().enumerate();
                let cells = cells.map(|(at, word)| Cell::decode(*word, at, of.parts));
                let of_others = cells.filter(|cell| cell.others > 0);
                told.extend(
                    of_others.map(|cell| (*side, Told { client: reading.prefix, bucket: cell.bucket, units: 0 })),
                );
            })
            .with_context(|| format!("read {name}"))?;
        }
        for side in Side::ALL {
            let of_side: Vec<Told> = told.iter().filter(|(of, _)| *of == side).map(|(_, told)| *told).collect();
            if !of_side.is_empty() {
                self.write_others(LimitAt { rule, limit, side }, &of_side)?;
            }
        }
        Ok(())
    }
}

/// Returns the shared limit with this slot, and its rule and position.
fn limit_of(words: &ConfigWords, slot: u32) -> Option<((usize, usize), Limit)> {
    let rules = words.rules[..rules_len(words)].iter().enumerate();
    let mut limits = rules.flat_map(|(at, rule)| {
        let limits = rule.limits[..usize::from(rule.limits_len).min(rule.limits.len())].iter().enumerate();
        limits.map(move |(limit_at, limit)| ((at, limit_at), *limit))
    });
    limits.find(|(_, limit)| limit.slot == slot && limit.parts.own_bits() != Parts::WHOLE)
}
