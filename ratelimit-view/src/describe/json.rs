//! A configuration, or its problems, as JSON. Pure.

use std::path::PathBuf;

use ipnet::IpNet;
use serde::Serialize;

use super::beside::acl;
use super::{
    CachesMemory, Memory, PrefixesMemory, caches_memory, limit_words, memory, memory_bytes, prefixes_memory, seconds,
};
use ratelimit_policy::config::Config;
use ratelimit_policy::config::fleet::Fleet;
use ratelimit_policy::desired::{Grant, Limit, Rule, date};
use ratelimit_policy::diagnostic::{Diagnostic, Diagnostics, Place};
use ratelimit_report::snapshot;

/// A configuration for programs. See [`super::config_words`].
#[derive(Debug, Serialize)]
pub struct ConfigJson {
    schema: u32,
    valid: bool,
    warnings: Vec<String>,
    interfaces: Vec<String>,
    hook: &'static str,
    xdp_mode: &'static str,
    on_exit: &'static str,
    max_sources: u32,
    socket: String,
    listen: Option<String>,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    allow: Vec<String>,
    deny: Vec<String>,
    list_files: Vec<String>,
    safety: SafetyJson,
    history: HistoryJson,
    fleet: Option<FleetJson>,
    rules: Vec<RuleJson>,
    memory: [Memory; 2],
    notes_memory: CachesMemory,
    memory_bytes: u64,
    prefixes_memory: PrefixesMemory,
    lists: Vec<ListJson>,
}

/// A named list, or a list file.
#[derive(Debug, Serialize)]
struct ListJson {
    list: String,
    file: Option<String>,
    prefixes: usize,
}

