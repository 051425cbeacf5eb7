//! Checks of the state in maps: whether pinned maps are ours, the clocks they refer to, and conversion of their bytes.

use std::path::Path;

use anyhow::Context as _;
use aya::maps::{Map, MapData, MapType};
use aya::programs::ProgramError;
use nix::time::{ClockId, clock_gettime};
use ratelimit_common::ban::Ban;
use ratelimit_common::drop_cache::{CacheSet, DropCause, WAYS};
use ratelimit_common::events::EventTally;
use ratelimit_common::flow::Flow;
use ratelimit_common::layout::{self, Source, map};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::time::SECOND_NS;
use ratelimit_common::window::CELLS;

use super::clients::{Client, Lengths};
use crate::pins::PinsError;
use crate::privileges;
use crate::{DatapathError, SourceReading};

/// Required type and sizes of a pinned map. Capacities may differ, because the user chooses them.
pub(super) struct Expected {
    pub(super) name: &'static str,
    kind: MapType,
    key_len: usize,
    value_len: usize,
}

const fn expected<K, V>(name: &'static str, kind: MapType) -> Expected {
    Expected { name, kind, key_len: size_of::<K>(), value_len: size_of::<V>() }
}

/// All pinned maps: every map that packets read and write. The injected clock belongs to tests.
pub(super) const EXPECTED: &[Expected] = &[
    expected::<u32, layout::Active>(map::ACTIVE, MapType::Array),
    expected::<u32, layout::Config>(map::CONFIG, MapType::Array),
    expected::<u32, layout::PortTable>(map::PORTS, MapType::Array),
    expected::<(u32, layout::PrefixKeyV4), layout::Prefix>(map::PREFIXES_V4, MapType::LpmTrie),
    expected::<(u32, layout::PrefixKeyV6), layout::Prefix>(map::PREFIXES_V6, MapType::LpmTrie),
    expected::<(u32, layout::PrefixKeyV4), layout::RuleSet>(map::TARGETS_V4, MapType::LpmTrie),
    expected::<(u32, layout::PrefixKeyV6), layout::RuleSet>(map::TARGETS_V6, MapType::LpmTrie),
    expected::<layout::SourceKeyV4, Ban>(map::BANS_V4, MapType::Hash),
    expected::<layout::SourceKeyV6, Ban>(map::BANS_V6, MapType::Hash),
    expected::<layout::SourceKeyV6Wide, Ban>(map::BANS_V6_WIDE, MapType::Hash),
    expected::<layout::SourceKeyV4, Source>(map::SOURCES_V4, MapType::LruHash),
    expected::<layout::SourceKeyV6, Source>(map::SOURCES_V6, MapType::LruHash),
    expected::<layout::SourceKeyV6Wide, Source>(map::SOURCES_V6_WIDE, MapType::LruHash),
    expected::<layout::FlowKeyV4, Flow>(map::FLOWS_V4, MapType::LruHash),
    expected::<layout::FlowKeyV6, Flow>(map::FLOWS_V6, MapType::LruHash),
    expected::<u32, CacheSet>(map::DROP_CACHE, MapType::Array),
    expected::<u32, [DropCause; WAYS]>(map::DROP_CAUSES, MapType::Array),
    expected::<u32, u64>(map::DROP_SUMMARY, MapType::Array),
    expected::<u32, [u64; 2]>(map::KNOWN_FILTER, MapType::Array),
    expected::<u32, [u64; 2]>(map::KNOWN_SUMMARY, MapType::Array),
    expected::<u32, [[u64; 2]; 2]>(map::CONN_FILTER, MapType::Array),
    expected::<u32, layout::Counters>(map::COUNTERS, MapType::PerCpuArray),
    expected::<u32, u64>(map::FAULTS, MapType::PerCpuArray),
    expected::<u32, u64>(map::BANS_BEGUN, MapType::PerCpuArray),
    expected::<u32, EventTally>(map::EVENT_TALLIES, MapType::PerCpuArray),
    // A ring has neither keys nor values.
    expected::<(), ()>(map::EVENTS, MapType::RingBuf),
    expected::<(), ()>(map::STEPS, MapType::RingBuf),
];

/// Checks the pin of a map in this directory against this layout. A missing pin is no error.
pub(super) fn check_pin(dir: &Path, expected: &Expected) -> Result<(), DatapathError> {
    let path = dir.join(expected.name);
    if !path.exists() {
        return Ok(());
    }
    let data = MapData::from_pin(&path).map_err(|error| misfit(&path, &format!("{:#}", anyhow::Error::from(error))))?;
    check(&data, &path, expected)
}

