//! Difference between the current and the desired state: steps for the daemon, and words for its log. Pure.

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use ratelimit_common::window::Parts;

use crate::desired::{Access, Bans, DesiredState, Grant, Limit, Policy, Rule, Shared, date, unit_label};

/// Maximum number of prefixes that are listed one by one. Larger numbers are only counted.
const PREFIXES_NAMED_MAX: usize = 16;

/// Steps in this order: attach, change the policy, detach. An interface that moves is therefore never unfiltered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Interfaces to attach to, sorted.
    pub attach: Vec<String>,
    /// Interfaces to detach from, sorted.
    pub detach: Vec<String>,
    /// Policy to enforce from now on. None if the current one stays.
    pub policy: Option<Policy>,
}

impl Plan {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.attach.is_empty() && self.detach.is_empty() && self.policy.is_none()
    }
}

/// Returns the plan that turns `current` into `wanted`.
pub fn diff(current: &DesiredState, wanted: &DesiredState) -> Plan {
    let missing = |from: &[String], of: &[String]| of.iter().filter(|name| !from.contains(name)).cloned().collect();
    Plan {
        attach: missing(&current.interfaces, &wanted.interfaces),
        detach: missing(&wanted.interfaces, &current.interfaces),
        policy: (current.policy != wanted.policy).then(|| wanted.policy.clone()),
    }
}

/// Returns the state after `plan` is applied to `current`.
pub fn apply(current: &DesiredState, plan: &Plan) -> DesiredState {
    let stays = |name: &&String| !plan.detach.contains(name);
    let mut interfaces: Vec<String> = current.interfaces.iter().filter(stays).chain(&plan.attach).cloned().collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    DesiredState { interfaces, policy: plan.policy.clone().unwrap_or_else(|| current.policy.clone()) }
}

/// Describes the difference, one line each: `limit of rule default: 1000/5m -> 2000/5m requests`.
pub fn changes(current: &DesiredState, wanted: &DesiredState) -> Vec<String> {
    let plan = diff(current, wanted);
    let mut lines = Vec::new();
    lines.extend(plan.attach.iter().map(|name| format!("interface {name}: attach")));
    lines.extend(plan.detach.iter().map(|name| format!("interface {name}: detach")));
    let (old, new) = (&current.policy, &wanted.policy);
    let mut changed = |what: String, from: String, to: String| {
        if from != to {
            lines.push(format!("{what}: {from} -> {to}"));
        }
    };
    let prefix = |length: u8| format!("/{length}");
    changed("IPv4 clients".into(), prefix(old.ipv4_prefix), prefix(new.ipv4_prefix));
    changed("IPv6 clients".into(), prefix(old.ipv6_prefix), prefix(new.ipv6_prefix));
    for rule in &new.rules {
        if let Some(before) = old.rules.iter().find(|before| before.name == rule.name) {
            let of = |what: &str| format!("{what} of rule {}", rule.name);
            changed(of("mode"), before.mode.label().into(), rule.mode.label().into());
            changed(of("refuse"), before.refuse.label().into(), rule.refuse.label().into());
            changed(of("refuse_with"), before.refuse_with.label().into(), rule.refuse_with.label().into());
            let kills = |rule: &Rule| if rule.block_kill { "on" } else { "off" }.to_owned();
            changed(of("block_kill"), kills(before), kills(rule));
            changed(of("guard"), before.guard.label().into(), rule.guard.label().into());
            changed(of("ports"), before.ports.to_string(), rule.ports.to_string());
            changed(of("from"), prefixes_or(&before.from, "everyone"), prefixes_or(&rule.from, "everyone"));
            changed(of("to"), prefixes_or(&before.to, "any address"), prefixes_or(&rule.to, "any address"));
            changed(of("end"), end(before.until), end(rule.until));
            changed(of("bans"), bans(before.bans.as_ref()), bans(rule.bans.as_ref()));
            let prefixes = |rule: &Rule| rule.block_prefix_after.map_or_else(|| "off".to_owned(), |of| of.to_string());
            changed(of("banned sources that deny their prefix"), prefixes(before), prefixes(rule));
            let under_attack = |rule: &Rule| if rule.under_attack_ok { "off" } else { "on" }.to_owned();
            changed(of("breaker"), under_attack(before), under_attack(rule));
            let budget = |rule: &Rule| rule.new_sources.map_or_else(|| "any number".to_owned(), |of| of.to_string());
            changed(of("new sources"), budget(before), budget(rule));
            let logs = |rule: &Rule| match rule.access_logs.as_slice() {
                [] => "none".to_owned(),
                logs => logs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            };
            changed(of("QUIC ports"), before.quic_ports.to_string(), rule.quic_ports.to_string());
            changed(of("access logs"), logs(before), logs(rule));
            changed(of("unparsable"), before.unparsable.label().into(), rule.unparsable.label().into());
        }
    }
    push_prefixes(&mut lines, &gone(&old.access, &new.access), "added");
    push_prefixes(&mut lines, &gone(&new.access, &old.access), "removed");
    for rule in &new.rules {
        match old.rules.iter().find(|before| before.name == rule.name) {
            Some(before) => push_limits(&mut lines, before, rule),
            None => lines.push(format!("rule {}: added", rule.name)),
        }
    }
    let is_removed = |rule: &&Rule| !new.rules.iter().any(|after| after.name == rule.name);
    lines.extend(old.rules.iter().filter(is_removed).map(|rule| format!("rule {}: removed", rule.name)));
    if lines.is_empty() && !plan.is_empty() {
        lines.push("order of rules or limits, or some of the prefixes".to_owned());
    }
    lines
}

