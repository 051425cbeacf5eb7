//! Conversion of a rule's written amounts, windows and algorithm to [`Limit`]s, each with a slot of its own. Pure.

use std::collections::HashMap;
use std::ops::Range;

use ratelimit_common::layout::Unit;
use ratelimit_common::verification;
use ratelimit_common::window::Parts;

use super::amount::{self, Amount};
use super::duration;
use super::limit::{self, Rate, WINDOW_NS_MAX};
use super::syntax::SyntaxError;
use super::written::{Source, Written};
use crate::desired::{self, Limit, Per, Shared, WindowForm, unit_label};
use crate::diagnostic::{Diagnostic, Found};
use crate::fleet::{GCRA_REFUSED, Sum, Terms};
use crate::labels;

mod groups;

pub(super) use groups::Groups;

/// Settings of a rule's limits, as they were written.
pub(super) struct Spec<'a> {
    pub(super) limits: &'a [Written],
    /// Unit of limits that name none.
    pub(super) unit: Unit,
    pub(super) algorithm: Option<&'a Written>,
    pub(super) window: Option<&'a Written>,
    pub(super) burst: Option<&'a Written>,
    /// Fleet that shares the limits. None if this host keeps them for itself.
    pub(super) fleet: Option<InFleet<'a>>,
    pub(super) groups: Groups<'a>,
}

/// Settings by which the hosts of a fleet share the limits of a rule.
#[derive(Clone, Copy)]
pub(super) struct InFleet<'a> {
    pub(super) hosts: u32,
    pub(super) sum: Sum,
    /// Value of the rule's own `fleet` key. None if the rule has no such key.
    pub(super) written: Option<&'a Written>,
}

/// The limit that counts in each slot, over all rules, with the name of its rule.
#[derive(Default)]
pub(super) struct Slots(HashMap<u32, (String, Limit)>);

#[derive(Clone, Copy)]
enum Algorithm {
    Buckets,
    Fixed,
    Gcra,
}

labels!(Algorithm { Buckets => "buckets", Fixed => "fixed", Gcra => "gcra" });

#[derive(Clone, Copy)]
enum Kind<'a> {
    Enforced { fleet: Option<InFleet<'a>> },
    Shadow,
}

/// Help for a rule with too many limits, some of them limits of groups.
const GROUPS_COUNT: &str = "limits of groups are among them: keep those that matter most";

/// Returns the enforced limits of `rule`, and reports all errors to `found`.
pub(super) fn enforced(
    rule: &str,
    spec: &Spec<'_>,
    most: usize,
    source: &Source,
    slots: &mut Slots,
    found: &mut Found,
) -> Vec<Limit> {
    let before = found.count();
    let form = found.keep(form(spec, source)).unwrap_or(WindowForm::Strict);
    let fleet = match (spec.fleet, form) {
        (Some(fleet), WindowForm::Gcra) => {
            if let Some(written) = fleet.written.or(spec.algorithm) {
                let (problem, help) = GCRA_REFUSED;
                found.push(source.wrong(written, SyntaxError::new(0..written.text.len(), problem).with_help(help)));
            }
            None
        }
        (fleet, _) => fleet,
    };
    let kind = Kind::Enforced { fleet };
    let mut limits = read(rule, spec, spec.limits, kind, (form, most), source, slots, found);
    groups::check_fleet(fleet, &limits, source, found);
    let Some(written) = spec.burst else { return limits };
    let burst = found.keep(source.read(written, amount::parse));
    // A burst is checked against the limits, so only if those are valid.
    if let Some(burst) = burst.filter(|_| found.count() == before) {
        for limit in &mut limits {
            limit.burst = found.keep(source.read(written, |text| burst_of(limit, burst, text)));
        }
        if limits.iter().any(|limit| limit.unit != limits[0].unit) {
            let error = SyntaxError::new(0..written.text.len(), "the limits of this rule count different things");
            let help = "a burst is an amount of one unit: make them two rules";
            found.push(source.wrong(written, error.with_help(help)));
        }
    }
    limits
}

