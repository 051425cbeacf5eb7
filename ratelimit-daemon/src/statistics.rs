//! Reports on the datapath: snapshots, rates, the status line, and the totals at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::Instant;

use super::engine::Engine;
use super::hold::Hold;
use super::journal::Done;
use super::links::Links;
use super::moment::Moment;
use super::trial::Running;
use ratelimit_control::proto::{Problem, Stats};
use ratelimit_datapath::{Ban, Datapath, DatapathError, InterfaceReading, Reading, Tallies};
use ratelimit_report::snapshot::{
    Census, Members, Parts, Sample, Samples, Snapshot, StaleList, TOP_DEFAULT, TOP_MAX, TopGroup, TopSource, Traffic,
    Volume,
};

/// Cached readings and snapshot, for rates and for repeated requests.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    samples: Samples,
    /// Newest snapshot, and the start of its reading.
    newest: Option<(Instant, Arc<Snapshot>)>,
    /// Packets that earlier runs dropped or would have dropped. None if counters could not be read.
    done_before: Option<Volume>,
}

impl Statistics {
    /// Stores the counters from which this run's totals start.
    pub(super) fn begin(&mut self, reading: Option<&Reading>) {
        self.done_before = reading.map(volume);
    }

    /// Adds a reading for the computation of rates.
    pub(super) fn sample(&mut self, reading: &Reading, uptime: Duration) {
        self.samples.push(Sample::of(reading, uptime));
    }

    /// Invalidates the cached snapshot after a change.
    pub(super) fn outdate(&mut self) {
        self.newest = None;
    }

    /// Returns the totals of this run. None if counters cannot be read now or could not be read at the start.
    pub(super) fn done(&self, now: Option<&Reading>, within: Duration) -> Option<Done> {
        let (now, before) = now.map(volume).zip(self.done_before)?;
        Some(Done {
            dropped: now.dropped.saturating_sub(before.dropped),
            would_drop: now.would_drop.saturating_sub(before.would_drop),
            within,
        })
    }

    /// Returns the newest snapshot if its reading began after `since`.
    fn since(&self, since: Instant) -> Option<Arc<Snapshot>> {
        let (began, snapshot) = self.newest.as_ref()?;
        (*began > since).then(|| Arc::clone(snapshot))
    }
}

impl<D: Datapath> Engine<D> {
    /// Returns the problems of interfaces: not attached, or counting packets that another interface has counted.
    fn interface_problems(&self, reading: &Reading) -> Vec<(String, String)> {
        let attached = attached_names(reading);
        let away = self.watched.links.away_names().filter(|(name, _)| !attached.contains(name));
        let away = away.map(|(name, why)| (name.clone(), why.clone()));
        away.chain(self.watched.paths.counted_twice(&attached).map(|(name, why)| (name.clone(), why))).collect()
    }

    /// Returns a snapshot from a reading that began after `asked.since`. One reading thus answers all waiting requests
    /// that ask for the default number of sources.
    pub(super) fn stats(&mut self, asked: &Stats, moment: Moment) -> Result<Arc<Snapshot>, Problem> {
        if let Some(snapshot) = self.statistics.since(asked.since).filter(|_| asked.sources.is_none()) {
            return Ok(snapshot);
        }
        let top_max = asked.sources.map_or(TOP_DEFAULT, |sources| sources.min(TOP_MAX));
        let mut snapshot = self.snapshot(moment, top_max).map_err(Problem::datapath)?;
        snapshot.attention = (self.host.attention)(&snapshot);
        let snapshot = Arc::new(snapshot);
        if asked.sources.is_none() {
            self.statistics.newest = Some((moment.at, Arc::clone(&snapshot)));
        }
        Ok(snapshot)
    }

    fn snapshot(&mut self, moment: Moment, top_max: usize) -> Result<Snapshot, DatapathError> {
        let mut reading = self.datapath.read()?;
        let policy = &self.enforced.desired.policy;
        add_awaited(&mut reading, &self.watched.links, policy.rules.len());
        let mut census = Census::new(policy, reading.now, top_max);
        self.datapath.visit_sources(&mut |source| census.visit(&source))?;
        let mut tracked = census.finish();
        let bans = self.datapath.bans()?;
        let mut top = Vec::new();
        let leaders = std::mem::take(&mut tracked.leaders);
        let windows = self.datapath.sources(&leaders.iter().map(|source| source.addr()).collect::<Vec<_>>())?;
        let mut bans_of: HashMap<IpNet, Vec<Ban>> = HashMap::new();
        bans.iter().for_each(|ban| bans_of.entry(ban.client).or_default().push(*ban));
        for (source, windows) in leaders.into_iter().zip(windows) {
            let bans = bans_of.get(&policy.client(source.addr())).map_or(&[][..], Vec::as_slice);
            top.extend(TopSource::of(policy, reading.now, source, &windows, bans));
        }
        let mut members = Members::of_windows(policy, reading.now, &tracked.groups);
        if !members.is_empty() {
            self.datapath.visit_sources(&mut |source| members.visit(&source))?;
        }
        let groups = TopGroup::all(policy, reading.now, &tracked.groups, &members);
        let snapshot = Snapshot::build(Parts {
            reading: &reading,
            tracked,
            top: TopSource::rank(top),
            policy,
            samples: &self.statistics.samples,
            uptime: moment.uptime,
            version: env!("CARGO_PKG_VERSION"),
            config: self.trials.last_reload.clone(),
        });
        let left = |trial: &Running| Duration::from_nanos(trial.until.0.saturating_sub(reading.now.0)).as_secs_f64();
        let snapshot = snapshot.with_problems_and_bans(
            &self.interface_problems(&reading),
            &by_rule(&bans, policy.rules.len()),
            &self.watched.would_bans.counts(policy, reading.now),
        );
        Ok(Snapshot {
            hold: self.overrides.hold.as_ref().map(Hold::report),
            fallen_back: self.overrides.breaker.tripped().map(str::to_owned).collect(),
            confirm_within_seconds: self.trials.pending.as_ref().map(left),
            top_talkers: self.watched.talkers.top_talkers().to_vec(),
            connections: self.closer.total(),
            history: self.journal.past.health(),
            fleet: self.fleet_seen(reading.now, moment),
            lists: self.watched.lists.reports(&self.enforced.config.list_files),
            list_entries_passed_over: self.watched.lists.passed_over(),
            unkept: self.unkept_words(),
            groups,
            access_logs: self.access_logs.reports(policy, moment.uptime),
            stale_lists: self.watched.lists.stale().map(|(path, why)| StaleList::new(path, why)).collect(),
            ..snapshot
        })
    }
}

