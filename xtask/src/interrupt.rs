//! Ctrl-C handling: the signal is recorded, and waiting code checks it, so that everything is removed on the way out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

const TICK: Duration = Duration::from_millis(50);

/// Installs the signal handlers. From then on an interrupt no longer ends this process by itself.
pub(crate) fn watch() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(remember), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which may be done in a signal handler.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("watch for {signal}"))?;
    }
    Ok(())
}

extern "C" fn remember(_: libc::c_int) {
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn came() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails after an interrupt.
pub(crate) fn check() -> Result<()> {
    ensure!(!came(), "interrupted; everything was removed");
    Ok(())
}

/// Sleeps until `end` or until an interrupt.
pub(crate) fn sleep_until(end: Instant) {
    while !came() && Instant::now() < end {
        thread::sleep(end.saturating_duration_since(Instant::now()).min(TICK));
    }
}
