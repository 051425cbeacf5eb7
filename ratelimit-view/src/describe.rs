//! Limits and configurations in words and as JSON, in one wording everywhere. Pure.

use std::fmt::Write as _;

use ratelimit_common::conversation::ACCOUNTED_BYTES;
use ratelimit_common::layout::Unit;
use ratelimit_common::verification::Side;

use ipnet::IpNet;

use super::condition_words;

use self::beside::{fleet_words, history_words, safety_words, shared_words};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::config::{Config, HookChoice, OnExit, Safety, XdpModeChoice, amount, duration};
use ratelimit_policy::desired::{
    AccessLog, Bans, DENIED_IPV4_PREFIX, DENIED_IPV6_PREFIX, Grant, Guard, Limit, Mode, NewSources, Per, Policy,
    Protocol, QuicPorts, Refuse, RefuseWith, Rule, Unparsable, WindowForm, date, unit_label,
};
use ratelimit_report::snapshot::{GUARDED_CONNECTIONS, GUARDED_SEGMENTS, guard_shown};

pub use self::beside::acl_words;
pub use self::json::{ConfigJson, InvalidJson};
pub use self::memory::{CachesMemory, Memory, caches_memory, memory, memory_bytes, memory_short};
pub use self::per_cpu::{idle_cpus, per_cpu_bytes, per_cpu_words};
pub use self::prefixes::{PrefixesMemory, prefixes_memory, prefixes_warning, prefixes_words};
pub use self::start::first_line;

mod beside;
mod json;
mod memory;
mod per_cpu;
mod prefixes;
mod start;

/// Maximum number of prefixes that are named one by one.
const PREFIXES_NAMED_MAX: usize = 8;
/// Columns of a description, and the columns before its values.
const WIDTH_MAX: usize = 100;
const INDENT: usize = 12;

/// Formats an amount with its unit: `1 connection`, `1000 packets`, `50MB`.
pub fn quantity(amount: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => amount::size(amount),
        Unit::Requests | Unit::Connections | Unit::Packets if amount == 1 => {
            format!("1 {}", unit_label(unit).trim_end_matches('s'))
        }
        Unit::Requests | Unit::Connections | Unit::Packets => format!("{amount} {}", unit_label(unit)),
    }
}

/// Formats a limit as a phrase: `1000 connections in 5 minutes`, `5000 requests in 1 minute of a whole /24 or /56`, `5
/// requests in 1 minute with path=/login`.
pub fn limit_short(limit: &Limit) -> String {
    let whose = match limit.per {
        Per::Source => String::new(),
        Per::Prefix { v4, v6 } => format!(" of a whole /{v4} or /{v6}"),
        Per::List => " of the whole list".to_owned(),
    };
    let condition = condition_words(limit.condition);
    format!("{} in {}{whose}{condition}", quantity(limit.amount, limit.unit), duration::words(limit.window_ns))
}

/// Describes a limit in full: the phrase, the form of its window, its buckets, and its guarantee.
pub fn limit_words(limit: &Limit) -> String {
    let form = limit.form.label();
    let buckets = match limit.form {
        WindowForm::Strict | WindowForm::Lenient => {
            format!("{form}; buckets of {}", duration::words(limit.bucket_ns))
        }
        WindowForm::Fixed => format!("{form}; one bucket of {}", duration::words(limit.bucket_ns)),
        WindowForm::Gcra => form.to_owned(),
    };
    let burst = match (limit.form, limit.burst) {
        (WindowForm::Strict | WindowForm::Lenient, Some(burst)) => {
            format!("; at most {} of it in one bucket", quantity(burst, limit.unit))
        }
        (WindowForm::Strict | WindowForm::Lenient, None) | (WindowForm::Fixed | WindowForm::Gcra, _) => String::new(),
    };
    format!("{} ({buckets}: {}{burst})", limit_short(limit), bound(limit))
}