/// Returns the entries of `of` that are not in `from`. Both must be sorted.
fn gone(from: &[Access], of: &[Access]) -> Vec<Access> {
    of.iter().filter(|access| from.binary_search(access).is_err()).copied().collect()
}

/// Adds one line for each entry if there are few, otherwise one line for each grant.
fn push_prefixes(lines: &mut Vec<String>, access: &[Access], what: &str) {
    if access.len() <= PREFIXES_NAMED_MAX {
        lines.extend(access.iter().map(|access| format!("{access}: {what}")));
        return;
    }
    for grant in [Grant::Exempt, Grant::Denied] {
        let count = access.iter().filter(|access| access.grant == grant).count();
        if count > 0 {
            lines.push(format!("{} {count} prefixes: {what}", grant.label()));
        }
    }
}

fn prefixes_or(prefixes: &[IpNet], all: &str) -> String {
    match prefixes {
        [] => all.to_owned(),
        few if few.len() <= PREFIXES_NAMED_MAX => few.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        [first, ..] => format!("{} prefixes from {first} on", prefixes.len()),
    }
}

fn end(until: Option<Nanos>) -> String {
    until.map_or_else(|| "never".to_owned(), date)
}

fn bans(bans: Option<&Bans>) -> String {
    bans.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// Describes changed limits. Limits with an equal slot are the same limit, and keep their counts.
fn push_limits(lines: &mut Vec<String>, before: &Rule, after: &Rule) {
    let what = format!("limit of rule {}", after.name);
    let missing = |from: &Rule, of: &Rule| -> Vec<Limit> {
        let is_missing = |limit: &&Limit| !from.limits.iter().any(|other| other.slot == limit.slot);
        of.limits.iter().filter(is_missing).copied().collect()
    };
    let said = |limit: &Limit| {
        let shared = if limit.shared.is_some() { ", shared by the fleet" } else { "" };
        format!("{limit}{shared}")
    };
    for limit in &after.limits {
        let Some(old) = before.limits.iter().find(|old| old.slot == limit.slot) else { continue };
        let unit = format!("{}{}", unit_label(limit.unit), limit.per);
        if old.rate() != limit.rate() {
            lines.push(format!("{what}: {} -> {} {unit}", old.rate(), limit.rate()));
        }
        if old.form != limit.form {
            lines.push(format!("window of {}: {} -> {}", limit, old.form.label(), limit.form.label()));
        }
        if old.burst != limit.burst {
            let burst = |burst: Option<u64>| burst.map_or_else(|| "any".to_owned(), |burst| burst.to_string());
            lines.push(format!("burst of {}: {} -> {}", limit, burst(old.burst), burst(limit.burst)));
        }
        if let (Some(from), Some(to)) = (old.shared, limit.shared) {
            if from.sum != to.sum {
                lines.push(format!("fleet sum of {limit}: {} -> {}", from.sum.label(), to.sum.label()));
            }
            if from.step_bits != to.step_bits {
                let step = |shared: Shared| 1_u64 << shared.step_bits.min(Parts::WHOLE);
                lines.push(format!("fleet report of {limit}: every {} -> every {}", step(from), step(to)));
            }
        }
    }
    let shadows = |rule: &Rule| -> Vec<String> { rule.shadow_limits.iter().map(ToString::to_string).collect() };
    let (old, new) = (shadows(before), shadows(after));
    if before.shadow_limits != after.shadow_limits {
        let or_none = |limits: Vec<String>| if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
        lines.push(format!("shadow limits of rule {}: {} -> {}", after.name, or_none(old), or_none(new)));
    }
    let (added, removed) = (missing(before, after), missing(after, before));
    match (added.as_slice(), removed.as_slice()) {
        ([new], [old]) => lines.push(format!("{what}: {} -> {}, counters reset", said(old), said(new))),
        _ => {
            lines.extend(added.iter().map(|limit| format!("{what}: {} added", said(limit))));
            lines.extend(removed.iter().map(|limit| format!("{what}: {} removed", said(limit))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::config::settings::Settings;
    use crate::desired::{NewSources, QuicPorts, RefuseWith, Unparsable};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn settings(interfaces: &[&str], limits: &str) -> Settings {
        with(interfaces, limits, &[])
    }

    fn with(interfaces: &[&str], limits: &str, more: &[(&str, &str)]) -> Settings {
        let interfaces = interfaces.iter().map(|name| ("--iface", *name));
        Settings::of_flags(interfaces.chain([("--limit", limits)]).chain(more.iter().copied()))
    }

    fn state(settings: &Settings) -> DesiredState {
        DesiredState::from(&settings.config().expect("well-formed"))
    }

    #[test]
    fn a_change_reads_as_one() {
        let old = settings(&["eth0"], "1000/5m");
        for (new, lines) in [
            (settings(&["eth0"], "2000/5m"), vec!["limit of rule default: 1000/5m -> 2000/5m requests"]),
            (settings(&["eth0"], "1000/6m"), vec!["limit of rule default: 1000/5m -> 1000/6m requests"]),
            (
                settings(&["eth0"], "60/1h"),
                vec!["limit of rule default: 1000/5m requests -> 60/1h requests, counters reset"],
            ),
            (settings(&["eth0"], "1000/5m,5/s"), vec!["limit of rule default: 5/1s requests added"]),
            (settings(&["eth1"], "1000/5m"), vec!["interface eth1: attach", "interface eth0: detach"]),
            (
                with(
                    &["eth0"],
                    "1000/5m",
                    &[
                        ("--ipv6-prefix", "56"),
                        ("--allow", "192.0.2.0/24"),
                        ("--dry-run", "dry-run"),
                        ("--window", "lenient"),
                        ("--port", "22/tcp"),
                        ("--refuse", "all"),
                    ],
                ),
                vec![
                    "IPv6 clients: /64 -> /56",
                    "mode of rule default: enforce -> dry-run",
                    "refuse of rule default: excess -> all",
                    "ports of rule default: 80,443 -> 22/tcp",
                    "exempt 192.0.2.0/24: added",
                    "window of 1000/5m requests: strict -> lenient",
                ],
            ),
            (with(&["eth0"], "1000/5m", &[("--name", "web")]), vec!["rule web: added", "rule default: removed"]),
            (old.clone(), vec![]),
        ] {
            assert_eq!(changes(&state(&old), &state(&new)), lines);
        }
    }

    #[test]
    fn a_fleet_change_reads_as_one_line() {
        let of = |rule: &str, fleet: &str| {
            let text = format!("interfaces = [\"eth0\"]\n[rule]\nlimits = [\"1000/5m\"]\n{rule}\n{fleet}\n");
            let config = file::parse(Path::new("r.toml"), &text, |_| Err(String::new())).expect("well-formed");
            DesiredState::from(&config)
        };
        let fleet = "[fleet]\nurl = \"unix:///run/redis.sock\"\nhosts = 4";
        let (alone, shared) = (of("", ""), of("", fleet));
        for (old, new, line) in [
            (
                &alone,
                &shared,
                Some(
                    "limit of rule default: 1000/5m requests -> 1000/5m requests, shared by the fleet, counters reset",
                ),
            ),
            (&shared, &of("fleet_sum = \"all\"", fleet), Some("fleet sum of 1000/5m requests: verified -> all")),
            (&shared, &of("", &format!("{fleet}0")), Some("fleet report of 1000/5m requests: every 16 -> every 2")),
            (&shared, &shared, None),
        ] {
            assert_eq!(changes(old, new), line.as_slice());
        }
    }

    fn states() -> impl Strategy<Value = DesiredState> {
        let interfaces = prop::collection::btree_set(0_u8..6, 1..5);
        let limit = prop::sample::select(vec!["10/5m", "20/5m", "10/6m", "5/s,60/1h", "60/1h,5/s", "1MB/1m"]);
        let ports = prop::sample::select(vec!["80", "80,443", "53/udp", "all"]);
        let name = prop::sample::select(vec!["default", "web"]);
        let allow = prop::collection::vec(prop::sample::select(vec!["192.0.2.0/24", "::1", "10.0.0.0/8"]), 0..3);
        let words = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY, 0_u8..=32);
        (interfaces, limit, ports, name, allow, words).prop_map(|(interfaces, limit, ports, name, allow, words)| {
            let names: Vec<String> = interfaces.into_iter().map(|number| format!("eth{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let bits = words.3.to_string();
            let mut more = vec![("--ipv4-prefix", bits.as_str()), ("--port", ports), ("--name", name)];
            more.extend(allow.into_iter().map(|prefix| ("--allow", prefix)));
            more.extend(words.0.then_some(("--dry-run", "dry-run")));
            more.extend(words.1.then_some(("--window", "lenient")));
            more.extend(words.2.then_some(("--refuse", "all")));
            state(&with(&names, limit, &more))
        })
    }

    fn access() -> impl Strategy<Value = Vec<Access>> {
        let prefix =
            prop::sample::select(vec!["192.0.2.0/24", "192.0.2.7/32", "10.0.0.0/8", "::1/128", "2001:db8::/32"]);
        let grant = prop::sample::select(vec![Grant::Exempt, Grant::Denied]);
        let until = prop::option::of((1_u64..4).prop_map(|day| Nanos(day * 86_400_000_000_000)));
        let one = (prefix, grant, until).prop_map(|(prefix, grant, until)| {
            let prefix: IpNet = prefix.parse().expect("a prefix");
            (prefix, Access { prefix, grant, until })
        });
        prop::collection::vec(one, 0..5)
            .prop_map(|access| access.into_iter().collect::<BTreeMap<_, _>>().into_values().collect())
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let prefixes = || {
            let prefix = prop::sample::select(vec!["192.0.2.0/24", "10.0.0.0/8", "2001:db8::/32"]);
            let parsed = |text: &str| text.parse().expect("a prefix");
            prop::collection::btree_set(prefix, 0..3).prop_map(move |texts| texts.into_iter().map(parsed).collect())
        };
        let bans = prop::option::of((1_u64..4, 1_u64..3).prop_map(|(minutes, days)| Bans {
            steps_ns: vec![minutes * 60_000_000_000],
            forget_ns: days * 86_400_000_000_000,
            needs_proof: days == 1,
        }));
        let until = prop::option::of((1_u64..4).prop_map(|day| Nanos(day * 86_400_000_000_000)));
        let more = (prefixes(), prefixes(), bans, until, prop::bool::ANY, prop::option::of(1_u64..4));
        let one =
            (states(), 0_usize..4, more).prop_map(|(state, name, (from, to, bans, until, under_attack_ok, burst))| {
                let new_sources = burst.map(|amount| NewSources { amount, window_ns: 1_000_000_000 });
                let mut rule = state.policy.rules[0].clone();
                rule.name = ["web", "login", "api", "api:partner"][name].to_owned();
                rule.limits.iter_mut().for_each(|limit| limit.burst = burst);
                let shadow_limits = burst.map(|_| rule.limits[0]).into_iter().collect();
                let quic_ports = if under_attack_ok { QuicPorts::NONE } else { QuicPorts::DEFAULT };
                let unparsable = if until.is_some() { Unparsable::Count } else { Unparsable::Drop };
                let refuse_with = match (burst.is_some(), under_attack_ok) {
                    (true, true) => RefuseWith::Page,
                    (true, false) => RefuseWith::Reset,
                    (false, _) => RefuseWith::Drop,
                };
                let rule = Rule { quic_ports, unparsable, refuse_with, block_kill: under_attack_ok, ..rule };
                (name, Rule { from, to, bans, until, under_attack_ok, new_sources, shadow_limits, ..rule })
            });
        prop::collection::vec(one, 1..6)
            .prop_map(|rules| rules.into_iter().collect::<BTreeMap<_, _>>().into_values().collect::<Vec<_>>())
            .prop_shuffle()
    }

    /// Generates states with several rules. They have sources, destinations, bans and expiries, and grants with and
    /// without expiry.
    fn large_states() -> impl Strategy<Value = DesiredState> {
        (states(), access(), rules()).prop_map(|(state, access, rules)| DesiredState {
            policy: Policy { access, rules, ..state.policy },
            ..state
        })
    }

    #[test]
    fn changes_of_a_rule_with_many_keys_read_as_written() {
        let old = state(&settings(&["eth0"], "1000/5m"));
        let mut new = old.clone();
        let rule = &mut new.policy.rules[0];
        rule.from = vec!["192.0.2.0/24".parse().expect("a prefix")];
        rule.to = vec!["203.0.113.5/32".parse().expect("a prefix")];
        rule.until = Some(Nanos(1_806_537_600_000_000_000));
        rule.bans = Some(Bans {
            steps_ns: vec![60_000_000_000, 600_000_000_000],
            forget_ns: 86_400_000_000_000,
            needs_proof: true,
        });
        rule.under_attack_ok = true;
        rule.new_sources = Some(NewSources { amount: 20_000, window_ns: 1_000_000_000 });
        rule.quic_ports = QuicPorts::new(&[80, 443]).expect("two ports");
        rule.unparsable = Unparsable::Count;
        (rule.refuse_with, rule.block_kill) = (RefuseWith::Reset, true);
        rule.shadow_limits = vec![Limit { amount: 500, ..rule.limits[0] }];
        rule.limits[0].burst = Some(100);
        let many = (0..20).map(|last| Access::denied(IpNet::from(std::net::IpAddr::from([10, 0, 0, last]))));
        new.policy.access = many.collect();
        assert_eq!(
            changes(&old, &new),
            [
                "refuse_with of rule default: drop -> reset",
                "block_kill of rule default: off -> on",
                "from of rule default: everyone -> 192.0.2.0/24",
                "to of rule default: any address -> 203.0.113.5/32",
                "end of rule default: never -> 2027-04-01T00:00:00Z",
                "bans of rule default: none -> 1m,10m, reset after 24h",
                "breaker of rule default: on -> off",
                "new sources of rule default: any number -> 20000/1s",
                "QUIC ports of rule default: 443 -> 80,443",
                "unparsable of rule default: drop -> count",
                "denied 20 prefixes: added",
                "burst of 1000/5m requests: any -> 100",
                "shadow limits of rule default: none -> 500/5m requests",
            ]
        );
    }

    proptest! {
        #[test]
        fn applying_the_difference_gives_what_was_wanted(current in states(), wanted in states()) {
            let plan = diff(&current, &wanted);
            prop_assert_eq!(apply(&current, &plan), wanted.clone());
            prop_assert_eq!(plan.is_empty(), current == wanted);
            prop_assert_eq!(changes(&current, &wanted).is_empty(), current == wanted);
        }

        #[test]
        fn plans_between_states_of_many_rules_reach_the_goal(current in large_states(), wanted in large_states()) {
            let plan = diff(&current, &wanted);
            prop_assert_eq!(apply(&current, &plan), wanted.clone());
            prop_assert_eq!(plan.is_empty(), current == wanted);
            prop_assert_eq!(changes(&current, &wanted).is_empty(), current == wanted);
        }

        #[test]
        fn nothing_differs_from_itself(state in large_states()) {
            prop_assert!(diff(&state, &state).is_empty());
        }
    }
}
