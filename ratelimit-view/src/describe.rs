//! Limits and configurations in words, the same everywhere, and as JSON. Pure.

use std::fmt::Write as _;

use ratelimit_common::admission::CELLS_PER_SUMMARY;
use ratelimit_common::drop_cache::{CacheSet, DropCause, WAYS};
use ratelimit_common::layout::{
    CONVERSATIONS_CAPACITY, EVENTS_BYTES, FLOWS_CAPACITY, PREFIX_MISSES_PER_SET, SETS_PER_CONN_CELL, SETS_PER_WORD,
    SourceKeyV4, SourceKeyV6, SourceKeyV6Wide, Unit,
};
use ratelimit_common::source::Family;
use ratelimit_common::verification::Side;
use serde::Serialize;

use ipnet::IpNet;

use self::beside::{fleet_words, history_words, safety_words, shared_words};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::config::{Config, OnExit, Safety, XdpModeChoice, amount, duration};
use ratelimit_policy::desired::{
    Bans, Grant, Guard, Limit, Mode, NewSources, QuicPorts, Refuse, Rule, Unparsable, WindowForm, date,
    drop_cache_sets, unit_label,
};

pub use self::beside::acl_words;
pub use self::json::{ConfigJson, InvalidJson};
pub use self::per_cpu::{idle_cpus, per_cpu_bytes, per_cpu_words};
pub use self::prefixes::{PrefixesMemory, prefixes_memory, prefixes_warning, prefixes_words};
pub use self::start::first_line;

mod beside;
mod json;
mod per_cpu;
mod prefixes;
mod start;

/// Prefixes that are named one by one; of more, only these.
const PREFIXES_NAMED_MAX: usize = 8;
/// Columns of a description, and those before its values.
const WIDTH_MAX: usize = 100;
const INDENT: usize = 12;

/// What the kernel adds to a key and a value of an LRU hash map, `struct htab_elem` in kernel/bpf/hashtab.c, Linux 6.18.
const ELEMENT_OVERHEAD_BYTES: u64 = 48;

/// An amount with its unit: `1 connection`, `1000 packets`, `50MB`.
pub fn quantity(amount: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => amount::size(amount),
        Unit::Requests | Unit::Connections | Unit::Packets if amount == 1 => {
            format!("1 {}", unit_label(unit).trim_end_matches('s'))
        }
        Unit::Requests | Unit::Connections | Unit::Packets => format!("{amount} {}", unit_label(unit)),
    }
}

/// A limit in a phrase: `1000 connections in 5 minutes`.
pub fn limit_short(limit: &Limit) -> String {
    format!("{} in {}", quantity(limit.amount, limit.unit), duration::words(limit.window_ns))
}

/// A limit in full: the phrase, the form of its window, its buckets, and its guarantee.
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

/// The guarantee of the window's form.
fn bound(limit: &Limit) -> String {
    let window = duration::words(limit.window_ns);
    let bucket = duration::words(limit.bucket_ns);
    let of_unit = |amount: u64| match limit.unit {
        Unit::Bytes => amount::size(amount),
        Unit::Requests | Unit::Connections | Unit::Packets => amount.to_string(),
    };
    match limit.form {
        WindowForm::Strict => format!(
            "never more than {} in any {}; a source may wait up to {bucket} longer",
            of_unit(limit.amount),
            // "any minute", but "any 5 minutes" and "any 1 hour 30 minutes".
            window.strip_prefix("1 ").filter(|unit| !unit.contains(' ')).unwrap_or(&window)
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

/// Bytes of kernel memory that remembering one source of this family in one limit takes.
pub fn element_bytes(family: Family) -> u64 {
    let key = match family {
        Family::V4 => size_of::<SourceKeyV4>(),
        Family::V6 => size_of::<SourceKeyV6>(),
        Family::V6Wide => size_of::<SourceKeyV6Wide>(),
    };
    let value = size_of::<ratelimit_common::layout::Source>();
    // Both are rounded up to 8 bytes.
    ELEMENT_OVERHEAD_BYTES + ((key.next_multiple_of(8) + value.next_multiple_of(8)) as u64)
}

/// Kernel memory for the sources of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// Sources that can be remembered, each limit counting on its own.
    pub sources: u64,
    /// Limits that each source can be counted in, see [`ratelimit_policy::desired::Policy::windows_per_source`].
    pub limits: u64,
    /// Bytes of one source in one limit.
    pub element_bytes: u64,
    /// All of it.
    pub bytes: u64,
}

/// Kernel memory for the sources, IPv4 first.
pub fn memory(config: &Config) -> [Memory; 2] {
    let limits = u64::from(config.policy.windows_per_source());
    let of = |family: &'static str, key: Family| {
        let (sources, element_bytes) = (u64::from(config.max_sources), element_bytes(key));
        Memory { family, sources, limits, element_bytes, bytes: sources * element_bytes * limits }
    };
    [of("ipv4", Family::V4), of("ipv6", Family::of_ipv6_prefix(config.policy.ipv6_prefix))]
}

/// Kernel memory of the caches beside the windows, of both families together: the drop cache, known sources, sources in no
/// list, and the host's own connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CachesMemory {
    /// Lines, each for eight windows.
    pub lines: u64,
    /// All of it.
    pub bytes: u64,
    /// Bytes of it for each source of one family that can be remembered, rounded up.
    pub source_bytes: u64,
}

