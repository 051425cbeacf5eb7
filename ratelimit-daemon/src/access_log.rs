//! Access logs as a second count of requests. A thread reads them. Requests beyond the kernel's count are charged to
//! the windows. [`ratelimit_accesslog`] decides the amount.
//!
//! Nothing here waits for a log. The thread notifies the task that owns the datapath when it has read lines. The task
//! then reads the windows of their sources, and charges.

mod batch;
mod charging;
mod reader;
mod rules;
mod shadows;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_accesslog::{Judgement, Outcomes, PeerCheck, Peers, Position, State};
use ratelimit_common::time::Nanos;
use ratelimit_datapath::Datapath;
use ratelimit_policy::desired::{AccessLog, Policy};
use ratelimit_report::snapshot::{AccessLogLines, AccessLogReport, CheckReport};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::batch::{Batch, Counted, Requests};
use self::reader::{Reader, Wanted};
use self::rules::{Rules, Source};
use self::waiting::Waiting;
use super::engine::Engine;
use super::moment::Moment;

/// Interval at which lines that wait are charged, multiplicities are updated and positions are saved. A killed daemon
/// reads the lines behind the saved position again. That charges nothing while the windows exist.
pub(super) const LOGS_EVERY: Duration = Duration::from_secs(1);
/// Name of the state file with the reading position of each log.
const FILE: &str = "access-logs.json";
/// Maximum number of batches processed in one turn of the task, so that turns stay short.
const BATCHES_PER_TURN: usize = 8;
/// Maximum number of clients per log that are known to have had a window.
const WERE_PEERS_MAX: usize = 1 << 16;
/// Number of lines in no known format, without any other line, that show that the log's format is the problem.
const MALFORMED_MIN: u64 = 20;
/// Time after the last report of its end for which a log counts as being at its end.
const TOLD_WITHIN: Duration = Duration::from_secs(3);
/// Maximum time since a log's end was reached. A log that exceeds it is in trouble.
const BEHIND_MAX: Duration = Duration::from_secs(5);

/// Access logs of all rules.
#[derive(Debug, Default)]
pub(super) struct AccessLogs {
    reader: Option<Reader>,
    /// Notified when there is work for [`Engine::reconcile_logs`].
    arrived: Arc<Notify>,
    /// Error of the last start of the reader, if it failed.
    failed: Option<String>,
    logs: BTreeMap<AccessLog, Log>,
    waiting: Waiting,
    rules: Rules,
    /// Positions of the logs. None until the file of an earlier run is read.
    read_to: Option<ReadTo>,
    must_save: bool,
    /// Daemon's uptime when [`LOGS_EVERY`] last began.
    settled_at: Duration,
}

/// Positions of the logs by name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct ReadTo {
    logs: BTreeMap<String, Position>,
}

/// Current state of one log.
#[derive(Debug)]
struct Log {
    state: Option<State>,
    peers: PeerCheck,
    /// Clients that had a live window when one of their lines arrived. Emptied at [`WERE_PEERS_MAX`] clients.
    were_peers: HashSet<IpNet>,
    behind_bytes: Option<u64>,
    /// True if the last read reached its end.
    is_at_end: bool,
    /// True if the log's end was reached in this run. An earlier run may have read the lines before it and charged
    /// their conditions.
    has_caught_up: bool,
    /// Daemon's uptime when the end was last reached.
    at_end: Duration,
}

impl Log {
    /// Returns the time since the log's end was reached. The reader reports an idle log as being at its end each
    /// second.
    fn behind(&self, uptime: Duration) -> Duration {
        let since = uptime.saturating_sub(self.at_end);
        if self.is_at_end && since < TOLD_WITHIN { Duration::ZERO } else { since }
    }

    /// Describes in a clause what is wrong with the log. None if it is read in time.
    fn trouble(&self, uptime: Duration) -> Option<String> {
        if let Some(state) = self.state.as_ref().filter(|state| **state != State::Following) {
            return Some(state.to_string());
        }
        if self.peers.peers() == Peers::Proxied {
            return Some(
                "has addresses that do not connect to this host: a proxy is in front, so it charges nobody".into(),
            );
        }
        let Outcomes { charged, not_a_peer, too_old, in_future, malformed, .. } = self.peers.outcomes();
        // A client can write unreadable lines into a readable log.
        if malformed >= MALFORMED_MIN && charged + not_a_peer + too_old + in_future == 0 {
            return Some(format!(
                "has {malformed} lines in no known format, so it charges nobody; `combined` of nginx and Apache is one \
                 (`ratelimitd replay` shows what cannot be read)"
            ));
        }
        let behind = self.behind(uptime);
        (behind > BEHIND_MAX).then(|| format!("is {} s behind", behind.as_secs()))
    }
}

