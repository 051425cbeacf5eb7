//! Things that the daemon watches: interfaces, list files, sources, bans, and the readability of the maps.

use std::time::Duration;

use ratelimit_common::layout::{BANS_CAPACITY, Fault};

use super::ban_watch::BanWatch;
use super::begun::Begun;
use super::journal::Journal;
use super::links::Links;
use super::list_watch::ListWatch;
use super::moment::Moment;
use super::paths::Paths;
use super::prefix_bans::PrefixBans;
use super::spells::Spells;
use super::taken_up::TakenUp;
use super::talkers::Talkers;
use super::totals::Totals;
use super::would_ban::WouldBans;
use ratelimit_datapath::{Datapath, DatapathError, Reading};
use ratelimit_policy::desired::Policy;
use ratelimit_report::observe::Observer;

/// Interval at which gateways and resolvers are read. Their changes are not announced.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(30);

/// Watched things and their last known state.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) links: Links,
    /// Interfaces that see the same packets.
    pub(super) paths: Paths,
    pub(super) lists: ListWatch,
    pub(super) talkers: Talkers,
    pub(super) observer: Observer,
    /// Watcher of expiring bans. None before the first look.
    pub(super) bans: Option<BanWatch>,
    pub(super) would_bans: WouldBans,
    pub(super) prefix_bans: PrefixBans,
    pub(super) begun: Begun,
    pub(super) taken_up: TakenUp,
    pub(super) totals: Totals,
    pub(super) spells: Spells,
    /// Bans that did not fit into the map, as of the last look.
    bans_refused: u64,
    /// Uptime of the last look at gateways and resolvers.
    looked_around_at: Duration,
    is_readable: bool,
    /// True if the last heartbeat to the packet path succeeded.
    pub(super) is_beating: bool,
}

impl Watched {
    /// Creates the state of a daemon that has just looked at its surroundings.
    pub(super) fn new(uptime: Duration) -> Self {
        Self {
            links: Links::default(),
            paths: Paths::default(),
            lists: ListWatch::default(),
            talkers: Talkers::default(),
            observer: Observer::default(),
            bans: None,
            would_bans: WouldBans::default(),
            prefix_bans: PrefixBans::default(),
            begun: Begun::default(),
            taken_up: TakenUp::default(),
            totals: Totals::default(),
            spells: Spells::default(),
            bans_refused: 0,
            looked_around_at: uptime,
            is_readable: true,
            is_beating: true,
        }
    }

    /// Reads the datapath. Logs when reading starts to fail, and when it works again.
    pub(super) fn read<D: Datapath>(&mut self, datapath: &mut D) -> Result<Reading, String> {
        let was_readable = self.is_readable;
        let reading = datapath.read();
        self.is_readable = reading.is_ok();
        match (reading, was_readable) {
            (Ok(reading), true) => Ok(reading),
            (Ok(reading), false) => {
                tracing::info!("the maps can be read again");
                Ok(reading)
            }
            (Err(error), _) => {
                let problem = format!("the maps cannot be read: {:#}", anyhow::Error::from(error));
                if was_readable {
                    tracing::error!("{problem}");
                }
                Err(problem)
            }
        }
    }

    /// Returns true if gateways and resolvers are due to be read again. Restarts the interval in that case.
    pub(super) fn is_time_to_look_around(&mut self, uptime: Duration) -> bool {
        let is_time = uptime.saturating_sub(self.looked_around_at) >= LOOK_AROUND_EVERY;
        if is_time {
            self.looked_around_at = uptime;
        }
        is_time
    }

    /// Attaches to interfaces that came back.
    pub(super) fn attach_again<D: Datapath>(
        &mut self,
        datapath: &mut D,
        interfaces: &[String],
        reading: &Reading,
        uptime: Duration,
    ) {
        for interface in interfaces {
            let read = reading.interfaces.iter().find(|read| read.name == *interface);
            if let Some(mode) = read.and_then(|read| read.attached) {
                self.links.attached(interface, mode);
            } else if self.links.away(interface, uptime) {
                if let Some(why) = self.paths.obstacle(interface, &self.links.attached_names()) {
                    self.links.waits(interface, why);
                    continue;
                }
                match datapath.attach(interface) {
                    Ok(mode) => {
                        self.links.attached(interface, mode);
                    }
                    Err(error) => {
                        let is_absent = matches!(error, DatapathError::NoSuchInterface { .. });
                        let reason = format!("{:#}", anyhow::Error::from(error));
                        self.links.failed(interface, uptime, reason, is_absent);
                    }
                }
            }
        }
    }

    /// Attaches to existing interfaces that are not attached, without reading the datapath first. Errors are left to
    /// the next look.
    pub(super) fn attach_at_once<D: Datapath>(&mut self, datapath: &mut D, interfaces: &[String]) {
        for interface in interfaces {
            if self.paths.obstacle(interface, &self.links.attached_names()).is_none()
                && let Ok(mode) = datapath.attach(interface)
            {
                self.links.attached(interface, mode);
            }
        }
    }

    /// Reports expired bans.
    pub(super) fn follow_bans<D: Datapath>(
        &mut self,
        datapath: &mut D,
        policy: &Policy,
        journal: &mut Journal,
        reading: &Reading,
        moment: Moment,
    ) {
        let bans = self.bans.get_or_insert_with(|| BanWatch::since(reading));
        bans.look(datapath, policy, &mut self.begun, journal, reading, moment);
    }

    /// Removes old bans, and warns if new ones did not fit into the map.
    pub(super) fn tidy_bans<D: Datapath>(&mut self, datapath: &mut D, reading: &Reading) {
        let more = self.more_bans_refused(reading);
        if more != 0 {
            tracing::warn!(
                "NO ROOM FOR MORE BANS: {more} times a source was refused and not banned; there is room for {BANS_CAPACITY} of \
                 each family; `ratelimitd list` shows them, and shorter times in `block_for` and `forget_after` make room"
            );
        }
        match datapath.tidy_bans() {
            Ok(0) => {}
            Ok(removed) => tracing::debug!("removed {removed} old bans"),
            Err(error) => tracing::error!("make room for bans: {:#}", anyhow::Error::from(error)),
        }
    }

    /// Returns the number of bans that did not fit into the map since the last look.
    fn more_bans_refused(&mut self, reading: &Reading) -> u64 {
        let inserts = [Fault::BansV4Insert, Fault::BansV6Insert, Fault::BansV6WideInsert];
        let refused = reading.faults.iter().filter(|(fault, _)| inserts.contains(fault)).map(|(_, count)| count).sum();
        u64::saturating_sub(refused, std::mem::replace(&mut self.bans_refused, refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_look_around_is_due_every_thirty_seconds() {
        let mut watched = Watched::new(at(5));
        let times: Vec<u64> = (5..=100).filter(|&second| watched.is_time_to_look_around(at(second))).collect();
        assert_eq!(times, [35, 65, 95]);
    }

    #[test]
    fn bans_without_room_are_told_once_and_other_faults_are_none() {
        let mut watched = Watched::new(at(0));
        let reading = |v4, v6, other| Reading {
            faults: vec![(Fault::BansV4Insert, v4), (Fault::BansV6Insert, v6), (Fault::SourcesV4Insert, other)],
            ..Reading::fixture()
        };
        assert_eq!(watched.more_bans_refused(&reading(0, 0, 9)), 0);
        assert_eq!(watched.more_bans_refused(&reading(2, 1, 9)), 3);
        assert_eq!(watched.more_bans_refused(&reading(2, 1, 9)), 0);
        assert_eq!(watched.more_bans_refused(&reading(2, 5, 9)), 4);
    }
}
