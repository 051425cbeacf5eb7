//! Check for a supported byte order. It is in a file of its own, which a test compiles for other machines.

#[cfg(target_endian = "big")]
compile_error!(
    "ratelimitd is for little-endian machines: what its maps, pins and state files hold has been tried on x86_64 and \
     aarch64 alone; build it for one of those"
);
