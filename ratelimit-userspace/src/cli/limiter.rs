//! The flags that say what to limit. Values are texts here, so that what is wrong with one is shown as flags and file both show it.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, ValueHint};

use crate::config::rule::RuleSettings;
use crate::config::settings::Settings;
use crate::config::written::{Origin, Source, Written};
use crate::desired::Mode;

/// What to limit and how: one field is one key of the configuration file.
#[derive(Clone, Debug, Default, Args)]
pub struct Limiter {
    /// Interface that clients come in by; repeatable, all of them share one count
    #[arg(long = "iface", value_name = "IF", help_heading = "What to limit")]
    pub interfaces: Vec<String>,
    /// At most N in any DUR, for each source: 1000/5m, 10/s, "10/1m,60/1h", 50MB/1m; repeatable, all must hold
    #[arg(long = "limit", value_name = "N/DUR", help_heading = "What to limit")]
    pub limits: Vec<String>,
    /// What N is a number of, where a limit does not say [default: requests]
    #[arg(long, value_name = "UNIT", help_heading = "What to limit", value_parser = Suggested(&["requests", "connections", "packets", "bytes"]))]
    pub count: Option<String>,
    /// Ports to protect: 80,443, ssh, 8000-8100, 53/udp, all; a plain number is TCP and UDP [default: 80,443]
    #[arg(long = "port", value_name = "LIST", help_heading = "What to limit")]
    pub ports: Option<String>,
    /// Which of these UDP ports speak QUIC: 443,8443, at most 8, or none; on the others each datagram is a request,
    /// whatever it looks like [default: 443]
    #[arg(long, value_name = "LIST", help_heading = "What to limit")]
    pub quic_ports: Option<String>,
    /// Never limit this address or network: 192.0.2.0/24; repeatable
    #[arg(long, value_name = "CIDR", help_heading = "What to limit")]
    pub allow: Vec<String>,
    /// Bits of an IPv4 address that make one client, 0 to 32 [default: 32]
    #[arg(long, value_name = "BITS", help_heading = "What to limit")]
    pub ipv4_prefix: Option<String>,
    /// Bits of an IPv6 address that make one client, 0 to 128 [default: 64]
    #[arg(long, value_name = "BITS", help_heading = "What to limit")]
    pub ipv6_prefix: Option<String>,
    /// Name of the rule in statistics and metrics [default: default]
    #[arg(long, value_name = "NAME", help_heading = "What to limit")]
    pub name: Option<String>,

    /// Count and report what would be dropped, and drop nothing
    #[arg(long, help_heading = "What happens over the limit")]
    pub dry_run: bool,
    /// What is dropped of a source over a limit: excess, the requests, connections, packets or bytes over it; all,
    /// everything to the ports until the bucket after its last refusal, and then until the window has room
    /// [default: excess]
    #[arg(long, value_name = "WHAT", help_heading = "What happens over the limit", value_parser = Suggested(&["excess", "all"]))]
    pub refuse: Option<String>,
    /// Ban a source for DUR once it exceeds a limit; growing, for each time again: 10m, "1m,10m,1h" [default: off]
    #[arg(long, value_name = "DUR", help_heading = "What happens over the limit")]
    pub block_for: Option<String>,
    /// Let in at most N sources in DUR that nobody knows yet, 1s to 1m, and drop what others send: holds a flood of forged
    /// sources back, and whoever is new while it lasts [default: off]
    #[arg(long, value_name = "N/DUR", help_heading = "What happens over the limit")]
    pub new_sources: Option<String>,
    /// What becomes of packets that cannot be parsed, as behind nine IPv6 extension headers: drop; count, each as one
    /// request that opens a connection [default: drop]
    #[arg(long, value_name = "WHAT", help_heading = "What happens over the limit", value_parser = Suggested(&["drop", "count"]))]
    pub unparsable: Option<String>,
    /// How the window is cut: strict, never more than N in any DUR; lenient, up to 2N where two windows
    /// meet [default: strict]
    #[arg(long, value_name = "FORM", help_heading = "What happens over the limit", value_parser = Suggested(&["strict", "lenient"]))]
    pub window: Option<String>,

    /// Where the program runs: native, in the driver; generic, in the network stack, slower; auto, native
    /// where the driver can [default: auto]
    #[arg(long, value_name = "MODE", help_heading = "How it runs", value_parser = Suggested(&["auto", "native", "generic"]))]
    pub xdp_mode: Option<String>,
    /// How many sources of each family are remembered, 256 to 16777216 [default: 262144]
    #[arg(long, value_name = "N", help_heading = "How it runs")]
    pub max_sources: Option<String>,
    /// Path of the control socket [default: /run/ratelimitd/control.sock]
    #[arg(
        long,
        value_name = "PATH",
        value_hint = ValueHint::FilePath,
        env = "RATELIMITD_SOCKET",
        hide_env_values = true,
        help_heading = "How it runs"
    )]
    pub socket: Option<String>,
    /// Serve metrics, health and statistics over HTTP: 127.0.0.1:9464 [default: off]
    #[arg(long, value_name = "ADDR:PORT", help_heading = "How it runs")]
    pub listen: Option<String>,
    /// What becomes of the filter at the end: detach, it ends too; keep, it stays and enforces [default: detach]
    #[arg(long, value_name = "WHAT", help_heading = "How it runs", value_parser = Suggested(&["detach", "keep"]))]
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
        Settings {
            source: Source::CommandLine,
            interfaces: all("--iface", &self.interfaces),
            xdp_mode: one("--xdp-mode", &self.xdp_mode),
            on_exit: one("--on-exit", &self.on_exit),
            max_sources: one("--max-sources", &self.max_sources),
            socket: one("--socket", &self.socket),
            listen: one("--listen", &self.listen),
            ipv4_prefix: one("--ipv4-prefix", &self.ipv4_prefix),
            ipv6_prefix: one("--ipv6-prefix", &self.ipv6_prefix),
            allow: all("--allow", &self.allow),
            rules: if rule == RuleSettings::default() { Vec::new() } else { vec![rule] },
            ..Settings::default()
        }
    }
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
