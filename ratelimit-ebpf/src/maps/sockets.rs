//! The host's own sockets: whether a segment belongs to a connection that the host has answered, and the numbers that
//! its TCP reports.

use core::arch::asm;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_tuple};
use aya_ebpf::helpers::generated::{
    bpf_sk_release, bpf_skc_lookup_tcp, bpf_skc_to_tcp_request_sock, bpf_skc_to_tcp_sock, bpf_tcp_check_syncookie,
};
use ratelimit_common::conversation::Peer;
use ratelimit_common::layout::SocketFields;
use ratelimit_common::packet::Segment;
use ratelimit_common::source::Address;
use ratelimit_common::verification::{ConnectionState, Socket, connection_state, has_ended, is_listening, is_request};

use super::{ParsedFrame, parsed_mut};
use crate::hook::Raw;

/// `BPF_F_CURRENT_NETNS`: the network namespace of the interface.
const NETNS_CURRENT: u64 = u64::MAX;

/// Offsets of the socket fields. They are constants to the verifier, which drops the code that depends on `are_known`
/// if that is 0.
#[unsafe(no_mangle)]
static SOCKET_FIELDS: SocketFields = SocketFields {
    are_known: 0,
    received: 0,
    window_at: 0,
    window: 0,
    said: 0,
    unacknowledged: 0,
    peers_window_max: 0,
    bytes_received: 0,
    request_received: 0,
    request_said: 0,
};

/// Reads one of [`SOCKET_FIELDS`], as the loader has set it.
macro_rules! field {
    ($name:ident) => {
        // SAFETY: a static of this program. Volatile: the loader may have replaced the 0 here.
        unsafe { (&raw const SOCKET_FIELDS.$name).read_volatile() }
    };
}

/// `bpf_sock_tuple.ipv4`, in network order.
#[repr(C)]
struct TupleV4 {
    source: u32,
    destination: u32,
    source_port: u16,
    port: u16,
}

/// `bpf_sock_tuple.ipv6`, in network order. [`TUPLE_V6_BYTES`] is its size without padding.
#[repr(C)]
struct TupleV6 {
    source: [u64; 2],
    destination: [u64; 2],
    source_port: u16,
    port: u16,
}

const TUPLE_V6_BYTES: usize = 36;

/// Maximum window that a SYN+ACK can announce, as its window is not scaled.
const WINDOW_FIRST_MAX: u32 = u16::MAX as u32;

/// Returns the [`ConnectionState`] of the current segment, which must be parsed, and stores what its socket reports. A
/// function of its own, to keep the tuples on its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn connection_state_of(ctx: *mut Raw) -> u32 {
    let Some(parsed) = parsed_mut() else { return ConnectionState::Unknown as u32 };
    parsed.forget_peer();
    let segment = parsed.segment();
    let (source_port, port) = (segment.source_port.to_be(), parsed.port().to_be());
    match (parsed.source(), parsed.destination()) {
        (Address::V4(source), Address::V4(destination)) => {
            let tuple = TupleV4 { source, destination, source_port, port };
            look_up(ctx, &tuple, size_of::<TupleV4>(), parsed, &segment) as u32
        }
        (Address::V6(source), Address::V6(destination)) => {
            let tuple = TupleV6 { source, destination, source_port, port };
            look_up(ctx, &tuple, TUPLE_V6_BYTES, parsed, &segment) as u32
        }
        (Address::V4(_), Address::V6(_)) | (Address::V6(_), Address::V4(_)) => ConnectionState::Unknown as u32,
    }
}

#[inline(always)]
fn look_up<T>(ctx: *mut Raw, tuple: &T, bytes: usize, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    let tuple = core::ptr::from_ref(tuple).cast_mut().cast::<bpf_sock_tuple>();
    // SAFETY: the context is valid for the run of the program; the kernel reads these bytes of the tuple, all written.
    let socket = unsafe { bpf_skc_lookup_tcp(ctx.cast(), tuple, bytes as u32, NETNS_CURRENT, 0) };
    if socket.is_null() {
        return ConnectionState::Unknown;
    }
    // SAFETY: not null; the kernel rewrites this load to its own fields.
    let state = unsafe { (&raw const (*socket).state).read_volatile() };
    let mut connection_state = connection_state(state);
    if field!(are_known) != 0 {
        connection_state = match connection_state {
            ConnectionState::Established => established(socket, state, parsed, segment),
            ConnectionState::Answered => answered(socket, state, parsed, segment),
            ConnectionState::Unknown if is_listening(state) => listening(socket, parsed, segment),
            ConnectionState::Unknown | ConnectionState::Ignored => connection_state,
        };
    }
    // SAFETY: the reference from the lookup, released once.
    unsafe { bpf_sk_release(socket.cast()) };
    connection_state
}

