//! One rule as it was written, and its conversion to [`Rule`]s: those of its overrides, then its own. Pure.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use ratelimit_common::layout::{BAN_STEPS_MAX, LIMITS_MAX, SHADOWS_MAX, Unit};
use ratelimit_common::time::SECOND_NS;

use super::limits::{Groups, Slots, Spec};
use super::lists::Lists;
use super::network::{parse_cidr, parse_number};
use super::syntax::{SyntaxError, items, turns_text};
use super::values::Values;
use super::written::{OfRule, Source, Written};
use super::{duration, limit, limits, new_sources, ports, until};
use crate::desired::{Bans, Guard, Limit, Mode, Ports, QuicPorts, Refuse, RefuseWith, Rule, Unparsable};
use crate::diagnostic::Found;

/// Default name of a rule.
pub const RULE_NAME_DEFAULT: &str = "default";
/// Default ports to protect.
pub const PORTS_DEFAULT: &str = "80,443";
/// Default unit of limits.
pub const UNIT_DEFAULT: Unit = Unit::Requests;
/// Default time without a ban after which the next ban has the first, shortest length: one day, in nanoseconds.
pub const FORGET_NS_DEFAULT: u64 = 86_400 * SECOND_NS;
/// Maximum length of a ban in nanoseconds: 30 days. Longer blocks belong in `deny`.
pub const BAN_NS_MAX: u64 = 30 * 86_400 * SECOND_NS;

/// Maximum number of candidates of one rule. Candidates are amounts that `ratelimitd suggest` compares with observed
/// traffic.
pub const CANDIDATES_MAX: usize = 8;

/// Maximum length in bytes of a rule's name, which is a label in metrics and tables.
pub const NAME_LEN_MAX: usize = 32;
/// Maximum number of characters of a note, which is shown on one line of a list.
const NOTE_LEN_MAX: usize = 200;
/// Bounds on the number of banned sources after which their prefix is denied. With 1, one ban would block all
/// neighbours. A /24 has no more than 256.
const PREFIX_AFTER_MIN: u64 = 2;
const PREFIX_AFTER_MAX: u64 = 256;

/// Placeholder for an empty set of sources. No packet comes from 0.0.0.0.
const NOBODY: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 32);

/// All settings of one rule, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSettings {
    /// Index and name of the rule. None if it is the only one.
    pub of: Option<OfRule>,
    /// Values of the `rule` table.
    pub values: Values,
    /// Values of each `rule.override` table: other limits for some sources.
    pub overrides: Vec<Values>,
}

/// Shared state while the rules are read.
pub(super) struct Context<'a> {
    pub(super) source: &'a Source,
    pub(super) lists: &'a Lists<'a>,
    /// Lengths of the IPv4 and the IPv6 prefix that count as one source.
    pub(super) clients: (u8, u8),
    /// Number of hosts in the fleet. None without a fleet.
    pub(super) hosts: Option<u32>,
    /// Set if the rules judge captures or access logs. Limits with conditions need no `access_log` then.
    pub(super) judges_files: bool,
    pub(super) found: &'a mut Found,
    pub(super) names: HashSet<String>,
    pub(super) slots: Slots,
    /// Notes by rule name.
    pub(super) notes: Vec<(String, String)>,
    /// Candidates by rule name. Rules without candidates are left out.
    pub(super) candidates: Vec<(String, Vec<Limit>)>,
}

impl RuleSettings {
    /// Returns the number of rules that these settings make.
    pub(super) fn rules_len(&self) -> usize {
        self.overrides.len() + 1
    }

    /// Returns the rules in order, with defaults filled in. Overrides come first.
    pub(super) fn rules(&self, context: &mut Context<'_>) -> Vec<Rule> {
        let rule = self.rule(context);
        let mut rules = Vec::with_capacity(self.rules_len());
        for (index, of) in self.overrides.iter().enumerate() {
            rules.push(self.override_of(&rule, index, of, context));
        }
        rules.push(rule);
        rules
    }

