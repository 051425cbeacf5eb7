//! What was written, flag by flag or key by key, each value with its place; and the one way from there to a [`Config`].
//! Flags and file meet here, so that the same words mean the same thing. Pure.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use ratelimit_common::layout::{EXEMPT_MAX, INTERFACES_MAX, SOURCES_CAPACITY};

use super::network::{check_interface, parse_cidr, parse_number};
use super::rule::RuleSettings;
use super::syntax::SyntaxError;
use super::written::{Source, Written};
use super::{Config, MAX_SOURCES_MAX, MAX_SOURCES_MIN, OnExit, SOCKET_DEFAULT, XdpModeChoice};
use crate::desired::{Access, Policy, Rule};
use crate::error::Diagnostic;

/// Length of the IPv4 prefix that is one client unless it is said.
pub const IPV4_PREFIX_DEFAULT: u8 = 32;
/// Length of the IPv6 prefix that is one client unless it is said.
pub const IPV6_PREFIX_DEFAULT: u8 = 64;

/// The longest path of a Unix socket: `sun_path` less the terminator.
const SOCKET_PATH_LEN_MAX: usize = 107;

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
    /// The rules, in order; flags make exactly one.
    pub rules: Vec<RuleSettings>,
}

impl Settings {
    /// The configuration that this means, defaults filled in; else the first thing wrong with it.
    pub fn config(&self) -> Result<Config, Diagnostic> {
        let policy = Policy {
            ipv4_prefix: self.prefix(self.ipv4_prefix.as_ref(), 32, IPV4_PREFIX_DEFAULT)?,
            ipv6_prefix: self.prefix(self.ipv6_prefix.as_ref(), 128, IPV6_PREFIX_DEFAULT)?,
            access: self.access()?,
            rules: self.rules()?,
        };
        Ok(Config {
            interfaces: self.checked_interfaces()?,
            xdp_mode: self.source.choice(
                self.xdp_mode.as_ref(),
                [XdpModeChoice::Auto, XdpModeChoice::Native, XdpModeChoice::Generic],
                XdpModeChoice::label,
            )?,
            on_exit: self.source.choice(self.on_exit.as_ref(), [OnExit::Detach, OnExit::Keep], OnExit::label)?,
            max_sources: self.sources_capacity()?,
            socket: self.socket_path()?,
            listen: self.source.read_if(self.listen.as_ref(), parse_listen)?,
            policy,
        })
    }

    fn checked_interfaces(&self) -> Result<Vec<String>, Diagnostic> {
        let mut names = Vec::new();
        for written in &self.interfaces {
            self.source.read(written, check_interface)?;
            names.push(written.text.clone());
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(self.source.missing(
                "--iface",
                "interfaces",
                None,
                "name the interface that clients come in by",
                "eth0",
            ));
        }
        match self.interfaces.get(INTERFACES_MAX) {
            Some(written) if names.len() > INTERFACES_MAX => {
                let problem = format!("there are more than {INTERFACES_MAX} interfaces");
                Err(self.source.wrong(written, SyntaxError::new(0..written.text.len(), problem)))
            }
            _ => Ok(names),
        }
    }

    fn rules(&self) -> Result<Vec<Rule>, Diagnostic> {
        if self.rules.is_empty() {
            return Ok(vec![RuleSettings::default().rule(&self.source)?]);
        }
        self.rules.iter().map(|rule| rule.rule(&self.source)).collect()
    }

    fn access(&self) -> Result<Vec<Access>, Diagnostic> {
        let mut exempt =
            self.allow.iter().map(|written| self.source.read(written, parse_cidr)).collect::<Result<Vec<_>, _>>()?;
        exempt.sort_unstable();
        exempt.dedup();
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) = exempt.iter().partition(|prefix| prefix.addr().is_ipv4());
        let most = usize::try_from(EXEMPT_MAX).unwrap_or(usize::MAX);
        match self.allow.last() {
            Some(written) if v4.len().max(v6.len()) > most => {
                let problem = format!("there are more than {EXEMPT_MAX} prefixes of one family");
                let error = SyntaxError::new(0..written.text.len(), problem);
                Err(self.source.wrong(written, error.with_help("join neighbouring prefixes into shorter ones")))
            }
            _ => Ok(exempt.into_iter().map(Access::exempt).collect()),
        }
    }

    fn prefix(&self, written: Option<&Written>, longest: u8, default: u8) -> Result<u8, Diagnostic> {
        let length = self.source.read_if(written, |text| parse_number(text, 0, longest.into()))?;
        Ok(length.and_then(|length| u8::try_from(length).ok()).unwrap_or(default))
    }

    fn sources_capacity(&self) -> Result<u32, Diagnostic> {
        let parse = |text: &str| parse_number(text, MAX_SOURCES_MIN.into(), MAX_SOURCES_MAX.into());
        let number = self.source.read_if(self.max_sources.as_ref(), parse)?;
        Ok(number.and_then(|number| u32::try_from(number).ok()).unwrap_or(SOURCES_CAPACITY))
    }

    fn socket_path(&self) -> Result<PathBuf, Diagnostic> {
        let Some(written) = &self.socket else {
            return Ok(PathBuf::from(SOCKET_DEFAULT));
        };
        self.source.read(written, |text| {
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
