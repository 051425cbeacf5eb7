//! Checks of the service: its installed unit against the shipped one, the daemon, leftovers of an earlier one, and its
//! state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use ratelimit_control::orphan::still_enforcing;
use ratelimit_datapath::Orphans;
use ratelimit_kernel::pins;
use ratelimit_policy::config::amount;

use super::AS_ROOT;
use crate::facts::{ConfigFile, Daemon, Facts, StateDir, Unit};
use crate::finding::{Finding, Subject};

const ABOUT: &str = "service";

/// Text of the shipped unit.
pub(crate) const SHIPPED: &str = include_str!("../../../dist/systemd/ratelimitd.service");

/// Settings that may differ from the shipped unit: the program's path, its restarts, and the memory of its
/// configuration.
const MAY_DIFFER: [&str; 9] = [
    "MemoryMax",
    "ExecStart",
    "ExecReload",
    "Restart",
    "RestartSec",
    "TimeoutStopSec",
    "WatchdogSec",
    "RestartPreventExitStatus",
    "NotifyAccess",
];

/// Free bytes for state below which there is a warning, and below which the history may soon fail.
const ROOM_FEW: u64 = 1 << 30;
const ROOM_NONE: u64 = 64 << 20;

pub(crate) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = unit(&facts.unit);
    findings.extend(shown(&facts.unit));
    findings.extend(daemon(facts));
    findings.push(state_dir(&facts.state_dir));
    findings
}

/// Returns the values of each setting of `[Service]`, in order.
fn settings(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut is_service = false;
    let mut settings: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_service = line == "[Service]";
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_service && !line.starts_with(['#', ';']))
        {
            settings.entry(name.trim()).or_default().push(value.trim());
        }
    }
    settings
}

fn unit(of: &Unit) -> Vec<Finding> {
    let subject = Subject::new(
        ABOUT,
        "service.unit",
        "the shipped unit removes all privileges that the daemon does not need; missing settings give them back",
    );
    if !of.is_systemd {
        return vec![subject.ok("systemd does not run here, so no unit is checked")];
    }
    let Some((path, text)) = &of.file else {
        return vec![
            subject.warning("no unit ratelimitd.service is installed", "install the package, or cargo xtask install"),
        ];
    };
    let shipped = settings(SHIPPED);
    let installed = settings(text);
    let differs = |name: &&str| !MAY_DIFFER.contains(name) && installed.get(*name) != shipped.get(*name);
    let mut names: Vec<&str> = shipped.keys().copied().filter(differs).collect();
    names.extend(installed.keys().copied().filter(|name| !MAY_DIFFER.contains(name) && !shipped.contains_key(name)));
    let path = path.display();
    let file = match names.as_slice() {
        [] => subject.ok(format!("{path} has the restrictions of the shipped unit")),
        names => subject.warning(
            format!("{path} differs from the shipped unit: {}", names.join(", ")),
            "install the unit of this version, then sudo systemctl daemon-reload",
        ),
    };
    let dropped = Subject::new(ABOUT, "service.drop_in", "a drop-in may give back privileges that the unit removes");
    let drop_in = |(path, text): &(std::path::PathBuf, String)| {
        let (path, settings) = (path.display(), settings(text));
        let touched: Vec<&str> = settings.keys().copied().filter(|name| !MAY_DIFFER.contains(name)).collect();
        match touched.as_slice() {
            [] => dropped.ok(format!("{path} changes no restriction")),
            names => dropped.warning(
                format!("{path} sets {}", names.join(", ")),
                "systemd-analyze security ratelimitd; systemctl cat ratelimitd",
            ),
        }
    };
    [file].into_iter().chain(of.drop_ins.iter().map(drop_in)).collect()
}

/// Checks what systemd reports about the service.
fn shown(of: &Unit) -> Vec<Finding> {
    let value = |name: &str| of.shown.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    let mut findings = Vec::new();
    let subject = Subject::new(
        ABOUT,
        "service.state",
        "if the service does not run, only a filter that was left pinned limits packets",
    );
    if let Some(state) = value("ActiveState") {
        let result = value("Result").unwrap_or_default();
        findings.push(match state {
            "active" | "reloading" => subject.ok(format!("the service is {state}")),
            "failed" => subject.problem(
                format!("the service has failed: {result}"),
                "journalctl -u ratelimitd -n 50, then sudo systemctl restart ratelimitd",
            ),
            _ => subject.warning(format!("the service is {state}"), "sudo systemctl enable --now ratelimitd"),
        });
    }
    let subject = Subject::new(ABOUT, "service.restarts", "the log names the reason why a daemon ended by itself");
    if let Some(restarts) = value("NRestarts").and_then(|of| of.parse::<u64>().ok()) {
        findings.push(match restarts {
            0 => subject.ok("systemd did not have to restart it"),
            _ => subject
                .warning(format!("systemd has restarted it {restarts} times"), "journalctl -u ratelimitd -p warning"),
        });
    }
    let subject = Subject::new(
        ABOUT,
        "service.reload_needed",
        "systemd runs the unit as it last read it, not as the file is now",
    );
    if value("NeedDaemonReload") == Some("yes") {
        findings
            .push(subject.warning("the unit file has changed since systemd read it", "sudo systemctl daemon-reload"));
    }
    findings
}