/// Describes the guarantee of the window's form.
fn bound(limit: &Limit) -> String {
    let window = duration::words(limit.window_ns);
    let bucket = duration::words(limit.bucket_ns);
    let of_unit = |amount: u64| match limit.unit {
        Unit::Bytes => amount::size(amount),
        Unit::Requests | Unit::Connections | Unit::Packets => amount.to_string(),
    };
    match limit.form {
        WindowForm::Strict => format!(
            "never more than {} in any {}; {} may wait up to {bucket} longer",
            of_unit(limit.amount),
            // "any minute", but "any 5 minutes" and "any 1 hour 30 minutes".
            window.strip_prefix("1 ").filter(|unit| !unit.contains(' ')).unwrap_or(&window),
            if limit.per == Per::Source { "a source" } else { "its sources" }
        ),
        WindowForm::Lenient => {
            format!("up to {} in {window} where two windows meet", of_unit(limit.amount.saturating_mul(2)))
        }
        WindowForm::Fixed => {
            format!("up to {} in {window} where two windows meet", of_unit(limit.amount.saturating_mul(2)))
        }
        WindowForm::Gcra => format!(
            "{} at once, and then {} in {window}, evenly",
            of_unit(limit.burst.unwrap_or(limit.amount)),
            of_unit(limit.amount)
        ),
    }
}

/// Describes a configuration in words, as complete lines.
pub fn config_words(config: &Config) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "{name:<11} {}", wrapped(value));
    };
    line("interfaces", &config.interfaces.join(", "));
    line("hook", hook_words(config.hook));
    line("XDP mode", xdp_words(config.xdp_mode));
    line("on exit", exit_words(config.on_exit));
    line("sources", &format!("IPv4 by /{}, IPv6 by /{}", config.policy.ipv4_prefix, config.policy.ipv6_prefix));
    let granted = |grant| some_of(&config.policy.prefixes(grant).collect::<Vec<_>>()).unwrap_or("none".to_owned());
    line("allowed", &granted(Grant::Exempt));
    if config.policy.prefixes(Grant::Denied).next().is_some() {
        line("denied", &granted(Grant::Denied));
    }
    if config.safety != Safety::default() {
        line("safety", &safety_words(config.safety));
    }
    for rule in &config.policy.rules {
        line("rule", &format!("{}: {}", rule.name, mode_words(rule.mode)));
        if let Some((_, note)) = config.notes.iter().find(|(name, _)| *name == rule.name) {
            line("  note", note);
        }
        if let Some(until) = rule.until {
            line("  until", &format!("{}, and then the rules after it judge", date(until)));
        }
        if let Some(from) = some_of(&rule.from) {
            line("  from", &from);
        }
        if let Some(to) = some_of(&rule.to) {
            line("  to", &to);
        }
        line("  ports", &ports_words(rule));
        for limit in &rule.limits {
            line("  limit", &limit_words(limit));
            if let Some(words) = shared_words(config, limit) {
                line("  fleet", &words);
            }
        }
        for limit in &rule.shadow_limits {
            line("  shadow", &format!("{}: counted, never enforced", limit_short(limit)));
        }
        if let Some((_, candidates)) = config.candidates.iter().find(|(name, _)| *name == rule.name) {
            let amounts: Vec<String> = candidates.iter().map(limit_short).collect();
            line("  candidates", &format!("{}: compared with what is observed", amounts.join(", ")));
        }
        line("  refuses", refuse_words(rule));
        if let Some(words) = told_words(rule, answers(config)) {
            line("  answers", &words);
        }
        for words in guard_words(rule) {
            line("  guard", &words);
        }
        if let Some(bans) = &rule.bans {
            line("  bans", &bans_words(bans));
            if rule.block_kill {
                line("  kills", "the source's open connections to these ports, when it is banned");
            }
        }
        if let Some(sources) = rule.block_prefix_after {
            line(
                "  bans",
                &format!("{} as well, once {sources} of its sources are banned", denied_with(&config.policy)),
            );
        }
        if let Some(of) = rule.new_sources {
            line("  new sources", &new_sources_words(of));
        }
        if rule.quic_ports != QuicPorts::DEFAULT {
            line("  QUIC", &format!("on UDP ports: {}; elsewhere each datagram is a request", rule.quic_ports));
        }
        for log in &rule.access_logs {
            let others = others_with(&config.policy, rule, log);
            let also = if others.is_empty() { String::new() } else { format!("; {}", shared_log_words(&others)) };
            line("  access log", &format!("{log}{also}"));
        }
        if let Some(words) = multiplexed_words(rule) {
            line("  HTTP/2", words);
        }
        if rule.unparsable == Unparsable::Count {
            line("  unparsable", "counts as a request that opens a connection");
        }
        if rule.under_attack_ok {
            line("  breaker", "leaves this rule alone");
        }
    }
    for (position, memory) in memory(config).iter().enumerate() {
        let name = if position == 0 { "memory" } else { "" };
        line(name, &memory::of_sources_words(memory));
    }
    line("", &memory::of_caches_words(&caches_memory(config)));
    line("", &memory::of_connections_words());
    line("", &memory::of_bans_words());
    line("", &format!("together {}, allocated at the start", amount::rounded(memory_bytes(config))));
    for (position, words) in lists_words(config).iter().enumerate() {
        line(if position == 0 { "lists" } else { "" }, words);
    }
    line("history", &history_words(&config.history));
    for (position, words) in config.fleet.iter().flat_map(fleet_words).enumerate() {
        line(if position == 0 { "fleet" } else { "" }, &words);
    }
    line("socket", &config.socket.display().to_string());
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    line("listen", &config.listen.map_or_else(|| "off".to_owned(), |listen| format!("{scheme}://{listen}")));
    out
}