#[derive(Debug, Serialize)]
struct SafetyJson {
    exempt_ssh_peer: bool,
    exempt_gateway: bool,
    exempt_resolvers: bool,
    breaker_percent: Option<u8>,
    breaker_after_seconds: f64,
    /// None if the filter enforces forever without a daemon.
    without_daemon_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct HistoryJson {
    enabled: bool,
    path: Option<String>,
    keep_seconds: f64,
    max_bytes: u64,
    mask_ipv4: u8,
    mask_ipv6: u8,
}

#[derive(Debug, Serialize)]
struct FleetJson {
    url: Vec<String>,
    name: String,
    secret_file: Option<String>,
    username: Option<String>,
    password_file: Option<String>,
    ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    interval_seconds: f64,
    hosts: u32,
    bans: bool,
    floor_percent: u8,
    acl_line: String,
}

/// Values of a limit that the hosts of a fleet share.
#[derive(Debug, Serialize)]
struct SharedJson {
    sum: &'static str,
    bound: u64,
    bound_alone: u64,
    step: u64,
    words: String,
}

#[derive(Debug, Serialize)]
struct RuleJson {
    name: String,
    mode: &'static str,
    refuse: &'static str,
    refuse_with: &'static str,
    guard: &'static str,
    from: Vec<String>,
    to: Vec<String>,
    ports: String,
    limits: Vec<LimitJson>,
    shadow_limits: Vec<LimitJson>,
    candidates: Vec<LimitJson>,
    block_for_seconds: Vec<f64>,
    forget_after_seconds: Option<f64>,
    block_prefix_after: Option<u32>,
    ban_unverified: bool,
    block_kill: bool,
    under_attack_ok: bool,
    new_sources: Option<snapshot::NewSources>,
    quic_ports: Vec<u16>,
    access_log: Vec<String>,
    unparsable: &'static str,
    until: Option<String>,
    note: Option<String>,
}

#[derive(Debug, Serialize)]
struct LimitJson {
    #[serde(flatten)]
    limit: snapshot::Limit,
    burst: Option<u64>,
    words: String,
    fleet: Option<SharedJson>,
}

fn lists(config: &Config) -> Vec<ListJson> {
    let named = config.lists.iter().map(|(name, len)| ListJson { list: name.clone(), file: None, prefixes: *len });
    let files = config.list_files.iter().map(|file| ListJson {
        list: file.named_by.clone(),
        file: Some(file.path.display().to_string()),
        prefixes: file.prefixes.len(),
    });
    named.chain(files).collect()
}

impl ConfigJson {
    /// Returns a configuration with its warnings, from [`ratelimit_policy::config::lint::warnings`] and elsewhere.
    pub fn new(config: &Config, warnings: Vec<String>) -> Self {
        Self {
            schema: 1,
            valid: true,
            warnings,
            interfaces: config.interfaces.clone(),
            hook: config.hook.label(),
            xdp_mode: config.xdp_mode.label(),
            on_exit: config.on_exit.label(),
            max_sources: config.max_sources,
            socket: config.socket.display().to_string(),
            listen: config.listen.map(|listen| listen.to_string()),
            ipv4_prefix: config.policy.ipv4_prefix,
            ipv6_prefix: config.policy.ipv6_prefix,
            allow: config.policy.prefixes(Grant::Exempt).map(|prefix| prefix.to_string()).collect(),
            deny: config.policy.prefixes(Grant::Denied).map(|prefix| prefix.to_string()).collect(),
            list_files: config.list_files.iter().map(|file| file.path.display().to_string()).collect(),
            safety: SafetyJson {
                exempt_ssh_peer: config.safety.exempt_ssh_peer,
                exempt_gateway: config.safety.exempt_gateway,
                exempt_resolvers: config.safety.exempt_resolvers,
                breaker_percent: config.safety.breaker,
                breaker_after_seconds: seconds(config.safety.breaker_after_ns),
                without_daemon_seconds: config.safety.without_daemon_ns.map(seconds),
            },
            history: HistoryJson {
                enabled: config.history.enabled,
                path: config.history.path.as_ref().map(|path| path.display().to_string()),
                keep_seconds: seconds(config.history.keep_ns),
                max_bytes: config.history.bytes_max,
                mask_ipv4: config.history.mask_ipv4,
                mask_ipv6: config.history.mask_ipv6,
            },
            fleet: config.fleet.as_ref().map(FleetJson::from),
            rules: config.policy.rules.iter().map(|rule| RuleJson::new(config, rule)).collect(),
            memory: memory(config),
            notes_memory: caches_memory(config),
            memory_bytes: memory_bytes(config),
            prefixes_memory: prefixes_memory(config),
            lists: lists(config),
        }
    }
}

/// Problems of a configuration, for programs. The first one is also on the top level.
#[derive(Debug, Serialize)]
pub struct InvalidJson {
    schema: u32,
    valid: bool,
    #[serde(flatten)]
    first: ProblemJson,
    problems: Vec<ProblemJson>,
    more: usize,
}

#[derive(Debug, Serialize)]
struct ProblemJson {
    problem: String,
    file: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    help: Vec<String>,
}

impl From<&Diagnostics> for InvalidJson {
    fn from(errors: &Diagnostics) -> Self {
        let problems = errors.iter().map(ProblemJson::from).collect();
        Self { schema: 1, valid: false, first: errors.first().into(), problems, more: errors.more() }
    }
}

impl From<&Diagnostic> for ProblemJson {
    fn from(error: &Diagnostic) -> Self {
        let (path, excerpt) = match &error.place {
            Place::File { path, excerpt } => (Some(path), excerpt.as_deref()),
            Place::CommandLine | Place::Flag { .. } => (None, None),
        };
        Self {
            problem: error.problem.clone(),
            file: path.map(|path| path.display().to_string()),
            line: excerpt.map(|excerpt| excerpt.line),
            column: excerpt.map(|excerpt| excerpt.column),
            help: error.help.clone(),
        }
    }
}

impl RuleJson {
    fn new(config: &Config, rule: &Rule) -> Self {
        let note = config.notes.iter().find(|(name, _)| *name == rule.name);
        let candidates = config.candidates.iter().filter(|(name, _)| *name == rule.name).flat_map(|(_, limits)| limits);
        let texts = |prefixes: &[IpNet]| prefixes.iter().map(ToString::to_string).collect();
        Self {
            name: rule.name.clone(),
            mode: rule.mode.label(),
            refuse: rule.refuse.label(),
            refuse_with: rule.refuse_with.label(),
            guard: rule.guard.label(),
            from: texts(&rule.from),
            to: texts(&rule.to),
            ports: rule.ports.to_string(),
            limits: rule.limits.iter().map(|limit| LimitJson::held(config, limit)).collect(),
            shadow_limits: rule.shadow_limits.iter().map(LimitJson::from).collect(),
            candidates: candidates.map(LimitJson::from).collect(),
            block_for_seconds: rule
                .bans
                .iter()
                .flat_map(|bans| &bans.steps_ns)
                .map(|step_ns| seconds(*step_ns))
                .collect(),
            forget_after_seconds: rule.bans.as_ref().map(|bans| seconds(bans.forget_ns)),
            block_prefix_after: rule.block_prefix_after,
            ban_unverified: rule.bans.as_ref().is_some_and(|bans| !bans.needs_proof),
            block_kill: rule.block_kill,
            under_attack_ok: rule.under_attack_ok,
            new_sources: rule.new_sources.map(Into::into),
            quic_ports: rule.quic_ports.iter().collect(),
            access_log: rule.access_logs.iter().map(ToString::to_string).collect(),
            unparsable: rule.unparsable.label(),
            until: rule.until.map(date),
            note: note.map(|(_, note)| note.clone()),
        }
    }
}

impl From<&Limit> for LimitJson {
    fn from(limit: &Limit) -> Self {
        Self { limit: limit.into(), burst: limit.burst, words: limit_words(limit), fleet: None }
    }
}

impl LimitJson {
    fn held(config: &Config, limit: &Limit) -> Self {
        let bound = |terms| config.fleet.as_ref().map_or(0, |fleet| fleet.bound_of(terms));
        let shared = limit.shared.zip(config.terms(limit)).map(|(shared, terms)| SharedJson {
            sum: shared.sum.label(),
            bound: bound(terms),
            bound_alone: terms.bound_alone(),
            step: terms.step,
            words: terms.to_string(),
        });
        Self { fleet: shared, ..limit.into() }
    }
}

impl From<&Fleet> for FleetJson {
    fn from(fleet: &Fleet) -> Self {
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        Self {
            url: fleet.store.urls.clone(),
            name: fleet.name.clone(),
            secret_file: file(&fleet.secret_file),
            username: fleet.store.username.clone(),
            password_file: file(&fleet.store.password_file),
            ca_file: file(&fleet.store.ca_file),
            cert_file: file(&fleet.store.cert_file),
            key_file: file(&fleet.store.key_file),
            interval_seconds: fleet.interval.as_secs_f64(),
            hosts: fleet.hosts,
            bans: fleet.bans,
            floor_percent: fleet.floor_percent,
            acl_line: acl(fleet).1,
        }
    }
}
