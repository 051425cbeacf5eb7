//! Tests of the decision which lines may charge.

use crate::{Judgement, PeerCheck, Peers};

/// Judges `lines` lines and returns the reported changes.
fn judge(check: &mut PeerCheck, lines: usize, is_peer: bool) -> Vec<Peers> {
    (0..lines).filter_map(|_| check.judge(is_peer, false).1).collect()
}

#[test]
fn lines_of_peers_charge_and_others_do_not() {
    let mut check = PeerCheck::default();
    assert_eq!(check.judge(true, false), (Judgement::Charge, None));
    assert_eq!(check.judge(false, false), (Judgement::NotAPeer, None));
    assert_eq!((check.outcomes().charged, check.outcomes().not_a_peer), (1, 1));
}

#[test]
fn a_log_of_clients_of_a_proxy_stops_charging_and_says_so_once() {
    let mut check = PeerCheck::default();
    assert_eq!(judge(&mut check, 500, true), []);
    assert_eq!(judge(&mut check, 499, false), []);
    assert_eq!(check.judge(false, false), (Judgement::NotAPeer, None));
    assert_eq!(check.peers(), Peers::Direct);
    assert_eq!(check.judge(false, false), (Judgement::NotAPeer, Some(Peers::Proxied)));
    assert_eq!(judge(&mut check, 5000, false), []);
    assert_eq!(check.judge(true, false), (Judgement::Proxied, None));
    assert_eq!(check.outcomes().proxied, 1);
}

#[test]
fn half_of_the_lines_may_be_of_others() {
    let mut check = PeerCheck::default();
    for _ in 0..5000 {
        assert_eq!(check.judge(true, false), (Judgement::Charge, None));
        assert_eq!(check.judge(false, false), (Judgement::NotAPeer, None));
    }
}

#[test]
fn charging_begins_again_when_most_lines_are_of_peers() {
    let mut check = PeerCheck::default();
    assert_eq!(judge(&mut check, 1000, false), [Peers::Proxied]);
    assert_eq!(judge(&mut check, 750, true), []);
    assert_eq!(check.judge(true, false), (Judgement::Charge, Some(Peers::Direct)));
    // Stopping again requires many lines of other addresses.
    assert_eq!(judge(&mut check, 251, false), []);
}

#[test]
fn addresses_whose_windows_are_over_charge_nothing_and_do_not_speak_for_a_proxy() {
    let mut check = PeerCheck::default();
    for _ in 0..5000 {
        assert_eq!(check.judge(false, true), (Judgement::NotAPeer, None));
    }
    assert_eq!((check.peers(), check.outcomes().not_a_peer), (Peers::Direct, 5000));
}
