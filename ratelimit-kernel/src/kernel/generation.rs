//! Writes a policy into the generation that no packet reads, then makes every packet read that generation.

use std::collections::BTreeMap;

use anyhow::Context as _;
use ipnet::IpNet;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{self, GENERATIONS, Prefix, ROWS_MAX, Rule, map};
use ratelimit_common::source::Family;
use ratelimit_common::time::Nanos;
use ratelimit_crash::{Point, reach};

use super::counters::rows_of;
use super::plain::{Plain, plain_box};
use super::tries::Tries;
use super::{Kernel, Options, drop_cache, random, state};
use crate::DatapathError;
use crate::encode::{self, Encoded};
use ratelimit_policy::desired::Policy;

/// The applied policy, and values that every configuration contains.
#[derive(Debug)]
pub(super) struct Generations {
    /// Policy applied last.
    pub(super) policy: Option<Policy>,
    pub(super) tries: Tries,
    /// Key of the program's hashes.
    seed: HashKey,
    insertions_max: u32,
    /// Free insertions of each CPU.
    insertions_free: u32,
}

impl Generations {
    /// Returns the state without an applied policy.
    pub(super) fn new(insertions_max: u32) -> Self {
        let (policy, tries, seed) = (None, Tries::default(), HashKey::default());
        Self { policy, tries, seed, insertions_max, insertions_free: 0 }
    }

    /// Adopts the seed of earlier runs, or creates one if there is none.
    pub(super) fn take(&mut self, known: &layout::Config, options: &Options) -> Result<(), DatapathError> {
        let is_new = known.seed == HashKey::default();
        self.seed = if is_new { HashKey(random::words()?) } else { known.seed };
        self.insertions_free = if is_new { drop_cache::insertions_free(options.insertions_free) } else { 0 };
        Ok(())
    }

    /// See [`crate::Datapath::secret`].
    pub(super) const fn secret(&self) -> [u64; 2] {
        self.seed.0
    }
}

impl Kernel {
    /// Writes a policy and makes every packet read it, until `until` if given.
    pub(super) fn write_generation(&mut self, policy: &Policy, until: Option<Nanos>) -> Result<(), DatapathError> {
        if Family::of_ipv6_prefix(policy.ipv6_prefix) != self.sources.ipv6_family {
            return Err(DatapathError::Unsupported {
                what: format!("count IPv6 sources by /{}", policy.ipv6_prefix),
                why: "prefixes up to /64 and longer ones are stored separately; restart to change between them".into(),
            });
        }
        let Encoded { mut config, ports, prefixes, targets } =
            encode::encode(policy).context("the policy does not fit the maps")?;
        self.end_trial()?;
        reach(Point::ApplyBegun);
        let known = self.config_words()?;
        self.settle_units(&known, &mut config, until)?;
        let active = self.active_generation()?;
        let generation = (active + 1) % GENERATIONS;
        let taken = rows(&known.rules, &mut config.rules[..policy.rules.len()]);
        for row in taken {
            self.rows.clear(&mut self.ebpf, row)?;
        }
        for rule in &config.rules[..policy.rules.len()] {
            let budget = |of: &layout::Rule| (of.row, of.name, of.new_sources, of.new_sources_ns);
            if !known.rules.iter().any(|of| budget(of) == budget(rule)) {
                // The admissions under another budget are no measure for this one.
                self.array::<u64>(map::NEW_SOURCES)?
                    .set(rule.row.into(), 0, 0)
                    .with_context(|| format!("write {}", map::NEW_SOURCES))?;
            }
        }
        reach(Point::ApplyRows);
        (config.wall_offset_ns, config.suspended) = (self.time.wall_offset_ns(), self.time.suspended());
        (config.seed, config.places) = (self.generations.seed, self.generations.seed.of_places());
        config.insertions_max = self.generations.insertions_max;
        config.insertions_free = self.generations.insertions_free;
        config.sets_mask = self.map(map::DROP_CACHE)?.max_entries().saturating_sub(1);
        config.interfaces = self.links.listed();
        self.links.let_answer(&mut config.rules);
        config.until_ns = until.map_or(0, |until| until.0.max(1));
        config.prefixes_generation = self.write_prefixes(known.prefixes_generation % GENERATIONS, prefixes)?;
        reach(Point::ApplyPrefixes);
        let held = self.generations.tries.targets[generation as usize].take();
        self.write_trie(map::TARGETS_V4, generation, held.as_ref(), &targets, encode::key_v4)?;
        self.write_trie(map::TARGETS_V6, generation, held.as_ref(), &targets, encode::key_v6)?;
        self.generations.tries.targets[generation as usize] = Some(targets);
        reach(Point::ApplyTargets);
        self.array::<Plain<layout::PortTable>>(map::PORTS)?
            .set(generation, plain_box(ports).as_ref(), 0)
            .with_context(|| format!("write {}", map::PORTS))?;
        reach(Point::ApplyPorts);
        self.write_config(generation, config)?;
        reach(Point::ApplyConfig);
        self.activate(generation)?;
        reach(Point::ApplyActive);
        let rows: Vec<u8> = config.rules[..policy.rules.len()].iter().map(|rule| rule.row).collect();
        self.rows.hand_over(rows, rows_of(&known));
        // A packet may still read the other generation, which the next call writes.
        state::wait_for_packets();
        reach(Point::ApplyDone);
        Ok(())
    }

    /// Writes the entries of source prefixes, unless packets already read the same. Returns the generation of the tries
    /// with these entries. A million prefixes take a second, so only differences are written.
    fn write_prefixes(&mut self, active: u32, prefixes: BTreeMap<IpNet, Prefix>) -> Result<u32, DatapathError> {
        self.know_prefixes()?;
        if self.generations.tries.prefixes[active as usize].as_ref() == Some(&prefixes) {
            return Ok(active);
        }
        let generation = (active + 1) % GENERATIONS;
        self.write_prefixes_of(generation, prefixes)?;
        Ok(generation)
    }
}

/// Assigns each wanted rule a row of counters: the row of its name, or else a free row. Returns the newly taken rows,
/// whose counts belong to other rules.
fn rows(known: &[Rule], wanted: &mut [Rule]) -> Vec<u8> {
    let is_rule = |rule: &&Rule| rule.limits_len != 0;
    let mut is_free = [true; ROWS_MAX];
    let row_of = |name: u64| known.iter().filter(is_rule).find(|rule| rule.name == name).map(|rule| rule.row);
    // Rows of rules that packets still read are not free, even if those rules are no longer wanted.
    for rule in known.iter().filter(is_rule) {
        if let Some(free) = is_free.get_mut(usize::from(rule.row)) {
            *free = false;
        }
    }
    let mut taken = Vec::new();
    for rule in wanted {
        rule.row = row_of(rule.name).unwrap_or_else(|| {
            // A free row always exists, because there are twice as many rows as rules.
            let row = is_free.iter().position(|free| *free).unwrap_or(0);
            is_free[row] = false;
            let row = u8::try_from(row).unwrap_or(0);
            taken.push(row);
            row
        });
    }
    taken
}
