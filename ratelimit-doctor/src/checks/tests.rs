//! Tests of the checks: a healthy host, and one fault at a time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ratelimit_common::layout;
use ratelimit_datapath::path::Link;
use ratelimit_datapath::{Lapse, Left, Orphans, PinnedLayout, XdpMode};
use ratelimit_kernel::device::{Attached, Device};
use ratelimit_kernel::probe::Feature;
use ratelimit_policy::config::{HookChoice, XdpModeChoice};
use ratelimit_policy::safety::{Around, SshSession};
use ratelimit_report::snapshot::TopTalker;

use super::examine;
use super::service::SHIPPED;
use crate::distribution::Distribution;
use crate::facts::*;
use crate::finding::{Finding, State};

mod kernels;
mod logs;

fn device() -> Device {
    Device {
        name: "eth0".into(),
        index: 2,
        mtu: 1500,
        has_ethernet_header: true,
        is_headless: false,
        driver: Some("virtio_net".into()),
        xdp_features: Some(0b10_0001),
        receive_queues: Some(4),
        offloads: Some(vec!["rx-checksum".into()]),
        xdp: Vec::new(),
        tcx: Ok(Vec::new()),
    }
}

fn healthy() -> Facts {
    let config = ratelimit_report::fixture::config(Path::new("/run"), 3);
    let mut snapshot = ratelimit_report::fixture::snapshot();
    snapshot.attention.clear();
    snapshot.interfaces.retain(|interface| interface.attached);
    let file = |what, path: &str, rule, mode| FileSeen {
        what,
        path: path.into(),
        rule,
        seen: Ok(Some(Permissions { owner: 0, mode })),
    };
    Facts {
        kernel: Kernel {
            release: "6.12.0".into(),
            distribution: Distribution::default(),
            features: vec![Feature { name: "map LRU hash".into(), is_there: Ok(true) }],
            program: Program::Taken { instructions: Some(400_000), is_jited: None, took: Duration::from_millis(300) },
            type_information: Ok(()),
            jit: Ok(1),
            lockdown: None,
            unprivileged: Ok(2),
            memlock: None,
            ends_connections: Ok(true),
            lacks: Vec::new(),
        },
        bpffs: Ok(BpfFs { is_mounted: true, owner: 0, mode: 0o700, foreign: None }),
        machine: Machine {
            possible_cpus: Ok(4),
            online_cpus: Ok(4),
            available: Ok(16 << 30),
            page_bytes: 4096,
            has_tcx: true,
        },
        devices: Ok(vec![device()]),
        present: vec!["lo".into(), "eth0".into()],
        links: Vec::new(),
        wanted: vec!["eth0".into()],
        file: ConfigFile::Good("/etc/ratelimitd/ratelimitd.toml".into(), Box::new(config), Vec::new()),
        daemon: Daemon::Answers(Box::new(snapshot), 0.1),
        files: vec![
            file("configuration", "/etc/r.toml", Rule::WrittenByRoot, 0o644),
            file("fleet's secret", "/etc/s", Rule::Secret, 0o600),
            file("control socket", "/run/s", Rule::Socket, 0o660),
            file("state directory", "/var/lib/r", Rule::Directory, 0o750),
            file("directory", "/etc/ratelimitd", Rule::Above, 0o755),
            file("directory", "/tmp", Rule::Above, 0o1777),
        ],
        unit: Unit {
            is_systemd: true,
            file: Some(("/usr/lib/systemd/system/ratelimitd.service".into(), SHIPPED.replace("@BINDIR@", "/usr/bin"))),
            drop_ins: Vec::new(),
            shown: vec![("ActiveState".into(), "active".into()), ("NRestarts".into(), "0".into())],
        },
        around: Around {
            ssh: Some(SshSession { peer: [198, 51, 100, 7].into(), host: [192, 0, 2, 1].into(), port: 22 }),
            gateways: vec![[192, 0, 2, 254].into()],
            resolvers: vec![[192, 0, 2, 53].into()],
            ..Around::default()
        },
        conntrack: Some((10, 1000)),
        clock: Clock { is_synchronised: Ok(true), suspended: Ok(Duration::ZERO) },
        servers: Vec::new(),
        state_dir: StateDir { path: "/var/lib/r".into(), free: Some(100 << 30) },
        is_root: true,
    }
}

