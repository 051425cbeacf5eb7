//! Checks of each interface: driver, queues, frame sizes, offloads, and other programs.

use ratelimit_common::layout;
use ratelimit_datapath::{XdpMode, path};
use ratelimit_kernel::device::{Attached, Device};
use ratelimit_kernel::pins;
use ratelimit_policy::config::syntax::near_miss;
use ratelimit_policy::config::{HookChoice, XdpModeChoice};

use super::AS_ROOT;
use crate::facts::{Daemon, Facts, Known};
use crate::finding::{Finding, Subject};

/// Bits of `enum netdev_xdp_act`, include/uapi/linux/netdev.h, Linux 6.3.
const BASIC: u64 = 1;
const RECEIVES_FRAGMENTS: u64 = 1 << 5;

/// Bytes of a page that the MTU cannot use: 256 before and 320 behind the frame for XDP, and an Ethernet header with
/// two tags.
const BESIDE_MTU: u32 = 256 + 320 + 22;

/// Drivers with native XDP, by their names in `ethtool -i`, for kernels that do not report it.
const NATIVE: &[&str] = &[
    "atlantic",
    "bnxt_en",
    "bonding",
    "cpsw",
    "ena",
    "enetc",
    "fec",
    "fsl_dpaa2_eth",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "lan966x",
    "mana",
    "mlx4_en",
    "mlx5_core",
    "mtk_soc_eth",
    "mvneta",
    "mvpp2",
    "netsec",
    "nfp",
    "qede",
    "sfc",
    "sfc-siena",
    "st_gmac",
    "stmmac",
    "thunder-nicvf",
    "tsnep",
    "tun",
    "veth",
    "virtio_net",
    "vmxnet3",
];

/// Drivers that restart the device or its queues when a program is attached or detached. Packets are lost for a moment,
/// and some lose the link.
///
/// The second text names the functions that the driver's `ndo_bpf` calls for `XDP_SETUP_PROG` on a device that is up,
/// in Linux's drivers/net/ethernet. `swap` marks drivers that also restart when one program replaces another.
const RESETS: &[(&str, &str)] = &[
    // aquantia/atlantic/aq_main.c, aq_xdp_setup
    ("atlantic", "aq_ndev_close, aq_ndev_open"),
    // broadcom/bnxt/bnxt_xdp.c, bnxt_xdp_set: swap
    ("bnxt_en", "bnxt_close_nic, bnxt_open_nic"),
    // amazon/ena/ena_xdp.c, ena_xdp_set
    ("ena", "ena_down, ena_up"),
    // freescale/dpaa2/dpaa2-eth.c, dpaa2_eth_setup_xdp: swap
    ("fsl_dpaa2_eth", "dev_close, dev_open"),
    // intel/i40e/i40e_main.c, i40e_xdp_setup
    ("i40e", "i40e_prep_for_reset, i40e_reset_and_rebuild"),
    // intel/ice/ice_main.c, ice_xdp_setup_prog
    ("ice", "ice_down, ice_up"),
    // intel/igb/igb_main.c, igb_xdp_setup
    ("igb", "igb_close, igb_open"),
    // intel/igc/igc_xdp.c, igc_xdp_set_prog
    ("igc", "igc_close, igc_open; later igc_disable_rx_ring and back"),
    // intel/ixgbe/ixgbe_main.c, ixgbe_xdp_setup
    ("ixgbe", "ixgbe_setup_tc, which closes and opens it"),
    // intel/ixgbevf/ixgbevf_main.c, ixgbevf_xdp_setup
    ("ixgbevf", "ixgbevf_close, ixgbevf_open"),
    // mellanox/mlx4/en_netdev.c, mlx4_xdp_set
    ("mlx4_en", "mlx4_en_stop_port, mlx4_en_start_port"),
    // mellanox/mlx5/core/en_main.c, mlx5e_xdp_set
    ("mlx5_core", "mlx5e_safe_switch_params, which opens other channels"),
    // mediatek/mtk_eth_soc.c, mtk_xdp_setup
    ("mtk_soc_eth", "mtk_stop, mtk_open"),
    // marvell/mvneta.c, mvneta_xdp_setup
    ("mvneta", "mvneta_stop, mvneta_open"),
    // marvell/mvpp2/mvpp2_main.c, mvpp2_xdp_setup
    ("mvpp2", "mvpp2_stop, mvpp2_open"),
    // netronome/nfp/nfp_net_common.c, nfp_net_xdp_setup_drv
    ("nfp", "nfp_net_ring_reconfig"),
    // qlogic/qede/qede_filter.c, qede_xdp_set: swap
    ("qede", "qede_reload: qede_unload, qede_load"),
    // stmicro/stmmac/stmmac_xdp.c, stmmac_xdp_set_prog; the name is by the version of the hardware
    ("st_gmac", "stmmac_release, stmmac_open; later stmmac_xdp_release, stmmac_xdp_open"),
    ("stmmac", "stmmac_release, stmmac_open; later stmmac_xdp_release, stmmac_xdp_open"),
    // cavium/thunder/nicvf_main.c, nicvf_xdp_setup: swap
    ("thunder-nicvf", "nicvf_stop, nicvf_open"),
];

