//! Attachment, takeover and release of interfaces, at either hook.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use aya::programs::links::FdLink;
use aya::programs::xdp::{XdpLink, XdpMode as AyaMode};
use ratelimit_common::layout::{INTERFACES_MAX, Rule};
use ratelimit_crash::{Point, reach};

use super::answers::Answers;
use super::classifier::LinkHeader;
use super::held::{self, Held};
use super::place;
use super::{ConfigWords, Kernel, program};
use crate::interface::{self, Interface};
use crate::pins;
use crate::{Absent, Attachment, DatapathError, Hook, XdpMode};
use ratelimit_policy::config::{HookChoice, XdpModeChoice};

/// An interface that has a row in the counters.
pub(super) struct Slot {
    name: String,
    index: u32,
    link: Option<FdLink>,
    /// Hook of the link. The next field is the id of the link's program.
    hook: Hook,
    program: u32,
    origin: Origin,
}

/// Run that attached a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// This run attached the link.
    Anew,
    /// An earlier run attached the link and left it pinned.
    TakenOver,
}

/// A link, the mode that it runs in, and the run that attached it.
type Linked = (FdLink, Attachment, Origin);

impl Slot {
    /// Returns an interface without a link.
    pub(super) const fn known(name: String, index: u32) -> Self {
        Self { name, index, link: None, hook: Hook::Xdp, program: 0, origin: Origin::Anew }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether this run holds a link on the interface.
    pub(super) const fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the mode in which the kernel runs our program on the interface, or none.
    pub(super) fn attached(&self, present: &[Interface]) -> Option<Attachment> {
        let interface =
            present.iter().find(|interface| interface.index == self.index && interface.name == self.name)?;
        self.link.as_ref()?;
        interface.attachment(self.hook, self.program)
    }
}

/// Rows of the interfaces, and the links on them.
pub(super) struct Links {
    hook: HookChoice,
    xdp_mode: XdpModeChoice,
    answers: Answers,
    slots: [Option<Slot>; INTERFACES_MAX],
    /// Links that earlier runs left pinned and this run has not taken over.
    pub(super) held: Vec<Held>,
}

impl Links {
    /// Returns an empty set of links for this choice of hook and mode.
    pub(super) fn new(hook: HookChoice, xdp_mode: XdpModeChoice) -> Self {
        let answers = Answers::new(xdp_mode);
        Self { hook, xdp_mode, answers, slots: Default::default(), held: Vec::new() }
    }

    /// Returns the configured choice of hook.
    pub(super) const fn hook(&self) -> HookChoice {
        self.hook
    }

    /// Returns the interface of each row.
    pub(super) const fn slots(&self) -> &[Option<Slot>; INTERFACES_MAX] {
        &self.slots
    }

    /// Returns the interface index of each row, or 0 for a free row.
    pub(super) fn listed(&self) -> [u32; INTERFACES_MAX] {
        self.slots.each_ref().map(|slot| slot.as_ref().map_or(0, Slot::index))
    }

    /// Calls [`Answers::write`].
    pub(super) fn let_answer(&self, rules: &mut [Rule]) {
        self.answers.write(rules);
    }

    /// Rechecks whether interfaces send answers back. Returns true if answers were enabled until now and no longer are.
    pub(super) fn look_again(&mut self, present: &[Interface]) -> bool {
        self.answers.look_again(&self.slots, present)
    }

    /// Assigns the first row to an interface, replacing any other interface.
    #[cfg(any(test, feature = "fixture"))]
    pub(super) fn list_first(&mut self, slot: Slot) {
        self.slots[0] = Some(slot);
    }

    /// Drops the links of every interface. Pinned links stay in force.
    pub(super) fn let_go(&mut self) {
        self.slots = Default::default();
    }

    /// Returns the interfaces that this run attached without taking over a link.
    pub(super) fn attached_anew(&self) -> Vec<String> {
        let is_anew = |slot: &&Slot| slot.link.is_some() && slot.origin == Origin::Anew;
        self.slots.iter().flatten().filter(is_anew).map(|slot| slot.name.clone()).collect()
    }

