//! What the adversary found, a row each.

use crate::http1::Http1;
use crate::link::{Link, Sent, Server};
use crate::random::Random;

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// What the ports of TLS begin with: a record's header.
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01";

/// A step of a row: segments, and what the server makes of those that arrive.
enum Step {
    /// It arrives.
    Sends(i64, Vec<u8>),
    /// The limiter sees it, and the server's TCP drops it for its checksum.
    Loses(i64, Vec<u8>),
    /// The server has read and answered all that arrived.
    Settles,
}

/// Requests accepted, and counted.
fn clear(steps: &[Step]) -> (u64, u64) {
    let mut link = Link::new(Http1::new(&[200]), &mut Random::of(1), u64::MAX);
    for step in steps {
        let (at, payload, is_lost) = match step {
            Step::Sends(at, payload) => (*at, payload, false),
            Step::Loses(at, payload) => (*at, payload, true),
            Step::Settles => {
                link.settles();
                continue;
            }
        };
        link.sends(&Sent { at, payload, acknowledged: 0, is_lost });
    }
    link.settles();
    (link.server.accepted().len() as u64, link.limiter.counted)
}

#[test]
fn a_hello_that_the_server_drops_behind_the_first_request_does_not_make_what_follows_tls() {
    let at = i64::try_from(GET.len()).unwrap();
    for before in [0, 20] {
        let hello = [&vec![b'x'; before], HELLO].concat();
        let (accepted, counted) = clear(&[
            Step::Sends(0, GET.to_vec()),
            Step::Loses(-i64::try_from(before).unwrap(), hello),
            Step::Settles,
            Step::Sends(at, GET.repeat(50)),
        ]);
        assert_eq!(accepted, 51);
        assert!(counted >= accepted, "{counted} counted");
    }
}

#[test]
fn a_hello_that_the_server_drops_does_not_hide_what_comes_before_the_first_request() {
    let at = i64::try_from(GET.len()).unwrap();
    for before in [0, 20] {
        let hello = [&vec![b'x'; before], HELLO].concat();
        let (accepted, counted) = clear(&[
            Step::Loses(-i64::try_from(before).unwrap(), hello),
            Step::Sends(at, GET.repeat(50)),
            Step::Sends(0, GET.to_vec()),
        ]);
        assert_eq!(accepted, 51);
        assert!(counted >= accepted, "{counted} counted");
    }
}
