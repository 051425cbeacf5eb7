//! A packet at XDP: the frame as it came, before the stack has made a buffer of it. One packet each.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::layout::Limit;

use crate::packet::direct;

/// What the kernel calls the program with.
pub(crate) type Raw = xdp_md;
/// The same, as a value.
pub(crate) type Context = XdpContext;

/// The context again.
#[inline(always)]
pub(crate) const fn raw(ctx: &Context) -> *mut Raw {
    ctx.ctx
}

/// Where the frame's first buffer is: what lies in others is not read.
pub(crate) struct Reader {
    start: usize,
    end: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn of(ctx: &Context) -> Self {
        Self { start: ctx.data(), end: ctx.data_end() }
    }

    /// What of the frame's length is known without a call.
    #[inline(always)]
    pub(crate) const fn known_len(&self) -> usize {
        self.end - self.start
    }

    /// The bytes at `offset`, if all of them are there to read.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, _: &Context, offset: usize) -> Option<[u8; N]> {
        direct(self.start, self.end, offset)
    }
}

/// The length of all buffers. // one helper call, so not for every packet
#[inline(always)]
pub(crate) fn len(ctx: &Context) -> usize {
    // SAFETY: the context is valid for the run of the program.
    unsafe { bpf_xdp_get_buff_len(ctx.ctx) as usize }
}

/// The interface that the frame came in by.
#[inline(always)]
pub(crate) fn interface_index(ctx: &Context) -> u32 {
    // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
    unsafe { (*ctx.ctx).ingress_ifindex }
}

/// VLAN tags that are not among the bytes: none.
#[inline(always)]
pub(crate) const fn tags_before(_: &Context) -> usize {
    0
}

/// The length that an IPv4 header claims, at this offset.
#[inline(always)]
pub(crate) const fn ipv4_bytes(_: &Context, _: usize, claimed: u16) -> u32 {
    claimed as u32
}

/// How many packets and bytes the frame counts as, which has so many.
#[inline(always)]
pub(crate) const fn counted(_: &Context, bytes: usize) -> (u64, u64) {
    (1, bytes as u64)
}

/// What the packet at hand is charged by limits of bytes, whose IP packet has so many.
#[inline(always)]
pub(crate) const fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes
}

/// What it is charged by this limit, of one packet.
#[inline(always)]
pub(crate) const fn charged(_: &Limit, amount: u64) -> u64 {
    amount
}
