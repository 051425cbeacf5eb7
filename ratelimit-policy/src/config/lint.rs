//! Warnings about a valid [`Config`] that may not do what its author meant. Pure.

use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;

use super::fleet::Fleet;
use super::overlap::{self, Shared};
use super::{Config, duration};
use crate::desired::{
    DENIED_IPV4_PREFIX, DENIED_IPV6_PREFIX, Grant, Limit, Mode, Per, Policy, Refuse, RefuseWith, Rule, WindowForm, date,
};
use crate::fleet;
use crate::safety::is_too_wide;

/// Maximum number of overlapping rule pairs that are named. Further ones are only counted.
const OVERLAPS_NAMED_MAX: usize = 16;

/// Bytes of a full Ethernet packet.
const FULL_PACKET_BYTES: u64 = 1500;

/// Returns warnings in a fixed order, one sentence each without a full stop.
pub fn warnings(config: &Config, now: Nanos) -> Vec<String> {
    let mut warnings = Vec::new();
    let rules = &config.policy.rules;
    for (index, rule) in rules.iter().enumerate() {
        if let Some(until) = rule.until.filter(|until| *until <= now) {
            warnings.push(format!("rule {}: it ended on {} and limits nothing now", rule.name, date(until)));
        }
        if let Some(by) = overlap::covered_by(rules, index) {
            let names: Vec<String> = by.iter().map(|rule| format!("\"{}\"", rule.name)).collect();
            let [s, es] = if names.len() == 1 { ["", "es"] } else { ["s", ""] };
            let names = names.join(" and ");
            let why = format!("rule{s} {names} above it match{es} everything first");
            warnings.push(format!("rule {}: it never matches: {why}", rule.name));
        }
        warnings.extend(beside_parent(rules, index));
        if rule.mode == Mode::DryRun {
            warnings.push(format!("rule {}: DRY RUN: nothing is dropped, only counted as what would be", rule.name));
        }
        warnings.extend(implied(rule));
        warnings.extend(too_small(rule));
        warnings.extend(of_groups(rule, config.fleet.is_some()));
        warnings.extend(denies_no_prefix(rule, &config.policy));
        warnings.extend(forged_syns(rule));
        if rule.ports.other_protocols {
            warnings.push(format!("rule {}: every port and protocol is limited, SSH and ICMP included", rule.name));
        } else if rule.ports.tcp.iter().any(|(first, last)| (*first..=*last).contains(&22)) {
            warnings.push(format!(
                "rule {}: it also limits your own SSH logins; put your address into `allow` first",
                rule.name
            ));
            if rule.limits.iter().any(|limit| limit.unit == Unit::Requests) {
                warnings.push(format!(
                    "rule {}: on port 22 keystrokes count as requests: count connections there",
                    rule.name
                ));
            }
        }
    }
    warnings.extend(overlaps(rules));
    warnings.extend(config.fleet.iter().flat_map(|fleet| of_fleet(config, fleet)));
    for prefix in &config.overruled {
        warnings.push(format!("{prefix} is in `allow` and in `deny`: it is allowed"));
    }
    if config.policy.ipv4_prefix == 0 {
        warnings.push("with ipv4_prefix = 0 all IPv4 addresses together are one source".to_owned());
    }
    if config.policy.ipv6_prefix == 0 {
        warnings.push("with ipv6_prefix = 0 all IPv6 addresses together are one source".to_owned());
    }
    if config.policy.ipv6_prefix > 64 {
        warnings.push(format!(
            "IPv6 sources are a /{} each, but most hosts own a whole /64 and can be many sources",
            config.policy.ipv6_prefix
        ));
    }
    for access in config.policy.access.iter().filter(|of| is_too_wide(of.prefix)) {
        let prefix = access.prefix;
        warnings.push(match (access.grant, prefix.prefix_len()) {
            (Grant::Exempt, 0) => format!("{prefix} is allowed: no source of that family is limited"),
            (Grant::Exempt, _) => {
                format!("{prefix} is allowed, which is more of the Internet than `allow` should hold")
            }
            (Grant::Denied, _) => format!("{prefix} is denied, which is more of the Internet than `deny` should hold"),
        });
    }
    warnings
}

