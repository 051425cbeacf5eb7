//! Charges for a source of the fake without a packet.

use anyhow::Context as _;
use ipnet::IpNet;
use ratelimit_common::window;
use ratelimit_policy::desired::Limit;

use super::FakeDatapath;
use super::tallied::charge_or_refuse;
use super::world::holder;
use crate::DatapathError;

impl FakeDatapath {
    /// Charges the limits and shadow limits of a rule for which `is_charged` is true.
    pub(super) fn charge_limits(
        &mut self,
        client: IpNet,
        rule: usize,
        amount: u64,
        is_charged: impl Fn(&Limit) -> bool,
    ) -> Result<(), DatapathError> {
        let mut world = self.kernel.world();
        let now = world.now;
        let of = world.in_force().and_then(|policy| policy.rules.get(rule)).cloned();
        let rule = of.with_context(|| format!("no rule {rule}"))?;
        for limit in rule.limits.iter().chain(&rule.shadow_limits).filter(|limit| is_charged(limit)) {
            let holder = holder(limit.per, client);
            let window = world.packets.sources.window(holder, limit.slot);
            let bucket = now.bucket(limit.bucket_ns);
            let largest = limit.parts().amount_max();
            let boundless = window::Limit { amount: largest, burst: window::BURST_ANY, ..limit.arithmetic() };
            let used = window::used(&window.cells, boundless, bucket);
            charge_or_refuse(window, boundless, bucket, amount.min(largest.saturating_sub(used)));
        }
        Ok(())
    }
}
