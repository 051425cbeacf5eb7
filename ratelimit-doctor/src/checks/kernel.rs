//! Checks of the running kernel: tries the features that the program needs.

use ratelimit_policy::config::{Config, HookChoice, amount};
use ratelimit_view::describe::{memory_bytes, per_cpu_bytes, per_cpu_words, prefixes_memory};

use super::AS_ROOT;
use super::features::{SINCE_ALL, TCX_SINCE, feature_named};
use crate::facts::{BpfFs, Kernel, Known, Machine, Program};
use crate::finding::{Finding, Subject};

const ABOUT: &str = "kernel";
const BPFFS: &str = "BPF file system";

/// Consequence of a missing feature, with the commands that still work.
const STILL_WORKS: &str =
    "no limit can be enforced here; `replay`, `suggest --from`, `check-config` and `lists check` still work";

/// Ratio of possible to online processors from which on it is reported.
const POSSIBLE_TO_ONLINE: u32 = 4;
/// Divisor of the free memory: maps may take half without a warning.
const MEMORY_SHARE: u64 = 2;

pub(crate) fn all(of: &Kernel, machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let one = |finding: Finding| vec![finding];
    [
        one(capabilities(of)),
        features(of),
        one(tcx(of, machine, config)),
        one(program(of)),
        one(type_information(of)),
        one(jit(of)),
        one(lockdown(of)),
        one(unprivileged(of)),
        one(memlock(of)),
        one(connections(of)),
        one(processors(machine)),
        memory(machine, config),
    ]
    .concat()
}

fn capabilities(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.capabilities",
        "loading and attaching need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; the service has them",
    );
    match of.lacks.as_slice() {
        [] => subject.ok("this process has the capabilities that a start needs"),
        lacks => subject.unknown(format!("this process lacks {}: less can be seen", lacks.join(", ")), AS_ROOT),
    }
}

fn features(of: &Kernel) -> Vec<Finding> {
    let subject = Subject::new(
        ABOUT,
        "kernel.features",
        "the program needs every one of them; a distribution may add them to an older kernel",
    );
    let names = |wanted: fn(&Known<bool>) -> bool| {
        let names: Vec<&str> =
            of.features.iter().filter(|of| wanted(&of.is_there)).map(|feature| feature.name.as_str()).collect();
        names
    };
    let (missing, unknown) = (names(|is_there| *is_there == Ok(false)), names(Result::is_err));
    let there = of.features.len() - missing.len() - unknown.len();
    let mut findings = Vec::new();
    if there > 0 {
        findings.push(subject.ok(format!("Linux {}: {there} features were tried and are there", of.release)));
    }
    for name in missing {
        let (since, purpose) =
            feature_named(name).map_or((SINCE_ALL, String::new()), |of| (of.since, format!(", for {}", of.purpose)));
        findings.push(subject.problem(
            format!("Linux {} lacks {name}{purpose}: {STILL_WORKS}", of.release),
            of.distribution.kernel_with(since),
        ));
    }
    if let Some(first) = of.features.iter().find_map(|of| of.is_there.as_ref().err()) {
        let seen = format!("{} features could not be tried: {first}", unknown.len());
        findings.push(subject.unknown(seen, AS_ROOT));
    }
    findings
}

/// Checks for TCX, which the program uses if XDP is not possible. Everything else works without TCX.
fn tcx(of: &Kernel, machine: &Machine, config: Option<&Config>) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.tcx",
        "at TCX the filter runs beside another XDP program, and on interfaces without an Ethernet header",
    );
    let how = of.distribution.kernel_with(TCX_SINCE);
    match config.map(|config| config.hook) {
        _ if machine.has_tcx => subject.ok("TCX is there"),
        Some(HookChoice::Tcx) => subject.problem(
            format!("Linux {} lacks TCX, which hook = \"tcx\" needs; the filter can only run at XDP", of.release),
            format!("write hook = \"auto\" into the configuration; or {how}"),
        ),
        Some(HookChoice::Auto | HookChoice::Xdp) | None => subject.ok(format!(
            "Linux {} lacks TCX: the filter runs at XDP, and only on Ethernet interfaces without another XDP program. To \
             get TCX: {how}",
            of.release
        )),
    }
}

