//! Local side of the exchange between hosts of a fleet: steps that packets made, own admissions, and admissions of
//! other hosts.

use anyhow::Context as _;
use ipnet::IpNet;
use ratelimit_common::layout::{CHARGE_GENERATION, ChargeOrder, Limit};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verification::Side;
use ratelimit_common::window::Cell;

use super::clients::Client;
use super::{Kernel, rules_len};
use crate::{DatapathError, KernelStep, LimitAt, STEPS_PART, Told};

impl Kernel {
    /// See [`crate::Datapath::steps`].
    pub(super) fn visit_steps(&mut self, visit: &mut dyn FnMut(KernelStep)) -> Result<bool, DatapathError> {
        let Some(policy) = &self.generations.policy else { return Ok(false) };
        for _ in 0..STEPS_PART {
            let Some(step) = self.steps.next()? else { return Ok(false) };
            if let Some(step) = KernelStep::of(&step, policy) {
                visit(step);
            }
        }
        Ok(true)
    }

    /// See [`crate::Datapath::admitted`].
    pub(super) fn admitted_of(&mut self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError> {
        let limit = self.limit_at(at)?;
        let decode = |(at, word): (usize, &u64)| Cell::decode(*word, at, limit.parts);
        let cells = |client: &IpNet| {
            let client = Client::of(*client, self.sources.ipv6_family);
            let window = self.window(client, at.side.slot(limit.slot))?;
            Ok(window.map_or_else(Vec::new, |window| window.cells.iter().enumerate().map(decode).collect()))
        };
        clients.iter().map(cells).collect()
    }

    /// See [`crate::Datapath::tell_others`].
    pub(super) fn write_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError> {
        let limit = self.limit_at(at)?;
        let mut words = self.config_words()?;
        words.rules[0] = words.rules[at.rule];
        words.rules[0].limits[0] = limit;
        (words.rules[0].limits_len, words.rules[0].own_len, words.rules[0].shadows_len) = (1, 1, 0);
        self.write_config(CHARGE_GENERATION, words)?;
        // The unit in the map may be larger than the policy's, see [`super::units`].
        let policy = self.generations.policy.as_ref();
        let of = policy.and_then(|policy| policy.rules.get(at.rule)?.limits.get(at.limit));
        let coarser = of.map_or(0, |of| limit.parts.unit_bits().saturating_sub(of.parts().unit_bits())).min(63);
        let step = if at.side == Side::Verified { ChargeOrder::OTHERS_VERIFIED } else { ChargeOrder::OTHERS };
        let mut written = 0;
        for Told { client, bucket: BucketIndex(bucket), units } in told.iter().copied() {
            let amount = units >> coarser;
            let order = Client::of(client, self.sources.ipv6_family).order();
            written += usize::from(self.run_order(ChargeOrder { amount, bucket, step, ..order })?);
        }
        Ok(written)
    }

    fn limit_at(&mut self, at: LimitAt) -> Result<Limit, DatapathError> {
        let words = self.config_words()?;
        let rule = words.rules[..rules_len(&words)].get(at.rule);
        let limits = rule.map(|rule| &rule.limits[..usize::from(rule.limits_len).min(rule.limits.len())]);
        let limit = limits.and_then(|limits| limits.get(at.limit)).copied();
        Ok(limit.with_context(|| format!("find limit {} of rule {}", at.limit, at.rule))?)
    }
}