impl AccessLogs {
    /// Returns true if a reader of logs is running.
    pub(super) const fn are_followed(&self) -> bool {
        self.reader.is_some()
    }

    /// Returns what is notified when [`Engine::reconcile_logs`] is due.
    pub(super) fn arrived(&self) -> Arc<Notify> {
        self.arrived.clone()
    }

    /// Describes what is wrong with the logs, one sentence each.
    pub(super) fn trouble(&self, uptime: Duration) -> Vec<String> {
        let of_logs = self.logs.iter().filter_map(|(name, log)| {
            Some(format!("access log {name} {}; requests are counted as without it", log.trouble(uptime)?))
        });
        let gone = self.reader.as_ref().is_some_and(Reader::is_gone).then(|| "their thread has ended".to_owned());
        let failed = self.failed.clone().or(gone).map(|why| format!("access logs are not read: {why}"));
        failed.into_iter().chain(of_logs).collect()
    }

    /// Forgets clients after their windows were erased: the requests that lines added, and their multiplicities.
    pub(super) fn forget(&mut self, clients: &[IpNet]) {
        self.rules.forget(clients);
        self.waiting.forget(clients);
        // Packets must see the change immediately.
        self.settled_at = Duration::ZERO;
        self.arrived.notify_one();
    }

    /// Adds to a report the requests that logs added to the client's limits.
    pub(super) fn tell_added(&self, report: &mut CheckReport, policy: &Policy, client: IpNet, now: Nanos) {
        for limit in &mut report.limits {
            let Some(rule) = policy.rules.iter().find(|rule| rule.name == limit.rule) else { continue };
            limit.added_from_log = self.rules.added_to(rule, limit, client, now);
        }
    }

    /// Returns a report on each log.
    pub(super) fn reports(&self, policy: &Policy, uptime: Duration) -> Vec<AccessLogReport> {
        let report = |(name, log): (&AccessLog, &Log)| {
            let Outcomes { charged, not_a_peer, proxied, malformed, too_old, in_future, too_long, skipped_bytes } =
                log.peers.outcomes();
            AccessLogReport {
                log: name.to_string(),
                state: log.state.as_ref().map_or_else(|| "is opened".to_owned(), ToString::to_string),
                trouble: log.trouble(uptime),
                behind_seconds: log.behind(uptime).as_secs_f64(),
                behind_bytes: log.behind_bytes,
                lines: AccessLogLines {
                    reconciled: charged,
                    not_a_peer,
                    proxied,
                    malformed,
                    too_old,
                    in_future,
                    too_long,
                },
                skipped_bytes,
                requests_added: self.rules.added_by(policy, name),
                turn_requests_max: self.rules.turns_by(policy, name),
            }
        };
        self.logs.iter().map(report).collect()
    }

    /// Judges lines of a source. Returns the number of those that charge.
    fn judged(&mut self, name: &AccessLog, source: &Source, lines: u64) -> u64 {
        let Some(log) = self.logs.get_mut(name) else { return 0 };
        let mut charging = 0;
        let (is_peer, was_peer) = (source.is_peer(), log.were_peers.contains(&source.client));
        if is_peer && !was_peer {
            if log.were_peers.len() >= WERE_PEERS_MAX {
                log.were_peers.clear();
            }
            log.were_peers.insert(source.client);
        }
        for _ in 0..lines {
            let (judgement, change) = log.peers.judge(is_peer, was_peer);
            charging += u64::from(judgement == Judgement::Charge);
            change.into_iter().for_each(|change| tell_change(name, change));
        }
        charging
    }

    fn log(&mut self, name: &AccessLog, uptime: Duration) -> &mut Log {
        self.logs.entry(name.clone()).or_insert_with(|| Log {
            state: None,
            peers: PeerCheck::default(),
            were_peers: HashSet::new(),
            behind_bytes: None,
            is_at_end: false,
            has_caught_up: false,
            at_end: uptime,
        })
    }
}

