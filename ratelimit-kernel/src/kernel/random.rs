//! Random numbers of the kernel, which a sender of forged packets cannot predict.

use std::io;

use anyhow::Context as _;

use crate::DatapathError;

/// Returns `N` random words of the kernel. Soon after boot, waits until the kernel has gathered enough entropy.
pub(super) fn words<const N: usize>() -> Result<[u64; N], DatapathError> {
    const { assert!(N <= 32, "a call for at most 256 bytes gets them all (getrandom(2))") };
    let mut words = [0_u64; N];
    loop {
        // SAFETY: the words are writable for the given number of bytes, and any bits are a valid word.
        let got = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
        if usize::try_from(got) == Ok(size_of_val(&words)) {
            return Ok(words);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error).context("ask the kernel for randomness (getrandom)")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_the_same() {
        let mut words: Vec<u64> = (0..100).flat_map(|_| words::<2>().unwrap()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 200);
    }
}
