//! Verdicts on packets and their reasons, for `check`, `explain` and `list`.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::engine::Engine;
use super::hold::Hold;
use super::moment::Moment;
use super::orders::rule_named;
use ratelimit_control::proto::{Check, CheckPrefix, Problem};
use ratelimit_control::{Answer, Ask, Call, Defer, Reply};
use ratelimit_datapath::{Ban, Datapath};
use ratelimit_fleet::tracked::Subject;
use ratelimit_policy::access::Entry;
use ratelimit_policy::config::file::read_list;
use ratelimit_policy::config::listing::{Listing, WrittenAt, places};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{Access, Grant, Policy, Sent};
use ratelimit_report::snapshot::{
    self, Background, CheckLimit, CheckReport, Clocks, ExplainReport, ListFilter, ListParts, ListReport, Members,
    PrefixParts, PrefixReport, TopGroup, TopSource, Within,
};

impl<D: Datapath> Engine<D> {
    /// Reports the standing of one address. Accepts the IPv6 form of an IPv4 address, which no packet has.
    pub(super) fn check(&mut self, address: IpAddr, moment: Moment) -> Result<CheckReport, Problem> {
        let address = address.to_canonical();
        let clocks = self.clocks(moment)?;
        let windows = self.datapath.source(address).map_err(Problem::datapath)?;
        let bans = self.datapath.bans_of(self.enforced.desired.policy.client(address)).map_err(Problem::datapath)?;
        let mut members = Members::around(&self.enforced.desired.policy, clocks.now, address);
        if !members.is_empty() {
            self.datapath.visit_sources(&mut |reading| members.visit(&reading)).map_err(Problem::datapath)?;
        }
        let written = |prefix: IpNet, grant: Grant| self.enforced.written(prefix, grant);
        let beside = self.beside(clocks);
        let background = Background { members, ..beside.background(&self.enforced.config.policy.access, &written) };
        Ok(CheckReport::told(&self.enforced.desired.policy, address, &windows, &bans, &background))
    }

    /// Returns a function that builds the report on a prefix, with up to `most` entries of each origin.
    pub(super) fn check_prefix(
        &mut self,
        prefix: IpNet,
        most: Option<u64>,
        moment: Moment,
    ) -> Result<impl FnOnce() -> PrefixReport + Send + use<D>, Problem> {
        let basis = self.basis(moment)?;
        let (policy, bans, clocks) = (&basis.policy, &basis.bans, basis.beside.clocks);
        let mut within = Within::new(policy, clocks.now, prefix);
        self.datapath.visit_sources(&mut |reading| within.visit(&reading)).map_err(Problem::datapath)?;
        let (tracked, sources) = within.finish(bans);
        let mut members = Members::of_windows(policy, clocks.now, &tracked.groups);
        if !members.is_empty() {
            self.datapath.visit_sources(&mut |reading| members.visit(&reading)).map_err(Problem::datapath)?;
        }
        let groups = TopGroup::all(policy, clocks.now, &tracked.groups, &members);
        let addresses: Vec<IpAddr> = tracked.leaders.iter().map(IpNet::addr).collect();
        let windows = self.datapath.sources(&addresses).map_err(Problem::datapath)?;
        let top = tracked.leaders.iter().zip(&windows);
        let top = top.filter_map(|(source, windows)| TopSource::of(policy, clocks.now, *source, windows, bans));
        let top = top.collect();
        Ok(move || {
            let configured = basis.configured();
            let list = basis.parts(&configured);
            let written =
                |prefix: IpNet, grant: Grant| list.places.get(&(prefix, grant)).into_iter().cloned().collect();
            let background = basis.beside.background(&basis.access, &written);
            let parts = PrefixParts { prefix, background: &background, list: &list, sources, top, groups };
            PrefixReport::build(parts, most)
        })
    }

    /// Returns a function that builds the list of allowed, denied and banned prefixes.
    pub(super) fn list(
        &mut self,
        filter: ListFilter,
        moment: Moment,
    ) -> Result<impl FnOnce() -> ListReport + Send + use<D>, Problem> {
        if let Some(rule) = &filter.rule {
            rule_named(&self.enforced.desired.policy, rule)?;
        }
        let basis = self.basis(moment)?;
        let would = self.watched.would_bans.holding(&basis.policy, basis.beside.clocks.now);
        Ok(move || {
            let configured = basis.configured();
            let parts = basis.parts(&configured);
            ListReport::build(&parts, &filter).with_would_be(&parts, &would, &filter)
        })
    }

    fn basis(&mut self, moment: Moment) -> Result<Basis, Problem> {
        let clocks = self.clocks(moment)?;
        let bans = self.datapath.bans().map_err(Problem::datapath)?;
        let config = &self.enforced.config;
        Ok(Basis {
            policy: self.enforced.desired.policy.clone(),
            beside: self.beside(clocks),
            access: self.overrides.grants.around.access(config),
            listings: config.listings.clone(),
            list_files: config.list_files.clone(),
            bans,
        })
    }

    fn beside(&self, clocks: Clocks) -> Beside {
        Beside {
            clocks,
            entries: self.overrides.grants.beside().cloned().collect(),
            hold: self.overrides.hold.as_ref().map(Hold::report),
            fallen_back: self.overrides.breaker.tripped().map(str::to_owned).collect(),
        }
    }

