//! Decision whether a line may charge its address.

use std::collections::VecDeque;

/// Number of recent lines that the check covers.
const LINES: usize = 1000;
/// Number of lines from other addresses, of [`LINES`], above which the log counts as written behind a proxy.
const OTHERS_MAX: usize = LINES / 2;
/// Number of lines from other addresses, of [`LINES`], below which charging begins again.
const OTHERS_LOW: usize = LINES / 4;

/// Numbers of lines by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Lines that were reconciled.
    pub charged: u64,
    /// Lines of addresses without a live window.
    pub not_a_peer: u64,
    /// Lines of peers that charged nothing because most lines are not of peers.
    pub proxied: u64,
    /// Lines that are not of the log's format.
    pub malformed: u64,
    /// Lines with a time too far in the past.
    pub too_old: u64,
    /// Lines with a time in the future.
    pub in_future: u64,
    /// Lines that exceed the bound on their length.
    pub too_long: u64,
    /// Bytes that were not read because reading was too far behind.
    pub skipped_bytes: u64,
}

/// Decision about one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The line is reconciled.
    Charge,
    /// The address is no peer.
    NotAPeer,
    /// The address is a peer, but most lines are not of peers.
    Proxied,
}

/// Relation between a log's addresses and the peers of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Most addresses in the log are peers.
    #[default]
    Direct,
    /// Most addresses in the log are not peers: a proxy stands before the server, and the log names its clients.
    Proxied,
}

/// Compares the addresses in a log with those that have a live window here.
///
/// No header is trusted: if the log names clients of a proxy, no line charges. A line of an address with an earlier
/// window charges nothing either, because a long request may end after its window. Such a line does not indicate a
/// proxy. The check needs 1000 lines before it decides. It decides `Proxied` if more than half of the last 1000 lines
/// are not of peers, and `Direct` again if fewer than a quarter are not.
#[derive(Debug, Default)]
pub struct PeerCheck {
    /// One entry per recent line: true if the line's address is or was a peer.
    recent: VecDeque<bool>,
    others: usize,
    peers: Peers,
    outcomes: Outcomes,
}

impl PeerCheck {
    /// Judges one line of the log's format and of an acceptable time. Also returns the new state of the log if the line
    /// changed it, for the caller to report once. `was_peer` is true if the line's address had a live window earlier.
    pub fn judge(&mut self, is_peer: bool, was_peer: bool) -> (Judgement, Option<Peers>) {
        let change = self.add(is_peer || was_peer);
        let (judgement, count) = match (is_peer, self.peers) {
            (false, _) => (Judgement::NotAPeer, &mut self.outcomes.not_a_peer),
            (true, Peers::Proxied) => (Judgement::Proxied, &mut self.outcomes.proxied),
            (true, Peers::Direct) => (Judgement::Charge, &mut self.outcomes.charged),
        };
        *count += 1;
        (judgement, change)
    }

    /// Adds counts of lines that the caller did not have judged.
    pub fn add_outcomes(&mut self, more: Outcomes) {
        let Outcomes { charged, not_a_peer, proxied, malformed, too_old, in_future, too_long, skipped_bytes } = more;
        let all = &mut self.outcomes;
        all.charged += charged;
        all.not_a_peer += not_a_peer;
        all.proxied += proxied;
        all.malformed += malformed;
        all.too_old += too_old;
        all.in_future += in_future;
        all.too_long += too_long;
        all.skipped_bytes += skipped_bytes;
    }

    /// Returns the counts of lines so far.
    #[must_use]
    pub fn outcomes(&self) -> Outcomes {
        self.outcomes
    }

    /// Returns the present relation between the log's addresses and the peers.
    #[must_use]
    pub fn peers(&self) -> Peers {
        self.peers
    }

    fn add(&mut self, is_peer: bool) -> Option<Peers> {
        if self.recent.len() == LINES && self.recent.pop_front() == Some(false) {
            self.others -= 1;
        }
        self.recent.push_back(is_peer);
        self.others += usize::from(!is_peer);
        let peers = match self.peers {
            Peers::Direct if self.recent.len() == LINES && self.others > OTHERS_MAX => Peers::Proxied,
            Peers::Proxied if self.others < OTHERS_LOW => Peers::Direct,
            Peers::Direct | Peers::Proxied => self.peers,
        };
        (std::mem::replace(&mut self.peers, peers) != peers).then_some(peers)
    }
}
