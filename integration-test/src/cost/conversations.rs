//! Exchanges between a client and its server before the segment that is timed: HTTP/1 in the clear, and TLS as far as
//! its record headers show.

/// A piece of data in a conversation, by its sender.
#[derive(Clone, Debug)]
pub enum Said {
    /// Data of the client that the program judges and the server receives.
    Client(Vec<u8>),
    /// Data of the server, sent to the client.
    Server(Vec<u8>),
    /// Data of the client that the program judges and the server never receives.
    Lost(Vec<u8>),
}

/// Request as curl sends it.
pub const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: example.org\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n";
const POST: &[u8] = b"POST /upload HTTP/1.1\r\nHost: example.org\r\nContent-Length: 1000000000000\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
/// Sizes in bytes of a server's hello with a certificate, and of its two session tickets.
const FLIGHT_BYTES: usize = 1200;
const TICKETS_BYTES: usize = 510;
const ANSWER_RECORD_BYTES: usize = 400;

/// Returns a request that was answered.
pub fn asked_in_the_clear() -> Vec<Said> {
    vec![Said::Client(GET.to_vec()), Said::Server(ANSWER.to_vec())]
}

/// Returns a request and the start of its body.
pub fn uploading_in_the_clear() -> Vec<Said> {
    vec![Said::Client(POST.to_vec()), Said::Client(body(1400))]
}

/// Returns part of a body.
pub fn body(bytes: usize) -> Vec<u8> {
    vec![0x55; bytes]
}

/// Returns the most expensive part of a body that a search has found (`tests/cost.rs`). The text looks like versions,
/// as many as the program asks about, followed by slashes.
pub fn costliest(bytes: usize) -> Vec<u8> {
    const LIKELY: &[u8] = b"HTTP/1.1 x//////////////////////";
    let mut text = LIKELY.repeat(bytes / 64 + 7);
    text.resize(bytes, b'/');
    text
}

/// Returns a handshake of TLS 1.3.
pub fn tls() -> Vec<Said> {
    let mut hello = [&[22, 3, 1, 1, 0], [0; 256].as_slice()].concat();
    let offer = b"\x02h2\x08http/1.1";
    hello[100..100 + offer.len()].copy_from_slice(offer);
    let finished = [&[20, 3, 3, 0, 1, 1][..], &record(53)].concat();
    let said = |bytes: usize| Said::Server(vec![0; bytes]);
    vec![Said::Client(hello), said(FLIGHT_BYTES), Said::Client(finished), said(TICKETS_BYTES)]
}

/// Returns a TLS handshake and a request that was answered.
pub fn asked_under_tls() -> Vec<Said> {
    [tls(), vec![Said::Client(record(120)), Said::Server(vec![0; ANSWER_RECORD_BYTES])]].concat()
}

/// Returns a record of application data.
pub fn record(bytes: u16) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    [&[23, 3, 3, high, low], vec![0x55; bytes.into()].as_slice()].concat()
}
