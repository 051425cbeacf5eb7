//! Starts that take over the pins of an earlier layout and are killed on the way: the state before, and what holds
//! after the next start.

use std::time::Duration;

use netlab::PacketSocket;
use ratelimit_crash::Point;

use super::policies::{Judged, Letter, WEB_MAX};
use super::{Cast, Ground, OVER, WORKS};
use crate::layouts::{EARLIER, Fixture, Kind, restore_trial};

/// Number of frames that the earlier program judges between a killed move and the next start.
const BETWEEN: u64 = 5;
/// Duration of a trial.
const TRIAL: Duration = Duration::from_secs(240);

/// State that a start takes over from the earlier layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// A filter on two interfaces.
    Whole,
    /// A filter after an earlier move that was killed when one of two links had this version's program.
    Resumed,
    /// A filter on one interface; the start attaches a second one.
    Widened,
    /// A filter on two interfaces, one of which is gone.
    Narrowed,
    /// A filter with a file on trial.
    OnTrial,
}

impl Moved {
    /// Returns the policies that may be in force after the kill. The second one is in the file or on trial.
    pub(super) fn in_force_alone(self) -> Vec<Judged> {
        match self {
            Self::Resumed | Self::OnTrial => vec![Judged::ByB],
            Self::Whole | Self::Widened | Self::Narrowed => vec![Judged::ByA, Judged::ByB],
        }
    }

    /// Restores the pins and the filter of the earlier layout.
    pub(super) fn prepare(self, ground: &mut Ground) {
        ground.remove();
        match self {
            Self::OnTrial => restore_trial(&ground.lab, TRIAL),
            Self::Widened => Fixture::of(EARLIER, Kind::Letters).restore(&ground.lab),
            Self::Whole | Self::Resumed | Self::Narrowed => {
                Fixture::of(EARLIER, Kind::Letters).restore_on(&ground.lab, &["s0", "s1"]);
            }
        }
        ground.letter = Letter::A;
    }

    /// Prepares the configuration and interfaces that the start finds.
    pub(super) fn clear(self, ground: &mut Ground, cast: Cast) {
        ground.write(Letter::B, "keep", &["s0", "s1"]);
        match self {
            Self::OnTrial => {
                ground.write(Letter::A, "keep", &["s0", "s1"]);
                ground.write_other(Letter::B);
            }
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
            Self::Whole | Self::Widened => {}
        }
    }

    /// Checks that the next start leaves no trace of the kill, and detaches the second interface.
    pub(super) fn settle(self, ground: &mut Ground, cast: Cast) {
        ground.letter = Letter::B;
        match self {
            Self::Resumed => ground.assert_passing(cast.named, 80, OVER, WEB_MAX - BETWEEN),
            Self::Narrowed => ground.lab.connect_second_ends(),
            Self::OnTrial => {
                ground.must(&["rollback"]);
                assert_eq!(ground.ears.judge(), Judged::ByA, "after a roll-back");
                ground.letter = Letter::A;
            }
            Self::Whole | Self::Widened => {}
        }
        ground.write(ground.letter, "keep", &["s0"]);
        ground.must(&["reload"]);
    }
}
