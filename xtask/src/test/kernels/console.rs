//! Output of a machine: the reports of the tests, then their exit code.

use std::time::Duration;

use super::machine::End;
use crate::test::harness::{Echo, Tally};

/// Text that the init script prints before the tests' exit code.
pub(super) const ENDED: &str = "init: the tests exited with ";

#[derive(Debug, Default)]
pub(super) struct Console {
    tally: Tally,
    exit: Option<String>,
}

impl Console {
    pub(super) fn take(&mut self, line: &str) -> Echo {
        if let Some(code) = line.strip_prefix(ENDED) {
            self.exit = Some(code.to_owned());
        }
        // After the exit code only the kernel prints.
        if self.exit.is_some() { Echo::Hide } else { self.tally.take(line) }
    }

    /// Returns the results. An abnormal end counts as a failure, even if no test reports one.
    pub(super) fn into_tally(self, end: End) -> Tally {
        let Self { mut tally, exit } = self;
        let is_told = !tally.failed.is_empty();
        match (exit.as_deref(), end) {
            (Some("0"), _) => {}
            (Some(_), _) if is_told => {}
            (Some(code), _) => tally.failed.push(format!("the tests exited with {code}, see above")),
            (None, End::Off) => tally.failed.push("the machine went off before the tests ended, see above".to_owned()),
            (None, End::TimeIsUp(limit)) => tally.failed.push(time_is_up(limit)),
        }
        tally
    }
}

fn time_is_up(limit: Duration) -> String {
    format!("the tests had not ended after {} s, see above", limit.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str, end: End) -> Tally {
        let mut console = Console::default();
        for line in text.lines() {
            console.take(line);
        }
        console.into_tally(end)
    }

    const GOOD: &str = "test a ... ok\ntest b ... ok\n\nsuccesses:\n\n---- b stdout ----\nskipped: b: no\n\n\
        test result: ok. 2 passed; 0 failed; 0 ignored\ninit: the tests exited with 0";

    #[test]
    fn tests_that_pass_in_a_machine_are_counted_as_anywhere() {
        let tally = tally(GOOD, End::Off);
        assert_eq!((tally.passed(), tally.failed.len(), tally.skipped.len()), (1, 0, 1));
    }

    #[test]
    fn output_after_the_tests_is_not_shown() {
        let mut console = Console::default();
        assert_eq!(console.take("test a ... ok"), Echo::Show);
        assert_eq!(console.take("init: the tests exited with 0"), Echo::Hide);
        assert_eq!(console.take("[   62.381138] reboot: Power down"), Echo::Hide);
    }

    #[test]
    fn a_failed_test_and_a_skipped_one_are_named_with_their_kernel() {
        let text = GOOD.replace("test a ... ok", "test a ... FAILED").replace("with 0", "with 101");
        let mut all = Tally::default();
        all.add("Linux 6.1", tally(&text, End::Off));
        all.add("Linux 6.12", tally(GOOD, End::Off));
        assert_eq!(all.failed, ["Linux 6.1: a"]);
        assert_eq!((all.passed(), all.skipped[1].test.as_str()), (1, "Linux 6.12: b"));
    }

    #[test]
    fn a_run_that_ends_without_a_result_has_failed() {
        let cut = "test a ... ok\ntest b ...";
        assert_eq!(tally(cut, End::Off).failed, ["the machine went off before the tests ended, see above"]);
        let late = tally(cut, End::TimeIsUp(Duration::from_secs(300)));
        assert_eq!(late.failed, ["the tests had not ended after 300 s, see above"]);
        let text = format!("{cut}\n{ENDED}139");
        assert_eq!(tally(&text, End::Off).failed, ["the tests exited with 139, see above"]);
    }
}