    /// Reports what would happen to a packet.
    pub(super) fn explain(&mut self, sent: &Sent) -> Result<ExplainReport, Problem> {
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let windows = self.datapath.source(sent.from).map_err(Problem::datapath)?;
        let client = self.enforced.desired.policy.client(sent.from);
        let bans = self.datapath.bans_of(client).map_err(Problem::datapath)?;
        Ok(ExplainReport::build(&self.enforced.desired.policy, now, sent, &windows, &bans))
    }
}

/// State beside the configuration, at one moment.
struct Beside {
    clocks: Clocks,
    /// Entries of commands and of safety.
    entries: Vec<Entry>,
    hold: Option<snapshot::Hold>,
    fallen_back: Vec<String>,
}

impl Beside {
    fn background<'a>(
        &'a self,
        configured: &'a [Access],
        written: &'a dyn Fn(IpNet, Grant) -> Vec<WrittenAt>,
    ) -> Background<'a> {
        let (hold, fallen_back) = (self.hold.clone(), self.fallen_back.clone());
        Background {
            clocks: self.clocks,
            beside: self.entries.iter().collect(),
            configured,
            written,
            hold,
            fallen_back,
            members: Members::default(),
        }
    }
}

/// Data for lists, taken from the engine at one moment. Long lists take a while to build, and building reads list
/// files.
struct Basis {
    policy: Policy,
    beside: Beside,
    access: Vec<Access>,
    listings: Vec<Listing>,
    list_files: Vec<ListFile>,
    bans: Vec<Ban>,
}

impl Basis {
    fn configured(&self) -> Vec<Entry> {
        self.access.iter().map(Entry::configured).collect()
    }

    fn parts<'a>(&'a self, configured: &'a [Entry]) -> ListParts<'a> {
        ListParts {
            policy: &self.policy,
            entries: self.beside.entries.iter().chain(configured).collect(),
            bans: &self.bans,
            places: places(&self.listings, &self.list_files, &read_list),
            clocks: self.beside.clocks,
        }
    }
}

/// Time limit of `check` for the fleet's answer. The task answers at once, unless it is looking up many sources.
const TOLD_WITHIN: Duration = Duration::from_millis(200);

impl<D: Datapath> Defer<Check, Moment> for Engine<D> {
    /// Checks the address at once. Only the times of other hosts' reports are fetched later, from the fleet's task.
    fn defer(&mut self, ask: Ask<Check>, moment: Moment) -> Answer {
        let Ask { call: Check { ip }, reply, .. } = ask;
        let mut report = self.up_to_date().check(ip, moment);
        let policy = &self.enforced.desired.policy;
        let client = policy.client(ip.to_canonical());
        let now = self.datapath.now();
        if let (Ok(report), Ok(now)) = (&mut report, &now) {
            self.access_logs.tell_added(report, policy, client, *now);
        }
        let (Ok(report), Ok(now), Some((fleet, shared))) = (&report, now, self.fleet.shared()) else {
            return Answer::by(move || drop(reply.send(report)));
        };
        let of_row = |row: &CheckLimit| row.used_elsewhere.and_then(|_| shared.subject(row, client));
        let subjects: Vec<Option<Subject>> = report.limits.iter().map(of_row).collect();
        let (fleet, mut report) = (fleet.clone(), report.clone());
        let mut told = vec![None; subjects.len()];
        Answer::by(move || {
            tokio::spawn(async move {
                let all = async {
                    for (told, subject) in told.iter_mut().zip(subjects) {
                        let Some(subject) = subject else { continue };
                        let at = fleet.standing(subject).await.and_then(|standing| standing.told_at);
                        *told = at.map(|at| Duration::from_nanos(now.0.saturating_sub(at.0)).as_secs_f64());
                    }
                };
                // Times that do not arrive in time are left out.
                let _is_in_time = timeout(TOLD_WITHIN, all).await;
                for (row, told) in report.limits.iter_mut().zip(told) {
                    row.told_seconds_ago = told;
                }
                // The requester may be gone.
                drop(reply.send(Ok(report)));
            });
        })
    }
}

/// Builds and sends the report on a thread of its own. The engine's part is already done.
fn put_together<C: Call>(
    reply: Reply<C::Report>,
    made: Result<impl FnOnce() -> C::Report + Send + 'static, Problem>,
) -> Answer {
    Answer::by(move || match made {
        Err(problem) => drop(reply.send(Err(problem))),
        // The requester may be gone.
        Ok(make) => drop(spawn_blocking(move || drop(reply.send(Ok(make()))))),
    })
}

impl<D: Datapath> Defer<ListFilter, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<ListFilter>, moment: Moment) -> Answer {
        put_together::<ListFilter>(ask.reply, self.up_to_date().list(ask.call, moment))
    }
}

impl<D: Datapath> Defer<CheckPrefix, Moment> for Engine<D> {
    fn defer(&mut self, ask: Ask<CheckPrefix>, moment: Moment) -> Answer {
        let CheckPrefix { most, .. } = ask.call;
        let made = ask.call.prefix().and_then(|prefix| self.up_to_date().check_prefix(prefix, most, moment));
        put_together::<CheckPrefix>(ask.reply, made)
    }
}