/// Returns warnings about a fleet: a missing secret, windows that are too short to share, and a fleet without shared
/// limits.
fn of_fleet(config: &Config, fleet: &Fleet) -> Vec<String> {
    let mut warnings = Vec::new();
    if fleet.secret_file.is_none() {
        warnings.push(
            "the fleet has no secret: everyone who reaches its store can read the addresses and forge bans; set \
             secret_file"
                .to_owned(),
        );
    }
    let short = config.policy.fleet_limits().filter_map(|(rule, limit, shared)| {
        let warning = fleet::Warning::of(&shared, fleet.interval)?;
        Some(format!("rule {}: limit {limit}: {warning}", rule.name))
    });
    warnings.extend(short);
    if config.policy.fleet_limits().next().is_none() {
        warnings.push("no rule shares its limits: the fleet shares only bans".to_owned());
    }
    warnings
}

/// Returns pairs of rules that match common packets, unless the earlier one is plainly an exception from the later.
fn overlaps(rules: &[Rule]) -> Vec<String> {
    let pairs = rules.iter().enumerate().flat_map(|(index, later)| rules[..index].iter().map(move |of| (of, later)));
    let partly = pairs.filter(|(earlier, later)| overlap::shared(earlier, later) == Shared::Some);
    let is_news = |later: &Rule| {
        rules
            .iter()
            .position(|rule| rule.name == later.name)
            .is_some_and(|index| overlap::covered_by(rules, index).is_none())
    };
    let mut lines: Vec<String> = partly
        .filter(|(_, later)| is_news(later))
        .map(|(earlier, later)| {
            format!("rules {} and {} have packets in common: {} judges those", earlier.name, later.name, earlier.name)
        })
        .collect();
    if lines.len() > OVERLAPS_NAMED_MAX {
        let more = lines.len() - OVERLAPS_NAMED_MAX;
        lines.truncate(OVERLAPS_NAMED_MAX);
        lines.push(format!("{more} more pairs of rules have packets in common"));
    }
    lines
}

/// Warns about an override with sources outside its rule, because it takes packets that the rule would leave alone.
fn beside_parent(rules: &[Rule], index: usize) -> Option<String> {
    let (rule, (parent, _)) = (rules.get(index)?, rules.get(index)?.name.split_once(':')?);
    let parent = rules.iter().find(|rule| rule.name == parent)?;
    let prefix = overlap::outside(&rule.from, &parent.from).next()?;
    Some(format!(
        "rule {}: {prefix} is outside the sources of rule {}, but its override limits it anyway",
        rule.name, parent.name
    ))
}

/// Returns the maximum that a limit admits in any period of `span_ns`.
///
/// A strict or lenient limit of N admits at most N in any period of `full_buckets * bucket_ns`, because such a period
/// lies within one of its sums.
fn most_in(limit: &Limit, span_ns: u64) -> u64 {
    match limit.form {
        WindowForm::Strict | WindowForm::Lenient => {
            let spans = span_ns.div_ceil((u64::from(limit.full_buckets()) * limit.bucket_ns).max(1));
            spans.saturating_mul(limit.amount)
        }
        WindowForm::Fixed => (span_ns.div_ceil(limit.window_ns.max(1)) + 1).saturating_mul(limit.amount),
        WindowForm::Gcra => {
            let drained = (u128::from(span_ns) * u128::from(limit.amount)).div_ceil(u128::from(limit.window_ns.max(1)));
            u64::try_from(drained).unwrap_or(u64::MAX).saturating_add(limit.burst.unwrap_or(limit.amount))
        }
    }
}

