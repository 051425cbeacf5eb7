//! What was written, flag by flag or key by key, each value with its place; and the one way from there to a [`Config`].
//! Flags and file meet here, so that the same words mean the same thing. Pure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use ipnet::IpNet;
use ratelimit_common::layout::{INTERFACES_MAX, LIMITS_MAX, PREFIXES_MAX, SOURCES_CAPACITY, Unit};

use super::limit::{self, Rate};
use super::network::{check_interface, parse_cidr, parse_number};
use super::syntax::{SyntaxError, near_miss};
use super::{Config, MAX_SOURCES_MAX, MAX_SOURCES_MIN, OnExit, SOCKET_DEFAULT, XdpModeChoice, duration, ports};
use crate::desired::{self, Access, Limit, Mode, Policy, Refuse, Rule, WindowForm, unit_label};
use crate::error::{Diagnostic, Excerpt, Place};

/// The rule's name unless it is said.
pub const RULE_NAME_DEFAULT: &str = "default";
/// The ports that are protected unless it is said.
pub const PORTS_DEFAULT: &str = "80,443";
/// Length of the IPv4 prefix that is one client unless it is said.
pub const IPV4_PREFIX_DEFAULT: u8 = 32;
/// Length of the IPv6 prefix that is one client unless it is said.
pub const IPV6_PREFIX_DEFAULT: u8 = 64;

/// The longest name of a rule: it is a label in metrics and tables.
const RULE_NAME_LEN_MAX: usize = 32;
/// The longest path of a Unix socket: `sun_path` less the terminator.
const SOCKET_PATH_LEN_MAX: usize = 107;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// Where it stands.
    pub origin: Origin,
}

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The value of a flag, `--limit`.
    Flag(&'static str),
    /// The value of a key of the file.
    Key {
        /// The key with its table, `rule.limits`.
        key: &'static str,
        /// The value's bytes in the file, quotes included.
        span: Range<usize>,
    },
}

/// Who wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Whoever typed the command.
    #[default]
    CommandLine,
    /// A file.
    File {
        /// Its path, as given.
        path: PathBuf,
        /// All of it.
        contents: String,
    },
}

/// Everything that can be set, as it was written. One field is one flag and one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Who wrote it.
    pub source: Source,
    /// `--iface`, `interfaces`.
    pub interfaces: Vec<Written>,
    /// `--xdp-mode`, `xdp_mode`.
    pub xdp_mode: Option<Written>,
    /// `--on-exit`, `on_exit`.
    pub on_exit: Option<Written>,
    /// `--max-sources`, `max_sources`.
    pub max_sources: Option<Written>,
    /// `--socket`, `socket`.
    pub socket: Option<Written>,
    /// `--listen`, `listen`.
    pub listen: Option<Written>,
    /// `--ipv4-prefix`, `ipv4_prefix`.
    pub ipv4_prefix: Option<Written>,
    /// `--ipv6-prefix`, `ipv6_prefix`.
    pub ipv6_prefix: Option<Written>,
    /// `--allow`, `allow`.
    pub allow: Vec<Written>,
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

impl Settings {
    /// The configuration that this means, defaults filled in; else the first thing wrong with it.
    pub fn config(&self) -> Result<Config, Diagnostic> {
        let policy = Policy {
            ipv4_prefix: self.prefix(self.ipv4_prefix.as_ref(), 32, IPV4_PREFIX_DEFAULT)?,
            ipv6_prefix: self.prefix(self.ipv6_prefix.as_ref(), 128, IPV6_PREFIX_DEFAULT)?,
            access: self.access()?,
            rules: vec![self.rule()?],
        };
        Ok(Config {
            interfaces: self.checked_interfaces()?,
            xdp_mode: self.choice(
                self.xdp_mode.as_ref(),
                [XdpModeChoice::Auto, XdpModeChoice::Native, XdpModeChoice::Generic],
                XdpModeChoice::label,
            )?,
            on_exit: self.choice(self.on_exit.as_ref(), [OnExit::Detach, OnExit::Keep], OnExit::label)?,
            max_sources: self.sources_capacity()?,
            socket: self.socket_path()?,
            listen: self.read_if(self.listen.as_ref(), parse_listen)?,
            policy,
        })
    }

