//! A network of namespaces on one machine, for tests and the demo.
//!
//! Knows `ip`, `nsenter`, `mount` and raw sockets; knows nothing of the limiter. Everything it makes carries the prefix
//! [`PREFIX`] and its maker's process id, goes with the value that made it, and is swept by the next run where its
//! maker was killed. It never touches an interface that it has not made.

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

/// What the name of everything made here begins with.
pub const PREFIX: &str = "rl-";

/// A name that no one else uses: prefix, process id, number.
fn unique_name() -> String {
    format!("{PREFIX}{}", maker_and_number())
}

/// The same with a word in it that says what it is for.
fn unique_name_of(role: &str) -> String {
    format!("{PREFIX}{role}-{}", maker_and_number())
}

fn maker_and_number() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Whether a name is one of ours whose maker is gone.
fn is_leftover(name: &str) -> bool {
    // The first number is the maker; words that say what it is for may stand before.
    let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').find(|part| part.parse::<u32>().is_ok()));
    maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists())
}

/// Removes what runs that were killed have left behind, and says what that was.
///
/// # Errors
/// If what there is cannot be listed, or something cannot be removed.
pub fn sweep() -> Result<Vec<String>> {
    Ok([namespace::sweep()?, bpffs::sweep()?].concat())
}

/// Why a test or the demo cannot make namespaces here; none if it can.
pub fn obstacle() -> Option<&'static str> {
    (!nix::unistd::geteuid().is_root()).then_some("needs root")
}

/// Ends the test that it stands in where that is not root, or where one of `$obstacle` (an `Option` of why not) says so.
/// The line that it prints is what the harness counts.
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

/// The name of the function in which a type is declared, from the type's own.
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
