//! Loads the shipped program to learn whether this kernel accepts it. Attaches and pins nothing. Everything is dropped
//! when the call returns.

use std::time::{Duration, Instant};

use aya::VerifierLogLevel;
use aya::programs::{ProgramError, Xdp};
use ratelimit_common::admission;
use ratelimit_common::source::Family;

use super::{Clock, Events, Kernel, Options, Passed, program, state};
use crate::{DatapathError, object};
use ratelimit_policy::config::{HookChoice, MAX_SOURCES_MIN, XdpModeChoice};

/// Result of loading the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Number of instructions that the verifier processed, if the kernel reports it.
    pub instructions: Option<u32>,
    /// True if the JIT compiler translated the program, if the kernel reports it.
    pub is_jited: Option<bool>,
    /// Time for the program and the maps.
    pub took: Duration,
}

/// Refusal of the program by the kernel.
#[derive(Debug)]
pub struct Refusal {
    /// Error as a start would report it.
    pub error: DatapathError,
    /// Whole log of the verifier. None if the verifier did not refuse.
    pub log: Option<String>,
}

/// Loads the program with the fewest sources.
///
/// # Errors
/// Fails if the kernel refuses the program, with the verifier's whole log.
pub fn load_alone() -> Result<Verified, Box<Refusal>> {
    let options = Options {
        pins: None,
        hook: HookChoice::Auto,
        xdp_mode: XdpModeChoice::Auto,
        max_sources: MAX_SOURCES_MIN,
        windows_per_source: 1,
        ipv6_family: Family::V6,
        clock: Clock::Kernel,
        insertions_max: admission::BUDGET,
        insertions_free: 0,
        passed: Passed::On,
        events: Events::On,
    };
    let began = Instant::now();
    match load(&options, VerifierLogLevel::DISABLE) {
        Ok((instructions, is_jited)) => Ok(Verified { instructions, is_jited, took: began.elapsed() }),
        Err((what, first)) => {
            let is_verifiers = log_in(&first).is_some();
            // Load again to get the verifier's whole log.
            let second = if is_verifiers { load(&options, VerifierLogLevel::VERBOSE).err() } else { None };
            let log = second.and_then(|(_, error)| log_in(&error)).or_else(|| log_in(&first));
            Err(Box::new(Refusal { error: state::load_error(what, first), log }))
        }
    }
}

/// Number of processed instructions, and whether the JIT compiler translated the program.
type Taken = (Option<u32>, Option<bool>);

fn load(options: &Options, log: VerifierLogLevel) -> Result<Taken, (&'static str, anyhow::Error)> {
    let mut ebpf = Kernel::with_loader(options, log, |loader| loader.load(object::ELF))
        .map_err(|error| ("make the maps", error.into()))?;
    let program: &mut Xdp = program(&mut ebpf).map_err(|error| ("find the program", error.into()))?;
    program.load().map_err(|error| ("load the program", error.into()))?;
    let info = program.info().ok();
    Ok((info.as_ref().and_then(|info| info.verified_instruction_count()), info.map(|info| info.size_jitted() > 0)))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "one of some thirty errors has a log")]
fn log_in(error: &anyhow::Error) -> Option<String> {
    match error.downcast_ref::<ProgramError>()? {
        ProgramError::LoadError { verifier_log, .. } => {
            Some(verifier_log.to_string()).filter(|log| !log.trim().is_empty())
        }
        _ => None,
    }
}