/// Returns warnings about limits that never take effect. Another limit of the rule admits no more than they do in the
/// longest period that they sum.
fn implied(rule: &Rule) -> Vec<String> {
    let implies = |by: &Limit, limit: &Limit| {
        let span_ns = match limit.form {
            WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
                (u64::from(limit.full_buckets()) + 1) * limit.bucket_ns
            }
            // A leaky bucket also limits shorter periods, so it always has an effect.
            WindowForm::Gcra => return false,
        };
        let is_bounded_by_burst = limit.burst.is_some();
        let counts_it_all = by.condition.is_none() || by.condition == limit.condition;
        let is_other = by.unit == limit.unit && by.slot != limit.slot && by.per.holds(limit.per) && counts_it_all;
        is_other && !is_bounded_by_burst && most_in(by, span_ns) <= limit.amount
    };
    let idle = |limit: &Limit| {
        let by = rule.limits.iter().find(|by| implies(by, limit))?;
        let window = duration::words(limit.window_ns);
        Some(format!(
            "rule {}: {limit} never refuses anything: {}{} admits no more in {window}",
            rule.name,
            by.rate(),
            by.per
        ))
    };
    rule.limits.iter().filter_map(idle).collect()
}

/// Returns warnings about functions that limits of groups do not have.
fn of_groups(rule: &Rule, is_in_fleet: bool) -> Vec<String> {
    let groups: Vec<&Limit> = rule.limits.iter().filter(|limit| limit.per != Per::Source).collect();
    let mut warnings = Vec::new();
    if rule.bans.is_some() && groups.len() == rule.limits.len() {
        warnings.push(format!("rule {}: it bans nobody: only limits of each source ban", rule.name));
    }
    let is_alone = |limit: &&Limit| format!("rule {}: {limit}: each host of the fleet limits it alone", rule.name);
    warnings.extend(groups.iter().filter(|_| is_in_fleet).map(is_alone));
    warnings
}

/// Warns that forged SYNs can end or stop open connections, if a rule refuses all packets of a source over its
/// connection limit.
fn forged_syns(rule: &Rule) -> Option<String> {
    let is_counted = |limit: &&Limit| limit.unit == Unit::Connections && rule.refuse == Refuse::All;
    // A limit of a group is preferred, because it affects the most sources.
    let limit = rule.limits.iter().filter(is_counted).max_by_key(|limit| limit.per != Per::Source)?;
    let (what, whose) = match (rule.refuse_with, limit.per) {
        (RefuseWith::Reset | RefuseWith::Page, Per::Source) => ("ends", "of the source that they name"),
        (RefuseWith::Reset | RefuseWith::Page, Per::Prefix { .. } | Per::List) => {
            ("ends", "of the whole group that they name")
        }
        (RefuseWith::Drop, Per::Source) => return None,
        (RefuseWith::Drop, Per::Prefix { .. } | Per::List) => ("stops", "of the whole group that they name"),
    };
    Some(format!(
        "rule {}: {limit}: forged SYNs fill it, and refuse = \"all\" then {what} open connections {whose}: \
         refuse = \"excess\" leaves them",
        rule.name
    ))
}

/// Returns warnings for families in which `block_prefix_after` never applies, because a source is as large as the
/// prefix.
fn denies_no_prefix(rule: &Rule, policy: &Policy) -> Vec<String> {
    let is_as_large = [
        (policy.ipv4_prefix <= DENIED_IPV4_PREFIX, "ipv4_prefix", policy.ipv4_prefix, DENIED_IPV4_PREFIX),
        (policy.ipv6_prefix <= DENIED_IPV6_PREFIX, "ipv6_prefix", policy.ipv6_prefix, DENIED_IPV6_PREFIX),
    ];
    let words = |(_, key, length, denied)| {
        format!(
            "rule {}: block_prefix_after denies no /{denied}: {key} is {length}, so a source is as large",
            rule.name
        )
    };
    let families = is_as_large.into_iter().filter(|(is, ..)| *is && rule.block_prefix_after.is_some());
    families.map(words).collect()
}

