//! The host's own sockets: whether a segment is of a connection that the host has answered, and what its TCP says of
//! it.

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

/// Where a socket's fields are. The verifier knows each number here, so that what depends on `are_known` is not there
/// where they are not.
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

/// One of [`SOCKET_FIELDS`], as the loader has put it there.
macro_rules! field {
    ($name:ident) => {
        // SAFETY: a static of this program. Volatile: the loader may have put another value in the place of the 0 here.
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

/// `bpf_sock_tuple.ipv6`, likewise, and its size without what makes it a whole number of words.
#[repr(C)]
struct TupleV6 {
    source: [u64; 2],
    destination: [u64; 2],
    source_port: u16,
    port: u16,
}

const TUPLE_V6_BYTES: usize = 36;

/// The largest window that a SYN+ACK tells: it is not scaled yet.
const WINDOW_FIRST_MAX: u32 = u16::MAX as u32;

/// The [`ConnectionState`] of the segment at hand, all of it; keeps what its socket says. A function of its own, for
/// the place of the tuples on the stack.
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
    // SAFETY: the context is valid for the run of the program; the kernel reads so many bytes of the tuple, all
    // written.
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
    // SAFETY: the reference that the look-up gave, once.
    unsafe { bpf_sk_release(socket.cast()) };
    connection_state
}

/// What a connection's socket says. One that only waits for late segments takes none, but gives way to a SYN that may
/// be before this segment in the same batch: anyone can send this.
#[inline(always)]
fn established(socket: *mut bpf_sock, state: u32, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    // SAFETY: a socket from a look-up, that was not released; null where it is no full one.
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

/// What a socket says that has answered a SYN: what ends the handshake acknowledges a number that only the peer knows.
#[inline(always)]
fn answered(socket: *mut bpf_sock, state: u32, parsed: &mut ParsedFrame, segment: &Segment) -> ConnectionState {
    if !is_request(state) {
        // A connection that was opened with data.
        return established(socket, 0, parsed, segment);
    }
    // SAFETY: as in `established`; null where its TCP is one of several kinds, as of a listener that takes MPTCP:
    // nothing is known of those then but that they wait.
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

/// What a socket says that listens: where SYNs are answered by cookies, what ends the handshake has one, and so has
/// the first payload.
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
    // SAFETY: a socket from a look-up, that was not released; the kernel reads so many bytes of both headers, all
    // written.
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

/// A structure of the kernel's, that is there as long as its socket is not released.
#[derive(Clone, Copy)]
struct Structure(usize);

/// One load from a field. Of instructions of its own: the verifier wants to see the pointer, and a number that it
/// knows added to it; it holds both against the structure's type.
macro_rules! load {
    ($word:ident, $instruction:literal) => {
        #[inline(always)]
        fn $word(self, offset: u32) -> $word {
            let word: u64;
            // SAFETY: the kernel takes the program only where a field of this size is there; the instructions read and
            // do nothing else.
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
