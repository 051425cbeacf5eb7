//! A policy on trial. The generation that packets read has an end. The other generation, to which they then roll back,
//! stays whole.

use anyhow::{Context as _, anyhow};
use ratelimit_common::layout::{Config as ConfigWords, GENERATIONS, map};
use ratelimit_common::time::Nanos;
use ratelimit_crash::{Point, reach};

use super::plain::Plain;
use super::{Kernel, rules_len, state};
use crate::encode::{self, Encoded};
use crate::{DatapathError, Trial};
use ratelimit_policy::desired::Policy;

/// Minimum time, in nanoseconds, before the end at which a trial can be confirmed. A write takes microseconds.
const MARGIN_NS: u64 = 10_000_000;

impl Kernel {
    pub(super) fn try_out(&mut self, policy: &Policy, until: Nanos) -> Result<(), DatapathError> {
        if let Trial::Running(_) = self.trial_state()? {
            return Err(anyhow!("put a policy on trial: one is on trial already").into());
        }
        if rules_len(&self.config_words()?) == 0 {
            return Err(anyhow!("put a policy on trial: there is no policy to roll back to").into());
        }
        self.write_generation(policy, Some(until))
    }

    /// Writes the allowed and denied prefixes into both generations, while packets read one and may roll back to the
    /// other. Each packet reads one entry of a trie, which is replaced as a whole.
    pub(super) fn write_access(&mut self, tried: &Policy, before: &Policy) -> Result<(), DatapathError> {
        let active = self.active_generation()?;
        let other = (active + 1) % GENERATIONS;
        let encoded = |policy| encode::encode(policy).context("the policy does not fit the maps");
        let (tried, before) = (encoded(tried)?, encoded(before)?);
        let of = |words: ConfigWords| words.prefixes_generation % GENERATIONS;
        let (mut tries, back) = (of(self.config_words_of(active)?), of(self.config_words_of(other)?));
        if tries == back && tried.prefixes != before.prefixes {
            // Both generations shared tries whose entries now differ.
            tries = (back + 1) % GENERATIONS;
        }
        self.write_shown(active, tries, tried)?;
        reach(Point::AccessTried);
        state::wait_for_packets();
        self.write_shown(other, back, before)?;
        reach(Point::AccessBefore);
        // Misses of the tries are cached.
        self.begin_epoch()
    }

    /// Makes a generation read its prefixes from these tries.
    fn write_shown(&mut self, generation: u32, tries: u32, encoded: Encoded) -> Result<(), DatapathError> {
        let Encoded { config, prefixes, .. } = encoded;
        self.write_prefixes_of(tries, prefixes)?;
        let ConfigWords { has_prefixes_v4, has_prefixes_v6, .. } = config;
        let words = self.config_words_of(generation)?;
        let words = ConfigWords { prefixes_generation: tries, has_prefixes_v4, has_prefixes_v6, ..words };
        self.write_config(generation, words)
    }

    pub(super) fn confirm_trial(&mut self) -> Result<bool, DatapathError> {
        let Trial::Running(until) = self.trial_state()? else { return Ok(false) };
        if self.read_clock()?.0.saturating_add(MARGIN_NS) >= until.0 {
            return Ok(false);
        }
        let generation = self.active_generation()?;
        let words = self.config_words()?;
        self.write_config(generation, ConfigWords { until_ns: 0, ..words })?;
        // Packets are judged by a clock that is never ahead of this one. If this thread was paused until the end had
        // passed, some packets may have rolled back. Then all must.
        if self.read_clock()? < until {
            return Ok(true);
        }
        self.write_config(generation, words)?;
        Ok(false)
    }

    pub(super) fn trial_state(&mut self) -> Result<Trial, DatapathError> {
        let until = Nanos(self.config_words()?.until_ns);
        Ok(match until.0 {
            0 => Trial::None,
            _ if self.read_clock()? < until => Trial::Running(until),
            _ => Trial::Over,
        })
    }

    /// Makes every packet read the policy before a trial, if there is one, so that the trial's generation can be
    /// written.
    pub(super) fn end_trial(&mut self) -> Result<(), DatapathError> {
        if self.trial_state()? == Trial::None {
            return Ok(());
        }
        let before = (self.active_generation()? + 1) % GENERATIONS;
        self.activate(before)?;
        state::wait_for_packets();
        Ok(())
    }

    pub(super) fn write_config(&mut self, at: u32, words: ConfigWords) -> Result<(), DatapathError> {
        Ok(self.array(map::CONFIG)?.set(at, Plain(words), 0).with_context(|| format!("write {}", map::CONFIG))?)
    }
}
