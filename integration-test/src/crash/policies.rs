//! Two configurations that differ in everything that is written in a separate step, and the frames that tell them
//! apart.

use std::path::Path;

/// Maximum number of packets of a source that the rule `web` admits in an hour, in both configurations.
pub const WEB_MAX: u64 = 20;

/// One of the two configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// The first configuration.
    A,
    /// The second configuration.
    B,
}

impl Letter {
    /// Returns the other configuration.
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Configuration that judges frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Everything is judged by the first configuration.
    ByA,
    /// Everything is judged by the second configuration.
    ByB,
    /// No rule drops anything.
    ByNone,
}

impl Judged {
    /// Returns the result that this configuration gives.
    pub const fn by(letter: Letter) -> Self {
        match letter {
            Letter::A => Self::ByA,
            Letter::B => Self::ByB,
        }
    }

    /// Returns the frames that tell the configurations apart: source, port and count. `one` is a source that was never
    /// seen.
    pub(super) fn signs(one: [u8; 4]) -> [([u8; 4], u16, u64); 6] {
        let [_, _, third, fourth] = one;
        [
            ([203, 0, third, fourth], 80, 1),
            ([198, 18, third, fourth], 80, 1),
            (one, 83, 2),
            (one, 84, 2),
            (one, 85, 4),
            (one, 86, 2),
        ]
    }

    /// Returns the configuration in force, from the number of frames that passed for each of [`signs`](Self::signs).
    pub(super) fn of(passed: [u64; 6]) -> Option<Self> {
        match passed {
            [0, 1, 1, 2, 1, 1] => Some(Self::ByA),
            [1, 0, 2, 1, 3, 2] => Some(Self::ByB),
            // The deny lists may or may not hold in dry run.
            [_, _, 2, 2, 4, 2] => Some(Self::ByNone),
            _ => None,
        }
    }
}

/// Returns the text of one configuration.
pub fn config(letter: Letter, on_exit: &str, interfaces: &[&str], socket: &Path) -> String {
    let (denied, port, amount, target) = match letter {
        Letter::A => ("203.0.0.0/16", 83, 1, "192.0.2.1/32"),
        Letter::B => ("198.18.0.0/16", 84, 3, "198.51.100.0/24"),
    };
    let rule = |name: &str, ports: u16, limit: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nports = \"{ports}\"\ncount = \"packets\"\nlimits = [\"{limit}\"]\n{more}\n"
        )
    };
    let banning = "block_for = \"1h\"\nban_unverified = true";
    [
        format!("interfaces = {interfaces:?}\non_exit = \"{on_exit}\"\nmax_sources = 16384\n"),
        format!("socket = \"{}\"\ndeny = [\"192.0.2.0/24\", \"{denied}\"]\n", socket.display()),
        rule("web", 80, &format!("{WEB_MAX}/1h"), ""),
        rule("bans", 82, "2/1h", banning),
        rule(&format!("of-{letter:?}").to_lowercase(), port, "1/1h", ""),
        rule("amount", 85, &format!("{amount}/1h"), ""),
        rule("there", 86, "1/1h", &format!("to = [\"{target}\"]")),
    ]
    .concat()
}
