//! Sums over the tallies of a reading, by rule and by reason. Pure.

use std::collections::BTreeMap;

use ratelimit_common::verdict::Reason;
use ratelimit_datapath::Reading;
use ratelimit_policy::desired;

use super::{Limit, NewSources, Rule, ShadowLimit, Tracked, Traffic};

pub(super) fn rule(at: usize, rule: &desired::Rule, reading: &Reading, tracked: &Tracked) -> Rule {
    let rows: Vec<_> = reading.interfaces.iter().filter_map(|interface| interface.rules.get(at)).collect();
    let packets =
        |reason: Reason| rows.iter().fold(0_u64, |sum, tallies| sum.saturating_add(tallies.of(reason).packets));
    let traffic = Traffic::of(rows.iter().copied());
    let shadows = rule.shadow_limits.iter().zip(tracked.shadows.get(at).into_iter().flatten());
    let shadows =
        shadows.map(|(limit, of)| ShadowLimit { limit: limit.into(), would_drop: of.packets, sources: of.sources });
    Rule {
        name: rule.name.clone(),
        mode: rule.mode,
        ports: rule.ports.to_string(),
        limits: rule.limits.iter().map(Limit::from).collect(),
        used: tracked.used.get(at).cloned().unwrap_or_default(),
        admitted: packets(Reason::WithinLimit),
        dropped: traffic.packets.dropped,
        would_drop: traffic.packets.would_drop,
        not_counted: packets(Reason::NotCounted),
        bans: reading.bans_begun.get(at).copied().unwrap_or(0),
        banned: 0,
        would_ban: None,
        sources_over_limit: tracked.over_limit.get(at).copied().unwrap_or(0),
        shadow_limits: shadows.collect(),
        new_sources: rule.new_sources.map(NewSources::from),
    }
}

pub(super) fn sum_by_reason(reading: &Reading) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<_, _> = Reason::ALL.iter().map(|reason| (reason.label().to_owned(), 0_u64)).collect();
    let rows = reading.interfaces.iter().flat_map(|interface| interface.rules.iter().chain([&interface.unruled]));
    for (reason, tally) in rows.chain([&reading.unlisted]).flat_map(|tallies| &tallies.0) {
        let sum = sums.entry(reason.label().to_owned()).or_default();
        *sum = sum.saturating_add(tally.packets);
    }
    sums
}
