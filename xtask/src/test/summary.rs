//! Summary of all tiers, printed last.

use std::fmt;
use std::time::Duration;

use super::harness::Tally;

pub(super) struct Tier {
    pub(super) name: &'static str,
    pub(super) tally: Tally,
    /// Run time, including the build.
    pub(super) took: Duration,
}

#[derive(Default)]
pub(super) struct Summary {
    tiers: Vec<Tier>,
}

impl Summary {
    pub(super) fn add(&mut self, tier: Tier) {
        self.tiers.push(tier);
    }

    pub(super) fn passed(&self) -> usize {
        self.tiers.iter().map(|tier| tier.tally.passed()).sum()
    }

    pub(super) fn failed(&self) -> usize {
        self.tiers.iter().map(|tier| tier.tally.failed.len()).sum()
    }

    pub(super) fn skipped(&self) -> usize {
        self.tiers.iter().map(|tier| tier.tally.skipped.len()).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<14}{:>8}{:>8}{:>9}{:>10}", "tier", "passed", "failed", "skipped", "time")?;
        for Tier { name, tally, took } in &self.tiers {
            let (passed, failed, skipped) = (tally.passed(), tally.failed.len(), tally.skipped.len());
            writeln!(f, "{name:<14}{passed:>8}{failed:>8}{skipped:>9}{:>8.1} s", took.as_secs_f32())?;
        }
        for tier in &self.tiers {
            for skip in &tier.tally.skipped {
                writeln!(f, "skipped: {}: {}", skip.test, skip.reason)?;
            }
            for test in &tier.tally.failed {
                writeln!(f, "failed: {test}")?;
            }
        }
        writeln!(f, "{} passed, {} failed, {} skipped", self.passed(), self.failed(), self.skipped())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_adds_up_the_tiers() {
        let mut summary = Summary::default();
        for name in ["one", "two"] {
            let mut tally = Tally::default();
            for line in ["test a ... ok", "test b ... FAILED", "test c ... ignored"] {
                tally.take(line);
            }
            summary.add(Tier { name, tally, took: Duration::from_secs(1) });
        }
        let text = summary.to_string();
        assert_eq!(text.lines().last(), Some("2 passed, 2 failed, 2 skipped"));
        assert!(text.contains("skipped: c: ignored") && text.contains("failed: b"), "{text}");
    }
}
