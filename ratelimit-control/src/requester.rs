//! The user, web page or host that requests a change.

use std::fmt;
use std::net::IpAddr;

use ratelimit_policy::config::syntax::printable;

/// Header in which the command line names the user who called `sudo`. It counts only from root, who could claim
/// anything.
pub(super) const SUDO_USER: &str = "ratelimitd-sudo-user";
/// Maximum bytes of an accepted user name. // LOGIN_NAME_MAX is 256; no tool that makes users takes more than 32
const NAME_BYTES_MAX: usize = 64;

/// Source of a change. Displayed as `root`, as `root (alice)` if alice called `sudo`, as `web` for the web page, or as
/// `fleet (web-2: root)` for an act that another host spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester(Who);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    User {
        uid: u32,
        sudo_user: Option<String>,
    },
    Web {
        from: Option<IpAddr>,
    },
    /// Description of the host and its requester.
    Fleet(String),
}

impl Requester {
    /// Returns the user with this UID. For root, `sudo_user` is added if it is a valid name.
    pub fn new(uid: u32, sudo_user: Option<&str>) -> Self {
        let is_name = |name: &&str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-@\\$+".contains(c);
            (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(allowed)
        };
        let sudo_user = sudo_user.filter(|name| uid == 0 && *name != "root").filter(is_name).map(str::to_owned);
        Self(Who::User { uid, sudo_user })
    }
}

impl Requester {
    /// Returns an unknown requester, for commands that change nothing and so name no requester.
    pub fn unknown() -> Self {
        // -1 is no valid UID: setuid(2).
        Self::new(u32::MAX, None)
    }

    /// Returns a requester on another host of the fleet; `who` is empty if a rule acted there.
    pub fn fleet(host: &str, who: &str) -> Self {
        let (host, who) = (printable(host), printable(who));
        Self(Who::Fleet(if who.is_empty() { format!("fleet ({host})") } else { format!("fleet ({host}: {who})") }))
    }

    /// Returns true if these words are the display of [`Self::fleet`].
    pub fn is_of_fleet(words: &str) -> bool {
        words.starts_with("fleet (") && words.ends_with(')')
    }

    /// Returns a user who is logged in to the web page. All its users share one login.
    pub const fn web(from: Option<IpAddr>) -> Self {
        Self(Who::Web { from })
    }

    /// Returns the address of a user of the web page.
    pub fn web_address(&self) -> Option<IpAddr> {
        match self.0 {
            Who::Web { from } => from.map(|from| from.to_canonical()),
            Who::User { .. } | Who::Fleet(_) => None,
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uid, sudo_user) = match &self.0 {
            Who::Web { .. } => return f.write_str("web"),
            Who::Fleet(words) => return f.write_str(words),
            Who::User { uid, sudo_user } => (uid, sudo_user),
        };
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(*uid)).ok().flatten();
        match (user, sudo_user) {
            (Some(user), None) => f.write_str(&user.name),
            (None, None) => write!(f, "uid {uid}"),
            (Some(user), Some(behind)) => write!(f, "{} ({behind})", user.name),
            (None, Some(behind)) => write!(f, "uid {uid} ({behind})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requester_on_another_host_is_named_with_that_host() {
        assert_eq!(Requester::fleet("web-2", "root (alice)").to_string(), "fleet (web-2: root (alice))");
        assert_eq!(Requester::fleet("web-2", "").to_string(), "fleet (web-2)");
        assert!(Requester::is_of_fleet(&Requester::fleet("web-2", "").to_string()));
        assert_eq!(Requester::fleet("web\u{1b}[2J", "").to_string(), "fleet (web\u{fffd}[2J)");
    }

    #[test]
    fn the_sudo_user_is_named_beside_root_and_nothing_else_is_taken_as_a_name() {
        for (uid, sudo_user, named) in [
            (0, None, "root"),
            (0, Some("alice"), "root (alice)"),
            (0, Some("EXAMPLE\\bob.b@c-d"), "root (EXAMPLE\\bob.b@c-d)"),
            (0, Some("root"), "root"),
            (0, Some(""), "root"),
            (0, Some("al ice"), "root"),
            (0, Some("alice)\u{1b}[2J"), "root"),
            (0, Some("\u{e9}l\u{e9}onore"), "root"),
            (0, Some(&"a".repeat(65)), "root"),
            (4_000_000_000, Some("alice"), "uid 4000000000"),
        ] {
            assert_eq!(Requester::new(uid, sudo_user).to_string(), named, "{uid} {sudo_user:?}");
        }
    }
}