/// Returns the logs that rules name, each with the counts that the rules need.
fn wanted(policy: &Policy) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for rule in &policy.rules {
        let conditioned = rule.shadow_limits.iter().filter(|limit| limit.condition.is_some());
        let counts: Vec<Counted> = rule.limits.iter().chain(conditioned).filter_map(Counted::of).collect();
        for log in rule.access_logs.iter().filter(|_| !counts.is_empty()) {
            let at = wanted.iter().position(|of| of.log == *log).unwrap_or_else(|| {
                wanted.push(Wanted { log: log.clone(), counts: Vec::new() });
                wanted.len() - 1
            });
            for count in &counts {
                if !wanted[at].counts.contains(count) {
                    wanted[at].counts.push(*count);
                }
            }
        }
    }
    wanted
}

impl<D: Datapath> Engine<D> {
    /// Charges the requests that access logs have beyond the kernel's count, from the lines read since the last turn.
    pub(super) fn reconcile_logs(&mut self, moment: Moment) {
        for _ in 0..BATCHES_PER_TURN {
            let Some(batch) = self.access_logs.reader.as_ref().and_then(Reader::next) else { break };
            self.reconcile(batch, moment);
        }
        if moment.uptime.saturating_sub(self.access_logs.settled_at) >= LOGS_EVERY {
            self.settle_logs(moment);
        }
    }

    /// Charges the lines that wait, then updates what the kernel reads about logs, and saves the positions.
    pub(super) fn settle_logs(&mut self, moment: Moment) {
        self.access_logs.settled_at = moment.uptime;
        if let Err(error) = self.settle_waiting(moment) {
            tracing::warn!("charge the requests of access logs: {:#}", anyhow::Error::from(error));
        }
        self.renew_multiplicities(moment);
        self.save_positions();
    }

    /// Updates what the kernel reads about logs: multiplicities that changed or expire soon, and the rules with logs
    /// that are read in time.
    fn renew_multiplicities(&mut self, moment: Moment) {
        let Self { datapath, enforced, access_logs, .. } = self;
        let policy = &enforced.desired.policy;
        let mut renewed = datapath.now().and_then(|now| access_logs.rules.renew_multiplicities(datapath, policy, now));
        let in_time = |name: &AccessLog| {
            let log = access_logs.logs.get(name);
            log.is_some_and(|log| log.state.is_some() && log.trouble(moment.uptime).is_none())
        };
        for (at, rule) in policy.rules.iter().enumerate() {
            // If one log is missing or late, the kernel must count the requests itself.
            if !rule.access_logs.is_empty() && rule.access_logs.iter().all(in_time) {
                renewed = renewed.and(datapath.tell_log_is_read(at));
            }
        }
        if let Err(error) = renewed {
            tracing::warn!("tell the packet path which logs are read: {:#}", anyhow::Error::from(error));
        }
    }

    /// Saves the positions of the logs if they changed. No line before them may wait.
    fn save_positions(&mut self) {
        let logs = &mut self.access_logs;
        if !std::mem::take(&mut logs.must_save) {
            return;
        }
        if let Some(read_to) = &logs.read_to
            && let Err(error) = self.host.store.save(FILE, read_to)
        {
            tracing::warn!(
                "save the read positions of the access logs: {error}; a restart begins at the ends of the logs"
            );
        }
    }

    /// Starts the reader, and waits a short time until it has opened the logs. Requests that the kernel counts from
    /// now on have their lines behind the position where reading begins.
    pub(super) fn open_logs(&mut self, moment: Moment) {
        self.follow_logs(moment);
        if let Some(reader) = &self.access_logs.reader {
            reader.wait_until_opened();
        }
    }

    /// Starts and stops the reader as rules come and go.
    pub(super) fn follow_logs(&mut self, moment: Moment) {
        let wanted = wanted(&self.enforced.desired.policy);
        let is_read = self.access_logs.reader.as_ref().map_or(&[][..], |reader| &reader.wanted) == wanted;
        if is_read && self.access_logs.failed.is_none() {
            return;
        }
        // A socket would not deliver again what the last reader took from it.
        for batch in self.access_logs.reader.take().map(Reader::finish).unwrap_or_default() {
            self.reconcile(batch, moment);
        }
        // The lines that wait have the counts of the last reader.
        self.settle_logs(moment);
        let Self { access_logs: logs, host, enforced, .. } = self;
        let mut read_to = logs.read_to.take().unwrap_or_else(|| host.store.load(FILE).unwrap_or_default());
        let names: BTreeSet<&AccessLog> = wanted.iter().map(|of| &of.log).collect();
        let is_named = |name: &String| names.iter().any(|of| of.to_string() == *name);
        read_to.logs.retain(|name, _| is_named(name));
        logs.logs.retain(|name, _| names.contains(name));
        logs.rules.retain(&enforced.desired.policy);
        for name in names {
            let log = logs.log(name, moment.uptime);
            (log.is_at_end, log.at_end) = (false, moment.uptime);
        }
        logs.failed = None;
        if !wanted.is_empty() {
            let started = Reader::start(wanted, &read_to.logs, logs.arrived.clone());
            logs.failed = started.as_ref().err().map(ToString::to_string);
            logs.reader = started.ok();
        }
        logs.read_to = Some(read_to);
    }