/// Wraps a value at 100 columns. Further lines are indented to align with the first.
fn wrapped(value: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in value.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH_MAX - INDENT {
            out += &format!("\n{:INDENT$}", "");
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out
}

/// Names the first prefixes and the number of others. Returns none if there are no prefixes.
fn some_of(prefixes: &[IpNet]) -> Option<String> {
    let named: Vec<String> = prefixes.iter().take(PREFIXES_NAMED_MAX).map(ToString::to_string).collect();
    let more = prefixes.len() - named.len();
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{and}", named.join(", ")))
}

/// Returns notes for a start. They concern request limits that do not bound clients with several requests in one
/// record, and rules that share a log.
pub fn access_log_notes(policy: &Policy) -> Vec<String> {
    let note = |rule: &Rule| {
        let multiplexed = multiplexed_words(rule).filter(|_| rule.access_logs.is_empty());
        let multiplexed = multiplexed.map(|words| format!("rule {}: HTTP/2 {words}", rule.name));
        let shared = rule.access_logs.iter().filter_map(|log| {
            let others = others_with(policy, rule, log);
            (!others.is_empty()).then(|| format!("rule {}: access log {log} {}", rule.name, shared_log_words(&others)))
        });
        multiplexed.into_iter().chain(shared).collect::<Vec<String>>()
    };
    policy.rules.iter().flat_map(note).collect()
}

/// Names the later rules that have the same log and judge sources that this rule judges. A log line does not name the
/// port of its request.
fn others_with<'a>(policy: &'a Policy, rule: &Rule, log: &AccessLog) -> Vec<&'a str> {
    let behind = policy.rules.iter().skip_while(|of| of.name != rule.name).skip(1);
    let shares = |of: &&Rule| of.access_logs.contains(log) && (rule.from.is_empty() || rule.from == of.from);
    behind.filter(shares).map(|of| of.name.as_str()).collect()
}

fn shared_log_words(others: &[&str]) -> String {
    let (rules, have) = if others.len() == 1 { ("rule", "has") } else { ("rules", "have") };
    format!("is read only for this rule, though {rules} {} {have} it: give each rule's ports a log", others.join(", "))
}

/// Describes how tightly the rule bounds clients that send several requests in one record, as HTTP/2 and HTTP/3 clients
/// can. None if the rule limits no requests on ports that speak TLS.
fn multiplexed_words(rule: &Rule) -> Option<&'static str> {
    let is_secure = [443, 8443].iter().any(|port| rule.ports.holds(Protocol::Tcp, *port));
    if !is_secure || !rule.limits.iter().any(|limit| limit.unit == Unit::Requests) {
        return None;
    }
    Some(if rule.access_logs.is_empty() {
        "and HTTP/3: requests that share a record count as one, so such clients exceed the limit; remedies: an \
         access_log, fewer streams in the server (http2_max_concurrent_streams), an additional limit of connections"
    } else {
        "and HTTP/3: each window admits the limit and the requests in flight before its first lines are read, \
         connections times streams"
    })
}