/// Kernel memory of the caches beside the windows.
pub fn caches_memory(config: &Config) -> CachesMemory {
    let lines = drop_cache_sets(config.max_sources.saturating_mul(config.policy.windows_per_source()));
    let (line, word) = (size_of::<CacheSet>() as u64, size_of::<u64>() as u64);
    // Each set has drop-cache entries with their causes, known sources, connections and prefix misses. Some sets together have
    // a word that says which have entries, and which have known sources.
    let (causes, cell, unlisted) =
        (size_of::<[DropCause; WAYS]>() as u64, 2 * word, u64::from(PREFIX_MISSES_PER_SET) * word);
    let connections = 2 * cell / u64::from(SETS_PER_CONN_CELL);
    let bytes = u64::from(lines) * (line + causes + cell + connections + unlisted)
        + u64::from(lines / SETS_PER_WORD) * word
        + u64::from(lines / CELLS_PER_SUMMARY) * cell;
    CachesMemory { lines: lines.into(), bytes, source_bytes: bytes.div_ceil(config.max_sources.max(1).into()) }
}

/// A configuration in words, lines ended.
pub fn config_words(config: &Config) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "{name:<11} {}", wrapped(value));
    };
    line("interfaces", &config.interfaces.join(", "));
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
            line("  candidates", &format!("{}: held against what is observed", amounts.join(", ")));
        }
        line("  refuses", refuse_words(rule));
        for words in guard_words(rule) {
            line("  guard", &words);
        }
        if let Some(bans) = &rule.bans {
            line("  bans", &bans_words(bans));
        }
        if let Some(of) = rule.new_sources {
            line("  new sources", &new_sources_words(of));
        }
        if rule.quic_ports != QuicPorts::DEFAULT {
            line("  QUIC", &format!("on UDP ports: {}; elsewhere each datagram is a request", rule.quic_ports));
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
        line(name, &memory_words(memory));
    }
    line("", &caches_words(&caches_memory(config)));
    line("", &connections_words());
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

/// A value on as many lines as 100 columns need, each under the first.
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

/// These, the first of them where there are many; none if there are none.
fn some_of(prefixes: &[IpNet]) -> Option<String> {
    let named: Vec<String> = prefixes.iter().take(PREFIXES_NAMED_MAX).map(ToString::to_string).collect();
    let more = prefixes.len() - named.len();
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("{}{and}", named.join(", ")))
}

/// How long a rule bans: `1 minute, then 10 minutes, then 1 hour for each time after; reset 24 hours after a ban`.
pub fn bans_words(bans: &Bans) -> String {
    let steps: Vec<String> = bans.steps_ns.iter().map(|step_ns| duration::words(*step_ns)).collect();
    let after = if steps.len() > 1 { " for each time after" } else { "" };
    let proof = if bans.needs_proof { "" } else { "; by unverified traffic too" };
    format!("{}{after}; reset {} after a ban{proof}", steps.join(", then "), duration::words(bans.forget_ns))
}

fn xdp_words(mode: XdpModeChoice) -> &'static str {
    match mode {
        XdpModeChoice::Auto => "auto: native where the driver can, else generic",
        XdpModeChoice::Native => "native or not at all",
        XdpModeChoice::Generic => "generic: works everywhere, costs several times as much",
    }
}

