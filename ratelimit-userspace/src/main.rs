//! `ratelimitd`.

fn main() {}
