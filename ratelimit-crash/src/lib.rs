//! Crash points: steps of the daemon at which a test kills it, to check what stays in force and how the next start
//! recovers.
//!
//! A point is a value of [`Point`], and [`reach`] marks its step. Without the feature `armed`, which no shipped binary
//! has, [`reach`] does nothing and no point names are compiled. With the feature, a process ends by SIGKILL when the
//! file at [`VARIABLE`] names the point that it reaches. This crate does not depend on the limiter.

#![forbid(unsafe_code)]

#[cfg(feature = "armed")]
mod armed;

#[cfg(feature = "armed")]
pub use armed::{VARIABLE, arm, reached};

macro_rules! points {
    ($($point:ident $name:literal $step:literal)*) => {
        /// Step after which the process may be killed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $(#[doc = $step] $point,)*
        }

        #[cfg(feature = "armed")]
        impl Point {
            /// All points, in the order in which a daemon reaches them.
            pub const ALL: &[Self] = &[$(Self::$point,)*];

            /// Returns the point's name in the arming file: `PART.STEP`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }

            /// Describes the step that is complete at this point.
            #[must_use]
            pub const fn step(self) -> &'static str {
                match self {
                    $(Self::$point => $step,)*
                }
            }
        }
    };
}

points! {
    SocketBeside "socket.beside" "The control socket is bound beside its path."
    SocketBound "socket.bound" "It is in its place."
    PinsMade "pins.made" "The directories of the pins are there, unlocked."
    PinsLocked "pins.locked" "They are this process's."
    MoveCleared "move.cleared" "What an unfinished move left of this version's pins is removed."
    MoveShared "move.shared" "Maps that an earlier layout has alike have a second pin."
    MapsMade "load.maps" "The maps are made, or opened, and pinned."
    ProgramLoaded "load.program" "The program is verified."
    MoveConverted "move.converted" "An earlier layout's configurations are in this version's maps."
    LinksAside "take-over.aside" "Pins of renamed interfaces have names that are in nobody's way."
    LinksNamed "take-over.named" "They have their interfaces' names."
    MoveGone "move.gone" "An earlier layout's link is removed, as its interface is gone."
    TakenOver "load.taken-over" "The time base, the rows and the links of earlier runs are read."
    Recalled "start.recalled" "What commands entered in earlier runs is read."
    StartApplied "start.applied" "The policy is in maps that no link reads."
    Listed "attach.listed" "The interface has its row of counters."
    Linked "attach.linked" "The program is attached, its link held by this process alone."
    Pinned "attach.pinned" "The link is pinned."
    Replaced "adopt.replaced" "A pinned link has this process's program."
    MoveMarked "move.marked" "A pin tells the next start which program is this version's."
    MoveSwapped "move.swapped" "Every link of an earlier layout has this version's program; no packet is in the other."
    MoveUnshared "move.unshared" "Pins of all earlier maps are removed."
    MoveLink "move.link" "A link has its pin among this version's alone."
    MoveUnmarked "move.unmarked" "The program has no pin any more."
    MoveDone "move.done" "The earlier directory is gone."
    Adopted "adopt.attached" "All interfaces are attached; the policy of the earlier run is in force."
    AdoptApplied "adopt.applied" "This run's policy is in force."
    Started "start.attached" "The datapath does what the configuration says."
    Confined "start.confined" "Capabilities are given up."
    Serving "start.serving" "The socket is served."
    Ready "start.ready" "That is said."
    ApplyBegun "apply.begun" "A trial, if there was one, is over."
    ApplyRows "apply.rows" "Rows and budgets of new rules are cleared."
    ApplyPrefixes "apply.prefixes" "Prefixes of sources are written."
    ApplyTargets "apply.targets" "Prefixes of targets are written."
    ApplyPorts "apply.ports" "Ports are written."
    ApplyConfig "apply.config" "The rules are written, and no packet reads them yet."
    ApplyActive "apply.active" "Packets read them."
    ApplyDone "apply.done" "No packet reads the others any more."
    AccessTried "access.tried" "During a trial: who is denied is written into what is tried."
    AccessBefore "access.before" "It is also in what packets go back to."
    TrialRecorded "trial.recorded" "The record for a restart is written."
    TrialApplied "trial.applied" "What is tried is in force."
    ConfirmKept "confirm.kernel" "What is tried has no end any more."
    ConfirmSettled "confirm.settled" "Its record is removed."
    ConfirmDone "confirm.done" "Confirmed, it is the enforced policy."
    RollBackRecorded "rollback.recorded" "The record says that it was not confirmed."
    RollBackDone "rollback.done" "What held before the trial is in force."
    ReloadRead "reload.read" "The file is read and parsed."
    CarryAttached "reload.attached" "New interfaces are attached."
    CarryApplied "reload.applied" "The policy is in force."
    CarryDetached "reload.detached" "Interfaces that are left out are detached."
    ReloadCarried "reload.carried" "All of it is in force."
    ReloadSettled "reload.settled" "Trials of before are removed."
    StoreWritten "store.written" "A state file is written beside its place."
    StoreSynced "store.synced" "It is on the disk."
    StoreRenamed "store.renamed" "It has its name."
    StoreSaved "store.saved" "That is on the disk too."
    StoreRemoved "store.removed" "A state file is removed."
    GrantApplied "grant.applied" "An entry is in force."
    GrantKept "grant.kept" "It is in its file."
    WindowsRemoved "forget.windows" "Windows of freed sources are removed."
    BansRemoved "forget.bans" "Their bans are removed too."
    CacheRemoved "forget.cache" "The drop cache has nothing of them."
    Lifted "unblock.lifted" "Bans in the prefix are removed."
    ModeApplied "mode.applied" "Every rule has its mode."
    ModeKept "mode.kept" "That is in its file."
    Unpinned "detach.unpinned" "A link's pin is removed; this process holds the link."
    Detached "detach.done" "The link is let go."
    HistoryOpened "history.opened" "The database is open."
    HistoryBegun "history.begun" "A batch is begun."
    HistoryWritten "history.written" "Its rows are written, in a transaction."
    HistoryCommitted "history.committed" "The transaction is committed."
    FleetJoined "fleet.joined" "The task of the fleet is begun."
    FleetSpread "fleet.spread" "An act is handed to the fleet."
    FleetHeard "fleet.heard" "What another host spread is carried out."
    EndTold "end.told" "A stop has begun: the last events are told."
    EndLetGo "end.let-go" "Links that are not pinned are let go."
    EndLinks "end.links" "Pins of links are removed."
    EndMaps "end.maps" "Pins of maps are removed."
    EndDatapath "end.datapath" "The datapath is as the configuration wants it left."
    EndHistory "end.history" "The history is written."
    EndServed "end.served" "Nobody is served any more; the socket is there."
}

/// Marks a step as reached. With the feature `armed`, kills the process if the step's point is armed.
#[inline(always)]
pub fn reach(point: Point) {
    #[cfg(feature = "armed")]
    armed::reach(point);
    #[cfg(not(feature = "armed"))]
    let _ = point;
}
