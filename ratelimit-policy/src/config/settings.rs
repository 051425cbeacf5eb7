//! Settings as written in flags or in a file, each value with its place, and their conversion to a [`Config`]. Flags
//! and file share this conversion, so the same text means the same in both. Pure.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use ratelimit_common::layout::{INTERFACES_MAX, RULES_MAX, SOURCES_CAPACITY, TARGETS_MAX};
use ratelimit_common::time::SECOND_NS;

use super::bogons::Bogons;
use super::fleet::FleetSettings;
use super::history;
use super::keys;
use super::limits::Slots;
use super::listing::{Listing, Names};
use super::lists::bounds;
use super::lists::{
    self, Contents, KnownLists, LIST_FILES_MAX, LISTS_BYTES_MAX, ListFile, ListFiles, ListSettings, Lists, Named,
};
use super::network::{check_interface, parse_number};
use super::rule::{Context, RuleSettings};
use super::syntax::{SyntaxError, near_miss};
use super::values::Values;
use super::without_daemon;
use super::written::{Origin, Source, Written};
use super::{
    Config, HookChoice, MAX_SOURCES_MAX, MAX_SOURCES_MIN, OnExit, SOCKET_DEFAULT, Safety, TlsFiles, XdpModeChoice,
    duration, listing,
};
use crate::desired::{Access, Grant, Limit, Policy, Rule};
use crate::diagnostic::{Diagnostic, Diagnostics, Found};
use crate::safety::is_too_wide;

/// Default length of the IPv4 prefix that counts as one source.
pub const IPV4_PREFIX_DEFAULT: u8 = 32;
/// Default length of the IPv6 prefix that counts as one source.
pub const IPV6_PREFIX_DEFAULT: u8 = 64;

/// Minimum of `breaker_after`. The daemon reads the counters only every two seconds.
const BREAKER_AFTER_MIN_NS: u64 = 5 * SECOND_NS;
/// Maximum of `breaker_after`. A later switch to dry run helps nobody.
const BREAKER_AFTER_MAX_NS: u64 = 3_600 * SECOND_NS;

/// Maximum length in bytes of a Unix socket's path: the size of `sun_path` without the terminator.
const SOCKET_PATH_LEN_MAX: usize = 107;

/// All settings, as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Origin of the settings: the command line or a file.
    pub source: Source,
    /// Values of the keys above the first table.
    pub top: Values,
    /// Named lists of the `lists` table.
    pub lists: Vec<ListSettings>,
    /// Values of the `safety` table.
    pub safety: Values,
    /// Values of the `history` table.
    pub history: Values,
    /// Values of the `fleet` table. None if there is no such table.
    pub fleet: Option<FleetSettings>,
    /// The rules, in order. Flags make exactly one rule.
    pub rules: Vec<RuleSettings>,
    /// Contents of the list files that these settings name, by path.
    pub list_files: ListFiles,
}

/// Kind of input that the rules judge.
#[derive(Clone, Copy)]
enum Judged {
    /// Live packets, as the daemon receives them.
    Packets,
    /// Captures or access logs.
    Files,
}

/// The rules, with their notes and candidates by rule name.
struct OfRules {
    rules: Vec<Rule>,
    notes: Vec<(String, String)>,
    candidates: Vec<(String, Vec<Limit>)>,
}

/// Allowed and denied prefixes.
struct Granted {
    access: Vec<Access>,
    /// Prefixes that are both allowed and denied.
    overruled: Vec<IpNet>,
    /// Prefixes that are denied as bogons.
    bogons: Vec<IpNet>,
    /// Prefixes that are too wide for a list file: [`Config::too_wide`].
    too_wide: Vec<IpNet>,
}

