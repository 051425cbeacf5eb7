//! Operations that a kill interrupts: how each is prepared and started, which configurations may be in force
//! afterwards, and what must hold after the next start.
#![expect(clippy::wildcard_enum_match_arm, reason = "an act is of few points, and few acts change what is in force")]

use nix::sys::signal::Signal;
use ratelimit_crash::Point;
use serde_json::Value;

use super::moves::Moved;
use super::policies::{Judged, Letter, WEB_MAX};
use super::{Cast, Ground, OVER, word};

/// An operation of the daemon that a kill interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A start where nothing is pinned.
    Start,
    /// A start that takes over what a killed daemon left behind.
    Adopt,
    /// A start after a kill, with a changed configuration file.
    AdoptOther,
    /// A start after a kill, with a renamed interface.
    AdoptRenamed,
    /// SIGHUP, after the file was changed.
    Reload,
    /// A reload that attaches to another interface.
    AddInterface,
    /// A reload that detaches from an interface.
    DropInterface,
    /// `apply --confirm`, the start of a trial.
    Trial,
    /// `confirm` during a trial.
    Confirm,
    /// `rollback` during a trial.
    RollBack,
    /// `deny` of a source.
    Deny,
    /// `deny` while a file is on trial.
    DenyOnTrial,
    /// `allow` of a source.
    Allow,
    /// `unblock` of a source that a command denies.
    Undeny,
    /// `unallow` of an allowed source.
    Unallow,
    /// `unblock` of a banned source.
    Unblock,
    /// `panic`, which stops all dropping.
    Panic,
    /// `mode enforce`, after `panic`.
    Enforce,
    /// SIGTERM, with `on_exit = "keep"`.
    StopKeep,
    /// SIGTERM, with `on_exit = "detach"`.
    StopDetach,
    /// `detach` of the filter.
    Detach,
    /// A start over the pins of another layout, on two interfaces, after the file was changed.
    Move(Moved),
}

impl Act {
    /// Returns whether the operation is a start, before which the earlier daemon must end.
    pub(super) const fn starts(self) -> bool {
        matches!(self, Self::Start | Self::Adopt | Self::AdoptOther | Self::AdoptRenamed | Self::Move(_))
    }

    /// Returns whether the filter must keep its counts throughout, which excludes operations that stop it on purpose.
    pub(super) const fn keeps_counts(self) -> bool {
        !matches!(self, Self::Start | Self::StopDetach | Self::Detach | Self::Panic | Self::Enforce)
    }

    /// Fraction of runs that include this operation, as one in N. Moves take more than twice as long, so they run less
    /// often.
    pub const fn in_every(self) -> usize {
        match self {
            Self::Move(_) => 3,
            _ => 1,
        }
    }

    /// Returns whether the banned source stays banned.
    pub(super) const fn keeps_bans(self) -> bool {
        !matches!(self, Self::Unblock)
    }

    /// Returns whether the operation only changes whether anything is dropped, so that counts outlive it.
    pub(super) const fn ends_mode(self) -> bool {
        matches!(self, Self::Panic | Self::Enforce)
    }

    /// Returns the policies that may be in force after the kill, without a daemon.
    pub(super) fn in_force_alone(self, before: Letter) -> Vec<Judged> {
        let (old, new) = (Judged::by(before), Judged::by(before.other()));
        match self {
            Self::AdoptOther | Self::Reload | Self::Trial | Self::Confirm | Self::RollBack => vec![old, new],
            Self::DenyOnTrial => vec![new],
            Self::Move(moved) => moved.in_force_alone(),
            Self::Start | Self::Panic | Self::Enforce | Self::StopDetach | Self::Detach => vec![old, Judged::ByNone],
            _ => vec![old],
        }
    }

    /// Returns the policies that may be in force once a daemon runs again.
    pub(super) fn in_force_after(self, before: Letter) -> Vec<Judged> {
        let (old, new) = (Judged::by(before), Judged::by(before.other()));
        match self {
            Self::AdoptOther | Self::Reload | Self::DenyOnTrial | Self::Move(_) => vec![new],
            Self::Trial | Self::Confirm | Self::RollBack => vec![old, new],
            Self::Panic | Self::Enforce => vec![old, Judged::ByNone],
            _ => vec![old],
        }
    }

