//! Groups of sources that the limits of a rule may have: prefixes shorter than a source, and one list. Pure.

use std::ops::Range;

use super::InFleet;
use crate::config::limit::Rate;
use crate::config::syntax::SyntaxError;
use crate::config::written::{Source, Written};
use crate::desired::{Limit, Per};
use crate::diagnostic::Found;

/// Bounds on the groups that a rule's limits may name.
#[derive(Clone, Copy)]
pub(in crate::config) struct Groups<'a> {
    /// Length of the IPv4 prefix that counts as one source.
    pub(in crate::config) ipv4_prefix: u8,
    /// Length of the IPv6 prefix that counts as one source.
    pub(in crate::config) ipv6_prefix: u8,
    /// Entries of the rule's `from`. None if the rule is for all sources.
    pub(in crate::config) from: Option<&'a [Written]>,
}

impl Groups<'_> {
    /// Checks that the group of `rate` is possible in this rule. `end` is the offset at which the limit ends.
    pub(super) fn check(&self, rate: &Rate, end: usize, source: &Source) -> Result<(), SyntaxError> {
        let span = rate.per_at.min(end)..end;
        match rate.per {
            Per::Source => Ok(()),
            Per::Prefix { v4, v6 } => {
                let of = [(v4, self.ipv4_prefix, "IPv4", "ipv4_prefix"), (v6, self.ipv6_prefix, "IPv6", "ipv6_prefix")];
                of.into_iter().try_for_each(|(length, client, family, key)| shorter(length, client, family, key, &span))
            }
            Per::List => self.check_list(span, source),
        }
    }

    fn check_list(&self, span: Range<usize>, source: &Source) -> Result<(), SyntaxError> {
        let wrong = |problem: String, help: &str| Err(SyntaxError::new(span.clone(), problem).with_help(help));
        match (self.from, source) {
            (None, Source::CommandLine) => wrong(
                "no list is named, and flags cannot name one".to_owned(),
                "write a file for `ratelimitd run`: [lists], and a rule with from = [\"@NAME\"]",
            ),
            (None, Source::File { .. }) => wrong(
                "this rule is for all sources, and names no list".to_owned(),
                "name it: from = [\"@NAME\"], best in a [[rule.override]] with these limits",
            ),
            (Some([_]), _) => Ok(()),
            (Some(entries), _) => wrong(
                format!("`from` has {} entries, and a limit per list covers one list", entries.len()),
                "put them into one list under [lists], or give each a [[rule.override]]",
            ),
        }
    }

    /// Returns the name of the list, without its `@`, if one of the limits is per list.
    pub(in crate::config) fn list_of(&self, limits: &[Limit]) -> Option<String> {
        let entry = self.from?.first().filter(|_| limits.iter().any(|limit| limit.per == Per::List))?;
        Some(entry.text.strip_prefix('@').unwrap_or(&entry.text).to_owned())
    }
}

fn shorter(length: u8, client: u8, family: &str, key: &str, span: &Range<usize>) -> Result<(), SyntaxError> {
    if length < client {
        return Ok(());
    }
    let wrong = |problem: String| SyntaxError::new(span.clone(), problem);
    if client <= 1 {
        let problem = format!("one {family} source is a /{client}, and no prefix is shorter");
        return Err(wrong(problem).with_help(format!("choose a longer {key}, or leave `per` out")));
    }
    let problem = if length == client {
        format!("a /{length} is one {family} source ({key}), not a group")
    } else {
        format!("a /{length} is a part of one {family} source, which is a /{client} ({key})")
    };
    Err(wrong(problem).with_help(format!("write a length of 1 to {} for {family}", (client - 1).min(64))))
}

/// Checks that a shadow limit or candidate, named by `what`, is per source.
pub(super) fn of_source(rate: &Rate, end: usize, what: &str) -> Result<(), SyntaxError> {
    if rate.per == Per::Source {
        return Ok(());
    }
    let error = SyntaxError::new(rate.per_at.min(end)..end, format!("{what} applies to each source"));
    Err(error.with_help("leave `per` out; a rule in dry run tries limits of groups"))
}

/// Checks that a rule with an explicit `fleet` key has a limit that hosts can share. Hosts exchange counts of single
/// sources only.
pub(super) fn check_fleet(fleet: Option<InFleet<'_>>, limits: &[Limit], source: &Source, found: &mut Found) {
    let written = fleet.and_then(|fleet| fleet.written).filter(|_| !limits.is_empty());
    if let Some(written) = written.filter(|_| limits.iter().all(|limit| limit.per != Per::Source)) {
        let problem = "hosts share only limits of each source, and all limits of this rule are for groups";
        let error = SyntaxError::new(0..written.text.len(), problem);
        let help = "leave it out, because each host limits groups alone; or add a limit of each source";
        found.push(source.wrong(written, error.with_help(help)));
    }
}
