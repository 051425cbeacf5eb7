//! Tests of the splitting of bytes into lines.

use proptest::prelude::*;

use crate::lines::{Splitter, Tally};

proptest! {
    /// Checks that the lines are those of the whole text, cut if too long, for any sequence of reads. Each byte is
    /// handed on, skipped or pending.
    #[test]
    fn lines_do_not_depend_on_reads(
        text in proptest::collection::vec(prop_oneof![3 => Just(b'x'), 1 => Just(b'\n'), 1 => any::<u8>()], 0..300),
        reads in proptest::collection::vec((1..40_usize, 1..5_u64), 1..50),
        line_max in 0..12_usize,
    ) {
        let mut splitter = Splitter::new(line_max, false);
        let mut tally = Tally::default();
        let mut lines = Vec::new();
        let mut rest = &text[..];
        for (bytes, lines_max) in reads.into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let chunk = &rest[..bytes.min(rest.len())];
            let before = tally.lines;
            let used = splitter.feed(chunk, lines_max, &mut tally, &mut |line: &[u8]| lines.push(line.to_vec()));
            prop_assert!(used > 0 && tally.lines - before <= lines_max);
            prop_assert!(splitter.pending() <= line_max as u64);
            rest = &rest[used..];
        }
        let (whole, partial) = match text.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => (text[..last].split(|byte| *byte == b'\n').collect(), &text[last + 1..]),
            None => (Vec::new(), &text[..]),
        };
        let is_long = |line: &&[u8]| line.len() > line_max;
        let long = whole.iter().copied().chain([partial]).filter(is_long).count();
        let cut = |line: &[u8]| line[..line.len().min(line_max)].to_vec();
        let partial = Some(partial).filter(is_long);
        let expected: Vec<_> = whole.into_iter().chain(partial).map(cut).collect();
        prop_assert_eq!(&lines, &expected);
        prop_assert_eq!(tally.skipped_lines, long as u64);
        prop_assert_eq!(tally.bytes + tally.skipped_bytes + splitter.pending(), text.len() as u64);
    }
}