/// Software drivers, for which one queue is no warning.
const SOFTWARE: &[&str] = &["veth", "tun", "bridge", "loopback", "dummy", "ifb"];

pub(crate) fn all(facts: &Facts) -> Vec<Finding> {
    let devices = match &facts.devices {
        Ok(devices) => devices,
        Err(why) => {
            let subject = Subject::new("interfaces", "interface.list", "only interfaces that are named are limited");
            return vec![subject.unknown(format!("the interfaces cannot be listed: {why}"), AS_ROOT)];
        }
    };
    let mut findings = Vec::new();
    for name in &facts.wanted {
        let about = format!("interface {name}");
        match devices.iter().find(|of| of.name == *name) {
            None => findings.push(absent(&about, name, &facts.present)),
            Some(device) => findings.extend(one(&about, device, facts)),
        }
    }
    findings.extend(one_path(facts));
    if facts.wanted.is_empty() {
        let subject = Subject::new("interfaces", "interface.named", "only interfaces that are named are limited");
        findings.push(subject.unknown("no interface is named by a configuration file", "ratelimitd doctor IF"));
    }
    findings
}

/// Checks whether one interface receives another's packets, among the wanted and the configured ones. Returns `None` if
/// there are fewer than two.
fn one_path(facts: &Facts) -> Option<Finding> {
    let subject =
        Subject::new("interfaces", "interface.path", "packets that are limited on two interfaces count twice");
    let mut named = facts.wanted.clone();
    let configured = facts.file.config().into_iter().flat_map(|config| &config.interfaces);
    configured.for_each(|name| {
        if !named.contains(name) {
            named.push(name.clone())
        }
    });
    if named.len() < 2 {
        return None;
    }
    Some(match path::shared(&named, &facts.links).first() {
        None => subject.ok("no interface receives packets that another one has received"),
        Some(pair) => {
            let instead = path::as_key(&path::instead(&named, &facts.links));
            subject.problem(pair.words(), format!("write {instead} into the configuration"))
        }
    })
}

fn one(about: &str, device: &Device, facts: &Facts) -> Vec<Finding> {
    let mode = facts.file.config().map_or(XdpModeChoice::Auto, |config| config.xdp_mode);
    let hook = facts.file.config().map_or(HookChoice::Auto, |config| config.hook);
    [
        vec![
            ethernet(about, device, hook, facts.machine.has_tcx),
            native(about, device, mode),
            reset(about, device),
            queues(about, device, facts.machine.online_cpus.as_ref().copied().ok()),
            frame_size(about, device, facts.machine.page_bytes, mode),
        ],
        offloads(about, device),
        vec![xdp(about, device, facts, hook), tcx(about, device)],
    ]
    .concat()
}

fn absent(about: &str, name: &str, present: &[String]) -> Finding {
    let subject = Subject::new(
        about,
        "interface.present",
        "a service waits for an interface, and limits nothing there until it comes",
    );
    let meant = near_miss(name, present.iter().map(String::as_str));
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    subject.warning(format!("there is no interface {name}{meant}"), "ip -brief link")
}

