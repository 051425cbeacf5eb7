//! Entry point of libFuzzer, for the target that `FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ratelimit_fuzz::{Target, target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is no target"))
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