    /// Returns the interfaces that have a pinned link not taken over, sorted.
    pub(super) fn kept(&self) -> Vec<String> {
        let mut names: Vec<_> = self.held.iter().map(|held| held.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().flatten().find(|slot| slot.name == name)
    }

    fn forget(&mut self, name: &str) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|slot| slot.name == name) {
                *slot = None;
            }
        }
    }

    /// Fails if an earlier run's link has another mode than requested. A link keeps its mode for life, so it cannot be
    /// taken over.
    pub(super) fn look_at_modes(&self, names: &[String]) -> Result<(), DatapathError> {
        self.held.iter().filter(|held| names.contains(&held.name)).try_for_each(|held| self.agree(held))
    }

    fn agree(&self, held: &Held) -> Result<(), DatapathError> {
        let Some(attached) = held.attached else { return Ok(()) };
        let mode = match (self.hook, attached) {
            (HookChoice::Auto | HookChoice::Xdp, Attachment::Xdp(mode)) => mode,
            (HookChoice::Auto | HookChoice::Tcx, Attachment::Tcx) => return Ok(()),
            (asked @ HookChoice::Xdp, Attachment::Tcx) | (asked @ HookChoice::Tcx, Attachment::Xdp(_)) => {
                return Err(DatapathError::Unsupported {
                    what: format!("take over {} by hook {}", held.name, asked.label()),
                    why: format!(
                        "an earlier run left it attached by {0}, and it stays in force; `--hook {0}` takes it over, \
                         or run `ratelimitd detach {1}` and start again",
                        attached.hook().label(),
                        held.name
                    ),
                });
            }
        };
        match (self.xdp_mode, mode) {
            (XdpModeChoice::Auto, _)
            | (XdpModeChoice::Native, XdpMode::Native)
            | (XdpModeChoice::Generic, XdpMode::Generic) => Ok(()),
            (asked @ (XdpModeChoice::Native | XdpModeChoice::Generic), XdpMode::Native | XdpMode::Generic) => {
                Err(DatapathError::Unsupported {
                    what: format!("take over {0} in {1} mode", held.name, asked.label()),
                    why: format!(
                        "an earlier run left it attached in {0} mode, and it stays in force; `--xdp-mode {0}` takes \
                         it over, or run `ratelimitd detach {1}` and start again",
                        mode.label(),
                        held.name
                    ),
                })
            }
        }
    }
}

/// Checks each named interface. Fails if the interface is missing and not awaited. Also fails if it has neither a link
/// pinned below `root` nor a free hook for this choice.
pub(super) fn look_at(
    names: &[String],
    hook: HookChoice,
    absent: Absent,
    root: Option<&Path>,
) -> Result<(), DatapathError> {
    let present = interface::all().context("list the network interfaces")?;
    if let Some(root) = root {
        pins::refuse_foreign(root)?;
        pins::refuse_other_versions(root)?;
    }
    let held = root.map_or(Ok(Vec::new()), |root| held::all(root, &present))?;
    for name in names {
        let found = match (find(&present, name), absent) {
            (Err(DatapathError::NoSuchInterface { .. }), Absent::Awaited) => continue,
            (found, Absent::Awaited | Absent::Refused) => found?,
        };
        if !held.iter().any(|held| held.is_on(found.index)) {
            place::hook_for(found, hook)?;
        }
    }
    Ok(())
}

fn find<'a>(present: &'a [Interface], name: &str) -> Result<&'a Interface, DatapathError> {
    present.iter().find(|interface| interface.name == name).ok_or_else(|| {
        let names: Vec<_> = present.iter().map(|interface| interface.name.as_str()).collect();
        DatapathError::NoSuchInterface { name: name.to_owned(), present: names.join(", ") }
    })
}

impl Kernel {
    /// Assigns the known rows to the interfaces of pinned links. Another interface may have an index or name by now.
    pub(super) fn take_rows(&mut self, known: &ConfigWords) -> Result<(), DatapathError> {
        let Some((pins, root)) = self.pins.as_ref().and_then(|pins| Some((pins, pins.root()?))) else { return Ok(()) };
        let present = interface::all().context("list the network interfaces")?;
        let mut held = held::take(pins, root, &present)?;
        if let Some(earlier) = pins.earlier() {
            held::add_earlier(&mut held, earlier, &present)?;
        }
        if self.time.is_lost(known.wall_offset_ns) && !held.is_empty() {
            return Err(DatapathError::Pins {
                path: pins.dir().display().to_string(),
                why: "it has links but not their maps; the filter stays in force. Run `ratelimitd detach`, then start again"
                    .into(),
            });
        }
        for (slot, &index) in self.links.slots.iter_mut().zip(&known.interfaces) {
            *slot = held.iter().find(|held| held.is_on(index)).map(|held| Slot::known(held.name.clone(), index));
        }
        self.links.held = held;
        Ok(())
    }

