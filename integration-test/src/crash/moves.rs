//! Starts that take over the pins of an earlier layout and are killed on the way: the state before, and what holds
//! after the next start.
#![expect(clippy::wildcard_enum_match_arm, reason = "of few points something is special")]

use std::time::Duration;

use netlab::PacketSocket;
use ratelimit_crash::Point;

use super::ears::SLOWLY;
use super::policies::{Judged, Letter, WEB_MAX};
use super::{Cast, Ground, OVER, WORKS};
use crate::layouts::{Fixture, Kind, restore_trial};

/// Layout with windows and counters that are copied.
const COPIED: u32 = 7;
/// Layout with windows and counters that are taken over themselves.
const SHARED: u32 = 11;
/// Number of frames that the earlier program judges between a killed move and the next start.
const BETWEEN: u64 = 5;
/// Duration of a trial.
const TRIAL: Duration = Duration::from_secs(240);

/// Returns an upper bound of the time between the start of the last look at the windows and the kill. The look began
/// after the point before it was passed.
fn since_last_look(passed: &[(String, Duration)]) -> Duration {
    let looked = [Point::MoveRead.name(), Point::MoveRecopied.name()];
    let begun = passed.windows(2).rev().find(|of| looked.contains(&of[1].0.as_str())).map(|of| of[0].1);
    begun.zip(passed.last()).map_or(Duration::ZERO, |(begun, (_, killed))| killed.saturating_sub(begun))
}

/// State that a start takes over from an earlier layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// A layout with windows that are copied.
    Copied,
    /// A layout with windows that are shared.
    Shared,
    /// A copied layout after an earlier move that was killed when one of two links had this version's program.
    Resumed,
    /// A copied layout on one interface; the start attaches a second one.
    Widened,
    /// A copied layout with an interface that is gone.
    Narrowed,
    /// A copied layout with a file on trial.
    OnTrial,
    /// A shared layout with a file on trial.
    SharedOnTrial,
}

impl Moved {
    const fn layout(self) -> u32 {
        match self {
            Self::Copied | Self::Resumed | Self::Widened | Self::Narrowed | Self::OnTrial => COPIED,
            Self::Shared | Self::SharedOnTrial => SHARED,
        }
    }

    const fn is_on_trial(self) -> bool {
        matches!(self, Self::OnTrial | Self::SharedOnTrial)
    }

    /// Returns how many frames of the slow source may be admitted beyond the limit: those between the last look at its
    /// window and the kill. After the kill, the larger of both programs' admissions counts, not their sum.
    pub(super) fn misses(self, point: Point, passed: &[(String, Duration)]) -> u64 {
        match (self, point) {
            (Self::Shared | Self::SharedOnTrial, _) => 0,
            // An additional interface is attached after the copy.
            (_, Point::Pinned | Point::Replaced | Point::MoveSwapped | Point::MoveCounted | Point::MoveCharged) => {
                1 + u64::try_from(since_last_look(passed).as_nanos() / SLOWLY.as_nanos()).expect(WORKS)
            }
            _ => 0,
        }
    }

    /// Returns the policies that may be in force after the kill. The second one is in the file or on trial.
    pub(super) fn in_force_alone(self) -> Vec<Judged> {
        match self {
            Self::Resumed | Self::OnTrial | Self::SharedOnTrial => vec![Judged::ByB],
            Self::Copied | Self::Shared | Self::Widened | Self::Narrowed => vec![Judged::ByA, Judged::ByB],
        }
    }

    /// Restores the pins and the filter of the earlier layout.
    pub(super) fn prepare(self, ground: &mut Ground) {
        ground.remove();
        match self {
            Self::OnTrial | Self::SharedOnTrial => restore_trial(&ground.lab, self.layout(), TRIAL),
            Self::Widened => Fixture::of_kind(self.layout(), Kind::Letters).restore(&ground.lab),
            Self::Copied | Self::Shared | Self::Resumed | Self::Narrowed => {
                Fixture::of_kind(self.layout(), Kind::Letters).restore_on(&ground.lab, &["s0", "s1"]);
            }
        }
        ground.letter = Letter::A;
    }

    /// Prepares the configuration and interfaces that the start finds.
    pub(super) fn clear(self, ground: &mut Ground, cast: Cast) {
        if self.is_on_trial() {
            ground.write(Letter::A, "keep", &["s0", "s1"]);
            return ground.write_other(Letter::B);
        }
        ground.write(Letter::B, "keep", &["s0", "s1"]);
        match self {
            Self::Narrowed => {
                ground.write(Letter::B, "keep", &["s0"]);
                ground.lab.client.ip(&["link", "del", "c1"]).expect(WORKS);
            }
            Self::Resumed => {
                ground.arm(Point::Replaced, 0);
                ground.start_to_die();
                ground.await_death(Point::Replaced);
                // The earlier program judges these frames, and charges the earlier windows.
                let beside = PacketSocket::sender(&ground.lab.client, "c1").expect(WORKS);
                ground.ears.send_by(&beside, cast.named, 80, BETWEEN);
            }
            _ => {}
        }
    }

    /// Checks that the next start leaves no trace of the kill, and detaches the second interface.
    pub(super) fn settle(self, ground: &mut Ground, cast: Cast) {
        ground.letter = Letter::B;
        match self {
            Self::Resumed => ground.assert_passing(cast.named, 80, OVER, WEB_MAX - BETWEEN),
            Self::Narrowed => ground.lab.connect_second_ends(),
            Self::OnTrial | Self::SharedOnTrial => {
                ground.must(&["rollback"]);
                assert_eq!(ground.ears.judge(), Judged::ByA, "after a roll-back");
                ground.letter = Letter::A;
            }
            Self::Copied | Self::Shared | Self::Widened => {}
        }
        ground.write(ground.letter, "keep", &["s0"]);
        ground.must(&["reload"]);
    }
}
