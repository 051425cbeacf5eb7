//! Messages for a missing daemon: the filters that an earlier one left in force, and the commands to type.

use std::time::Duration;

use jiff::Timestamp;
use ratelimit_datapath::{Lapse, Left, Orphans};
use ratelimit_policy::config::duration;

/// Instructions if no daemon answers.
const START: [&str; 2] = [
    "start one: `systemctl start ratelimitd`, or `sudo ratelimitd --iface IF --limit N/DUR`",
    "if its socket is elsewhere: --socket PATH",
];

/// Returns the time at which the daemon of these pins ended; `None` if it is not known.
pub fn since(left: &Left, now: Timestamp) -> Option<Timestamp> {
    now.checked_sub(left.alone?).ok()
}

/// Returns for example `STILL ENFORCING on eth0 without a daemon since 2026-01-01 10:00:00 UTC (3m), in dry run in
/// 57m`, or says that nothing is dropped any more.
pub fn still_enforcing(left: &Left, now: Timestamp) -> String {
    let since = since(left, now).zip(left.alone).map_or_else(String::new, |(since, alone)| {
        format!(" since {} ({})", since.strftime("%F %T UTC"), seconds(alone))
    });
    let interfaces = left.interfaces();
    match left.lapse {
        None => format!("STILL ENFORCING on {interfaces} without a daemon{since}"),
        Some(Lapse::In(after)) => {
            format!("STILL ENFORCING on {interfaces} without a daemon{since}, in dry run in {}", seconds(after))
        }
        Some(Lapse::Since(ago)) => format!(
            "NOTHING IS DROPPED on {interfaces}: the filter is in dry run for {}, without a daemon{since}",
            seconds(ago)
        ),
    }
}

/// Formats a duration in whole seconds.
fn seconds(duration: Duration) -> String {
    duration::short(u64::try_from(Duration::from_secs(duration.as_secs()).as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the words that precede an error, if a filter still enforces.
pub(super) fn lead(orphans: &Orphans) -> String {
    match orphans {
        Orphans::Enforcing(left) => still_enforcing(left, Timestamp::now()) + ": ",
        Orphans::Nothing | Orphans::Held(_) | Orphans::Hidden(_) | Orphans::Foreign(_) => String::new(),
    }
}

/// Returns the remedies, one clause each.
pub(super) fn help(orphans: &Orphans) -> Vec<String> {
    match orphans {
        Orphans::Nothing => START.map(str::to_owned).to_vec(),
        Orphans::Enforcing(left) => {
            let pins: Vec<_> = left.links.iter().map(|(_, path)| path.display().to_string()).collect();
            let start = if left.is_taken_over() {
                "start the daemon, which takes the filter over with its counters: sudo systemctl start ratelimitd"
            } else {
                "it belongs to another version, so this one cannot take it over"
            };
            vec![
                format!(
                    "an earlier daemon left it pinned, and it stays in force as long as there is {}",
                    pins.join(", ")
                ),
                start.to_owned(),
                "or detach it: sudo ratelimitd detach".to_owned(),
                format!("without this program, detach it by: sudo rm -r {}", left.root.display()),
            ]
        }
        Orphans::Held(process) => {
            vec![format!("a daemon runs as process {process} with another socket; say where: --socket PATH")]
        }
        Orphans::Foreign(why) => START.map(str::to_owned).into_iter().chain([why.clone()]).collect(),
        Orphans::Hidden(root) => {
            let look = format!("only root can see whether a filter is still pinned in {}: use sudo", root.display());
            START.map(str::to_owned).into_iter().chain([look]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_datapath::PinnedLayout;

    #[test]
    fn an_orphaned_filter_is_reported_with_its_place_time_and_remedy() {
        let left = |dir: &str, layout, alone| Left {
            root: "/sys/fs/bpf/ratelimitd".into(),
            dir: dir.into(),
            layout,
            links: vec![("eth0".into(), format!("{dir}/link-eth0").into()), ("eth1".into(), "link-eth1".into())],
            alone,
            lapse: None,
        };
        let now = "2026-01-01T10:03:00Z".parse().unwrap();
        let own = left("/sys/fs/bpf/ratelimitd/v2", PinnedLayout::Own, Some(Duration::from_millis(180_500)));
        let said = "STILL ENFORCING on eth0, eth1 without a daemon since 2026-01-01 09:59:59 UTC (3m)";
        assert_eq!(still_enforcing(&own, now), said);
        assert_eq!(
            still_enforcing(&Left { alone: None, ..own.clone() }, now),
            "STILL ENFORCING on eth0, eth1 without a daemon"
        );
        let lapses = |lapse| still_enforcing(&Left { lapse: Some(lapse), ..own.clone() }, now);
        assert_eq!(lapses(Lapse::In(Duration::from_millis(3_420_900))), format!("{said}, in dry run in 57m"));
        let over = "NOTHING IS DROPPED on eth0, eth1: the filter is in dry run for 2m, without a daemon since \
                    2026-01-01 09:59:59 UTC (3m)";
        assert_eq!(lapses(Lapse::Since(Duration::from_secs(120))), over);
        let help = |left: Left| help(&Orphans::Enforcing(left)).join("\n");
        for words in ["link-eth0, link-eth1", "systemctl start ratelimitd", "sudo ratelimitd detach", "sudo rm -r /sys"]
        {
            assert!(help(own.clone()).contains(words), "{}", help(own));
        }
        let other = help(left("/sys/fs/bpf/ratelimitd/v0", PinnedLayout::Unknown, None));
        assert!(!other.contains("systemctl start") && other.contains("another version"), "{other}");
    }
}
