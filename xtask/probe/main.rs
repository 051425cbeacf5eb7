//! Smallest XDP program. Its build needs `core` for BPF, bpf-linker, and a libLLVM that reads the compiler's output.
#![no_std]
#![no_main]

#[unsafe(no_mangle)]
#[unsafe(link_section = "xdp")]
extern "C" fn probe(_context: *const u8) -> u32 {
    2
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
