//! The XDP program: entry and action.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod bpf {
    use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

    #[xdp(frags)]
    pub(crate) fn ratelimitd(_: XdpContext) -> u32 {
        xdp_action::XDP_PASS
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }

    #[unsafe(link_section = "license")]
    #[unsafe(no_mangle)]
    static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
}