    fn rule(&self, context: &mut Context<'_>) -> Rule {
        let source = context.source;
        let name = self.checked_name(context);
        let from =
            self.values.list("from").map_or_else(Vec::new, |written| self.senders(written, "rule.from", context));
        let before = context.found.count();
        let ports = self.ports(context);
        // QUIC ports must be protected ports, so they are checked only if the ports are valid.
        let quic_ports = if context.found.count() == before { self.quic_ports(&ports, context) } else { None };
        let spec = Spec {
            limits: self.values.all("limits"),
            unit: self.unit(context),
            algorithm: self.values.one("algorithm"),
            window: self.values.one("window"),
            burst: self.values.one("burst"),
            fleet: self.in_fleet(context),
            groups: context.groups(self.values.list("from")),
        };
        let before = context.found.count();
        let limits = self.limits_of(&name, &spec, "rule.limits", context);
        let found = &mut *context.found;
        // A candidate refers to a limit, so candidates are read only if the limits are valid.
        if found.count() == before {
            let candidates =
                limits::candidates(&limits, spec.unit, self.values.all("candidates"), CANDIDATES_MAX, source, found);
            if !candidates.is_empty() {
                context.candidates.push((name.clone(), candidates));
            }
        }
        let shadows = self.values.all("shadow_limits");
        let shadow_limits = limits::shadows(&name, &spec, shadows, SHADOWS_MAX, source, &mut context.slots, found);
        let mode = source.choice(self.values.one("mode"), Mode::ALL, Mode::label);
        let refuse = source.choice(self.values.one("refuse"), Refuse::ALL, Refuse::label);
        let refuse_with = source.choice(self.values.one("refuse_with"), RefuseWith::ALL, RefuseWith::label);
        let block_kill = self.block_kill(source, found);
        let guard = source.choice(self.values.one("guard"), Guard::ALL, Guard::label);
        let unparsable = source.choice(self.values.one("unparsable"), Unparsable::ALL, Unparsable::label);
        let under_attack_ok = source.is_set(self.values.one("under_attack_ok"), false);
        let new_sources = source.read_if(self.values.one("new_sources"), new_sources::parse);
        let judged = if context.judges_files { [&[][..]; 2] } else { [limits.as_slice(), &shadow_limits] };
        let access_logs = self.access_logs(judged, source, found);
        Rule {
            mode: found.keep(mode).unwrap_or(Mode::Enforce),
            refuse: found.keep(refuse).unwrap_or(Refuse::Excess),
            refuse_with: found.keep(refuse_with).unwrap_or_default(),
            block_kill,
            guard: found.keep(guard).unwrap_or(Guard::Auto),
            from,
            to: self.receivers(source, found),
            shadow_limits,
            bans: self.bans(source, found),
            block_prefix_after: self.block_prefix_after(source, found),
            under_attack_ok: found.keep(under_attack_ok).unwrap_or(false),
            new_sources: found.keep(new_sources).flatten(),
            quic_ports: quic_ports.unwrap_or_default(),
            unparsable: found.keep(unparsable).unwrap_or_default(),
            list: spec.groups.list_of(&limits),
            access_logs,
            ..Rule::new(name, ports, limits)
        }
    }

    fn override_of(&self, rule: &Rule, index: usize, of: &Values, context: &mut Context<'_>) -> Rule {
        let source = context.source;
        let name = match of.one("name") {
            Some(written) => {
                context.found.keep(source.read(written, check_name));
                format!("{}:{}", rule.name, written.text)
            }
            None => format!("{}:{}", rule.name, index + 1),
        };
        let name = context.unique(name, of.one("name"));
        let from = self.senders(of.all("from"), "rule.override.from", context);
        // `window` is valid for one algorithm only, so it is inherited only together with the algorithm.
        let window = of.one("window").or(self.values.one("window").filter(|_| of.one("algorithm").is_none()));
        let spec = Spec {
            limits: of.all("limits"),
            unit: self.unit(context),
            algorithm: of.one("algorithm").or(self.values.one("algorithm").filter(|_| of.one("window").is_none())),
            window,
            burst: of.one("burst"),
            fleet: self.in_fleet(context),
            groups: context.groups(Some(of.all("from"))),
        };
        let limits = self.limits_of(&name, &spec, "rule.override.limits", context);
        let until = context.found.keep(source.read_if(of.one("until"), until::parse)).flatten();
        if let Some(written) = of.one("note") {
            context.found.keep(source.read(written, check_note));
            context.notes.push((name.clone(), written.text.clone()));
        }
        let list = spec.groups.list_of(&limits);
        Rule { name, from, limits, until, list, shadow_limits: Vec::new(), ..rule.clone() }
    }

