//! Prefixes of autonomous systems and countries, from a database in MaxMind's format. Pure: the caller has read the
//! file, and says when it takes too long. For any bytes, this ends in bounded memory and does not panic.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use jiff::Timestamp;
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use ratelimit_common::layout::PREFIXES_MAX;
use ratelimit_policy::config::syntax::{printable, shortened};

use self::record::Record;
pub use self::selector::Selector;

mod record;
mod selector;

/// Maximum size in bytes of a database that is read.
pub const BYTES_MAX: u64 = 1 << 30;
/// Maximum number of leaves per node. The part for IPv4 stands in the tree once, and again as aliases. More leaves than
/// this mean that the data form no tree.
const LEAVES_PER_NODE: u64 = 8;
/// Maximum number of records whose result is kept. Further ones are decoded each time. // 4194304 x 18 B = 75 MB
const REMEMBERED_MAX: usize = 1 << 22;
/// Number of leaves between two checks of the time.
const LOOK_EVERY: u64 = 256;

/// Prefixes in which IPv6 contains IPv4 again: mapped, Teredo, 6to4, NAT64. The database repeats its part for IPv4
/// there.
const ALIASES: [(u128, u8); 4] =
    [(0xffff << 32, 96), (0x2001_0000 << 96, 32), (0x2002 << 112, 16), (0x0064_ff9b << 96, 96)];

/// Prefixes that were selected in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The database that they are from.
    pub database: Database,
    /// The fewest possible prefixes: sorted, disjoint, IPv4 first.
    pub prefixes: Vec<IpNet>,
    /// Selectors without any network in the database.
    pub missing: Vec<Selector>,
}

/// Identity of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    /// Name of the database: `GeoLite2-ASN`.
    pub kind: String,
    /// Build time; `None` if it is outside of the calendar.
    pub built: Option<Timestamp>,
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind.is_empty() { "a database without a name" } else { &self.kind };
        match self.built {
            Some(built) => write!(f, "{kind} of {}", built.strftime("%Y-%m-%d")),
            None => write!(f, "{kind} of unknown date"),
        }
    }
}

/// Reason why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum MmdbError {
    /// The file is no database, or a damaged one.
    #[error("this is not a complete database in MaxMind's format: {0}")]
    Damaged(String),
    /// The database has no numbers of autonomous systems.
    #[error("{0} has no autonomous systems")]
    NoAsns(Database),
    /// The database has no countries.
    #[error("{0} has no countries")]
    NoCountries(Database),
    /// The database has no network for any selector.
    #[error("{database} has no network of {asked}")]
    Nothing {
        /// The database that was read.
        database: Database,
        /// The selectors, in words.
        asked: String,
    },
    /// The kernel cannot hold this number of prefixes.
    #[error("the kernel has no room for more than {PREFIXES_MAX} prefixes of one family")]
    TooMany,
    /// Reading takes longer than for any intact database.
    #[error("reading it takes too long: its tree is damaged")]
    Overdue,
}

impl From<MaxMindDbError> for MmdbError {
    fn from(error: MaxMindDbError) -> Self {
        Self::Damaged(shortened(printable(&error.to_string())))
    }
}

