//! The flags that say what to limit. Values are texts here, so that what is wrong with one is shown as flags and file both show it.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, ValueHint};

use ratelimit_policy::config::fleet::FleetSettings;
use ratelimit_policy::config::keys;
use ratelimit_policy::config::rule::RuleSettings;
use ratelimit_policy::config::settings::Settings;
use ratelimit_policy::config::written::{Origin, Source, Written};
use ratelimit_policy::desired::Mode;

/// What to limit and how: one field is one key of the configuration file.
#[derive(Clone, Debug, Default, Args)]
pub struct Limiter {
    /// `interfaces`
    #[arg(long = "iface", value_name = "IF", help_heading = "What to limit", help = help("--iface"))]
    pub interfaces: Vec<String>,
    /// `rule.limits`
    #[arg(long = "limit", value_name = "N/DUR", help_heading = "What to limit", help = help("--limit"))]
    pub limits: Vec<String>,
    /// `rule.count`
    #[arg(
        long,
        value_name = "UNIT",
        help_heading = "What to limit",
        help = help("--count"),
        value_parser = suggested("--count"),
    )]
    pub count: Option<String>,
    /// `rule.ports`
    #[arg(long = "port", value_name = "LIST", help_heading = "What to limit", help = help("--port"))]
    pub ports: Option<String>,
    /// `rule.quic_ports`
    #[arg(long, value_name = "LIST", help_heading = "What to limit", help = help("--quic-ports"))]
    pub quic_ports: Option<String>,
    /// `allow`
    #[arg(long, value_name = "CIDR", help_heading = "What to limit", help = help("--allow"))]
    pub allow: Vec<String>,
    /// `ipv4_prefix`
    #[arg(long, value_name = "BITS", help_heading = "What to limit", help = help("--ipv4-prefix"))]
    pub ipv4_prefix: Option<String>,
    /// `ipv6_prefix`
    #[arg(long, value_name = "BITS", help_heading = "What to limit", help = help("--ipv6-prefix"))]
    pub ipv6_prefix: Option<String>,
    /// `rule.name`
    #[arg(long, value_name = "NAME", help_heading = "What to limit", help = help("--name"))]
    pub name: Option<String>,
    /// Count and report what would be dropped, and drop nothing
    #[arg(long, help_heading = "What happens over the limit")]
    pub dry_run: bool,
    /// `rule.refuse`
    #[arg(
        long,
        value_name = "WHAT",
        help_heading = "What happens over the limit",
        help = help("--refuse"),
        value_parser = suggested("--refuse"),
    )]
    pub refuse: Option<String>,
    /// `rule.block_for`
    #[arg(long, value_name = "DUR", help_heading = "What happens over the limit", help = help("--block-for"))]
    pub block_for: Option<String>,
    /// `rule.new_sources`
    #[arg(long, value_name = "N/DUR", help_heading = "What happens over the limit", help = help("--new-sources"))]
    pub new_sources: Option<String>,
    /// `rule.unparsable`
    #[arg(
        long,
        value_name = "WHAT",
        help_heading = "What happens over the limit",
        help = help("--unparsable"),
        value_parser = suggested("--unparsable"),
    )]
    pub unparsable: Option<String>,
    /// `rule.window`
    #[arg(
        long,
        value_name = "FORM",
        help_heading = "What happens over the limit",
        help = help("--window"),
        value_parser = suggested("--window"),
    )]
    pub window: Option<String>,
    /// `xdp_mode`
    #[arg(
        long,
        value_name = "MODE",
        help_heading = "How it runs",
        help = help("--xdp-mode"),
        value_parser = suggested("--xdp-mode"),
    )]
    pub xdp_mode: Option<String>,
    /// `max_sources`
    #[arg(long, value_name = "N", help_heading = "How it runs", help = help("--max-sources"))]
    pub max_sources: Option<String>,
    /// `socket`
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        env = "RATELIMITD_SOCKET",
        hide_env_values = true,
        help_heading = "How it runs",
        help = help("--socket"),
    )]
    pub socket: Option<String>,
    /// `listen`
    #[arg(long, value_name = "ADDR:PORT", help_heading = "How it runs", help = help("--listen"))]
    pub listen: Option<String>,
    /// `tls_cert_file`
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        help_heading = "How it runs",
        help = help("--tls-cert-file"),
    )]
    pub tls_cert_file: Option<String>,
    /// `tls_key_file`
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        help_heading = "How it runs",
        help = help("--tls-key-file"),
    )]
    pub tls_key_file: Option<String>,
    /// `insecure_web`
    #[arg(long, help_heading = "How it runs", help = help("--insecure-web"))]
    pub insecure_web: bool,
    /// `fleet.url`
    #[arg(long = "fleet", value_name = "URL", help_heading = "How it runs", help = help("--fleet"))]
    pub fleet: Vec<String>,
    /// `fleet.secret_file`
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        help_heading = "How it runs",
        help = help("--fleet-secret-file"),
    )]
    pub fleet_secret_file: Option<String>,
    /// `on_exit`
    #[arg(
        long,
        value_name = "WHAT",
        help_heading = "How it runs",
        help = help("--on-exit"),
        value_parser = suggested("--on-exit"),
    )]
    pub on_exit: Option<String>,
}