fn device_of(facts: &mut Facts) -> &mut Device {
    facts.devices.as_mut().unwrap().first_mut().unwrap()
}

fn config_of(facts: &mut Facts) -> &mut ratelimit_policy::config::Config {
    match &mut facts.file {
        ConfigFile::Good(_, config, _) => config,
        other @ (ConfigFile::Missing(_) | ConfigFile::Unreadable(..) | ConfigFile::Bad(..)) => panic!("{other:?}"),
    }
}

fn snapshot_of(facts: &mut Facts) -> &mut ratelimit_report::snapshot::Snapshot {
    match &mut facts.daemon {
        Daemon::Answers(snapshot, _) => snapshot,
        other @ (Daemon::Silent(_) | Daemon::Hangs(_) | Daemon::Unknown(_)) => panic!("{other:?}"),
    }
}

fn program(name: &str, pins: &[&str], holders: &[(u32, &str)]) -> Attached {
    Attached {
        id: 7,
        name: name.into(),
        mode: Some(XdpMode::Native),
        pins: pins.iter().map(PathBuf::from).collect(),
        holders: holders.iter().map(|(id, name)| (*id, (*name).to_owned())).collect(),
    }
}

fn left(layout: PinnedLayout) -> Daemon {
    let root = PathBuf::from("/sys/fs/bpf/ratelimitd");
    let dir = root.join("v2");
    let links = vec![("eth0".to_owned(), dir.join("link-eth0"))];
    Daemon::Silent(Orphans::Enforcing(Left {
        root,
        dir,
        layout,
        links,
        alone: Some(Duration::from_secs(180)),
        lapse: None,
    }))
}

/// Returns the findings that are not ok.
fn unwell(facts: &Facts) -> Vec<Finding> {
    examine(facts).checks.into_iter().filter(|of| of.state != State::Ok).collect()
}

#[test]
fn prefixes_of_lists_count_as_memory_and_are_what_to_name_fewer_of() {
    let mut facts = healthy();
    facts.machine.available = Ok(400_000_000);
    assert_eq!(unwell(&facts), [], "without them there is enough");
    let prefixes = (0..1_000_000).map(|at| std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(at)).into());
    config_of(&mut facts).policy.rules[0].from = prefixes.collect();
    let found = unwell(&facts);
    assert_eq!(
        found.iter().map(|of| (of.id.as_str(), of.state)).collect::<Vec<_>>(),
        [("kernel.memory", State::Problem)]
    );
    assert!(found[0].mend.as_ref().unwrap().contains("fewer prefixes"), "{found:#?}");
}

#[test]
fn on_a_healthy_host_all_is_well_and_every_line_says_why_it_matters() {
    let facts = healthy();
    let report = examine(&facts);
    assert_eq!(unwell(&facts), []);
    assert!(report.is_without_problem() && report.checks.len() > 30, "{}", report.checks.len());
    assert!(report.checks.iter().all(|of| !of.why.is_empty() && !of.seen.is_empty() && of.mend.is_none()));
    // Checks of one group stand together.
    let mut abouts: Vec<&str> = report.checks.iter().map(|of| of.about.as_str()).collect();
    abouts.dedup();
    let groups = abouts.len();
    abouts.sort_unstable();
    abouts.dedup();
    assert_eq!(abouts.len(), groups);
}

#[test]
fn a_loaded_program_tells_the_jit_state_where_no_sysctl_does() {
    let mut facts = healthy();
    facts.kernel.jit = Err("no such file".into());
    facts.kernel.program = Program::Taken { instructions: None, is_jited: Some(true), took: Duration::ZERO };
    assert_eq!(unwell(&facts), []);
}