/// Describes how long a rule bans: `1 minute, then 10 minutes, then 1 hour for each time after; reset 24 hours after a
/// ban`.
pub fn bans_words(bans: &Bans) -> String {
    let steps: Vec<String> = bans.steps_ns.iter().map(|step_ns| duration::words(*step_ns)).collect();
    let after = if steps.len() > 1 { " for each time after" } else { "" };
    let proof = if bans.needs_proof { "" } else { "; by unverified traffic too" };
    format!("{}{after}; reset {} after a ban{proof}", steps.join(", then "), duration::words(bans.forget_ns))
}

fn hook_words(hook: HookChoice) -> &'static str {
    match hook {
        HookChoice::Auto => "auto: XDP, or TCX if another program uses XDP",
        HookChoice::Xdp => "XDP only",
        HookChoice::Tcx => "TCX: beside other programs, about 350 ns a packet more",
    }
}

fn xdp_words(mode: XdpModeChoice) -> &'static str {
    match mode {
        XdpModeChoice::Auto => "auto: native if the driver supports it, else generic",
        XdpModeChoice::Native => "native only",
        XdpModeChoice::Generic => "generic: works everywhere, costs several times as much",
    }
}

fn exit_words(on_exit: OnExit) -> &'static str {
    match on_exit {
        OnExit::Detach => "detach: nothing is limited after the daemon ends",
        OnExit::Keep => "keep: limits stay enforced after the daemon ends, until `ratelimitd detach`",
    }
}

fn mode_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::DryRun => "DRY RUN, nothing is dropped",
    }
}

fn ports_words(rule: &Rule) -> String {
    if rule.ports.other_protocols {
        return "all ports of TCP and UDP, and every other protocol".to_owned();
    }
    let is_same = rule.ports.tcp == rule.ports.udp;
    format!("{}{}", rule.ports, if is_same { " (TCP and UDP)" } else { "" })
}

/// Says which clients a rule notifies of a refusal, and how. None if it drops refused packets without notice.
fn told_words(rule: &Rule, answers: bool) -> Option<String> {
    if rule.refuse_with == RefuseWith::Drop {
        return None;
    }
    if rule.ports.tcp.is_empty() && !rule.ports.other_protocols {
        return Some("nobody: the rule has no TCP port, and only TCP refusals are answered".to_owned());
    }
    let when = if rule.mode == Mode::DryRun { "once it is enforced, " } else { "" };
    let mut words = format!("{when}verified clients with a reset");
    if rule.refuse_with == RefuseWith::Page {
        words.push_str(if answers {
            "; in native mode, clear-text HTTP/1 requests with a 429 page"
        } else {
            "; only XDP in native mode sends a page"
        });
    }
    if rule.limits.iter().any(|limit| limit.unit == Unit::Connections) {
        words.push_str(if answers {
            "; in native mode, also clients whose SYN is over a limit of connections"
        } else {
            "; SYNs over a limit of connections are dropped, except by XDP in native mode"
        });
    }
    Some(words)
}

/// Returns whether the program may answer packets, which it can at XDP in native mode.
fn answers(config: &Config) -> bool {
    config.xdp_mode != XdpModeChoice::Generic && config.hook != HookChoice::Tcx
}

/// Names the prefixes that are denied together with the sources in them.
fn denied_with(policy: &Policy) -> &'static str {
    match (policy.ipv4_prefix > DENIED_IPV4_PREFIX, policy.ipv6_prefix > DENIED_IPV6_PREFIX) {
        (true, true) => "a /24 or /56",
        (true, false) => "a /24 of IPv4",
        (false, true) => "a /56 of IPv6",
        (false, false) => "no prefix, as a source is as large,",
    }
}

/// Returns the bounds that the guard adds to request limits, one line each. Empty if the rule cannot have a guard.
fn guard_words(rule: &Rule) -> Vec<String> {
    match (rule.refuse, rule.guard) {
        _ if !rule.is_guardable() => Vec::new(),
        (Refuse::All, _) => vec!["off, because refuse is \"all\"".to_owned()],
        (Refuse::Excess, Guard::Off) => vec!["off: traffic that is not counted as a request has no bound".to_owned()],
        (Refuse::Excess, Guard::Auto) => rule.guarded().flat_map(|limit| guarded_words(rule, limit)).collect(),
    }
}

