//! The reader: a frame's bytes, each access checked against the frame's end as the verifier wants it. Decides nothing.

use core::arch::asm;
use core::cell::Cell;
use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use ratelimit_common::conversation::Step;
use ratelimit_common::packet::{self, Frame};

use crate::hook::{self, Context, Raw, Reader};
use crate::maps::{self, ParsedFrame};

/// Farther than any header that the parser asks for; the verifier wants offsets into a packet bounded
/// (`MAX_PACKET_OFF`).
pub(crate) const OFFSET_MAX: usize = 0x7fff;

/// The frame that the program is called with.
pub(crate) struct PacketFrame<'a> {
    ctx: &'a Context,
    reader: Reader,
    len: Cell<usize>,
    is_parsed: Cell<bool>,
}

impl<'a> PacketFrame<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a Context) -> Self {
        let reader = Reader::of(ctx);
        let len = Cell::new(reader.known_len());
        Self { ctx, reader, len, is_parsed: Cell::new(false) }
    }

    /// All that it is, where there was room to keep that. Parsed once.
    #[inline(always)]
    pub(crate) fn parsed(&self) -> Option<&'static ParsedFrame> {
        let parsed = maps::parsed_mut()?;
        if !self.is_parsed.get() {
            let _always_zero = parse_frame(self.context(), parsed);
            self.len.set(parsed.frame_bytes as usize);
            self.is_parsed.set(true);
        }
        Some(parsed)
    }

    /// Whether it was parsed.
    #[inline(always)]
    pub(crate) fn is_parsed(&self) -> bool {
        self.is_parsed.get()
    }

    /// The context that it is in.
    #[inline(always)]
    pub(crate) fn context(&self) -> *mut Raw {
        hook::raw(self.ctx)
    }

    /// The interface that the frame came in by.
    #[inline(always)]
    pub(crate) fn interface_index(&self) -> u32 {
        hook::interface_index(self.ctx)
    }

    /// How many packets and bytes it counts as, which has so many.
    #[inline(always)]
    pub(crate) fn counted(&self, bytes: usize) -> (u64, u64) {
        hook::counted(self.ctx, bytes)
    }

    /// The frame's length as far as it was asked for: exact once `len` was called with what the headers claim.
    #[inline(always)]
    pub(crate) fn known_len(&self) -> usize {
        self.len.get()
    }
}

/// What steps are taken on, for [`step`].
#[repr(C)]
struct Walked<S> {
    ctx: *mut Raw,
    steps: S,
}

/// [`Walk::repeat`](ratelimit_common::conversation::Walk::repeat), by the kernel: the verifier walks one step, however
/// many there may be.
#[inline(always)]
pub(crate) fn repeat<S: Step>(ctx: *mut Raw, most: u32, steps: S) -> S {
    let mut walked = Walked { ctx, steps };
    let step: extern "C" fn(u32, *mut Walked<S>) -> u64 = step::<S>;
    // SAFETY: the kernel calls `step::<S>` with `walked` alone, which outlives the call and which nothing else touches
    // meanwhile. It refuses only flags, which are none, and more than 2^23 steps, which no payload has.
    unsafe { bpf_loop(most, step as *mut c_void, (&raw mut walked).cast(), 0) };
    walked.steps
}

/// Takes one; 0 where there may be another.
extern "C" fn step<S: Step>(_: u32, walked: *mut Walked<S>) -> u64 {
    // SAFETY: it is the `Walked<S>` of the `repeat::<S>` that waits for this: not null, aligned, and reached by nobody
    // else. The kernel calls one at a time.
    let (ctx, steps) = unsafe { (Context::new((*walked).ctx), &mut (*walked).steps) };
    u64::from(!steps.step(&PacketFrame::new(&ctx)))
}

/// Parses the frame and keeps what it is; returns 0. A function of its own: the verifier walks it once and not once
/// for each way that a packet may take afterwards, and its stack is free again by then. Null is not passed; the
/// verifier wants to see that it would do no harm.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn parse_frame(ctx: *mut Raw, parsed: *mut ParsedFrame) -> u32 {
    let Some(parsed) = maps::place(parsed) else { return 0 };
    let ctx = Context::new(ctx);
    let frame = PacketFrame::new(&ctx);
    parsed.keep(packet::parse(&frame), frame.known_len() as u32);
    0
}