    pub(super) fn attach_interface(&mut self, name: &str) -> Result<Attachment, DatapathError> {
        let present = interface::all().context("list the network interfaces")?;
        let found = find(&present, name)?;
        if let Some(attached) = self.links.slot(name).and_then(|slot| slot.attached(&present)) {
            return Ok(attached);
        }
        if self.links.held.iter().any(|held| held.earlier.is_some() && held.is_on(found.index)) {
            self.finish_move()?;
        }
        self.before_packets();
        let is_known = self.links.slot(name).is_some();
        let before = self.take_own(found)?;
        // List the interface before its first packet arrives.
        self.list(found)?;
        reach(Point::Listed);
        match before.map_or_else(|| self.link(found), Ok) {
            Ok((link, attached, origin)) => {
                let (hook, program) = (attached.hook(), self.program_at(attached.hook(), found)?);
                // Nothing is pinned under this name any more.
                self.links.held.retain(|held| held.name != name);
                if let Some(slot) = self.links.slots.iter_mut().flatten().find(|slot| slot.name == name) {
                    (slot.link, slot.hook, slot.program, slot.origin) = (Some(link), hook, program, origin);
                }
                if self.links.answers.take(attached, found) {
                    self.write_interfaces()?;
                }
                Ok(attached)
            }
            Err(error) => {
                if !is_known {
                    self.links.forget(name);
                }
                Err(error)
            }
        }
    }

    fn link(&mut self, found: &Interface) -> Result<Linked, DatapathError> {
        let held = self
            .links
            .held
            .iter()
            .position(|held| held.is_on(found.index))
            .map(|held| self.links.held.swap_remove(held));
        match held {
            Some(Held { link, attached: Some(attached), header, .. }) => {
                Ok((self.replace_program(link, attached.hook(), header)?, attached, Origin::TakenOver))
            }
            Some(Held { attached: None, .. }) | None => {
                let (link, attached) = self.attach_new(found)?;
                Ok((link, attached, Origin::Anew))
            }
        }
    }

    /// Takes the link that this run holds on the interface under an earlier name.
    fn take_own(&mut self, found: &Interface) -> Result<Option<Linked>, DatapathError> {
        let Some(slot) = self.links.slots.iter_mut().flatten().find(|slot| slot.index == found.index) else {
            return Ok(None);
        };
        let Some(attached) = found.attachment(slot.hook, slot.program) else { return Ok(None) };
        let (before, origin) = (slot.name.clone(), slot.origin);
        let Some(link) = slot.link.take() else { return Ok(None) };
        let link = self.pin(link, &found.name)?;
        if let Some(pins) = &self.pins {
            pins.remove_link(&before)?;
        }
        tracing::info!("{before} was renamed to {}", found.name);
        Ok(Some((link, attached, origin)))
    }

    pub(super) fn detach_interface(&mut self, name: &str) -> Result<(), DatapathError> {
        if self.links.held.iter().any(|held| held.earlier.is_some() && held.name == name) {
            self.finish_move()?;
        }
        if let Some(pins) = &self.pins {
            pins.remove_link(name)?;
            reach(Point::Unpinned);
        }
        self.links.held.retain(|held| held.name != name);
        self.links.forget(name);
        reach(Point::Detached);
        Ok(())
    }

    /// Returns the id of this run's program for one hook of an interface.
    pub(super) fn program_at(&mut self, hook: Hook, found: &Interface) -> Result<u32, DatapathError> {
        match hook {
            Hook::Xdp => self.program_id(),
            Hook::Tcx => Ok(self.classifier(LinkHeader::from(found))?.info().context("inspect the program")?.id()),
        }
    }

    pub(super) fn program_id(&mut self) -> Result<u32, DatapathError> {
        Ok(program(&mut self.ebpf)?.info().context("inspect the program")?.id())
    }

