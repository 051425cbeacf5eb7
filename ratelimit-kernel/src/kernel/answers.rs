//! Decision whether rules send answers themselves: a page for a request, a reset for a SYN. They do not if an answer
//! would be lost.

use std::sync::atomic::{AtomicBool, Ordering};

use ratelimit_common::layout::{Rule, refuses};
use ratelimit_policy::config::XdpModeChoice;

use super::attach::Slot;
use crate::interface::Interface;
use crate::{Attachment, XdpMode, encode};

/// Ability of this run's interfaces to send answers back.
pub(super) struct Answers {
    /// True if an interface is attached in generic mode, in which an answer might lose its VLAN tag.
    is_generic: bool,
    /// An interface that loses frames that XDP sends back, if there is one.
    lost_by: Option<String>,
    /// True if the loss was logged.
    has_said: AtomicBool,
}

impl Answers {
    /// Returns the state without any interface.
    pub(super) fn new(xdp_mode: XdpModeChoice) -> Self {
        Self { is_generic: xdp_mode == XdpModeChoice::Generic, lost_by: None, has_said: AtomicBool::new(false) }
    }

    const fn are_sent(&self) -> bool {
        !self.is_generic && self.lost_by.is_none()
    }

    /// Adds an attached interface. Returns true if rules answered until now and no longer may.
    pub(super) fn take(&mut self, attached: Attachment, found: &Interface) -> bool {
        let were_sent = self.are_sent();
        if attached == Attachment::Xdp(XdpMode::Generic) {
            self.is_generic = true;
        }
        self.look_at(Some(attached), found);
        were_sent && !self.are_sent()
    }

    /// Rechecks all interfaces with a row. Returns true if rules answered until now and no longer may.
    pub(super) fn look_again(&mut self, slots: &[Option<Slot>], present: &[Interface]) -> bool {
        slots.iter().flatten().fold(false, |has_changed, slot| {
            let found = present.iter().find(|interface| interface.index == slot.index());
            has_changed | found.is_some_and(|found| self.look_at(slot.attached(present), found))
        })
    }

    /// Rechecks an attached interface. Returns true if rules answered until now and no longer may. A loss lasts until
    /// the next start, because rules do not remember their setting.
    fn look_at(&mut self, attached: Option<Attachment>, found: &Interface) -> bool {
        let were_sent = self.are_sent();
        if were_sent && attached == Some(Attachment::Xdp(XdpMode::Native)) && !found.sends_back() {
            self.lost_by = Some(found.name.clone());
        }
        were_sent && !self.are_sent()
    }

    /// Stops all rules from answering if answers are lost, and logs the loss once.
    pub(super) fn write(&self, rules: &mut [Rule]) {
        const ANSWERS: u8 = refuses::BY_PAGE | refuses::SYN_BY_RESET;
        if self.are_sent() {
            return;
        }
        if let Some(name) = &self.lost_by
            && rules.iter().any(|rule| rule.refuses & ANSWERS != 0)
            && !self.has_said.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "{name} loses packets that XDP sends back, because the other end of the veth pair has no XDP program: \
                 requests are refused by a reset, not by a page, and SYNs are dropped. Attach an XDP program there \
                 that passes everything, then restart ratelimitd"
            );
        }
        rules.iter_mut().for_each(encode::answer_nothing);
    }
}
