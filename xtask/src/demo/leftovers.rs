//! Whether anything of the demo is still there once all of it was removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::lab::Traces;
use crate::run;

/// Where a limiter that keeps its filter has its pins.
const PINS: &str = "/sys/fs/bpf/ratelimitd";

/// What was there before. A limiter of the machine's own may have its pins.
pub(super) struct Before {
    has_pins: bool,
}

impl Before {
    pub(super) fn look() -> Self {
        Self { has_pins: Path::new(PINS).exists() }
    }

    /// What is there of the demo now, in words.
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
