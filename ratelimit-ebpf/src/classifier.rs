//! The program for TCX ingress, where XDP is taken or interfaces have no Ethernet header. It is an object of its own
//! from the same modules, so that the XDP program is not affected.
//!
//! On the host this crate is an empty program, so that the whole workspace checks, lints and tests there.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch, core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "core::sync::atomic has no exchange for this target")
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        clippy::cast_possible_truncation,
        reason = "usize has 64 bits here, and words are taken apart; a check would be a branch"
    )
)]

#[cfg(target_arch = "bpf")]
mod account;
#[cfg(target_arch = "bpf")]
mod admission;
#[cfg(target_arch = "bpf")]
mod charges;
#[cfg(target_arch = "bpf")]
mod clock;
#[cfg(target_arch = "bpf")]
mod conversations;
#[cfg(target_arch = "bpf")]
mod decide;
#[cfg(target_arch = "bpf")]
mod drop_cache;
#[cfg(target_arch = "bpf")]
mod flows;
#[cfg(target_arch = "bpf")]
mod fragments;
#[cfg(target_arch = "bpf")]
#[expect(dead_code, reason = "orders are carried out by the XDP program")]
mod hold;
#[cfg(target_arch = "bpf")]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place in a map and what is read there, which is checked")]
#[path = "hook/skb.rs"]
mod hook;
#[cfg(target_arch = "bpf")]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a place in a map and what is read or written there are safe for one reason"
)]
#[expect(dead_code, reason = "orders are carried out by the XDP program")]
mod maps;
#[cfg(target_arch = "bpf")]
mod object;
#[cfg(target_arch = "bpf")]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "two fields of what the kernel has handed over")]
mod packet;
#[cfg(target_arch = "bpf")]
mod refusal;
#[cfg(target_arch = "bpf")]
mod verification;

#[cfg(target_arch = "bpf")]
mod entry {
    use aya_ebpf::Global;
    use aya_ebpf::bindings::xdp_action::XDP_PASS;
    use aya_ebpf::macros::classifier;
    use aya_ebpf::programs::TcContext;
    use ratelimit_common::verdict::{Action, Reason, Verdict};

    use crate::{account, decide, hook, maps, packet};

    /// `TCX_NEXT` and `TCX_DROP` of linux/bpf.h. `TCX_NEXT` passes the packet to the next program, which `TC_ACT_OK`
    /// would skip.
    const TCX_NEXT: i32 = -1;
    const TCX_DROP: i32 = 2;

    /// Action for packets that pass, as an XDP action: [`ratelimit_common::layout::PASSED_ACTION`].
    #[unsafe(no_mangle)]
    static PASSED_ACTION: Global<u32> = Global::new(XDP_PASS);

    /// Processes one packet from its parsing to its verdict.
    #[classifier]
    fn ratelimitd(ctx: TcContext) -> i32 {
        hook::begin(&ctx);
        let frame = packet::PacketFrame::new(&ctx);
        let verdict = match maps::active() {
            Some(active) => {
                let verdict = decide::unless_lapsed(&frame, decide::verdict(active, &frame));
                account::listed(active, &frame, verdict);
                verdict
            }
            None => account::unlisted(&frame, Verdict::unruled(Reason::InternalError)),
        };
        #[cfg(feature = "trace")]
        aya_log_ebpf::info!(&ctx, "{} rule {}", verdict.reason.label(), verdict.rule);
        // A packet that has become a reset goes on to the server.
        let goes_on = verdict.reason.action() == Action::Pass || verdict.reason as u32 == Reason::Reset as u32;
        if goes_on && PASSED_ACTION.load() == XDP_PASS { TCX_NEXT } else { TCX_DROP }
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
