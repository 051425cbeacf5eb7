//! How much of the Internet a list file of `deny` may cover, and how fast it may grow: others write it, and a poisoned one
//! must not deny the Internet. Pure.

use std::fmt;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::ListFile;
use crate::config::Config;
use crate::config::listing::Names;
use crate::config::network::parse_number;
use crate::config::syntax::SyntaxError;
use crate::config::values::Values;
use crate::config::written::Source;
use crate::desired::Grant;
use crate::diagnostic::Found;
use crate::safety::is_too_wide;

/// Share of the address space, in percent, that one list file of `deny` may cover unless it is said.
pub const SHARE_DEFAULT: u8 = 5;
/// Factor by which a version may cover more addresses than the one before it, unless it is said.
pub const GROWTH_DEFAULT: u32 = 2;

/// The unicast addresses of IPv4, 0.0.0.0 to 223.255.255.255.
const UNICAST_V4: RangeInclusive<u128> = 0..=0xdfff_ffff;
/// The global unicast addresses of IPv6, 2000::/3.
const UNICAST_V6: RangeInclusive<u128> = 0x2000 << 112..=(0x4000 << 112) - 1;
/// No host is in 0.0.0.0/8. Programs write 0.0.0.0/32 into a list that would be empty without.
const NOBODY_V4: IpNet = IpNet::new_assert(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 8);

/// A list that covers no more may grow by any factor: as many addresses as a /16 of IPv4 and a /32 of IPv6 have.
const FLOOR_V4: u128 = 1 << (32 - 16);
const FLOOR_V6: u128 = 1 << (128 - 32);

/// The bounds of list files that `deny` names. None of either is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListBounds {
    /// Percent of IPv4 unicast, and of 2000::/3, 1 to 100.
    pub share: Option<u8>,
    /// Factor from one version to the next, 2 to 1000.
    pub growth: Option<u32>,
}

impl Default for ListBounds {
    fn default() -> Self {
        Self { share: Some(SHARE_DEFAULT), growth: Some(GROWTH_DEFAULT) }
    }
}

/// Number of unicast addresses that prefixes cover, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Of IPv4.
    pub v4: u128,
    /// Of IPv6.
    pub v6: u128,
}

impl Covered {
    /// Counts the addresses of prefixes in any order. Entries that `deny` passes over as too wide cover nothing.
    pub fn of(prefixes: &[IpNet]) -> Self {
        let mut ranges: [Vec<(u128, u128)>; 2] = [Vec::new(), Vec::new()];
        for prefix in prefixes.iter().filter(|of| !is_too_wide(**of) && !NOBODY_V4.contains(*of)) {
            let (first, last, unicast, at) = match prefix {
                IpNet::V4(of) => (of.network().to_bits().into(), of.broadcast().to_bits().into(), UNICAST_V4, 0),
                IpNet::V6(of) => (of.network().to_bits(), of.broadcast().to_bits(), UNICAST_V6, 1),
            };
            let (first, last) = (first.max(*unicast.start()), last.min(*unicast.end()));
            if first <= last {
                ranges[at].push((first, last));
            }
        }
        let [v4, v6] = ranges.map(joined);
        Self { v4, v6 }
    }
}

impl fmt::Display for Covered {
    /// As shares of both address spaces: `3.2 % of IPv4 and 0.1 % of IPv6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (v4, v6) = (Share::of(self.v4, &UNICAST_V4), Share::of(self.v6, &UNICAST_V6));
        write!(f, "{v4} of IPv4 and {v6} of IPv6")
    }
}

/// Number of values in inclusive ranges that may overlap.
fn joined(mut ranges: Vec<(u128, u128)>) -> u128 {
    ranges.sort_unstable();
    let (mut sum, mut next) = (0, 0);
    for (first, last) in ranges {
        let first = first.max(next);
        if first <= last {
            sum += last - first + 1;
            next = last + 1;
        }
    }
    sum
}

