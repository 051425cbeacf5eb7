//! What every object for the kernel has, whatever it does: a licence, and a panic handler.

/// The kernel asks for it: some helpers are for GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No panic is reachable: the verifier takes no program with a loop that does not end.
    loop {}
}
