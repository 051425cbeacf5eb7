//! Visits of all or a part of the maps that hold the sources' windows.

use std::os::fd::AsFd as _;

use anyhow::Context as _;
use ratelimit_common::layout::{Source, SourceKeyV4, map};
use ratelimit_common::source::Family;

use super::clients::{Client, Lengths};
use super::drop_cache::{CachedDrops, OfWindow};
use super::windows::Windows;
use super::{Kernel, map_ref, rules_len, state};
use crate::{DatapathError, SourceReading, SourcesPosition, VisitedSources, batch};

/// Last failure of a visit.
type Failed = Result<(), DatapathError>;

/// State needed to read entries of the maps.
struct Entries {
    own: Lengths,
    family: Family,
    windows: Windows,
    cached_drops: CachedDrops,
}

impl Entries {
    /// Returns the window of an entry, with the drops of the drop cache. None if the window limits nobody.
    fn read(&self, kernel: &Kernel, key: &[u8], value: &[u8]) -> Result<Option<SourceReading>, DatapathError> {
        let Self { own, family, windows, cached_drops } = self;
        let Some(mut reading) = state::source_reading(key, value, |slot| windows.holder(slot).lengths(*own)) else {
            return Ok(None);
        };
        let client = Client::of(reading.prefix, *family);
        let mut cached = OfWindow::default();
        if !cached_drops.is_empty() {
            cached = cached_drops.of(client, reading.slot);
            reading.window.refused = reading.window.refused.and(cached.dropped);
            reading.refused_until = cached.until;
        }
        let Some((slot, is_verified)) = windows.limit(reading.slot) else { return Ok(None) };
        if is_verified && reading.window.refused.count() != 0 {
            reading.repeated = kernel.repeated(client, reading.slot, cached)?;
        }
        Ok(Some(SourceReading { slot, is_verified, ..reading }))
    }

    /// Visits the window of an entry. Stores a failure in `failed`.
    fn visit(&self, kernel: &Kernel, entry: (&[u8], &[u8]), visit: &mut dyn FnMut(SourceReading), failed: &mut Failed) {
        match self.read(kernel, entry.0, entry.1) {
            Ok(reading) => reading.into_iter().for_each(visit),
            Err(error) => *failed = Err(error),
        }
    }
}

impl Kernel {
    /// See [`crate::Datapath::visit_sources`].
    pub(super) fn visit_windows(&mut self, visit: &mut dyn FnMut(SourceReading)) -> Result<(), DatapathError> {
        let Some(entries) = self.readable()? else { return Ok(()) };
        let mut failed = Ok(());
        for (name, key_len) in self.source_maps() {
            let data = state::data(map_ref(&self.ebpf, name)?)?;
            let max = self.map(name)?.max_entries();
            batch::visit(data.fd().as_fd(), key_len, size_of::<Source>(), max, |key, value| {
                entries.visit(self, (key, value), visit, &mut failed);
            })
            .with_context(|| format!("read {name}"))?;
        }
        failed
    }

    /// See [`crate::Datapath::visit_part_of_sources`].
    pub(super) fn visit_part_of_windows(
        &mut self,
        from: SourcesPosition,
        visit: &mut dyn FnMut(SourceReading),
    ) -> VisitedSources {
        let maps = self.source_maps();
        let Some((name, key_len)) = maps.get(from.map).copied() else { return Ok(None) };
        let Some(entries) = self.readable()? else { return Ok(None) };
        let data = state::data(map_ref(&self.ebpf, name)?)?;
        let max = self.map(name)?.max_entries();
        let mut failed = Ok(());
        let take = |key: &[u8], value: &[u8]| entries.visit(self, (key, value), visit, &mut failed);
        let bucket = batch::visit_part(data.fd().as_fd(), key_len, size_of::<Source>(), max, from.bucket, take)
            .with_context(|| format!("read {name}"))?;
        failed?;
        Ok(match bucket {
            Some(_) => Some(SourcesPosition { bucket, ..from }),
            None => Some(from.map + 1).filter(|map| *map < maps.len()).map(|map| SourcesPosition { map, bucket }),
        })
    }

    /// Returns the state to read entries, or none if there is no rule.
    fn readable(&mut self) -> Result<Option<Entries>, DatapathError> {
        let words = self.config_words()?;
        if rules_len(&words) == 0 {
            return Ok(None);
        }
        let (own, windows) = (Lengths::of(&words), Windows::of(&words));
        Ok(Some(Entries { own, family: self.sources.ipv6_family, windows, cached_drops: self.cached_drops()? }))
    }

    /// Returns the names and key lengths of the window maps in use.
    const fn source_maps(&self) -> [(&'static str, usize); 2] {
        [(map::SOURCES_V4, size_of::<SourceKeyV4>()), self.sources.ipv6_map()]
    }
}
