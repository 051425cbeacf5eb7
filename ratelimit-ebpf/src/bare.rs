//! The empty program, which measures the cost of a run that does nothing. The benchmark subtracts it; it is never
//! attached.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod object;

#[cfg(target_arch = "bpf")]
mod entry {
    use aya_ebpf::bindings::xdp_action::XDP_DROP;
    use aya_ebpf::macros::xdp;
    use aya_ebpf::programs::XdpContext;

    #[xdp(frags)]
    fn bare(_: XdpContext) -> u32 {
        XDP_DROP
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