/// Returns the shadow limits of `rule`. They are counted like the enforced ones, but never refuse anything.
pub(super) fn shadows(
    rule: &str,
    spec: &Spec<'_>,
    written: &[Written],
    most: usize,
    source: &Source,
    slots: &mut Slots,
    found: &mut Found,
) -> Vec<Limit> {
    let form = form(spec, source).unwrap_or(WindowForm::Strict);
    read(rule, spec, written, Kind::Shadow, (form, most), source, slots, found)
}

/// Returns the candidates of a rule: other amounts for its limits, compared with traffic observed in the same
/// buckets. Candidates are never enforced.
pub(super) fn candidates(
    limits: &[Limit],
    unit: Unit,
    written: &[Written],
    most: usize,
    source: &Source,
    found: &mut Found,
) -> Vec<Limit> {
    let mut candidates: Vec<Limit> = Vec::new();
    for written in written {
        for (span, rate) in found.keep(source.read(written, |text| limit::parse(text, unit))).unwrap_or_default() {
            let of_source = groups::of_source(&rate, span.end, "a candidate");
            let candidate = of_source.and_then(|()| candidate(limits, rate, span.clone()));
            let Some(candidate) = found.keep(candidate.map_err(|error| source.wrong(written, error))) else { continue };
            if candidates.contains(&candidate) {
                found.push(source.wrong(written, SyntaxError::new(span, "it is there already")));
            } else if candidates.len() == most {
                let error = SyntaxError::new(span, format!("a rule has at most {most} candidates"));
                found.push(source.wrong(written, error.with_help("keep those that matter most")));
            } else {
                candidates.push(candidate);
            }
        }
    }
    candidates
}

fn candidate(limits: &[Limit], rate: Rate, span: Range<usize>) -> Result<Limit, SyntaxError> {
    let Some(limit) = limits.iter().find(|of| {
        (of.unit, of.window_ns, of.per, of.condition) == (rate.unit, rate.window_ns, rate.per, rate.condition)
    }) else {
        let (unit, window) = (unit_label(rate.unit), duration::words(rate.window_ns));
        let problem = format!("no limit of this rule counts {unit} in {window}");
        let limits: Vec<String> = limits.iter().map(ToString::to_string).collect();
        let help =
            format!("a candidate is another amount for the window of a limit; the limits are {}", limits.join(", "));
        return Err(SyntaxError::new(span, problem).with_help(help));
    };
    match limit.form {
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => Ok(Limit { amount: rate.amount, ..*limit }),
        WindowForm::Gcra => {
            let problem = format!("{limit} is a leaky bucket, which does not record demand over time");
            Err(SyntaxError::new(span, problem)
                .with_help("leave the candidates out, or choose algorithm = \"buckets\""))
        }
    }
}

