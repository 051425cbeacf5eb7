//! Choice of the limit of a rule that a source has used most.

use ratelimit_common::time::Nanos;

use super::sources::WindowState;
use ratelimit_datapath::SourceReading;
use ratelimit_policy::desired::{Limit, Rule};

/// Returns the limit that the source is over, else one that refused it, else the fullest, with the amount used. Returns
/// none without a tracked window.
pub fn used_most<'a>(rule: &'a Rule, windows: &[SourceReading], now: Nanos) -> Option<(&'a Limit, u64)> {
    let standings = rule.limits.iter().flat_map(|limit| {
        let windows = windows.iter().filter(|reading| reading.slot == limit.slot);
        windows.map(move |reading| (limit, WindowState::of_reading(rule, limit, Some(reading), now)))
    });
    let rank = |(limit, of): &(&Limit, WindowState)| {
        let fill = u128::from(of.used).saturating_mul(1_000_000) / u128::from(limit.amount.max(1));
        (of.over, of.refused > 0, fill)
    };
    standings.max_by_key(rank).map(|(limit, of)| (limit, of.used))
}
