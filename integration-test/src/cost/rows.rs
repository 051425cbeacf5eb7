//! Packets with which the program alone is timed.
//!
//! Data, acknowledgements and requests belong to an open connection, because the program queries the server's own
//! socket. One row has segments that no socket knows.

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_policy::desired::{Access, AccessLog, Limit, Policy, Shared, WindowForm};
use ratelimit_policy::fleet::Sum;

use super::conversations::{
    GET, Said, asked_in_the_clear, asked_under_tls, body, costliest, record, uploading_in_the_clear,
};
use crate::flood::rows::Listed;
use crate::frames::flag::{ACK, SYN};
use crate::frames::proto::TCP;
use crate::frames::{IPV4, IPV6, Segment, VLAN, frame, padded, tagged, tcp, v4, v6};
use crate::program::{self, limit_over};

/// Limit that is never reached while the benchmark lasts.
const ENOUGH: u64 = 1 << 38;
/// Number of segments, of 1024 bytes each with the header, in a TLS record of the maximum length of 16 KB.
const RECORD_SEGMENTS: u32 = 16;
const RECORD_SEGMENT_BYTES: usize = 1024;
const RECORD_BYTES: u16 = 16 * 1024 - 5;

/// A packet to be timed, with its policy and expected verdict.
#[derive(Clone)]
pub struct Row {
    /// Name by which the row's goal is found.
    pub name: &'static str,
    /// The packet, and what is sent before it.
    pub scene: Scene,
    /// Policy of the program.
    pub policy: Policy,
    /// Expected verdict of each packet, as its label.
    pub verdict: &'static str,
}

/// Kind of packet that is timed.
#[derive(Clone)]
pub enum Scene {
    /// A constructed frame, and the frames before it.
    Frame {
        /// Frames that are sent once before.
        before: Vec<Vec<u8>>,
        /// Frame that is timed.
        frame: Vec<u8>,
    },
    /// A segment of an open connection, which is opened anew in each round.
    Connection {
        /// Port of the server.
        port: u16,
        /// Conversation before the segment.
        before: Vec<Said>,
        /// Payload of the timed segment, empty for an acknowledgement.
        data: Vec<u8>,
        /// Relation of each further segment to the one before.
        goes: Goes,
    },
}

/// Relation of each further segment of a connection to the one before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Goes {
    /// Retransmission of the same segment, which the server never receives.
    Again,
    /// The next segment of the stream with the same payload, or with TLS records if `record_segments` is not 0.
    On {
        /// Number of segments in each record.
        record_segments: u32,
        /// Length of a record that its header states.
        record_len: u16,
    },
}

const ON: Goes = Goes::On { record_segments: 0, record_len: 0 };

/// Returns all rows, in the order of the table.
pub fn all() -> Vec<Row> {
    let one_connection = limit(1, Unit::Connections);
    let connections = policy(&[one_connection]);
    let [requests, one_request] = [ENOUGH, 1].map(|amount| policy(&[limit(amount, Unit::Requests)]));
    let ack = |name, policy: &Policy| Row {
        name,
        scene: Scene::Connection { port: 80, before: asked_in_the_clear(), data: Vec::new(), goes: Goes::Again },
        policy: policy.clone(),
        verdict: "not_counted",
    };
    let open = |name, before: Vec<Said>, data: Vec<u8>, goes, policy: &Policy, verdict| {
        let port = if name_says_tls(name) { 443 } else { 80 };
        let scene = Scene::Connection { port, before, data, goes };
        Row { name, scene, policy: policy.clone(), verdict }
    };
    let line_ends = vec![b'\n'; 1400];
    let refused = |name, before: Vec<Said>, data| open(name, before, data, Goes::Again, &one_request, "over_limit");
    let late = [uploading_in_the_clear(), vec![Said::Lost(body(1400))]].concat();
    let records = Goes::On { record_segments: RECORD_SEGMENTS, record_len: RECORD_BYTES };
    let of_conversations = vec![
        ack("not counted: ACK", &connections),
        ack("not counted: ACK, where requests are", &requests),
        open("not counted: data", asked_in_the_clear(), body(1400), Goes::Again, &connections, "not_counted"),
        open(
            "not counted: data, where requests are",
            uploading_in_the_clear(),
            body(1400),
            ON,
            &requests,
            "not_counted",
        ),
        open(
            "not counted: data within TLS records, where requests are",
            asked_under_tls(),
            body(RECORD_SEGMENT_BYTES),
            records,
            &requests,
            "not_counted",
        ),
        open(
            "admitted: data sent again, which the guard counts",
            late,
            body(1400),
            Goes::Again,
            &requests,
            "within_limit",
        ),
        open(
            "not counted: 1400 bytes of line ends, where requests are",
            asked_in_the_clear(),
            line_ends,
            ON,
            &requests,
            "not_counted",
        ),
        open(
            "not counted: 1400 slashes, where requests are",
            uploading_in_the_clear(),
            vec![b'/'; 1400],
            ON,
            &requests,
            "not_counted",
        ),
        open(
            "not counted: 1400 bytes of the costliest text, where requests are",
            uploading_in_the_clear(),
            costliest(1400),
            ON,
            &requests,
            "not_counted",
        ),
        forged("not counted: forged data, where requests are", &requests),
        open("admitted: a request, in the clear", asked_in_the_clear(), GET.to_vec(), ON, &requests, "within_limit"),
        open("admitted: a request, under TLS", asked_under_tls(), record(120), ON, &requests, "within_limit"),
        open(
            "admitted: a request, under TLS, as many as a log says",
            asked_under_tls(),
            record(120),
            ON,
            &with_log(&requests),
            "within_limit",
        ),
        open(
            "admitted: a request, in the clear, of a limit that hosts share",
            asked_in_the_clear(),
            GET.to_vec(),
            ON,
            &policy(&[shared(Unit::Requests)]),
            "within_limit",
        ),
        refused("over the limit: requests, in the clear", asked_in_the_clear(), GET.to_vec()),
        refused("over the limit: requests, under TLS", asked_under_tls(), record(120)),
        refused("over the limit: 87 requests in one segment", asked_in_the_clear(), b"A / HTTP/1.1\r\n\r\n".repeat(87)),
        refused("over the limit: 24 records, under TLS", asked_under_tls(), record(53).repeat(24)),
    ];
    [of_other_ports(&connections), of_conversations, of_openings(one_connection)].concat()
}

