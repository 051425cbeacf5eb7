//! Names of well-known ports. The table is built in, so that a name means the same port on every host. Pure.

use super::syntax::near_miss;

/// Port names from the IANA registry, and other common names, ordered by port.
const NAMES: [(&str, u16); 56] = [
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("dns", 53),
    ("domain", 53),
    ("tftp", 69),
    ("http", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("ntp", 123),
    ("imap", 143),
    ("snmp", 161),
    ("bgp", 179),
    ("ldap", 389),
    ("https", 443),
    ("http3", 443),
    ("quic", 443),
    ("smb", 445),
    ("smtps", 465),
    ("submissions", 465),
    ("syslog", 514),
    ("submission", 587),
    ("ldaps", 636),
    ("dot", 853),
    ("domain-s", 853),
    ("rsync", 873),
    ("imaps", 993),
    ("pop3s", 995),
    ("openvpn", 1194),
    ("mssql", 1433),
    ("mqtt", 1883),
    ("nfs", 2049),
    ("etcd", 2379),
    ("mysql", 3306),
    ("mariadb", 3306),
    ("rdp", 3389),
    ("turn", 3478),
    ("stun", 3478),
    ("sip", 5060),
    ("sips", 5061),
    ("xmpp-client", 5222),
    ("xmpp-server", 5269),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("amqp", 5672),
    ("vnc", 5900),
    ("redis", 6379),
    ("irc", 6667),
    ("http-alt", 8080),
    ("https-alt", 8443),
    ("mqtts", 8883),
    ("git", 9418),
    ("memcached", 11211),
    ("mongodb", 27017),
    ("wireguard", 51820),
];

/// Returns the port with this name, in any case.
pub fn named(name: &str) -> Option<u16> {
    NAMES.into_iter().find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, port)| port)
}

/// Returns the name and port that a misspelled name most likely means.
pub fn near(name: &str) -> Option<(&'static str, u16)> {
    let meant = near_miss(name, NAMES.iter().map(|(of, _)| *of))?;
    NAMES.into_iter().find(|(of, _)| *of == meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_once_and_is_no_number() {
        for (at, (name, port)) in NAMES.into_iter().enumerate() {
            assert!(NAMES[..at].iter().all(|(of, before)| *of != name && *before <= port), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
            assert_eq!(named(&name.to_uppercase()), Some(port));
        }
        assert_eq!((named("sssh"), near("sssh")), (None, Some(("ssh", 22))));
    }
}
