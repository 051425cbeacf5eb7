//! Tests of the files for Prometheus and Grafana, with promtool and with a scrape of the running daemon.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use integration_test::lab::Lab;
use netlab::needs_root;
use serde_json::Value;

const RULES: &str = "dist/prometheus/alerts.yml";
const RULES_TEST: &str = "integration-test/tests/prometheus/alerts_test.yml";
const DASHBOARD: &str = "dist/grafana/ratelimitd.json";

/// Metrics that Prometheus itself adds.
const OTHERS: [&str; 1] = ["up"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the path of promtool: from `PROMTOOL`, which `cargo xtask test` sets, or from PATH.
fn promtool() -> Option<PathBuf> {
    let on_path =
        || env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join("promtool")).find(|path| path.is_file());
    env::var_os("PROMTOOL").map(PathBuf::from).or_else(on_path)
}

fn no_promtool() -> Option<String> {
    promtool().is_none().then(|| "there is no promtool: `cargo xtask setup` unpacks one".to_owned())
}

fn accept(arguments: &[&str], stdin: Option<&Path>) {
    let mut command = Command::new(promtool().unwrap());
    command.args(arguments).current_dir(root());
    if let Some(path) = stdin {
        command.stdin(std::fs::File::open(path).unwrap());
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "promtool {arguments:?}: {said:?}");
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Returns every expression of the dashboard as Grafana sends it.
fn queries() -> Vec<String> {
    fn gather(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
                Some(text) if name == "expr" || name == "definition" => found.push(text.to_owned()),
                Some(_) | None => gather(value, found),
            }),
            Value::Array(items) => items.iter().for_each(|item| gather(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&text(DASHBOARD)).unwrap();
    let mut found = Vec::new();
    gather(&dashboard, &mut found);
    let sent = |text: String| {
        // A variable's list of values is no query. It contains the metric's name.
        let text = match text.strip_prefix("label_values(").and_then(|rest| rest.split_once(',')) {
            Some((metric, _)) => metric.to_owned(),
            None => text,
        };
        text.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$rule", ".*")
    };
    found.into_iter().map(sent).collect()
}

/// Returns the names of this project's metrics in expressions. A histogram's buckets have the histogram's name.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words = words.filter(|word| word.starts_with("ratelimitd_"));
    words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires_where_it_is_meant_to_and_nowhere_else() {
    needs_root!(no_promtool());
    accept(&["check", "rules", RULES], None);
    accept(&["test", "rules", RULES_TEST], None);
    let (rules, tests) = (text(RULES), text(RULES_TEST));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    for alert in alerts {
        for outcome in ["fires", "stays silent"] {
            assert!(tests.contains(&format!("name: {alert} {outcome}")), "{alert} has no test where it {outcome}");
        }
    }
}

#[test]
fn each_query_of_the_dashboard_is_parsed_and_each_metric_is_in_a_scrape() {
    needs_root!(no_promtool());
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "5/1m", "--count", "connections", "--block-for", "1m"]);
    let scrape = lab.directory().join("metrics");
    let mut curl = lab.command("curl");
    curl.args(["-fsS", "-o"]).arg(&scrape).arg("--unix-socket").arg(lab.socket()).arg("http://localhost/metrics");
    assert!(curl.status().unwrap().success());
    accept(&["check", "metrics"], Some(&scrape));
    let scraped = std::fs::read_to_string(&scrape).unwrap();
    let there: BTreeSet<_> =
        scraped.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();

    let queries = queries();
    assert!(queries.len() > 15, "{queries:?}");
    let rules: Vec<_> = queries.iter().enumerate().map(|(at, query)| record(at, query)).collect();
    let recorded = lab.directory().join("dashboard.yml");
    std::fs::write(&recorded, format!("groups:\n  - name: dashboard\n    rules:\n{}", rules.concat())).unwrap();
    accept(&["check", "rules", recorded.to_str().unwrap()], None);

    let named = queries.iter().map(|query| metrics(query)).chain([metrics(&text(RULES))]);
    for metric in named.flatten() {
        assert!(there.contains(metric.as_str()) || OTHERS.contains(&metric.as_str()), "{metric} is in no scrape");
    }
}

/// Returns a recording rule with this query, so that promtool parses the query.
fn record(at: usize, query: &str) -> String {
    format!("      - record: query:{at}\n        expr: {}\n", serde_json::to_string(query).unwrap())
}

#[test]
fn the_scrape_configuration_names_the_alerts_and_is_accepted() {
    needs_root!(no_promtool());
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("ratelimitd-alerts.yml");
    std::fs::copy(root().join(RULES), &rules).unwrap();
    let shipped = text("dist/prometheus/scrape.yml");
    let named = "/etc/prometheus/ratelimitd-alerts.yml";
    assert!(shipped.contains(named));
    let config = directory.path().join("prometheus.yml");
    std::fs::write(&config, shipped.replace(named, rules.to_str().unwrap())).unwrap();
    accept(&["check", "config", config.to_str().unwrap()], None);
}