    fn checked_name(&self, context: &mut Context<'_>) -> String {
        let Some(written) = self.values.one("name") else {
            if self.of.is_none() {
                return RULE_NAME_DEFAULT.to_owned();
            }
            let why = "each of several rules has a name of its own";
            let missing = context.source.missing("--name", "rule.name", self.of.as_ref(), why, "\"login\"");
            context.found.missing("rule.name", missing);
            return context.stand_in();
        };
        context.found.keep(context.source.read(written, check_name));
        context.unique(written.text.clone(), Some(written))
    }

    fn ports(&self, context: &mut Context<'_>) -> Ports {
        let Some(written) = self.values.list("ports") else {
            let plain = vec![(80, 80), (443, 443)];
            return Ports { tcp: plain.clone(), udp: plain, other_protocols: false };
        };
        if written.is_empty() {
            let why = "give the ports that it protects, or leave the key out for 80 and 443";
            let missing = context.source.missing("--port", "rule.ports", self.of.as_ref(), why, "[80, 443]");
            context.found.missing("rule.ports", missing);
        }
        let read = |written| context.found.keep(context.source.read(written, ports::parse));
        ports::joined(written.iter().filter_map(read))
    }

    fn quic_ports(&self, protected: &Ports, context: &mut Context<'_>) -> Option<QuicPorts> {
        let written = self.values.list("quic_ports")?;
        let mut ports = Vec::new();
        for written in written {
            let read = |text: &str| ports::parse_quic(text, protected, &mut ports);
            context.found.keep(context.source.read(written, read));
        }
        QuicPorts::new(&ports).or_else(|| {
            let last = written.last()?;
            let error = ports::too_many_quic(&last.text);
            context.found.push(context.source.wrong(last, error));
            None
        })
    }

    fn unit(&self, context: &mut Context<'_>) -> Unit {
        // Each override asks again. A repeated diagnostic is kept only once.
        let unit = context.source.read_if(self.values.one("count"), limit::parse_unit);
        context.found.keep(unit).flatten().unwrap_or(UNIT_DEFAULT)
    }

    fn limits_of(&self, name: &str, spec: &Spec<'_>, key: &str, context: &mut Context<'_>) -> Vec<Limit> {
        if spec.limits.is_empty() {
            let why = "give an amount and a time for each source";
            let missing = context.source.missing("--limit", key, self.of.as_ref(), why, "[\"1000/5m\"]");
            context.found.missing(key, missing);
        }
        limits::enforced(name, spec, LIMITS_MAX, context.source, &mut context.slots, context.found)
    }

    /// Returns the sources that a rule is for. An empty set is an error, because a rule without prefixes is for
    /// everyone. If a start left the list out, the set is [`NOBODY`], an address that sends nothing.
    fn senders(&self, written: &[Written], key: &str, context: &mut Context<'_>) -> Vec<IpNet> {
        let Some(last) = written.last() else {
            let why = "give the sources that it applies to";
            let missing = context.source.missing(key, key, self.of.as_ref(), why, "[\"192.0.2.0/24\"]");
            context.found.missing(key, missing);
            return Vec::new();
        };
        let before = context.found.count();
        let prefixes = context.lists.prefixes(written, context.found);
        if prefixes.is_empty() && context.lists.have_left_out(written) {
            return vec![NOBODY];
        }
        if prefixes.is_empty() && context.found.count() == before && context.lists.are_whole {
            let error = SyntaxError::new(0..last.text.len(), "it holds no address, so the rule is for no source");
            let help = "put an address in, or leave the rule out";
            context.found.push(context.source.wrong(last, error.with_help(help)));
        }
        prefixes.into_iter().collect()
    }

