//! Decides when a connection is dropped and when the next one is tried. Pure.
//!
//! A stopped master keeps its connections. After a timeout the client neither requests the cluster's map nor reconnects
//! (tried with redis 1.8). A shard that is silent for three rounds therefore ends the connections to all nodes.

use std::collections::HashMap;
use std::time::Duration;

use super::trouble::Trouble;

/// Number of silent rounds of one shard after which the connection is dropped.
pub const SILENT_MAX: u32 = 3;

/// Number of answered beats after which the trouble of a shard without calls is dropped.
pub const DROPPED_AFTER: u32 = 10;

/// Minimum pause before a new connection.
pub const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Maximum pause before a new connection.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Part of the store that answers separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StorePart {
    /// Shard of the sources.
    Shard(u8),
    /// List of hosts.
    Hosts,
}

#[derive(Clone, Copy, Debug)]
struct Wrong {
    trouble: Trouble,
    /// Number of beats answered since the trouble occurred.
    beats: u32,
}

impl Wrong {
    const fn now(trouble: Trouble) -> Self {
        Self { trouble, beats: 0 }
    }
}

/// Health of the store.
#[derive(Debug, Default)]
pub struct Pulse {
    silent: HashMap<StorePart, u32>,
    troubles: HashMap<StorePart, Wrong>,
    pause: Option<Duration>,
}

impl Pulse {
    /// Records that a part of the store answered.
    pub fn heard(&mut self, part: StorePart) {
        self.silent.remove(&part);
        self.troubles.remove(&part);
        self.pause = None;
        if part == StorePart::Hosts {
            self.troubles.retain(|_, wrong| {
                wrong.beats += 1;
                wrong.beats < DROPPED_AFTER
            });
        }
    }

    /// Records that a part did not answer. Returns true if the connection has to be replaced.
    pub fn failed(&mut self, part: StorePart, trouble: Trouble) -> bool {
        self.troubles.insert(part, Wrong::now(trouble));
        if !trouble.wants_connection() {
            return false;
        }
        let silent = self.silent.entry(part).or_default();
        *silent += 1;
        *silent >= SILENT_MAX
    }

    /// Returns the pause before the next attempt, after a connection was dropped or not opened. `random` must be a
    /// uniform 64-bit number.
    ///
    /// Decorrelated jitter between the minimum and three times the last pause, so that hosts do not reconnect together.
    pub fn pause(&mut self, random: u64) -> Duration {
        self.silent.clear();
        let most = self.pause.map_or(PAUSE_MIN * 2, |last| (last * 3).min(PAUSE_MAX));
        let span = u64::try_from((most - PAUSE_MIN).as_nanos()).unwrap_or(u64::MAX).max(1);
        let pause = PAUSE_MIN + Duration::from_nanos(random % span);
        self.pause = Some(pause);
        pause
    }

    /// Records that no connection was opened.
    pub fn refused(&mut self, trouble: Trouble) {
        self.troubles.insert(StorePart::Hosts, Wrong::now(trouble));
    }

    /// Returns the worst current trouble, in the order of [`super::trouble::ALL`].
    pub fn trouble(&self) -> Option<Trouble> {
        super::trouble::ALL.into_iter().find(|trouble| self.troubles.values().any(|wrong| wrong.trouble == *trouble))
    }

    /// Records a new connection. Troubles of the previous connection no longer apply.
    pub fn connected(&mut self) {
        self.troubles.clear();
        self.silent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_silent_rounds_of_one_shard_end_the_connection_and_an_answer_sets_that_back() {
        let mut pulse = Pulse::default();
        let shard = StorePart::Shard(3);
        assert!(!pulse.failed(shard, Trouble::Hung));
        assert!(!pulse.failed(shard, Trouble::Hung));
        assert!(!pulse.failed(StorePart::Shard(4), Trouble::Hung), "another's silence does not add up");
        pulse.heard(shard);
        assert!(!pulse.failed(shard, Trouble::Hung));
        assert!(!pulse.failed(shard, Trouble::Away));
        assert!(pulse.failed(shard, Trouble::Hung));
    }

    #[test]
    fn a_connection_stays_if_a_new_one_would_not_mend_the_trouble() {
        let mut pulse = Pulse::default();
        let mends = |trouble| (0..5).any(|_| pulse.failed(StorePart::Shard(0), trouble));
        assert!(![Trouble::OutOfMemory, Trouble::NoPermission, Trouble::Moved].into_iter().any(mends));
        assert_eq!(pulse.trouble(), Some(Trouble::Moved));
        pulse.heard(StorePart::Shard(0));
        assert_eq!(pulse.trouble(), None);
    }

    #[test]
    fn trouble_of_a_shard_that_no_call_renews_goes_after_ten_answered_beats() {
        let mut pulse = Pulse::default();
        let beats = |pulse: &mut Pulse, count| (0..count).for_each(|_| pulse.heard(StorePart::Hosts));
        pulse.failed(StorePart::Shard(0), Trouble::Moved);
        beats(&mut pulse, 9);
        pulse.failed(StorePart::Shard(0), Trouble::Moved);
        beats(&mut pulse, 9);
        assert_eq!(pulse.trouble(), Some(Trouble::Moved), "it was renewed");
        beats(&mut pulse, 1);
        assert_eq!(pulse.trouble(), None);
    }

    #[test]
    fn pauses_grow_at_random_up_to_their_end() {
        let mut pulse = Pulse::default();
        let mut longest = Duration::ZERO;
        for number in 1..200_u64 {
            let pause = pulse.pause(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!((PAUSE_MIN..=PAUSE_MAX).contains(&pause));
            longest = longest.max(pause);
        }
        assert!(longest > PAUSE_MAX / 2, "{longest:?}");
        pulse.heard(StorePart::Hosts);
        assert!(pulse.pause(u64::MAX) < PAUSE_MIN * 2, "short again after an answer");
    }
}