fn misfit(path: &Path, why: &str) -> DatapathError {
    DatapathError::Pins {
        path: path.display().to_string(),
        why: format!("{why}; the filter stays in force. Remove it with `ratelimitd detach`, then start again"),
    }
}

/// Checks a pinned map against this layout. Its flags may be those of an earlier build.
pub(super) fn check(data: &MapData, path: &Path, expected: &Expected) -> Result<(), DatapathError> {
    let info = data.info().with_context(|| format!("inspect {}", path.display()))?;
    let kind = info.map_type().with_context(|| format!("inspect {}", path.display()))?;
    let (key_len, value_len) = (info.key_size() as usize, info.value_size() as usize);
    if kind != expected.kind || key_len != expected.key_len || value_len != expected.value_len {
        let why = format!(
            "it is a {kind:?} of {key_len} bytes to {value_len}, not a {:?} of {} to {}",
            expected.kind, expected.key_len, expected.value_len
        );
        return Err(misfit(path, &why));
    }
    Ok(())
}

/// Returns the data of a map of any type that is iterated or pinned here.
#[expect(clippy::wildcard_enum_match_arm, reason = "five types of some thirty, and aya adds more")]
pub(super) fn data(map: &Map) -> Result<&MapData, DatapathError> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::LpmTrie(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) => {
            Ok(data)
        }
        _ => Err(anyhow::anyhow!("a map of a type that this program does not have").into()),
    }
}

/// Splits a key of a source map into prefix and slot.
pub(super) fn split_key(key: &[u8]) -> Option<(&[u8], u32)> {
    let (prefix, slot) = key.split_at_checked(key.len().checked_sub(size_of::<u32>())?)?;
    Some((prefix, u32::from_ne_bytes(slot.try_into().ok()?)))
}

/// Parses one entry of a source map. Returns none if the bytes are no such entry. `lengths` gives the prefix length for
/// a slot.
pub(super) fn source_reading(key: &[u8], value: &[u8], lengths: impl Fn(u32) -> Lengths) -> Option<SourceReading> {
    let (prefix, slot) = split_key(key)?;
    let prefix = Client::from_bytes(prefix)?.net(lengths(slot))?;
    let mut words = value.chunks_exact(size_of::<u64>()).map(|word| word.try_into().map(u64::from_ne_bytes));
    let refused = Refusals(words.next()?.ok()?);
    let mut cells = [0; CELLS];
    for cell in &mut cells {
        *cell = words.next()?.ok()?;
    }
    Some(SourceReading {
        prefix,
        slot,
        is_verified: false,
        window: Source { refused, cells },
        refused_until: None,
        repeated: 0,
    })
}

/// Returns the wall clock minus the monotonic clock, in nanoseconds.
pub(super) fn wall_offset_ns() -> Result<u64, DatapathError> {
    Ok(clock_ns(ClockId::CLOCK_REALTIME)?.saturating_sub(monotonic_ns()?))
}

