//! Measures the memory of an idle daemon, and prints JSON on stdout. `cargo xtask figures` runs it as root.
//!
//! Argument: the daemon's binary. The daemon runs with the one-liner's defaults in its own namespace.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use integration_test::lab::Lab;
use ratelimit_kernel::held_maps;
use serde_json::json;

/// Time until the memory that only the start needs is freed.
const SETTLED: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let binary: PathBuf = std::env::args_os().nth(1).context("the daemon's binary is missing")?.into();
    if let Some(obstacle) = netlab::obstacle() {
        bail!("{obstacle}");
    }
    let lab = Lab::new();
    let daemon = lab.start_copy(&binary, &["--iface", "s0", "--limit", "1000/5m"]);
    std::thread::sleep(SETTLED);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).context("read its status")?;
    let maps = held_maps(daemon.child.id()).context("read its maps")?;
    let report = json!({
        "rss_kilobytes": kilobytes(&status, "VmRSS:")?,
        "peak_rss_kilobytes": kilobytes(&status, "VmHWM:")?,
        "map_bytes": maps,
    });
    println!("{report:#}");
    Ok(())
}

/// Returns the number of kilobytes in a status line such as `VmRSS:  1234 kB`.
fn kilobytes(status: &str, key: &str) -> Result<u64> {
    let line =
        status.lines().find_map(|line| line.strip_prefix(key)).with_context(|| format!("no {key} in its status"))?;
    line.trim().trim_end_matches("kB").trim().parse().with_context(|| format!("read {key}"))
}