#[test]
fn a_dead_filter_is_told_in_the_words_of_every_other_command() {
    for lapse in [None, Some(Lapse::In(Duration::from_secs(60))), Some(Lapse::Since(Duration::from_secs(60)))] {
        let mut facts = healthy();
        facts.daemon = left(PinnedLayout::Own);
        let Daemon::Silent(Orphans::Enforcing(left)) = &mut facts.daemon else { panic!("nothing is left") };
        left.lapse = lapse;
        // The time of the daemon's end is read from a clock, so leave it out.
        left.alone = None;
        let said = ratelimit_control::orphan::still_enforcing(left, jiff::Timestamp::UNIX_EPOCH);
        assert!(unwell(&facts).iter().any(|of| of.id == "service.daemon" && of.seen == said), "{said}");
    }
}

type Row = (&'static str, State, &'static str, fn(&mut Facts));

/// Each change leads to one finding with this id, state and words.
#[test]
fn each_thing_that_is_wrong_comes_to_its_finding_and_to_no_other() {
    use State::{Problem, Unknown, Warning};
    let rows: &[Row] = &[
        ("kernel.features", Problem, "lacks map LRU hash", |f| f.kernel.features[0].is_there = Ok(false)),
        ("kernel.features", Unknown, "permission denied", |f| {
            f.kernel.features[0].is_there = Err("permission denied".into())
        }),
        ("kernel.connections", Warning, "without INET_DIAG_DESTROY", |f| f.kernel.ends_connections = Ok(false)),
        ("kernel.connections", Unknown, "permission", |f| {
            f.kernel.ends_connections = Err("no permission".into());
        }),
        ("kernel.program", Problem, "R7 invalid", |f| {
            f.kernel.program = Program::Refused { why: "R7 invalid".into(), log: None };
        }),
        ("kernel.program", Unknown, "it needs CAP_BPF", |f| {
            f.kernel.program = Program::NotTried("it needs CAP_BPF".into());
        }),
        ("kernel.capabilities", Unknown, "CAP_BPF", |f| f.kernel.lacks = vec!["CAP_BPF".into()]),
        ("kernel.btf", Warning, "no such file", |f| f.kernel.type_information = Err("no such file".into())),
        ("kernel.jit", Problem, "off", |f| f.kernel.jit = Ok(0)),
        ("kernel.jit", Unknown, "denied", |f| f.kernel.jit = Err("denied".into())),
        ("kernel.jit", Problem, "would be interpreted", |f| {
            f.kernel.program = Program::Taken { instructions: None, is_jited: Some(false), took: Duration::ZERO };
        }),
        ("kernel.unprivileged", Warning, "every user", |f| f.kernel.unprivileged = Ok(0)),
        ("kernel.processors", Warning, "128 possible processors (4 run)", |f| f.machine.possible_cpus = Ok(128)),
        ("kernel.processors", Warning, "16 possible processors (4 run)", |f| f.machine.possible_cpus = Ok(16)),
        ("kernel.memory", Problem, "are free", |f| f.machine.available = Ok(1 << 20)),
        ("kernel.memory", Unknown, "denied", |f| f.machine.available = Err("denied".into())),
        ("bpffs.mounted", Unknown, "no such file", |f| f.bpffs = Err("no such file".into())),
        ("bpffs.mounted", Problem, "not a BPF file system", |f| f.bpffs.as_mut().unwrap().is_mounted = false),
        ("bpffs.mounted", Problem, "user 33", |f| f.bpffs.as_mut().unwrap().owner = 33),
        ("bpffs.mounted", Problem, "mode 0777", |f| f.bpffs.as_mut().unwrap().mode = 0o777),
        ("bpffs.mounted", Warning, "mode 1777", |f| f.bpffs.as_mut().unwrap().mode = 0o1777),
        ("bpffs.owner", Problem, "others could", |f| {
            f.bpffs.as_mut().unwrap().foreign = Some(("others could".into(), "chown".into()));
        }),
        ("interface.list", Unknown, "denied", |f| f.devices = Err("denied".into())),
        ("interface.named", Unknown, "no interface is named", |f| f.wanted.clear()),
        ("interface.present", Warning, "no interface eth1; did you mean eth0?", |f| f.wanted = vec!["eth1".into()]),
        ("interface.ethernet", Problem, "no Ethernet header", |f| device_of(f).has_ethernet_header = false),
        ("interface.path", Problem, "eth0 and br0 are one path", |f| {
            config_of(f).interfaces.push("br0".into());
            let port = Link { name: "eth0".into(), index: 2, master: Some(3), ..Link::default() };
            let bridge = Link { name: "br0".into(), index: 3, kind: Some("bridge".into()), ..Link::default() };
            f.links = vec![port, bridge];
        }),
        ("interface.native", Warning, "driver virtio_net says so", |f| device_of(f).xdp_features = Some(0)),
        ("interface.native", Problem, "asks for it", |f| {
            device_of(f).xdp_features = Some(0);
            config_of(f).xdp_mode = XdpModeChoice::Native;
        }),
        ("interface.native", Warning, "by the name of its driver, e1000", |f| {
            device_of(f).xdp_features = None;
            device_of(f).driver = Some("e1000".into());
        }),
        ("interface.reset", Warning, "ixgbe", |f| device_of(f).driver = Some("ixgbe".into())),
        ("interface.reset", Warning, "mlx5_core", |f| device_of(f).driver = Some("mlx5_core".into())),
        ("interface.queues", Warning, "1 receive queues for 4", |f| device_of(f).receive_queues = Some(1)),
        ("interface.queues", Unknown, "not known", |f| device_of(f).receive_queues = None),
        ("interface.mtu", Warning, "MTU 9000", |f| {
            device_of(f).mtu = 9000;
            device_of(f).xdp_features = Some(1);
        }),
        ("interface.mtu", Problem, "MTU 9000", |f| {
            device_of(f).mtu = 9000;
            device_of(f).xdp_features = Some(1);
            config_of(f).xdp_mode = XdpModeChoice::Native;
        }),
        ("interface.mtu", Warning, "not known", |f| {
            device_of(f).mtu = 9000;
            device_of(f).xdp_features = None;
        }),
        ("interface.lro", Warning, "LRO is on", |f| device_of(f).offloads = Some(vec!["rx-lro".into()])),
        ("interface.lro", Warning, "GRO_HW is on", |f| device_of(f).offloads = Some(vec!["rx-gro-hw".into()])),
        (
            "interface.xdp",
            Warning,
            "\"xdp_filter\", id 7, native, pinned at /sys/fs/bpf/x, held by process 9 (filterd); the limiter runs behind it",
            |f| {
                device_of(f).xdp = vec![program("xdp_filter", &["/sys/fs/bpf/x"], &[(9, "filterd")])];
            },
        ),
        ("interface.xdp", Warning, "no XDP program is attached any more", |f| {
            device_of(f).tcx = Ok(vec![program(layout::PROGRAM, &["/sys/fs/bpf/ratelimitd/v9/link-eth0"], &[])]);
        }),
        ("interface.xdp", Problem, "attached by netlink", |f| {
            device_of(f).xdp = vec![program("pass", &[], &[])];
            config_of(f).hook = HookChoice::Xdp;
        }),
        ("interface.xdp", Problem, "another XDP program", |f| {
            device_of(f).xdp = vec![program("pass", &[], &[])];
            f.machine.has_tcx = false;
        }),
        ("interface.ethernet", Problem, "hook is \"xdp\"", |f| {
            (device_of(f).has_ethernet_header, device_of(f).is_headless) = (false, true);
            config_of(f).hook = HookChoice::Xdp;
        }),
        ("interface.xdp", Problem, "another XDP program", |f| {
            device_of(f).xdp = vec![program(layout::PROGRAM, &[], &[(9, "ratelimitd")])];
            f.daemon = Daemon::Unknown("x".into());
            // The fault is also reported without a daemon.
        }),
        ("interface.tcx", Unknown, "denied", |f| device_of(f).tcx = Err("denied".into())),
        ("host.ssh", Warning, "198.51.100.7, is not exempt", |f| config_of(f).safety.exempt_ssh_peer = false),
        ("host.gateway", Warning, "no default route", |f| f.around.gateways.clear()),
        ("host.gateway", Warning, "192.0.2.254 is not exempt", |f| config_of(f).safety.exempt_gateway = false),
        ("host.resolvers", Warning, "192.0.2.53 are not exempt", |f| config_of(f).safety.exempt_resolvers = false),
        ("host.conntrack", Warning, "800 connections of 1000", |f| f.conntrack = Some((800, 1000))),
        ("host.proxy", Warning, "93 % of what it counts comes from 203.0.113.9", |f| {
            let (rule, source) = ("web".to_owned(), "203.0.113.9".to_owned());
            snapshot_of(f).top_talkers = vec![TopTalker { rule, source, percent: 93 }];
        }),
        ("clock.synchronised", Warning, "not synchronised", |f| f.clock.is_synchronised = Ok(false)),
        ("clock.apart", Warning, "120 s apart", |f| {
            f.daemon = Daemon::Answers(Box::new(snapshot_of(f).clone()), -120.0);
        }),
        ("configuration.file", Problem, "line 3: unknown key", |f| {
            f.file = ConfigFile::Bad("/etc/r.toml".into(), "line 3: unknown key".into());
        }),
        ("configuration.file", Unknown, "denied", |f| {
            f.file = ConfigFile::Unreadable("/etc/r.toml".into(), "denied".into());
        }),
        ("configuration.file", Warning, "there is no /etc/r.toml", |f| {
            f.file = ConfigFile::Missing("/etc/r.toml".into())
        }),
        ("configuration.warning", Warning, "limits your own SSH", |f| {
            if let ConfigFile::Good(_, _, warnings) = &mut f.file {
                warnings.push("limits your own SSH".into());
            }
        }),
        ("service.unit", Warning, "no unit", |f| f.unit.file = None),
        ("service.unit", Warning, "MemoryDenyWriteExecute", |f| {
            let (_, text) = f.unit.file.as_mut().unwrap();
            *text = text.replace("MemoryDenyWriteExecute=yes\n", "");
        }),
        ("service.unit", Warning, "CapabilityBoundingSet", |f| {
            let (_, text) = f.unit.file.as_mut().unwrap();
            *text = text.replace("CAP_PERFMON", "CAP_PERFMON CAP_SYS_ADMIN");
        }),
        ("service.drop_in", Warning, "ProtectSystem", |f| {
            f.unit.drop_ins.push((
                "/etc/systemd/system/ratelimitd.service.d/a.conf".into(),
                "[Service]\nProtectSystem=no\n".into(),
            ));
        }),
        ("service.state", Problem, "failed: exit-code", |f| {
            f.unit.shown = vec![("ActiveState".into(), "failed".into()), ("Result".into(), "exit-code".into())];
        }),
        ("service.state", Warning, "inactive", |f| f.unit.shown = vec![("ActiveState".into(), "inactive".into())]),
        ("service.restarts", Warning, "3 times", |f| f.unit.shown = vec![("NRestarts".into(), "3".into())]),
        ("service.reload_needed", Warning, "has changed", |f| {
            f.unit.shown = vec![("NeedDaemonReload".into(), "yes".into())];
        }),
        ("service.daemon", Problem, "STILL ENFORCING on eth0 without a daemon since 2", |f| {
            f.daemon = left(PinnedLayout::Own)
        }),
        ("service.daemon", Problem, "STILL ENFORCING", |f| f.daemon = left(PinnedLayout::Unknown)),
        ("service.daemon", Warning, "no filter is pinned", |f| f.daemon = Daemon::Silent(Orphans::Nothing)),
        ("service.daemon", Problem, "did not answer within 35 s: it hangs", |f| {
            f.daemon = Daemon::Hangs("the daemon at /run/s did not answer within 35 s".into());
        }),
        ("service.daemon", Unknown, "another version", |f| f.daemon = Daemon::Unknown("another version".into())),
        ("service.daemon", Warning, "process 9", |f| f.daemon = Daemon::Silent(Orphans::Held(9))),
        ("service.daemon", Unknown, "only root", |f| f.daemon = Daemon::Silent(Orphans::Hidden("/sys/fs/bpf".into()))),
        ("service.daemon", Problem, "is a symbolic link", |f| {
            f.daemon = Daemon::Silent(Orphans::Foreign("x is a symbolic link".into()));
        }),
        ("service.attached", Problem, "NOT PROTECTED: eth0: gone", |f| {
            let of = &mut snapshot_of(f).interfaces[0];
            (of.attached, of.problem) = (false, Some("gone".into()));
        }),
        ("service.room", Problem, "are free", |f| f.state_dir.free = Some(1 << 20)),
        ("service.room", Warning, "are free", |f| f.state_dir.free = Some(512 << 20)),
        ("files.configuration", Problem, "others may write", |f| {
            f.files[0].seen = Ok(Some(Permissions { owner: 0, mode: 0o666 }))
        }),
        ("files.configuration", Problem, "not root's", |f| {
            f.files[0].seen = Ok(Some(Permissions { owner: 33, mode: 0o644 }))
        }),
        ("files.fleet's_secret", Problem, "others may read", |f| {
            f.files[1].seen = Ok(Some(Permissions { owner: 0, mode: 0o604 }))
        }),
        ("files.fleet's_secret", Problem, "others may read", |f| {
            f.files[1].seen = Ok(Some(Permissions { owner: 0, mode: 0o640 }))
        }),
        ("files.fleet's_secret", Unknown, "denied", |f| f.files[1].seen = Err("denied".into())),
        ("files.control_socket", Problem, "every user", |f| {
            f.files[2].seen = Ok(Some(Permissions { owner: 0, mode: 0o666 }))
        }),
        (
            "files.directory",
            Problem,
            "directory /etc/ratelimitd: user 0, mode 0777: others may put files into it",
            |f| f.files[4].seen = Ok(Some(Permissions { owner: 0, mode: 0o777 })),
        ),
        ("files.directory", Problem, "mode 0775: others may put files", |f| {
            f.files[4].seen = Ok(Some(Permissions { owner: 0, mode: 0o775 }))
        }),
        ("files.directory", Problem, "not root's", |f| {
            f.files[4].seen = Ok(Some(Permissions { owner: 1000, mode: 0o755 }))
        }),
        ("files.directory", Problem, "mode 0777: others may put files", |f| {
            f.files[4].rule = Rule::AboveList;
            f.files[4].seen = Ok(Some(Permissions { owner: 998, mode: 0o777 }));
        }),
        ("files.state_directory", Problem, "others may reach", |f| {
            f.files[3].seen = Ok(Some(Permissions { owner: 0, mode: 0o755 }))
        }),
    ];
    for (id, state, words, change) in rows {
        let mut facts = healthy();
        change(&mut facts);
        let found = unwell(&facts);
        let it = found.iter().find(|of| of.id == *id).unwrap_or_else(|| panic!("{id} {words}: {found:?}"));
        assert!(it.state == *state && it.seen.contains(words) && it.mend.is_some(), "{id} {words}: {it:?}");
        // Without a daemon, the checks of the daemon and of traffic report it too. No other finding may appear.
        let is_of_it = |of: &Finding| of.id == *id || of.id == "host.proxy" || of.id.starts_with("service.daemon");
        assert!(found.iter().all(is_of_it), "{id} {words}: {found:?}");
        assert_eq!(examine(&facts).is_without_problem(), *state != State::Problem, "{id} {words}");
    }
}

