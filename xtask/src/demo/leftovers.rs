//! Check that nothing of the demo is left after its removal.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::lab::Traces;
use crate::run;

/// Pin directory of a limiter that keeps its filter.
const PINS: &str = "/sys/fs/bpf/ratelimitd";

/// State before the demo. The machine's own limiter may already have pins.
pub(super) struct Before {
    has_pins: bool,
}

impl Before {
    pub(super) fn look() -> Self {
        Self { has_pins: Path::new(PINS).exists() }
    }

    /// Describes everything of the demo that still exists.
    pub(super) fn left(&self, traces: &Traces, limiters: &[u32]) -> Result<Vec<String>> {
        let mut left = Vec::new();
        let namespaces = run::answer(Command::new("ip").args(["netns", "list"]))?;
        let names: Vec<_> = namespaces.lines().filter_map(|line| line.split_whitespace().next()).collect();
        for name in traces.namespaces.iter().filter(|name| names.contains(&name.as_str())) {
            left.push(format!("namespace {name}"));
        }
        for &process in traces.processes.iter().chain(limiters) {
            if let Ok(name) = fs::read_to_string(format!("/proc/{process}/comm")) {
                left.push(format!("process {process} ({})", name.trim()));
            }
        }
        if traces.directory.exists() {
            left.push(format!("directory {}", traces.directory.display()));
        }
        if !self.has_pins && Path::new(PINS).exists() {
            left.push(format!("pins in {PINS}"));
        }
        Ok(left)
    }
}