/// Returns the names of the attached interfaces.
pub(super) fn attached_names(reading: &Reading) -> Vec<String> {
    reading.interfaces.iter().filter(|read| read.attached.is_some()).map(|read| read.name.clone()).collect()
}

/// Returns the status line that `systemctl status` shows.
pub(super) fn status_line(reading: &Reading, problems: &[String]) -> String {
    let attached = |read: &InterfaceReading| read.attached.map(|as_is| format!("{} ({})", read.name, as_is.label()));
    let attached: Vec<_> = reading.interfaces.iter().filter_map(attached).collect();
    let mut parts = Vec::new();
    if !problems.is_empty() {
        parts.push(format!("NOT PROTECTED: {}", problems.join("; ")));
    }
    if !attached.is_empty() {
        let sum = volume(reading);
        parts.push(format!(
            "attached to {}; packets passed {}, dropped {}, would drop {}",
            attached.join(", "),
            sum.passed,
            sum.dropped,
            sum.would_drop
        ));
    }
    parts.join("; ")
}

/// Adds interfaces that were never present since the start. The datapath does not know them.
fn add_awaited(reading: &mut Reading, links: &Links, rules: usize) {
    for (name, _) in links.away_names() {
        if !reading.interfaces.iter().any(|read| read.name == *name) {
            let rules = vec![Tallies::default(); rules];
            let unruled = Tallies::default();
            reading.interfaces.push(InterfaceReading {
                name: name.clone(),
                attached: None,
                xdp_holder: None,
                unruled,
                rules,
            });
        }
    }
    reading.interfaces.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Returns the number of bans of each rule.
fn by_rule(bans: &[Ban], rules: usize) -> Vec<u64> {
    let mut counts = vec![0; rules];
    for ban in bans {
        if let Some(count) = counts.get_mut(ban.rule) {
            *count += 1;
        }
    }
    counts
}

/// Returns the packets of all interfaces since their counters began.
fn volume(reading: &Reading) -> Volume {
    let all = reading.interfaces.iter().map(|read| Traffic::on(read).packets);
    all.fold(Volume::default(), |sum, of| Volume {
        received: sum.received.saturating_add(of.received),
        passed: sum.passed.saturating_add(of.passed),
        dropped: sum.dropped.saturating_add(of.dropped),
        would_drop: sum.would_drop.saturating_add(of.would_drop),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_common::layout::Tally;
    use ratelimit_common::verdict::Reason;

    fn reading(passed: u64, dropped: u64) -> Reading {
        let tallies = [(Reason::WithinLimit, passed), (Reason::OverLimit, dropped)];
        let tallies = tallies.map(|(reason, packets)| (reason, Tally { packets, bytes: 0 }));
        let interface = InterfaceReading {
            name: "eth0".into(),
            attached: Some(ratelimit_datapath::XdpMode::Native.into()),
            xdp_holder: None,
            unruled: Tallies::default(),
            rules: vec![Tallies(tallies.to_vec())],
        };
        Reading { interfaces: vec![interface], ..Reading::fixture() }
    }

    #[test]
    fn drops_of_earlier_runs_are_not_counted_as_this_runs() {
        let mut statistics = Statistics::default();
        statistics.begin(Some(&reading(10, 7)));
        let within = Duration::from_secs(60);
        let done = statistics.done(Some(&reading(30, 12)), within);
        assert_eq!(done, Some(Done { dropped: 5, would_drop: 0, within }));
        assert_eq!(statistics.done(None, within), None);
        statistics.begin(None);
        assert_eq!(statistics.done(Some(&reading(30, 12)), within), None, "what was before is unknown");
    }

    #[test]
    fn the_status_line_says_what_is_wrong_before_anything_else() {
        let reading = reading(30, 12);
        let line = |problems: &[String]| status_line(&reading, problems);
        assert_eq!(line(&[]), "attached to eth0 (native); packets passed 30, dropped 12, would drop 0");
        assert_eq!(
            line(&["eth0 is gone".into(), "so is eth1".into()]),
            "NOT PROTECTED: eth0 is gone; so is eth1; attached to eth0 (native); packets passed 30, dropped 12, would drop 0"
        );
    }
}
