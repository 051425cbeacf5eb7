//! One rule as it was written, and the way from there to a [`Rule`], after those of its overrides. Pure.

use std::collections::HashSet;

use ipnet::IpNet;
use ratelimit_common::layout::{BAN_STEPS_MAX, LIMITS_MAX, SHADOWS_MAX, Unit};
use ratelimit_common::time::SECOND_NS;

use super::limits::{Slots, Spec};
use super::lists::Lists;
use super::network::parse_cidr;
use super::syntax::{SyntaxError, items, turns_text};
use super::written::{OfRule, Source, Written};
use super::{duration, limit, limits, new_sources, ports, until};
use crate::desired::{Bans, Guard, Limit, Mode, Ports, Refuse, Rule, Unparsable};
use crate::diagnostic::Diagnostic;

/// The rule's name unless it is said.
pub const RULE_NAME_DEFAULT: &str = "default";
/// The ports that are protected unless it is said.
pub const PORTS_DEFAULT: &str = "80,443";
/// What limits count that do not say it.
pub const UNIT_DEFAULT: Unit = Unit::Requests;
/// After so much time without a ban the next is the first again, unless it is said.
pub const FORGET_NS_DEFAULT: u64 = 86_400 * SECOND_NS;
/// The longest ban: 30 days. Longer ones are for `deny`.
pub const BAN_NS_MAX: u64 = 30 * 86_400 * SECOND_NS;

/// Candidates on one rule: amounts that `ratelimitd suggest` holds against what was observed.
pub const CANDIDATES_MAX: usize = 8;

/// The longest name of a rule: it is a label in metrics and tables.
const NAME_LEN_MAX: usize = 32;
/// The longest note: it is a line of a list.
const NOTE_LEN_MAX: usize = 200;

/// Everything that can be set of a rule, as it was written. One field is one key, and one flag where it says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSettings {
    /// Which of several it is.
    pub of: Option<OfRule>,
    /// `--name`, `rule.name`.
    pub name: Option<Written>,
    /// `rule.from`; none is everyone.
    pub from: Option<Vec<Written>>,
    /// `rule.to`; none is any address.
    pub to: Option<Vec<Written>>,
    /// `--port`, `rule.ports`.
    pub ports: Option<Written>,
    /// `--limit`, `rule.limits`.
    pub limits: Vec<Written>,
    /// `--count`, `rule.count`.
    pub count: Option<Written>,
    /// `rule.algorithm`.
    pub algorithm: Option<Written>,
    /// `--window`, `rule.window`.
    pub window: Option<Written>,
    /// `rule.burst`.
    pub burst: Option<Written>,
    /// `--dry-run`, `rule.mode`.
    pub mode: Option<Written>,
    /// `--refuse`, `rule.refuse`.
    pub refuse: Option<Written>,
    /// `rule.guard`.
    pub guard: Option<Written>,
    /// `--block-for`, `rule.block_for`.
    pub block_for: Vec<Written>,
    /// `rule.forget_after`.
    pub forget_after: Option<Written>,
    /// `rule.ban_unproven`.
    pub ban_unproven: Option<Written>,
    /// `rule.shadow_limits`.
    pub shadow_limits: Vec<Written>,
    /// `rule.candidates`.
    pub candidates: Vec<Written>,
    /// `rule.under_attack_ok`.
    pub under_attack_ok: Option<Written>,
    /// `--new-sources`, `rule.new_sources`.
    pub new_sources: Option<Written>,
    /// `--quic-ports`, `rule.quic_ports`.
    pub quic_ports: Option<Written>,
    /// `--unparsable`, `rule.unparsable`.
    pub unparsable: Option<Written>,
    /// `rule.override`.
    pub overrides: Vec<OverrideSettings>,
}

/// Other limits for some sources of a rule, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideSettings {
    /// `rule.override.name`.
    pub name: Option<Written>,
    /// `rule.override.from`.
    pub from: Vec<Written>,
    /// `rule.override.limits`.
    pub limits: Vec<Written>,
    /// `rule.override.algorithm`.
    pub algorithm: Option<Written>,
    /// `rule.override.window`.
    pub window: Option<Written>,
    /// `rule.override.burst`.
    pub burst: Option<Written>,
    /// `rule.override.until`.
    pub until: Option<Written>,
    /// `rule.override.note`.
    pub note: Option<Written>,
}

/// What rules are read with.
pub(super) struct Context<'a> {
    pub(super) source: &'a Source,
    pub(super) lists: &'a Lists<'a>,
    pub(super) names: HashSet<String>,
    pub(super) slots: Slots,
    /// By rule.
    pub(super) notes: Vec<(String, String)>,
    /// By rule, of those that have some.
    pub(super) candidates: Vec<(String, Vec<Limit>)>,
}

