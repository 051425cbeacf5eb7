//! Metrics: a snapshot in Prometheus text format. Knows [`Snapshot`] and nothing behind it. Labels never contain
//! addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::history::{Health, HealthState};
use crate::snapshot::{ByFamily, Counter, Hook, Interface, ListState, MapError, Mode, Rule, Snapshot};
use ratelimit_common::verdict::{Reason, SaidBy};

mod fleet;

/// Content type of the output of [`metrics`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics in the Prometheus text format.
pub fn metrics(snapshot: Arc<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exported(snapshot)));
    let mut open_metrics = String::new();
    text::encode_registry(&mut open_metrics, &registry)?;
    Ok(prometheus_text(&open_metrics))
}

/// Converts OpenMetrics to the Prometheus format, in which the family of a counter is named with `_total` like its
/// samples.
fn prometheus_text(open_metrics: &str) -> String {
    let mut counters: Vec<&str> = Vec::new();
    for line in open_metrics.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.push(name);
        }
    }
    let mut out = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(&name) => {
                out.push_str(&format!("# {kind} {name}_total {rest}\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[derive(Debug)]
struct Exported(Arc<Snapshot>);

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut encoder;
        build(out, &self.0)?;
        traffic(out, &self.0)?;
        sources(out, &self.0)?;
        state(out, &self.0)?;
        history(out, self.0.history.as_ref())?;
        fleet::metrics(out, &self.0.fleet)?;
        config(out, &self.0)
    }
}

fn build(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let labels = vec![("version", &*snapshot.version)];
    family(out, "ratelimitd_build_info", "The daemon's version, always 1", [(labels, gauge(1))])
}

fn traffic(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let rows = || snapshot.interfaces.iter().flat_map(|of| of.counters.iter().map(move |counter| (of, counter)));
    let rows = || rows().filter(|(_, counter)| can_be(counter));
    family(
        out,
        "ratelimitd_packets",
        "Packets by verdict and reason; the rule is empty if none judged them",
        rows().map(|(of, counter)| (traffic_labels(of, counter), ConstCounter::new(counter.packets))),
    )?;
    family(
        out,
        "ratelimitd_bytes",
        "Bytes of frames by verdict and reason; the rule is empty if none judged them",
        rows().map(|(of, counter)| (traffic_labels(of, counter), ConstCounter::new(counter.bytes))),
    )
}

fn sources(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let of = &snapshot.sources;
    let none = Labels::new;
    let ByFamily { ipv4, ipv6 } = of.tracked_by_family;
    let by_family = |[v4, v6]: [u64; 2]| [("ipv4", v4), ("ipv6", v6)].map(|(of, n)| (vec![("family", of)], gauge(n)));
    family(out, "ratelimitd_sources_tracked", "Sources tracked now", by_family([ipv4, ipv6]))?;
    let help = "Maximum number of tracked sources";
    family(out, "ratelimitd_sources_capacity", help, by_family([of.capacity; 2]))?;
    let over = |rule: &Rule| gauge(rule.sources_over_limit);
    family(
        out,
        "ratelimitd_sources_over_limit",
        "Sources over a limit of a rule now",
        snapshot.rules.iter().map(|rule| (vec![("rule", &*rule.name)], over(rule))),
    )?;
    family(
        out,
        "ratelimitd_bans_active",
        "Sources that a rule bans now",
        snapshot.rules.iter().map(|rule| (vec![("rule", &*rule.name)], gauge(rule.banned))),
    )?;
    let closed = &snapshot.connections;
    let help = "Open connections of denied or banned sources that were ended";
    family(out, "ratelimitd_connections_ended", help, [(none(), ConstCounter::new(closed.ended))])?;
    let help = "Connections that should have ended too, but were beyond the budget";
    family(out, "ratelimitd_connections_left_open", help, [(none(), ConstCounter::new(closed.left_open))])?;
    family(
        out,
        "ratelimitd_bans",
        "Bans that a rule has begun",
        snapshot.rules.iter().map(|rule| (vec![("rule", &*rule.name)], ConstCounter::new(rule.bans))),
    )?;
    let help = "Packets of sources that were not tracked";
    family(out, "ratelimitd_packets_not_admitted", help, [(none(), ConstCounter::new(of.not_admitted))])?;
    let help = "Old name of ratelimitd_packets_not_admitted_total; it counts packets";
    family(out, "ratelimitd_sources_not_admitted", help, [(none(), ConstCounter::new(of.not_admitted))])?;
    let help = "Newly tracked sources, counted for each limit separately";
    family(out, "ratelimitd_source_insertions", help, [(none(), ConstCounter::new(of.insertions))])?;
    let help = "Refused packets for which the drop cache had no room";
    family(out, "ratelimitd_refusals_not_cached", help, [(none(), ConstCounter::new(of.not_cached))])?;
    let help = "Sampling rate: one in this number of packets of new sources is counted; 1 without overload";
    family(out, "ratelimitd_sources_sampled_one_in", help, [(none(), gauge(of.sampled_one_in))])
}

fn state(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let help = "Lost events of sources that began to be refused or banned";
    family(out, "ratelimitd_events_lost", help, [(Labels::new(), ConstCounter::new(snapshot.events.lost))])?;
    let failed = |error: &MapError| ConstCounter::new(error.count);
    family(
        out,
        "ratelimitd_map_errors",
        "Map operations that failed in the packet path",
        snapshot.map_errors.iter().map(|error| (vec![("map", &*error.map), ("op", &*error.op)], failed(error))),
    )?;
    family(
        out,
        "ratelimitd_attached",
        "Whether the program is attached to the interface, and in which XDP mode",
        snapshot
            .interfaces
            .iter()
            .map(|of| (vec![("iface", &*of.name), ("mode", attached_mode(of))], gauge(u64::from(of.attached)))),
    )?;
    family(
        out,
        "ratelimitd_enforcing",
        "Whether the rule drops (1) or only counts (0)",
        snapshot.rules.iter().map(|rule| (vec![("rule", &*rule.name)], gauge(enforcing(rule.mode)))),
    )?;
    let has_fallen_back = |rule: &Rule| u64::from(snapshot.fallen_back.contains(&rule.name));
    family(
        out,
        "ratelimitd_fallen_back",
        "Whether the rule fell back to dry run because it dropped more than it may",
        snapshot.rules.iter().map(|rule| (vec![("rule", &*rule.name)], gauge(has_fallen_back(rule)))),
    )?;
    let is_panic = snapshot.hold.as_ref().is_some_and(|hold| hold.panic);
    let help = "Whether `ratelimitd panic` passes everything";
    family(out, "ratelimitd_panic", help, [(Labels::new(), gauge(u64::from(is_panic)))])?;
    let is_on_trial = snapshot.confirm_within_seconds.is_some();
    let help = "Whether a file is on trial: it is rolled back unless it is confirmed";
    family(out, "ratelimitd_trial", help, [(Labels::new(), gauge(u64::from(is_on_trial)))])
}

/// Writes the metrics of the history. A history that the configuration turns off never fails and loses nothing.
fn history(out: &mut DescriptorEncoder<'_>, health: Option<&Health>) -> fmt::Result {
    let fails = health.is_some_and(|of| of.state != HealthState::Ok);
    let help = "Whether the history is on but cannot be written";
    family(out, "ratelimitd_history_failing", help, [(Labels::new(), gauge(u64::from(fails)))])?;
    let lost = health.map_or(0, |of| of.lost);
    let help = "Records that the history lost because its queue was full";
    family(out, "ratelimitd_history_records_lost", help, [(Labels::new(), ConstCounter::new(lost))])?;
    let bytes = health.map_or(0, |of| of.bytes);
    family(out, "ratelimitd_history_bytes", "Size of the history's database", [(Labels::new(), gauge(bytes))])
}

/// Returns true if the counter's reason is possible for its rule, or for no rule. Counts of a removed rule stay without
/// one.
fn can_be(counter: &Counter) -> bool {
    let said_by = Reason::ALL.iter().find(|of| of.label() == counter.reason).map(|of| of.said_by());
    match said_by {
        Some(SaidBy::NoRule) => counter.rule.is_empty(),
        Some(SaidBy::Rule) => !counter.rule.is_empty() || counter.packets != 0,
        Some(SaidBy::Either) | None => true,
    }
}

fn config(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let config = &snapshot.config;
    let help = "List files that have changed and cannot be followed";
    let stale = snapshot.stale_lists.len();
    family(out, "ratelimitd_list_files_stale", help, [(Labels::new(), gauge(stale as u64))])?;
    access_logs(out, snapshot)?;
    let states = snapshot.lists.iter().flat_map(|list| {
        let row = |state: ListState| {
            let labels = vec![("file", &*list.file), ("state", state.label())];
            (labels, gauge(u64::from(state == list.state)))
        };
        ListState::ALL.map(row)
    });
    family(out, "ratelimitd_list_state", "Whether the list file is in this state", states)?;
    let help = "Whether the last reload succeeded and every list file is followed";
    let successful = gauge(u64::from(config.last_reload_successful && stale == 0));
    family(out, "ratelimitd_config_last_reload_successful", help, [(Labels::new(), successful)])?;
    let help = "Whether a file on trial was rolled back and no file took effect since";
    let rolled_back = gauge(u64::from(config.rolled_back.is_some()));
    family(out, "ratelimitd_config_rolled_back", help, [(Labels::new(), rolled_back)])?;
    let since_1970 = config.last_reload_success_at.duration_since(jiff::Timestamp::UNIX_EPOCH);
    family(
        out,
        "ratelimitd_config_last_reload_success_timestamp_seconds",
        "Time of the last successful reload",
        [(Labels::new(), ConstGauge::new(since_1970.as_secs_f64()))],
    )
}

fn access_logs(out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let logs = &snapshot.access_logs;
    let lines = logs.iter().flat_map(|of| {
        let row = |(outcome, lines)| (vec![("log", &*of.log), ("outcome", outcome)], ConstCounter::new(lines));
        of.lines.by_outcome().map(row)
    });
    family(out, "ratelimitd_access_log_lines", "Lines of access logs by outcome", lines)?;
    let skipped = logs.iter().map(|of| (vec![("log", &*of.log)], ConstCounter::new(of.skipped_bytes)));
    family(out, "ratelimitd_access_log_skipped_bytes", "Bytes of access logs that were skipped", skipped)?;
    let behind = logs.iter().map(|of| (vec![("log", &*of.log)], ConstGauge::new(of.behind_seconds)));
    family(
        out,
        "ratelimitd_access_log_behind_seconds",
        "Time since the reader last reached the end of an access log",
        behind,
    )?;
    let troubled = logs.iter().map(|of| (vec![("log", &*of.log)], gauge(u64::from(of.trouble.is_some()))));
    family(out, "ratelimitd_access_log_failing", "Whether requests are counted as without this access log", troubled)?;
    let added: BTreeMap<_, _> = logs.iter().flat_map(|of| &of.requests_added).collect();
    let added = added.into_iter().map(|(rule, count)| (vec![("rule", &**rule)], ConstCounter::new(*count)));
    family(out, "ratelimitd_access_log_requests_added", "Requests charged by access logs", added)?;
    let turns: BTreeMap<_, _> = logs.iter().flat_map(|of| &of.turn_requests_max).collect();
    let turns = turns.into_iter().map(|(rule, requests)| (vec![("rule", &**rule)], gauge(*requests)));
    let help = "Highest number of requests that one turn of a source is charged as";
    family(out, "ratelimitd_access_log_turn_requests_max", help, turns)
}

/// Writes one family of metrics. The name of a counter comes without `_total`.
fn family<'a, M: EncodeMetric + TypedMetric>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = (Labels<'a>, M)>,
) -> fmt::Result {
    let mut encoder = out.encode_descriptor(name, help, None, M::TYPE)?;
    for (labels, value) in rows {
        if labels.is_empty() {
            value.encode(encoder)?;
            break;
        }
        value.encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

fn traffic_labels<'a>(interface: &'a Interface, counter: &'a Counter) -> Labels<'a> {
    vec![
        ("iface", &interface.name),
        ("rule", &counter.rule),
        ("verdict", counter.verdict.label()),
        ("reason", &counter.reason),
    ]
}

fn gauge(value: u64) -> ConstGauge<u64> {
    ConstGauge::new(value)
}

fn attached_mode(interface: &Interface) -> &'static str {
    match (interface.xdp_mode, interface.hook) {
        (Some(mode), _) => mode.label(),
        (None, Some(Hook::Tcx)) => Hook::Tcx.label(),
        (None, Some(Hook::Xdp) | None) => "none",
    }
}

const fn enforcing(mode: Mode) -> u64 {
    match mode {
        Mode::Enforce => 1,
        Mode::DryRun => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::fixture;

    /// Names of all metrics for which the fixture has a value, as documented in docs/METRICS.md.
    const NAMES: [&str; 48] = [
        "ratelimitd_build_info",
        "ratelimitd_packets_total",
        "ratelimitd_bytes_total",
        "ratelimitd_sources_tracked",
        "ratelimitd_sources_capacity",
        "ratelimitd_sources_over_limit",
        "ratelimitd_sources_not_admitted_total",
        "ratelimitd_source_insertions_total",
        "ratelimitd_refusals_not_cached_total",
        "ratelimitd_sources_sampled_one_in",
        "ratelimitd_events_lost_total",
        "ratelimitd_map_errors_total",
        "ratelimitd_attached",
        "ratelimitd_bans_active",
        "ratelimitd_bans_total",
        "ratelimitd_connections_ended_total",
        "ratelimitd_connections_left_open_total",
        "ratelimitd_enforcing",
        "ratelimitd_list_files_stale",
        "ratelimitd_list_state",
        "ratelimitd_config_last_reload_successful",
        "ratelimitd_config_last_reload_success_timestamp_seconds",
        "ratelimitd_config_rolled_back",
        "ratelimitd_packets_not_admitted_total",
        "ratelimitd_fallen_back",
        "ratelimitd_panic",
        "ratelimitd_trial",
        "ratelimitd_history_failing",
        "ratelimitd_history_records_lost_total",
        "ratelimitd_history_bytes",
        "ratelimitd_fleet_connected",
        "ratelimitd_fleet_hosts",
        "ratelimitd_fleet_rounds_total",
        "ratelimitd_fleet_round_seconds",
        "ratelimitd_fleet_reports_total",
        "ratelimitd_fleet_reports_lost_total",
        "ratelimitd_fleet_garbage_total",
        "ratelimitd_fleet_clock_skew_seconds",
        "ratelimitd_fleet_round_trip_seconds",
        "ratelimitd_fleet_delay_seconds",
        "ratelimitd_fleet_bound",
        "ratelimitd_fleet_summed",
        "ratelimitd_access_log_lines_total",
        "ratelimitd_access_log_skipped_bytes_total",
        "ratelimitd_access_log_behind_seconds",
        "ratelimitd_access_log_failing",
        "ratelimitd_access_log_requests_added_total",
        "ratelimitd_access_log_turn_requests_max",
    ];

    /// Returns a snapshot in which every optional part has a value.
    fn snapshot() -> Snapshot {
        Snapshot { fleet: fixture::fleet(), access_logs: vec![fixture::access_log()], ..fixture::snapshot() }
    }

    /// Returns the family of a sample, which for a histogram is the name without its suffix.
    fn family_of<'a>(name: &'a str, kinds: &BTreeMap<&str, &str>) -> &'a str {
        let ends = ["_bucket", "_sum", "_count"];
        let whole = ends.iter().find_map(|end| name.strip_suffix(end));
        whole.filter(|whole| kinds.get(whole) == Some(&"histogram")).unwrap_or(name)
    }

    #[test]
    fn each_metric_has_help_and_type_under_the_name_of_its_samples() {
        let text = metrics(Arc::new(snapshot())).unwrap();
        let mut kinds = BTreeMap::new();
        let mut helped = BTreeSet::new();
        let mut series = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert!(helped.insert(rest.split(' ').next().unwrap()), "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(kinds.insert(name, kind).is_none(), "{line}");
            } else {
                let (labelled, value) = line.rsplit_once(' ').unwrap();
                let name = family_of(labelled.split('{').next().unwrap(), &kinds);
                assert!(kinds.contains_key(name) && helped.contains(name), "{line}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(series.insert(labelled), "twice: {line}");
            }
        }
        assert_eq!(kinds.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from(NAMES));
        assert!(!text.contains("# EOF"));
    }

    /// Returns the rows of docs/METRICS.md as first cell and further cells.
    fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
        let lines = include_str!("../../docs/METRICS.md").lines().filter(|line| line.starts_with("| `"));
        let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
        cells.map(|cells| (cells[0].trim_matches('`'), cells[1..].to_vec())).collect()
    }

    #[test]
    fn the_document_has_every_metric_with_its_type_and_labels_and_no_other() {
        let text = metrics(Arc::new(snapshot())).unwrap();
        for name in NAMES {
            let (_, cells) = rows().into_iter().find(|(of, _)| *of == name).expect(name);
            assert!(text.contains(&format!("# TYPE {name} {}\n", cells[0])), "{name}: {cells:?}");
            let sample = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
            let labels =
                sample.and_then(|line| line.split_once('{')?.1.rsplit_once('}')).map_or("", |(labels, _)| labels);
            let labels: Vec<_> = labels.split("\",").filter_map(|label| label.split_once('=')).map(|of| of.0).collect();
            let documented: Vec<_> = cells[1].split('`').skip(1).step_by(2).collect();
            assert_eq!(documented, labels, "{name}");
        }
        let chapter = include_str!("../../docs/METRICS.md");
        let is_name = |word: &&str| word.starts_with("ratelimitd_");
        for name in chapter.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(is_name) {
            assert!(NAMES.contains(&name), "there is no metric {name}");
        }
    }

    #[test]
    fn the_document_has_every_reason_with_its_verdict() {
        let rows: BTreeSet<_> = rows().into_iter().filter(|(name, _)| !name.starts_with("ratelimitd_")).collect();
        let documented: BTreeSet<_> = rows.iter().map(|(name, cells)| (*name, cells[0])).collect();
        let all = ratelimit_common::verdict::Reason::ALL.iter();
        let of_action = |action| if action == ratelimit_common::verdict::Action::Pass { "pass" } else { "drop" };
        assert_eq!(documented, all.map(|reason| (reason.label(), of_action(reason.action()))).collect());
    }

    #[test]
    fn a_series_is_there_where_its_rule_can_have_said_its_reason() {
        let mut snapshot = snapshot();
        let counter = |rule: &str, reason: Reason, packets| Counter {
            rule: rule.to_owned(),
            verdict: reason.action().into(),
            reason: reason.label().to_owned(),
            packets,
            bytes: 0,
        };
        snapshot.interfaces.truncate(1);
        snapshot.interfaces[0].counters = vec![
            counter("web", Reason::NotIp, 0),
            counter("web", Reason::Banned, 0),
            counter("web", Reason::InternalError, 0),
            counter("", Reason::NotIp, 0),
            counter("", Reason::OverLimit, 0),
            counter("", Reason::Banned, 7),
            counter("", Reason::InternalError, 0),
        ];
        let text = metrics(Arc::new(snapshot)).unwrap();
        let is_packets = |line: &&str| line.starts_with("ratelimitd_packets_total{");
        let said: Vec<_> = text.lines().filter(is_packets).filter_map(|line| line.split_once("rule=")).collect();
        let said: Vec<_> = said.iter().map(|(_, rest)| rest.replace("verdict=", "").replace("reason=", "")).collect();
        assert_eq!(
            said,
            [
                r#""web","drop","banned"} 0"#,
                r#""web","pass","internal_error"} 0"#,
                r#""","pass","not_ip"} 0"#,
                r#""","drop","banned"} 7"#,
                r#""","pass","internal_error"} 0"#,
            ]
        );
    }

    #[test]
    fn no_label_holds_an_address() {
        let snapshot = snapshot();
        let named: Vec<_> = snapshot.top.iter().flatten().map(|of| of.source.clone()).collect();
        assert!(!named.is_empty());
        let text = metrics(Arc::new(snapshot)).unwrap();
        assert!(named.iter().all(|source| !text.contains(source.as_str())), "{text}");
    }

    #[test]
    fn values_are_those_of_the_snapshot() {
        let text = metrics(Arc::new(snapshot())).unwrap();
        for line in [
            "ratelimitd_build_info{version=\"0.2.0\"} 1",
            "ratelimitd_packets_total{iface=\"eth0\",rule=\"default\",verdict=\"drop\",reason=\"over_limit\"} 40",
            "ratelimitd_packets_total{iface=\"eth0\",rule=\"\",verdict=\"pass\",reason=\"not_ip\"} 12",
            "ratelimitd_sources_capacity{family=\"ipv6\"} 262144",
            "ratelimitd_sources_tracked{family=\"ipv4\"} 5000",
            "ratelimitd_sources_tracked{family=\"ipv6\"} 120",
            "ratelimitd_source_insertions_total 5400",
            "ratelimitd_refusals_not_cached_total 31",
            "ratelimitd_sources_sampled_one_in 1",
            "ratelimitd_events_lost_total 7",
            "ratelimitd_attached{iface=\"eth1\",mode=\"none\"} 0",
            "ratelimitd_config_last_reload_success_timestamp_seconds 1767261600.0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_history_that_is_not_written_fails_unless_it_is_off_as_the_configuration_says() {
        let of = |history: Option<HealthState>| {
            let health = history.map(|state| Health { state, detail: None, lost: 9, waiting: 1, bytes: 4096 });
            let text = metrics(Arc::new(Snapshot { history: health, ..snapshot() })).unwrap();
            let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
            ["ratelimitd_history_failing ", "ratelimitd_history_records_lost_total ", "ratelimitd_history_bytes "]
                .map(value)
        };
        assert_eq!(of(None), ["0", "0", "0"]);
        assert_eq!(of(Some(HealthState::Ok)), ["0", "9", "4096"]);
        assert_eq!(of(Some(HealthState::Failing)), ["1", "9", "4096"]);
        assert_eq!(of(Some(HealthState::Off))[0], "1");
    }

    /// Checks the rules of `promtool check metrics`.
    #[test]
    fn each_metric_has_a_help_a_type_and_a_name_of_prometheus_habits() {
        let text = metrics(Arc::new(snapshot())).unwrap();
        let described = |what: &str| -> Vec<(String, String)> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' ')?.split_once(' '));
            lines.map(|(name, said)| (name.to_owned(), said.to_owned())).collect()
        };
        let (helps, types) = (described("# HELP"), described("# TYPE"));
        assert_eq!(helps.iter().map(|of| &of.0).collect::<Vec<_>>(), types.iter().map(|of| &of.0).collect::<Vec<_>>());
        assert!(helps.iter().all(|(_, help)| !help.is_empty()), "{helps:?}");
        let kinds: BTreeMap<_, _> = types.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
        let is_word = |name: &str| name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let name = family_of(name, &kinds);
            let kind = types.iter().find(|(of, _)| name == of || name.strip_suffix("_total") == Some(of));
            let (family, kind) = kind.unwrap_or_else(|| panic!("{line} has no type"));
            assert!(name.starts_with("ratelimitd_") && is_word(name), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line} is a {kind}, {family}");
            assert!(!["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{line}");
            let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
            assert!(labels.clone().all(|label| label.split_once("=\"").is_some_and(|of| is_word(of.0))), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