/// Returns the command that starts the daemon as it is installed here.
fn start(facts: &Facts) -> String {
    if facts.unit.file.is_some() {
        return "sudo systemctl start ratelimitd".to_owned();
    }
    match &facts.file {
        ConfigFile::Missing(_) => "sudo ratelimitd --iface IF --limit N/DUR".to_owned(),
        ConfigFile::Unreadable(path, _) | ConfigFile::Bad(path, _) | ConfigFile::Good(path, ..) => {
            format!("sudo ratelimitd run --config {}", path.display())
        }
    }
}

/// Returns the command that makes a daemon answer.
pub(super) fn mend_of_daemon(facts: &Facts) -> String {
    match &facts.daemon {
        Daemon::Hangs(_) if facts.unit.file.is_some() => "sudo systemctl restart ratelimitd".to_owned(),
        Daemon::Hangs(_) => "end it with sudo kill -KILL PID, and start it again".to_owned(),
        Daemon::Silent(Orphans::Held(_)) => "ratelimitd doctor --socket PATH".to_owned(),
        Daemon::Silent(_) => start(facts),
        Daemon::Unknown(_) | Daemon::Answers(..) => AS_ROOT.to_owned(),
    }
}

fn daemon(facts: &Facts) -> Vec<Finding> {
    let subject = Subject::new(
        ABOUT,
        "service.daemon",
        "without a daemon the enforced policy does not change, and no trial, list or ban is reported",
    );
    let mend = mend_of_daemon(facts);
    match &facts.daemon {
        Daemon::Answers(snapshot, _) => {
            let attention = Subject::new(ABOUT, "service.attention", "`ratelimitd stats` shows it first");
            let unprotected = Subject::new(ABOUT, "service.attached", "an interface without the filter is not limited");
            let away = snapshot.interfaces.iter().filter(|of| !of.attached).map(|of| {
                let why = of.problem.as_deref().unwrap_or("it is not attached");
                unprotected
                    .problem(format!("NOT PROTECTED: {}: {why}", of.name), format!("ratelimitd doctor {}", of.name))
            });
            let mut findings = vec![subject.ok(format!("a daemon answers, version {}", snapshot.version))];
            findings.extend(away);
            findings.extend(snapshot.attention.iter().map(|line| attention.warning(line.clone(), "ratelimitd stats")));
            findings
        }
        Daemon::Silent(Orphans::Nothing) => vec![subject.warning("no daemon answers, and no filter is pinned", mend)],
        Daemon::Silent(Orphans::Enforcing(left)) => {
            vec![subject.problem(
                still_enforcing(left, Timestamp::now()),
                if left.is_taken_over() {
                    format!("{mend}; or sudo ratelimitd detach, to remove the filter")
                } else {
                    "sudo ratelimitd detach: it is another version's".to_owned()
                },
            )]
        }
        Daemon::Silent(Orphans::Held(process)) => {
            vec![subject.warning(format!("a daemon runs as process {process} with another socket"), mend)]
        }
        Daemon::Silent(Orphans::Hidden(root)) => {
            vec![subject.unknown(format!("no daemon answers, and only root may look into {}", root.display()), AS_ROOT)]
        }
        Daemon::Silent(Orphans::Foreign(why)) => {
            // The check of the BPF file system knows the command that corrects it.
            let foreign = facts.bpffs.as_ref().ok().and_then(|of| of.foreign.as_ref());
            let mend =
                foreign.map_or_else(|| format!("sudo rm -r {}, then start again", pins::ROOT), |of| of.1.clone());
            vec![subject.problem(format!("no daemon answers, and {why}"), mend)]
        }
        Daemon::Hangs(why) => vec![
            subject.problem(format!("{why}: it hangs; packets are still limited, but nothing can be changed"), mend),
        ],
        Daemon::Unknown(why) => vec![subject.unknown(format!("the daemon cannot be asked: {why}"), AS_ROOT)],
    }
}

fn state_dir(of: &StateDir) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "service.room",
        "the history and the changes by commands are stored there; packets are limited even without it",
    );
    let path = of.path.display();
    match of.free {
        None => subject.ok(format!("{path} is made at the first start")),
        Some(free) if free < ROOM_NONE => subject
            .problem(format!("{} are free in {path}", amount::rounded(free)), format!("df -h {path}; make room there")),
        Some(free) if free < ROOM_FEW => subject
            .warning(format!("{} are free in {path}", amount::rounded(free)), format!("df -h {path}; make room there")),
        Some(free) => subject.ok(format!("{} are free in {path}", amount::rounded(free))),
    }
}
