//! What a program that was built to be traced says of each packet, as lines of our log. Not in the shipped object.

use anyhow::Context as _;
use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::DatapathError;

/// Forwards the program's lines from now on, where anyone wants them (`-vv`). To be called on a runtime.
pub(super) fn forward(ebpf: &mut Ebpf) -> Result<(), DatapathError> {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return Ok(());
    }
    let logger = EbpfLogger::init(ebpf).context("open the program's log")?;
    // SAFETY: the logger owns its descriptor, gives it to nobody, and has the same one until it is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    let mut logger = registered.context("watch the program's log")?;
    tokio::spawn(async move {
        // It fails only when the runtime ends.
        while let Ok(mut guard) = logger.readable_mut().await {
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    });
    Ok(())
}