    fn checked_interfaces(&self) -> Result<Vec<String>, Diagnostic> {
        let mut names = Vec::new();
        for written in &self.interfaces {
            self.read(written, check_interface)?;
            names.push(written.text.clone());
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(self.missing("--iface", "interfaces", "name the interface that clients come in by", "eth0"));
        }
        match self.interfaces.get(INTERFACES_MAX) {
            Some(written) if names.len() > INTERFACES_MAX => {
                let problem = format!("there are more than {INTERFACES_MAX} interfaces");
                Err(self.wrong(written, SyntaxError::new(0..written.text.len(), problem)))
            }
            _ => Ok(names),
        }
    }

    fn rule(&self) -> Result<Rule, Diagnostic> {
        let name = match &self.name {
            Some(written) => {
                self.read(written, check_rule_name)?;
                written.text.clone()
            }
            None => RULE_NAME_DEFAULT.to_owned(),
        };
        let unit = self.read_if(self.count.as_ref(), limit::parse_unit)?.unwrap_or(Unit::Connections);
        let form = self.choice(self.window.as_ref(), [WindowForm::Strict, WindowForm::Lenient], WindowForm::label)?;
        let ports = match &self.ports {
            Some(written) => self.read(written, ports::parse)?,
            None => {
                let plain = vec![(80, 80), (443, 443)];
                desired::Ports { tcp: plain.clone(), udp: plain, other_protocols: false }
            }
        };
        Ok(Rule {
            mode: self.choice(self.mode.as_ref(), [Mode::Enforce, Mode::DryRun], Mode::label)?,
            refuse: self.choice(self.refuse.as_ref(), [Refuse::Excess, Refuse::All], Refuse::label)?,
            ports,
            from: Vec::new(),
            to: Vec::new(),
            shadow_limits: Vec::new(),
            bans: None,
            until: None,
            limits: self.checked_limits(&name, unit, form)?,
            name,
        })
    }

    fn checked_limits(&self, rule: &str, unit: Unit, form: WindowForm) -> Result<Vec<Limit>, Diagnostic> {
        let mut limits: Vec<Limit> = Vec::new();
        let mut slots: HashMap<u32, Limit> = HashMap::new();
        for written in &self.limits {
            for (span, rate) in self.read(written, |text| limit::parse(text, unit))? {
                let limit = windowed(rate, rule, form);
                if let Some(other) = slots.insert(limit.slot, limit) {
                    return Err(self.wrong(written, shared_slot(span, other, limit)));
                }
                if limits.len() == LIMITS_MAX {
                    let problem = format!("a rule has at most {LIMITS_MAX} limits");
                    let error = SyntaxError::new(span, problem).with_help("keep those that matter most");
                    return Err(self.wrong(written, error));
                }
                limits.push(limit);
            }
        }
        if limits.is_empty() {
            let help = "say how much one source may do in how much time";
            return Err(self.missing("--limit", "rule.limits", help, "1000/5m"));
        }
        Ok(limits)
    }

