//! Filters that keep enforcing while no daemon answers, as values. `ratelimit-kernel` finds them by their pins.

use std::path::PathBuf;
use std::time::Duration;

/// Findings about filters without an answering daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// No filters were found.
    Nothing,
    /// The filters keep enforcing.
    Enforcing(Left),
    /// A running daemon with this process id holds them. It answers at another socket.
    Held(u32),
    /// This user may not read this directory.
    Hidden(PathBuf),
    /// The pins may be another user's and are not trusted. The text says why, and what to do.
    Foreign(String),
}

/// Filters left by an earlier run, of this or another layout version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Directory that contains all pins.
    pub root: PathBuf,
    /// Directory of the layout version.
    pub dir: PathBuf,
    /// Layout of the pinned state.
    pub layout: PinnedLayout,
    /// Current interface names if readable, each with the file of its link. Sorted.
    pub links: Vec<(String, PathBuf)>,
    /// Time without a daemon, if known.
    pub alone: Option<Duration>,
    /// Time at which enforcement lapses, if it is set and this user may read it.
    pub lapse: Option<Lapse>,
}

/// Layout of pinned state, compared with the layout of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedLayout {
    /// The layout of this version.
    Own,
    /// An earlier layout, which a starting daemon of this version takes over.
    Earlier,
    /// A layout that this version does not read.
    Unknown,
}

/// Time at which a filter without a daemon stops dropping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// The lapse comes after this time.
    In(Duration),
    /// The lapse came this long ago.
    Since(Duration),
}

impl Left {
    /// Returns the interface names, joined by commas.
    pub fn interfaces(&self) -> String {
        self.links.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether a starting daemon of this version takes the filters over.
    pub const fn is_taken_over(&self) -> bool {
        matches!(self.layout, PinnedLayout::Own | PinnedLayout::Earlier)
    }

    /// Returns whether this program reads the pinned state.
    pub const fn is_of_this_version(&self) -> bool {
        matches!(self.layout, PinnedLayout::Own)
    }
}
