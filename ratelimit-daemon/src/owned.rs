//! Denials owned by a program, such as a jail. Lifting them leaves the denials of others, bans and counters in place.

use super::engine::Engine;
use super::fleet::Reach;
use super::grants::check_owner;
use super::journal::Event;
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{Problem, ProblemKind, UnblockReport, UnblockRequest};
use ratelimit_datapath::Datapath;
use ratelimit_policy::desired::Grant;
use ratelimit_report::snapshot::{Listed, SCHEMA};

/// Maximum number of entries in a report. // 1000 x 250 B
const REMOVED_MAX: usize = 1_000;

impl<D: Datapath> Engine<D> {
    /// Frees the target of the request, or lifts an owner's denials within it.
    pub(super) fn unblock_for(
        &mut self,
        request: &UnblockRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<UnblockReport, Problem> {
        match &request.owner {
            None => self.unblock(request.target()?, Reach::of(request.fleet), by, moment),
            Some(owner) => self.take_off_owned(owner, request, by, moment),
        }
    }

    fn take_off_owned(
        &mut self,
        owner: &str,
        request: &UnblockRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<UnblockReport, Problem> {
        check_owner(owner)?;
        if request.fleet {
            let why = "an owner's entries are those of one host: leave out one of owner and fleet";
            return Err(Problem::new(ProblemKind::BadRequest, why));
        }
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        let ipv6_prefix = self.enforced.desired.policy.ipv6_prefix;
        let target = request.target()?;
        let prefix = target.map(|target| target.prefix(ipv6_prefix));
        let mut notes: Vec<String> = target.and_then(|target| target.note(ipv6_prefix)).into_iter().collect();
        let is_meant = |of: &_| is_within(of, owner, prefix);
        let mut after = self.overrides.grants.ledger.clone();
        let removed = after.take_off(Grant::Denied, is_meant);
        if !removed.is_empty() {
            self.change_grants(clocks, &mut notes, after)?;
            let (by, denials) = (format!("{by} for {owner}"), removed.len());
            let event = Event::Unblock { prefix, by, denials, rules: Vec::new(), untold: 0, freed: 0 };
            self.journal.tell(event, moment);
        }
        Ok(UnblockReport {
            schema: SCHEMA,
            prefix: prefix.map_or_else(String::new, |prefix| prefix.to_string()),
            removed: removed.iter().take(REMOVED_MAX).map(|entry| Listed::of(entry, true, clocks)).collect(),
            removed_count: removed.len() as u64,
            freed: Vec::new(),
            freed_count: 0,
            still: prefix.map_or_else(Vec::new, |prefix| self.still(Grant::Denied, prefix, clocks)),
            notes,
        })
    }
}

fn is_within(of: &ratelimit_policy::access::Entry, owner: &str, prefix: Option<ipnet::IpNet>) -> bool {
    of.is_of(owner) && prefix.is_none_or(|within| within.contains(&of.prefix))
}
