//! Any other program on the receiving end, by the command that the benchmark's user gives.
//!
//! The command runs by `sh` in the receiver's network namespace. Nothing is known of it but that it is ready, what it
//! passes, and that it is gone afterwards.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netlab::{Child, Namespace};
use nix::sys::signal::Signal;

use super::peers::Tables;
use super::wire::RECEIVING;

/// The environment variable with the interface's name; in the command `{iface}` stands for it too.
const VARIABLE: &str = "IFACE";
const PLACE: &str = "{iface}";
/// What a program says on standard error once it is ready, if it attaches nothing.
const READY: &str = "ready";
const READY_WITHIN: Duration = Duration::from_secs(15);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(20);

/// One that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outside {
    /// Its name in tables.
    pub name: String,
    /// What starts it.
    pub command: String,
}

impl Outside {
    /// Why it cannot be measured here, if it cannot: what it passes is dropped behind it by nft, and counted there.
    pub fn obstacle() -> Option<String> {
        let nft = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        nft.is_err().then(|| "there is no nft to drop what it passes: install nftables".to_owned())
    }

    /// The command for an interface.
    fn for_interface(&self, interface: &str) -> String {
        self.command.replace(PLACE, interface)
    }
}

/// One that runs, until it is dropped.
pub struct Running<'a> {
    namespace: &'a Namespace,
    child: Child,
    behind: Tables<'a>,
}

impl<'a> Running<'a> {
    /// Starts it, and returns once it is ready: when a program is attached to the interface, when it says so, or when
    /// the command has ended well, as one does that only sets something up.
    pub fn start(outside: &Outside, namespace: &'a Namespace) -> Result<Self> {
        let behind = Tables::load(namespace, "")?;
        let mut command = namespace.command("sh");
        command.arg("-c").arg(outside.for_interface(RECEIVING[0])).env(VARIABLE, RECEIVING[0]);
        let child = Child::start(command)?;
        let mut running = Self { namespace, child, behind };
        running.wait_until_ready().with_context(|| format!("{}: `{}`", outside.name, outside.command))?;
        Ok(running)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if let Ok(status) = self.child.wait(Duration::ZERO) {
                ensure!(status.success(), "it failed ({status}): {}", self.child.stderr().trim());
                return Ok(());
            }
            if has_program(self.namespace)? || self.child.stderr().lines().any(|line| line.contains(READY)) {
                return Ok(());
            }
            thread::sleep(TICK);
        }
        bail!("it is not ready within {READY_WITHIN:?}: {}", self.child.stderr().trim())
    }

    /// Packets that it has passed.
    pub fn passed(&self) -> Result<u64> {
        self.behind.behind()
    }

    /// Ends it, and takes off what it has left on the interface.
    pub fn end(mut self) -> Result<()> {
        // One that has ended cannot be signalled.
        let _gone = self.child.signal(Signal::SIGTERM);
        let _late = self.child.wait(ENDS_WITHIN);
        for mode in ["xdpdrv", "xdpgeneric", "xdp"] {
            // Fails where nothing is attached in that mode.
            let _none = self.namespace.run(&["ip", "link", "set", "dev", RECEIVING[0], mode, "off"]);
        }
        ensure!(!has_program(self.namespace)?, "it has left a program on the interface that cannot be taken off");
        Ok(())
    }
}

fn has_program(namespace: &Namespace) -> Result<bool> {
    Ok(namespace.ip(&["link", "show", "dev", RECEIVING[0]])?.contains("xdp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_the_interface_wherever_it_asks_for_it() {
        let outside = Outside { name: "other".into(), command: "load {iface} && show {iface} $IFACE".into() };
        assert_eq!(outside.for_interface("s0"), "load s0 && show s0 $IFACE");
    }
}