/// Checks the segment against a connection's socket. A socket in TIME-WAIT accepts none: a SYN in the same batch,
/// before this segment, may replace it, and anyone can send such a segment.
#[inline(always)]
fn established(socket: *mut bpf_sock, state: u32, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    // SAFETY: a socket from a lookup that was not released; null if it is no full socket.
    let tcp = unsafe { bpf_skc_to_tcp_sock(socket.cast()) };
    if tcp.is_null() {
        return ConnectionState::Unknown;
    }
    let tcp = Structure(tcp as usize);
    let socket = Socket {
        received: tcp.u32(field!(received)),
        window_at: tcp.u32(field!(window_at)),
        window: tcp.u32(field!(window)),
        said: tcp.u32(field!(said)),
        unacknowledged: tcp.u32(field!(unacknowledged)),
        peers_window_max: tcp.u32(field!(peers_window_max)),
    };
    let has_received = tcp.u64(field!(bytes_received)) != 0;
    if !socket.takes(segment) {
        return ConnectionState::Ignored;
    }
    parsed.keep_peer(Peer {
        received: socket.received,
        window_end: socket.window_end(),
        said: socket.said,
        is_first: !has_received as u8,
        has_ended: has_ended(state) as u8,
        is_opening: 0,
        reserved: 0,
    });
    ConnectionState::Established
}

/// Checks the segment against a socket that has answered a SYN. The end of the handshake acknowledges a number that
/// only the peer knows.
#[inline(always)]
fn answered(socket: *mut bpf_sock, state: u32, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    if !is_request(state) {
        // A connection that was opened with data.
        return established(socket, 0, parsed, segment);
    }
    // SAFETY: as in `established`. Null if its TCP is one of several kinds, as for a listener that accepts MPTCP. Only
    // the waiting state is known then.
    let request = unsafe { bpf_skc_to_tcp_request_sock(socket.cast()) };
    if request.is_null() {
        return ConnectionState::Answered;
    }
    let request = Structure(request as usize);
    let received = request.u32(field!(request_received));
    let said = request.u32(field!(request_said)).wrapping_add(1);
    let socket = Socket {
        received,
        window_at: received,
        window: WINDOW_FIRST_MAX,
        said,
        unacknowledged: said,
        peers_window_max: 0,
    };
    if !socket.takes(segment) {
        return ConnectionState::Ignored;
    }
    parsed.keep_peer(Peer {
        received,
        window_end: socket.window_end(),
        said,
        is_first: 1,
        is_opening: 1,
        ..Peer::default()
    });
    ConnectionState::Established
}

/// Checks the segment against a listening socket. If the kernel answers SYNs by cookies, the end of the handshake and
/// the first payload carry a valid one.
#[inline(always)]
fn listening(socket: *mut bpf_sock, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    let peer = Peer {
        received: segment.sequence,
        window_end: segment.sequence.wrapping_add(WINDOW_FIRST_MAX),
        said: segment.acknowledged,
        is_first: 1,
        is_opening: 1,
        ..Peer::default()
    };
    let (headers, ip_bytes) = parsed.write_headers(segment);
    let tcp = headers.tcp.as_mut_ptr().cast();
    // SAFETY: a socket from a lookup that was not released; the kernel reads these bytes of both headers, all written.
    let answer = unsafe {
        bpf_tcp_check_syncookie(
            socket.cast(),
            headers.ip.as_mut_ptr().cast(),
            ip_bytes,
            tcp,
            size_of_val(&headers.tcp) as u32,
        )
    };
    if answer != 0 {
        return ConnectionState::Unknown;
    }
    parsed.keep_peer(peer);
    ConnectionState::Established
}

/// Pointer to a structure of the kernel, valid until its socket is released.
#[derive(Clone, Copy)]
struct Structure(usize);

/// Defines a load of one field, by instructions of its own. The verifier requires the original pointer with a known
/// constant added, and checks both against the structure's type.
macro_rules! load {
    ($word:ident, $instruction:literal) => {
        #[inline(always)]
        fn $word(self, offset: u32) -> $word {
            let word: u64;
            // SAFETY: the kernel accepts the program only if the structure has a field of this size there; the
            // instructions read and do nothing else.
            unsafe {
                asm!(
                    "{word} = {structure}",
                    "{word} += {offset}",
                    $instruction,
                    word = out(reg) word,
                    structure = in(reg) self.0,
                    offset = in(reg) u64::from(offset),
                    options(pure, readonly, nostack)
                );
            }
            word as $word
        }
    };
}

impl Structure {
    load!(u32, "{word} = *(u32 *)({word} + 0)");
    load!(u64, "{word} = *(u64 *)({word} + 0)");
}
