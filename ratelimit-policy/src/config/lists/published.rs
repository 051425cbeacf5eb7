//! Parser of whole JSON documents in which publishers keep their address ranges: search engines, clouds and content
//! networks. Pure.
//!
//! A document is recognized by its keys. It is read in full or refused. Prefixes of all services and regions are taken.

use ipnet::IpNet;
use serde::Deserialize;

use super::entry::whole;
use super::kind;

/// Supported forms of JSON, with the names of the publishers, for advice to the user.
pub(super) const KNOWN: &str = "supported are one JSON object in each line with the prefix under `cidr` or `ip`, and \
    the documents of Google, Bing, OpenAI, AWS, Azure, Google Cloud, Oracle, Cloudflare, Fastly and GitHub";

/// Keys of all known documents. Other keys are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    /// Google, Google Cloud, Bing, OpenAI and others with that form. AWS, for IPv4.
    prefixes: Option<Vec<Entry>>,
    /// IPv6 prefixes of AWS.
    ipv6_prefixes: Option<Vec<Entry>>,
    /// Service tags of Azure, each with its prefixes.
    values: Option<Vec<Tag>>,
    /// Regions of Oracle, each with its prefixes.
    regions: Option<Vec<Region>>,
    /// Prefixes of Cloudflare's API, by family.
    result: Option<Families>,
    /// IPv4 prefixes of Fastly.
    addresses: Option<Vec<String>>,
    /// IPv6 prefixes of Fastly.
    ipv6_addresses: Option<Vec<String>>,
    #[serde(flatten)]
    github: GitHub,
}

/// Object with one prefix, under a key that tells the family.
#[derive(Deserialize)]
struct Entry {
    #[serde(alias = "ipv6Prefix", alias = "ip_prefix", alias = "ipv6_prefix")]
    #[serde(rename = "ipv4Prefix")]
    prefix: String,
}

#[derive(Deserialize)]
struct Tag {
    properties: Properties,
}

#[derive(Deserialize)]
struct Properties {
    #[serde(rename = "addressPrefixes")]
    address_prefixes: Vec<String>,
}

#[derive(Deserialize)]
struct Region {
    cidrs: Vec<Cidr>,
}

#[derive(Deserialize)]
struct Cidr {
    cidr: String,
}

#[derive(Deserialize)]
struct Families {
    ipv4_cidrs: Vec<String>,
    ipv6_cidrs: Vec<String>,
}

/// Services of GitHub, each with its prefixes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct GitHub {
    hooks: Vec<String>,
    web: Vec<String>,
    api: Vec<String>,
    git: Vec<String>,
    github_enterprise_importer: Vec<String>,
    packages: Vec<String>,
    pages: Vec<String>,
    importer: Vec<String>,
    actions: Vec<String>,
    actions_macos: Vec<String>,
    codespaces: Vec<String>,
    copilot: Vec<String>,
    dependabot: Vec<String>,
}

/// Reason why a JSON document is refused, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) String);

/// Returns the prefixes of a publisher's document. None if the text is not such a document: it is no JSON object, an
/// object in each line, or an object without any known key.
///
/// # Errors
/// Fails if a known document is cut off, has another form, or has a text in place of a prefix.
pub(super) fn prefixes(text: &str) -> Option<Result<Vec<IpNet>, Refused>> {
    let text = kind::without_mark(text);
    if !text.starts_with('{') {
        return None;
    }
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Document>();
    let document = match documents.next()? {
        Ok(document) => document,
        // Lines of JSON objects have errors of their own.
        Err(_) if kind::ends_first_line_with_object(text) => return None,
        Err(error) => {
            let what = if error.is_eof() { "that is cut off" } else { "in no known form" };
            return Some(Err(Refused(format!("it is a JSON document {what} (line {})", error.line()))));
        }
    };
    let texts = document.texts()?;
    if documents.next().is_some() {
        return Some(Err(Refused("it is a JSON document with more text after its end".to_owned())));
    }
    Some(
        texts
            .into_iter()
            .map(|text| whole(&text).map_err(|_| no_prefix(&text)))
            .collect::<Result<Vec<_>, _>>()
            .map(|of| of.concat()),
    )
}

/// Describes a text in place of a prefix by its length, because the reader of errors may not be allowed to read it.
fn no_prefix(text: &str) -> Refused {
    Refused(format!("it is a JSON document with a text of {} bytes where a prefix should be", text.len()))
}

impl Document {
    /// Returns the texts of all prefixes. None if the document has no known key.
    fn texts(self) -> Option<Vec<String>> {
        let entries = |of: Vec<Entry>| of.into_iter().map(|entry| entry.prefix).collect::<Vec<_>>();
        let tags = |of: Vec<Tag>| of.into_iter().flat_map(|tag| tag.properties.address_prefixes).collect();
        let regions = |of: Vec<Region>| of.into_iter().flat_map(|region| region.cidrs).map(|cidr| cidr.cidr).collect();
        let of = [
            self.prefixes.map(entries),
            self.ipv6_prefixes.map(entries),
            self.values.map(tags),
            self.regions.map(regions),
            self.result.map(|of| [of.ipv4_cidrs, of.ipv6_cidrs].concat()),
            self.addresses,
            self.ipv6_addresses,
            Some(self.github.texts()).filter(|texts| !texts.is_empty()),
        ];
        let known: Vec<Vec<String>> = of.into_iter().flatten().collect();
        (!known.is_empty()).then(|| known.concat())
    }
}

impl GitHub {
    fn texts(self) -> Vec<String> {
        [
            self.hooks,
            self.web,
            self.api,
            self.git,
            self.github_enterprise_importer,
            self.packages,
            self.pages,
            self.importer,
            self.actions,
            self.actions_macos,
            self.codespaces,
            self.copilot,
            self.dependabot,
        ]
        .concat()
    }
}
