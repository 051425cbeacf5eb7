//! Checks of the surroundings: the administrator's access, connection tracking, proxies and clocks.

use std::net::IpAddr;
use std::time::Duration;

use ratelimit_policy::config::Safety;
use ratelimit_report::snapshot::TALKER_ADVICE;

use super::service::mend_of_daemon;
use crate::facts::{Clock, Daemon, Facts};
use crate::finding::{Finding, Subject};

const ABOUT: &str = "host";
const CLOCK: &str = "clock";

/// Percentage of the connection-tracking table from which on it is nearly full.
const CONNTRACK_PERCENT: u64 = 80;
/// Difference in seconds between the daemon's clock and the host's that no load explains.
const CLOCK_APART: f64 = 5.0;
/// Minimum duration of a suspension that is reported.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);

pub(crate) fn all(facts: &Facts) -> Vec<Finding> {
    let safety = facts.file.config().map_or_else(Safety::default, |config| config.safety);
    let mut findings = vec![
        ssh(facts.around.ssh.map(|session| session.peer), safety),
        gateways(&facts.around.gateways, safety),
        resolvers(&facts.around.resolvers, safety),
        conntrack(facts.conntrack),
        proxy(facts),
    ];
    findings.extend(clock(&facts.clock, &facts.daemon));
    findings
}

fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn ssh(peer: Option<IpAddr>, safety: Safety) -> Finding {
    let subject = Subject::new(ABOUT, "host.ssh", "a limit on its port could cut off the session that could fix it");
    match (peer, safety.exempt_ssh_peer) {
        (None, _) => subject.ok("this does not seem to be an SSH session"),
        (Some(peer), true) => {
            subject.ok(format!("the peer of this SSH session, {peer}, is exempt if the daemon is started from it"))
        }
        (Some(peer), false) => subject.warning(
            format!("the peer of this SSH session, {peer}, is not exempt: exempt_ssh_peer is false"),
            format!("sudo ratelimitd allow {peer} --for permanent"),
        ),
    }
}

fn gateways(gateways: &[IpAddr], safety: Safety) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "host.gateway",
        "all traffic of the host goes through it, and forged packets may carry its address",
    );
    match (gateways, safety.exempt_gateway) {
        ([], _) => subject.warning("there is no default route by a gateway", "ip route; ip -6 route"),
        (gateways, true) => subject.ok(format!("the default gateway {} is exempt", listed(gateways))),
        (gateways, false) => subject.warning(
            format!("the default gateway {} is not exempt: exempt_gateway is false", listed(gateways)),
            "remove exempt_gateway from [safety] in the configuration",
        ),
    }
}

fn resolvers(resolvers: &[IpAddr], safety: Safety) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "host.resolvers",
        "answers of name servers are traffic too, and forged packets may carry their addresses",
    );
    match (resolvers, safety.exempt_resolvers) {
        ([], _) => subject.ok("no name server beyond this host is named"),
        (resolvers, true) => subject.ok(format!("the name servers {} are exempt", listed(resolvers))),
        (resolvers, false) => subject.warning(
            format!("the name servers {} are not exempt: exempt_resolvers is false", listed(resolvers)),
            "remove exempt_resolvers from [safety] in the configuration",
        ),
    }
}

fn conntrack(of: Option<(u64, u64)>) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "host.conntrack",
        "a full table drops new connections of everybody, after the limiter has passed them",
    );
    match of {
        None => subject.ok("the kernel tracks no connections here"),
        Some((entries, room)) if entries.saturating_mul(100) >= room.saturating_mul(CONNTRACK_PERCENT) => subject
            .warning(
                format!("the kernel tracks {entries} connections of {room} that it has room for"),
                format!("sudo sysctl net.netfilter.nf_conntrack_max={}", room.saturating_mul(2)),
            ),
        Some((entries, room)) => {
            subject.ok(format!("the kernel tracks {entries} connections, and has room for {room}"))
        }
    }
}

fn proxy(facts: &Facts) -> Finding {
    let subject = Subject::new(
        ABOUT,
        "host.proxy",
        "behind a proxy, a CDN or a load balancer all users are one source, and share one limit",
    );
    match &facts.daemon {
        Daemon::Answers(snapshot, _) => match snapshot.top_talkers.as_slice() {
            [] => subject.ok("no source sends most of what a rule counts"),
            [talker, ..] => subject.warning(
                format!("rule {}: {} % of what it counts comes from {}", talker.rule, talker.percent, talker.source),
                format!("{TALKER_ADVICE}: sudo ratelimitd allow {}", talker.source),
            ),
        },
        Daemon::Silent(_) | Daemon::Hangs(_) | Daemon::Unknown(_) => subject.unknown(
            "only traffic shows whether a proxy is in front, and no daemon reports any",
            mend_of_daemon(facts),
        ),
    }
}

fn clock(of: &Clock, daemon: &Daemon) -> Vec<Finding> {
    let subject = Subject::new(
        CLOCK,
        "clock.synchronised",
        "buckets begin at wall-clock time; hosts of a fleet share them only if their clocks agree",
    );
    let synchronised = match of.is_synchronised {
        Ok(true) => subject.ok("the wall clock is synchronised"),
        Ok(false) => {
            subject.warning("the wall clock is not synchronised", "timedatectl set-ntp true, or install chrony")
        }
        Err(ref why) => {
            subject.unknown(format!("cannot tell whether the wall clock is synchronised: {why}"), "timedatectl")
        }
    };
    let subject = Subject::new(
        CLOCK,
        "clock.suspended",
        "the packet path's clock stands still while the host sleeps: the daemon moves it ahead by as much",
    );
    let suspended = match of.suspended {
        Ok(suspended) if suspended < SUSPENDED_MIN => subject.ok("the host was not suspended since it started"),
        Ok(suspended) => subject.ok(format!(
            "the host was suspended for {} s since it started; a running daemon continues at the current time",
            suspended.as_secs()
        )),
        Err(ref why) => subject.unknown(format!("cannot tell whether the host was suspended: {why}"), "uptime"),
    };
    let subject =
        Subject::new(CLOCK, "clock.apart", "the daemon set its clock to the wall clock once, when its maps were made");
    let apart = match daemon {
        Daemon::Answers(_, apart) if apart.abs() >= CLOCK_APART => Some(subject.warning(
            format!("the daemon's clock and the wall clock are {:.0} s apart: one was stepped", apart.abs()),
            "sudo ratelimitd detach, then sudo systemctl restart ratelimitd: counters are reset",
        )),
        Daemon::Answers(..) => Some(subject.ok("the daemon's clock is that of the host")),
        Daemon::Silent(_) | Daemon::Hangs(_) | Daemon::Unknown(_) => None,
    };
    [synchronised, suspended].into_iter().chain(apart).collect()
}