fn form(spec: &Spec<'_>, source: &Source) -> Result<WindowForm, Diagnostic> {
    let algorithm = source.choice(spec.algorithm, Algorithm::ALL, Algorithm::label)?;
    let window = source.choice(spec.window, [WindowForm::Strict, WindowForm::Lenient], WindowForm::label)?;
    let other = match algorithm {
        Algorithm::Buckets => return Ok(window),
        Algorithm::Fixed => WindowForm::Fixed,
        Algorithm::Gcra => WindowForm::Gcra,
    };
    match spec.window {
        None => Ok(other),
        Some(written) => {
            let problem = format!("algorithm = \"{}\" has no such choice", algorithm.label());
            let error = SyntaxError::new(0..written.text.len(), problem);
            Err(source.wrong(
                written,
                error.with_help("leave out one of the two; `window` belongs to algorithm = \"buckets\""),
            ))
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "what is written, and the three things that are the same for every rule")]
fn read(
    rule: &str,
    spec: &Spec<'_>,
    written: &[Written],
    kind: Kind<'_>,
    (form, most): (WindowForm, usize),
    source: &Source,
    slots: &mut Slots,
    found: &mut Found,
) -> Vec<Limit> {
    let mut limits = Vec::new();
    for written in written {
        let rates = source.read(written, |text| limit::parse(text, spec.unit));
        for (span, rate) in found.keep(rates).unwrap_or_default() {
            let group = match kind {
                Kind::Enforced { .. } => spec.groups.check(&rate, span.end, source),
                Kind::Shadow => groups::of_source(&rate, span.end, "a shadow limit"),
            };
            found.keep(group.map_err(|error| source.wrong(written, error)));
            found.keep(check_condition(&rate, form, span.clone()).map_err(|error| source.wrong(written, error)));
            let limit = counted(rate, rule, form, kind);
            found.keep(check_shared(limit, span.clone()).map_err(|error| source.wrong(written, error)));
            let of_all = verification::of_all_sides(limit.slot);
            if let Some((other_rule, other)) = slots.0.insert(of_all, (rule.to_owned(), limit)) {
                let error = if other_rule == rule { shared_slot(span, other, limit) } else { alike(span, other) };
                found.push(source.wrong(written, error));
            } else if limits.len() == most {
                let what = match kind {
                    Kind::Enforced { .. } => "limits",
                    Kind::Shadow => "shadow limits",
                };
                let error = SyntaxError::new(span, format!("a rule has at most {most} {what}"));
                let help = if limit.per == Per::Source { "keep those that matter most" } else { GROUPS_COUNT };
                found.push(source.wrong(written, error.with_help(help)));
            } else {
                limits.push(limit);
            }
        }
    }
    limits
}

fn counted(rate: Rate, rule: &str, form: WindowForm, kind: Kind<'_>) -> Limit {
    let (buckets, bucket_ns) = match form {
        WindowForm::Strict | WindowForm::Lenient => (rate.buckets.count, rate.buckets.bucket_ns),
        WindowForm::Fixed | WindowForm::Gcra => (1, rate.window_ns),
    };
    // A name cannot hold a zero byte, so a name with a suffix behind one never equals another rule's name.
    let mut counted_as = rule.to_owned();
    match form {
        WindowForm::Strict | WindowForm::Lenient => {}
        WindowForm::Fixed | WindowForm::Gcra => counted_as = format!("{counted_as}\0{}", form.label()),
    }
    match rate.per {
        Per::Source => {}
        Per::Prefix { .. } | Per::List => counted_as = format!("{counted_as}\0{}", rate.per),
    }
    if let Some(condition) = rate.condition {
        counted_as = format!("{counted_as}\0{condition}");
    }
    let fleet = match kind {
        // Shared limits use ten bits of a cell's count for the other hosts. Hosts exchange counts of sources only,
        // and each host counts log lines for itself.
        Kind::Enforced { fleet: Some(fleet) } if rate.per == Per::Source && rate.condition.is_none() => {
            counted_as = format!("{counted_as}\0fleet");
            Some(fleet)
        }
        Kind::Enforced { fleet: _ } => None,
        // Shadow limits that differ only in the amount admit differently, so each has its own slot.
        Kind::Shadow => {
            counted_as = format!("{counted_as}\0shadow\0{}", rate.amount);
            None
        }
    };
    let limit = Limit {
        amount: rate.amount,
        unit: rate.unit,
        window_ns: rate.window_ns,
        buckets,
        bucket_ns,
        form,
        burst: None,
        slot: desired::slot(&counted_as, rate.unit, bucket_ns),
        shared: fleet.map(|fleet| Shared { sum: fleet.sum, step_bits: 0 }),
        per: rate.per,
        condition: rate.condition,
    };
    let terms = fleet.zip(limit.fleet_limit(rule)).map(|(fleet, limit)| Terms::new(&limit, fleet.hosts));
    let step_bits = terms.map_or(0, |terms| u8::try_from(terms.step_shift()).unwrap_or(Parts::WHOLE));
    Limit { shared: limit.shared.map(|shared| Shared { step_bits, ..shared }), ..limit }
}

/// Checks that a limit with a condition has buckets. Log lines are charged to buckets only.
fn check_condition(rate: &Rate, form: WindowForm, span: Range<usize>) -> Result<(), SyntaxError> {
    if rate.condition.is_none() || form != WindowForm::Gcra {
        return Ok(());
    }
    let problem = "a limit with conditions is charged in buckets, and algorithm = \"gcra\" has none";
    Err(SyntaxError::new(span, problem).with_help("choose algorithm = \"buckets\""))
}

/// Checks the amount of a shared limit. A shared cell has fewer bits for this host's own count.
fn check_shared(limit: Limit, span: Range<usize>) -> Result<(), SyntaxError> {
    let most = limit.parts().amount_max();
    if limit.shared.is_none() || limit.amount <= most {
        return Ok(());
    }
    let most = match limit.unit {
        Unit::Requests | Unit::Connections | Unit::Packets => format!("{most} {}", unit_label(limit.unit)),
        Unit::Bytes => amount::rounded(most),
    };
    let window = duration::words(limit.window_ns);
    let problem = format!("hosts that share a limit count at most {most} in {window}");
    Err(SyntaxError::new(span, problem).with_help("choose a smaller one, a longer window, or `fleet = false`"))
}

fn burst_of(limit: &Limit, burst: Amount, text: &str) -> Result<u64, SyntaxError> {
    let wrong = |problem: String, help: String| SyntaxError::new(0..text.len(), problem).with_help(help);
    let burst = match (burst, limit.unit) {
        (Amount::Plain(amount), _) | (Amount::Bytes(amount), Unit::Bytes) => amount,
        (Amount::Bytes(_), Unit::Requests | Unit::Connections | Unit::Packets) => {
            let unit = unit_label(limit.unit);
            return Err(wrong(format!("`{text}` is a size, and {unit} have none"), "write a plain number".to_owned()));
        }
    };
    if burst == 0 {
        return Err(wrong("a burst of 0 would drop everything".to_owned(), "the smallest burst is 1".to_owned()));
    }
    match limit.form {
        WindowForm::Fixed => Err(wrong(
            "a fixed window is one bucket, which the limit bounds already".to_owned(),
            "leave the burst out, or choose algorithm = \"buckets\" or \"gcra\"".to_owned(),
        )),
        WindowForm::Strict | WindowForm::Lenient if burst > limit.amount => {
            let problem = format!("a bucket never holds more than the limit {limit}");
            Err(wrong(problem, format!("a burst is at most {}", limit.amount)))
        }
        WindowForm::Strict | WindowForm::Lenient => Ok(burst),
        WindowForm::Gcra => {
            let drains_ns = u128::from(burst) * u128::from(limit.window_ns) / u128::from(limit.amount.max(1));
            if drains_ns > u128::from(WINDOW_NS_MAX) {
                let problem = format!("a burst of {text} takes longer than a day to drain at {limit}");
                return Err(wrong(problem, "choose a smaller one".to_owned()));
            }
            Ok(burst)
        }
    }
}

fn shared_slot(span: Range<usize>, other: Limit, limit: Limit) -> SyntaxError {
    let unit = unit_label(limit.unit);
    if (other.unit, other.window_ns, other.per) == (limit.unit, limit.window_ns, limit.per) {
        let problem = format!("there is a limit of {unit} for this window already: {}{}", other.rate(), other.per);
        return SyntaxError::new(span, problem).with_help("keep the smaller one: only it has an effect");
    }
    if (other.unit, other.bucket_ns, other.per) == (limit.unit, limit.bucket_ns, limit.per) {
        let length = duration::words(limit.bucket_ns);
        let problem = format!("it would count {unit} in the same buckets of {length} as {}", other.rate());
        let help = "keep one of them, or choose windows that differ more";
        return SyntaxError::new(span, problem).with_help(help);
    }
    alike(span, other)
}

fn alike(span: Range<usize>, other: Limit) -> SyntaxError {
    SyntaxError::new(span, format!("its counts would be mixed with those of {other}: their names hash alike"))
        .with_help("give the rule another name")
}
