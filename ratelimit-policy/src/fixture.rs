//! A small policy and configuration for tests, and inputs for fuzz targets.

use std::path::Path;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;

use crate::config::history::History;
use crate::config::{Config, HookChoice, OnExit, Safety, XdpModeChoice};
use crate::desired::{Limit, Per, Policy, Ports, Rule, WindowForm};

mod choices;
mod texts;

pub use choices::{CHOICES_MAX, Choices, for_any_bytes};
pub use texts::{config_text, list_text};

/// One minute in nanoseconds.
pub const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Returns a limit of `amount` units in five minutes.
pub fn limit(amount: u64, unit: Unit) -> Limit {
    Limit {
        amount,
        unit,
        window_ns: 5 * MINUTE_NS,
        buckets: 5,
        bucket_ns: MINUTE_NS,
        form: WindowForm::Strict,
        burst: None,
        slot: 7 + unit as u32,
        shared: None,
        per: Per::Source,
        condition: None,
    }
}

/// Returns a policy with one enforced rule on ports 80 and 443.
pub fn policy(limits: Vec<Limit>) -> Policy {
    let ports = vec![(80, 80), (443, 443)];
    Policy {
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        access: Vec::new(),
        rules: vec![Rule::new(
            "default".to_owned(),
            Ports { tcp: ports.clone(), udp: ports, other_protocols: false },
            limits,
        )],
    }
}

/// Returns a configuration with a limit of `amount` connections in five minutes on eth0, and the socket in
/// `directory`.
pub fn config(directory: &Path, amount: u64) -> Config {
    Config {
        interfaces: vec!["eth0".to_owned()],
        hook: HookChoice::Auto,
        xdp_mode: XdpModeChoice::Auto,
        on_exit: OnExit::Detach,
        max_sources: 262_144,
        socket: directory.join("control.sock"),
        listen: None,
        tls: None,
        insecure_web: false,
        policy: policy(vec![limit(amount, Unit::Connections)]),
        safety: Safety::default(),
        history: History { enabled: false, ..History::default() },
        fleet: None,
        notes: Vec::new(),
        candidates: Vec::new(),
        overruled: Vec::new(),
        too_wide: Vec::new(),
        list_bounds: Default::default(),
        lists: Vec::new(),
        list_files: Vec::new(),
        listings: Vec::new(),
    }
}
