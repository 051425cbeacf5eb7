//! Reads the pinned maps of a filter that runs without a daemon, without any program of this process.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use aya::Pod;
use aya::maps::{Array, Map, MapData, PerCpuArray};
use ratelimit_common::layout::{
    Active, Config as ConfigWords, Counters, Fault, GENERATIONS, INTERFACE_UNKNOWN, NOT_CACHED, PortTable, ROWS_MAX,
    Rule, map,
};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Verdict;

use super::counts::{of_cpus, tallies_in};
use super::plain::Plain;
use super::{rules_len, state};
use crate::bpf::{self, Access};
use crate::interface::{self, Interface};
use crate::pins::PinsError;
use crate::{DatapathError, EventCounts, InterfaceReading, Lapse, Left, Reading, Tallies, link_info};
use ratelimit_policy::desired::{self, Mode, Policy, Ports, name_hash};

/// Returns the time at which enforcement lapses or has lapsed. None means never, or not readable by this user.
pub(crate) fn lapse(dir: &Path) -> Option<Lapse> {
    let active: Array<_, Plain<Active>> = array(dir, map::ACTIVE).ok()?;
    let active = active.get(&0, 0).ok()?.0;
    if !active.may_lapse() {
        return None;
    }
    let config: Array<_, Plain<ConfigWords>> = array(dir, map::CONFIG).ok()?;
    let now = now(&config.get(&active.generation(), 0).ok()?.0).ok()?;
    let at = active.lapse(now)?;
    Some(if active.has_lapsed(now) {
        Lapse::Since(Duration::from_nanos(now.0.saturating_sub(at.0)))
    } else {
        Lapse::In(Duration::from_nanos(at.0.saturating_sub(now.0)))
    })
}

/// Returns the policy in force and its counts, as far as pins tell. Rules have their name if `names` contains it, and
/// no limits. Sources are not read. If enforcement has lapsed, every rule is in dry run.
///
/// # Errors
/// Fails if privileges are missing, or if the pins are not of this layout.
pub fn read_left(left: &Left, names: &[String]) -> Result<(Policy, Reading), DatapathError> {
    let dir = left.dir.as_path();
    if !left.is_of_this_version() {
        return Err(PinsError::OtherVersion(left.dir.clone()).into());
    }
    let (generation, words) = in_force(dir)?;
    let rules = &words.rules[..rules_len(&words)];
    let counters: PerCpuArray<_, Plain<Counters>> =
        PerCpuArray::try_from(Map::PerCpuArray(open(dir, map::COUNTERS)?)).context("open COUNTERS")?;
    let ruled = |position| rules.iter().map(|rule| tallies_in(&counters, position, rule.row)).collect();
    let unruled = |position| {
        let mut sum = tallies_in(&counters, position, Verdict::NO_RULE)?;
        let others = (0..ROWS_MAX).filter_map(|row| u8::try_from(row).ok());
        for row in others.filter(|row| rules.iter().all(|rule| rule.row != *row)) {
            sum.add(&tallies_in(&counters, position, row)?);
        }
        Ok::<Tallies, DatapathError>(sum)
    };
    let present = interface::all().context("list the network interfaces")?;
    let mut interfaces = Vec::new();
    for (name, path) in &left.links {
        let link = link_info::pinned(path).map_err(|error| refused("inspect", path, error.into()))?;
        let Some(position) = words.interfaces.iter().position(|index| *index == link.interface) else { continue };
        let of_link = |there: &&Interface| there.index == link.interface;
        let attached = present.iter().find(of_link).and_then(|there| there.attachment(link.hook, link.program));
        let (unruled, rules) = (unruled(position)?, ruled(position)?);
        interfaces.push(InterfaceReading { name: name.clone(), attached, xdp_holder: None, unruled, rules });
    }
    let mut unlisted = unruled(INTERFACE_UNKNOWN)?;
    let of_rules: Result<Vec<Tallies>, DatapathError> = ruled(INTERFACE_UNKNOWN);
    of_rules?.iter().for_each(|tallies| unlisted.add(tallies));
    let faults = numbers(dir, map::FAULTS)?;
    let bans = numbers(dir, map::BANS_BEGUN)?;
    let reading = Reading {
        now: now(&words)?,
        interfaces,
        unlisted,
        faults: Fault::ALL
            .iter()
            .map(|&of| of_cpus(&faults, of as u32).map(|count| (of, count)))
            .collect::<Result<_, _>>()?,
        bans_begun: rules.iter().map(|rule| of_cpus(&bans, rule.row.into())).collect::<Result<_, _>>()?,
        sources_capacity: 0,
        admissions: Vec::new(),
        not_cached: of_cpus(&faults, NOT_CACHED)?,
        events: EventCounts::default(),
    };
    let table: Array<_, Plain<PortTable>> = array(dir, map::PORTS)?;
    let table = table.get(&generation, 0).context("read PORTS")?.0;
    let mut policy = policy(&words, &table, names);
    if matches!(left.lapse, Some(Lapse::Since(_))) {
        policy.rules.iter_mut().for_each(|rule| rule.mode = Mode::DryRun);
    }
    Ok((policy, reading))
}

