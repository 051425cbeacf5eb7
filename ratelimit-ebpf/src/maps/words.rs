//! What is read and written of elements of maps: a field where it is needed, and the whole a word at a time. And what
//! a word stands for.

use ratelimit_common::verdict::Reason;

/// Reads a field where it is needed: what is read earlier than that is kept on the stack, of which there is little.
macro_rules! read {
    ($self:ident.$field:ident) => {
        // SAFETY: a field of what `$self` refers to.
        unsafe { (&raw const $self.$field).read_volatile() }
    };
}
pub(super) use read;

/// The reason of a code, an internal error where it is of none: [`Reason::from_code`], each arm of which would be
/// another path for the verifier.
#[inline(always)]
pub(crate) const fn reason(code: u32) -> Reason {
    if code as usize >= Reason::ALL.len() {
        return Reason::InternalError;
    }
    // SAFETY: the codes are the positions in the list, which a test of it says, and this is one of them.
    unsafe { core::mem::transmute::<u8, Reason>(code as u8) }
}

/// Copies what is made of numbers word by word: what the compiler has for it takes a step for each byte.
#[inline(always)]
pub(crate) fn copy<T: Copy>(from: &T, to: &mut T) {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) };
    for at in 0..size_of::<T>() / size_of::<u64>() {
        // SAFETY: a word within both, which are elements of maps and so aligned to words.
        unsafe {
            let word = core::ptr::from_ref(from).cast::<u64>().add(at).read_volatile();
            core::ptr::from_mut(to).cast::<u64>().add(at).write_volatile(word);
        }
    }
}

/// Makes it all zeros, likewise.
#[inline(always)]
pub(crate) fn clear<T: Copy>(place: &mut T) {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) };
    for at in 0..size_of::<T>() / size_of::<u64>() {
        // SAFETY: as in `copy`.
        unsafe { core::ptr::from_mut(place).cast::<u64>().add(at).write_volatile(0) };
    }
}