fn connections(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.connections",
        "`deny --kill` and `block_kill` let the kernel close open connections; without it they stall, because their \
         packets are dropped",
    );
    match &of.ends_connections {
        Ok(true) => subject.ok("the kernel closes connections on request"),
        Ok(false) => subject.warning(
            "the kernel was built without INET_DIAG_DESTROY, and closes no connections; all else works",
            "boot a kernel with CONFIG_INET_DIAG_DESTROY=y, or do without `--kill` and `block_kill`",
        ),
        Err(why) => subject.unknown(format!("cannot try whether the kernel closes connections: {why}"), AS_ROOT),
    }
}

fn program(of: &Kernel) -> Finding {
    let subject = Subject::new(ABOUT, "kernel.program", "a program that the kernel's verifier refuses cannot start");
    match &of.program {
        Program::Taken { instructions, took, .. } => {
            let walked = instructions.map_or_else(String::new, |of| format!(" after {of} instructions"));
            subject
                .ok(format!("the verifier takes the program{walked}, in {} ms; it was not attached", took.as_millis()))
        }
        Program::Refused { why, .. } => subject.problem(
            format!("the program is refused: {why}"),
            "ratelimitd bug-report; its verifier.log shows where; report it in the project's tracker",
        ),
        Program::NotTried(why) => subject.unknown(format!("the program was not tried: {why}"), AS_ROOT),
    }
}

fn type_information(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.btf",
        "without it requests are counted by what clients say of their connections, not by the host's own sockets",
    );
    match &of.type_information {
        Ok(()) => subject.ok("type information (BTF) is there"),
        Err(why) => subject.warning(
            format!("type information (BTF) cannot be used: {why}; limits are still enforced"),
            "boot a kernel with CONFIG_DEBUG_INFO_BTF, as the distributions' are",
        ),
    }
}

fn jit(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.jit",
        "an interpreted program costs about ten times as much a packet, and some kernels refuse it",
    );
    const ON: &str = "sudo sysctl net.core.bpf_jit_enable=1";
    // The loaded program tells the compiler's state everywhere. The sysctl exists only in the initial network
    // namespace.
    let is_jited = match of.program {
        Program::Taken { is_jited, .. } => is_jited,
        Program::Refused { .. } | Program::NotTried(_) => None,
    };
    match (is_jited, &of.jit) {
        (Some(true), _) => subject.ok("the JIT compiler is on: it made machine code of the program"),
        (Some(false), _) => subject.problem("the JIT compiler is off: the program would be interpreted", ON),
        (None, Ok(0)) => subject.problem("the JIT compiler is off", ON),
        (None, Ok(_)) => subject.ok("the JIT compiler is on"),
        (None, Err(why)) => subject.unknown(format!("cannot tell whether the JIT compiler is on: {why}"), AS_ROOT),
    }
}

fn lockdown(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.lockdown",
        "lockdown may keep programs from reading kernel memory; this one reads none",
    );
    match of.lockdown.as_deref() {
        None => subject.ok("no lockdown"),
        Some("none") => subject.ok("lockdown is off"),
        Some(mode) => match of.program {
            Program::Taken { .. } => subject.ok(format!("lockdown is {mode}, and the program loads anyway")),
            Program::Refused { .. } => subject.problem(
                format!("lockdown is {mode}"),
                "boot without lockdown=, or with Secure Boot off, and see whether the program then loads",
            ),
            Program::NotTried(_) => subject.unknown(format!("lockdown is {mode}"), AS_ROOT),
        },
    }
}

fn unprivileged(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.unprivileged",
        "users who may load BPF programs can try the kernel's verifier for faults",
    );
    match of.unprivileged {
        Ok(0) => subject.warning("every user may load BPF programs", "sudo sysctl kernel.unprivileged_bpf_disabled=1"),
        Ok(_) => subject.ok("only privileged users may load BPF programs"),
        Err(ref why) => subject.unknown(format!("cannot tell who may load BPF programs: {why}"), AS_ROOT),
    }
}

fn memlock(of: &Kernel) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.memlock",
        "kernels before 5.11 count maps against it; later ones count them in the service's memory cgroup",
    );
    match (of.memlock, &of.program) {
        (None, _) => subject.ok("memory for maps is not limited here; the unit sets no limit either"),
        (Some(limit), Program::Taken { .. }) => {
            subject.ok(format!("this shell may lock {}, which the program's maps did not need", amount::rounded(limit)))
        }
        (Some(limit), Program::Refused { .. }) => subject.warning(
            format!("this shell may lock {}", amount::rounded(limit)),
            "ulimit -l unlimited, and try again; the shipped unit says LimitMEMLOCK=infinity",
        ),
        (Some(limit), Program::NotTried(_)) => {
            subject.unknown(format!("this shell may lock {}", amount::rounded(limit)), AS_ROOT)
        }
    }
}