/// Returns the configuration in force and its generation. After an unconfirmed trial, this is the one before the trial.
fn in_force(dir: &Path) -> Result<(u32, ConfigWords), DatapathError> {
    let active: Array<_, Plain<Active>> = array(dir, map::ACTIVE)?;
    let config: Array<_, Plain<ConfigWords>> = array(dir, map::CONFIG)?;
    let generation = active.get(&0, 0).context("read ACTIVE")?.0.generation();
    let tried = config.get(&generation, 0).context("read CONFIG")?.0;
    if tried.until_ns == 0 || now(&tried)?.0 < tried.until_ns {
        return Ok((generation, tried));
    }
    let before = (generation + 1) % GENERATIONS;
    Ok((before, config.get(&before, 0).context("read CONFIG")?.0))
}

fn now(words: &ConfigWords) -> Result<Nanos, DatapathError> {
    Ok(Nanos(state::monotonic_ns()?.wrapping_add(words.wall_offset_ns)))
}

/// Builds a policy from the words of a configuration: name, mode and ports of each rule.
fn policy(words: &ConfigWords, table: &PortTable, names: &[String]) -> Policy {
    let rule = |(at, rule): (usize, &Rule)| {
        let name = names.iter().find(|name| name_hash(name) == rule.name);
        let name = name.map_or_else(|| format!("#{}", at + 1), String::clone);
        let mode = if rule.is_dry_run() { Mode::DryRun } else { Mode::Enforce };
        desired::Rule { mode, ..desired::Rule::new(name, ports(words, table, at), Vec::new()) }
    };
    let rules = words.rules[..rules_len(words)].iter().enumerate().map(rule).collect();
    Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules }
}

/// Returns the ports of the rule at this position.
fn ports(words: &ConfigWords, table: &PortTable, at: usize) -> Ports {
    let holds = |set: u64| set >> at & 1 == 1;
    let ranges = |classes: &[u8]| {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        let is_its = |class: &u8| words.class_rules.get(usize::from(*class)).is_some_and(|set| holds(*set));
        for (port, _) in (0..=u16::MAX).zip(classes).filter(|(_, class)| is_its(class)) {
            match ranges.last_mut().filter(|(_, last)| last.checked_add(1) == Some(port)) {
                Some((_, last)) => *last = port,
                None => ranges.push((port, port)),
            }
        }
        ranges
    };
    Ports { tcp: ranges(&table.tcp), udp: ranges(&table.udp), other_protocols: holds(words.other_rules) }
}

fn numbers(dir: &Path, name: &'static str) -> Result<PerCpuArray<MapData, u64>, DatapathError> {
    Ok(PerCpuArray::try_from(Map::PerCpuArray(open(dir, name)?)).with_context(|| format!("open {name}"))?)
}

pub(super) fn array<V: Pod>(dir: &Path, name: &'static str) -> Result<Array<MapData, V>, DatapathError> {
    Ok(Array::try_from(Map::Array(open(dir, name)?)).with_context(|| format!("open {name}"))?)
}

/// Opens a pinned map read-only, and checks that it is as this layout says.
fn open(dir: &Path, name: &'static str) -> Result<MapData, DatapathError> {
    let path = dir.join(name);
    let fd = bpf::open_pin(&path, Access::ReadOnly).map_err(|error| refused("open", &path, error.into()))?;
    let data = MapData::from_fd(fd).map_err(|error| refused("inspect", &path, error.into()))?;
    state::EXPECTED.iter().filter(|of| of.name == name).try_for_each(|of| state::check(&data, &path, of))?;
    Ok(data)
}

/// Converts the kernel's refusal of a pin into an error.
fn refused(what: &str, path: &Path, error: anyhow::Error) -> DatapathError {
    let what = format!("{what} {}", path.display());
    match state::errno(&error) {
        Some(libc::EPERM | libc::EACCES) => DatapathError::NotPrivileged { what },
        _ => error.context(what).into(),
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::layout::Unit;

    use super::*;
    use crate::encode::encode;

    #[test]
    fn rules_are_read_back_with_their_names_modes_and_ports() {
        let ports = |tcp: &[(u16, u16)], udp: &[(u16, u16)], other_protocols| Ports {
            tcp: tcp.to_vec(),
            udp: udp.to_vec(),
            other_protocols,
        };
        let limits = ratelimit_policy::fixture::policy(vec![ratelimit_policy::fixture::limit(3, Unit::Connections)]);
        let limits = limits.rules[0].limits.clone();
        let rule = |name: &str, ports| desired::Rule::new(name.to_owned(), ports, limits.clone());
        let all = (0, u16::MAX);
        let wanted = [
            rule("web", ports(&[(80, 80), (443, 443)], &[(443, 443)], false)),
            desired::Rule { mode: Mode::DryRun, ..rule("ssh", ports(&[(22, 22)], &[], false)) },
            rule("all", ports(&[all], &[all], true)),
        ];
        let policy = Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules: wanted.to_vec() };
        let encoded = encode(&policy).unwrap();
        let names = ["all".to_owned(), "web".to_owned()];
        let read = super::policy(&encoded.config, &encoded.ports, &names);
        let of = |policy: &Policy| policy.rules.iter().map(|of| (of.mode, of.ports.clone())).collect::<Vec<_>>();
        assert_eq!(of(&read), of(&policy));
        let names: Vec<_> = read.rules.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["web", "#2", "all"]);
    }
}
