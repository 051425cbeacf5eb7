//! Parts that every object for the kernel needs: a licence and a panic handler.

/// Licence that the kernel checks: some helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No panic is reachable: the verifier accepts no program with an infinite loop.
    loop {}
}