/// Returns the bounds of one limit's guard, a line for TCP and one for QUIC.
fn guarded_words(rule: &Rule, limit: &Limit) -> Vec<String> {
    let (layout, window) = (limit.layout(), duration::words(limit.window_ns));
    let connections = layout.amount_on(Side::Attempts).saturating_add(layout.amount_on(Side::Opened));
    // A leaky bucket makes no source suspect.
    let connections = match limit.form {
        WindowForm::Gcra => String::new(),
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
            format!("{connections} {GUARDED_CONNECTIONS}, and ")
        }
    };
    let segments = layout.amount_on(Side::Segments);
    let of_tcp = format!(
        "at most {connections}{segments} {GUARDED_SEGMENTS} (long ones count once per {} KB), in {window}",
        ACCOUNTED_BYTES >> 10
    );
    let datagrams = guard_shown(layout.amount_on(Side::Datagrams), Side::Datagrams);
    let of_quic =
        format!("QUIC: at most {datagrams} datagrams that are no request (those of a body count half), in {window}");
    let held = [(!rule.ports.tcp.is_empty(), of_tcp), (rule.protects_quic(), of_quic)];
    held.into_iter().filter_map(|(is_held, words)| is_held.then_some(words)).collect()
}

fn refuse_words(rule: &Rule) -> &'static str {
    match rule.refuse {
        Refuse::Excess => "excess: what is over a limit; what was admitted continues",
        Refuse::All => {
            "all: everything from a source over a limit, until the bucket after its last refusal, and then until its window frees"
        }
    }
}

/// Describes a budget of new sources.
fn new_sources_words(of: NewSources) -> String {
    let window = duration::words(of.window_ns);
    format!("at most {} in {window}; packets of further ones are dropped", of.amount)
}

/// Returns the number of prefixes of each named list and list file, and the memory if there are many.
fn lists_words(config: &Config) -> Vec<String> {
    let count = |count: usize| format!("{count} prefix{}", if count == 1 { "" } else { "es" });
    let named = config.lists.iter().map(|(name, len)| format!("@{name}: {}", count(*len)));
    let file = |file: &ListFile| format!("{} ({}): {}", file.path.display(), file.named_by, count(file.prefixes.len()));
    named.chain(config.list_files.iter().map(file)).chain(prefixes_words(&prefixes_memory(config))).collect()
}

