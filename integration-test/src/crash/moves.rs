//! Starts that take over the pins of an earlier layout, and are killed on the way: what is there before, and what holds
//! after the next start.
#![expect(clippy::wildcard_enum_match_arm, reason = "of few points something is special")]

use std::time::Duration;

use netlab::PacketSocket;
use ratelimit_crash::Point;

use super::ears::SLOWLY;
use super::policies::{Judged, Letter, WEB_MAX};
use super::{Cast, Ground, OVER, WORKS};
use crate::layouts::{Fixture, Kind, restore_trial};

/// The layout whose windows and counters are copied.
const COPIED: u32 = 7;
/// One whose windows and counters are taken over themselves.
const SHARED: u32 = 11;
/// Frames that the earlier program judges between a killed move and the next start.
const BETWEEN: u64 = 5;
/// How long a trial goes on.
const TRIAL: Duration = Duration::from_secs(240);

/// How long before the kill the last look at the windows began, at most: after the point before it was passed.
fn since_last_look(passed: &[(String, Duration)]) -> Duration {
    let looked = [Point::MoveRead.name(), Point::MoveRecopied.name()];
    let begun = passed.windows(2).rev().find(|of| looked.contains(&of[1].0.as_str())).map(|of| of[0].1);
    begun.zip(passed.last()).map_or(Duration::ZERO, |(begun, (_, killed))| killed.saturating_sub(begun))
}

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// A layout whose windows are copied.
    Copied,
    /// One that shares them.
    Shared,
    /// The first, once more: the move before was killed when one of two links had this version's program.
    Resumed,
    /// The first, on one interface: the other is attached anew.
    Widened,
    /// The first, and one of its interfaces is gone.
    Narrowed,
    /// The first, with a file on trial.
    OnTrial,
    /// The second, with a file on trial.
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

    /// Who sends slowly has so many frames at most between the last look at its window and the kill. With the kill, the
    /// larger of what both programs have admitted since is counted, not the sum.
    pub(super) fn misses(self, point: Point, passed: &[(String, Duration)]) -> u64 {
        match (self, point) {
            (Self::Shared | Self::SharedOnTrial, _) => 0,
            // What is attached anew is attached after the copy.
            (_, Point::Pinned | Point::Replaced | Point::MoveSwapped | Point::MoveCounted | Point::MoveCharged) => {
                1 + u64::try_from(since_last_look(passed).as_nanos() / SLOWLY.as_nanos()).expect(WORKS)
            }
            _ => 0,
        }
    }

    /// The second policy is what the file says, or what is on trial.
    pub(super) fn in_force_alone(self) -> Vec<Judged> {
        match self {
            Self::Resumed | Self::OnTrial | Self::SharedOnTrial => vec![Judged::ByB],
            Self::Copied | Self::Shared | Self::Widened | Self::Narrowed => vec![Judged::ByA, Judged::ByB],
        }
    }

    /// Puts the filter of the earlier version there.
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

    /// Makes what the start finds beside.
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
                // These meet the earlier program, which charges the earlier windows.
                let beside = PacketSocket::sender(&ground.lab.client, "c1").expect(WORKS);
                ground.ears.send_by(&beside, cast.named, 80, BETWEEN);
            }
            _ => {}
        }
    }

    /// After the next start: it is as if it had never been otherwise, and the second interface is let go.
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