/// Returns the time of the clock that `bpf_ktime_get_ns` reads, in nanoseconds.
pub(super) fn monotonic_ns() -> Result<u64, DatapathError> {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Returns how long the machine was suspended since boot, in nanoseconds. The monotonic clock, and so that of packets,
/// stood still.
pub(super) fn suspended_ns() -> Result<u64, DatapathError> {
    // In this order, a pause of the thread between both reads makes the result smaller, never larger.
    let booted = clock_ns(ClockId::CLOCK_BOOTTIME)?;
    Ok(booted.saturating_sub(monotonic_ns()?))
}

fn clock_ns(clock: ClockId) -> Result<u64, DatapathError> {
    let time = clock_gettime(clock).context("read the clock")?;
    let seconds = u64::try_from(time.tv_sec()).context("the clock is before 1970")?;
    let nanos = u64::try_from(time.tv_nsec()).context("the clock is before 1970")?;
    Ok(seconds.saturating_mul(SECOND_NS).saturating_add(nanos))
}

/// Waits until every packet that was in the program at the call has left it. BPF programs run inside RCU read sections,
/// and `MEMBARRIER_CMD_GLOBAL` waits for a grace period (kernel/sched/membarrier.c, Linux 4.3). Cannot fail, because
/// the caller cannot undo its earlier steps.
pub(super) fn wait_for_packets() {
    // SAFETY: no pointer is passed.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // The command is missing with nohz_full CPUs, and a sandbox may forbid it. A packet takes microseconds, so this
        // pause is long enough.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Returns the kernel's error number among an error's causes.
pub(crate) fn errno(error: &anyhow::Error) -> Option<i32> {
    error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// Converts the kernel's refusal to load into an error with a remedy.
#[expect(clippy::wildcard_enum_match_arm, reason = "one of some thirty errors has a log")]
pub(super) fn load_error(what: &str, error: anyhow::Error) -> DatapathError {
    // The verifier refuses with EACCES even what it would accept from a process with more capabilities.
    let missing: Vec<String> = privileges::missing().iter().map(ToString::to_string).collect();
    if errno(&error) == Some(libc::EPERM) || (errno(&error) == Some(libc::EACCES) && !missing.is_empty()) {
        let without = if missing.is_empty() { String::new() } else { format!(" without {}", missing.join(" and ")) };
        return denied(format!("{what}{without}"));
    }
    if errno(&error) == Some(libc::ENOMEM) {
        // The source maps take nearly all of the memory.
        let why = format!(
            "{error:#}; there is not enough memory for this number of sources; choose a smaller `--max-sources`"
        );
        return DatapathError::Unsupported { what: what.to_owned(), why };
    }
    let refusal = error.downcast_ref::<ProgramError>().and_then(|refused| match refused {
        ProgramError::LoadError { io_error, verifier_log } => Some(verifier_words(io_error, &verifier_log.to_string())),
        _ => None,
    });
    let why = refusal.unwrap_or_else(|| format!("{error:#}"));
    DatapathError::Unsupported {
        what: what.to_owned(),
        why: format!("{why}; the kernel may lack a BPF feature or the JIT compiler: `ratelimitd doctor` says which"),
    }
}

/// Returns the error for a denied operation. If the process has all needed capabilities, a container's profile is the
/// reason, and root would be refused too.
pub(super) fn denied(what: String) -> DatapathError {
    if privileges::missing().is_empty() {
        DatapathError::Forbidden { what }
    } else {
        DatapathError::NotPrivileged { what }
    }
}

/// Returns the last lines of the verifier's log, which contain the reason, as one line. The whole log, possibly
/// megabytes, goes to the debug log.
fn verifier_words(refusal: &std::io::Error, log: &str) -> String {
    const LINES_MAX: usize = 3;
    tracing::debug!("the verifier's log:\n{log}");
    let is_summary = |line: &&str| line.starts_with("processed ") || line.trim().is_empty();
    let mut last: Vec<_> = log.lines().rev().filter(|line| !is_summary(line)).take(LINES_MAX).collect();
    last.reverse();
    format!("the kernel's verifier refuses it ({refusal}): {} (-v shows all)", last.join(" / "))
}

impl From<PinsError> for DatapathError {
    fn from(error: PinsError) -> Self {
        let path = match &error {
            PinsError::NoBpfFileSystem(_) | PinsError::Foreign { .. } => {
                return Self::Unsupported { what: "keep the filter over restarts".into(), why: error.to_string() };
            }
            PinsError::Io { what, path, source } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                return denied(format!("{what} {}", path.display()));
            }
            PinsError::Locked(path) => {
                return Self::InUse {
                    path: path.display().to_string(),
                    remedy: "stop that one first, or start without `--on-exit keep`",
                };
            }
            PinsError::OtherVersion(path) | PinsError::Io { path, .. } => path.display().to_string(),
        };
        Self::Pins { path, why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::EbpfError;
    use aya::maps::MapError;

    use super::*;

    fn no_map(errno: i32) -> String {
        let io_error = io::Error::from_raw_os_error(errno);
        let error = EbpfError::MapError(MapError::CreateError { name: map::SOURCES_V4.to_owned(), io_error });
        load_error("make the maps", error.into()).to_string()
    }

    #[test]
    fn more_sources_than_there_is_memory_for_are_refused_with_the_flag_that_mends_it() {
        let said = no_map(libc::ENOMEM);
        for word in ["make the maps", map::SOURCES_V4, "not enough memory", "`--max-sources`"] {
            assert!(said.contains(word), "no {word:?} in: {said}");
        }
        assert!(!said.contains("BPF feature"), "{said}");
        assert!(no_map(libc::EINVAL).contains("BPF feature or the JIT compiler: `ratelimitd doctor`"));
    }
}