    /// Prepares what the operation needs while the daemon still runs.
    pub(super) fn prepare(self, ground: &mut Ground, cast: Cast) {
        let (before, named) = (ground.letter, word(cast.named));
        match self {
            Self::DropInterface => {
                ground.write(before, "keep", &["s0", "s1"]);
                ground.must(&["reload"]);
            }
            Self::Confirm | Self::RollBack => {
                ground.write(before.other(), "keep", &["s0"]);
                ground.must(&["apply", "--confirm", "5m"]);
            }
            Self::DenyOnTrial => {
                ground.write_other(before.other());
                ground.must(&["apply", &ground.other_file().to_string_lossy(), "--confirm", "5m"]);
            }
            Self::Undeny => drop(ground.must(&["deny", &named, "--for", "1h"])),
            Self::Unallow => drop(ground.must(&["allow", &named, "--for", "1h"])),
            Self::StopDetach => {
                ground.kill();
                ground.must(&["detach"]);
                ground.write(before, "detach", &["s0"]);
                ground.start();
            }
            Self::Move(moved) => moved.prepare(ground),
            _ => {}
        }
    }

    /// Completes the preparation once the run's sources have their windows. Before a start no daemon runs.
    pub(super) fn clear(self, ground: &mut Ground, cast: Cast) {
        let before = ground.letter;
        match self {
            Self::Start => drop(ground.must(&["detach"])),
            Self::AdoptOther => ground.write(before.other(), "keep", &["s0"]),
            Self::AdoptRenamed => {
                ground.lab.rename("s0", "s7");
                ground.write(before, "keep", &["s7"]);
            }
            Self::Enforce => drop(ground.must(&["panic"])),
            Self::Move(moved) => moved.clear(ground, cast),
            _ => {}
        }
    }

    /// Starts the operation, during which the daemon is killed.
    pub(super) fn drive(self, ground: &mut Ground, cast: Cast) {
        let (before, named, banned) = (ground.letter, word(cast.named), word(cast.banned));
        // Commands fail because nobody answers any more.
        let tell = |ground: &Ground, args: &[&str]| drop(ground.lab.ratelimitd(args));
        match self {
            Self::Start | Self::Adopt | Self::AdoptOther | Self::AdoptRenamed | Self::Move(_) => ground.start_to_die(),
            Self::Reload => {
                ground.write(before.other(), "keep", &["s0"]);
                ground.signal(Signal::SIGHUP);
            }
            Self::AddInterface => {
                ground.write(before, "keep", &["s0", "s1"]);
                tell(ground, &["reload"]);
            }
            Self::DropInterface => {
                ground.write(before, "keep", &["s0"]);
                tell(ground, &["reload"]);
            }
            Self::Trial => {
                ground.write_other(before.other());
                tell(ground, &["apply", &ground.other_file().to_string_lossy(), "--confirm", "5m"]);
            }
            Self::Confirm => tell(ground, &["confirm"]),
            Self::RollBack => tell(ground, &["rollback"]),
            Self::Deny | Self::DenyOnTrial => tell(ground, &["deny", &named, "--for", "1h"]),
            Self::Allow => tell(ground, &["allow", &named, "--for", "1h"]),
            Self::Undeny => tell(ground, &["unblock", &named]),
            Self::Unallow => tell(ground, &["unallow", &named]),
            Self::Unblock => tell(ground, &["unblock", &banned]),
            Self::Panic => tell(ground, &["panic"]),
            Self::Enforce => tell(ground, &["mode", "enforce"]),
            Self::StopKeep | Self::StopDetach => ground.signal(Signal::SIGTERM),
            Self::Detach => tell(ground, &["detach"]),
        }
    }

