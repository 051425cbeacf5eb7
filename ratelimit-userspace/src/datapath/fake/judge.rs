//! What a fake makes of a packet: the real arithmetic on windows in a map.

use std::cell::Cell as Word;
use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::layout::{Source, Unit};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{self, CELLS, Charge};

use super::FakePacket;
use crate::datapath::Ban;
use crate::desired::{Limit, Refuse, Rule};

/// Whether the source is known to the rule, or is one more that the rule lets in.
pub(super) fn lets_in(
    budgets: &mut BTreeMap<usize, Source>,
    windows: &BTreeMap<(IpNet, u32), Source>,
    (index, rule): (usize, &Rule),
    client: IpNet,
    packet: FakePacket,
    now: Nanos,
) -> bool {
    let Some(of) = rule.new_sources else { return true };
    let is_known = |limit: &Limit| windows.contains_key(&(client, limit.slot));
    if rule.limits.iter().any(is_known) || rule.limits.iter().all(|limit| units(limit, packet) == 0) {
        return true;
    }
    let rate = Rate { amount: of.amount, window_ns: of.window_ns, burst_ns: of.window_ns };
    let budget = budgets.entry(index).or_default();
    let words = Words(budget.cells.map(Word::new));
    let is_in = matches!(gcra::charge(&words, rate, now, 1), Charge::Admitted(_));
    budget.cells = words.0.map(Word::into_inner);
    is_in
}

/// True if the rule bans.
pub(super) fn ban(bans: &mut BTreeMap<(IpNet, usize), Ban>, rule: &Rule, key: (IpNet, usize), now: Nanos) -> bool {
    let Some(of) = &rule.bans else { return false };
    let before = bans.get(&key).filter(|ban| now.0 < ban.until.0.saturating_add(of.forget_ns));
    let step = before.map_or(1, |ban| ban.step + 1);
    let place = usize::try_from(step - 1).unwrap_or(usize::MAX);
    let Some(length) = of.steps_ns.get(place).or(of.steps_ns.last()) else { return false };
    let until = Nanos(now.0.saturating_add(*length));
    bans.insert(key, Ban { client: key.0, rule: key.1, until, step });
    true
}

/// What the shadow limits count, whatever became of the packet.
pub(super) fn count_beside(
    windows: &mut BTreeMap<(IpNet, u32), Source>,
    rule: &Rule,
    client: IpNet,
    packet: FakePacket,
    now: Nanos,
) {
    for limit in rule.shadow_limits.iter().filter(|limit| units(limit, packet) != 0) {
        let window = windows.entry((client, limit.slot)).or_default();
        charge_or_refuse(window, limit.arithmetic(), now.bucket(limit.bucket_ns), units(limit, packet));
    }
}

pub(super) fn charge_or_refuse(window: &mut Source, limit: window::Limit, bucket: BucketIndex, amount: u64) {
    let words = Words(window.cells.map(Word::new));
    match window::charge(&words, limit, bucket, amount) {
        Charge::Admitted(_) => window.cells = words.0.map(Word::into_inner),
        Charge::Refused | Charge::Contended | Charge::Unsettled(_) => {
            window.refused = window.refused.and_one_in(bucket);
        }
    }
}

/// A window's words that can be changed in place.
pub(crate) struct Words(pub(crate) [Word<u64>; CELLS]);

impl window::Cells for Words {
    fn load(&self, index: usize) -> u64 {
        self.0[index & (CELLS - 1)].get()
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        let word = &self.0[index & (CELLS - 1)];
        let unchanged = word.get() == current;
        if unchanged {
            word.set(new);
        }
        unchanged
    }
}

pub(super) fn judge(
    windows: &mut BTreeMap<(IpNet, u32), Source>,
    rule: &Rule,
    client: IpNet,
    packet: FakePacket,
    now: Nanos,
) -> Reason {
    let counts = rule.limits.iter().any(|limit| units(limit, packet) > 0);
    for limit in &rule.limits {
        let (amount, bucket) = (units(limit, packet), now.bucket(limit.bucket_ns));
        let window = windows.entry((client, limit.slot)).or_default();
        let fits = window::has_room(&window.cells, limit.arithmetic(), bucket, amount.max(1));
        let has_room = match rule.refuse {
            Refuse::Excess => amount == 0 || fits,
            Refuse::All => window.refused.lets_through(amount, bucket, limit.behind(), fits),
        };
        if !has_room {
            window.refused = window.refused.and_one_in(bucket);
            return Reason::OverLimit;
        }
    }
    for limit in &rule.limits {
        let window = windows.entry((client, limit.slot)).or_default();
        let words = Words(window.cells.map(Word::new));
        match window::charge(&words, limit.arithmetic(), now.bucket(limit.bucket_ns), units(limit, packet)) {
            Charge::Admitted(_) => window.cells = words.0.map(Word::into_inner),
            Charge::Refused | Charge::Contended | Charge::Unsettled(_) => return Reason::OverLimit,
        }
    }
    if counts { Reason::WithinLimit } else { Reason::NotCounted }
}

fn units(limit: &Limit, packet: FakePacket) -> u64 {
    match limit.unit {
        Unit::Requests => packet.requests,
        Unit::Connections => u64::from(packet.opens),
        Unit::Packets => 1,
        Unit::Bytes => packet.bytes,
    }
}
