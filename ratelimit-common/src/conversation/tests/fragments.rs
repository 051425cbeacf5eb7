//! Tests of connections that came in fragments, so that the bytes seen are not those that the server receives.

use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const TURNS: u32 = 20;

/// Returns decoys of `len` bytes that begin like a handshake record and like a data record of 18 KB.
fn decoys(len: usize) -> [Vec<u8>; 2] {
    [b"\x16\x03\x01\x48\x00\x01", b"\x17\x03\x03\x48\x00\x01"].map(|begins| {
        let mut decoy = begins.to_vec();
        decoy.resize(len, b'x');
        decoy
    })
}

impl Client {
    /// Passes a first fragment.
    fn begins_fragments(&mut self) {
        let known = &mut self.server.as_mut().unwrap().known;
        let mut newest = known.unwrap_or_default();
        newest.come_in_fragments(known.is_some());
        *known = Some(newest);
    }

    /// Sends a decoy that is seen instead of the server's bytes, which come in fragments. It comes before the first
    /// fragment or between two.
    fn sends_in_fragments(&mut self, decoy: &[u8], is_between: bool) {
        if is_between {
            self.begins_fragments();
        }
        let received = self.server.as_ref().unwrap().received;
        self.sends(decoy);
        self.server.as_mut().unwrap().received = received;
        if !is_between {
            self.begins_fragments();
        }
        self.server.as_mut().unwrap().received = self.sequence;
    }
}

#[test]
fn each_request_counts_behind_one_in_fragments_whatever_was_seen_in_its_place() {
    for (decoy, is_between) in decoys(GET.len()).iter().flat_map(|decoy| [(decoy, false), (decoy, true)]) {
        let mut client = Client::with_socket();
        client.sends_in_fragments(decoy, is_between);
        client.hears(ANSWER);
        for turn in 0..TURNS {
            assert_eq!(client.sends(GET), 1, "{decoy:?}, turn {turn}");
            client.hears(ANSWER);
        }
    }
}

#[test]
fn each_turn_counts_behind_a_record_in_fragments_whatever_was_seen_in_its_place() {
    let records = [b"\x17\x03\x03\x00\x40".as_slice(), &[0x99; 64]].concat();
    for (decoy, is_between) in decoys(records.len()).iter().flat_map(|decoy| [(decoy, false), (decoy, true)]) {
        let mut client = Client::with_socket();
        client.sends_in_fragments(decoy, is_between);
        let mut counted = 0;
        for _ in 0..TURNS {
            client.hears(2 * ANSWER);
            counted += client.sends(&records);
        }
        assert!((TURNS - 1..=TURNS + 1).contains(&counted), "{decoy:?}: {counted}");
    }
}

#[test]
fn the_first_data_after_fragments_is_judged_by_itself() {
    // Nothing was seen before the fragments, and there is no socket: a connection begins.
    let mut unread = Conversation::default();
    unread.come_in_fragments(false);
    let mut client = Client::without_socket();
    client.known = Some(unread);
    assert_eq!(client.sends(&GET.repeat(3)), 3);
    let mut other = Client::without_socket();
    assert_eq!(other.sends(&GET.repeat(3)), 3);
    assert_eq!(client.known.unwrap().next, other.known.unwrap().next);
}