    /// Checks what the operation requires after the next start, and restores the state before it.
    pub(super) fn settle(self, ground: &mut Ground, cast: Cast, point: Point, before: Letter) {
        match self {
            Self::AdoptOther | Self::Reload => ground.letter = before.other(),
            Self::AdoptRenamed => {
                ground.kill();
                ground.lab.rename("s7", "s0");
                ground.write(before, "keep", &["s0"]);
                ground.start();
            }
            Self::AddInterface => {
                ground.write(before, "keep", &["s0"]);
                ground.must(&["reload"]);
            }
            Self::Trial => {
                // A file that is no longer on trial cannot be rolled back.
                let _is_rolled_back = ground.lab.ratelimitd(&["rollback"]);
                assert_eq!(ground.ears.judge(), Judged::by(before), "after a roll-back");
            }
            Self::Confirm | Self::RollBack => end_trial_of_own_file(self, ground, before),
            Self::Deny => {
                assert_one_of(ground, cast, "denied", &[0, WEB_MAX]);
                assert_history(ground, cast, point);
            }
            Self::DenyOnTrial => {
                let is_denied = assert_one_of(ground, cast, "denied", &[0, WEB_MAX]);
                ground.must(&["rollback"]);
                assert_eq!(ground.ears.judge(), Judged::by(before), "after a roll-back");
                ground.assert_passing(cast.named, 82, 1, u64::from(!is_denied));
            }
            Self::Allow => drop(assert_one_of(ground, cast, "exempt", &[OVER, WEB_MAX])),
            Self::Undeny => drop(assert_one_of(ground, cast, "denied", &[0, WEB_MAX])),
            Self::Unallow => drop(assert_one_of(ground, cast, "exempt", &[OVER, WEB_MAX])),
            Self::Unblock => assert_banned_or_free(ground, cast),
            Self::Panic | Self::Enforce => {
                let is_held = ground.json(&["stats"])["hold"].is_object();
                assert_eq!(ground.ears.judge() == Judged::ByNone, is_held, "what is said, and what is done");
                ground.must(&["mode", "enforce"]);
            }
            Self::StopDetach => {
                ground.kill();
                ground.write(before, "keep", &["s0"]);
                ground.start();
            }
            Self::Move(moved) => moved.settle(ground, cast),
            Self::Start | Self::Adopt | Self::DropInterface | Self::StopKeep | Self::Detach => {}
        }
    }
}

/// Asserts that the trial of the daemon's own file holds for good or not at all, and makes the file agree.
fn end_trial_of_own_file(act: Act, ground: &mut Ground, before: Letter) {
    let _may_be_over = ground.lab.ratelimitd(&["rollback"]);
    let judged = ground.ears.judge();
    if judged == Judged::by(before) {
        ground.write(before, "keep", &["s0"]);
    } else {
        assert_eq!((act, judged), (Act::Confirm, Judged::by(before.other())), "after a roll-back");
        ground.letter = before.other();
    }
    ground.must(&["reload"]);
    assert_eq!(ground.ears.judge(), Judged::by(ground.letter), "after a reload");
}

/// Asserts that a command's effect on a source is both listed and applied, or neither, and returns whether it is.
/// `passing` is the number of frames that pass with the effect and without.
fn assert_one_of(ground: &Ground, cast: Cast, state: &str, passing: &[u64; 2]) -> bool {
    let listed = ground.listed(cast.named);
    assert!(listed.as_deref().is_none_or(|of| of == state), "{listed:?}");
    ground.assert_passing(cast.named, 80, OVER, passing[usize::from(listed.is_none())]);
    listed.is_some()
}

/// Asserts that the history contains the act exactly once if it was committed, and otherwise not at all.
fn assert_history(ground: &Ground, cast: Cast, point: Point) {
    let is_committed = match point {
        Point::HistoryCommitted => true,
        Point::HistoryBegun | Point::HistoryWritten => false,
        _ => return,
    };
    let history: Value = ground.json(&["history", &word(cast.named)]);
    let acts = history["acts"].as_array().expect("acts").len();
    assert_eq!(acts, usize::from(is_committed), "{history:#}");
}

/// Asserts that the source is banned as before, or free: no ban, and its whole limit left.
fn assert_banned_or_free(ground: &Ground, cast: Cast) {
    let before = ground.ears.heard(cast.banned, 82);
    ground.ears.send(cast.banned, 82, 4);
    ground.ears.fence();
    let admitted = ground.ears.heard(cast.banned, 82);
    assert!(
        [2, 4].contains(&admitted),
        "{admitted} of the source that was to be freed came through, {before} of them before"
    );
    assert_eq!(ground.listed(cast.banned).as_deref(), Some("banned"), "it was banned, or is again");
}
