//! State that the datapath is to enforce: the configuration, its source, and what was applied last.
//!
//! Knows no datapath. The code that applies a policy records it here.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::source::ConfigSource;
use ratelimit_control::proto::{Problem, ProblemKind};
use ratelimit_policy::access::Entry;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::file::read_list;
use ratelimit_policy::config::listing::{Places, WrittenAt, places, places_of};
use ratelimit_policy::desired::{DesiredState, Grant};
use ratelimit_report::snapshot::{Clocks, Listed};

/// State that the datapath is to enforce.
#[derive(Debug)]
pub(super) struct Enforced {
    pub(super) config: Config,
    /// Policy applied last: the configuration changed by commands, safety, holds and the breaker.
    pub(super) desired: DesiredState,
    /// True if the datapath may differ from `desired`.
    pub(super) must_apply: bool,
    pub(super) source: ConfigSource,
}

impl Enforced {
    /// Creates the state of a configuration that is not applied yet.
    pub(super) fn new(config: Config, source: ConfigSource) -> Self {
        Self { desired: DesiredState::from(&config), must_apply: true, config, source }
    }

    /// Fails if a configuration has changes that need a restart.
    pub(super) fn can_follow(&self, config: &Config, path: &str) -> Result<(), Problem> {
        let fixed = self.config.restart_needed(config);
        if fixed.is_empty() {
            return Ok(());
        }
        let why = format!("{path} changes {}, which needs a restart; nothing was changed", fixed.join(" and "));
        Err(Problem::new(ProblemKind::Config, why))
    }

    /// Widens a prefix to the whole client, because bans and windows belong to clients.
    pub(super) fn whole_client(&self, prefix: IpNet) -> IpNet {
        let client = self.desired.policy.client(prefix.addr());
        if client.contains(&prefix) { client } else { prefix }
    }

    /// Returns every place where the configuration names a prefix for this grant.
    pub(super) fn written(&self, prefix: IpNet, grant: Grant) -> Vec<WrittenAt> {
        places_of(&self.config.listings, &self.config.list_files, (prefix, grant), &read_list)
    }

    /// Returns the first place of each prefix in the configuration.
    pub(super) fn places(&self) -> Places {
        places(&self.config.listings, &self.config.list_files, &read_list)
    }

    /// Describes the denials that commands cannot lift: the number of prefixes per place of the configuration.
    pub(super) fn denied_by_configuration(&self, clocks: Clocks) -> Vec<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let places = self.places();
        for access in self.config.policy.access.iter().filter(|of| of.grant == Grant::Denied) {
            let listed = Listed::of(&Entry::configured(access), true, clocks);
            let origin = listed.written(places.get(&(access.prefix, access.grant))).origin();
            *counts.entry(origin).or_default() += 1;
        }
        let words = |(origin, count): (String, usize)| {
            let prefixes = if count == 1 { "prefix stays" } else { "prefixes stay" };
            format!("{count} {prefixes} denied by {origin}")
        };
        counts.into_iter().map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_policy::config::XdpModeChoice;
    use ratelimit_policy::desired::Access;
    use ratelimit_report::fixture::config;

    fn enforced() -> Enforced {
        Enforced::new(config(std::path::Path::new("/nonexistent"), 3), ConfigSource::Flags)
    }

    #[test]
    fn a_configuration_that_needs_a_restart_is_refused_and_another_amount_is_not() {
        let enforced = enforced();
        let mut next = enforced.config.clone();
        next.policy.rules[0].limits[0].amount = 9;
        assert!(enforced.can_follow(&next, "a.toml").is_ok());
        next.xdp_mode = XdpModeChoice::Generic;
        let problem = enforced.can_follow(&next, "a.toml").unwrap_err();
        assert!(problem.message.starts_with("a.toml changes xdp_mode"), "{}", problem.message);
    }

    #[test]
    fn an_address_within_a_client_is_the_client_and_what_is_wider_stays() {
        let enforced = enforced();
        let whole = |prefix: &str| enforced.whole_client(prefix.parse().unwrap()).to_string();
        assert_eq!(whole("2001:db8::7/128"), "2001:db8::/64");
        assert_eq!(whole("2001:db8::/48"), "2001:db8::/48");
        assert_eq!(whole("192.0.2.7/32"), "192.0.2.7/32");
    }

    #[test]
    fn configured_denials_are_counted_by_the_place_that_states_them() {
        let mut enforced = enforced();
        let clocks = Clocks { now: ratelimit_common::time::Nanos(1), wall: jiff::Timestamp::UNIX_EPOCH };
        assert!(enforced.denied_by_configuration(clocks).is_empty());
        let denied = ["192.0.2.0/24", "198.51.100.0/24"].map(|prefix| Access::denied(prefix.parse().unwrap()));
        enforced.config.policy.access.extend(denied);
        let lines = enforced.denied_by_configuration(clocks);
        assert!(lines.len() == 1 && lines[0].starts_with("2 prefixes stay denied by "), "{lines:?}");
    }
}
