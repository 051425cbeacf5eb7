//! The reader: a frame's bytes, each access checked against the frame's end as the verifier wants it. Decides nothing.

use core::cell::Cell;
use core::mem::MaybeUninit;

use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use ratelimit_common::packet::Frame;

/// Farther than any header that the parser asks for; the verifier wants offsets into a packet bounded (`MAX_PACKET_OFF`).
const OFFSET_MAX: usize = 0x7fff;

/// The frame in an XDP context.
pub(crate) struct XdpFrame<'a> {
    ctx: &'a XdpContext,
    start: usize,
    end: usize,
    len: Cell<usize>,
}

impl<'a> XdpFrame<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a XdpContext) -> Self {
        let (start, end) = (ctx.data(), ctx.data_end());
        Self { ctx, start, end, len: Cell::new(end - start) }
    }

    /// The interface that the frame came in by.
    #[inline(always)]
    pub(crate) fn interface_index(&self) -> u32 {
        // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
        unsafe { (*self.ctx.ctx).ingress_ifindex }
    }

    /// The frame's length as far as it was asked for: exact once `len` was called with what the headers claim.
    #[inline(always)]
    pub(crate) fn known_len(&self) -> usize {
        self.len.get()
    }
}

impl Frame for XdpFrame<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        const { assert!(N >= 2) };
        if offset > OFFSET_MAX {
            return None;
        }
        let from = self.start + offset;
        if from + N > self.end {
            return None;
        }
        // SAFETY: the N bytes lie between the packet's start and end, as just checked; bytes have no alignment.
        Some(unsafe { (from as *const [u8; N]).read() })
    }

    #[inline(always)]
    fn len(&self, at_least: usize) -> usize {
        if self.len.get() < at_least {
            // The first buffer alone is shorter: ask for all of them. // one helper call, so not for every packet
            // SAFETY: the context is valid for the run of the program.
            self.len.set(unsafe { bpf_xdp_get_buff_len(self.ctx.ctx) } as usize);
        }
        self.len.get()
    }
    #[inline(always)]
    fn forget(&self, offset: usize) -> usize {
        forget(offset as u32) as usize
    }
}

/// Returns `value`, of which the verifier then knows nothing but its width: it tracks what is stored on the stack at
/// multiples of 8 bytes, and calls the rest `STACK_MISC` (`check_stack_write_fixed_off`, kernel/bpf/verifier.c, Linux
/// 6.18). // one store and one load
#[inline(always)]
pub(crate) fn forget(value: u32) -> u32 {
    #[repr(C, align(8))]
    struct Place([MaybeUninit<u32>; 2]);

    let mut place = Place([MaybeUninit::uninit(); 2]);
    let misc = place.0[1].as_mut_ptr();
    // SAFETY: a place on the stack.
    unsafe { misc.write_volatile(value) };
    // SAFETY: the same place, which was just written.
    unsafe { misc.read_volatile() }
}