    /// Assigns a row of counters to an interface: its previous row, even if its index changed, or else a free row.
    fn list(&mut self, found: &Interface) -> Result<(), DatapathError> {
        let known = self.links.slots.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.name == found.name));
        let position = match known {
            Some(position) => position,
            None => {
                let free = self.links.slots.iter().position(Option::is_none);
                let free =
                    free.with_context(|| format!("no room for more than {} interfaces", self.links.slots.len()))?;
                self.rows.clear_interface(&mut self.ebpf, free)?;
                free
            }
        };
        // Packets count in the first row with their interface index. A renamed or removed interface may have left the
        // index in an old row.
        self.links.slots.iter_mut().flatten().filter(|slot| slot.index == found.index).for_each(|slot| slot.index = 0);
        self.links.slots[position] = Some(Slot::known(found.name.clone(), found.index));
        self.write_interfaces()
    }

    /// Replaces the program of the link by ours, between two packets.
    pub(super) fn replace_program(
        &mut self,
        link: FdLink,
        hook: Hook,
        header: LinkHeader,
    ) -> Result<FdLink, DatapathError> {
        if hook == Hook::Tcx {
            return self.replace_classifier(link, header);
        }
        let link = XdpLink::try_from(link).context("the pinned link is no XDP link")?;
        let program = program(&mut self.ebpf)?;
        let id = program.attach_to_link(link).context("replace the program of the pinned link")?;
        reach(Point::Replaced);
        fd_link(program.take_link(id).context("take the link")?)
    }

    fn attach_new(&mut self, found: &Interface) -> Result<(FdLink, Attachment), DatapathError> {
        let hook = place::hook_for(found, self.links.hook)?;
        match hook {
            Hook::Xdp => match self.attach_xdp(found) {
                // Another program was attached first.
                Err(DatapathError::Occupied { .. }) if self.links.hook == HookChoice::Auto => {}
                attached => return attached,
            },
            Hook::Tcx => {}
        }
        let now = interface::named(&found.name).ok().flatten();
        if let Some(holder) = place::holder(now.as_ref().unwrap_or(found)) {
            tracing::info!("{} already has an XDP program: {holder}", found.name);
        }
        if hook == Hook::Xdp {
            place::hook_for(now.as_ref().unwrap_or(found), self.links.hook)?;
        }
        let link = self.attach_classifier(found)?;
        Ok((self.pin(link, &found.name)?, Attachment::Tcx))
    }

    fn attach_xdp(&mut self, found: &Interface) -> Result<(FdLink, Attachment), DatapathError> {
        let modes: &[XdpMode] = match self.links.xdp_mode {
            XdpModeChoice::Auto => &[XdpMode::Native, XdpMode::Generic],
            XdpModeChoice::Native => &[XdpMode::Native],
            XdpModeChoice::Generic => &[XdpMode::Generic],
        };
        let mut refusal = None;
        for &mode in modes {
            match self.attach_in(found, mode) {
                Ok(link) => {
                    if let Some(refusal) = refusal {
                        // The caller reports what follows from this.
                        tracing::info!("native XDP refused: {:#}", anyhow::Error::from(refusal));
                    }
                    return Ok((self.pin(link, &found.name)?, Attachment::Xdp(mode)));
                }
                Err(error) if error.is_of_every_mode() => return Err(error),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or_else(|| anyhow!("no mode to attach in").into()))
    }

    fn attach_in(&mut self, found: &Interface, mode: XdpMode) -> Result<FdLink, DatapathError> {
        let flags = match mode {
            XdpMode::Native => AyaMode::Driver,
            XdpMode::Generic => AyaMode::Skb,
        };
        let program = program(&mut self.ebpf)?;
        let id = program.attach_to_if_index(found.index, flags).map_err(|error| place::refused(found, mode, error))?;
        reach(Point::Linked);
        fd_link(program.take_link(id).context("take the link")?)
    }

    fn pin(&self, link: FdLink, name: &str) -> Result<FdLink, DatapathError> {
        match &self.pins {
            Some(pins) => held::pin(pins, link, name),
            None => Ok(link),
        }
    }
}

fn fd_link(link: XdpLink) -> Result<FdLink, DatapathError> {
    FdLink::try_from(link).map_err(|_| DatapathError::Unsupported {
        what: "attach with a BPF link".into(),
        why: "the kernel lacks BPF links on XDP: `ratelimitd doctor` names the package that brings them".into(),
    })
}
