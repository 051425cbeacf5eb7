//! Checks of the benchmark's rows: each packet has its row's verdict, and the server's own socket knows the segments of
//! a connection.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use integration_test::cost::conversations::{GET, body, costliest};
use integration_test::cost::rows::{Row, Scene, all};
use integration_test::cost::runs::Runs;
use integration_test::established::Established;
use integration_test::program::{Program, limit, policy};
use integration_test::random::Random;
use netlab::{Namespace, needs_root};
use ratelimit_common::layout::Unit;
use ratelimit_kernel::Steps;
use ratelimit_policy::desired::WindowForm;

/// Number of runs, enough for the guard to count its share of uncounted packets.
const REPEAT: u32 = 200;

#[test]
fn every_row_of_a_connection_has_its_verdict_in_one_round_after_the_other() {
    needs_root!();
    let rows = all().into_iter().filter(|row| matches!(row.scene, Scene::Connection { .. }));
    Namespace::new()
        .unwrap()
        .inside(|| {
            for row in rows {
                let mut runs = Runs::load(row)?;
                runs.round(REPEAT)?;
                runs.round(REPEAT)?;
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_row_with_another_verdict_than_it_says_is_not_timed() {
    needs_root!();
    let row = all().into_iter().find(|row| row.name == "admitted: a request, in the clear").unwrap();
    for verdict in ["over_limit", "not_counted"] {
        let wrong = Row { verdict, ..row.clone() };
        let refused = Namespace::new().unwrap().inside(|| Runs::load(wrong)?.round(REPEAT).map(|_| ())).unwrap_err();
        assert!(refused.to_string().contains("of 200 packets "), "{refused}");
    }
}

#[test]
fn a_connection_that_advances_sends_what_its_server_takes_next() {
    needs_root!();
    let verdicts = |distance: u32| {
        Namespace::new().unwrap().inside(|| {
            let mut program = Program::new(&policy(&[limit(100, Unit::Requests, WindowForm::Strict)]));
            let connection = Established::on_loopback(80)?;
            let frame = connection.frame(GET);
            let sequence = connection.sequence.wrapping_add(distance);
            let steps = Steps { sequence, step: u32::try_from(GET.len())?, ..Steps::default() };
            let mut advance = program.advancing(steps)?;
            program.time_through(&mut advance, &frame, 5)?;
            let counts = program.counts();
            Ok([counts["within_limit"], counts["not_counted"]])
        })
    };
    assert_eq!(verdicts(0).unwrap(), [5, 0], "each is a request of its own");
    let [within, _] = verdicts(1 << 30).unwrap();
    assert_eq!(within, 0, "what its server does not take is none");
}

/// Length in bytes of the payloads in the search for the most expensive one.
const PAYLOAD_BYTES: usize = 1400;
/// Building blocks of payloads.
const TEXTS: [&[u8]; 12] = [
    b"/",
    b"tp/",
    b"HTTP/",
    b"HTTP/1.1x",
    b"HTTP/1.1 x",
    b"HTTP/1111x",
    b" ICE/1.1 x",
    b"\x08HTTP/1.1\r",
    b"HTTP/2.0 x",
    b" HTTP/2.0 x",
    b"x",
    b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/",
];
/// Number of steps of the search. Each step loads the program once.
const SEARCH_STEPS: usize = 12;
/// Number of measurements of a payload. The minimum counts, because other load only adds time.
const ROUNDS: usize = 5;
/// Maximum ratio between the cost of the most expensive text and that of others. The goal is 3. Texts of whole versions
/// miss it, because each version is read to its end. Before the search read each byte once, slashes alone had a ratio
/// of 18.
const TIMES_MAX: u64 = 30;

/// Returns the cost of a segment of an upload, or `None` if the segment is not part of a body.
fn cost(data: &[u8]) -> Option<u64> {
    let row = all().into_iter().find(|row| row.name == "not counted: 1400 slashes, where requests are").unwrap();
    let Scene::Connection { port, before, goes, .. } = row.scene.clone() else { panic!("it is of a connection") };
    let scene = Scene::Connection { port, before, data: data.to_vec(), goes };
    let mut runs = Runs::load(Row { scene, ..row }).unwrap();
    let rounds = (0..ROUNDS).map(|_| runs.round(REPEAT).ok().map(|round| round.ns));
    rounds.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().min())
}

/// Repeats each of these texts as often as stated, up to the length of a payload.
fn payload(genes: &[(usize, usize)]) -> Vec<u8> {
    let once: Vec<u8> = genes.iter().flat_map(|&(text, times)| TEXTS[text].repeat(times)).collect();
    once.iter().copied().cycle().take(PAYLOAD_BYTES).collect()
}

#[test]
fn no_text_that_a_search_finds_costs_much_more_than_others() {
    needs_root!();
    Namespace::new()
        .unwrap()
        .inside(|| {
            let (mut random, plain) = (Random(34), cost(&body(PAYLOAD_BYTES)).unwrap());
            let mut worst = (cost(&costliest(PAYLOAD_BYTES)).unwrap(), vec![]);
            println!("others {plain} ns, the costliest known {} ns", worst.0);
            let mut best = vec![(0, 1)];
            let mut best_ns = 0;
            for _ in 0..SEARCH_STEPS {
                let mut genes = best.clone();
                let gene = (random.index(TEXTS.len()), 1 + random.index(40));
                match random.below(3) {
                    0 if genes.len() < 6 => genes.insert(random.index(genes.len() + 1), gene),
                    1 if genes.len() > 1 => drop(genes.remove(random.index(genes.len()))),
                    _ => {
                        let at = random.index(genes.len());
                        genes[at] = gene;
                    }
                }
                if let Some(ns) = cost(&payload(&genes)).filter(|&ns| ns > best_ns) {
                    (best, best_ns) = (genes, ns);
                }
            }
            if best_ns > worst.0 {
                worst = (best_ns, best);
            }
            println!("the costliest that was found: {} ns, {:?}", worst.0, worst.1);
            assert!(worst.0 <= TIMES_MAX * plain, "{worst:?} of {plain} ns");
            Ok(())
        })
        .unwrap();
}