/// Converts a duration to seconds for JSON.
pub fn seconds(duration_ns: u64) -> f64 {
    std::time::Duration::from_nanos(duration_ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use ratelimit_policy::desired::Ports;

    use super::*;

    fn limit(unit: Unit, form: WindowForm) -> Limit {
        let minute = 60_000_000_000;
        Limit {
            amount: 1_000,
            unit,
            window_ns: 5 * minute,
            buckets: 5,
            bucket_ns: minute,
            form,
            burst: None,
            slot: 0,
            shared: None,
            per: Per::Source,
            condition: None,
        }
    }

    #[test]
    fn a_rule_for_requests_over_tls_says_how_far_it_bounds_shared_records() {
        let ports = |port| Ports { tcp: vec![(port, port)], udp: Vec::new(), other_protocols: false };
        let rule = |port, unit| Rule::new("web".into(), ports(port), vec![limit(unit, WindowForm::Strict)]);
        assert_eq!(multiplexed_words(&rule(80, Unit::Requests)), None);
        assert_eq!(multiplexed_words(&rule(443, Unit::Connections)), None);
        let mut secure = rule(443, Unit::Requests);
        assert!(multiplexed_words(&secure).unwrap().contains("exceed the limit"));
        secure.access_logs = vec![AccessLog::File("/var/log/nginx/access.log".into())];
        assert!(multiplexed_words(&secure).unwrap().contains("in flight before its first lines are read"));
    }

    #[test]
    fn a_log_that_two_rules_of_the_same_sources_have_is_said_to_be_read_for_the_first() {
        let notes = |rules: &[(&str, &str)]| {
            let rules = rules.iter().map(|(name, more)| {
                format!(
                    "[[rule]]\nname = \"{name}\"\nports = [80]\nlimits = [\"9/1m\"]\naccess_log = [\"/log\"]\n{more}\n"
                )
            });
            let text = format!("interfaces = [\"eth0\"]\n{}", rules.collect::<String>());
            let config =
                ratelimit_policy::config::file::parse(std::path::Path::new("r.toml"), &text, |_| unreachable!());
            access_log_notes(&config.expect("a configuration").policy)
        };
        let office = ("office", "from = [\"192.0.2.0/24\"]");
        assert_eq!(notes(&[office, ("web", "")]), [""; 0], "a line tells these apart by its source");
        let expected = "rule web: access log /log is read only for this rule, though rule admin has it: give each \
                        rule's ports a log";
        assert_eq!(notes(&[office, ("web", ""), ("admin", "to = [\"192.0.2.9\"]")]), [expected]);
    }

    #[test]
    fn a_limit_says_what_it_promises() {
        assert_eq!(
            limit_words(&limit(Unit::Connections, WindowForm::Strict)),
            "1000 connections in 5 minutes (strict; buckets of 1 minute: never more than 1000 in any 5 minutes; \
             a source may wait up to 1 minute longer)"
        );
        assert_eq!(
            limit_words(&limit(Unit::Bytes, WindowForm::Lenient)),
            "1kB in 5 minutes (lenient; buckets of 1 minute: up to 2kB in 5 minutes where two windows meet)"
        );
        let group = Limit { per: Per::Prefix { v4: 24, v6: 56 }, ..limit(Unit::Requests, WindowForm::Strict) };
        assert_eq!(
            limit_words(&group),
            "1000 requests in 5 minutes of a whole /24 or /56 (strict; buckets of 1 minute: never more than 1000 in any \
             5 minutes; its sources may wait up to 1 minute longer)"
        );
        let list = Limit { per: Per::List, ..limit(Unit::Bytes, WindowForm::Gcra) };
        assert!(limit_words(&list).starts_with("1kB in 5 minutes of the whole list (gcra: "));
        assert_eq!(quantity(1, Unit::Packets), "1 packet");
    }

    #[test]
    fn the_answer_to_refused_clients_depends_on_where_packets_can_be_sent() {
        let told = |top: &str, rule: &str| {
            let text = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\n{rule}\n");
            let config =
                ratelimit_policy::config::file::parse(std::path::Path::new("r.toml"), &text, |_| unreachable!());
            let words = config_words(&config.expect("a configuration")).replace(&format!("\n{:INDENT$}", ""), " ");
            words.lines().find_map(|line| line.strip_prefix("  answers   ")).map(str::to_owned)
        };
        let page = "limits = [\"5/1m\"]\nrefuse_with = \"429\"";
        let reset = "verified clients with a reset";
        assert_eq!(told("", "limits = [\"5/1m\"]"), None);
        assert_eq!(told("", "limits = [\"5/1m\"]\nrefuse_with = \"reset\"").as_deref(), Some(reset));
        let native = format!("{reset}; in native mode, clear-text HTTP/1 requests with a 429 page");
        assert_eq!(told("", page), Some(native.clone()));
        assert_eq!(told("", &format!("{page}\nmode = \"dry-run\"")), Some(format!("once it is enforced, {native}")));
        for nowhere in ["hook = \"tcx\"", "xdp_mode = \"generic\""] {
            assert_eq!(told(nowhere, page), Some(format!("{reset}; only XDP in native mode sends a page")));
        }
    }

    #[test]
    fn the_example_of_a_site_is_said_in_words() {
        let contents = include_str!("../../examples/site.toml");
        let list = include_str!("../../examples/deny.txt");
        let config =
            ratelimit_policy::config::file::parse(std::path::Path::new("site.toml"), contents, |_| Ok(list.to_owned()));
        let words = config_words(&config.expect("a configuration"));
        assert!(words.lines().all(|line| line.chars().count() <= WIDTH_MAX), "{words}");
        let words = words.replace(&format!("\n{:INDENT$}", ""), " ");
        for part in [
            "denied      198.51.100.128/25, 2001:db8:bad::/48",
            "  from      203.0.113.64/26, 2001:db8:100::/40",
            "  to        192.0.2.80/32, 2001:db8:2::80/128",
            "  limit     6 requests in 30 seconds (gcra: 6 at once, and then 6 in 30 seconds, evenly)",
            "  until     2036-04-01T00:00:00Z, and then the rules after it judge",
            "  note      nightly import",
            "  bans      1 minute, then 10 minutes, then 1 hour for each time after; reset 24 hours after a ban",
            "  shadow    300 requests in 5 minutes: counted, never enforced",
            "  breaker   leaves this rule alone",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
