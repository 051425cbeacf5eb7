//! Whether rules answer by themselves: a page to a request, a reset to a SYN. They do not where an answer would be lost.

use std::sync::atomic::{AtomicBool, Ordering};

use ratelimit_common::layout::{Rule, refuses};
use ratelimit_policy::config::XdpModeChoice;

use super::attach::Slot;
use crate::interface::Interface;
use crate::{Attachment, XdpMode, encode};

/// What the interfaces of this run can send back.
pub(super) struct Answers {
    /// Whether one is attached in generic mode: an answer might lose its VLAN tag there.
    is_generic: bool,
    /// One that loses what XDP sends back, if there is one.
    lost_by: Option<String>,
    /// Whether that was said.
    has_said: AtomicBool,
}

impl Answers {
    /// Of no interface yet.
    pub(super) fn new(xdp_mode: XdpModeChoice) -> Self {
        Self { is_generic: xdp_mode == XdpModeChoice::Generic, lost_by: None, has_said: AtomicBool::new(false) }
    }

    const fn are_sent(&self) -> bool {
        !self.is_generic && self.lost_by.is_none()
    }

    /// Takes in an interface that was attached so. Whether rules have answered until now, and may not any more.
    pub(super) fn take(&mut self, attached: Attachment, found: &Interface) -> bool {
        let were_sent = self.are_sent();
        if attached == Attachment::Xdp(XdpMode::Generic) {
            self.is_generic = true;
        }
        self.look_at(Some(attached), found);
        were_sent && !self.are_sent()
    }

    /// Takes in what the interfaces have become since. Whether rules have answered, and may no longer.
    pub(super) fn look_again(&mut self, slots: &[Option<Slot>], present: &[Interface]) -> bool {
        slots.iter().flatten().fold(false, |has_changed, slot| {
            let found = present.iter().find(|interface| interface.index == slot.index());
            has_changed | found.is_some_and(|found| self.look_at(slot.attached(present), found))
        })
    }

    /// Takes in what an interface that is attached so has become since. An answer that is lost once stays lost until the
    /// next start, as rules do not remember what they answered. Whether rules have answered, and may no longer.
    fn look_at(&mut self, attached: Option<Attachment>, found: &Interface) -> bool {
        let were_sent = self.are_sent();
        if were_sent && attached == Some(Attachment::Xdp(XdpMode::Native)) && !found.sends_back() {
            self.lost_by = Some(found.name.clone());
        }
        were_sent && !self.are_sent()
    }

    /// Has rules answer nothing where answers are lost, and says so once.
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
                "{name} loses what XDP sends back, as the other end of the veth pair has no XDP program: requests are refused \
                 by a reset, not by a page, and SYNs are dropped. Attach an XDP program there that passes everything, then \
                 restart ratelimitd"
            );
        }
        rules.iter_mut().for_each(encode::answer_nothing);
    }
}
