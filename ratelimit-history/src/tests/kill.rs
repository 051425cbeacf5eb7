//! Tests that kill the writing process at random times: the database stays intact and lacks at most the last second.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::*;

const PATH_VARIABLE: &str = "RATELIMIT_HISTORY_CHILD";
const KILLS: u8 = 20;
/// Maximum age of lost records: the interval of batches and the time to write one. Delays of the child by the machine
/// are added.
const MISSING_MAX: Duration = Duration::from_millis(1_300);

/// Records that are missing after a kill.
#[derive(Debug)]
struct Missing {
    /// Age of the oldest missing record at the kill, by the child's clock.
    age: Duration,
    /// Longest delay of the child, which records every millisecond.
    stall: Duration,
}

/// The process that is killed. It records an act each millisecond, and prints its number and time.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH_VARIABLE) else { return };
    let recorder = Recorder::start(Settings::at(path.into()));
    for number in 0_u32.. {
        let mut event = Event::new(Timestamp::now(), EventKind::Deny, number.to_string());
        event.source = Some("192.0.2.1".to_owned());
        let time = event.time.as_microsecond();
        assert!(recorder.record(event.clone()));
        event.kind = EventKind::Refused;
        event.source = Some(std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string());
        assert!(recorder.record(event));
        println!("recorded {number} {time}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a child after a random time. Returns what is missing.
fn kill_one(seed: u8) -> Missing {
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let site = Site::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::kill::child", "--nocapture"])
        .env(PATH_VARIABLE, site.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut recorded: Vec<Timestamp> = Vec::new();
    let life = Duration::from_millis(1_100 + u64::from(rng.next_u32()) % 1_500);
    let time_of = |line: &str| {
        let time = line.split_once("recorded ")?.1.split_once(' ')?.1.parse().unwrap();
        Some(Timestamp::from_microsecond(time).unwrap())
    };
    for line in lines {
        recorded.extend(time_of(&line.unwrap()));
        if recorded
            .first()
            .zip(recorded.last())
            .is_some_and(|(first, last)| last.duration_since(*first) >= life.try_into().unwrap())
        {
            break;
        }
    }
    child.kill().unwrap();
    let killed = Timestamp::now();
    child.wait().unwrap();
    assert!(is_whole(&site.path()), "seed {seed}");
    let connection = rusqlite::Connection::open(site.path()).unwrap();
    let (acts, last): (usize, Option<usize>) = connection
        .query_row("SELECT count(*), max(CAST(detail AS INTEGER)) + 1 FROM acts", [], |row| {
            Ok((row.get::<_, u32>(0)? as usize, row.get::<_, Option<u32>>(1)?.map(|last| last as usize)))
        })
        .unwrap();
    assert_eq!(Some(acts), last.or(Some(0)), "seed {seed}: something between is missing");
    let episodes: u32 = connection.query_row("SELECT count(*) FROM episodes", [], |row| row.get(0)).unwrap();
    assert!(acts - (episodes as usize) <= 1, "seed {seed}: {acts} acts, {episodes} episodes");
    // The next daemon continues with this database.
    let recorder = Recorder::start(site.settings());
    written(&recorder);
    close(recorder);
    let between = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
    // The child recorded more than the test has read, until the kill.
    let times = recorded.iter().copied().chain([killed]);
    let stall = recorded.iter().zip(times.skip(1)).map(|(from, to)| between(*from, to)).max().unwrap();
    Missing { age: recorded.get(acts).map_or(Duration::ZERO, |oldest| between(*oldest, killed)), stall }
}

#[test]
fn killed_at_twenty_random_moments_it_opens_with_at_most_the_last_second_missing() {
    let missing: Vec<Missing> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || (thread * KILLS / 4..(thread + 1) * KILLS / 4).map(kill_one).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let most = missing.iter().max_by_key(|of| of.age).unwrap();
    println!("of {} kills, the most that was missing is {most:?}", missing.len());
    assert_eq!(missing.len(), usize::from(KILLS));
    assert!(missing.iter().any(|of| !of.age.is_zero()), "no kill came between two batches");
    assert!(missing.iter().all(|of| of.age <= MISSING_MAX + of.stall), "{missing:?}");
}
