//! Bytes as decisions, so that a fuzzer that changes a byte changes one of them.

/// Decisions, one a byte. Where the bytes are used up, each is the first that there is.
#[derive(Debug)]
pub(crate) struct Choices<'a> {
    left: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, left)) = self.left.split_first() else { return 0 };
        self.left = left;
        *byte
    }

    /// A number below `end`, 0 where that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let byte = usize::from(self.byte());
        let number = if end > 256 { byte << 8 | usize::from(self.byte()) } else { byte };
        number % end.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Once in sixteen times.
    pub(crate) fn is_rare(&mut self) -> bool {
        self.byte() >= 240
    }

    /// Up to `max` bytes as they are.
    pub(crate) fn bytes(&mut self, max: usize) -> &'a [u8] {
        let length = self.below(max + 1).min(self.left.len());
        let (bytes, left) = self.left.split_at(length);
        self.left = left;
        bytes
    }
}