impl ListBounds {
    /// Why a version of a list is beyond the bounds; none where it is within. `before` is the version in force, if any.
    pub fn objection(&self, prefixes: &[IpNet], before: Option<&[IpNet]>) -> Option<String> {
        let now = Covered::of(prefixes);
        let families = [("IPv4", now.v4, UNICAST_V4, FLOOR_V4), ("IPv6", now.v6, UNICAST_V6, FLOOR_V6)];
        if let Some(most) = self.share {
            for (family, covered, unicast, _) in &families {
                let share = Share::of(*covered, unicast);
                if share.is_more_than(most) {
                    return Some(format!("it covers {share} of {family}, and {most} % is the most (deny_list_share)"));
                }
            }
        }
        let before = before.map(Covered::of).filter(|before| *before != Covered::default())?;
        let factor = u128::from(self.growth?);
        for ((family, covered, _, floor), before) in families.into_iter().zip([before.v4, before.v6]) {
            if covered > before.saturating_mul(factor).max(floor) {
                let (covered, before) = (Addresses(covered), Addresses(before));
                return Some(format!(
                    "it covers {covered} addresses of {family} where it covered {before}, and {factor} times as many are \
                     the most (deny_list_growth)"
                ));
            }
        }
        None
    }
}

/// The bounds that a configuration has. Who means to deny everyone sets none.
pub(in crate::config) fn of(source: &Source, top: &Values, safety: &Values, found: &mut Found) -> ListBounds {
    let share = source.read_if(safety.one("deny_list_share"), parse_share);
    let growth = source.read_if(safety.one("deny_list_growth"), parse_growth);
    let default = ListBounds::default();
    let bounds = ListBounds {
        share: found.keep(share).flatten().unwrap_or(default.share),
        growth: found.keep(growth).flatten().unwrap_or(default.growth),
    };
    let is_meant = source.is_set(top.one("deny_everyone"), false).unwrap_or(false);
    if is_meant { ListBounds { share: None, growth: None } } else { bounds }
}

/// Parses a share: `5%`, or `off`.
pub(in crate::config) fn parse_share(text: &str) -> Result<Option<u8>, SyntaxError> {
    if text == "off" {
        return Ok(None);
    }
    let Some(number) = text.strip_suffix('%') else {
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is not a share"));
        return Err(error.with_help("write a share of the address space, as in \"5%\", or \"off\""));
    };
    Ok(u8::try_from(parse_number(number, 1, 100)?).ok())
}

/// Parses a factor: `2x`, or `off`.
pub(in crate::config) fn parse_growth(text: &str) -> Result<Option<u32>, SyntaxError> {
    if text == "off" {
        return Ok(None);
    }
    let Some(number) = text.strip_suffix('x') else {
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is not a factor"));
        return Err(error.with_help("write how many times as many addresses, as in \"2x\", or \"off\""));
    };
    Ok(u32::try_from(parse_number(number, 2, 1000)?).ok())
}

/// The list files that `deny` names.
pub fn bounded(config: &Config) -> impl Iterator<Item = &ListFile> {
    let is_denied = |file: &&ListFile| {
        config
            .listings
            .iter()
            .any(|of| of.grant == Grant::Denied && matches!(&of.names, Names::File(path) if *path == file.path))
    };
    config.list_files.iter().filter(is_denied)
}

/// A share of an address space.
struct Share {
    covered: u128,
    space: u128,
}

/// The share of 2000::/3 is reckoned in /112s: its addresses times a thousand need 136 bits.
const SHARE_SHIFT_V6: u32 = 16;

impl Share {
    fn of(covered: u128, unicast: &RangeInclusive<u128>) -> Self {
        let space = unicast.end() - unicast.start() + 1;
        let shift = if space > u64::MAX.into() { SHARE_SHIFT_V6 } else { 0 };
        Self { covered: covered.div_ceil(1 << shift), space: space >> shift }
    }

    const fn is_more_than(&self, percent: u8) -> bool {
        self.covered * 100 > self.space * percent as u128
    }
}

impl fmt::Display for Share {
    /// In percent, with one decimal that is rounded up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.covered * 1000).div_ceil(self.space);
        write!(f, "{}.{} %", tenths / 10, tenths % 10)
    }
}

/// A number of addresses; a large one as a power of two.
struct Addresses(u128);

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            few @ ..=0xffff_ffff => write!(f, "{few}"),
            many => write!(f, "about 2^{}", many.ilog2()),
        }
    }
}
