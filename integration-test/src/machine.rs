//! Description of the machine on which something was measured.

/// Returns the kernel's release.
pub fn kernel() -> String {
    text("/proc/sys/kernel/osrelease")
}

/// Returns the number and model of the processors.
pub fn processor() -> String {
    let cpuinfo = text("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    format!("{count} x {}", model.map_or("unknown", |(_, name)| name))
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
