//! Charges for a source without a packet. The BPF program itself applies them, so they count like packets.
//!
//! Any process that may load the program can have the kernel run it on an empty frame. The program reads its order from
//! a map. It charges one limit at a time, in a configuration of its own whose limit admits everything.

use anyhow::{Context as _, anyhow};
use aya::programs::Xdp;
use aya::{Ebpf, TestRun as _, TestRunOptions};
use ipnet::IpNet;
use ratelimit_common::gcra;
use ratelimit_common::layout::{
    CHARGE_GENERATION, CHARGE_PROGRAM, ChargeOrder, LIMITS_MAX, Limit, Rule, Source, Unit, map,
};
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::{EvidenceNeeds, Side};
use ratelimit_common::window::{self, BURST_ANY};

use super::clients::{Client, Lengths};
use super::groups::Holder;
use super::plain::Plain;
use super::{ConfigWords, Kernel, XDP_PASS, limits_of, rules_len};
use crate::DatapathError;

/// Frame for a test run. The kernel runs a program only on frames that have at least an Ethernet header.
const FRAME: [u8; 64] = [0; 64];
/// Maximum charge of a leaky bucket in one call, in runs of [`gcra::AMOUNT_MAX`]: 134 MB for a limit of bytes.
const LEAK_RUNS_MAX: u64 = 1024;

