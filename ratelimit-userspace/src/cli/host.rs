//! Functions of this host that the daemon calls. They connect it with the kernel.

use ratelimit_daemon::HostFunctions;
use ratelimit_kernel::{default_gateways, heap, privileges};
use ratelimit_policy::safety::Around;

/// Functions that the daemon gets.
pub(super) const FUNCTIONS: HostFunctions = HostFunctions {
    look: around,
    attention: ratelimit_view::attention,
    give_up_privileges,
    give_back_memory: heap::give_back,
};

/// Looks up who must not be locked out. If the routes cannot be read, no gateway is exempted.
pub(super) fn around() -> Around {
    Around::look(default_gateways().unwrap_or_default())
}

fn give_up_privileges() {
    match privileges::give_up() {
        Ok(remaining) if remaining.threads_with_more == 0 => {
            tracing::info!("kept {} and gave up every other capability", remaining.capabilities.join(" and "));
        }
        Ok(remaining) => {
            tracing::warn!("{} threads keep more capabilities than are needed", remaining.threads_with_more);
        }
        Err(error) => tracing::warn!("{error}; continuing with more capabilities than are needed"),
    }
}
