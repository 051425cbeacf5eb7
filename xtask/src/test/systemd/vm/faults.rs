//! Boots with a fault: the host must come up enforcing, and report the deviation from the configuration.

use anyhow::{Result, ensure};

use super::{LIMIT, Said};

/// One boot with a fault.
pub(super) struct Fault {
    /// Name in machine.sh, and prefix of the boot's lines.
    name: &'static str,
    /// Behaviour that the boot shows.
    pub(super) title: &'static str,
    /// Additional lines of this boot: names without the prefix, and a text that their joined values contain.
    says: &'static [(&'static str, &'static str)],
    /// Status of a request from a denied address. curl writes 000 without an answer.
    denied: &'static str,
}

/// All faults, in the order of their boots.
pub(super) const ALL: [Fault; 6] = [
    Fault {
        name: "damaged_list",
        title: "with a damaged list the host comes up enforcing, the good lines included",
        says: &[("stats", "PARTLY PROTECTED"), ("stats", "denied.txt"), ("reloaded", "yes")],
        denied: "000",
    },
    Fault {
        name: "missing_list",
        title: "with a missing list the host comes up enforcing, and the last good copy denies",
        says: &[("stats", "PARTLY PROTECTED"), ("stats", "denied.txt")],
        denied: "000",
    },
    Fault {
        name: "missing_interface",
        title: "with a missing interface the host comes up enforcing on the others",
        says: &[("stats", "NOT PROTECTED: web9")],
        denied: "000",
    },
    Fault {
        name: "full_state",
        title: "with a full state directory the host comes up enforcing",
        says: &[("room", "0")],
        denied: "000",
    },
    Fault {
        name: "unreachable_store",
        title: "with an unreachable store the host comes up enforcing by itself",
        says: &[("stats", "AWAY")],
        denied: "000",
    },
    Fault {
        name: "wrong_clock",
        title: "with a wrong clock the host comes up enforcing, and a step of the clock frees nobody",
        says: &[("year", "2001"), ("after_step", "000 000 000"), ("unit_after_step", "enabled active restarts 0")],
        denied: "000",
    },
];

impl Fault {
    /// Checks the lines of the boot. The error names the line that differs.
    pub(super) fn hold(&self, said: &Said) -> Result<()> {
        let line = |name: &str| format!("{}.{name}", self.name);
        let expected = [("unit", "enabled active restarts 0"), ("answered", LIMIT), ("denied", self.denied)];
        for (name, expected) in expected {
            let found = said.last(&line(name))?;
            ensure!(found == expected, "{} is {found:?}, not {expected:?}", line(name));
        }
        ensure!(said.number(&line("refused_after"))? >= 3.0, "{}: what was over the limit was answered", self.name);
        for (name, text) in self.says {
            let found = said.all(&line(name)).collect::<Vec<_>>().join("\n");
            ensure!(found.contains(text), "{} does not say {text:?}:\n{found}", line(name));
        }
        // A repaired fault is no longer reported.
        let repaired = said.all(&line("repaired")).collect::<Vec<_>>().join("\n");
        ensure!(!repaired.contains("PARTLY"), "{} after the repair:\n{repaired}", self.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of machine.sh, which makes the faults.
    const MACHINE: &str = include_str!("machine.sh");

    #[test]
    fn every_fault_has_its_boot_in_the_script_and_every_boot_its_row() {
        let boots = MACHINE.lines().find_map(|line| line.strip_prefix("boots=")).unwrap().trim_matches('"');
        let names: Vec<_> = ALL.iter().map(|fault| fault.name).collect();
        assert_eq!(boots, format!("install plain {}", names.join(" ")));
        for name in names {
            for part in ["break", "mend"] {
                assert!(MACHINE.contains(&format!("\n{part}_{name}() {{")), "{part}_{name}");
            }
        }
    }

    #[test]
    fn a_boot_that_answers_too_much_or_keeps_silent_does_not_hold() {
        const LINES: &str = "machine: missing_interface.unit enabled active restarts 0\n\
            machine: missing_interface.answered 20\nmachine: missing_interface.refused_after 3\n\
            machine: missing_interface.denied 000\nmachine: missing_interface.stats NOT PROTECTED: web9 not attached\n";
        let fault = &ALL[2];
        let hold = |text: &str| {
            let mut said = Said::default();
            text.lines().for_each(|line| said.take(line));
            fault.hold(&said)
        };
        hold(LINES).unwrap();
        for (from, to, why) in [
            ("answered 20", "answered 40", "answered is \"40\""),
            ("denied 000", "denied 200", "denied is \"200\""),
            ("restarts 0", "restarts 2", "unit is"),
            ("refused_after 3", "refused_after 0", "over the limit was answered"),
            ("web9", "web8", "does not say"),
        ] {
            let error = hold(&LINES.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
