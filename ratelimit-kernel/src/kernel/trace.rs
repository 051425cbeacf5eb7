//! Forwards the messages of a program built for tracing to our log. Not in the shipped object.

use anyhow::Context as _;
use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::DatapathError;

/// Forwards the program's messages from now on, if the log level is trace (`-vv`). Must be called on a runtime.
pub(super) fn forward(ebpf: &mut Ebpf) -> Result<(), DatapathError> {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return Ok(());
    }
    let logger = EbpfLogger::init(ebpf).context("open the program's log")?;
    // SAFETY: the logger owns its descriptor, shares it with nobody, and keeps the same one until it is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    let mut logger = registered.context("watch the program's log")?;
    tokio::spawn(async move {
        // Waiting fails only when the runtime ends.
        while let Ok(mut guard) = logger.readable_mut().await {
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    });
    Ok(())
}
