//! What overrides the configuration: entries of commands and of safety, a hold, and rules that the breaker has put in dry
//! run. Configuration and overrides together make the policy that packets are judged by.

use ratelimit_common::time::Nanos;

use super::breaker::Breaker;
use super::grants::Grants;
use super::hold::Hold;
use ratelimit_policy::access::merged;
use ratelimit_policy::config::Config;
use ratelimit_policy::desired::{Access, Mode, Policy};
use ratelimit_policy::safety::SshSession;

/// What overrides the configuration.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    pub(super) grants: Grants,
    pub(super) hold: Option<Hold>,
    pub(super) breaker: Breaker,
}

impl Overrides {
    /// The policy that a configuration and the overrides make.
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

    /// The grants of a configuration, commands and safety together; without the entries of lists that are passed over here.
    pub(super) fn access_of(&self, config: &Config, now: Nanos) -> Vec<Access> {
        let configured = self.grants.around.entries(config);
        merged(self.grants.beside().chain(&configured), now)
    }

    /// Says to the requester of a configuration, and in the log, whom it may lock out, and which entries of lists are passed over.
    pub(super) fn warn_of_lockouts(&self, config: &Config, caller: Option<SshSession>, now: Nanos) -> Vec<String> {
        let policy = Policy { access: self.access_of(config, now), ..config.policy.clone() };
        let warnings = self.grants.around.lockouts(&policy, caller, now);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        // The next look logs these.
        [warnings, self.grants.around.passed_over_words(config)].concat()
    }

    /// What stops rules from dropping, for the status line.
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
    fn without_overrides_the_policy_is_the_configurations_and_a_hold_makes_every_rule_dry_run() {
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
