//! Overrides of the configuration: entries of commands and of safety, a hold, and rules that the breaker has put into
//! dry run. The configuration and the overrides form the policy that judges packets.

use ratelimit_common::time::Nanos;

use super::breaker::Breaker;
use super::grants::Grants;
use super::hold::Hold;
use ratelimit_policy::access::merged;
use ratelimit_policy::config::Config;
use ratelimit_policy::desired::{Access, Mode, Policy};
use ratelimit_policy::safety::SshSession;

/// Overrides of the configuration.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    pub(super) grants: Grants,
    pub(super) hold: Option<Hold>,
    pub(super) breaker: Breaker,
}

impl Overrides {
    /// Returns the policy that a configuration and the overrides form.
    pub(super) fn policy_of(&self, config: &Config, now: Nanos) -> Policy {
        let mut policy = config.policy.clone();
        policy.access = self.access_of(config, now);
        for rule in &mut policy.rules {
            if self.hold.is_some() || self.breaker.has_tripped(&rule.name) {
                rule.mode = Mode::DryRun;
            }
        }
        policy
    }

    /// Returns the grants of a configuration, commands and safety together, without the list entries that are passed
    /// over here.
    pub(super) fn access_of(&self, config: &Config, now: Nanos) -> Vec<Access> {
        let configured = self.grants.around.entries(config);
        merged(self.grants.beside().chain(&configured), now)
    }

    /// Logs who may be locked out by a configuration. Returns these warnings, and descriptions of passed-over list
    /// entries, for the requester.
    pub(super) fn warn_of_lockouts(&self, config: &Config, caller: Option<SshSession>, now: Nanos) -> Vec<String> {
        let policy = Policy { access: self.access_of(config, now), ..config.policy.clone() };
        let warnings = self.grants.around.lockouts(&policy, caller, now);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        // The next look logs the passed-over entries.
        [warnings, self.grants.around.passed_over_words(config)].concat()
    }

    /// Describes what stops rules from dropping, for the status line.
    pub(super) fn words(&self) -> String {
        let mut words = String::new();
        if let Some(hold) = &self.hold {
            words = format!("{}; ", hold.words());
        }
        let tripped: Vec<&str> = self.breaker.tripped().collect();
        if !tripped.is_empty() {
            words += &format!("RULE {} FELL BACK TO DRY RUN; ", tripped.join(", "));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_control::Requester;
    use ratelimit_control::proto::ModeWord;
    use ratelimit_report::fixture::config;

    #[test]
    fn the_policy_equals_the_configuration_and_a_hold_makes_rules_dry_run() {
        let mut config = config(std::path::Path::new("/nonexistent"), 3);
        let mut second = config.policy.rules[0].clone();
        second.name = "second".into();
        config.policy.rules.push(second);
        let mut overrides = Overrides::default();
        assert_eq!(overrides.policy_of(&config, Nanos(1)), config.policy);
        assert_eq!(overrides.words(), "");

        overrides.hold = Some(Hold::new(ModeWord::Panic, &Requester::new(0, None), jiff::Timestamp::UNIX_EPOCH));
        let policy = overrides.policy_of(&config, Nanos(1));
        assert!(policy.rules.iter().all(|rule| rule.mode == Mode::DryRun));
        assert_eq!(overrides.words(), "PANIC by root since 1970-01-01 00:00:00 UTC, NOTHING IS DROPPED; ");
    }
}
