//! The host's own sockets: whether a segment is of a connection that somebody has answered for.

use aya_ebpf::bindings::{bpf_sock_tuple, xdp_md};
use aya_ebpf::helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp};
use ratelimit_common::proof::{Standing, standing};
use ratelimit_common::source::Address;

use super::seen;

/// `BPF_F_CURRENT_NETNS`: the network namespace of the interface.
const NETNS_CURRENT: u64 = u64::MAX;

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

/// The [`Standing`] of the segment that was seen last, all of it. A function of its own, for the place of the tuples on the stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn standing_of(ctx: *mut xdp_md) -> u32 {
    let Some(seen) = seen() else { return Standing::Unknown as u32 };
    let (source_port, port) = (seen.segment().source_port.to_be(), seen.port().to_be());
    match (seen.source(), seen.destination()) {
        (Address::V4(source), Address::V4(destination)) => {
            let tuple = TupleV4 { source, destination, source_port, port };
            look_up(ctx, &tuple, size_of::<TupleV4>()) as u32
        }
        (Address::V6(source), Address::V6(destination)) => {
            let tuple = TupleV6 { source, destination, source_port, port };
            look_up(ctx, &tuple, TUPLE_V6_BYTES) as u32
        }
        (Address::V4(_), Address::V6(_)) | (Address::V6(_), Address::V4(_)) => Standing::Unknown as u32,
    }
}

#[inline(always)]
fn look_up<T>(ctx: *mut xdp_md, tuple: &T, bytes: usize) -> Standing {
    let tuple = core::ptr::from_ref(tuple).cast_mut().cast::<bpf_sock_tuple>();
    // SAFETY: the context is valid for the run of the program; the kernel reads so many bytes of the tuple, all written.
    let socket = unsafe { bpf_skc_lookup_tcp(ctx.cast(), tuple, bytes as u32, NETNS_CURRENT, 0) };
    if socket.is_null() {
        return Standing::Unknown;
    }
    // SAFETY: not null; the kernel rewrites this load to its own fields.
    let state = unsafe { (&raw const (*socket).state).read_volatile() };
    // SAFETY: the reference that the look-up gave, once.
    unsafe { bpf_sk_release(socket.cast()) };
    standing(state)
}