fn exit_words(on_exit: OnExit) -> &'static str {
    match on_exit {
        OnExit::Detach => "detach: nothing is limited after the daemon ends",
        OnExit::Keep => "keep: limits go on being enforced after the daemon ends, until `ratelimitd detach`",
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

/// What limits of requests bound besides, a line each; none without such limits, or where TCP is not judged.
fn guard_words(rule: &Rule) -> Vec<String> {
    let words = |limit: &Limit| {
        let layout = limit.layout();
        let segments = layout.amount_on(Side::Segments);
        let connections = layout.amount_on(Side::Attempts).saturating_add(layout.amount_on(Side::Opened));
        // A leaky bucket makes no source suspect.
        let connections = match limit.form {
            WindowForm::Gcra => String::new(),
            WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
                format!("{connections} connections that ask nothing, and ")
            }
        };
        let window = duration::words(limit.window_ns);
        format!(
            "at most {connections}{segments} segments that begin no request (of long ones one in 16 KB counts), in {window}"
        )
    };
    let is_guardable = !rule.ports.tcp.is_empty() && rule.limits.iter().any(|limit| limit.unit == Unit::Requests);
    match (rule.refuse, rule.guard) {
        _ if !is_guardable => Vec::new(),
        (Refuse::All, _) => vec!["off, because refuse is \"all\"".to_owned()],
        (Refuse::Excess, Guard::Off) => vec!["off: nothing bounds what is not counted as a request".to_owned()],
        (Refuse::Excess, Guard::Auto) => rule.guarded().map(words).collect(),
    }
}

fn refuse_words(rule: &Rule) -> &'static str {
    match rule.refuse {
        Refuse::Excess => "excess: what is over a limit; what was admitted goes on",
        Refuse::All => {
            "all: everything from a source over a limit, until the bucket after its last refusal, and then until its window frees"
        }
    }
}

/// Memory of the maps of connections and flows, which have one size whatever is counted.
fn connections_bytes() -> u64 {
    let connections = u64::from(CONVERSATIONS_CAPACITY) * (120 + 144);
    let flows = u64::from(FLOWS_CAPACITY) * (72 + 88);
    connections + flows
}

fn connections_words() -> String {
    let bytes = amount::rounded(connections_bytes());
    format!("{CONVERSATIONS_CAPACITY} connections and {FLOWS_CAPACITY} UDP flows of each = {bytes}")
}

/// What a budget of new sources means, in words.
fn new_sources_words(of: NewSources) -> String {
    let window = duration::words(of.window_ns);
    format!("at most {} in {window}; packets of further ones are dropped", of.amount)
}

fn caches_words(of: &CachesMemory) -> String {
    let bytes = amount::rounded(of.bytes);
    format!("drop cache and other caches: {} sets = {bytes}, {} B a source", of.lines, of.source_bytes)
}

/// How many prefixes each named list and each list file has, and what many take.
fn lists_words(config: &Config) -> Vec<String> {
    let count = |count: usize| format!("{count} prefix{}", if count == 1 { "" } else { "es" });
    let named = config.lists.iter().map(|(name, len)| format!("@{name}: {}", count(*len)));
    let file = |file: &ListFile| format!("{} ({}): {}", file.path.display(), file.named_by, count(file.prefixes.len()));
    named.chain(config.list_files.iter().map(file)).chain(prefixes_words(&prefixes_memory(config))).collect()
}

/// All kernel memory that is taken before the first packet comes, in bytes.
pub fn memory_bytes(config: &Config) -> u64 {
    let [ipv4, ipv6] = memory(config).map(|memory| memory.bytes);
    ipv4 + ipv6 + caches_memory(config).bytes + connections_bytes() + u64::from(EVENTS_BYTES)
}

/// All kernel memory that is taken before the first packet comes, in a phrase.
pub fn memory_short(config: &Config) -> String {
    let bytes = memory_bytes(config);
    let of_one = memory(config).map(|memory| memory.element_bytes * memory.limits).into_iter().max().unwrap_or(0);
    format!("{} for {} sources of each family, up to {of_one} B each", amount::rounded(bytes), config.max_sources)
}

fn memory_words(memory: &Memory) -> String {
    let family = if memory.family == "ipv4" { "IPv4" } else { "IPv6" };
    let limits = if memory.limits == 1 { String::new() } else { format!(" x {} windows", memory.limits) };
    let bytes = amount::rounded(memory.bytes);
    format!("{family}: {} sources x {} B{limits} = {bytes}", memory.sources, memory.element_bytes)
}

/// A duration as JSON has it.
pub fn seconds(duration_ns: u64) -> f64 {
    std::time::Duration::from_nanos(duration_ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
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
        }
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
        assert_eq!(quantity(1, Unit::Packets), "1 packet");
    }

    #[test]
    fn notes_take_what_the_kernel_allocates_for_them() {
        let directory = std::path::Path::new("/run");
        let of = caches_memory(&ratelimit_report::fixture::config(directory, 10));
        assert_eq!((of.lines, of.bytes, of.source_bytes), (32_768, 8_437_760, 33));
    }

    #[test]
    fn a_source_takes_what_the_kernel_allocates() {
        let bytes = [Family::V4, Family::V6, Family::V6Wide].map(element_bytes);
        assert_eq!(bytes, [128, 136, 144]);
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