fn ethernet(about: &str, of: &Device, hook: HookChoice, has_tcx: bool) -> Finding {
    let subject = Subject::new(
        about,
        "interface.ethernet",
        "at XDP the program reads Ethernet frames; at TCX it also reads packets without an Ethernet header",
    );
    match (of.has_ethernet_header, hook) {
        (true, _) => subject.ok("its frames have an Ethernet header"),
        (false, HookChoice::Auto | HookChoice::Tcx) if of.is_headless && has_tcx => {
            subject.ok("its packets have no Ethernet header (a tunnel, or PPP): they are limited by TCX")
        }
        (false, HookChoice::Xdp) if of.is_headless => subject.problem(
            "its packets have no Ethernet header (a tunnel, or PPP), and hook is \"xdp\"",
            "write hook = \"auto\" into the configuration: with Linux 6.6 or later they are limited by TCX",
        ),
        (false, HookChoice::Auto | HookChoice::Xdp | HookChoice::Tcx) => subject.problem(
            "its packets have no Ethernet header (a tunnel, or PPP)",
            "name the Ethernet interface below it instead: ip -details link",
        ),
    }
}

/// Returns whether the driver has native XDP, and the source of that: the driver itself, or the list of driver names.
fn is_native(of: &Device) -> Option<(bool, String)> {
    let driver = of.driver.as_deref();
    let named = driver.unwrap_or("of no name");
    match of.xdp_features {
        Some(features) => Some((features & BASIC != 0, format!("driver {named} says so"))),
        None => driver.map(|name| (NATIVE.contains(&name), format!("by the name of its driver, {name}"))),
    }
}

fn native(about: &str, of: &Device, mode: XdpModeChoice) -> Finding {
    let subject = Subject::new(
        about,
        "interface.native",
        "without native XDP a dropped packet costs several times as much: generic mode",
    );
    match (is_native(of), mode) {
        (None, _) => {
            subject.unknown("cannot tell whether its driver has native XDP", format!("ethtool -i {}", of.name))
        }
        (Some((true, how)), _) => subject.ok(format!("native XDP ({how})")),
        (Some((false, how)), XdpModeChoice::Native) => subject.problem(
            format!("no native XDP ({how}), and the configuration asks for it"),
            "write xdp_mode = \"auto\" into the configuration",
        ),
        (Some((false, how)), XdpModeChoice::Auto | XdpModeChoice::Generic) => subject.warning(
            format!("no native XDP ({how})"),
            "name the network card below it, if there is one, or accept generic mode: ip -details link",
        ),
    }
}

fn reset(about: &str, of: &Device) -> Finding {
    let subject = Subject::new(
        about,
        "interface.reset",
        "some drivers stop and start the device when a program is attached or detached",
    );
    let resets = |driver: &str| RESETS.iter().find(|(name, _)| *name == driver).map(|(_, calls)| *calls);
    match of.driver.as_deref().map(|driver| (driver, resets(driver))) {
        None => subject.unknown("cannot tell whether attaching resets the link", format!("ethtool -i {}", of.name)),
        Some((driver, Some(calls))) => subject.warning(
            format!(
                "attaching and detaching restart the device ({driver}: {calls}): packets are lost for up to seconds"
            ),
            "start and detach in a quiet hour; on_exit = \"keep\" lets the daemon restart without attaching again",
        ),
        Some((driver, None)) => subject.ok(format!("attaching is not known to reset the link ({driver})")),
    }
}

fn queues(about: &str, of: &Device, cpus: Option<u32>) -> Finding {
    let subject =
        Subject::new(about, "interface.queues", "a flood is dropped by as many processors as there are receive queues");
    let is_software = of.driver.as_deref().is_some_and(|driver| SOFTWARE.contains(&driver));
    match (of.receive_queues, cpus) {
        (Some(queues), Some(cpus)) if queues < cpus && !is_software => subject.warning(
            format!("{queues} receive queues for {cpus} processors"),
            format!("ethtool -l {0}; sudo ethtool -L {0} combined {cpus}, if the driver has as many", of.name),
        ),
        (Some(queues), Some(cpus)) => subject.ok(format!("{queues} receive queues for {cpus} processors")),
        (None, _) if is_software => subject.ok("its driver is software: it has no hardware queues"),
        (Some(_), None) | (None, _) => {
            subject.unknown("the number of receive queues is not known", format!("ethtool -l {}", of.name))
        }
    }
}

