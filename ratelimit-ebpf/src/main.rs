//! The XDP program: four stages, one after the other. It decides nothing itself: every decision is in
//! `ratelimit-common`.
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
mod hold;
#[cfg(target_arch = "bpf")]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one packet, whose end is checked")]
#[path = "hook/xdp.rs"]
mod hook;
#[cfg(target_arch = "bpf")]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a place in a map and what is read or written there are safe for one reason"
)]
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
    use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
    use aya_ebpf::macros::xdp;
    use aya_ebpf::programs::XdpContext;
    use ratelimit_common::verdict::{Action, Reason, Verdict};

    use crate::{account, decide, hold, hook, maps, packet};

    /// Action for packets that pass, [`ratelimit_common::layout::PASSED_ACTION`]. Constant to the verifier.
    #[unsafe(no_mangle)]
    static PASSED_ACTION: Global<u32> = Global::new(XDP_PASS);

    /// Processes one packet from its parsing to its verdict. `frags`: accepts frames of several buffers too, or the
    /// program could not be attached to interfaces with jumbo frames.
    #[xdp(frags)]
    fn ratelimitd(ctx: XdpContext) -> u32 {
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
        match verdict.reason.action() {
            Action::Pass => PASSED_ACTION.load(),
            Action::Drop if verdict.reason as u32 == Reason::Reset as u32 => match hook::way() {
                XDP_PASS => PASSED_ACTION.load(),
                action => action,
            },
            Action::Drop if verdict.reason as u32 == Reason::Page as u32 => XDP_TX,
            Action::Drop => XDP_DROP,
        }
    }

    /// Charges or bans a source by the daemon's order. The daemon runs it on an empty frame; it is never attached.
    #[xdp]
    fn charge_source(_: XdpContext) -> u32 {
        match maps::charge_order() {
            Some(order) if hold::carry_out(order) => XDP_PASS,
            Some(_) | None => XDP_DROP,
        }
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
