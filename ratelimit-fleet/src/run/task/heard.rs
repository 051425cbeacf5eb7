//! Evaluation of the store's answer to a beat: the time, the hosts and new acts.

use ratelimit_common::time::Nanos;
use tokio::time::Instant;

use super::Task;
use crate::acts::{Act, ROUND_MAX, What};
use crate::store::link::Heard;

impl Task {
    pub(super) fn hear(&mut self, heard: &Heard, asked: Nanos, answered: Nanos, now: Nanos) {
        let had_beaten = std::mem::replace(&mut self.has_beaten, true);
        let theirs = Nanos(heard.time_us.saturating_mul(1000));
        self.core.learn_time(asked, answered, theirs);
        if had_beaten && !heard.was_there {
            self.core.store_lost(now);
            self.ledger.store_lost(now);
            "0".clone_into(&mut self.heard);
        }
        let me = (self.core.host(), self.me.process);
        let news = self.hosts.learn(self.core.names(), heard.time_us / 1000, &heard.hosts, me);
        if news.rejoined || (had_beaten && !heard.was_there) {
            self.core.rejoined(now);
        }
        self.beaten_at = Instant::now();
        if news.doubled {
            self.doubled_at = Some(self.beaten_at);
        }
        let mut has_room = true;
        for (name, sealed) in &heard.acts {
            // Acts that exceed the queue are requested again with a later beat.
            let Ok(room) = self.acts.try_reserve() else {
                has_room = false;
                break;
            };
            self.heard.clone_from(name);
            let Some(act) = Act::open(self.core.names(), sealed) else {
                continue;
            };
            if !self.ledger.hear(&act, now) {
                continue;
            }
            if matches!(act.what, What::Reset { .. }) {
                self.core.reset(act.prefix);
            }
            room.send(act);
        }
        // A full answer means that more acts wait, so the next beat follows at once.
        if has_room && heard.acts.len() >= ROUND_MAX {
            self.beats_at = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::core::{Core, Settings};
    use crate::hosts::{Record, SILENT_AFTER};
    use crate::names::Shard;
    use crate::names::{HostId, Names};
    use crate::run::task::{Done, Waiting};
    use crate::run::{Status, task::Me};
    use crate::store::access::Access;
    use crate::store::trouble::Trouble;
    use crate::wire::{Call, Said, Sequence};
    use ratelimit_common::time::SECOND_NS;

    const NOW: Nanos = Nanos(1_750_000_000 * SECOND_NS);

    fn names() -> Names {
        Names::new("web", &[1; 32]).unwrap()
    }

    fn task(room: usize) -> (Task, mpsc::Receiver<Act>) {
        let (acts, heard) = mpsc::channel(room);
        let core = Core::new(HostId([1; 8]), names(), Settings::default(), Vec::new());
        let me = Me { process: 5, name: "a".to_owned(), machine: 1, version: "0.2.0".to_owned() };
        let (published, _) = watch::channel(Status::default());
        let lost = std::sync::Arc::default();
        (Task::new(core, me, Access::default(), Duration::from_secs(1), lost, acts, published), heard)
    }

    fn heard(acts: &[(String, Vec<u8>)]) -> Heard {
        Heard { time_us: NOW.0 / 1000, was_there: true, hosts: Vec::new(), acts: acts.to_vec() }
    }

    #[tokio::test]
    async fn silent_hosts_age_and_a_stopped_copy_is_no_longer_reported() {
        let (mut task, _acts) = task(1);
        let record = |process| Record { process, ..Record::default() };
        let listed =
            |process| (vec![1; 8], [&[0; 8][..], &record(process).seal(HostId([1; 8]), &names(), [3; 12])].concat());
        for process in [5, 6] {
            task.hear(&Heard { time_us: 1_000, hosts: vec![listed(process)], ..heard(&[]) }, NOW, NOW, NOW);
        }
        task.publish(NOW);
        assert!(task.status.is_doubled && task.status.hosts_heard == 1);
        let before = task.beaten_at.checked_sub(SILENT_AFTER).unwrap();
        (task.beaten_at, task.doubled_at) = (before, Some(before));
        task.publish(NOW);
        assert!(!task.status.is_doubled && task.status.hosts_heard == 0);
        assert!(task.status.hosts[0].age >= SILENT_AFTER);
    }

    #[tokio::test]
    async fn a_shard_that_answers_after_a_silent_interval_makes_others_ask_again() {
        let (mut task, _acts) = task(1);
        task.is_heard = true;
        let call = Call { host: HostId([1; 8]), sequence: Sequence(1), shard: Shard(3), groups: Vec::new() };
        let mut exchanged = |silent_for: u64, answer: Result<Vec<Said>, Trouble>| {
            task.silent.values_mut().for_each(|since| *since -= Duration::from_millis(silent_for));
            let waiting = Box::new(Waiting { read_at: NOW, call: call.clone() });
            task.done(Done::Exchanged { generation: 0, waiting, took: Duration::ZERO, answer }, NOW);
            task.outages
        };
        assert_eq!(exchanged(0, Err(Trouble::Hung)), 0);
        assert_eq!(exchanged(100, Ok(Vec::new())), 0, "nothing can have become final meanwhile");
        assert_eq!(exchanged(0, Err(Trouble::Hung)), 0);
        assert_eq!(exchanged(500, Err(Trouble::Hung)), 0);
        assert_eq!(exchanged(500, Ok(Vec::new())), 1);
        assert_eq!(exchanged(2000, Ok(Vec::new())), 1, "once");
    }

    #[tokio::test]
    async fn a_host_that_is_back_says_so_and_asks_without_waiting_for_an_interval() {
        let (mut task, _acts) = task(1);
        let waits = |task: &mut Task| {
            task.core.due(NOW);
            task.beats_at = Instant::now() + Duration::from_secs(1);
            task.core.wakes_at() > NOW
        };
        assert!(waits(&mut task));
        (task.is_heard, task.was_away) = (true, true);
        task.answered(0, Duration::ZERO, None, NOW);
        assert!(task.beats_at <= Instant::now() && task.core.wakes_at() <= NOW);
        assert!(waits(&mut task), "once");
        task.answered(0, Duration::ZERO, None, NOW);
        assert!(task.beats_at > Instant::now() && task.core.wakes_at() > NOW);
    }

    #[tokio::test]
    async fn acts_for_which_there_is_no_room_are_heard_later_and_none_is_lost() {
        let (mut task, mut carried_out) = task(1024);
        let said = |number: u32| {
            let prefix = std::net::IpAddr::from(number.to_be_bytes()).into();
            let what = What::Deny { until_ns: None, reason: None, by: "root".to_owned() };
            (
                number.to_string(),
                Act { at_ns: NOW.0, said_ns: NOW.0, host: [2; 8], prefix, what }.seal(&names(), [9; 12]),
            )
        };
        let stream: Vec<_> = (1..=1500).map(said).collect();
        let mut done = 0;
        for _ in 0..20 {
            // Same paging as the store's script.
            let from = task.heard.parse::<usize>().unwrap();
            let next = &stream[from..stream.len().min(from + ROUND_MAX)];
            task.beats_at = Instant::now() + Duration::from_secs(3600);
            task.hear(&heard(next), NOW, NOW, NOW);
            let is_full = task.acts.capacity() == 0;
            assert!(!is_full || task.beats_at > Instant::now() || task.heard == "1024", "no haste where it is full");
            if is_full {
                while carried_out.try_recv().is_ok() {
                    done += 1;
                }
            }
        }
        while carried_out.try_recv().is_ok() {
            done += 1;
        }
        assert_eq!((done, task.heard.as_str()), (1500, "1500"));
    }
}