fn frame_size(about: &str, of: &Device, page_bytes: u32, mode: XdpModeChoice) -> Finding {
    let subject = Subject::new(
        about,
        "interface.mtu",
        "a frame larger than a page comes in several buffers, which not every driver takes",
    );
    let (mtu, mtu_of_a_page) = (of.mtu, page_bytes.saturating_sub(BESIDE_MTU));
    if mtu <= mtu_of_a_page {
        return subject.ok(format!("MTU {mtu}: a frame fits one buffer"));
    }
    let smaller = format!("sudo ip link set {} mtu {mtu_of_a_page}", of.name);
    match (of.xdp_features, mode) {
        (Some(features), _) if features & RECEIVES_FRAGMENTS != 0 => {
            subject.ok(format!("MTU {mtu}: frames come in several buffers, and driver and program take them"))
        }
        (Some(_), XdpModeChoice::Native) => {
            subject.problem(format!("MTU {mtu}, and the driver takes only frames of one buffer"), smaller)
        }
        (Some(_), XdpModeChoice::Auto | XdpModeChoice::Generic) => subject.warning(
            format!("MTU {mtu}, and the driver takes only frames of one buffer: it will be generic mode"),
            smaller,
        ),
        (None, _) => subject.warning(
            format!("MTU {mtu}; it is not known whether the driver takes frames of several buffers"),
            format!("{smaller}, if the start says GENERIC"),
        ),
    }
}

fn offloads(about: &str, of: &Device) -> Vec<Finding> {
    let merged = Subject::new(
        about,
        "interface.lro",
        "packets that the card merges count as one, and drivers then refuse native XDP",
    );
    let tags =
        Subject::new(about, "interface.vlan", "a tag that the card strips is not in the frame that the program sees");
    let Some(on) = &of.offloads else {
        let look = format!("ethtool -k {}", of.name);
        return vec![
            merged.unknown("cannot tell whether the card merges packets", look.clone()),
            tags.unknown("cannot tell whether the card strips VLAN tags", look),
        ];
    };
    let is_on = |name: &str| on.iter().any(|of| of == name);
    let merges: Vec<&str> = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")]
        .into_iter()
        .filter_map(|(name, flag)| is_on(name).then_some(flag))
        .collect();
    let merge = match merges.as_slice() {
        [] => merged.ok("the card merges no packets (LRO and GRO_HW are off)"),
        flags => {
            let off: Vec<String> = flags.iter().map(|flag| format!("{flag} off")).collect();
            let names = if flags.len() == 2 {
                "LRO and GRO_HW are"
            } else if flags == ["lro"] {
                "LRO is"
            } else {
                "GRO_HW is"
            };
            merged.warning(
                format!("{names} on: the card merges packets before they are counted"),
                format!("sudo ethtool -K {} {}", of.name, off.join(" ")),
            )
        }
    };
    let strips = if is_on("rx-vlan-hw-parse") || is_on("rx-vlan-stag-hw-parse") {
        tags.ok("the card strips VLAN tags; the verdict is that of the untagged frame either way")
    } else {
        tags.ok("VLAN tags stay in the frames; the program walks two of them")
    };
    vec![merge, strips]
}

/// Describes a program and its holders: `"name", id 7, native, pinned at PATH, held by process 9 (name)`.
fn named(of: &Attached) -> String {
    let name = if of.name.is_empty() { "without a name".to_owned() } else { format!("\"{}\"", of.name) };
    let mode = of.mode.map_or_else(String::new, |mode| format!(", {}", mode.label()));
    let pins: Vec<String> = of.pins.iter().map(|path| path.display().to_string()).collect();
    let holders: Vec<String> = of.holders.iter().map(|(process, name)| format!("process {process} ({name})")).collect();
    let pinned = if pins.is_empty() { String::new() } else { format!(", pinned at {}", pins.join(", ")) };
    let held = if holders.is_empty() { String::new() } else { format!(", held by {}", holders.join(", ")) };
    let alone =
        if pins.is_empty() && holders.is_empty() { ", attached by netlink, or its owner is not visible" } else { "" };
    format!("{name}, id {}{mode}{pinned}{held}{alone}", of.id)
}