#[test]
fn own_programs_are_no_neighbours_and_absent_things_are_no_problem() {
    let rows: &[fn(&mut Facts)] = &[
        |f| device_of(f).xdp = vec![program(layout::PROGRAM, &["/sys/fs/bpf/ratelimitd/v9/link-eth0"], &[])],
        |f| device_of(f).xdp = vec![program(layout::PROGRAM, &[], &[(9, "ratelimitd")])],
        |f| device_of(f).tcx = Ok(vec![program("cil_from_netdev", &["/sys/fs/bpf/cilium"], &[])]),
        |f| device_of(f).mtu = 9000,
        // On kernels with larger pages, as on some aarch64 machines, one buffer holds the frame.
        |f| {
            device_of(f).mtu = 9000;
            device_of(f).xdp_features = Some(1);
            f.machine.page_bytes = 16_384;
        },
        |f| device_of(f).xdp = vec![program("", &["/sys/fs/bpf/ratelimitd/v9/link-eth0"], &[])],
        |f| f.clock.suspended = Ok(Duration::from_secs(3600)),
        |f| {
            f.files.push(FileSeen {
                what: "list",
                path: "/var/lib/ratelimitd-feeds/a.txt".into(),
                rule: Rule::List,
                seen: Ok(Some(Permissions { owner: 998, mode: 0o644 })),
            })
        },
        |f| device_of(f).offloads = Some(vec!["rx-vlan-hw-parse".into()]),
        |f| device_of(f).xdp_features = None,
        |f| f.files.iter_mut().for_each(|file| file.seen = Ok(None)),
        |f| {
            f.files[4].rule = Rule::AboveList;
            f.files[4].seen = Ok(Some(Permissions { owner: 998, mode: 0o755 }));
        },
        |f| f.unit = Unit::default(),
        |f| f.conntrack = None,
        |f| f.around.ssh = None,
        |f| f.kernel.lockdown = Some("integrity".into()),
        |f| f.kernel.memlock = Some(8 << 20),
        |f| f.machine.possible_cpus = Ok(15),
        |f| f.conntrack = Some((799, 1000)),
        |f| f.unit.drop_ins.push(("a.conf".into(), "[Service]\nRestartSec=1\n".into())),
    ];
    for (at, change) in rows.iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        assert_eq!(unwell(&facts), [], "row {at}");
    }
}

