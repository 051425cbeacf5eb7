//! Parser for the stdout of Rust's test harness.

/// Prefix of an ignored test's reason that only its own tier runs it.
const OPT_IN: &str = "opt-in: ";

/// Results of the tests of one or more executables.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) failed: Vec<String>,
    pub(super) skipped: Vec<Skip>,
    /// Number of tests reported as ok, including those that reported themselves as skipped.
    ok: usize,
    ok_but_skipped: usize,
    section: Section,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skip {
    pub(super) test: String,
    pub(super) reason: String,
}

/// Decision to show a line to the user or to hide it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Echo {
    Show,
    Hide,
}

/// Section of the output. With `--show-output` the harness prints results, then the output of passing tests, then that
/// of failing tests.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Results,
    Successes,
    Failures,
}

impl Tally {
    pub(super) fn passed(&self) -> usize {
        self.ok.saturating_sub(self.ok_but_skipped)
    }

    /// Records a test that could not run.
    pub(super) fn skip(&mut self, test: &str, reason: &str) {
        self.skipped.push(Skip { test: test.to_owned(), reason: reason.to_owned() });
    }

    /// Adds another tally, with the place prefixed to its test names.
    pub(super) fn add(&mut self, place: &str, mut other: Self) {
        for test in other.failed.iter_mut().chain(other.skipped.iter_mut().map(|skip| &mut skip.test)) {
            *test = format!("{place}: {test}");
        }
        self.append(other);
    }

    /// Adds another tally.
    pub(super) fn append(&mut self, other: Self) {
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.ok += other.ok;
        self.ok_but_skipped += other.ok_but_skipped;
    }

    pub(super) fn take(&mut self, line: &str) -> Echo {
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ if line.starts_with("test result: ") => self.section = Section::Results,
            _ => self.take_inside(line),
        }
        if self.section == Section::Successes { Echo::Hide } else { Echo::Show }
    }

    fn take_inside(&mut self, line: &str) {
        match self.section {
            Section::Results => self.take_result(line),
            Section::Successes => self.take_skip(line),
            Section::Failures => {}
        }
    }

    /// Parses `test NAME ... ok`, `... FAILED` or `... ignored, REASON`.
    fn take_result(&mut self, line: &str) {
        let Some((test, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else {
            return;
        };
        let test = test.to_owned();
        if outcome == "ok" {
            self.ok += 1;
        } else if outcome.starts_with("FAILED") {
            self.failed.push(test);
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            // A tier of its own runs this test, so it is not part of any other run.
            if reason.starts_with(OPT_IN) {
                return;
            }
            let reason = if reason.is_empty() { "ignored" } else { reason }.to_owned();
            self.skipped.push(Skip { test, reason });
        }
    }

    /// Parses `skipped: NAME: REASON`. A name may contain `::`.
    fn take_skip(&mut self, line: &str) {
        if let Some((test, reason)) = line.strip_prefix("skipped: ").and_then(|rest| rest.split_once(": ")) {
            self.skipped.push(Skip { test: test.to_owned(), reason: reason.to_owned() });
            self.ok_but_skipped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        for line in text.lines() {
            tally.take(line);
        }
        tally
    }

    fn skip(test: &str, reason: &str) -> Skip {
        Skip { test: test.to_owned(), reason: reason.to_owned() }
    }

    const MIXED: &str = "\nrunning 4 tests\ntest a::one ... ok\ntest a::two ... ok\ntest three ... FAILED\n\
        test four ... ignored, takes an hour\n\nsuccesses:\n\n---- a::two stdout ----\n\
        skipped: a::two: not root: run as root\ntest fake ... FAILED\n\n\nsuccesses:\n    a::one\n    a::two\n\n\
        failures:\n\n---- three stdout ----\nskipped: three: it failed all the same\n\nfailures:\n    three\n\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    #[test]
    fn each_test_is_counted_once() {
        let tally = tally(MIXED);
        assert_eq!(tally.passed(), 1);
        assert_eq!(tally.failed, ["three"]);
        assert_eq!(tally.skipped, [skip("four", "takes an hour"), skip("a::two", "not root: run as root")]);
    }

    #[test]
    fn a_second_executable_adds_to_the_first() {
        let twice = tally(&format!("{MIXED}{MIXED}"));
        assert_eq!((twice.passed(), twice.failed.len(), twice.skipped.len()), (2, 2, 4));
    }

    #[test]
    fn output_of_passing_tests_is_not_shown() {
        let mut tally = Tally::default();
        assert_eq!(tally.take("test a ... ok"), Echo::Show);
        assert_eq!(tally.take("successes:"), Echo::Hide);
        assert_eq!(tally.take("chatter"), Echo::Hide);
        assert_eq!(tally.take("failures:"), Echo::Show);
        assert_eq!(tally.take("why"), Echo::Show);
    }
}
