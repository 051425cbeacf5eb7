//! Effects of a policy on the host's administrators, in sentences. Pure.

use ratelimit_common::time::Nanos;

use super::{Around, SshSession};
use crate::access::merged;
use crate::config::Config;
use crate::desired::{Access, Grant, Mode, Policy, Protocol, Rule, Sent};

impl Around {
    /// Returns the effects of a configuration on the host's administrators, with the exemptions that follow from it
    /// on this host. One sentence each, without a full stop.
    pub fn warnings(&self, config: &Config, now: Nanos) -> Vec<String> {
        let configured = self.entries(config);
        let safety = self.exemptions(config.safety);
        let access = merged(safety.iter().chain(&configured), now);
        self.lockouts(&Policy { access, ..config.policy.clone() }, None, now)
    }

    /// Returns why `policy` must not follow `before` without a trial: it denies or limits the caller's session in a
    /// new way. None if it does not.
    pub fn objection_to_policy(policy: &Policy, before: &Policy, caller: SshSession, now: Nanos) -> Option<String> {
        let words = session_words(policy, &caller, now)?;
        (standing(policy, &caller, now) != standing(before, &caller, now)).then_some(words)
    }

    /// Returns the effects of a complete policy, with all entries of commands and safety. `caller` is the session of
    /// the user who asks for it.
    pub fn lockouts(&self, policy: &Policy, caller: Option<SshSession>, now: Nanos) -> Vec<String> {
        let mut sessions: Vec<SshSession> = caller.into_iter().chain(self.ssh).collect();
        sessions.dedup();
        let mut lines: Vec<String> = sessions.iter().filter_map(|of| session_words(policy, of, now)).collect();
        let gateways = self.gateways.iter().map(|of| (of, "the default gateway"));
        for (address, what) in gateways.chain(self.resolvers.iter().map(|of| (of, "a name server that this host asks")))
        {
            if let Some(denial) = policy.grant(*address, now).filter(|access| access.grant == Grant::Denied) {
                lines.push(format!("{address}, {what}, is denied as part of {}: `allow` it", denial.prefix));
            }
        }
        lines
    }
}

fn session_words(policy: &Policy, session: &SshSession, now: Nanos) -> Option<String> {
    let SshSession { peer, port, .. } = *session;
    let (rule, access) = standing(policy, session, now)?;
    match access {
        Some(denial) => Some(format!(
            "rule {} drops your own SSH session, from {peer} to port {port}: {peer} is denied as part of {}; `allow` it",
            rule.name, denial.prefix
        )),
        None => Some(format!(
            "rule {} limits your own SSH session, from {peer} to port {port}: over its limit you lock yourself out; `allow` {peer}, \
             take port {port} out of the rule, or try it with `apply --confirm`",
            rule.name
        )),
    }
}

/// Returns the rule that judges a session and may drop it, with the denial if there is one. None if nothing drops the
/// session.
fn standing<'a>(policy: &'a Policy, session: &SshSession, now: Nanos) -> Option<(&'a Rule, Option<Access>)> {
    let SshSession { peer, host, port } = *session;
    let sent = Sent { from: peer, to: Some(host), protocol: Protocol::Tcp, port };
    let (_, rule) = policy.rule_for(&sent, now).filter(|(_, rule)| rule.mode == Mode::Enforce)?;
    let access = policy.grant(peer, now);
    let is_exempt = access.as_ref().is_some_and(|access| access.grant == Grant::Exempt);
    (!is_exempt).then_some((rule, access))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use std::path::Path;

    const DAY: Nanos = Nanos(1_800_000_000_000_000_000);

    fn around() -> Around {
        let address = |text: &str| text.parse().unwrap();
        Around {
            ssh: super::super::ssh_session("198.51.100.7 51000 203.0.113.5 2222"),
            gateways: vec![address("192.0.2.1")],
            resolvers: vec![address("192.0.2.53")],
            own: Vec::new(),
            stores: Vec::new(),
            logins: Vec::new(),
        }
    }

    fn config(ports: &str, top: &str, safety: &str) -> Config {
        let text = format!(
            "interfaces = [\"eth0\"]\n{top}\n[rule]\nports = \"{ports}\"\nlimits = [\"9/1m\"]\n[safety]\n{safety}\n"
        );
        file::parse(Path::new("r.toml"), &text, |_| Err("none".to_owned())).expect(&text)
    }

    #[test]
    fn a_rule_that_limits_the_session_it_is_made_from_is_said() {
        let off = "exempt_ssh_peer = false";
        for (ports, top, safety, words) in [
            ("80,2222", "", off, Some("rule default limits your own SSH session, from 198.51.100.7 to port 2222")),
            ("all", "", off, Some("limits your own SSH session")),
            ("2222/udp,22,80", "", off, None),
            ("80,2222", "allow = [\"198.51.100.0/24\"]", off, None),
            ("80,2222", "deny = [\"198.51.100.0/24\"]", off, Some("is denied as part of 198.51.100.0/24")),
            ("80,2222", "deny = [\"198.51.100.0/24\"]", "", None),
            ("80,2222", "", "", None),
        ] {
            let found = around().warnings(&config(ports, top, safety), DAY);
            assert_eq!(found.len(), usize::from(words.is_some()), "{ports} {top} {safety}: {found:?}");
            assert!(found.iter().all(|line| words.is_some_and(|words| line.contains(words))), "{found:?}");
        }
        let mut dry = config("2222", "", off);
        dry.policy.rules[0].mode = Mode::DryRun;
        assert!(around().warnings(&dry, DAY).is_empty());
    }

    #[test]
    fn the_session_of_the_user_who_asks_counts_as_well_and_each_once() {
        let policy = config("2222", "", "").policy;
        let caller = super::super::ssh_session("203.0.113.9 4 203.0.113.5 2222");
        assert_eq!(around().lockouts(&policy, caller, DAY).len(), 2);
        assert_eq!(around().lockouts(&policy, around().ssh, DAY).len(), 1);
    }

    #[test]
    fn a_denial_that_holds_a_gateway_or_a_name_server_is_said_where_they_are_not_exempt() {
        let deny = "deny = [\"192.0.2.0/24\"]";
        assert!(around().warnings(&config("80", deny, ""), DAY).is_empty());
        let off = "exempt_gateway = false\nexempt_resolvers = false";
        let found = around().warnings(&config("80", deny, off), DAY);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("192.0.2.1, the default gateway, is denied as part of 192.0.2.0/24"));
        assert!(found[1].starts_with("192.0.2.53, a name server"));
    }
}
