//! Size budget of the BPF program. It is stored in the tree and checked by integration-test/tests/budget.rs.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::measured::ProgramCost;
use crate::workspace;

const FILE: &str = "integration-test/budget.toml";
/// Room beyond the present size in percent, for small changes of the code or the compiler.
const ROOM_PERCENT: u32 = 5;

/// Writes the budget: the present sizes plus the room.
pub(super) fn write(measured: &ProgramCost) -> Result<()> {
    let file = workspace::root().join(FILE);
    fs::write(&file, text(measured)).with_context(|| format!("write {}", file.display()))?;
    eprintln!("bench: {FILE} is written");
    Ok(())
}

fn text(measured: &ProgramCost) -> String {
    let ProgramCost { verified_instructions, translated_bytes, jited_bytes, ref functions, at_tcx, .. } = *measured;
    let mut text = format!(
        "# How large the program may be, as the kernel takes it. integration-test/tests/budget.rs fails where it is more;\n\
         # `cargo xtask bench --write-budget` records what it is, and {ROOM_PERCENT} % more.\n\n\
         # Of the million that the verifier looks at.\n\
         verified_instructions = {}\n\
         # As the verifier left it, 8 bytes each.\n\
         instructions = {}\n\
         # The machine's, which have to fit its cache beside everything else.\n\
         jited_bytes = {}\n",
        with_room(verified_instructions),
        with_room(translated_bytes / 8),
        with_room(jited_bytes),
    );
    // Writing to a String cannot fail.
    let _infallible = write!(
        text,
        "\n# The same of the program at TCX.\ntcx_verified_instructions = {}\ntcx_instructions = {}\ntcx_jited_bytes = {}\n",
        with_room(at_tcx.verified_instructions),
        with_room(at_tcx.translated_bytes / 8),
        with_room(at_tcx.jited_bytes),
    );
    text.push_str("\n# The machine's of each function: of the paths that a packet may take, the parts.\n[functions]\n");
    for (name, bytes) in functions {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "{name} = {}", with_room(*bytes));
    }
    text
}

/// Returns a value plus the room, rounded up to a multiple of 100 so that small changes leave the budget as it is.
fn with_room(value: u32) -> u32 {
    (u64::from(value) * u64::from(100 + ROOM_PERCENT))
        .div_ceil(10_000)
        .saturating_mul(100)
        .try_into()
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_has_room_and_is_rounded_up() {
        assert_eq!(with_room(1000), 1100);
        assert_eq!(with_room(660_784), 693_900);
        assert_eq!(with_room(0), 0);
    }
}
