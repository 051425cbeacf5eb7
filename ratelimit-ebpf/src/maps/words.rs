//! Access to elements of maps: single fields at the moment they are needed, and whole values word by word. Also the
//! decoding of a reason.

use ratelimit_common::verdict::Reason;

/// Reads a field at the moment it is needed. The compiler would keep an earlier read on the stack, of which there is
/// little.
macro_rules! read {
    ($self:ident.$field:ident) => {
        // SAFETY: a field of what `$self` refers to.
        unsafe { (&raw const $self.$field).read_volatile() }
    };
}
pub(super) use read;

/// Returns the reason with this code; an internal error if there is none. [`Reason::from_code`] has an arm for each
/// reason, and each would be another path for the verifier.
#[inline(always)]
pub(crate) const fn reason(code: u32) -> Reason {
    if code as usize >= Reason::ALL.len() {
        return Reason::InternalError;
    }
    // SAFETY: the codes are the positions in the list, which a test checks, and this is one of them.
    unsafe { core::mem::transmute::<u8, Reason>(code as u8) }
}

/// Copies a value of plain numbers word by word. The compiler's own copy takes a step for each byte.
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

/// Sets a value of plain numbers to zero, word by word.
#[inline(always)]
pub(crate) fn clear<T: Copy>(place: &mut T) {
    const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) };
    for at in 0..size_of::<T>() / size_of::<u64>() {
        // SAFETY: as in `copy`.
        unsafe { core::ptr::from_mut(place).cast::<u64>().add(at).write_volatile(0) };
    }
}