impl RuleSettings {
    /// How many rules it makes.
    pub(super) fn rules_len(&self) -> usize {
        self.overrides.len() + 1
    }

    /// The rules that this means, defaults filled in, in order: overrides first. Else the first thing wrong with it.
    pub(super) fn rules(&self, context: &mut Context<'_>) -> Result<Vec<Rule>, Diagnostic> {
        let rule = self.rule(context)?;
        let mut rules = Vec::with_capacity(self.rules_len());
        for (index, of) in self.overrides.iter().enumerate() {
            rules.push(self.override_of(&rule, index, of, context)?);
        }
        rules.push(rule);
        Ok(rules)
    }

    fn rule(&self, context: &mut Context<'_>) -> Result<Rule, Diagnostic> {
        let source = context.source;
        let name = self.checked_name(context)?;
        let from = match &self.from {
            Some(written) => self.senders(written, "rule.from", context)?,
            None => Vec::new(),
        };
        let ports = match &self.ports {
            Some(written) => source.read(written, ports::parse)?,
            None => {
                let plain = vec![(80, 80), (443, 443)];
                Ports { tcp: plain.clone(), udp: plain, other_protocols: false }
            }
        };
        let spec = Spec {
            limits: &self.limits,
            unit: self.unit(source)?,
            algorithm: self.algorithm.as_ref(),
            window: self.window.as_ref(),
            burst: self.burst.as_ref(),
        };
        let limits = self.limits_of(&name, &spec, "rule.limits", context)?;
        let shadow_limits =
            limits::shadows(&name, &spec, &self.shadow_limits, SHADOWS_MAX, source, &mut context.slots)?;
        let candidates = limits::candidates(&limits, spec.unit, &self.candidates, CANDIDATES_MAX, source)?;
        if !candidates.is_empty() {
            context.candidates.push((name.clone(), candidates));
        }
        Ok(Rule {
            mode: source.choice(self.mode.as_ref(), [Mode::Enforce, Mode::DryRun], Mode::label)?,
            refuse: source.choice(self.refuse.as_ref(), [Refuse::Excess, Refuse::All], Refuse::label)?,
            guard: source.choice(self.guard.as_ref(), [Guard::Auto, Guard::Off], Guard::label)?,
            from,
            to: self.receivers(source)?,
            shadow_limits,
            bans: self.bans(source)?,
            under_attack_ok: source.is_set(self.under_attack_ok.as_ref(), false)?,
            new_sources: source.read_if(self.new_sources.as_ref(), new_sources::parse)?,
            quic_ports: source
                .read_if(self.quic_ports.as_ref(), |text| ports::parse_quic(text, &ports))?
                .unwrap_or_default(),
            unparsable: source.choice(
                self.unparsable.as_ref(),
                [Unparsable::Drop, Unparsable::Count],
                Unparsable::label,
            )?,
            ..Rule::new(name, ports, limits)
        })
    }

    fn override_of(
        &self,
        rule: &Rule,
        index: usize,
        of: &OverrideSettings,
        context: &mut Context<'_>,
    ) -> Result<Rule, Diagnostic> {
        let source = context.source;
        let name = match &of.name {
            Some(written) => {
                source.read(written, check_name)?;
                format!("{}:{}", rule.name, written.text)
            }
            None => format!("{}:{}", rule.name, index + 1),
        };
        if let Some(written) = of.name.as_ref().filter(|_| context.names.contains(&name)) {
            return Err(source.wrong(written, taken_name(&name)));
        }
        context.names.insert(name.clone());
        let from = self.senders(&of.from, "rule.override.from", context)?;
        // The window is a choice of one algorithm, so it is inherited only with that.
        let window = of.window.as_ref().or(self.window.as_ref().filter(|_| of.algorithm.is_none()));
        let spec = Spec {
            limits: &of.limits,
            unit: self.unit(source)?,
            algorithm: of.algorithm.as_ref().or(self.algorithm.as_ref().filter(|_| of.window.is_none())),
            window,
            burst: of.burst.as_ref(),
        };
        let limits = self.limits_of(&name, &spec, "rule.override.limits", context)?;
        let until = source.read_if(of.until.as_ref(), until::parse)?;
        if let Some(written) = &of.note {
            source.read(written, check_note)?;
            context.notes.push((name.clone(), written.text.clone()));
        }
        Ok(Rule { name, from, limits, until, shadow_limits: Vec::new(), ..rule.clone() })
    }

