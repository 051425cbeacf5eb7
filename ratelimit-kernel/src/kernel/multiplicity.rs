//! Writes multiplicities that the daemon learned from a log, for packets to read.

use anyhow::{Context as _, anyhow};
use ipnet::IpNet;
use ratelimit_common::layout::{ChargeOrder, map};
use ratelimit_common::multiplicity::{Multiplicity, SourceName, place_of_rule};
use ratelimit_common::time::Nanos;

use super::clients::Client;
use super::plain::Plain;
use super::{Kernel, rules_len};
use crate::{DatapathError, MULTIPLICITY_LASTS_NS};

impl Kernel {
    /// Writes the requests of a client, or the mark of the rule if `client` is none.
    pub(super) fn write_multiplicity(
        &mut self,
        rule: usize,
        client: Option<(IpNet, u16)>,
    ) -> Result<(), DatapathError> {
        let words = self.config_words()?;
        let Some(of) = words.rules[..rules_len(&words)].get(rule) else {
            return Err(anyhow!("set a multiplicity: no rule {rule}").into());
        };
        let until = Nanos(self.read_clock()?.0.saturating_add(MULTIPLICITY_LASTS_NS));
        let (place, element) = match client {
            Some((net, requests)) => {
                let source = name(Client::of(net, self.sources.ipv6_family), words.places);
                (source.place(of.row, words.places), Multiplicity::new(source, of.row, requests, until))
            }
            None => (place_of_rule(of.row), Multiplicity::of_rule(of.row, until)),
        };
        let mut elements = self.array::<Plain<Multiplicity>>(map::MULTIPLICITIES)?;
        Ok(elements.set(place, Plain(element), 0).with_context(|| format!("write {}", map::MULTIPLICITIES))?)
    }
}

/// Returns a client's name by the words that the program knows it by.
fn name(client: Client, places: u64) -> SourceName {
    let order = client.order();
    let [high, low] = order.prefix.map(u64::from_ne_bytes);
    let words = match order.family {
        ChargeOrder::V4 => [high, 4],
        ChargeOrder::V6 => [high, 6],
        _ => [high, low],
    };
    SourceName::of(words, places)
}
