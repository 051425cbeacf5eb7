//! Records of networks in the forms that MaxMind, DB-IP, IPinfo and others write. Values of another form are ignored.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::selector;

/// The fields of a record that are read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Record<'a> {
    /// Autonomous system in the form of MaxMind and DB-IP.
    #[serde(borrow, default)]
    autonomous_system_number: Option<Scalar<'a>>,
    /// Autonomous system in the form of IPinfo: `AS64496`.
    #[serde(borrow, default)]
    asn: Option<Scalar<'a>>,
    /// Country: a table of MaxMind and DB-IP, or the letters alone.
    #[serde(borrow, default)]
    country: Option<Country<'a>>,
    /// Country in the form of IPinfo.
    #[serde(borrow, default)]
    country_code: Option<Scalar<'a>>,
    /// Table with the autonomous system in MaxMind's largest database.
    #[serde(borrow, default)]
    traits: Option<Traits<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar<'a> {
    Number(u64),
    Text(#[serde(borrow)] &'a str),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Country<'a> {
    Letters(#[serde(borrow)] &'a str),
    Table {
        #[serde(borrow)]
        iso_code: &'a str,
    },
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Traits<'a> {
    Table {
        #[serde(borrow)]
        autonomous_system_number: Scalar<'a>,
    },
    Other(IgnoredAny),
}

impl Record<'_> {
    /// Returns the number of the autonomous system.
    pub(super) fn asn(&self) -> Option<u32> {
        let of_traits = match &self.traits {
            Some(Traits::Table { autonomous_system_number }) => Some(autonomous_system_number),
            Some(Traits::Other(_)) | None => None,
        };
        let all = [self.autonomous_system_number.as_ref(), self.asn.as_ref(), of_traits];
        all.into_iter().flatten().find_map(|of| match of {
            Scalar::Number(number) => u32::try_from(*number).ok().filter(|number| *number != 0),
            Scalar::Text(text) => selector::asn(text),
            Scalar::Other(_) => None,
        })
    }

    /// Returns the letters of the country.
    pub(super) fn country(&self) -> Option<[u8; 2]> {
        let of_table = match &self.country {
            Some(Country::Letters(letters) | Country::Table { iso_code: letters }) => selector::country(letters),
            Some(Country::Other(_)) | None => None,
        };
        of_table.or_else(|| match &self.country_code {
            Some(Scalar::Text(text)) => selector::country(text),
            Some(Scalar::Number(_) | Scalar::Other(_)) | None => None,
        })
    }
}
