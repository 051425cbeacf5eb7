//! Any other program on the receiving end, started by a command from the benchmark's user.
//!
//! The command runs by `sh` in the receiver's network namespace. The benchmark only knows that the program is ready,
//! what it passes, and that it is gone afterwards.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netlab::{Child, Namespace};
use nix::sys::signal::Signal;

use super::peers::Tables;
use super::wire::RECEIVING;

/// Environment variable with the interface's name, and the placeholder in the command that stands for it.
const VARIABLE: &str = "IFACE";
const PLACE: &str = "{iface}";
/// Word on standard error by which a program that attaches nothing reports that it is ready.
const READY: &str = "ready";
const READY_WITHIN: Duration = Duration::from_secs(15);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(20);

/// A program that the user wants to be measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outside {
    /// Name of the program in tables.
    pub name: String,
    /// Command that starts the program.
    pub command: String,
}

impl Outside {
    /// Returns the reason why no such program can be measured here, if any. nft must drop and count the packets that
    /// the program passes.
    pub fn obstacle() -> Option<String> {
        let nft = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        nft.is_err().then(|| "there is no nft to drop what it passes: install nftables".to_owned())
    }

    /// Returns the command with the interface's name.
    fn for_interface(&self, interface: &str) -> String {
        self.command.replace(PLACE, interface)
    }
}

/// A running program, until it is dropped.
pub struct Running<'a> {
    namespace: &'a Namespace,
    child: Child,
    behind: Tables<'a>,
}

impl<'a> Running<'a> {
    /// Starts a program, and returns once it is ready: when a program is attached to the interface, or when it says so.
    /// A command that only sets something up is ready once it has ended successfully.
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

    /// Returns the number of packets that the program has passed.
    pub fn passed(&self) -> Result<u64> {
        self.behind.behind()
    }

    /// Ends the program, and detaches what it has left on the interface.
    pub fn end(mut self) -> Result<()> {
        // A program that has ended cannot be signalled.
        let _gone = self.child.signal(Signal::SIGTERM);
        let _late = self.child.wait(ENDS_WITHIN);
        for mode in ["xdpdrv", "xdpgeneric", "xdp"] {
            // Fails if nothing is attached in that mode.
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
