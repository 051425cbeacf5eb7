//! A network of namespaces on one machine, for tests and the demo.
//!
//! Knows `ip`, `nsenter`, `mount` and raw sockets, and nothing about the limiter. The name of everything it creates has
//! the prefix [`PREFIX`] and the creator's process id. Everything is removed with the value that created it. The next
//! run sweeps what a killed run left behind. No interface is touched that was not created here.

mod bpffs;
mod child;
mod namespace;
mod packets;
mod program;
mod relay;
mod servers;
mod settled;
mod tag;
mod tun;

pub use bpffs::{Bpffs, usual_bpffs};
pub use child::{Child, Output};
pub use namespace::{End, Namespace, acquaint, veth, without_offloads};
pub use packets::PacketSocket;
pub use relay::{Forwarded, Relay, Trouble};
pub use servers::{HttpServer, UdpCounter, certificate, nginx, nginx_with_http2, nginx_with_tls, serving};
pub use settled::settled;
pub use tag::behind_a_tag;
pub use tun::{Tun, TunPair};

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;

/// Prefix of the name of everything that this crate creates.
pub const PREFIX: &str = "rl-";

/// Returns a unique name: prefix, process id, number.
fn unique_name() -> String {
    format!("{PREFIX}{}", maker_and_number())
}

/// Returns a unique name that contains a word for its purpose.
fn unique_name_of(role: &str) -> String {
    format!("{PREFIX}{role}-{}", maker_and_number())
}

fn maker_and_number() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns whether a name belongs to this crate and its creator no longer runs.
fn is_leftover(name: &str) -> bool {
    // The first number is the creator's process id; words for the purpose may precede it.
    let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').find(|part| part.parse::<u32>().is_ok()));
    maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
}

/// Removes what killed runs have left behind, and returns a description of each item.
///
/// # Errors
/// Fails if the items cannot be listed, or one cannot be removed.
pub fn sweep() -> Result<Vec<String>> {
    Ok([namespace::sweep()?, bpffs::sweep()?].concat())
}

/// Returns the reason why a test or the demo cannot create namespaces here, or `None`.
pub fn obstacle() -> Option<&'static str> {
    (!nix::unistd::geteuid().is_root()).then_some("needs root")
}

/// Ends the surrounding test if it does not run as root, or if one of `$obstacle` (an `Option` of a reason) is `Some`.
/// The harness counts the lines that this prints.
#[macro_export]
macro_rules! needs_root {
    ($($obstacle:expr),* $(,)?) => {
        struct Here;
        let obstacle = $crate::obstacle().map(String::from);
        $(let obstacle = obstacle.or_else(|| $obstacle);)*
        if let Some(why) = obstacle {
            println!("skipped: {}: {why}", $crate::function_of(std::any::type_name::<Here>()));
            return;
        }
    };
}

/// Returns the name of the function that declares a type, taken from the type's own name.
pub fn function_of(type_name: &str) -> &str {
    type_name.rsplit("::").nth(1).unwrap_or(type_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_made_is_a_leftover() {
        assert!(is_leftover("rl-4194305-0"));
        assert!(!is_leftover(&unique_name()));
        assert!(is_leftover("rl-demo-server-4194305-0"));
        assert!(!is_leftover(&unique_name_of("demo-server")));
        assert!(!is_leftover("rl-server"));
        assert!(!is_leftover("server-4194305-0"));
    }
}
