//! Import of many denials at once. Each is checked like a `deny` command, and all valid ones are applied and saved
//! together.

use ratelimit_common::time::{Nanos, SECOND_NS};

use super::engine::Engine;
use super::grants::{SECONDS_MAX, check_owner, checked_reason, no_room};
use super::journal::{Event, Occurrence};
use super::moment::Moment;
use ratelimit_control::Requester;
use ratelimit_control::proto::{Import, ImportReport, ImportRow, Problem, RefusedRow, parse_target};
use ratelimit_datapath::Datapath;
use ratelimit_policy::access::{By, Entry, Further};
use ratelimit_policy::desired::Grant;
use ratelimit_policy::safety::CameFrom;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Clocks, Listed, SCHEMA};

/// Maximum difference between two expiries that count as equal. Lists are written in whole seconds.
const SAME_END_NS: u64 = SECOND_NS;
/// Maximum number of denials reported individually. Of a larger import, only the history has each one.
const TOLD_EACH: usize = 64;

impl<D: Datapath> Engine<D> {
    /// Denies as many of the rows as possible. Fails if an error affects all of them, and then changes nothing.
    pub(super) fn import(&mut self, request: &Import, by: &Requester, moment: Moment) -> Result<ImportReport, Problem> {
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        let exempted = self.configured_exemptions();
        let from = CameFrom { ssh: request.ssh_peer, web: by.web_address() };
        let mut after = self.overrides.grants.ledger.clone();
        let mut report = ImportReport { schema: SCHEMA, ..ImportReport::default() };
        let mut entered = Vec::new();
        for row in &request.rows {
            let objection = |prefix| {
                let locks_out =
                    |why| format!("{why}: this may lock you out; `ratelimitd deny --force` denies it anyway");
                let overridden = self.overriding_exemption(prefix, &exempted);
                overridden.or_else(|| self.overrides.grants.around.objection(prefix, from).map(locks_out))
            };
            let entry = self.imported(row, by, clocks);
            let entry = entry.and_then(|entry| objection(entry.prefix).map_or(Ok(entry), Err));
            let why = match entry {
                Ok(entry) => {
                    let held = after.held(&entry).map(|held| (held.until, held.reason.clone()));
                    if held.is_some_and(|(until, reason)| {
                        lasts_as_long(until, entry.until) && (entry.reason.is_none() || entry.reason == reason)
                    }) {
                        report.unchanged += 1;
                        continue;
                    }
                    match after.enter(entry, Further::Extend, clocks.now) {
                        Some(done) => {
                            entered.push(done.entry);
                            continue;
                        }
                        None => no_room(Grant::Denied),
                    }
                }
                Err(why) => why,
            };
            report.refused.push(RefusedRow { prefix: row.prefix.clone(), why });
        }
        report.entered = entered.len() as u64;
        if !entered.is_empty() {
            self.change_grants(clocks, &mut report.notes, after)?;
            self.tell_imported(&entered, by, clocks, moment);
        }
        Ok(report)
    }

    /// Converts a row to an entry.
    fn imported(&self, row: &ImportRow, by: &Requester, clocks: Clocks) -> Result<Entry, String> {
        let words = |problem: Problem| problem.message;
        let prefix = parse_target(&row.prefix).map_err(words)?.prefix(self.enforced.desired.policy.ipv6_prefix);
        let until = row.until.map(|until| clocks.datapath_of(until));
        if until.is_some_and(|until| until <= clocks.now) {
            return Err("it is over".to_owned());
        }
        if until.is_some_and(|until| until > clocks.after(SECONDS_MAX.saturating_mul(SECOND_NS))) {
            return Err("it ends later than in 10 years: leave out the end of what is permanent".to_owned());
        }
        if let Some(owner) = &row.owner {
            check_owner(owner).map_err(words)?;
        }
        let reason = checked_reason(row.reason.as_deref()).map_err(words)?;
        let by = By::Command { user: by.to_string(), is_forced: false };
        let (owner, since) = (row.owner.clone(), Some(clocks.wall));
        Ok(Entry { prefix, grant: Grant::Denied, by, owner, reason, since, until })
    }

    fn tell_imported(&mut self, entered: &[Entry], by: &Requester, clocks: Clocks, moment: Moment) {
        let event = |entry: &Entry| {
            let Listed { user, owner, reason, until, .. } = Listed::of(entry, true, clocks);
            let user = user.unwrap_or_default();
            let by = owner.map_or_else(|| user.clone(), |owner| format!("{user} for {owner}"));
            Event::Grant { grant: entry.grant, prefix: entry.prefix, by, reason, until, frees: 0 }
        };
        if entered.len() <= TOLD_EACH {
            entered.iter().for_each(|entry| self.journal.tell(event(entry), moment));
            return;
        }
        entered.iter().for_each(|entry| self.journal.keep_alone(&event(entry), moment.wall));
        let said = format!("{} prefixes were imported and are denied", entered.len());
        tracing::info!(user = %by, "{said}, by command of {by}");
        self.journal.add(Occurrence::new(EventKind::Deny, said).by(by));
    }
}

/// Returns true if one expiry is no earlier than another, to the second.
fn lasts_as_long(held: Option<Nanos>, asked: Option<Nanos>) -> bool {
    match (held, asked) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(held), Some(asked)) => asked.0 <= held.0.saturating_add(SAME_END_NS),
    }
}