    fn receivers(&self, source: &Source, found: &mut Found) -> Vec<IpNet> {
        let Some(written) = self.values.list("to") else { return Vec::new() };
        if written.is_empty() {
            let why = "give the addresses of this host that it applies to, or leave the key out for all";
            let missing = source.missing("rule.to", "rule.to", self.of.as_ref(), why, "[\"203.0.113.5\"]");
            found.missing("rule.to", missing);
        }
        let read = |written| found.keep(source.read(written, parse_cidr));
        let mut prefixes: Vec<IpNet> = written.iter().filter_map(read).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    fn block_kill(&self, source: &Source, found: &mut Found) -> bool {
        let written = self.values.one("block_kill");
        let has_none = self.values.all("block_for").is_empty();
        if let Some(written) = written.filter(|_| has_none) {
            found.push(source.wrong(written, without_ban(&written.text, "the rule does not ban")));
        }
        found.keep(source.is_set(written, false)).unwrap_or(false)
    }

    fn bans(&self, source: &Source, found: &mut Found) -> Option<Bans> {
        let mut steps_ns: Vec<u64> = Vec::new();
        for written in self.values.all("block_for") {
            let steps = found.keep(source.read(written, |text| ban_steps(text, steps_ns.last().copied())));
            steps_ns.extend(steps.unwrap_or_default());
            if steps_ns.len() > BAN_STEPS_MAX {
                let problem = format!("there are at most {BAN_STEPS_MAX} bans of growing length");
                let error = SyntaxError::new(0..written.text.len(), problem);
                found.push(source.wrong(written, error.with_help("later bans have the last length")));
                break;
            }
        }
        let has_none = self.values.all("block_for").is_empty();
        let forget_ns = found.keep(source.read_if(self.values.one("forget_after"), |text| {
            if has_none { Err(without_ban(text, "the rule has no bans to forget")) } else { ban_length(text) }
        }));
        if let Some(written) = self.values.one("ban_unverified").filter(|_| has_none) {
            found.push(source.wrong(written, without_ban(&written.text, "the rule does not ban")));
        }
        let without_proof = found.keep(source.is_set(self.values.one("ban_unverified"), false)).unwrap_or(false);
        let forget_ns = forget_ns.flatten().unwrap_or(FORGET_NS_DEFAULT);
        (!steps_ns.is_empty()).then_some(Bans { steps_ns, forget_ns, needs_proof: !without_proof })
    }

    /// Returns the number of banned sources after which their prefix is denied. Fails together with `ban_unverified`,
    /// because forged sources could then have any prefix denied.
    fn block_prefix_after(&self, source: &Source, found: &mut Found) -> Option<u32> {
        let written = self.values.one("block_prefix_after")?;
        if self.values.all("block_for").is_empty() {
            found.push(source.wrong(written, without_ban(&written.text, "the rule does not ban")));
        } else if matches!(source.is_set(self.values.one("ban_unverified"), false), Ok(true)) {
            let error = SyntaxError::new(0..written.text.len(), "forged sources could have their prefix denied");
            found
                .push(source.wrong(written, error.with_help("leave out one of block_prefix_after and ban_unverified")));
        }
        let number = source.read(written, |text| parse_number(text, PREFIX_AFTER_MIN, PREFIX_AFTER_MAX));
        found.keep(number).and_then(|number| u32::try_from(number).ok())
    }
}

impl Context<'_> {
    fn groups<'s>(&self, from: Option<&'s [Written]>) -> Groups<'s> {
        let (ipv4_prefix, ipv6_prefix) = self.clients;
        Groups { ipv4_prefix, ipv6_prefix, from }
    }

    /// Returns `name` if no other rule has it. Otherwise reports the duplicate at `written` and returns a
    /// placeholder.
    fn unique(&mut self, name: String, written: Option<&Written>) -> String {
        if self.names.insert(name.clone()) {
            return name;
        }
        match written {
            Some(written) => {
                self.found.push(self.source.wrong(written, taken_name(&name)));
                self.stand_in()
            }
            None => name,
        }
    }

    /// Returns a unique placeholder for a rule without a valid name. It contains a character that no name can hold.
    fn stand_in(&mut self) -> String {
        let name = format!("?{}", self.names.len());
        self.names.insert(name.clone());
        name
    }
}