impl Settings {
    /// Builds settings from pairs of a flag's name and its value. A flag without a value comes with the text that it
    /// stands for. Unknown names are ignored.
    pub fn of_flags<'a>(said: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut settings = Self::default();
        for (flag, text) in said {
            let Some((table, key, flag)) = keys::of_flag(flag).and_then(|(of, key)| Some((of, key, key.flag?))) else {
                continue;
            };
            if table.prefix == "rule." && settings.rules.is_empty() {
                settings.rules.push(RuleSettings::default());
            }
            let values = match (table.prefix, settings.rules.first_mut()) {
                ("rule.", Some(rule)) => &mut rule.values,
                ("fleet.", _) => &mut settings.fleet.get_or_insert_default().0,
                _ => &mut settings.top,
            };
            values.add(key.name, vec![Written { text: text.to_owned(), origin: Origin::Flag(flag.name) }]);
        }
        settings
    }

    /// Reads each named list file with `read`, which returns the contents or the reason why there are none. Files
    /// whose prefixes are in `known` are not read.
    pub fn read_lists_beside(
        &mut self,
        known: &KnownLists,
        read: impl Fn(&Path) -> Result<String, String>,
    ) -> Result<(), Diagnostic> {
        self.read_lists_by(|path| match known.get(path) {
            Some(prefixes) => Contents::Known(prefixes.clone()),
            None => Contents::Read(read(path)),
        })
    }

    /// Obtains the contents of each named list file from `read`. Fails if there are too many files or they are too
    /// long in total.
    pub fn read_lists_by(&mut self, read: impl Fn(&Path) -> Contents) -> Result<(), Diagnostic> {
        let mut files = ListFiles::new();
        let mut bytes = 0;
        for (by, entry) in self.entries() {
            let Some(path) = lists::path(&entry.text, &self.source) else { continue };
            if files.contains_key(&path) {
                continue;
            }
            if files.len() == LIST_FILES_MAX {
                let problem = format!("there are more than {LIST_FILES_MAX} list files");
                let error = SyntaxError::new(0..entry.text.len(), problem).with_help("put several into one");
                return Err(self.source.wrong(entry, error));
            }
            let contents = read(&path);
            if let Contents::Read(Ok(text)) = &contents {
                bytes += text.len() as u64;
            }
            if bytes > LISTS_BYTES_MAX {
                let problem = format!("with this file the list files are longer than {LISTS_BYTES_MAX} bytes together");
                let error = SyntaxError::new(0..entry.text.len(), problem)
                    .with_help("leave out entries that other files have too");
                return Err(self.source.wrong(entry, error));
            }
            files.insert(path, Named { by, contents });
        }
        self.list_files = files;
        Ok(())
    }

    /// Returns every value that may name a list file, with a description of its owner. Named lists come first.
    fn entries(&self) -> impl Iterator<Item = (String, &Written)> {
        let listed = self.lists.iter().map(|list| (format!("list {}", list.name.text), list.entries.as_slice()));
        let access = [("allow".to_owned(), self.top.all("allow")), ("deny".to_owned(), self.top.all("deny"))];
        let senders = self.rules.iter().enumerate().flat_map(|(at, rule)| {
            let name = rule.values.one("name").map_or_else(|| (at + 1).to_string(), |name| name.text.clone());
            let of_overrides = rule.overrides.iter().map(|of| of.all("from"));
            let from = rule.values.list("from").into_iter().chain(of_overrides);
            from.map(move |from| (format!("from of rule {name}"), from))
        });
        let all = listed.chain(access).chain(senders);
        all.flat_map(|(by, entries)| entries.iter().map(move |entry| (by.clone(), entry)))
    }

    /// Returns the configuration with defaults filled in, or all errors in the settings.
    pub fn config(&self) -> Result<Config, Diagnostics> {
        self.config_beside(Found::default())
    }

    /// Returns the configuration, or all errors: those in `found` and those in the settings.
    pub(super) fn config_beside(&self, mut found: Found) -> Result<Config, Diagnostics> {
        let interfaces = self.checked_interfaces(&mut found);
        let hook = self.source.choice(self.top.one("hook"), HookChoice::ALL, HookChoice::label);
        let xdp_mode = self.source.choice(self.top.one("xdp_mode"), XdpModeChoice::ALL, XdpModeChoice::label);
        let on_exit = self.source.choice(self.top.one("on_exit"), OnExit::ALL, OnExit::label);
        let listen = self.source.read_if(self.top.one("listen"), parse_listen);
        let insecure_web = self.source.is_set(self.top.one("insecure_web"), false);
        let ipv4_prefix = self.prefix(self.top.one("ipv4_prefix"), 32, IPV4_PREFIX_DEFAULT, &mut found);
        let ipv6_prefix = self.prefix(self.top.one("ipv6_prefix"), 128, IPV6_PREFIX_DEFAULT, &mut found);
        found.keep(self.check_rules_number());
        let lists = Lists::new(&self.source, &self.lists, &self.list_files, &mut found);
        let Granted { access, overruled, bogons, too_wide } = self.access(&lists, ipv6_prefix, &mut found);
        let fleet = self.fleet.as_ref().map(|fleet| fleet.fleet(&self.source, &mut found));
        let hosts = fleet.as_ref().map(|fleet| fleet.hosts);
        let clients = (ipv4_prefix, ipv6_prefix);
        let OfRules { rules, notes, candidates } = self.rules(&lists, clients, hosts, Judged::Packets, &mut found);
        found.keep(self.check_prefixes_number(&lists, &access, &rules));
        let config = Config {
            interfaces,
            hook: found.keep(hook).unwrap_or_default(),
            xdp_mode: found.keep(xdp_mode).unwrap_or_default(),
            on_exit: found.keep(on_exit).unwrap_or_default(),
            max_sources: found.keep(self.sources_capacity()).unwrap_or(SOURCES_CAPACITY),
            socket: found.keep(self.socket_path()).unwrap_or_default(),
            listen: found.keep(listen).flatten(),
            tls: found.keep(self.tls()).flatten(),
            insecure_web: found.keep(insecure_web).unwrap_or_default(),
            policy: Policy { ipv4_prefix, ipv6_prefix, access, rules },
            safety: self.safety(&mut found),
            history: history::history(&self.history, &self.source, &mut found),
            fleet,
            notes,
            candidates,
            overruled,
            too_wide,
            lists: lists.counts(),
            list_bounds: bounds::of(&self.source, &self.top, &self.safety, &mut found),
            list_files: self.list_files_of(&lists),
            listings: self.listings(ipv6_prefix, &bogons),
        };
        found.into_result(config)
    }

    /// Returns the policy alone, for replays of captures and logs, which need no interface.
    pub fn policy(&self) -> Result<Policy, Diagnostics> {
        let mut found = Found::default();
        let ipv4_prefix = self.prefix(self.top.one("ipv4_prefix"), 32, IPV4_PREFIX_DEFAULT, &mut found);
        let ipv6_prefix = self.prefix(self.top.one("ipv6_prefix"), 128, IPV6_PREFIX_DEFAULT, &mut found);
        let lists = Lists::new(&self.source, &self.lists, &self.list_files, &mut found);
        let access = self.access(&lists, ipv6_prefix, &mut found).access;
        let hosts = self.fleet.as_ref().map(|fleet| fleet.hosts(&self.source, &mut found));
        let rules = self.rules(&lists, (ipv4_prefix, ipv6_prefix), hosts, Judged::Files, &mut found).rules;
        found.into_result(Policy { ipv4_prefix, ipv6_prefix, access, rules })
    }

    fn list_files_of(&self, lists: &Lists<'_>) -> Vec<ListFile> {
        let file = |(path, named): (&PathBuf, &Named)| {
            let prefixes = lists.known(path)?;
            Some(ListFile { path: path.clone(), named_by: named.by.clone(), prefixes })
        };
        self.list_files.iter().filter_map(file).collect()
    }

    fn checked_interfaces(&self, found: &mut Found) -> Vec<String> {
        let mut names = Vec::new();
        for written in self.top.all("interfaces") {
            found.keep(self.source.read(written, check_interface));
            names.push(written.text.clone());
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            let why = "name the interface that clients come in by";
            found.missing("interfaces", self.source.missing("--iface", "interfaces", None, why, "[\"eth0\"]"));
        }
        if let Some(written) = self.top.all("interfaces").get(INTERFACES_MAX).filter(|_| names.len() > INTERFACES_MAX) {
            let problem = format!("there are more than {INTERFACES_MAX} interfaces");
            let error = SyntaxError::new(0..written.text.len(), problem);
            found.push(self.source.wrong(written, error.with_help("leave some out")));
        }
        names
    }

    fn check_rules_number(&self) -> Result<(), Diagnostic> {
        let count: usize = self.rules.iter().map(RuleSettings::rules_len).sum();
        let last =
            self.rules.iter().rev().find_map(|rule| rule.values.one("name").or(rule.values.all("limits").first()));
        match last {
            Some(written) if count > RULES_MAX => {
                let problem = format!("there are {count} rules, including overrides, and the maximum is {RULES_MAX}");
                let error = SyntaxError::new(0..written.text.len(), problem);
                Err(self.source.wrong(written, error.with_help("join rules that differ only in their prefixes")))
            }
            _ => Ok(()),
        }
    }

    fn rules(
        &self,
        lists: &Lists<'_>,
        clients: (u8, u8),
        hosts: Option<u32>,
        judged: Judged,
        found: &mut Found,
    ) -> OfRules {
        let mut context = Context {
            source: &self.source,
            lists,
            clients,
            hosts,
            judges_files: matches!(judged, Judged::Files),
            found,
            names: HashSet::new(),
            slots: Slots::default(),
            notes: Vec::new(),
            candidates: Vec::new(),
        };
        let default = [RuleSettings::default()];
        let written = if self.rules.is_empty() { &default } else { self.rules.as_slice() };
        let mut rules = Vec::new();
        for rule in written {
            rules.extend(rule.rules(&mut context));
        }
        OfRules { rules, notes: context.notes, candidates: context.candidates }
    }

    fn listings(&self, ipv6_prefix: u8, bogons: &[IpNet]) -> Vec<Listing> {
        let access = [(Grant::Denied, self.top.all("deny")), (Grant::Exempt, self.top.all("allow"))];
        listing::listings(&self.source, &self.lists, access, ipv6_prefix, (self.top.one("bogons"), bogons))
    }

    /// Removes the too wide prefixes that only list files name from `granted`, and returns them.
    fn take_out_too_wide(&self, grant: Grant, granted: &mut BTreeSet<IpNet>, ipv6_prefix: u8) -> BTreeSet<IpNet> {
        let mut wide: BTreeSet<IpNet> = granted.iter().copied().filter(|prefix| is_too_wide(*prefix)).collect();
        if wide.is_empty() {
            return wide;
        }
        for listing in self.listings(ipv6_prefix, &[]).into_iter().filter(|listing| listing.grant == grant) {
            match listing.names {
                Names::Prefix(prefix, _) => drop(wide.remove(&prefix)),
                Names::File(_) => {}
            }
        }
        granted.retain(|prefix| !wide.contains(prefix));
        wide
    }

    fn access(&self, lists: &Lists<'_>, ipv6_prefix: u8, found: &mut Found) -> Granted {
        let mut exempt = lists.sources(self.top.all("allow"), ipv6_prefix, found);
        let mut too_wide = self.take_out_too_wide(Grant::Exempt, &mut exempt, ipv6_prefix);
        let mut denied = lists.sources(self.top.all("deny"), ipv6_prefix, found);
        let is_meant = found.keep(self.source.is_set(self.top.one("deny_everyone"), false)).unwrap_or(true);
        if !is_meant {
            too_wide.extend(self.take_out_too_wide(Grant::Denied, &mut denied, ipv6_prefix));
        }
        let is_everyone = |prefix: &IpNet| prefix.prefix_len() == 0;
        let everyone = IpNet::aggregate(&denied.iter().copied().collect()).into_iter().find(is_everyone);
        if let (Some(prefix), Some(last), false) = (everyone, self.top.all("deny").last(), is_meant) {
            let named = self.top.all("deny").iter().find(|written| written.text == prefix.to_string()).unwrap_or(last);
            let problem = format!("together these are {prefix}, so every source would be denied");
            let error = SyntaxError::new(0..named.text.len(), problem);
            let help = "if that is what you want, write deny_everyone = true";
            found.push(self.source.wrong(named, error.with_help(help)));
        }
        let overruled = denied.intersection(&exempt).copied().collect();
        let bogons = self.source.choice(self.top.one("bogons"), Bogons::ALL, Bogons::label);
        let bogons = found.keep(bogons).unwrap_or_default().denied(&exempt);
        let denied: BTreeSet<IpNet> = denied.difference(&exempt).chain(&bogons).copied().collect();
        let denied = denied.into_iter().map(Access::denied);
        let mut access: Vec<Access> = exempt.iter().copied().map(Access::exempt).chain(denied).collect();
        access.sort_unstable();
        Granted { access, overruled, bogons, too_wide: too_wide.into_iter().collect() }
    }

    /// Checks that allow list, deny list and rules together fit the kernel maps for source and destination prefixes.
    fn check_prefixes_number(&self, lists: &Lists<'_>, access: &[Access], rules: &[Rule]) -> Result<(), Diagnostic> {
        let senders = rules.iter().flat_map(|rule| rule.from.iter().copied());
        let all: BTreeSet<IpNet> = access.iter().map(|access| access.prefix).chain(senders).collect();
        let mut of_rules = self.rules.iter().filter_map(|rule| rule.values.list("from")?.last());
        if let Some(last) = self.top.all("deny").last().or(self.top.all("allow").last()).or(of_rules.next_back()) {
            lists.check_number(last, &all)?;
        }
        let receivers: BTreeSet<IpNet> = rules.iter().flat_map(|rule| rule.to.iter().copied()).collect();
        let last = self.rules.iter().filter_map(|rule| rule.values.list("to")?.last()).next_back();
        match last {
            Some(written) if receivers.len() > TARGETS_MAX as usize => {
                let problem = format!("the rules name more than {TARGETS_MAX} destinations");
                let error = SyntaxError::new(0..written.text.len(), problem);
                Err(self.source.wrong(written, error.with_help("join neighbouring addresses into prefixes")))
            }
            _ => Ok(()),
        }
    }

    fn safety(&self, found: &mut Found) -> Safety {
        let (written, default) = (&self.safety, Safety::default());
        let breaker = found.keep(self.source.read_if(written.one("breaker"), parse_breaker)).flatten();
        let after = found.keep(self.source.read_if(written.one("breaker_after"), parse_breaker_after)).flatten();
        let without = found.keep(self.source.read_if(written.one("without_daemon"), without_daemon::parse)).flatten();
        let mut is_set =
            |key: &str, default| found.keep(self.source.is_set(written.one(key), default)).unwrap_or(default);
        Safety {
            exempt_ssh_peer: is_set("exempt_ssh_peer", default.exempt_ssh_peer),
            exempt_gateway: is_set("exempt_gateway", default.exempt_gateway),
            exempt_resolvers: is_set("exempt_resolvers", default.exempt_resolvers),
            breaker: breaker.unwrap_or(default.breaker),
            breaker_after_ns: after.unwrap_or(default.breaker_after_ns),
            without_daemon_ns: without.unwrap_or(default.without_daemon_ns),
        }
    }

    fn prefix(&self, written: Option<&Written>, longest: u8, default: u8, found: &mut Found) -> u8 {
        let length = found.keep(self.source.read_if(written, |text| parse_number(text, 0, longest.into()))).flatten();
        length.and_then(|length| u8::try_from(length).ok()).unwrap_or(default)
    }

    fn sources_capacity(&self) -> Result<u32, Diagnostic> {
        let parse = |text: &str| parse_number(text, MAX_SOURCES_MIN.into(), MAX_SOURCES_MAX.into());
        let number = self.source.read_if(self.top.one("max_sources"), parse)?;
        Ok(number.and_then(|number| u32::try_from(number).ok()).unwrap_or(SOURCES_CAPACITY))
    }

    /// Returns the certificate and key files. The key defaults to the certificate's file. A key alone is an error.
    fn tls(&self) -> Result<Option<TlsFiles>, Diagnostic> {
        match (self.top.one("tls_cert_file"), self.top.one("tls_key_file")) {
            (None, None) => Ok(None),
            (None, Some(key)) => {
                let error = SyntaxError::new(0..key.text.len(), "a key without a certificate encrypts nothing");
                let help = "name the certificate's file too: tls_cert_file, or --tls-cert-file";
                Err(self.source.wrong(key, error.with_help(help)))
            }
            (Some(cert), key) => {
                let beside = |written| self.source.beside(written, "/etc/ratelimitd/tls.pem");
                let key = beside(key.unwrap_or(cert))?;
                Ok(Some(TlsFiles { cert: beside(cert)?, key }))
            }
        }
    }

    fn socket_path(&self) -> Result<PathBuf, Diagnostic> {
        let Some(written) = self.top.one("socket") else {
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

fn parse_breaker(text: &str) -> Result<Option<u8>, SyntaxError> {
    const HELP: &str = "write a share of the rule's packets, as in \"80%\", or \"off\"";
    if text == "off" {
        return Ok(None);
    }
    let Some(number) = text.strip_suffix('%') else {
        let help = near_miss(text, ["off"]).map(|meant| format!("did you mean `{meant}`?"));
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is not a share"));
        return Err(error.with_help(HELP).with_help_if(help));
    };
    let share = parse_number(number, 1, 99)?;
    Ok(u8::try_from(share).ok())
}

fn parse_breaker_after(text: &str) -> Result<u64, SyntaxError> {
    let after_ns = duration::parse(text)?;
    if (BREAKER_AFTER_MIN_NS..=BREAKER_AFTER_MAX_NS).contains(&after_ns) {
        return Ok(after_ns);
    }
    Err(SyntaxError::new(0..text.len(), "the breaker waits from 5s to 1h").with_help("30s is usual"))
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