impl Frame for PacketFrame<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.reader.bytes(self.ctx, offset)
    }

    #[inline(always)]
    fn len(&self, at_least: usize) -> usize {
        if self.len.get() < at_least {
            // The first buffer alone is shorter: ask for all of them.
            self.len.set(hook::len(self.ctx));
        }
        self.len.get()
    }

    #[inline(always)]
    fn tags_before(&self) -> usize {
        hook::tags_before(self.ctx)
    }

    #[inline(always)]
    fn ipv4_bytes(&self, start: usize, claimed: u16) -> u32 {
        hook::ipv4_bytes(self.ctx, start, claimed)
    }

    #[inline(always)]
    fn forget(&self, offset: usize) -> usize {
        forget(offset as u32) as usize
    }
}

/// The bytes at `offset` of what lies between these two in a packet, if all of them are there.
#[inline(always)]
pub(crate) fn direct<const N: usize>(start: usize, end: usize, offset: usize) -> Option<[u8; N]> {
    const { assert!(N >= 2 && N.is_multiple_of(2)) };
    let offset = one_register(offset);
    if offset > OFFSET_MAX {
        return None;
    }
    let from = start + offset;
    if from + N > end {
        return None;
    }
    let mut bytes = [0; N];
    let mut at = 0;
    while at + 8 <= N {
        // SAFETY: the N bytes lie between the packet's start and end, as just checked.
        bytes[at..at + 8].copy_from_slice(&unsafe { load_u64(from + at) }.to_ne_bytes());
        at += 8;
    }
    if at + 4 <= N {
        // SAFETY: as above.
        bytes[at..at + 4].copy_from_slice(&unsafe { load_u32(from + at) }.to_ne_bytes());
        at += 4;
    }
    if at + 2 <= N {
        // SAFETY: as above.
        bytes[at..at + 2].copy_from_slice(&unsafe { load_u16(from + at) }.to_ne_bytes());
    }
    Some(bytes)
}

/// Returns `value`, which the compiler then knows nothing of: so the register that it compares is the one that it adds
/// to a pointer. Verifiers before Linux 6.11 do not carry what one register was found to be over to another that
/// differs from it by a constant. // one instruction
#[inline(always)]
pub(crate) fn one_register(mut value: usize) -> usize {
    // SAFETY: the instruction does nothing.
    unsafe { asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags)) };
    value
}

/// One load of a whole word, wherever it lies: headers lie 2 bytes off the alignment of their words, and what Rust has
/// for that is a load for each byte here. The kernel takes such loads from packets where the machine does.
macro_rules! load {
    ($name:ident, $word:ty, $class:ident, $instruction:literal) => {
        #[inline(always)]
        pub(crate) unsafe fn $name(address: usize) -> $word {
            let word: $word;
            // SAFETY: the caller has checked the packet's end; the instruction reads and does nothing else.
            unsafe {
                asm!(
                    $instruction,
                    word = out($class) word,
                    address = in(reg) address,
                    options(pure, readonly, nostack)
                );
            }
            word
        }
    };
}

load!(load_u16, u16, reg, "{word} = *(u16 *)({address} + 0)");
load!(load_u32, u32, reg, "{word} = *(u32 *)({address} + 0)");
load!(load_u64, u64, reg, "{word} = *(u64 *)({address} + 0)");

/// Returns `value`, of which the verifier then knows nothing but its width: it tracks what is stored on the stack at
/// multiples of 8 bytes, and calls the rest `STACK_MISC` (`check_stack_write_fixed_off`, kernel/bpf/verifier.c, Linux
/// 6.18). // two stores and one load
#[inline(always)]
pub(crate) fn forget(value: u32) -> u32 {
    #[repr(C, align(8))]
    struct Place([u32; 2]);

    let mut place = Place([0; 2]);
    let [aligned, off] = &mut place.0;
    // SAFETY: a place on the stack. Written only so that the compiler keeps the whole of it, and `off` where it is.
    unsafe { core::ptr::from_mut(aligned).write_volatile(0) };
    // SAFETY: likewise.
    unsafe { core::ptr::from_mut(off).write_volatile(value) };
    // SAFETY: likewise.
    unsafe { core::ptr::from_ref(off).read_volatile() }
}