fn processors(of: &Machine) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "kernel.processors",
        "maps hold counters for each possible processor, even one that never runs",
    );
    match (&of.possible_cpus, &of.online_cpus) {
        (Ok(possible), Ok(online)) => {
            let seen = per_cpu_words(*possible, *online);
            if *possible >= POSSIBLE_TO_ONLINE.saturating_mul(*online) {
                let wasted = u64::from(possible.saturating_sub(*online)).saturating_mul(per_cpu_bytes());
                subject.warning(
                    seen,
                    format!("boot with possible_cpus={online} to free {} of kernel memory", amount::rounded(wasted)),
                )
            } else {
                subject.ok(seen)
            }
        }
        (Err(why), _) | (_, Err(why)) => subject
            .unknown(format!("the number of processors is not known: {why}"), "look into /sys/devices/system/cpu"),
    }
}

fn memory(of: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let Some(config) = config else { return Vec::new() };
    let subject = Subject::new(
        ABOUT,
        "kernel.memory",
        "maps are allocated completely at the start, and a start fails without enough memory",
    );
    let cpus = of.possible_cpus.as_ref().copied().unwrap_or(1);
    let prefixes = prefixes_memory(config).bytes_changed;
    let others = memory_bytes(config).saturating_add(u64::from(cpus).saturating_mul(per_cpu_bytes()));
    let needed = others.saturating_add(prefixes);
    let needed_words = amount::rounded(needed);
    let remedy = if prefixes > others {
        "name fewer prefixes in lists, or shorter ones".to_owned()
    } else {
        format!("write a smaller max_sources than {} into the configuration", config.max_sources)
    };
    vec![match of.available {
        Ok(free) if needed > free => {
            subject.problem(format!("the maps take {needed_words}, and {} are free", amount::rounded(free)), remedy)
        }
        Ok(free) if needed > free / MEMORY_SHARE => {
            subject.warning(format!("the maps take {needed_words} of {} that are free", amount::rounded(free)), remedy)
        }
        Ok(free) => subject.ok(format!("the maps take {needed_words} of {} that are free", amount::rounded(free))),
        Err(ref why) => subject.unknown(
            format!("the maps take {needed_words}; the free memory is not known: {why}"),
            "look into /proc/meminfo",
        ),
    }]
}

pub(crate) fn bpf_file_system(of: &Known<BpfFs>) -> Vec<Finding> {
    let why = "on_exit = \"keep\" pins the filter there, so that it outlives a restart; anyone who can write there can \
               detach it";
    let subject = Subject::new(BPFFS, "bpffs.mounted", why);
    let of = match of {
        Ok(of) => of,
        Err(why) => {
            return vec![subject.unknown(format!("/sys/fs/bpf cannot be inspected: {why}"), AS_ROOT)];
        }
    };
    if !of.is_mounted {
        return vec![
            subject.problem("/sys/fs/bpf is not a BPF file system", "sudo mount -t bpf bpf /sys/fs/bpf -o mode=0700"),
        ];
    }
    let (owner, mode) = (of.owner, of.mode & 0o7777);
    let seen = format!("/sys/fs/bpf is a BPF file system of user {owner}, mode {mode:04o}");
    let owned = Subject::new(BPFFS, "bpffs.owner", why);
    let is_sticky = mode & 0o1000 != 0;
    let mounted = match (owner, mode & 0o022) {
        (0, 0) => subject.ok(seen),
        (0, _) if is_sticky => {
            subject.warning(format!("{seen}: other users may fill it"), "sudo chmod 0700 /sys/fs/bpf")
        }
        (0, _) => subject.problem(format!("{seen}: other users may detach the filter"), "sudo chmod 0700 /sys/fs/bpf"),
        _ => subject.problem(format!("{seen}, who may detach the filter"), "sudo chown root:root /sys/fs/bpf"),
    };
    let pins = match &of.foreign {
        None => owned.ok("anything pinned below ratelimitd there belongs to root"),
        Some((why, mend)) => owned.problem(why.clone(), mend.clone()),
    };
    vec![mounted, pins]
}