/// Returns warnings about limits below one full packet. A source gets no window from a packet over the limit, so
/// `check` does not show it.
fn too_small(rule: &Rule) -> impl Iterator<Item = String> {
    let is_small = |limit: &&Limit| limit.unit == Unit::Bytes && limit.amount < FULL_PACKET_BYTES;
    rule.limits.iter().filter(is_small).map(|limit| {
        format!(
            "rule {}: {limit} refuses every full packet, which has {FULL_PACKET_BYTES} bytes, and `check` does not show it",
            rule.name
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::file;
    use crate::config::settings::Settings;

    fn limited(limits: &str) -> Config {
        Settings::of_flags([("--iface", "eth0"), ("--limit", limits)]).config().expect("well-formed")
    }

    #[test]
    fn a_limit_is_idle_only_where_another_is_always_reached_first() {
        for (limits, idle) in [
            ("1000/1m,1000/5m", 1),
            ("999/1m,1000/5m", 0),
            ("10/1m,60/1h", 0),
            ("1/1s,70/1m", 1),
            ("1/1s,69/1m", 0),
            ("1000/1m packets,1000/5m", 0),
        ] {
            assert_eq!(warnings(&limited(limits), Nanos(0)).len(), idle, "{limits}");
        }
    }

    #[test]
    fn a_limit_of_bytes_that_no_full_packet_fits_is_said() {
        for (limits, said) in
            [("1499/1m bytes", 1), ("1500/1m bytes", 0), ("1kB/1m,20kB/1h", 1), ("2/1m packets", 0), ("2/1m", 0)]
        {
            let found = warnings(&limited(limits), Nanos(0));
            assert_eq!(found.len(), said, "{limits}: {found:?}");
            assert!(found.iter().all(|warning| warning.contains("1500 bytes")), "{found:?}");
        }
    }

    #[test]
    fn rules_that_reach_beyond_web_ports_are_warned_about() {
        let mut config = limited("1000/5m");
        assert!(warnings(&config, Nanos(0)).is_empty());
        config.policy.rules[0].ports.tcp.push((20, 30));
        config.policy.ipv6_prefix = 128;
        config.policy.rules[0].mode = Mode::DryRun;
        let found = warnings(&config, Nanos(0)).join("\n");
        for part in ["your own SSH logins", "on port 22 keystrokes", "/128", "DRY RUN"] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }

    fn of_rules(contents: &str) -> Vec<String> {
        let contents = format!("interfaces = [\"eth0\"]\n{contents}");
        let config = file::parse(Path::new("r.toml"), &contents, |_| Err("none".to_owned())).expect(&contents);
        warnings(&config, Nanos(1_800_000_000_000_000_000))
    }

    fn rule(name: &str, lines: &str) -> String {
        format!("[[rule]]\nname = \"{name}\"\nlimits = [\"1/s\"]\n{lines}\n")
    }

    #[test]
    fn forged_syn_resets_and_never_denied_prefixes_are_warned_about() {
        let found = |lines: &str| {
            let contents = format!("interfaces = [\"eth0\"]\n[rule]\n{lines}\n");
            let config = file::parse(Path::new("r.toml"), &contents, |_| Err("none".to_owned())).expect(&contents);
            warnings(&config, Nanos(0))
        };
        let own = "limits = [\"9/1m connections\"]\nrefuse = \"all\"";
        let group = "limits = [\"9/1m connections\", \"99/1m connections per /24,/56\"]";
        for (lines, said) in [
            (own.to_owned(), None),
            (format!("{own}\nrefuse_with = \"reset\""), Some("ends open connections of the source that they name")),
            (group.to_owned(), None),
            (format!("{group}\nrefuse = \"all\""), Some("stops open connections of the whole group that they name")),
            (
                format!("{group}\nrefuse = \"all\"\nrefuse_with = \"reset\""),
                Some("ends open connections of the whole group that they name"),
            ),
        ] {
            let found = found(&lines);
            assert_eq!(
                found.iter().filter(|of| said.is_some_and(|said| of.contains(said))).count(),
                found.len(),
                "{found:?}"
            );
            assert_eq!(found.len(), usize::from(said.is_some()), "{lines}: {found:?}");
        }
        let bans = "limits = [\"9/1m\"]\nblock_for = \"1m\"\nblock_prefix_after = 8";
        for (top, said) in
            [("", 0), ("ipv4_prefix = 24", 1), ("ipv6_prefix = 48", 1), ("ipv4_prefix = 16\nipv6_prefix = 56", 2)]
        {
            let contents = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\n{bans}\n");
            let config = file::parse(Path::new("r.toml"), &contents, |_| Err("none".to_owned())).expect(&contents);
            let found = warnings(&config, Nanos(0));
            assert_eq!(
                found.iter().filter(|of| of.contains("block_prefix_after denies no /")).count(),
                said,
                "{top}: {found:?}"
            );
        }
    }

    #[test]
    fn a_rule_that_others_leave_nothing_is_said_and_an_exception_is_not() {
        let web = rule("web", "ports = \"80,443\"");
        let never = ": it never matches: ";
        for (rules, found) in [
            (rule("partner", "from = [\"192.0.2.0/24\"]") + &web, None),
            (
                web.clone() + &rule("partner", "from = [\"192.0.2.0/24\"]"),
                Some(format!("rule partner{never}rule \"web\" above it matches everything first")),
            ),
            (
                rule("a", "ports = \"80\"") + &rule("b", "ports = \"443\"") + &web,
                Some(format!("rule web{never}rules \"a\" and \"b\" above it match everything first")),
            ),
            (rule("a", "ports = \"80/tcp\"") + &rule("b", "ports = \"443\"") + &web, None),
            (
                rule("a", "ports = \"80-90\"") + &web,
                Some("rules a and web have packets in common: a judges those".to_owned()),
            ),
            (rule("a", "to = [\"203.0.113.5\"]") + &rule("b", "to = [\"203.0.113.6\"]"), None),
            (
                rule("a", "to = [\"203.0.113.0/24\"]") + &rule("b", "from = [\"192.0.2.0/24\"]"),
                Some("rules a and b have packets in common: a judges those".to_owned()),
            ),
        ] {
            assert_eq!(of_rules(&rules), found.into_iter().collect::<Vec<_>>(), "{rules}");
        }
    }

    #[test]
    fn an_override_that_is_over_or_reaches_further_than_its_rule_is_said() {
        let with = |lines: &str| {
            rule("web", "from = [\"192.0.2.0/24\"]") + "[[rule.override]]\nname = \"x\"\nlimits = [\"9/s\"]\n" + lines
        };
        let found = of_rules(&with("from = [\"192.0.2.7\"]\nuntil = \"2026-01-31\"\n"));
        assert_eq!(found, ["rule web:x: it ended on 2026-02-01T00:00:00Z and limits nothing now"]);
        let found = of_rules(&with("from = [\"198.51.100.7\"]\nuntil = \"2036-01-31\"\n"));
        assert!(found[0].contains("198.51.100.7/32 is outside the sources of rule web"), "{found:?}");
        assert!(of_rules(&with("from = [\"192.0.2.7\"]\n")).is_empty());
    }

    #[test]
    fn a_prefix_that_is_allowed_and_denied_is_said_to_be_exempt() {
        let found = of_rules("allow = [\"192.0.2.7\"]\ndeny = [\"192.0.2.7\"]\n[rule]\nlimits = [\"1/s\"]\n");
        assert_eq!(found, ["192.0.2.7/32 is in `allow` and in `deny`: it is allowed"]);
    }
}
