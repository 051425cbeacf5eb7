//! The reader of a frame's bytes. Each access is checked against the frame's end in the form that the verifier
//! requires. Decides nothing.

use core::arch::asm;
use core::cell::Cell;
use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use ratelimit_common::conversation::Step;
use ratelimit_common::packet::{self, Frame};

use crate::hook::{self, Context, Raw, Reader};
use crate::maps::{self, ParsedFrame};

/// Maximum offset of a read, beyond any header that the parser asks for. The verifier requires bounded offsets into a
/// packet (`MAX_PACKET_OFF`).
pub(crate) const OFFSET_MAX: usize = 0x7fff;

/// Frame that the program is called with.
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

    /// Returns the parsed frame, parsing it on the first call. Returns `None` if there was no memory for it.
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

    /// Returns true if the frame was parsed.
    #[inline(always)]
    pub(crate) fn is_parsed(&self) -> bool {
        self.is_parsed.get()
    }

    /// Returns the kernel's context pointer of the frame.
    #[inline(always)]
    pub(crate) fn context(&self) -> *mut Raw {
        hook::raw(self.ctx)
    }

    /// Returns the index of the interface that received the frame.
    #[inline(always)]
    pub(crate) fn interface_index(&self) -> u32 {
        hook::interface_index(self.ctx)
    }

    /// Returns the packets and bytes that the frame counts as, where `bytes` is its length.
    #[inline(always)]
    pub(crate) fn counted(&self, bytes: usize) -> (u64, u64) {
        hook::counted(self.ctx, bytes)
    }

    /// Returns the frame's length as far as it was asked for. The value is exact after `len` was called with the length
    /// that the headers claim.
    #[inline(always)]
    pub(crate) fn known_len(&self) -> usize {
        self.len.get()
    }
}

/// State of a loop of [`step`] calls.
#[repr(C)]
struct Walked<S> {
    ctx: *mut Raw,
    steps: S,
}

/// Runs [`Walk::repeat`](ratelimit_common::conversation::Walk::repeat) in the kernel, so that the verifier walks one
/// step for any number of steps.
#[inline(always)]
pub(crate) fn repeat<S: Step>(ctx: *mut Raw, most: u32, steps: S) -> S {
    let mut walked = Walked { ctx, steps };
    let step: extern "C" fn(u32, *mut Walked<S>) -> u64 = step::<S>;
    // SAFETY: the kernel calls `step::<S>` with `walked` alone, which outlives the call and which nothing else touches
    // meanwhile. It refuses only flags, of which there are none, and more than 2^23 steps, which no payload has.
    unsafe { bpf_loop(most, step as *mut c_void, (&raw mut walked).cast(), 0) };
    walked.steps
}

/// Runs one step. Returns 0 if there may be another.
extern "C" fn step<S: Step>(_: u32, walked: *mut Walked<S>) -> u64 {
    // SAFETY: the pointer is to the `Walked<S>` of the `repeat::<S>` that waits for this call: not null, aligned, and
    // not shared. The kernel runs one call at a time.
    let (ctx, steps) = unsafe { (Context::new((*walked).ctx), &mut (*walked).steps) };
    u64::from(!steps.step(&PacketFrame::new(&ctx)))
}

/// Parses the frame and stores the result. Returns 0. A function of its own: the verifier walks it once, not once for
/// each later path, and its stack is free again by then. No caller passes null, but the verifier requires the check.
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
            // Only the first buffer is shorter: ask for the length of all buffers.
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

/// Returns the bytes at `offset` of the packet data between `start` and `end`, if all of them are there.
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

/// Returns `value` and hides it from the compiler, which then compares the same register that it adds to a pointer.
/// Verifiers before Linux 6.11 do not transfer bounds between registers that differ by a constant. // one instruction
#[inline(always)]
pub(crate) fn one_register(mut value: usize) -> usize {
    // SAFETY: the instruction does nothing.
    unsafe { asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags)) };
    value
}

/// Loads a whole word from any address. Headers lie 2 bytes off the alignment of their words, for which Rust emits one
/// load per byte. The kernel allows such loads from packets where the machine does.
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

/// Returns `value` and hides all but its width from the verifier, which tracks stack slots only at multiples of 8
/// bytes. It treats other slots as `STACK_MISC` (`check_stack_write_fixed_off`, kernel/bpf/verifier.c, Linux 6.18). //
/// two stores and one load
#[inline(always)]
pub(crate) fn forget(value: u32) -> u32 {
    #[repr(C, align(8))]
    struct Place([u32; 2]);

    let mut place = Place([0; 2]);
    let [aligned, off] = &mut place.0;
    // SAFETY: a place on the stack. Volatile, so that the compiler keeps all of it, and `off` at its offset.
    unsafe { core::ptr::from_mut(aligned).write_volatile(0) };
    // SAFETY: as above.
    unsafe { core::ptr::from_mut(off).write_volatile(value) };
    // SAFETY: as above.
    unsafe { core::ptr::from_ref(off).read_volatile() }
}
