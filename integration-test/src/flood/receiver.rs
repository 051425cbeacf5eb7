//! Receivers, each loaded anew for every run, and their own counts.

use anyhow::{Context as _, Result, ensure};
use ratelimit_common::admission::{BUDGET, BUDGET_ANY};
use ratelimit_common::source::Family as SourceFamily;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_datapath::{Attachment, Datapath as _, XdpMode};
use ratelimit_kernel::{Bare, Clock, Events, Kernel, Options, Passed};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};

use super::connections::Connections;
use super::outside::{Outside, Running};
use super::peers::{Hashlimit, IptablesDrop, NftDrop, NftMeter};
use super::rows::{Beside, Expected, Floor, OTHERS_BITS, Row};
use super::wire::{RECEIVING, Wire};

/// Maximum share, as one in N, of a peer's packets with another verdict than the limiter's. A peer's bucket refills
/// during the run.
const OFF_MAX: u64 = 100;
/// Lower bound of the ratio of segments with 1400 bytes to those that the guard counts. The guard counts one segment
/// per 128 KB of data that begins nothing.
const GUARDED_SHARE: u64 = 8;
/// Maximum share, as one in N, of packets of new sources over the budget that may pass. A second's budget passes at
/// once, and more while packets arrive.
const BUDGET_SHARE_MAX: u64 = 10;

/// Kind of receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A program that returns `XDP_DROP` at once.
    Bare,
    /// The real program at XDP.
    Limiter,
    /// The real program at TCX, behind the creation of the socket buffer.
    LimiterTcx,
    /// nftables with a chain that drops everything.
    NftDrop,
    /// nftables, with a limit for each source.
    NftMeter,
    /// iptables, which drops everything.
    IptablesDrop,
    /// iptables, with a limit for each source.
    Hashlimit,
    /// A program for which the benchmark's user has given a command.
    Outside(&'static Outside),
}

impl Kind {
    /// Receivers that are always measured, in the order of their turns.
    pub const ALL: [Self; 7] = [
        Self::Bare,
        Self::Limiter,
        Self::LimiterTcx,
        Self::NftDrop,
        Self::NftMeter,
        Self::IptablesDrop,
        Self::Hashlimit,
    ];

    /// Returns the receiver's name in JSON.
    pub fn id(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Limiter => "limiter",
            Self::LimiterTcx => "limiter_tcx",
            Self::NftDrop => "nft_drop",
            Self::NftMeter => "nft_meter",
            Self::IptablesDrop => "iptables_drop",
            Self::Hashlimit => "hashlimit",
            Self::Outside(outside) => outside.name.as_str(),
        }
    }

    /// Returns the receiver's own floor: the program that drops right behind it, alone.
    pub const fn own_floor(self) -> Self {
        match self {
            Self::Bare | Self::Limiter | Self::LimiterTcx => Self::Bare,
            // Packets that it passes reach nft.
            Self::NftDrop | Self::NftMeter | Self::Outside(_) => Self::NftDrop,
            Self::IptablesDrop | Self::Hashlimit => Self::IptablesDrop,
        }
    }

    /// Returns the floor above which the receiver's cost in a row is counted.
    pub const fn floor(self, row: &Row) -> Self {
        match row.floor {
            Floor::Bare => Self::Bare,
            Floor::Own => self.own_floor(),
        }
    }

    /// Returns the number of frames before the first timed one. They take the row's sources over their limit, or fill
    /// the table.
    pub fn needs_before(self, row: &Row) -> u32 {
        match self {
            Self::Bare | Self::NftDrop | Self::IptablesDrop => 0,
            Self::Limiter | Self::LimiterTcx => row.before.min(2 * row.max_sources),
            Self::NftMeter | Self::Hashlimit | Self::Outside(_) => row.before,
        }
    }

    /// Returns the receivers of a row, including these additional ones if the row has peers.
    pub fn of(row: &Row, outside: &[Self]) -> Vec<Self> {
        match row.beside {
            Beside::Peers => [&Self::ALL, outside].concat(),
            Beside::Bare => Self::ALL[..2].to_vec(),
        }
    }
}

