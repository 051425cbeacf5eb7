//! Facts about a network interface before anything is attached: driver, queues, offloads, and existing programs with
//! their pins and holders. Nothing is changed here.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramInfo, SchedClassifier, loaded_programs};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{XdpMode, generic_netlink, interface, link_info};

/// Limits of the search for pins: nesting of directories in a BPF file system, and files in total.
const PIN_DEPTH_MAX: usize = 6;
const PINS_MAX: usize = 4096;

/// Values of `ETHTOOL_GDRVINFO` in linux/ethtool.h and `SIOCETHTOOL` in linux/sockios.h.
const DRIVER_INFO: u32 = 3;
const ETHTOOL: libc::c_ulong = 0x8946;

/// Facts about one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface name.
    pub name: String,
    /// Index in the network namespace.
    pub index: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// True if frames have an Ethernet header.
    pub has_ethernet_header: bool,
    /// True if frames start with the IP header.
    pub is_headless: bool,
    /// Driver name, such as `ixgbe` or `veth`.
    pub driver: Option<String>,
    /// XDP features that the driver reports (`enum netdev_xdp_act`). None on older kernels.
    pub xdp_features: Option<u64>,
    /// Number of receive queues, if the driver reports it.
    pub receive_queues: Option<u32>,
    /// Names of the enabled offloads, if the kernel reports them.
    pub offloads: Option<Vec<String>>,
    /// Attached XDP programs.
    pub xdp: Vec<Attached>,
    /// TCX programs at ingress, or why they are not known.
    pub tcx: Result<Vec<Attached>, String>,
}

/// A program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Program id.
    pub id: u32,
    /// Program name. Empty if it has none or may not be read.
    pub name: String,
    /// XDP mode. None for a TCX program.
    pub mode: Option<XdpMode>,
    /// Files that pin the program or its link.
    pub pins: Vec<PathBuf>,
    /// Processes that hold the program or its link: number and name.
    pub holders: Vec<(u32, String)>,
}

/// Returns every interface of this thread's network namespace, or only the one with this name. Sorted by index.
///
/// # Errors
/// Fails if the interfaces cannot be listed.
pub fn devices(name: Option<&str>) -> io::Result<Vec<Device>> {
    let present = interface::all()?;
    let wanted: Vec<_> = present.into_iter().filter(|of| name.is_none_or(|name| of.name == name)).collect();
    let tcx: Vec<_> = wanted.iter().map(|of| tcx_on(&of.name)).collect();
    let is_any = wanted.iter().any(|of| !of.programs.is_empty())
        || tcx.iter().any(|of| of.as_ref().is_ok_and(|programs| !programs.is_empty()));
    // Pins and processes are searched once, and only if a program is attached.
    let keepers = if is_any { Keepers::look() } else { Keepers::default() };
    let names = if is_any { names() } else { BTreeMap::new() };
    let attached = |id: u32, mode| Attached {
        id,
        name: names.get(&id).cloned().unwrap_or_default(),
        mode,
        pins: keepers.pins.get(&id).cloned().unwrap_or_default(),
        holders: keepers.holders.get(&id).cloned().unwrap_or_default(),
    };
    let device = |(of, tcx): (interface::Interface, Result<Vec<u32>, String>)| Device {
        driver: driver(&of.name).ok(),
        xdp_features: generic_netlink::xdp_features(of.index).ok(),
        receive_queues: generic_netlink::receive_queues(of.index).ok(),
        offloads: generic_netlink::offloads(of.index).ok(),
        xdp: of.programs.iter().map(|(mode, id)| attached(*id, Some(*mode))).collect(),
        tcx: tcx.map(|ids| ids.into_iter().map(|id| attached(id, None)).collect()),
        has_ethernet_header: of.has_ethernet_header(),
        is_headless: of.is_headless(),
        name: of.name,
        index: of.index,
        mtu: of.mtu,
    };
    Ok(wanted.into_iter().zip(tcx).map(device).collect())
}

fn tcx_on(name: &str) -> Result<Vec<u32>, String> {
    match SchedClassifier::query_tcx(name, TcAttachType::Ingress) {
        Ok((_, programs)) => Ok(programs.iter().map(ProgramInfo::id).collect()),
        Err(error) => {
            match crate::kernel::errno_of(&anyhow::Error::from(error)) {
                // Before Linux 6.6 there is no TCX hook, so nothing is attached there.
                Some(libc::EINVAL) => Ok(Vec::new()),
                Some(libc::EPERM) => Err("permission denied".to_owned()),
                errno => Err(errno
                    .map_or("it does not answer".to_owned(), |errno| io::Error::from_raw_os_error(errno).to_string())),
            }
        }
    }
}

fn names() -> BTreeMap<u32, String> {
    let named = |of: ProgramInfo| Some((of.id(), of.name_as_str()?.to_owned()));
    loaded_programs().filter_map(Result::ok).filter_map(named).collect()
}

/// Pins and processes that hold programs, by program id.
#[derive(Debug, Default)]
struct Keepers {
    pins: BTreeMap<u32, Vec<PathBuf>>,
    holders: BTreeMap<u32, Vec<(u32, String)>>,
}

impl Keepers {
    fn look() -> Self {
        let mut keepers = Self::default();
        let mut left = PINS_MAX;
        keepers.look_through(Path::new("/sys/fs/bpf"), PIN_DEPTH_MAX, &mut left);
        let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        for process in processes.filter_map(|of| of.file_name().to_str()?.parse::<u32>().ok()) {
            for id in held_by(process) {
                let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                let holders = keepers.holders.entry(id).or_default();
                let holder = (process, name.trim_end().to_owned());
                if process != std::process::id() && !holders.contains(&holder) {
                    holders.push(holder);
                }
            }
        }
        keepers
    }

    fn look_through(&mut self, dir: &Path, depth: usize, left: &mut usize) {
        for entry in fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            let Some(fewer) = left.checked_sub(1) else { return };
            *left = fewer;
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth > 0 => self.look_through(&path, depth - 1, left),
                Ok(kind) if kind.is_file() => {
                    if let Some(id) = link_info::program_of(&path) {
                        self.pins.entry(id).or_default().push(path);
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Returns the programs that a process holds directly or through a link.
fn held_by(process: u32) -> Vec<u32> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().filter_map(Result::ok);
    descriptors.filter_map(|of| link_info::program_in(&fs::read_to_string(of.path()).ok()?)).collect()
}

/// Start of `struct ethtool_drvinfo`, padded to its full size.
#[repr(C)]
struct DriverInfo {
    command: u32,
    // `char` is signed on some machines only. The kernel writes bytes.
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ifreq` with a pointer as data.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut DriverInfo,
    rest: [u8; 16],
}

fn driver(name: &str) -> io::Result<String> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut info = DriverInfo { command: DRIVER_INFO, driver: [0; 32], rest: [0; 160] };
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: &raw mut info, rest: [0; 16] };
    // The last byte stays 0.
    for (to, from) in request.name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the request and the data behind its pointer live until the call returns. Both are as long as the kernel's
    // own.
    if unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let driver = CStr::from_bytes_until_nul(&info.driver).map_err(io::Error::other)?;
    Ok(driver.to_string_lossy().into_owned())
}
