//! Checks of the access logs of servers on this host: finds logs that a rule could read.

use ratelimit_common::layout::Unit;
use ratelimit_policy::config::{Config, LOGS_MAX};
use ratelimit_policy::desired::{AccessLog, Rule};

use super::AS_ROOT;
use crate::facts::{Facts, OpenLog, Readers, Server};
use crate::finding::{Finding, Subject};

const WHY: &str = "without its log, clients of HTTP/2 and HTTP/3 that share records exceed a limit of requests";

/// Socket that servers send log lines to, as the documentation spells it.
const SOCKET: &str = "unix:/run/ratelimitd/log.sock group=GROUP";
const HAS_LINE: &str = "GROUP is the server's; share/doc/ratelimitd/docs/ACCESS-LOG.md has the line for";

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
            format!("in rule {}: {}; {HAS_LINE} {name}", rule.name, line(rule, &[SOCKET.to_owned()])),
        );
    }
    let unread: Vec<_> = logs.iter().filter(|log| !is_read(&AccessLog::File(log.path.clone()))).collect();
    let all = names(logs).join(", ");
    if unread.is_empty() {
        return subject.ok(format!("{name} writes {all}, which a rule reads"));
    }
    let of_unread = names(unread.iter().copied()).join(", ");
    subject.warning(format!("{name} writes {all}, and no rule reads {of_unread}"), mend(&unread, rule, name))
}

fn names<'a>(logs: impl IntoIterator<Item = &'a OpenLog>) -> Vec<String> {
    logs.into_iter().map(|log| log.path.display().to_string()).collect()
}

/// Returns the key `access_log` with the logs that a rule reads and `more`.
fn line(rule: &Rule, more: &[String]) -> String {
    let names = rule.access_logs.iter().map(ToString::to_string).chain(more.iter().cloned());
    let quoted: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    format!("access_log = [{}]", quoted.join(", "))
}

/// Returns the remedy after which a rule also reads these logs of a server.
fn mend(unread: &[&OpenLog], rule: &Rule, server: &str) -> String {
    if rule.access_logs.len() + unread.len() > LOGS_MAX {
        return format!(
            "a rule reads at most {LOGS_MAX} logs: have {server} send them to one socket, {SOCKET}, instead of some \
             logs in rule {}; {HAS_LINE} {server}",
            rule.name
        );
    }
    let mut mend = format!("in rule {}: {}", rule.name, line(rule, &names(unread.iter().copied())));
    let mut groups: Vec<&str> = Vec::new();
    for log in unread {
        match &log.readers {
            Readers::Everyone => {}
            Readers::Group(group) if groups.contains(&group.as_str()) => {}
            Readers::Group(group) => groups.push(group),
            Readers::Owner => mend.push_str(&format!(
                "; only its owner may read {}: have its server or logrotate make it with mode 0640",
                log.path.display()
            )),
        }
    }
    if !groups.is_empty() {
        let groups = groups.join(" ");
        mend.push_str(&format!(
            "; and for the unit, by `systemctl edit ratelimitd`: [Service] SupplementaryGroups={groups}"
        ));
    }
    mend
}
