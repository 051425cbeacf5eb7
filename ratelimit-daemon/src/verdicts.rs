//! What becomes of packets, and why: what `check`, `explain` and `list` are told.

use std::net::IpAddr;

use ipnet::IpNet;

use super::engine::Engine;
use super::hold::Hold;
use super::moment::Moment;
use super::orders::rule_named;
use ratelimit_control::proto::Problem;
use ratelimit_datapath::Datapath;
use ratelimit_policy::access::Entry;
use ratelimit_policy::config::listing::WrittenAt;
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_report::snapshot::{
    Background, CheckReport, Clocks, ExplainReport, ListFilter, ListParts, ListReport, PrefixParts, PrefixReport,
    TopSource, Within,
};

impl<D: Datapath> Engine<D> {
    /// How one address stands. An IPv4 address may come in its IPv6 form, which no packet has.
    pub(super) fn check(&mut self, address: IpAddr, moment: Moment) -> Result<CheckReport, Problem> {
        let address = address.to_canonical();
        let clocks = self.clocks(moment)?;
        let windows = self.datapath.source(address).map_err(Problem::datapath)?;
        let bans = self.datapath.bans_of(self.enforced.desired.policy.client(address)).map_err(Problem::datapath)?;
        let written = |prefix: IpNet, grant: Grant| self.enforced.written(prefix, grant);
        let background = self.background(clocks, &written);
        Ok(CheckReport::told(&self.enforced.desired.policy, address, &windows, &bans, &background))
    }

    /// How all of a prefix stands; of the entries, so many of each origin.
    pub(super) fn check_prefix(
        &mut self,
        prefix: IpNet,
        most: Option<u64>,
        moment: Moment,
    ) -> Result<PrefixReport, Problem> {
        let clocks = self.clocks(moment)?;
        let policy = &self.enforced.desired.policy;
        let bans = self.datapath.bans().map_err(Problem::datapath)?;
        let mut within = Within::new(policy, clocks.now, prefix);
        self.datapath.visit_sources(&mut |reading| within.visit(&reading)).map_err(Problem::datapath)?;
        let (tracked, sources) = within.finish(&bans);
        let addresses: Vec<IpAddr> = tracked.leaders.iter().map(IpNet::addr).collect();
        let windows = self.datapath.sources(&addresses).map_err(Problem::datapath)?;
        let top = tracked.leaders.iter().zip(&windows);
        let top = top.filter_map(|(source, windows)| TopSource::of(policy, clocks.now, *source, windows, &bans));
        let top = top.collect();
        let configured: Vec<Entry> = self.enforced.config.policy.access.iter().map(Entry::configured).collect();
        let entries = self.overrides.grants.beside().chain(&configured).collect();
        let list = ListParts { policy, entries, bans: &bans, places: self.enforced.places(), clocks };
        let written = |prefix: IpNet, grant: Grant| list.places.get(&(prefix, grant)).into_iter().cloned().collect();
        let background = self.background(clocks, &written);
        let parts = PrefixParts { prefix, background: &background, list: &list, sources, top };
        Ok(PrefixReport::build(parts, most))
    }

    /// What is allowed, denied and banned.
    pub(super) fn list(&mut self, filter: &ListFilter, moment: Moment) -> Result<ListReport, Problem> {
        if let Some(rule) = &filter.rule {
            rule_named(&self.enforced.desired.policy, rule)?;
        }
        let clocks = self.clocks(moment)?;
        let bans = self.datapath.bans().map_err(Problem::datapath)?;
        let configured: Vec<Entry> = self.enforced.config.policy.access.iter().map(Entry::configured).collect();
        let entries = self.overrides.grants.beside().chain(&configured).collect();
        let parts = ListParts {
            policy: &self.enforced.desired.policy,
            entries,
            bans: &bans,
            places: self.enforced.places(),
            clocks,
        };
        let would = self.watched.would_bans.holding(&self.enforced.desired.policy, clocks.now);
        Ok(ListReport::build(&parts, filter).with_would_be(&parts, &would, filter))
    }

    /// What would become of a packet.
    pub(super) fn explain(&mut self, sent: &Sent) -> Result<ExplainReport, Problem> {
        let now = self.datapath.now().map_err(Problem::datapath)?;
        let windows = self.datapath.source(sent.from).map_err(Problem::datapath)?;
        let client = self.enforced.desired.policy.client(sent.from);
        let bans = self.datapath.bans_of(client).map_err(Problem::datapath)?;
        Ok(ExplainReport::build(&self.enforced.desired.policy, now, sent, &windows, &bans))
    }

    fn background<'a>(&'a self, clocks: Clocks, written: &'a dyn Fn(IpNet, Grant) -> Vec<WrittenAt>) -> Background<'a> {
        Background {
            clocks,
            beside: self.overrides.grants.beside().collect(),
            configured: &self.enforced.config.policy.access,
            written,
            hold: self.overrides.hold.as_ref().map(Hold::report),
            fallen_back: self.overrides.breaker.tripped().map(str::to_owned).collect(),
        }
    }
}