/// Loads the charging program into the kernel. On failure, everything except charging still works.
pub(super) fn load(ebpf: &mut Ebpf) -> Result<(), DatapathError> {
    Ok(program(ebpf)?.load().context("load the charge program")?)
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, DatapathError> {
    let program = ebpf.program_mut(CHARGE_PROGRAM).with_context(|| format!("find program {CHARGE_PROGRAM}"))?;
    Ok(program.try_into().context("the charge program is no XDP program")?)
}

impl Kernel {
    pub(super) fn charge_client(
        &mut self,
        net: IpNet,
        rule: usize,
        amount: u64,
        is_charged: impl Fn(&Limit) -> bool,
    ) -> Result<(), DatapathError> {
        let mut words = self.config_words()?;
        let Some(of) = words.rules[..rules_len(&words)].get(rule).copied() else {
            return Err(anyhow!("charge a source: no rule {rule}").into());
        };
        let (own, client) = (Lengths::of(&words), Client::of(net, self.sources.ipv6_family));
        let limits = &of.limits[..usize::from(of.limits_len).min(LIMITS_MAX)];
        for (at, limit) in limits_of(&of).enumerate().filter(|(_, limit)| is_charged(limit)) {
            let held = Holder::of(&of, if at < limits.len() { at } else { LIMITS_MAX }).net(net.addr(), own);
            let client = held.map_or(client, |held| Client::of(held, self.sources.ipv6_family));
            let largest = self.offer(&mut words, of, *limit)?;
            // Charge every window that could be the one that limits the source's packets.
            for (side, step) in sides(&of, limit, at < limits.len()) {
                for amount in runs(limit, amount.min(self.room(client, limit, side, largest)?)) {
                    self.order(ChargeOrder { amount, step, ..client.order() })?;
                }
            }
        }
        let now = self.read_clock()?;
        let mut exceeded = None;
        // A group's usage proves nothing about one of its sources.
        for limit in limits.iter().take(of.own_len.into()) {
            // Unverified traffic bans no source here either.
            let judged = if needs_evidence(&of) { verified_side(limit) } else { Side::Unverified };
            let window = self.window(client, judged.slot(limit.slot))?;
            if window.is_some_and(|window| exceeds(limit, &window, now)) {
                exceeded = exceeded.or(Some(*limit));
            }
        }
        let bans = of.bans.steps_len != 0 && !of.is_dry_run();
        if let Some(limit) = exceeded.filter(|_| bans)
            && !self.ban(client, of.bans.slot)?.is_some_and(|ban| ban.holds(now))
        {
            // The event of the ban names this limit.
            self.offer(&mut words, of, limit)?;
            self.order(ChargeOrder { step: ChargeOrder::BAN, ..client.order() })?;
        }
        Ok(())
    }

    /// Makes this limit the only one that is charged, with the largest countable amount. Returns that amount.
    fn offer(&mut self, words: &mut ConfigWords, of: Rule, limit: Limit) -> Result<u64, DatapathError> {
        let largest = if limit.is_gcra == 0 { limit.parts.amount_max() } else { limit.amount };
        words.rules[0] = of;
        words.rules[0].limits[0] = Limit { amount: largest, burst: BURST_ANY, ..limit };
        (words.rules[0].limits_len, words.rules[0].own_len, words.rules[0].shadows_len) = (1, 1, 0);
        self.write_config(CHARGE_GENERATION, *words)?;
        Ok(largest)
    }

    /// Returns how much more of a limit can be charged. A cell has a maximum, and by then the source is long over its
    /// limit. A leaky bucket has no maximum and could fill for years, so it gets one window more than its burst.
    fn room(&mut self, client: Client, limit: &Limit, side: Side, largest: u64) -> Result<u64, DatapathError> {
        let (now, slot) = (self.read_clock()?, side.slot(limit.slot));
        if limit.is_gcra != 0 {
            let full_ns = self.window(client, slot)?.map_or(0, |window| window.cells[0]).saturating_sub(now.0);
            let left_ns = limit.burst.saturating_add(limit.bucket_ns).saturating_sub(full_ns);
            let room = u128::from(left_ns) * u128::from(limit.amount) / u128::from(limit.bucket_ns.max(1));
            return Ok(u64::try_from(room).unwrap_or(u64::MAX));
        }
        let used = self.window(client, slot)?.map_or(0, |window| used(limit, &window, now));
        Ok(largest.saturating_sub(used))
    }

    fn order(&mut self, order: ChargeOrder) -> Result<(), DatapathError> {
        if self.run_order(order)? {
            return Ok(());
        }
        Err(anyhow!("charge a source: the amount does not fit into its window, or the map has no room for its window")
            .into())
    }

    /// Runs the program on an order. Returns whether the order could be carried out.
    pub(super) fn run_order(&mut self, order: ChargeOrder) -> Result<bool, DatapathError> {
        let orders = self.array::<Plain<ChargeOrder>>(map::CHARGE_ORDER);
        orders?.set(0, Plain(order), 0).with_context(|| format!("write {}", map::CHARGE_ORDER))?;
        let options = TestRunOptions { data_in: Some(&FRAME), repeat: 1, ..TestRunOptions::default() };
        let answer = program(&mut self.ebpf)?.test_run(options).map_err(|error| DatapathError::Unsupported {
            what: "charge a source".into(),
            why: format!("the kernel does not run the program for it: {:#}", anyhow::Error::from(error)),
        })?;
        Ok(answer.return_value == XDP_PASS)
    }
}

/// Returns the windows of a limit to charge, each with the step that charges it. `is_held` is false for a shadow limit.
fn sides(rule: &Rule, limit: &Limit, is_held: bool) -> Vec<(Side, u32)> {
    let mut sides = vec![(Side::Unverified, ChargeOrder::CHARGE)];
    if is_held && limit.unit != Unit::Connections as u8 {
        sides.push((Side::Verified, ChargeOrder::CHARGE_VERIFIED));
    }
    if is_held && needs_evidence(rule) && verified_side(limit) == Side::Evidence {
        sides.push((Side::Evidence, ChargeOrder::CHARGE_EVIDENCE));
    }
    sides
}

/// Returns the window that bans follow if they need verified traffic.
fn verified_side(limit: &Limit) -> Side {
    match Unit::from_code(limit.unit) {
        Some(Unit::Connections) => Side::Evidence,
        Some(Unit::Requests | Unit::Packets | Unit::Bytes) | None => Side::Verified,
    }
}

const fn needs_evidence(rule: &Rule) -> bool {
    rule.evidence.any(EvidenceNeeds::BANS)
}

/// Splits an amount into the amounts of single orders. Empty for an amount of 0.
fn runs(limit: &Limit, amount: u64) -> Vec<u64> {
    if limit.is_gcra == 0 {
        return vec![amount; usize::from(amount != 0)];
    }
    let whole = (amount / gcra::AMOUNT_MAX).min(LEAK_RUNS_MAX);
    let rest = amount % gcra::AMOUNT_MAX;
    let whole = std::iter::repeat_n(gcra::AMOUNT_MAX, usize::try_from(whole).unwrap_or(0));
    whole.chain((rest != 0).then_some(rest)).collect()
}

/// Returns whether a window holds more than the limit allows.
fn exceeds(limit: &Limit, window: &Source, now: Nanos) -> bool {
    if limit.is_gcra != 0 {
        return window.cells[0].saturating_sub(now.0) > limit.burst;
    }
    let current = used(&Limit { full_buckets: 0, ..*limit }, window, now);
    used(limit, window, now) > limit.amount || current > limit.burst
}

/// Returns the amount used in a limit's window.
fn used(limit: &Limit, window: &Source, now: Nanos) -> u64 {
    window::used(&window.cells, limit.arithmetic(Side::Unverified), now.bucket(limit.bucket_ns))
}
