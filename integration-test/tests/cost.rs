//! The rows of the program alone: each packet has the verdict that its row says, and what is of a connection is what
//! the server's own socket knows.

use integration_test::cost::conversations::GET;
use integration_test::cost::rows::{Row, Scene, all};
use integration_test::cost::runs::Runs;
use integration_test::established::Established;
use integration_test::program::{Program, limit, policy};
use netlab::{Namespace, needs_root};
use ratelimit_common::layout::Unit;
use ratelimit_datapath::kernel::Steps;
use ratelimit_policy::desired::WindowForm;

/// Enough for the guard to count its share of what is not counted.
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
