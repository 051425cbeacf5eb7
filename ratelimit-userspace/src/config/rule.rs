//! One rule as it was written, and the way from there to a [`Rule`]. Pure.

use std::collections::HashMap;
use std::ops::Range;

use ratelimit_common::layout::{LIMITS_MAX, Unit};

use super::limit::{self, Rate};
use super::syntax::SyntaxError;
use super::written::{OfRule, Source, Written};
use super::{duration, ports};
use crate::desired::{self, Limit, Mode, Ports, Refuse, Rule, WindowForm, unit_label};
use crate::error::Diagnostic;

/// The rule's name unless it is said.
pub const RULE_NAME_DEFAULT: &str = "default";
/// The ports that are protected unless it is said.
pub const PORTS_DEFAULT: &str = "80,443";

/// The longest name of a rule: it is a label in metrics and tables.
const RULE_NAME_LEN_MAX: usize = 32;

/// Everything that can be set of a rule, as it was written. One field is one flag and one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSettings {
    /// Which of several it is.
    pub of: Option<OfRule>,
    /// `--name`, `rule.name`.
    pub name: Option<Written>,
    /// `--limit`, `rule.limits`.
    pub limits: Vec<Written>,
    /// `--count`, `rule.count`.
    pub count: Option<Written>,
    /// `--port`, `rule.ports`.
    pub ports: Option<Written>,
    /// `--dry-run`, `rule.mode`.
    pub mode: Option<Written>,
    /// `--window`, `rule.window`.
    pub window: Option<Written>,
    /// `--refuse`, `rule.refuse`.
    pub refuse: Option<Written>,
}

impl RuleSettings {
    /// The rule that this means, defaults filled in; else the first thing wrong with it.
    pub(super) fn rule(&self, source: &Source) -> Result<Rule, Diagnostic> {
        let name = match &self.name {
            Some(written) => {
                source.read(written, check_rule_name)?;
                written.text.clone()
            }
            None => RULE_NAME_DEFAULT.to_owned(),
        };
        let unit = source.read_if(self.count.as_ref(), limit::parse_unit)?.unwrap_or(Unit::Connections);
        let form = source.choice(self.window.as_ref(), [WindowForm::Strict, WindowForm::Lenient], WindowForm::label)?;
        let ports = match &self.ports {
            Some(written) => source.read(written, ports::parse)?,
            None => {
                let plain = vec![(80, 80), (443, 443)];
                Ports { tcp: plain.clone(), udp: plain, other_protocols: false }
            }
        };
        let mode = source.choice(self.mode.as_ref(), [Mode::Enforce, Mode::DryRun], Mode::label)?;
        let refuse = source.choice(self.refuse.as_ref(), [Refuse::Excess, Refuse::All], Refuse::label)?;
        let limits = self.checked_limits(source, &name, unit, form)?;
        Ok(Rule { mode, refuse, ..Rule::new(name, ports, limits) })
    }

    fn checked_limits(
        &self,
        source: &Source,
        rule: &str,
        unit: Unit,
        form: WindowForm,
    ) -> Result<Vec<Limit>, Diagnostic> {
        let mut limits: Vec<Limit> = Vec::new();
        let mut slots: HashMap<u32, Limit> = HashMap::new();
        for written in &self.limits {
            for (span, rate) in source.read(written, |text| limit::parse(text, unit))? {
                let limit = windowed(rate, rule, form);
                if let Some(other) = slots.insert(limit.slot, limit) {
                    return Err(source.wrong(written, shared_slot(span, other, limit)));
                }
                if limits.len() == LIMITS_MAX {
                    let problem = format!("a rule has at most {LIMITS_MAX} limits");
                    let error = SyntaxError::new(span, problem).with_help("keep those that matter most");
                    return Err(source.wrong(written, error));
                }
                limits.push(limit);
            }
        }
        if limits.is_empty() {
            let help = "say how much one source may do in how much time";
            return Err(source.missing("--limit", "rule.limits", self.of.as_ref(), help, "1000/5m"));
        }
        Ok(limits)
    }
}

fn windowed(rate: Rate, rule: &str, form: WindowForm) -> Limit {
    Limit {
        amount: rate.amount,
        unit: rate.unit,
        window_ns: rate.window_ns,
        buckets: rate.buckets.count,
        bucket_ns: rate.buckets.bucket_ns,
        form,
        burst: None,
        slot: desired::slot(rule, rate.unit, rate.buckets.bucket_ns),
    }
}

fn shared_slot(span: Range<usize>, other: Limit, limit: Limit) -> SyntaxError {
    let unit = unit_label(limit.unit);
    if (other.unit, other.window_ns) == (limit.unit, limit.window_ns) {
        let problem = format!("there is a limit of {unit} for this window already: {}", other.rate());
        return SyntaxError::new(span, problem).with_help("keep the smaller one: it is the one that holds");
    }
    if (other.unit, other.bucket_ns) == (limit.unit, limit.bucket_ns) {
        let length = duration::words(limit.bucket_ns);
        let problem = format!("it would count {unit} in the same buckets of {length} as {}", other.rate());
        let help = "keep one of them, or choose windows that differ more";
        return SyntaxError::new(span, problem).with_help(help);
    }
    SyntaxError::new(span, format!("its counts would be mixed with those of {other}: their names hash alike"))
        .with_help("give the rule another name")
}

fn check_rule_name(text: &str) -> Result<(), SyntaxError> {
    const HELP: &str = "names are made of letters, digits, `-` and `_`";
    if text.is_empty() {
        return Err(SyntaxError::new(0..0, "the name is empty").with_help(HELP));
    }
    let refused = |c: &(usize, char)| !(c.1.is_ascii_alphanumeric() || c.1 == '-' || c.1 == '_');
    if let Some((at, c)) = text.char_indices().find(refused) {
        return Err(SyntaxError::new(at..at + c.len_utf8(), format!("a name cannot hold {c:?}")).with_help(HELP));
    }
    if text.len() > RULE_NAME_LEN_MAX {
        let problem = format!("names have at most {RULE_NAME_LEN_MAX} characters");
        return Err(SyntaxError::new(RULE_NAME_LEN_MAX..text.len(), problem));
    }
    Ok(())
}