#[test]
fn a_refused_program_makes_lockdown_and_the_memory_limit_suspects() {
    let mut facts = healthy();
    facts.kernel.program = Program::Refused { why: "no".into(), log: None };
    (facts.kernel.lockdown, facts.kernel.memlock) = (Some("confidentiality".into()), Some(64 << 10));
    let found = unwell(&facts);
    for id in ["kernel.program", "kernel.lockdown", "kernel.memlock"] {
        assert!(found.iter().any(|of| of.id == id && of.mend.is_some()), "{id}: {found:?}");
    }
}

#[test]
fn the_lines_for_people_are_grouped_and_say_what_mends_it() {
    let mut facts = healthy();
    facts.kernel.jit = Ok(0);
    let words = crate::words(&examine(&facts));
    assert!(words.starts_with("kernel\n  ok       this process has"), "{words}");
    assert!(words.contains("  PROBLEM  the JIT compiler is off\n           why: an interpreted"), "{words}");
    assert!(words.contains("           mend: sudo sysctl net.core.bpf_jit_enable=1\n"), "{words}");
    assert!(words.contains("\n\ninterface eth0\n"), "{words}");
    assert!(words.trim_end().lines().last().unwrap().starts_with("1 problem, "), "{words}");
}

/// A change, and the remedies that the checks of the daemon and of traffic then name.
type Mends = (fn(&mut Facts), &'static str, &'static str);

