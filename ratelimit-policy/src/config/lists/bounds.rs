//! Bounds on the coverage and growth of `deny` list files. Others write these files, and a poisoned one must not deny
//! the Internet. Pure.

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

/// Default maximum share of the address space, in percent, that one list file of `deny` may cover.
pub const SHARE_DEFAULT: u8 = 5;
/// Default maximum growth of a list file's covered addresses from one version to the next, as a factor.
pub const GROWTH_DEFAULT: u32 = 2;

/// Unicast addresses of IPv4, 0.0.0.0 to 223.255.255.255.
const UNICAST_V4: RangeInclusive<u128> = 0..=0xdfff_ffff;
/// Global unicast addresses of IPv6, 2000::/3.
const UNICAST_V6: RangeInclusive<u128> = 0x2000 << 112..=(0x4000 << 112) - 1;
/// Prefix without hosts. Programs write 0.0.0.0/32 into lists that would otherwise be empty.
const NOBODY_V4: IpNet = IpNet::new_assert(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 8);

/// Coverage up to which a list may grow by any factor: the size of a /16 of IPv4 and of a /32 of IPv6.
const FLOOR_V4: u128 = 1 << (32 - 16);
const FLOOR_V6: u128 = 1 << (128 - 32);

/// Bounds of the list files that `deny` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListBounds {
    /// Maximum share of IPv4 unicast and of 2000::/3, in percent, 1 to 100. None is unbounded.
    pub share: Option<u8>,
    /// Maximum factor from one version to the next, 2 to 1000. None is unbounded.
    pub growth: Option<u32>,
}

impl Default for ListBounds {
    fn default() -> Self {
        Self { share: Some(SHARE_DEFAULT), growth: Some(GROWTH_DEFAULT) }
    }
}

/// Number of unicast addresses that prefixes cover, without duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Number of IPv4 addresses.
    pub v4: u128,
    /// Number of IPv6 addresses.
    pub v6: u128,
}

impl Covered {
    /// Counts the addresses of prefixes in any order. Prefixes that `deny` ignores as too wide are not counted.
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
    /// Writes the shares of both address spaces: `3.2 % of IPv4 and 0.1 % of IPv6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (v4, v6) = (Share::of(self.v4, &UNICAST_V4), Share::of(self.v6, &UNICAST_V6));
        write!(f, "{v4} of IPv4 and {v6} of IPv6")
    }
}

/// Returns the number of values in inclusive ranges that may overlap.
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
    /// Returns why a version of a list exceeds the bounds. None if it does not. `before` is the version in force, if
    /// any.
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

/// Returns the configured bounds. `deny_everyone` removes both.
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

/// Parses a share: `5%`, or `off`, which is None.
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

/// Parses a factor: `2x`, or `off`, which is None.
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

/// Returns the list files that `deny` names.
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

/// Shift by which IPv6 addresses are counted in /112s. The addresses of 2000::/3 times a thousand would need 136
/// bits.
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
    /// Writes the share in percent, rounded up to one decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.covered * 1000).div_ceil(self.space);
        write!(f, "{}.{} %", tenths / 10, tenths % 10)
    }
}

/// A number of addresses, printed as a power of two if it is large.
struct Addresses(u128);

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            few @ ..=0xffff_ffff => write!(f, "{few}"),
            many => write!(f, "about 2^{}", many.ilog2()),
        }
    }
}
