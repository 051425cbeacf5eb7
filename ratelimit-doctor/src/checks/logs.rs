//! Access logs of the servers that run here: which ones a rule could read.

use ratelimit_common::layout::Unit;
use ratelimit_policy::config::Config;
use ratelimit_policy::desired::{AccessLog, Rule};

use super::AS_ROOT;
use crate::facts::{Facts, Server};
use crate::finding::{Finding, Subject};

const WHY: &str = "without its log, clients of HTTP/2 and HTTP/3 that share records exceed a limit of requests";

pub(crate) fn all(facts: &Facts) -> Vec<Finding> {
    let Some(config) = facts.file.config() else { return Vec::new() };
    let counts = |rule: &&Rule| rule.limits.iter().any(|limit| limit.unit == Unit::Requests);
    let Some(rule) = config.policy.rules.iter().find(counts) else { return Vec::new() };
    facts.servers.iter().map(|server| of_server(server, config, rule)).collect()
}

fn of_server(server: &Server, config: &Config, rule: &Rule) -> Finding {
    let name = &server.name;
    let id = format!("logs.{}", name.to_lowercase());
    let subject = Subject::new("logs", &id, WHY);
    let logs = match &server.logs {
        Ok(logs) => logs,
        Err(why) => {
            return subject.unknown(format!("{name} runs; which logs it writes cannot be seen: {why}"), AS_ROOT);
        }
    };
    let is_read = |log: &AccessLog| config.policy.rules.iter().any(|rule| rule.access_logs.contains(log));
    let reads_socket = config
        .policy
        .rules
        .iter()
        .flat_map(|rule| &rule.access_logs)
        .any(|log| matches!(log, AccessLog::Socket { .. }));
    if logs.is_empty() {
        if reads_socket {
            return subject.ok(format!("{name} runs and writes no file; a rule reads a socket"));
        }
        return subject.warning(
            format!("{name} runs and writes no access log to a file"),
            format!(
                "in rule {}: access_log = [\"unix:/run/ratelimitd/log.sock\"]; share/doc/ratelimitd/docs/ACCESS-LOG.md has the line for {name}",
                rule.name
            ),
        );
    }
    let unread: Vec<_> = logs.iter().filter(|log| !is_read(&AccessLog::File(log.path.clone()))).collect();
    let paths = |logs: &[String]| logs.join(", ");
    let all: Vec<String> = logs.iter().map(|log| log.path.display().to_string()).collect();
    if unread.is_empty() {
        return subject.ok(format!("{name} writes {}, which a rule reads", paths(&all)));
    }
    let quoted: Vec<String> = unread.iter().map(|log| format!("\"{}\"", log.path.display())).collect();
    let mut groups: Vec<&str> = unread.iter().filter_map(|log| log.readers.as_deref()).collect();
    groups.sort_unstable();
    groups.dedup();
    let and = if groups.is_empty() {
        String::new()
    } else {
        format!(
            "; and for the unit, by `systemctl edit ratelimitd`: [Service] SupplementaryGroups={}",
            groups.join(" ")
        )
    };
    subject.warning(
        format!("{name} writes {}, and no rule reads {}", paths(&all), paths(&quoted)),
        format!("in rule {}: access_log = [{}]{and}", rule.name, paths(&quoted)),
    )
}