/// Returns true if a program is ratelimitd's: its name matches, and it has one of our pins or a daemon reports it
/// attached.
fn is_ours(of: &Attached, device: &Device, daemon: &Daemon) -> bool {
    let is_pinned = of.pins.iter().any(|path| path.starts_with(pins::ROOT));
    let is_said = match daemon {
        Daemon::Answers(snapshot, _) => snapshot.interfaces.iter().any(|of| of.name == device.name && of.attached),
        Daemon::Silent(_) | Daemon::Hangs(_) | Daemon::Unknown(_) => false,
    };
    // Only processes with CAP_SYS_ADMIN can read the name.
    (of.name == layout::PROGRAM || of.name.is_empty()) && (is_pinned || is_said)
}

fn xdp(about: &str, of: &Device, facts: &Facts, hook: HookChoice) -> Finding {
    let subject = Subject::new(
        about,
        "interface.xdp",
        "an interface has one XDP program, and ratelimitd never replaces another's",
    );
    let others: Vec<&Attached> = of.xdp.iter().filter(|program| !is_ours(program, of, &facts.daemon)).collect();
    let is_at_tcx = || of.tcx.iter().flatten().any(|program| is_ours(program, of, &facts.daemon));
    match (of.xdp.as_slice(), others.as_slice()) {
        ([], _) if hook == HookChoice::Auto && !of.is_headless && is_at_tcx() => subject.warning(
            "no XDP program is attached any more, and the limiter runs at TCX, about 350 ns a packet slower",
            format!("sudo ratelimitd detach {}, then start it again: it will attach at XDP", of.name),
        ),
        ([], _) => subject.ok("no XDP program is attached"),
        ([ours, ..], []) => subject.ok(format!("its XDP program is ratelimitd's: {}", named(ours))),
        (_, [one]) if one.name.is_empty() && !facts.is_root => subject.unknown(
            format!("an XDP program is attached, and only root can see its owner: {}", named(one)),
            super::AS_ROOT,
        ),
        (_, others) => {
            let named: Vec<String> = others.iter().map(|program| named(program)).collect();
            let is_ours = others.iter().any(|program| program.name == layout::PROGRAM);
            let seen = format!("another XDP program is attached: {}", named.join("; "));
            // `xdp off` detaches what the driver runs.
            let is_generic = others.iter().all(|one| one.mode == Some(XdpMode::Generic));
            let off = format!("sudo ip link set dev {} {} off", of.name, if is_generic { "xdpgeneric" } else { "xdp" });
            let mend = match others {
                [one] if one.pins.is_empty() && one.holders.is_empty() => off,
                [one] if one.name == layout::PROGRAM => {
                    "stop the other ratelimitd, or say where its socket is".to_owned()
                }
                _ => "detach it with the tool that attached it".to_owned(),
            };
            match hook {
                HookChoice::Auto | HookChoice::Tcx if !is_ours && facts.machine.has_tcx => subject.warning(
                    format!("{seen}; the limiter runs behind it, at TCX, about 350 ns a packet slower"),
                    format!("if nobody needs it: {mend}"),
                ),
                HookChoice::Auto | HookChoice::Xdp | HookChoice::Tcx => subject.problem(seen, mend),
            }
        }
    }
}

fn tcx(about: &str, of: &Device) -> Finding {
    let subject = Subject::new(about, "interface.tcx", "TCX programs run after XDP, on what it passes; both can stay");
    let tcx: &Known<Vec<Attached>> = &of.tcx;
    match tcx {
        Ok(programs) if programs.is_empty() => subject.ok("no TCX program for incoming packets"),
        Ok(programs) => {
            let named: Vec<String> = programs.iter().map(named).collect();
            subject.ok(format!("TCX programs see what passes: {}", named.join("; ")))
        }
        Err(why) => subject.unknown(format!("TCX programs cannot be listed: {why}"), AS_ROOT),
    }
}
