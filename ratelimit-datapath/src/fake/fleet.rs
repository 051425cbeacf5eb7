//! Bans and admissions of other hosts in the fake.

use ipnet::IpNet;
use ratelimit_common::ban;
use ratelimit_common::time::Nanos;
use ratelimit_common::verification::Side;
use ratelimit_common::window::{self, Cell};

use super::World;
use crate::encode;
use crate::{DatapathError, LimitAt, Told};
use ratelimit_policy::desired::Mode;

impl World {
    pub(super) fn ban(&mut self, client: IpNet, rule: usize, until: Nanos) -> Result<bool, DatapathError> {
        let now = self.now;
        let Some(rule) =
            self.in_force().and_then(|policy| policy.rules.get(rule)).filter(|of| of.mode == Mode::Enforce)
        else {
            return Ok(false);
        };
        let Some(bans) = rule.bans.as_ref().and_then(|bans| encode::bans(&rule.name, bans).ok()) else {
            return Ok(false);
        };
        let key = (client, bans.slot);
        let newest = self.packets.sources.bans.get(&key).copied();
        let Some(ban) = ban::Ban::until(newest, &bans, now, until.0) else { return Ok(false) };
        self.packets.sources.bans.insert(key, ban);
        Ok(true)
    }

    pub(super) fn admitted(&self, at: LimitAt, clients: &[IpNet]) -> Result<Vec<Vec<Cell>>, DatapathError> {
        let limit = self.limit(at)?;
        let (slot, parts) = (at.side.slot(limit.slot), limit.parts());
        let windows = &self.packets.sources.windows;
        let cells = |client: &IpNet| {
            let cells = windows.get(&(*client, slot)).map(|window| window.cells);
            let decode = |(at, word)| Cell::decode(word, at, parts);
            cells.map_or_else(Vec::new, |cells| cells.into_iter().enumerate().map(decode).collect())
        };
        Ok(clients.iter().map(cells).collect())
    }

    pub(super) fn tell_others(&mut self, at: LimitAt, told: &[Told]) -> Result<usize, DatapathError> {
        let limit = self.limit(at)?;
        // Packets count evidence separately, so other hosts' admissions go to the window that packets are judged by.
        let side = if at.side == Side::Verified { Side::Verified } else { Side::Unverified };
        let (slot, now) = (side.slot(limit.slot), self.now.bucket(limit.bucket_ns));
        let windows = &mut self.packets.sources.windows;
        let mut written = 0;
        for told in told {
            let Some(window) = windows.get_mut(&(told.client, slot)) else { continue };
            let words = window.cells.map(std::cell::Cell::new);
            written += usize::from(window::write_others(&words, limit.arithmetic(), now, told.bucket, told.units));
            window.cells = words.map(std::cell::Cell::into_inner);
        }
        Ok(written)
    }
}
