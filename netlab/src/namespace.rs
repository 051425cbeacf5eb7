//! Network namespaces, and veth pairs between them.

use std::ffi::OsStr;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};

use crate::bpffs::Bpffs;
use crate::child::{self, Output, must};

/// A network namespace with its loopback up, removed on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn new() -> Result<Self> {
        Self::make(crate::unique_name())
    }

    /// Creates a namespace with its purpose in the name: one or more words of letters, joined by `-`.
    ///
    /// # Errors
    /// Fails as [`Namespace::new`] does.
    pub fn named(role: &str) -> Result<Self> {
        Self::make(crate::unique_name_of(role))
    }

    fn make(name: String) -> Result<Self> {
        must("ip", &["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in this namespace, and returns its output.
    ///
    /// # Errors
    /// Fails if `ip` fails. The error contains its output.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        must("ip", &[&["-n", &self.name], args].concat())
    }

    /// Gives an interface an address with its prefix length. The address is usable at once.
    ///
    /// # Errors
    /// Fails if `ip` fails.
    pub fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        // Duplicate address detection would keep an IPv6 address unusable for a second.
        let options: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        self.ip(&[&["addr", "add", address, "dev", interface], options].concat())?;
        Ok(())
    }

    fn without_ipv6(&self, interface: &str) -> Result<()> {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        self.inside(|| std::fs::write(&path, "1").with_context(|| format!("write {path}")))
    }

    /// Returns a command that runs in this namespace with the machine's file systems. `ip netns exec` would hide
    /// /sys/fs/bpf. The command dies with the thread that starts it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter"]).arg(self.net_argument()).arg("--").arg(program);
        command
    }

    /// Returns a command that runs in this namespace and finds `bpffs` at /sys/fs/bpf.
    pub fn command_with(&self, bpffs: &Bpffs, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "nsenter"])
            .arg(self.net_argument())
            .args(["--", "unshare", "--mount", "--propagation", "private", "--", "sh", "-c"])
            .arg(r#"mount --bind "$0" /sys/fs/bpf && exec "$@""#)
            .arg(bpffs.path())
            .arg(program);
        command
    }

    /// Runs a command in this namespace to its end.
    ///
    /// # Errors
    /// Fails if the command cannot be started, but not if the command itself fails.
    pub fn run(&self, argv: &[&str]) -> Result<Output> {
        let [program, args @ ..] = argv else { return Err(anyhow!("no program to run")) };
        let mut command = self.command(program);
        command.args(args);
        child::run(command)
    }

    /// Runs a command in this namespace to its end, and fails if the command fails.
    pub(crate) fn must(&self, argv: &[&str]) -> Result<()> {
        let output = self.run(argv)?;
        ensure!(output.status.success(), "`{}` failed: {}", argv.join(" "), output.stderr.trim());
        Ok(())
    }

    /// Runs `work` on a separate thread in this namespace. Sockets that `work` creates stay in the namespace.
    ///
    /// # Errors
    /// Fails if the namespace cannot be entered, or if `work` fails.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                work()
            });
            inside.join().map_err(|_| anyhow!("the work in namespace {} panicked", self.name))?
        })
    }

    /// Moves the calling thread into this namespace for good.
    pub(crate) fn enter(&self) -> Result<()> {
        let path = self.path();
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter namespace {}", self.name))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    fn net_argument(&self) -> String {
        format!("--net={}", self.path().display())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The next run sweeps a namespace that cannot be removed.
        let _left = must("ip", &["netns", "del", &self.name]);
    }
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Namespace of the end.
    pub namespace: &'a Namespace,
    /// Name of the interface, at most 15 bytes.
    pub interface: &'a str,
    /// Addresses of the interface, each with its prefix length.
    pub addresses: &'a [&'a str],
}

/// Creates a veth pair with both ends up and addressed. Each end knows the other's link address, so that no address
/// resolution disturbs the counts. An end without IPv6 addresses has no IPv6. An end with IPv6 addresses reports its
/// multicast groups at times of its own choice.
///
/// # Errors
/// Fails if `ip` fails.
pub fn veth(one: End<'_>, other: End<'_>) -> Result<()> {
    let (a, b) = (one.namespace, other.namespace);
    must(
        "ip",
        &[
            "link",
            "add",
            one.interface,
            "netns",
            &a.name,
            "type",
            "veth",
            "peer",
            "name",
            other.interface,
            "netns",
            &b.name,
        ],
    )?;
    for end in [one, other] {
        if !end.addresses.iter().any(|address| address.contains(':')) {
            end.namespace.without_ipv6(end.interface)?;
        }
        for address in end.addresses {
            end.namespace.add_address(end.interface, address)?;
        }
        // Without link-local addresses there are no router solicitations or multicast reports, so only a test's frames
        // count.
        end.namespace.ip(&["link", "set", end.interface, "addrgenmode", "none", "up"])?;
    }
    acquaint(one, other)
}

/// Makes each end know the other's link address permanently. [`veth`] does so itself. Two ends that are joined through
/// other interfaces need this call.
///
/// # Errors
/// Fails if `ip` fails.
pub fn acquaint(one: End<'_>, other: End<'_>) -> Result<()> {
    for (end, peer) in [(one, other), (other, one)] {
        let link = link_address(peer)?;
        for address in peer.addresses {
            let (host, _) = address.split_once('/').with_context(|| format!("{address} has no prefix length"))?;
            host.parse::<IpAddr>().with_context(|| format!("{host} is no address"))?;
            if !end.addresses.iter().any(|own| own.contains(':') == host.contains(':')) {
                // The end has no address of that family.
                continue;
            }
            end.namespace.ip(&["neigh", "replace", host, "lladdr", &link, "dev", end.interface, "nud", "permanent"])?;
        }
    }
    Ok(())
}

/// Makes an interface send segments as they are on a wire: none larger than its MTU, each with its checksum.
///
/// # Errors
/// Fails if `ethtool` fails.
pub fn without_offloads(namespace: &Namespace, interface: &str) -> Result<()> {
    let off = ["tso", "gso", "gro", "tx", "sg"].map(|feature| [feature, "off"]);
    namespace.must(&[&["ethtool", "-K", interface], off.as_flattened()].concat())
}

fn link_address(end: End<'_>) -> Result<String> {
    let shown = end.namespace.ip(&["-br", "link", "show", "dev", end.interface])?;
    let address = shown.split_whitespace().nth(2);
    Ok(address.with_context(|| format!("{} has no link address", end.interface))?.to_owned())
}

pub(crate) fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for line in must("ip", &["netns", "list"])?.lines() {
        let Some(name) = line.split_whitespace().next() else { continue };
        if crate::is_leftover(name) {
            match must("ip", &["netns", "del", name]) {
                Ok(_) => swept.push(format!("namespace {name}")),
                // Another run has swept the namespace at the same time.
                Err(_) if !Path::new("/run/netns").join(name).exists() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(swept)
}
