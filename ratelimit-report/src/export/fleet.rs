//! Metrics of the fleet. Without a fleet there are no samples, so that no alert fires.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::{Labels, family, gauge};
use crate::fleet::{Fleet, FleetLimit, FleetState, RoundSeconds};

/// Writes all metrics of the fleet.
pub(super) fn metrics(out: &mut DescriptorEncoder<'_>, fleet: &Fleet) -> fmt::Result {
    let is_on = fleet.state != FleetState::Off;
    let of = is_on.then_some(fleet);
    let alone = |value: ConstGauge<u64>| (Labels::new(), value);
    let connected = |of: &Fleet| gauge(u64::from(of.state != FleetState::Away));
    let help = "Whether the fleet's store answers in time; otherwise each host enforces its limits alone";
    family(out, "ratelimitd_fleet_connected", help, of.map(|of| alone(connected(of))))?;
    let help = "Hosts of the fleet heard from in the last minute, including this one";
    family(out, "ratelimitd_fleet_hosts", help, of.map(|of| alone(gauge(of.hosts))))?;
    let answered = of.map(|of| ("ok", of.rounds));
    let failed = of.into_iter().flat_map(|of| &of.failures).map(|(why, count)| (why.as_str(), *count));
    let rounds = answered.into_iter().chain(failed);
    family(
        out,
        "ratelimitd_fleet_rounds",
        "Exchanges with the fleet's store: ok, or the cause of the failure",
        rounds.map(|(outcome, count)| (vec![("outcome", outcome)], ConstCounter::new(count))),
    )?;
    let help = "Duration of answered exchanges with the fleet's store";
    family(out, "ratelimitd_fleet_round_seconds", help, of.map(|of| (Labels::new(), Histogram(&of.round_seconds))))?;
    type Count = fn(&Fleet) -> u64;
    let counts: [(&str, &str, Count); 3] = [
        ("ratelimitd_fleet_reports", "Counts of sources that the fleet's store accepted", |of| of.reports),
        (
            "ratelimitd_fleet_reports_lost",
            "Counts that were not reported to the fleet for lack of room; other hosts do not count them",
            |of| of.reports_lost,
        ),
        (
            "ratelimitd_fleet_garbage",
            "Ignored sums from the fleet's store, because they exceed what all hosts can have admitted",
            |of| of.garbage,
        ),
    ];
    for (name, help, count) in counts {
        family(out, name, help, of.map(|of| (Labels::new(), ConstCounter::new(count(of)))))?;
    }
    let skew = of.and_then(|of| of.clock_ahead_seconds);
    let help = "This host's clock minus the clock of the fleet's store";
    family(out, "ratelimitd_fleet_clock_skew_seconds", help, skew.map(|of| (Labels::new(), ConstGauge::new(of))))?;
    let times: [(&str, &str, Option<f64>); 2] = [
        (
            "ratelimitd_fleet_round_trip_seconds",
            "Longest answer time of the fleet's store in the last 30 s",
            of.and_then(|of| of.round_trip_seconds),
        ),
        (
            "ratelimitd_fleet_delay_seconds",
            "Longest time that a report takes to reach the other hosts; the bound counts what is sent within it",
            of.and_then(|of| of.delay_seconds),
        ),
    ];
    for (name, help, seconds) in times {
        family(out, name, help, seconds.map(|of| (Labels::new(), ConstGauge::new(of))))?;
    }
    let limits = || of.into_iter().flat_map(|of| &of.limits);
    let help = "Maximum that the fleet admits of a source in a window of the limit at present";
    family(out, "ratelimitd_fleet_bound", help, limits().map(|of| (labels(of), gauge(of.bound))))?;
    let help = "Whether the fleet sums the limit now; otherwise each host enforces it alone";
    family(out, "ratelimitd_fleet_summed", help, limits().map(|of| (labels(of), gauge(u64::from(of.summed)))))
}

fn labels(of: &FleetLimit) -> Labels<'_> {
    vec![("rule", &of.rule), ("limit", &of.text)]
}

/// Histogram that was counted elsewhere.
struct Histogram<'a>(&'a RoundSeconds);

impl TypedMetric for Histogram<'_> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let RoundSeconds { sum, up_to, counts } = self.0;
        let ends = up_to.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = ends.zip(counts.iter().copied().chain(std::iter::repeat(0))).collect();
        let count = buckets.iter().map(|of| of.1).sum();
        encoder.encode_histogram::<NoLabelSet>(*sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::metrics;
    use super::*;
    use crate::fixture;
    use crate::snapshot::Snapshot;

    fn text(fleet: Fleet) -> String {
        metrics(Arc::new(Snapshot { fleet, ..fixture::snapshot() })).unwrap()
    }

    fn samples(text: &str) -> Vec<&str> {
        text.lines().filter(|line| line.starts_with("ratelimitd_fleet_")).collect()
    }

    #[test]
    fn a_fleet_is_told_with_its_exchanges_and_what_each_limit_admits() {
        assert_eq!(
            samples(&text(fixture::fleet())),
            [
                "ratelimitd_fleet_connected 1",
                "ratelimitd_fleet_hosts 2",
                "ratelimitd_fleet_rounds_total{outcome=\"ok\"} 70",
                "ratelimitd_fleet_rounds_total{outcome=\"hung\"} 2",
                "ratelimitd_fleet_rounds_total{outcome=\"moved\"} 1",
                "ratelimitd_fleet_round_seconds_sum 0.5",
                "ratelimitd_fleet_round_seconds_count 70",
                "ratelimitd_fleet_round_seconds_bucket{le=\"0.001\"} 40",
                "ratelimitd_fleet_round_seconds_bucket{le=\"0.005\"} 60",
                "ratelimitd_fleet_round_seconds_bucket{le=\"0.1\"} 68",
                "ratelimitd_fleet_round_seconds_bucket{le=\"+Inf\"} 70",
                "ratelimitd_fleet_reports_total 5678",
                "ratelimitd_fleet_reports_lost_total 9",
                "ratelimitd_fleet_garbage_total 1",
                "ratelimitd_fleet_clock_skew_seconds -0.25",
                "ratelimitd_fleet_round_trip_seconds 0.004",
                "ratelimitd_fleet_delay_seconds 0.1",
                "ratelimitd_fleet_bound{rule=\"default\",limit=\"1000/5m requests\"} 1250",
                "ratelimitd_fleet_summed{rule=\"default\",limit=\"1000/5m requests\"} 1",
            ]
        );
    }

    #[test]
    fn a_degraded_fleet_is_connected_and_one_that_is_away_is_not() {
        let of = |state| text(Fleet { state, ..fixture::fleet() });
        assert!(of(FleetState::Degraded).contains("ratelimitd_fleet_connected 1\n"));
        assert!(of(FleetState::Away).contains("ratelimitd_fleet_connected 0\n"));
    }

    #[test]
    fn without_a_fleet_there_is_no_sample() {
        assert_eq!(samples(&text(Fleet::default())), [""; 0]);
    }
}