/// Returns the error for a ban setting in a rule without bans.
fn without_ban(text: &str, problem: &str) -> SyntaxError {
    SyntaxError::new(0..text.len(), problem).with_help("give the length of a ban: block_for = \"10m\"")
}

fn ban_steps(text: &str, mut previous_ns: Option<u64>) -> Result<Vec<u64>, SyntaxError> {
    let mut steps_ns = Vec::new();
    for item in items(text) {
        let (start, item) = item?;
        let step_ns = ban_length(item).map_err(|error| error.shifted(start))?;
        if previous_ns.is_some_and(|previous_ns| step_ns <= previous_ns) {
            return Err(SyntaxError::new(start..start + item.len(), "it is not longer than the ban before it")
                .with_help("bans grow: [\"1m\", \"10m\", \"1h\"]"));
        }
        previous_ns = Some(step_ns);
        steps_ns.push(step_ns);
    }
    Ok(steps_ns)
}

fn ban_length(text: &str) -> Result<u64, SyntaxError> {
    let length_ns = duration::parse(text)?;
    if (SECOND_NS..=BAN_NS_MAX).contains(&length_ns) {
        return Ok(length_ns);
    }
    let which = if length_ns < SECOND_NS { "short" } else { "long" };
    Err(SyntaxError::new(0..text.len(), format!("the time is too {which}")).with_help("it is 1s to 30d"))
}

fn taken_name(name: &str) -> SyntaxError {
    // The user wrote only the last part of an override's name.
    let written = name.rsplit(':').next().unwrap_or(name);
    SyntaxError::new(0..written.len(), format!("there is a rule {name} already"))
        .with_help("statistics and reloads identify rules by their names")
}

fn check_note(text: &str) -> Result<(), SyntaxError> {
    if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control() || turns_text(*c)) {
        return Err(SyntaxError::new(at..at + c.len_utf8(), "a note is one line").with_help("leave the character out"));
    }
    match text.char_indices().nth(NOTE_LEN_MAX) {
        Some((at, _)) => {
            let problem = format!("notes have at most {NOTE_LEN_MAX} characters");
            Err(SyntaxError::new(at..text.len(), problem).with_help("say the rest in a comment, behind a #"))
        }
        None => Ok(()),
    }
}

/// Checks that `text` is a valid name of a rule or a list.
pub(super) fn check_name(text: &str) -> Result<(), SyntaxError> {
    const HELP: &str = "names are made of letters, digits, `-` and `_`";
    if text.is_empty() {
        return Err(SyntaxError::new(0..0, "the name is empty").with_help(HELP));
    }
    let refused = |c: &(usize, char)| !(c.1.is_ascii_alphanumeric() || c.1 == '-' || c.1 == '_');
    if let Some((at, c)) = text.char_indices().find(refused) {
        return Err(SyntaxError::new(at..at + c.len_utf8(), format!("a name cannot hold {c:?}")).with_help(HELP));
    }
    if text.len() > NAME_LEN_MAX {
        let problem = format!("names have at most {NAME_LEN_MAX} characters");
        return Err(SyntaxError::new(NAME_LEN_MAX..text.len(), problem).with_help("choose a shorter one"));
    }
    Ok(())
}

mod access_logs;
mod fleet;
#[cfg(test)]
mod tests;