impl Limiter {
    /// Whether nothing was said that could be limited. The socket does not count: the environment may say it.
    pub fn is_empty(&self) -> bool {
        let settings = Settings { socket: None, ..self.settings() };
        settings == Settings::default()
    }

    /// What was typed, with its places.
    pub fn settings(&self) -> Settings {
        let one = |flag, text: &Option<String>| text.as_ref().map(|text| written(flag, text));
        let all = |flag, texts: &[String]| texts.iter().map(|text| written(flag, text)).collect();
        let some = |flag, text: &Option<String>| text.as_ref().map(|text| vec![written(flag, text)]);
        let rule = RuleSettings {
            name: one("--name", &self.name),
            limits: all("--limit", &self.limits),
            count: one("--count", &self.count),
            ports: some("--port", &self.ports),
            mode: self.dry_run.then(|| written("--dry-run", Mode::DryRun.label())),
            window: one("--window", &self.window),
            refuse: one("--refuse", &self.refuse),
            block_for: self.block_for.as_ref().map(|text| written("--block-for", text)).into_iter().collect(),
            new_sources: one("--new-sources", &self.new_sources),
            quic_ports: some("--quic-ports", &self.quic_ports),
            unparsable: one("--unparsable", &self.unparsable),
            ..RuleSettings::default()
        };
        let fleet = FleetSettings {
            url: all("--fleet", &self.fleet),
            secret_file: one("--fleet-secret-file", &self.fleet_secret_file),
            ..FleetSettings::default()
        };
        Settings {
            source: Source::CommandLine,
            interfaces: all("--iface", &self.interfaces),
            xdp_mode: one("--xdp-mode", &self.xdp_mode),
            on_exit: one("--on-exit", &self.on_exit),
            max_sources: one("--max-sources", &self.max_sources),
            socket: one("--socket", &self.socket),
            listen: one("--listen", &self.listen),
            tls_cert_file: one("--tls-cert-file", &self.tls_cert_file),
            tls_key_file: one("--tls-key-file", &self.tls_key_file),
            insecure_web: self.insecure_web.then(|| written("--insecure-web", "true")),
            ipv4_prefix: one("--ipv4-prefix", &self.ipv4_prefix),
            ipv6_prefix: one("--ipv6-prefix", &self.ipv6_prefix),
            allow: all("--allow", &self.allow),
            fleet: (fleet != FleetSettings::default()).then_some(fleet),
            rules: if rule == RuleSettings::default() { Vec::new() } else { vec![rule] },
            ..Settings::default()
        }
    }
}

/// What the flag is for, by the table of keys.
pub(super) fn help(flag: &str) -> String {
    keys::of_flag(flag).map(keys::Key::flag_help).unwrap_or_default()
}

/// The words that the flag's key takes.
pub(super) fn suggested(flag: &str) -> Suggested {
    Suggested(keys::of_flag(flag).map_or(&[], keys::Key::choices))
}

fn written(flag: &'static str, text: &str) -> Written {
    Written { text: text.to_owned(), origin: Origin::Flag(flag) }
}

/// Takes any text, and tells help and completions which are meant. Refusing the others is left to [`Settings::config`].
#[derive(Clone, Copy)]
pub(super) struct Suggested(pub(super) &'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &clap::Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