/// Returns the prefixes that any of these selectors matches, as few as possible. `is_overdue` tells when to give up.
///
/// # Errors
/// Fails if the database is damaged, has no match, or has more matches than the kernel has room for.
pub fn list(bytes: &[u8], asked: &[Selector], mut is_overdue: impl FnMut() -> bool) -> Result<Listed, MmdbError> {
    let reader = Reader::from_source(bytes)?;
    let about = reader.metadata();
    let database = Database {
        kind: shortened(printable(&about.database_type)),
        built: i64::try_from(about.build_epoch).ok().and_then(|epoch| Timestamp::from_second(epoch).ok()),
    };
    let leaves_max = (u64::from(about.node_count) + 1).saturating_mul(LEAVES_PER_NODE);
    let mut known = Known::new(asked);
    let (mut of_ipv4, mut of_ipv6) = (Runs::default(), Runs::default());
    // The library recognises aliases by their target, which may be any network with the record of all of IPv4, so they
    // are included here. Networks without data are included too, as a malformed tree may have nothing else.
    let all = WithinOptions::default().include_aliased_networks().include_networks_without_data();
    for (leaf, network) in (0..).zip(reader.networks(all)?) {
        if leaf > leaves_max {
            return Err(MmdbError::Damaged("its tree has more leaves than nodes can have".to_owned()));
        }
        if leaf % LOOK_EVERY == 0 && is_overdue() {
            return Err(MmdbError::Overdue);
        }
        let network = network?;
        let Some(record) = network.offset() else { continue };
        let is_selected = known.is_selected(record, || Ok(network.decode::<Record<'_>>()?.unwrap_or_default()))?;
        if !is_selected {
            continue;
        }
        let of = network.network()?;
        match of.ip() {
            IpAddr::V4(first) => of_ipv4.add(u128::from(first.to_bits()), u32::BITS, of.prefix())?,
            IpAddr::V6(first) => {
                let first = first.to_bits();
                // A record of all of ::/96 applies to all of IPv4.
                if first == 0 && of.prefix() <= 96 {
                    of_ipv4.add(0, u32::BITS, 0)?;
                }
                if !is_alias(first, of.prefix()) {
                    of_ipv6.add(first, u128::BITS, of.prefix())?;
                }
            }
        }
    }
    let prefixes = [of_ipv4.ipv4()?, of_ipv6.ipv6()?].concat();
    let of_kind = |is_it: fn(&Selector) -> bool| asked.iter().any(is_it);
    if of_kind(|of| matches!(of, Selector::Asn(_))) && !known.has_asns {
        return Err(MmdbError::NoAsns(database));
    }
    if of_kind(|of| matches!(of, Selector::Country(_))) && !known.has_countries {
        return Err(MmdbError::NoCountries(database));
    }
    if prefixes.is_empty() {
        return Err(MmdbError::Nothing { database, asked: selector::words(asked) });
    }
    Ok(Listed { database, prefixes, missing: known.missing() })
}

/// Returns true if a network lies in a part that repeats IPv4.
fn is_alias(first: u128, length: u8) -> bool {
    ALIASES.iter().any(|(alias, of)| length >= *of && (first ^ alias) >> (u128::BITS - u32::from(*of)) == 0)
}

/// Results for records so far.
struct Known {
    /// The selectors, and whether each was found.
    asked: BTreeMap<Selector, bool>,
    /// Result for each record, by its offset.
    records: HashMap<usize, bool>,
    has_asns: bool,
    has_countries: bool,
}

impl Known {
    fn new(asked: &[Selector]) -> Self {
        let asked = asked.iter().map(|of| (*of, false)).collect();
        Self { asked, records: HashMap::new(), has_asns: false, has_countries: false }
    }

    fn is_selected<'a>(
        &mut self,
        place: usize,
        record: impl FnOnce() -> Result<Record<'a>, MmdbError>,
    ) -> Result<bool, MmdbError> {
        if let Some(known) = self.records.get(&place) {
            return Ok(*known);
        }
        let record = record()?;
        let (asn, country) = (record.asn().map(Selector::Asn), record.country().map(Selector::Country));
        self.has_asns |= asn.is_some();
        self.has_countries |= country.is_some();
        let mut is_selected = false;
        for of in [asn, country].into_iter().flatten() {
            if let Some(is_found) = self.asked.get_mut(&of) {
                (*is_found, is_selected) = (true, true);
            }
        }
        if self.records.len() < REMEMBERED_MAX {
            self.records.insert(place, is_selected);
        }
        Ok(is_selected)
    }

    fn missing(&self) -> Vec<Selector> {
        self.asked.iter().filter(|(_, is_found)| !**is_found).map(|(of, _)| *of).collect()
    }
}

/// Ranges of addresses from first to last, in order, and not adjacent.
#[derive(Debug, Default)]
struct Runs(Vec<(u128, u128)>);

impl Runs {
    /// Adds a prefix. Prefixes must come in the order of their addresses, as the database's leaves do.
    fn add(&mut self, first: u128, bits: u32, length: u8) -> Result<(), MmdbError> {
        let beyond = bits.saturating_sub(u32::from(length));
        let last = first | u128::MAX.checked_shl(beyond).map_or(u128::MAX, |mask| !mask);
        let is_full = self.0.len() == PREFIXES_MAX as usize;
        match self.0.last_mut().filter(|(_, end)| first <= end.saturating_add(1)) {
            Some((_, end)) => *end = last.max(*end),
            None if is_full => return Err(MmdbError::TooMany),
            None => self.0.push((first, last)),
        }
        Ok(())
    }

    fn ipv4(self) -> Result<Vec<IpNet>, MmdbError> {
        let address = |bits: u128| Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX));
        let nets = self.0.into_iter().flat_map(|(first, last)| Ipv4Subnets::new(address(first), address(last), 0));
        within_room(nets.map(IpNet::V4))
    }

    fn ipv6(self) -> Result<Vec<IpNet>, MmdbError> {
        let of = |(first, last)| Ipv6Subnets::new(Ipv6Addr::from_bits(first), Ipv6Addr::from_bits(last), 0);
        within_room(self.0.into_iter().flat_map(of).map(IpNet::V6))
    }
}

fn within_room(nets: impl Iterator<Item = IpNet>) -> Result<Vec<IpNet>, MmdbError> {
    let most = PREFIXES_MAX as usize;
    let nets: Vec<IpNet> = nets.take(most + 1).collect();
    if nets.len() > most { Err(MmdbError::TooMany) } else { Ok(nets) }
}

/// Returns the text of the list file.
pub fn text(listed: &Listed, asked: &[Selector]) -> String {
    let mut text = format!(
        "# {}, out of {}, by `ratelimitd lists from-mmdb`: changes by hand are overwritten.\n",
        selector::words(asked),
        listed.database
    );
    if !listed.missing.is_empty() {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "# NOT IN THE DATABASE: {}", selector::words(&listed.missing));
    }
    for prefix in &listed.prefixes {
        let _infallible = writeln!(text, "{prefix}");
    }
    text
}