#[test]
fn the_remedy_for_a_silent_daemon_fits_its_cause() {
    const START: &str = "sudo systemctl start ratelimitd";
    const RUN: &str = "sudo ratelimitd run --config /etc/ratelimitd/ratelimitd.toml";
    let rows: &[Mends] = &[
        (|f| f.daemon = Daemon::Silent(Orphans::Nothing), START, START),
        (
            |f| {
                f.daemon = Daemon::Silent(Orphans::Nothing);
                f.unit = Unit::default();
            },
            RUN,
            RUN,
        ),
        (
            |f| {
                f.daemon = Daemon::Silent(Orphans::Nothing);
                f.unit = Unit::default();
                f.file = ConfigFile::Missing("/etc/r.toml".into());
            },
            "sudo ratelimitd --iface IF --limit N/DUR",
            "sudo ratelimitd --iface IF --limit N/DUR",
        ),
        (|f| f.daemon = left(PinnedLayout::Own), "systemctl start ratelimitd; or sudo ratelimitd detach", START),
        (
            |f| f.daemon = Daemon::Hangs("late".into()),
            "sudo systemctl restart ratelimitd",
            "sudo systemctl restart ratelimitd",
        ),
        (
            |f| {
                f.daemon = Daemon::Hangs("late".into());
                f.unit = Unit::default();
            },
            "sudo kill -KILL PID",
            "sudo kill -KILL PID",
        ),
        (|f| f.daemon = Daemon::Silent(Orphans::Held(9)), "doctor --socket PATH", "doctor --socket PATH"),
        (
            |f| {
                f.daemon = Daemon::Silent(Orphans::Foreign("/sys/fs/bpf belongs to user 33".into()));
                let foreign = ("/sys/fs/bpf belongs to user 33".into(), "sudo chown root:root /sys/fs/bpf".into());
                f.bpffs.as_mut().unwrap().foreign = Some(foreign);
            },
            "sudo chown root:root /sys/fs/bpf",
            START,
        ),
    ];
    for (change, of_daemon, of_traffic) in rows {
        let mut facts = healthy();
        change(&mut facts);
        let found = unwell(&facts);
        for (id, expected) in [("service.daemon", of_daemon), ("host.proxy", of_traffic)] {
            let mend = found.iter().find(|of| of.id == id).and_then(|of| of.mend.as_deref()).unwrap();
            assert!(mend.contains(expected), "{id}: {mend}, not {expected}");
            assert_eq!(mend.contains("detach"), expected.contains("detach"), "nothing is there to take off: {mend}");
        }
    }
}

