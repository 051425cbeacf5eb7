//! The receivers, each loaded anew for every run, and what each says that it did.

use anyhow::{Context as _, Result, ensure};
use ratelimit_common::admission::{BUDGET, BUDGET_ANY};
use ratelimit_common::source::Family as SourceFamily;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_datapath::kernel::{Bare, Clock, Events, Kernel, Options, Passed};
use ratelimit_datapath::{Attachment, Datapath as _, XdpMode};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};

use super::connections::Connections;
use super::outside::{Outside, Running};
use super::peers::{Hashlimit, IptablesDrop, NftDrop, NftMeter};
use super::rows::{Beside, Expected, Floor, OTHERS_BITS, Row};
use super::wire::{RECEIVING, Wire};

/// Of a peer's packets so many may have another verdict than the limiter's: its bucket refills while it runs. One in:
const OFF_MAX: u64 = 100;
/// Least number of segments with 1400 bytes of which the guard counts one: it counts a segment in 128 KB of data that
/// begins nothing.
const GUARDED_SHARE: u64 = 8;
/// Of packets of new sources beyond the budget so many may pass: a second's worth at once, and more while they come.
/// One in:
const BUDGET_SHARE_MAX: u64 = 10;

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `XDP_DROP` at once.
    Bare,
    /// The real program.
    Limiter,
    /// The same at TCX, behind the stack's buffer.
    LimiterTcx,
    /// nftables, which drops everything.
    NftDrop,
    /// nftables, with a limit for each source.
    NftMeter,
    /// iptables, which drops everything.
    IptablesDrop,
    /// iptables, with a limit for each source.
    Hashlimit,
    /// What the benchmark's user has given a command for.
    Outside(&'static Outside),
}

impl Kind {
    /// All that are always there, in the order that they have their turns in.
    pub const ALL: [Self; 7] = [
        Self::Bare,
        Self::Limiter,
        Self::LimiterTcx,
        Self::NftDrop,
        Self::NftMeter,
        Self::IptablesDrop,
        Self::Hashlimit,
    ];

    /// Its name in JSON.
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

    /// What drops right behind it, alone: its own floor.
    pub const fn own_floor(self) -> Self {
        match self {
            Self::Bare | Self::Limiter | Self::LimiterTcx => Self::Bare,
            // What it passes comes to nft.
            Self::NftDrop | Self::NftMeter | Self::Outside(_) => Self::NftDrop,
            Self::IptablesDrop | Self::Hashlimit => Self::IptablesDrop,
        }
    }

    /// What its cost in a row is counted from.
    pub const fn floor(self, row: &Row) -> Self {
        match row.floor {
            Floor::Bare => Self::Bare,
            Floor::Own => self.own_floor(),
        }
    }

    /// Frames before the first that is timed: what has the row's sources over their limit, or the table full.
    pub fn needs_before(self, row: &Row) -> u32 {
        match self {
            Self::Bare | Self::NftDrop | Self::IptablesDrop => 0,
            Self::Limiter | Self::LimiterTcx => row.before.min(2 * row.max_sources),
            Self::NftMeter | Self::Hashlimit | Self::Outside(_) => row.before,
        }
    }

    /// Those that a row is measured with, where there are these besides.
    pub fn of(row: &Row, outside: &[Self]) -> Vec<Self> {
        match row.beside {
            Beside::Peers => [&Self::ALL, outside].concat(),
            Beside::Bare => Self::ALL[..2].to_vec(),
        }
    }
}

/// Packets so far, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Dropped as over a limit; all, where everything is dropped.
    pub over: u64,
    /// Within their limit.
    pub within: u64,
    /// Dropped as new ones in a flood of new ones.
    pub new_dropped: u64,
    /// Nothing to any limit.
    pub not_counted: u64,
    /// Of an exempt source.
    pub exempt: u64,
    /// Packets of new sources that were sampled out.
    pub not_admitted: u64,
    /// Anything else.
    pub other: u64,
    /// Those of all that passed, whatever they are counted as.
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

/// One that receives, until it is dropped.
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
    /// Loads one, for a row of so many frames in all; on the row's open connections, if it has any, everything is said
    /// that comes before.
    pub fn load(kind: Kind, row: &Row, frames: u64, wire: &'a Wire, open: Option<&mut Connections>) -> Result<Self> {
        let open = match (kind, open) {
            // It judges what clients say.
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

    /// What has become of the packets so far.
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

    /// Fails where something else became of `sent` frames than the row says.
    pub fn check(&mut self, row: &Row, before: Counts, sent: u64) -> Result<Counts> {
        let counts = self.counts()?.since(before);
        let Counts { over, within, new_dropped, not_counted, exempt, not_admitted, other, passed } = counts;
        let is_right = match &self.loaded {
            // Over IPv6 some come that nobody sent.
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
            // What it is to do is for its command to say.
            Loaded::Outside(_) => over + within >= sent,
            // What finds its table full is dropped before any rule counts it.
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

    /// Takes it away.
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

    /// Fails where a well-behaved source that has sent all that it may can send one more, or could have sent less:
    /// `send` sends as many frames as it is told.
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

/// The real program, attached to the receiving ends of so many pairs, once everything was said on these connections
/// that comes before.
pub fn limiter(row: &Row, frames: u64, wire: &Wire, pairs: usize, open: Option<&mut Connections>) -> Result<Kernel> {
    limiter_at(HookChoice::Xdp, row, frames, wire, &RECEIVING[..pairs], open)
}

/// The same at this hook of these interfaces.
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
            // Rules share the sources; only one of them judges.
            windows_per_source: 1,
            ipv6_family: SourceFamily::of_ipv6_prefix(policy.ipv6_prefix),
            clock: Clock::Kernel,
            passed: Passed::Nowhere,
            events: Events::On,
            // What is not forged is known before it is timed, however fast it comes.
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

/// What the program's counters say, of all interfaces.
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
