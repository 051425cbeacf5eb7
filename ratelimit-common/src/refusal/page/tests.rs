//! Tests against etherparse, which builds headers and checksums on its own.

use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TcpOptionElement, TransportHeader};
use proptest::prelude::*;

use super::super::{Place, place};
use super::*;

/// Returns a request as a client may send it.
fn request(is_v6: bool, (said, heard): (u32, u32), has_time: bool, numbers: (u32, u32), payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).single_vlan(7.try_into().unwrap());
    let ip = if is_v6 { link.ipv6([3; 16], [4; 16], 60) } else { link.ipv4([198, 51, 100, 7], [192, 0, 2, 1], 60) };
    let tcp = ip.tcp(40_000, 80, numbers.0, 500).ack(numbers.1).psh();
    let time = [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(said, heard)];
    let tcp = if has_time { tcp.options(&time).unwrap() } else { tcp };
    let mut frame = Vec::new();
    tcp.write(&mut frame, payload).unwrap();
    frame
}

fn words<const N: usize>(frame: &[u8], at: usize) -> [u32; N] {
    std::array::from_fn(|word| u32::from_ne_bytes(frame[at + 4 * word..][..4].try_into().unwrap()))
}

fn bytes<const IP: usize, const OPTIONS: usize>(page: &Page<IP, OPTIONS>) -> Vec<u8> {
    let text: [u32; TEXT_WORDS] = std::array::from_fn(|at| page.text(at));
    let words = [page.ip.as_slice(), &page.tcp, &page.options, &text].concat();
    assert_eq!(words.len(), Page::<IP, OPTIONS>::WORDS);
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Returns the frame that the kernel sends: the link's headers unchanged, and the page.
fn answered(frame: &[u8], payload_bytes: u32, seconds: u64) -> Option<Vec<u8>> {
    let (at, page) = match place(&frame)? {
        Place::V4(at) => {
            let (ip, tcp) = (words(frame, at), words(frame, at + 20));
            let page = match options(&frame, at + 20, &tcp)? {
                Options::None => bytes(&Page::v4(ip, tcp, [], payload_bytes, seconds)),
                Options::Time(time) => bytes(&Page::v4(ip, tcp, time, payload_bytes, seconds)),
            };
            (at, page)
        }
        Place::V6(at) => {
            let (ip, tcp) = (words(frame, at), words(frame, at + 40));
            let page = match options(&frame, at + 40, &tcp)? {
                Options::None => bytes(&Page::v6(ip, tcp, [], payload_bytes, seconds)),
                Options::Time(time) => bytes(&Page::v6(ip, tcp, time, payload_bytes, seconds)),
            };
            (at, page)
        }
    };
    Some([&frame[..at], &page].concat())
}

proptest! {
    #[test]
    fn a_request_becomes_the_page_that_answers_it(
        is_v6: bool,
        times: (u32, u32),
        has_time: bool,
        numbers: (u32, u32),
        seconds in prop_oneof![0..200_u64, any::<u64>()],
        more in 0_usize..1400,
    ) {
        let mut payload = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        payload.resize(payload.len() + more, b'x');
        let frame = request(is_v6, times, has_time, numbers, &payload);
        let payload_bytes = u32::try_from(payload.len()).unwrap();
        let page = answered(&frame, payload_bytes, seconds).expect("a plain request");
        let headers = PacketHeaders::from_ethernet_slice(&page).unwrap();
        let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no segment") };
        prop_assert_eq!((tcp.source_port, tcp.destination_port), (80, 40_000));
        prop_assert_eq!(tcp.sequence_number, numbers.1);
        prop_assert_eq!(tcp.acknowledgment_number, numbers.0.wrapping_add(payload_bytes));
        prop_assert!(tcp.fin && tcp.ack && tcp.psh && !tcp.syn && !tcp.rst && tcp.window_size > 0);
        let time = tcp.options_iterator().find_map(|option| {
            if let TcpOptionElement::Timestamp(said, heard) = option.unwrap() { Some((said, heard)) } else { None }
        });
        prop_assert_eq!(time, has_time.then_some((times.1, times.0)));
        let text = headers.payload.slice();
        match headers.net.unwrap() {
            NetHeaders::Ipv4(ip, _) => {
                prop_assert_eq!((ip.source, ip.destination), ([192, 0, 2, 1], [198, 51, 100, 7]));
                prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, text).unwrap());
            }
            NetHeaders::Ipv6(ip, _) => {
                prop_assert_eq!((ip.source, ip.destination), ([4; 16], [3; 16]));
                prop_assert_eq!(tcp.checksum, tcp.calc_checksum_ipv6(&ip, text).unwrap());
            }
            other => panic!("another family: {other:?}"),
        }
        let text = std::str::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let lines: Vec<&str> = head.split("\r\n").collect();
        prop_assert_eq!(&lines[..2], &["HTTP/1.1 429 Too Many Requests", "Connection: close"]);
        let (name, value) = lines[2].split_once(':').unwrap();
        prop_assert_eq!((name, value.trim()), ("Retry-After", &*seconds.min(99_999_999).to_string()));
        prop_assert_eq!((lines.len(), body), (3, "Too many requests.\r\n"));
        prop_assert!(text.len() < 110, "{} bytes", text.len());
    }
}

#[test]
fn segments_that_a_server_would_not_simply_answer_have_no_options() {
    for is_v6 in [false, true] {
        let plain = request(is_v6, (1, 2), true, (3, 4), b"GET / HTTP/1.1\r\n\r\n");
        let at = 18 + if is_v6 { 40 } else { 20 };
        let with = |place: usize, byte: u8| {
            let mut frame = plain.clone();
            frame[place] = byte;
            options(&&*frame, at, &words(&frame, at))
        };
        assert!(with(0, 2).is_some());
        for flags in [0x19, 0x1c, 0x1a, 0x38] {
            assert_eq!(with(at + 13, flags), None, "it opens or ends something, or is urgent: {flags:#x}");
        }
        assert_eq!(with(at + 12, 0x60), None, "one word of options");
        assert_eq!(with(at + 12, 0xb0), None, "more than the time");
        assert_eq!(with(at + 20, 5), None, "another option");
        assert_eq!(options(&&plain[..at + 30], at, &words(&plain, at)), None, "cut off");
    }
}

#[test]
fn a_request_of_http_1_begins_with_a_method_whose_answer_has_a_text() {
    for begins in ["GET / HTTP/1.1", "POST /a HTTP/1.0", "PUT /a HTTP", "DELETE /a", "PATCH /abc", "OPTIONS *"] {
        assert!(begins_request(&begins.as_bytes(), 0), "{begins}");
        assert!(begins_request(&[b"x", begins.as_bytes()].concat().as_slice(), 1), "{begins}");
    }
    for begins in
        ["HEAD / HTTP/1.1", "PRI * HTTP/2.0", "GETS / HTTP", "get / HTTP/1", "\x16\x03\x01\x02\0\x01\0\x01", "GET /"]
    {
        assert!(!begins_request(&begins.as_bytes(), 0), "{begins}");
    }
}