    fn checked_name(&self, context: &mut Context<'_>) -> Result<String, Diagnostic> {
        let source = context.source;
        let Some(written) = &self.name else {
            return match &self.of {
                None => Ok(RULE_NAME_DEFAULT.to_owned()),
                of @ Some(_) => {
                    let why = "each of several rules has a name of its own";
                    Err(source.missing("--name", "rule.name", of.as_ref(), why, "\"login\""))
                }
            };
        };
        source.read(written, check_name)?;
        if !context.names.insert(written.text.clone()) {
            return Err(source.wrong(written, taken_name(&written.text)));
        }
        Ok(written.text.clone())
    }

    fn unit(&self, source: &Source) -> Result<Unit, Diagnostic> {
        Ok(source.read_if(self.count.as_ref(), limit::parse_unit)?.unwrap_or(UNIT_DEFAULT))
    }

    fn limits_of(
        &self,
        name: &str,
        spec: &Spec<'_>,
        key: &str,
        context: &mut Context<'_>,
    ) -> Result<Vec<Limit>, Diagnostic> {
        let limits = limits::enforced(name, spec, LIMITS_MAX, context.source, &mut context.slots)?;
        if limits.is_empty() {
            let why = "say how much one source may do in how much time";
            return Err(context.source.missing("--limit", key, self.of.as_ref(), why, "[\"1000/5m\"]"));
        }
        Ok(limits)
    }

    /// Nobody is an error: in a rule, no prefix means everyone.
    fn senders(&self, written: &[Written], key: &str, context: &Context<'_>) -> Result<Vec<IpNet>, Diagnostic> {
        let Some(last) = written.last() else {
            let why = "say whose packets it is for";
            return Err(context.source.missing(key, key, self.of.as_ref(), why, "[\"192.0.2.0/24\"]"));
        };
        let prefixes = context.lists.prefixes(written)?;
        if prefixes.is_empty() {
            let error = SyntaxError::new(0..last.text.len(), "there is no address in it, so the rule is for nobody");
            return Err(context.source.wrong(last, error.with_help("put an address in, or leave the rule out")));
        }
        Ok(prefixes.into_iter().collect())
    }

    fn receivers(&self, source: &Source) -> Result<Vec<IpNet>, Diagnostic> {
        let Some(written) = &self.to else { return Ok(Vec::new()) };
        if written.is_empty() {
            let why = "say which addresses of this host it is for, or leave the key out for all";
            return Err(source.missing("rule.to", "rule.to", self.of.as_ref(), why, "[\"203.0.113.5\"]"));
        }
        let mut prefixes =
            written.iter().map(|written| source.read(written, parse_cidr)).collect::<Result<Vec<_>, _>>()?;
        prefixes.sort_unstable();
        prefixes.dedup();
        Ok(prefixes)
    }

    fn bans(&self, source: &Source) -> Result<Option<Bans>, Diagnostic> {
        let mut steps_ns: Vec<u64> = Vec::new();
        for written in &self.block_for {
            for step_ns in source.read(written, |text| ban_steps(text, steps_ns.last().copied()))? {
                if steps_ns.len() == BAN_STEPS_MAX {
                    let problem = format!("there are at most {BAN_STEPS_MAX} bans of growing length");
                    let error = SyntaxError::new(0..written.text.len(), problem);
                    return Err(source.wrong(written, error.with_help("the last one is for all after it")));
                }
                steps_ns.push(step_ns);
            }
        }
        let forget_ns = source.read_if(self.forget_after.as_ref(), |text| {
            if self.block_for.is_empty() {
                return Err(without_ban(text, "there is no ban to forget"));
            }
            ban_length(text)
        })?;
        let forget_ns = forget_ns.unwrap_or(FORGET_NS_DEFAULT);
        if let Some(written) = self.ban_unproven.as_ref().filter(|_| steps_ns.is_empty()) {
            return Err(source.wrong(written, without_ban(&written.text, "there is no ban that could need proof")));
        }
        let needs_proof = !source.is_set(self.ban_unproven.as_ref(), false)?;
        Ok((!steps_ns.is_empty()).then_some(Bans { steps_ns, forget_ns, needs_proof }))
    }
}

/// What is said of bans where there are none.
fn without_ban(text: &str, problem: &str) -> SyntaxError {
    SyntaxError::new(0..text.len(), problem).with_help("say how long a source is banned: block_for = \"10m\"")
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
    // An override's name is only its end.
    let written = name.rsplit(':').next().unwrap_or(name);
    SyntaxError::new(0..written.len(), format!("there is a rule {name} already"))
        .with_help("names tell rules apart in statistics, and counts are found again by them")
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

/// Checks that `text` can name a rule or a list.
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

#[cfg(test)]
mod tests;
