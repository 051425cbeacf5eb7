//! Killed at any moment: the database opens, is whole, and has all but the last second.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::*;

const PATH_VARIABLE: &str = "RATELIMIT_HISTORY_CHILD";
const KILLS: u8 = 20;
/// A batch a second, and what a busy machine adds to the writing of one.
const MISSING_MAX: Duration = Duration::from_millis(2_000);

/// The child that is killed: records an act each millisecond, and says when it recorded which.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH_VARIABLE) else { return };
    let recorder = Recorder::start(Settings::at(path.into()));
    for number in 0_u32.. {
        let mut event = Event::new(Timestamp::now(), EventKind::Deny, number.to_string());
        event.source = Some("192.0.2.1".to_owned());
        assert!(recorder.record(event.clone()));
        event.kind = EventKind::Refused;
        event.source = Some(std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string());
        assert!(recorder.record(event));
        println!("recorded {number}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a child after a random time; says how old the oldest act is that is missing.
fn kill_one(seed: u8) -> Duration {
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let site = Site::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::kill::child", "--nocapture"])
        .env(PATH_VARIABLE, site.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut recorded: Vec<Instant> = Vec::new();
    let life = Duration::from_millis(1_100 + u64::from(rng.next_u32()) % 1_500);
    let mut begin = None;
    for line in lines {
        if line.unwrap().contains("recorded ") {
            recorded.push(Instant::now());
            if begin.get_or_insert_with(Instant::now).elapsed() >= life {
                break;
            }
        }
    }
    child.kill().unwrap();
    let killed = Instant::now();
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
    // The next daemon goes on with it.
    let recorder = Recorder::start(site.settings());
    written(&recorder);
    close(recorder);
    recorded.get(acts).map_or(Duration::ZERO, |missing| killed.duration_since(*missing))
}

#[test]
fn killed_at_twenty_random_moments_it_opens_with_at_most_the_last_second_missing() {
    let missing: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || (thread * KILLS / 4..(thread + 1) * KILLS / 4).map(kill_one).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let most = missing.iter().max().unwrap();
    println!("of {} kills, the most that was missing is {most:?}", missing.len());
    assert_eq!(missing.len(), usize::from(KILLS));
    assert!(*most <= MISSING_MAX, "{missing:?}");
}
