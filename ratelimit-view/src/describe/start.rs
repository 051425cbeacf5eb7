//! First line of a daemon's log.

use ratelimit_policy::desired::{Mode, Policy, Rule};

/// Maximum number of rules that are named one by one.
const RULES_NAMED_MAX: usize = 4;

/// Describes in one line what is limited, on which attached interfaces, by how much and in which mode.
pub fn first_line(policy: &Policy, attached: &[String]) -> String {
    let rules = &policy.rules;
    let of = |rule: &Rule| {
        let limits: Vec<String> = rule.limits.iter().map(ToString::to_string).collect();
        let mode = match rule.mode {
            Mode::Enforce => "enforced",
            Mode::DryRun => "dry run",
        };
        format!("rule \"{}\" {} on ports {} ({mode})", rule.name, limits.join(" and "), rule.ports)
    };
    let mut named: Vec<String> = rules.iter().take(RULES_NAMED_MAX).map(of).collect();
    let more = rules.len().saturating_sub(RULES_NAMED_MAX);
    if more > 0 {
        named.push(format!("and {more} more rules"));
    }
    let drops = rules.iter().any(|rule| rule.mode == Mode::Enforce);
    let does = if drops { "limiting" } else { "DRY RUN, nothing is dropped; counting" };
    format!("{does} each source on {}: {}", attached.join(", "), named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_report::fixture::config;

    #[test]
    fn the_first_line_says_what_is_limited_on_what_by_how_much_and_in_which_mode() {
        let mut config = config(std::path::Path::new("/run"), 3);
        assert_eq!(
            first_line(&config.policy, &config.interfaces),
            "limiting each source on eth0: rule \"default\" 3/5m connections on ports 80,443 (enforced)"
        );
        config.interfaces.push("eth1".into());
        config.policy.rules[0].mode = Mode::DryRun;
        assert_eq!(
            first_line(&config.policy, &config.interfaces),
            "DRY RUN, nothing is dropped; counting each source on eth0, eth1: rule \"default\" 3/5m connections on \
             ports 80,443 (dry run)"
        );
        config.policy.rules = vec![config.policy.rules[0].clone(); 6];
        assert!(
            first_line(&config.policy, &config.interfaces).ends_with("(dry run); and 2 more rules"),
            "{}",
            first_line(&config.policy, &config.interfaces)
        );
    }
}