    fn access(&self) -> Result<Vec<Access>, Diagnostic> {
        let mut exempt =
            self.allow.iter().map(|written| self.read(written, parse_cidr)).collect::<Result<Vec<_>, _>>()?;
        exempt.sort_unstable();
        exempt.dedup();
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) = exempt.iter().partition(|prefix| prefix.addr().is_ipv4());
        let most = usize::try_from(PREFIXES_MAX).unwrap_or(usize::MAX);
        match self.allow.last() {
            Some(written) if v4.len().max(v6.len()) > most => {
                let problem = format!("there are more than {PREFIXES_MAX} prefixes of one family");
                let error = SyntaxError::new(0..written.text.len(), problem);
                Err(self.wrong(written, error.with_help("join neighbouring prefixes into shorter ones")))
            }
            _ => Ok(exempt.into_iter().map(Access::exempt).collect()),
        }
    }

    fn prefix(&self, written: Option<&Written>, longest: u8, default: u8) -> Result<u8, Diagnostic> {
        let length = self.read_if(written, |text| parse_number(text, 0, longest.into()))?;
        Ok(length.and_then(|length| u8::try_from(length).ok()).unwrap_or(default))
    }

    fn sources_capacity(&self) -> Result<u32, Diagnostic> {
        let parse = |text: &str| parse_number(text, MAX_SOURCES_MIN.into(), MAX_SOURCES_MAX.into());
        let number = self.read_if(self.max_sources.as_ref(), parse)?;
        Ok(number.and_then(|number| u32::try_from(number).ok()).unwrap_or(SOURCES_CAPACITY))
    }

    fn socket_path(&self) -> Result<PathBuf, Diagnostic> {
        let Some(written) = &self.socket else {
            return Ok(PathBuf::from(SOCKET_DEFAULT));
        };
        self.read(written, |text| {
            if text.is_empty() || text.contains('\0') {
                return Err(SyntaxError::new(0..text.len(), "it is not a path").with_help(SOCKET_DEFAULT));
            }
            if text.len() > SOCKET_PATH_LEN_MAX {
                let problem = format!("paths of sockets have at most {SOCKET_PATH_LEN_MAX} bytes");
                return Err(SyntaxError::new(0..text.len(), problem).with_help("choose a shorter directory"));
            }
            Ok(PathBuf::from(text))
        })
    }

    /// One of a fixed set of words; the set's first unless something was written.
    fn choice<T: Copy, const N: usize>(
        &self,
        written: Option<&Written>,
        choices: [T; N],
        label: impl Fn(T) -> &'static str,
    ) -> Result<T, Diagnostic> {
        let Some(written) = written else {
            return Ok(choices[0]);
        };
        self.read(written, |text| {
            let labels = choices.map(&label);
            choices.into_iter().find(|choice| label(*choice) == text).ok_or_else(|| {
                let all = labels.join(" or ");
                let help = match near_miss(text, labels) {
                    Some(meant) => format!("did you mean `{meant}`? The choice is {all}"),
                    None => format!("the choice is {all}"),
                };
                SyntaxError::new(0..text.len(), format!("`{text}` is not one of them")).with_help(help)
            })
        })
    }

    fn read<T>(&self, written: &Written, parse: impl FnOnce(&str) -> Result<T, SyntaxError>) -> Result<T, Diagnostic> {
        parse(&written.text).map_err(|error| self.wrong(written, error))
    }

    fn read_if<T>(
        &self,
        written: Option<&Written>,
        parse: impl FnOnce(&str) -> Result<T, SyntaxError>,
    ) -> Result<Option<T>, Diagnostic> {
        written.map(|written| self.read(written, parse)).transpose()
    }

    fn wrong(&self, written: &Written, error: SyntaxError) -> Diagnostic {
        let help = error.help.into_iter().collect();
        match (&written.origin, &self.source) {
            (Origin::Key { key, span }, Source::File { path, contents }) => {
                let excerpt = Excerpt::of(contents, file_span(contents, span, &written.text, error.span));
                Diagnostic {
                    problem: format!("bad value for `{key}`: {}", error.problem),
                    place: Place::File { path: path.clone(), excerpt: Some(Box::new(excerpt)) },
                    help,
                }
            }
            (Origin::Key { key: name, .. } | Origin::Flag(name), _) => Diagnostic {
                problem: format!("bad value for {name}: {}", error.problem),
                place: Place::Flag { flag: name, text: written.text.clone(), span: error.span },
                help,
            },
        }
    }

    fn missing(&self, flag: &str, key: &str, why: &str, example: &str) -> Diagnostic {
        match &self.source {
            Source::CommandLine => Diagnostic {
                problem: format!("{flag} is missing"),
                place: Place::CommandLine,
                help: vec![format!("{why}, as in {flag} {example}")],
            },
            Source::File { path, .. } => Diagnostic {
                problem: format!("`{key}` is missing, or empty"),
                place: Place::File { path: path.clone(), excerpt: None },
                help: vec![match key.split_once('.') {
                    Some((table, key)) => format!("{why}, as in {key} = [\"{example}\"] under [{table}]"),
                    None => format!("{why}, as in {key} = [\"{example}\"]"),
                }],
            },
        }
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

/// Where `part` of a value's text stands in the file; all of the value where the file writes the text with escapes.
fn file_span(contents: &str, value: &Range<usize>, text: &str, part: Range<usize>) -> Range<usize> {
    let is_verbatim = contents.get(value.start + 1..value.end.saturating_sub(1)) == Some(text);
    if is_verbatim {
        return value.start + 1 + part.start..value.start + 1 + part.end;
    }
    value.clone()
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

fn parse_listen(text: &str) -> Result<SocketAddr, SyntaxError> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().unwrap_or("");
        let help = if port.parse::<u16>().is_ok() && (port.len() == text.len() || text.starts_with([':', 'l'])) {
            format!("did you mean 127.0.0.1:{port}, or 0.0.0.0:{port} for every address?")
        } else {
            "write an address and a port, as in 127.0.0.1:9464 or [::1]:9464".to_owned()
        };
        SyntaxError::new(0..text.len(), format!("`{text}` is not ADDR:PORT")).with_help(help)
    })
}

#[cfg(test)]
mod tests;