#[test]
fn root_is_not_told_to_become_root() {
    let mut facts = healthy();
    facts.kernel.lacks = vec!["CAP_BPF".into()];
    facts.daemon = Daemon::Unknown("it is another version's".into());
    facts.devices = Err("denied".into());
    for is_root in [true, false] {
        facts.is_root = is_root;
        let mends: Vec<String> = unwell(&facts).into_iter().filter_map(|of| of.mend).collect();
        assert!(mends.len() > 2, "{mends:?}");
        assert_eq!(mends.iter().any(|mend| mend == "sudo ratelimitd doctor"), !is_root, "{mends:?}");
    }
}

#[test]
fn a_program_without_an_owner_is_taken_off_the_way_that_it_was_attached() {
    for (mode, word) in [(XdpMode::Native, "eth0 xdp off"), (XdpMode::Generic, "eth0 xdpgeneric off")] {
        let mut facts = healthy();
        device_of(&mut facts).xdp = vec![Attached { mode: Some(mode), ..program("pass", &[], &[]) }];
        let found = unwell(&facts);
        assert!(found[0].mend.as_ref().unwrap().ends_with(word), "{found:?}");
    }
}

#[test]
fn a_program_that_a_link_holds_is_not_said_to_be_taken_off_by_ip() {
    let mut facts = healthy();
    device_of(&mut facts).xdp = vec![program("xdp_filter", &["/sys/fs/bpf/x"], &[(9, "filterd")])];
    for hook in [HookChoice::Auto, HookChoice::Xdp] {
        config_of(&mut facts).hook = hook;
        let found = unwell(&facts);
        assert!(found[0].mend.as_ref().unwrap().ends_with("with the tool that attached it"), "{found:?}");
    }
}