/// Number of packets so far, by their treatment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Dropped as over a limit. Includes all packets of a receiver that drops everything.
    pub over: u64,
    /// Passed and charged, within their limit.
    pub within: u64,
    /// Dropped as packets of new sources over the budget.
    pub new_dropped: u64,
    /// Charged to no limit.
    pub not_counted: u64,
    /// Passed because their source is exempt.
    pub exempt: u64,
    /// Packets of new sources that were sampled out.
    pub not_admitted: u64,
    /// Treated in any other way.
    pub other: u64,
    /// Passed, whatever they are counted as.
    pub passed: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            over: self.over - before.over,
            within: self.within - before.within,
            new_dropped: self.new_dropped - before.new_dropped,
            not_counted: self.not_counted - before.not_counted,
            exempt: self.exempt - before.exempt,
            not_admitted: self.not_admitted - before.not_admitted,
            other: self.other - before.other,
            passed: self.passed - before.passed,
        }
    }
}

/// A receiver in place, until it is dropped.
pub struct Receiver<'a> {
    wire: &'a Wire,
    loaded: Loaded<'a>,
}

enum Loaded<'a> {
    Bare(#[expect(dead_code, reason = "it is attached while it lives")] Bare),
    Limiter(Box<Kernel>),
    NftDrop(NftDrop<'a>),
    NftMeter(NftMeter<'a>),
    IptablesDrop(IptablesDrop<'a>),
    Hashlimit(Hashlimit<'a>),
    Outside(Running<'a>),
}

impl<'a> Receiver<'a> {
    /// Loads a receiver for a row of `frames` frames in all. Plays the conversation on the row's open connections, if
    /// it has any.
    pub fn load(kind: Kind, row: &Row, frames: u64, wire: &'a Wire, open: Option<&mut Connections>) -> Result<Self> {
        let open = match (kind, open) {
            // The limiter judges the clients' data itself.
            (Kind::Limiter | Kind::LimiterTcx, open) => open,
            (_, Some(open)) => {
                open.play(None)?;
                None
            }
            (_, None) => None,
        };
        let amount = row.packets_an_hour(frames);
        let loaded = match kind {
            Kind::Bare => Loaded::Bare(wire.receiver.inside(|| {
                let mut bare = Bare::load()?;
                bare.attach(RECEIVING[0])?;
                Ok(bare)
            })?),
            Kind::Limiter => Loaded::Limiter(Box::new(limiter(row, frames, wire, 1, open)?)),
            Kind::LimiterTcx => {
                Loaded::Limiter(Box::new(limiter_at(HookChoice::Tcx, row, frames, wire, &RECEIVING[..1], open)?))
            }
            Kind::NftDrop => Loaded::NftDrop(NftDrop::load(&wire.receiver)?),
            Kind::NftMeter => Loaded::NftMeter(NftMeter::load(&wire.receiver, row, amount)?),
            Kind::IptablesDrop => Loaded::IptablesDrop(IptablesDrop::load(&wire.receiver, row)?),
            Kind::Outside(outside) => Loaded::Outside(Running::start(outside, &wire.receiver)?),
            Kind::Hashlimit => Loaded::Hashlimit(Hashlimit::load(&wire.receiver, row, amount)?),
        };
        Ok(Self { wire, loaded })
    }

    /// Returns the counts so far.
    pub fn counts(&mut self) -> Result<Counts> {
        match &mut self.loaded {
            Loaded::Bare(_) => Ok(Counts { over: self.wire.dropped_by_xdp()?, ..Counts::default() }),
            Loaded::Limiter(kernel) => counts_of(kernel, self.wire),
            Loaded::NftDrop(nft) => Ok(Counts { over: nft.dropped()?, ..Counts::default() }),
            Loaded::NftMeter(nft) => {
                let within = nft.within()?;
                let over = self.wire.received(1)?.saturating_sub(within);
                Ok(Counts { over, within, passed: within, ..Counts::default() })
            }
            Loaded::Outside(running) => {
                let within = running.passed()?;
                let over = self.wire.received(1)?.saturating_sub(within);
                Ok(Counts { over, within, passed: within, ..Counts::default() })
            }
            Loaded::IptablesDrop(iptables) => Ok(Counts { over: iptables.dropped()?, ..Counts::default() }),
            Loaded::Hashlimit(hashlimit) => hashlimit.counts(),
        }
    }

    /// Checks that the `sent` frames were treated as the row expects, and returns their counts. Fails otherwise.
    pub fn check(&mut self, row: &Row, before: Counts, sent: u64) -> Result<Counts> {
        let counts = self.counts()?.since(before);
        let Counts { over, within, new_dropped, not_counted, exempt, not_admitted, other, passed } = counts;
        let is_right = match &self.loaded {
            // On IPv6 a few packets arrive that nobody sent.
            Loaded::Bare(_) | Loaded::NftDrop(_) | Loaded::IptablesDrop(_) => over >= sent && passed == 0,
            Loaded::Limiter(_) => {
                let is_alone = other == 0 || row.sources.first.is_ipv6();
                let is_judged = match row.expected {
                    Expected::Over => over == sent,
                    Expected::Within => within == sent,
                    Expected::Exempt => exempt == sent,
                    Expected::NotCounted => not_counted + within == sent && within <= sent / GUARDED_SHARE,
                    Expected::New => over == 0 && within + new_dropped + not_admitted == sent,
                    Expected::NewOverBudget => {
                        over == 0
                            && within + new_dropped + not_admitted == sent
                            && within + not_admitted <= sent / BUDGET_SHARE_MAX
                    }
                    Expected::HalfNew => over == 0 && within + new_dropped + not_admitted == sent && within >= sent / 2,
                };
                is_alone && is_judged
            }
            Loaded::NftMeter(_) => {
                let off = match row.expected {
                    Expected::Over => within,
                    Expected::Within
                    | Expected::Exempt
                    | Expected::NotCounted
                    | Expected::New
                    | Expected::NewOverBudget
                    | Expected::HalfNew => over,
                };
                over + within >= sent && off <= sent / OFF_MAX
            }
            // The command alone decides what the program drops.
            Loaded::Outside(_) => over + within >= sent,
            // Packets that find the table full are dropped before any rule counts them.
            Loaded::Hashlimit(_) => match row.expected {
                Expected::Over => over + within == sent && within <= sent / OFF_MAX,
                Expected::Within | Expected::Exempt | Expected::NotCounted => {
                    over + within == sent && over <= sent / OFF_MAX
                }
                Expected::New | Expected::NewOverBudget | Expected::HalfNew => {
                    over + within <= sent && over <= sent / OFF_MAX
                }
            },
        };
        ensure!(is_right, "of {sent} frames {counts:?}, which is not `{:?}`", row.expected);
        Ok(counts)
    }

    /// Removes the receiver.
    pub fn end(self) -> Result<()> {
        match self.loaded {
            Loaded::Outside(running) => running.end(),
            Loaded::Bare(_)
            | Loaded::Limiter(_)
            | Loaded::NftDrop(_)
            | Loaded::NftMeter(_)
            | Loaded::IptablesDrop(_)
            | Loaded::Hashlimit(_) => Ok(()),
        }
    }

    /// Sends `2 << OTHERS_BITS` frames with `send`, and checks that each well-behaved source is exactly at its limit.
    /// Fails if one could send more, or could have sent less.
    pub fn check_edge(&mut self, row: &Row, send: impl FnOnce(u32) -> Result<()>) -> Result<()> {
        if row.expected != Expected::HalfNew || !matches!(self.loaded, Loaded::Limiter(_)) {
            return Ok(());
        }
        let before = self.counts()?;
        send(2 << OTHERS_BITS)?;
        let over = self.counts()?.since(before).over;
        ensure!(
            over == 1 << OTHERS_BITS,
            "of {} sources at their limit {over} were refused one more",
            1 << OTHERS_BITS
        );
        Ok(())
    }
}

/// Attaches the real program to the receiving ends of the first `pairs` pairs, once the conversation on the open
/// connections was played.
pub fn limiter(row: &Row, frames: u64, wire: &Wire, pairs: usize, open: Option<&mut Connections>) -> Result<Kernel> {
    limiter_at(HookChoice::Xdp, row, frames, wire, &RECEIVING[..pairs], open)
}

/// Attaches the real program at this hook of these interfaces, once the conversation was played.
fn limiter_at(
    hook: HookChoice,
    row: &Row,
    frames: u64,
    wire: &Wire,
    interfaces: &[&str],
    open: Option<&mut Connections>,
) -> Result<Kernel> {
    wire.receiver.inside(|| {
        let policy = row.policy(frames);
        if hook == HookChoice::Tcx {
            netlab::usual_bpffs()?;
        }
        let mut kernel = Kernel::load(&Options {
            pins: None,
            hook,
            xdp_mode: XdpModeChoice::Native,
            max_sources: row.max_sources,
            // Rules share the sources, and only one rule judges.
            windows_per_source: 1,
            ipv6_family: SourceFamily::of_ipv6_prefix(policy.ipv6_prefix),
            clock: Clock::Kernel,
            passed: Passed::Nowhere,
            events: Events::On,
            // Sources that are not forged are known before they are timed, however fast they come.
            insertions_free: 0,
            insertions_max: if row.is_forged() { BUDGET } else { BUDGET_ANY },
        })?;
        kernel.apply(&policy)?;
        if let Some(open) = open {
            open.play(Some(&mut kernel))?;
        }
        let expected = if hook == HookChoice::Tcx { Attachment::Tcx } else { XdpMode::Native.into() };
        for interface in interfaces {
            let mode = kernel.attach(interface)?;
            ensure!(mode == expected, "attached to {interface} as {mode:?}");
        }
        Ok(kernel)
    })
}

/// Returns the program's counters, summed over all interfaces.
pub fn counts_of(kernel: &mut Kernel, wire: &Wire) -> Result<Counts> {
    let reading = wire.receiver.inside(|| Ok(kernel.read()?))?;
    let faults: Vec<_> = reading.faults.iter().filter(|(_, count)| *count != 0).collect();
    ensure!(faults.is_empty(), "map operations failed: {faults:?}");
    let mut counts = Counts::default();
    let tallies = reading.interfaces.iter().flat_map(|interface| interface.rules.iter().chain([&interface.unruled]));
    for (reason, tally) in tallies.flat_map(|tallies| &tallies.0) {
        let kind = match reason {
            Reason::OverLimit => &mut counts.over,
            Reason::WithinLimit => &mut counts.within,
            Reason::NewSourceBudget => &mut counts.new_dropped,
            Reason::NotAdmitted => &mut counts.not_admitted,
            Reason::NotCounted => &mut counts.not_counted,
            Reason::Exempt => &mut counts.exempt,
            Reason::NotIp
            | Reason::NotProtected
            | Reason::DryRun
            | Reason::Malformed
            | Reason::StateFull
            | Reason::InternalError
            | Reason::Contended
            | Reason::Banned
            | Reason::Denied
            | Reason::Guard
            | Reason::Reset
            | Reason::Page
            | Reason::TooManyHeaders
            | Reason::TooManyTags => &mut counts.other,
        };
        *kind += tally.packets;
        if reason.action() == Action::Pass {
            counts.passed += tally.packets;
        }
    }
    reading.interfaces.first().context("it is attached")?;
    Ok(counts)
}
