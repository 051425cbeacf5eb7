//! Shadow limits with conditions. No packet charges them: log lines do, and the lines also show which requests an
//! enforced limit would have refused.

use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use ratelimit_common::window;
use ratelimit_datapath::{Datapath, DatapathError, EventLimit, KernelEvent, KernelEventKind};
use ratelimit_policy::desired::Policy;

use super::batch::Counted;
use super::rules::Source;

/// Charges the shadow limits with conditions of the rule at index `at` for `lines` of a source. Adds an event to
/// `begun` for each limit that would begin to refuse. `counts` are those of the log.
///
/// # Errors
/// Fails if a window cannot be read or written.
pub(super) fn charge<D: Datapath>(
    datapath: &mut D,
    (policy, at): (&Policy, usize),
    source: &Source,
    (lines, counts): (u64, &[Counted]),
    now: Nanos,
    begun: &mut Vec<KernelEvent>,
) -> Result<(), DatapathError> {
    let shadows = policy.rules.get(at).map_or(&[][..], |rule| &rule.shadow_limits);
    if shadows.iter().all(|limit| limit.condition.is_none()) {
        return Ok(());
    }
    let windows = datapath.source(source.client.addr())?;
    for (index, limit) in shadows.iter().enumerate().filter(|(_, limit)| limit.condition.is_some()) {
        let bucket = now.bucket(limit.bucket_ns);
        let window = windows.iter().find(|reading| reading.slot == limit.slot);
        let used = window.map_or(0, |reading| window::used(&reading.window.cells, limit.arithmetic(), bucket));
        let met = source.requests.of(limit, counts).min(lines);
        let Split { charged, refused } = Split::of(limit.amount, used, met, lines);
        if charged > 0 {
            datapath.charge_limit(source.client, at, limit.slot, charged)?;
        }
        if refused > 0 && datapath.add_refused(source.client, limit.slot, bucket, refused)? {
            begun.push(KernelEvent {
                time: now,
                kind: KernelEventKind::WouldRefuse,
                client: source.client,
                rule: Some(at),
                limit: Some(EventLimit::Shadow(index)),
                reason: Reason::OverLimit,
                guard: None,
                is_verified: false,
                used: used.saturating_add(charged),
            });
        }
    }
    Ok(())
}

/// Lines that an enforced limit would have charged and refused.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    charged: u64,
    refused: u64,
}

impl Split {
    /// Splits `lines`, of which `met` meet the condition, for a window with `used` of `amount`.
    ///
    /// The request that exceeds the limit is served, because its line comes after its answer. From then on, any request
    /// of the source would be refused. The order of the lines is unknown, so those that do not meet the condition count
    /// only if the limit was exceeded before.
    const fn of(amount: u64, used: u64, met: u64, lines: u64) -> Self {
        let room = amount.saturating_add(1).saturating_sub(used);
        if room == 0 {
            return Self { charged: 0, refused: lines };
        }
        let charged = if met < room { met } else { room };
        Self { charged, refused: met - charged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_more_than_the_limit_is_charged_and_the_next_ones_are_refused() {
        let split = |used, met, lines| {
            let Split { charged, refused } = Split::of(5, used, met, lines);
            (charged, refused)
        };
        assert_eq!(split(0, 0, 9), (0, 0));
        assert_eq!(split(0, 5, 9), (5, 0));
        assert_eq!(split(5, 1, 9), (1, 0));
        assert_eq!(split(5, 3, 9), (1, 2));
        assert_eq!(split(6, 0, 9), (0, 9), "requests that do not meet the condition would be refused too");
        assert_eq!(split(100, 3, 9), (0, 9));
    }
}