/// Returns a policy with these limits and with what `[safety]` adds on every host.
fn policy(limits: &[Limit]) -> Policy {
    Policy { access: Listed::Safety.access(), ..program::policy(limits) }
}

fn with_log(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.rules[0].access_logs = vec![AccessLog::File("/log".into())];
    policy
}

fn name_says_tls(name: &str) -> bool {
    name.contains("TLS")
}

fn made_up(name: &'static str, frame: &[u8], policy: &Policy, verdict: &'static str) -> Row {
    let scene = Scene::Frame { before: Vec::new(), frame: frame.to_vec() };
    Row { name, scene, policy: policy.clone(), verdict }
}

/// Returns a row of data that belongs to none of the host's connections.
fn forged(name: &'static str, policy: &Policy) -> Row {
    let data = body(1400);
    let segment = Segment { sequence: 2000, data: &data, ..Segment::to(80, ACK) };
    made_up(name, &frame(IPV4, v4(TCP, segment.bytes())), policy, "not_counted")
}

fn of_other_ports(connections: &Policy) -> Vec<Row> {
    let exempt = with_exempt(connections, "198.51.100.0/24");
    vec![
        made_up("not IP", &padded(frame(0x0806, [0; 28]), 60), connections, "not_ip"),
        made_up("not a protected port", &padded(frame(IPV4, v4(TCP, tcp(22, SYN))), 60), connections, "not_protected"),
        made_up("exempt, 1 prefix", &syn_v4(), &exempt, "exempt"),
    ]
}

fn of_openings(one_connection: Limit) -> Vec<Row> {
    let one_packet = limit(1, Unit::Packets);
    let plenty = [limit(ENOUGH, Unit::Connections), limit(ENOUGH, Unit::Packets)];
    let connections = policy(&[one_connection]);
    let (syn_v4, syn_v6) = (syn_v4(), frame(IPV6, v6(TCP, tcp(80, SYN))));
    let vlan = tagged(&[(VLAN, 5)], IPV4, v4(TCP, tcp(80, SYN)));
    let lenient = policy(&[Limit { form: WindowForm::Lenient, ..one_connection }]);
    let wide = Policy { ipv6_prefix: 128, ..connections.clone() };
    let others = with_exempt(&connections, "203.0.113.0/24");
    let refused = |name, frame: &[u8], policy: &Policy| made_up(name, frame, policy, "over_limit");
    let admitted = |name, frame: &[u8], limits: &[Limit]| made_up(name, frame, &policy(limits), "within_limit");
    vec![
        refused("over the limit: connections", &syn_v4, &connections),
        refused("over the limit: packets", &syn_v4, &policy(&[one_packet])),
        refused("over the limit: bytes", &syn_v4, &policy(&[limit(50, Unit::Bytes)])),
        refused("over the limit: lenient window", &syn_v4, &lenient),
        refused("over the limit: VLAN tag", &vlan, &connections),
        refused("over the limit: IPv6 /64", &syn_v6, &connections),
        refused("over the limit: IPv6 /128", &syn_v6, &wide),
        refused("over the limit: 1 exempt prefix, another's", &syn_v4, &others),
        refused("over the limit: the second of two", &syn_v4, &policy(&[plenty[0], one_packet])),
        admitted("admitted", &syn_v4, &plenty[..1]),
        admitted("admitted, of a limit that hosts share", &syn_v4, &[shared(Unit::Connections)]),
        admitted("admitted, two limits", &syn_v4, &plenty),
        admitted("admitted, IPv6 /64", &syn_v6, &plenty[..1]),
    ]
}

fn syn_v4() -> Vec<u8> {
    padded(frame(IPV4, v4(TCP, tcp(80, SYN))), 60)
}

fn with_exempt(policy: &Policy, prefix: &str) -> Policy {
    let mut policy = policy.clone();
    policy.access.push(Access::exempt(prefix.parse().expect("a prefix")));
    policy
}

/// Returns a limit over one hour in six buckets, so that a source over the limit stays over it during the benchmark.
fn limit(amount: u64, unit: Unit) -> Limit {
    limit_over(amount, unit, WindowForm::Strict, 6, 600 * SECOND_NS)
}

/// Returns a limit at half a cell's maximum, shared in steps of 1024.
fn shared(unit: Unit) -> Limit {
    Limit { shared: Some(Shared { sum: Sum::All, step_bits: 10 }), ..limit(1 << 30, unit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_one_alone_is_of_data_that_no_socket_knows() {
        let rows = all();
        let names: std::collections::BTreeSet<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        let made_up = rows.iter().filter(|row| matches!(row.scene, Scene::Frame { .. }));
        let forged: Vec<_> = made_up.map(|row| row.name).filter(|name| name.contains("forged")).collect();
        assert_eq!(forged, ["not counted: forged data, where requests are"]);
        let of_requests = rows.iter().filter(|row| row.policy.rules[0].limits[0].unit == Unit::Requests);
        let unknown = of_requests.filter(|row| matches!(row.scene, Scene::Frame { .. })).map(|row| row.name);
        assert_eq!(unknown.collect::<Vec<_>>(), forged);
    }
}