    /// Charges the requests of a batch beyond the kernel's count. Failed charges are not repeated.
    fn reconcile(&mut self, batch: Batch, moment: Moment) {
        let log = self.access_logs.log(&batch.log, moment.uptime);
        for event in &batch.events {
            tracing::info!("access log {}: {event}", batch.log);
        }
        if log.state.as_ref() != Some(&batch.state) {
            let state = &batch.state;
            if *state == State::Following {
                tracing::info!("access log {} is followed", batch.log);
            } else {
                tracing::warn!("access log {} {state}; requests are counted as without it", batch.log);
            }
        }
        log.peers.add_outcomes(batch.outcomes);
        let charges_conditions = log.has_caught_up;
        // A log that cannot be read has not reached its end.
        log.has_caught_up |= batch.is_at_end && batch.state == State::Following;
        (log.state, log.behind_bytes) = (Some(batch.state.clone()), batch.behind_bytes);
        log.is_at_end = batch.is_at_end;
        if batch.is_at_end {
            log.at_end = moment.uptime;
        }
        if let Err(error) = self.charge_batch(&batch, charges_conditions, moment) {
            tracing::warn!("charge the requests of access log {}: {:#}", batch.log, anyhow::Error::from(error));
        }
        if let Some(position) = batch.position {
            self.access_logs.read_to.get_or_insert_default().logs.insert(batch.log.to_string(), position);
            self.access_logs.must_save = true;
        }
    }
}

fn tell_change(log: &AccessLog, to: Peers) {
    match to {
        Peers::Proxied => tracing::warn!(
            "access log {log}: most of its addresses do not connect to this host, as behind a proxy. It charges nobody \
             until that changes; limit at the proxy, or have it write the address that connects"
        ),
        Peers::Direct => tracing::info!("access log {log}: its addresses connect to this host, so it charges again"),
    }
}

/// Address in a log, and its requests.
type Logged = (IpAddr, Requests);

#[cfg(test)]
mod tests {
    use ratelimit_accesslog::FilePosition;

    use super::*;
    use crate::store::Store;

    #[test]
    fn a_log_without_a_line_in_a_known_format_is_in_trouble() {
        let mut logs = AccessLogs::default();
        let log = logs.log(&AccessLog::File("/log".into()), Duration::ZERO);
        (log.state, log.is_at_end) = (Some(State::Following), true);
        log.peers.add_outcomes(Outcomes { malformed: MALFORMED_MIN - 1, ..Outcomes::default() });
        assert_eq!(log.trouble(Duration::ZERO), None);
        log.peers.add_outcomes(Outcomes { malformed: 1, ..Outcomes::default() });
        assert!(log.trouble(Duration::ZERO).unwrap().contains("20 lines in no known format"));
        log.peers.add_outcomes(Outcomes { too_old: 1, ..Outcomes::default() });
        assert_eq!(log.trouble(Duration::ZERO), None);
    }

    #[test]
    fn positions_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        assert_eq!(store.load::<ReadTo>(FILE), None);
        let file = FilePosition {
            device: u64::MAX,
            inode: 7,
            offset: 1 << 60,
            is_mid_line: true,
            head_len: 256,
            head_hash: u64::MAX - 1,
        };
        let position = Position { files: vec![file], modified_ns: 1_800_000_000_000_000_000 };
        for logs in [
            BTreeMap::from([("/var/log/nginx/access.log".into(), position), ("other".into(), Position::default())]),
            BTreeMap::new(),
        ] {
            let read_to = ReadTo { logs };
            store.save(FILE, &read_to).unwrap();
            assert_eq!(store.load(FILE), Some(read_to));
        }
    }
}
