//! Reader for the output of `ipset save` and `ipset list`: sets, their options and their elements. Pure.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use jiff::Timestamp;

use super::super::effective::{Kind, Nested, in_effect};
use super::super::{Row, shortened};
use super::{Imported, Refused, addresses, ends_in};

const NO_ADDRESS: &str = "this is no address, and no prefix";

/// Set options that do not affect what the set matches, with the number of words after each.
const OPTIONS: [(&str, usize); 14] = [
    ("family", 1),
    ("hashsize", 1),
    ("maxelem", 1),
    ("bucketsize", 1),
    ("initval", 1),
    ("probes", 1),
    ("resize", 1),
    ("gc", 1),
    ("counters", 0),
    ("comment", 0),
    ("skbinfo", 0),
    // The option only says which element is evicted from a full set.
    ("forceadd", 0),
    ("-exist", 0),
    ("-!", 0),
];
/// Element options that do not affect what the element matches, with the number of words after each.
const ELEMENT_OPTIONS: [(&str, usize); 7] =
    [("packets", 1), ("bytes", 1), ("skbmark", 1), ("skbprio", 1), ("skbqueue", 1), ("-exist", 0), ("-!", 0)];

/// Sets by name, while lines are read.
#[derive(Debug, Default)]
pub(super) struct Script {
    sets: Vec<Set>,
    by_name: HashMap<String, usize>,
    refused: Vec<Refused>,
    listing: Listing,
}

/// Position in the output of `ipset list`.
#[derive(Debug, Default)]
enum Listing {
    #[default]
    None,
    /// Head of a set, before its members.
    Head {
        line: usize,
        name: String,
        kind: String,
    },
    Members(usize),
}

#[derive(Debug, Default)]
struct Set {
    name: String,
    line: usize,
    /// Prefix length to which addresses are cut.
    netmask: Option<u8>,
    is_ipv6: Option<bool>,
    /// Default timeout of elements in seconds; 0 is none.
    timeout: i64,
    takes_nomatch: bool,
    /// Reason why the set's elements cannot be imported.
    refusal: Option<String>,
    refused_members: usize,
    members: Vec<Member>,
    by_prefix: HashMap<IpNet, usize>,
}

#[derive(Debug)]
struct Member {
    line: usize,
    text: String,
    prefixes: Vec<IpNet>,
    until: Option<Timestamp>,
    comment: Option<String>,
    /// True if the element is an exception from what the set matches.
    is_nomatch: bool,
}

impl Script {
    /// Ends a listing at an empty line. `words` is a line without an entry.
    pub(super) fn blank_line(&mut self, words: &str) {
        if words.is_empty() {
            self.listing = Listing::None;
        }
    }

    /// Reads a line. Returns false if it is not one of ipset's.
    pub(super) fn line(&mut self, words: &str, line: usize, now: Timestamp) -> bool {
        if self.listed(words, line, now) {
            return true;
        }
        let (command, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        let (name, rest) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
        let rest = rest.trim();
        match command {
            "create" => {
                let (kind, options) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                self.create(line, name, kind, options);
            }
            "add" => self.add(line, name, rest, now),
            "del" => self.delete(line, name, rest),
            "flush" | "destroy" => {
                for set in self.sets.iter_mut().filter(|set| name.is_empty() || set.name == name) {
                    set.members.clear();
                    set.by_prefix.clear();
                    set.refused_members = 0;
                }
            }
            "COMMIT" => {}
            "swap" | "rename" => {
                self.refuse(line, format!("`{command}` is not supported: save the sets after it is done"))
            }
            _ => return false,
        }
        true
    }

    fn refuse(&mut self, line: usize, problem: String) {
        self.refused.push(Refused { line, problem });
    }

    /// Reads a line of `ipset list`. Returns false outside a listing.
    fn listed(&mut self, words: &str, line: usize, now: Timestamp) -> bool {
        let field = |name: &str| words.strip_prefix(name).map(|rest| rest.trim().to_owned());
        if let Some(name) = field("Name:") {
            self.listing = Listing::Head { line, name, kind: String::new() };
            return true;
        }
        match std::mem::take(&mut self.listing) {
            Listing::None => return false,
            Listing::Head { line, name, kind } => {
                if let Some(kind) = field("Type:") {
                    self.listing = Listing::Head { line, name, kind };
                } else if let Some(options) = field("Header:") {
                    let at = self.create(line, &name, &kind, &options);
                    self.listing = Listing::Members(at);
                } else {
                    self.listing = Listing::Head { line, name, kind };
                }
            }
            Listing::Members(at) => {
                let heads = ["Size in memory:", "References:", "Number of entries:", "Members:"];
                if !heads.iter().any(|head| words.starts_with(head)) {
                    self.add_to(at, line, words, now);
                }
                self.listing = Listing::Members(at);
            }
        }
        true
    }

    fn set(&mut self, name: &str, line: usize) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let at = self.sets.len();
        // In a script without its `create`, the elements tell what they are.
        self.sets.push(Set { name: name.to_owned(), line, takes_nomatch: true, ..Set::default() });
        self.by_name.insert(name.to_owned(), at);
        at
    }

    fn create(&mut self, line: usize, name: &str, kind: &str, options: &str) -> usize {
        let at = self.set(name, line);
        if let Some(set) = self.sets.get_mut(at) {
            (set.line, set.netmask, set.is_ipv6, set.timeout) = (line, None, None, 0);
            set.takes_nomatch = matches!(kind, "hash:net" | "nethash");
            set.refusal = set.read_options(kind, options).err();
        }
        at
    }

    fn add(&mut self, line: usize, name: &str, element: &str, now: Timestamp) {
        let at = self.set(name, line);
        self.add_to(at, line, element, now);
    }

    fn add_to(&mut self, at: usize, line: usize, element: &str, now: Timestamp) {
        let Some(set) = self.sets.get_mut(at) else { return };
        if set.refusal.is_some() {
            set.refused_members += 1;
            return;
        }
        let name = set.name.clone();
        if let Err(why) = set.add(line, element, now) {
            let shown: String = element.chars().take(80).collect();
            self.refuse(line, format!("`{shown}` of set {name}: {why}"));
        }
    }

    fn delete(&mut self, line: usize, name: &str, element: &str) {
        let at = self.set(name, line);
        let Some(set) = self.sets.get_mut(at).filter(|set| set.refusal.is_none()) else { return };
        let text = element.split_whitespace().next().unwrap_or_default();
        let prefixes = addresses(text).map(|of| set.cut(&of)).unwrap_or_default();
        let before = set.members.len();
        set.members.retain(|member| member.prefixes != prefixes);
        let is_gone = set.members.len() < before;
        let members = set.members.iter().enumerate();
        set.by_prefix = members.flat_map(|(at, of)| of.prefixes.iter().map(move |prefix| (*prefix, at))).collect();
        if !is_gone {
            self.refuse(line, format!("`del` of `{text}` from set {name}: the lines before it have no such element"));
        }
    }

    /// Adds the denials of all sets, and the items that cannot be imported.
    pub(super) fn finish(self, read: &mut Imported) {
        read.refused.extend(self.refused);
        for set in self.sets {
            if let Some(why) = &set.refusal {
                let (name, count) = (&set.name, set.refused_members);
                let problem = format!("set {name}: {why}; its elements, {count}, are not denied");
                read.refused.push(Refused { line: set.line, problem });
                continue;
            }
            set.rows(read);
        }
    }
}

impl Set {
    fn read_options(&mut self, kind: &str, options: &str) -> Result<(), String> {
        match kind {
            "hash:ip" | "iphash" | "hash:net" | "nethash" | "bitmap:ip" | "ipmap" => {}
            "" => return Err("its type is missing".to_owned()),
            kind => return Err(format!("a set of type {kind} contains more than addresses")),
        }
        let mut words = options.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("a value is missing after `{word}`"));
            match word {
                "family" => self.is_ipv6 = Some(value()? == "inet6"),
                "timeout" => self.timeout = value()?.parse().map_err(|_| "its `timeout` is no time".to_owned())?,
                "netmask" => {
                    let length = value()?;
                    let length = length.parse().ok().filter(|length| (1..=128).contains(length));
                    self.netmask = Some(length.ok_or("its `netmask` is no length")?);
                }
                "bitmask" => {
                    let mask = value()?;
                    let length = mask.parse().ok().and_then(|mask| ipnet::ip_mask_to_prefix(mask).ok());
                    self.netmask = Some(length.ok_or(format!("the ones of `bitmask {mask}` are not contiguous"))?);
                }
                // Elements outside the range are not in the set.
                "range" => {
                    value()?;
                }
                other => {
                    let known = OPTIONS.iter().find(|(name, _)| *name == other);
                    let (_, count) = known.ok_or(format!("its option `{other}` is not known"))?;
                    words.by_ref().take(*count).for_each(|_| ());
                }
            }
        }
        Ok(())
    }

    /// Cuts addresses to the networks of the set's netmask.
    fn cut(&self, prefixes: &[IpNet]) -> Vec<IpNet> {
        let Some(length) = self.netmask else { return prefixes.to_vec() };
        let cut = |of: &IpNet| {
            let is_longer = of.prefix_len() > length;
            let wider = IpNet::new(of.addr(), length).ok().filter(|_| is_longer);
            wider.map_or(*of, |wider| wider.trunc())
        };
        let mut all: Vec<IpNet> = prefixes.iter().map(cut).collect();
        all.dedup();
        all
    }

    fn add(&mut self, line: usize, element: &str, now: Timestamp) -> Result<(), String> {
        let (before, comment, after) = commented(element)?;
        let mut words = before.split_whitespace().chain(after.split_whitespace());
        let text = words.next().unwrap_or_default();
        if text.contains(',') {
            return Err("an element of several parts is not just an address".to_owned());
        }
        let prefixes = addresses(text).ok_or(NO_ADDRESS)?;
        let is_ipv6 = prefixes.iter().any(|of| of.addr().is_ipv6());
        if self.is_ipv6.is_some_and(|set| set != is_ipv6) {
            return Err("it is not of the set's family".to_owned());
        }
        let (mut seconds, mut is_nomatch, mut replaces) = (self.timeout, false, false);
        while let Some(word) = words.next() {
            match word {
                "nomatch" if self.takes_nomatch => is_nomatch = true,
                "nomatch" => return Err("`nomatch` has no meaning in a set of this type".to_owned()),
                "timeout" => {
                    let time = words.next().and_then(|word| word.parse::<u32>().ok());
                    seconds = time.ok_or("its `timeout` is no time")?.into();
                }
                other => {
                    let known = ELEMENT_OPTIONS.iter().find(|(name, _)| *name == other);
                    let (_, count) = known.ok_or(format!("its option `{other}` is not known"))?;
                    replaces |= *count == 0;
                    words.by_ref().take(*count).for_each(|_| ());
                }
            }
        }
        let until = ends_in(seconds, now).ok_or("its `timeout` is no time")?;
        let prefixes = self.cut(&prefixes);
        let comment = comment.map(shortened).filter(|text| !text.is_empty());
        let member = Member { line, text: text.to_owned(), prefixes, until, comment, is_nomatch };
        let first = member.prefixes.first().and_then(|prefix| self.by_prefix.get(prefix)).copied();
        match first.and_then(|at| self.members.get_mut(at)).filter(|before| before.prefixes == member.prefixes) {
            Some(before) if replaces => *before = member,
            Some(before) if before.is_nomatch != member.is_nomatch => {
                return Err(format!("line {} contradicts it", before.line));
            }
            Some(_) | None => {
                let at = self.members.len();
                self.by_prefix.extend(member.prefixes.iter().map(|prefix| (*prefix, at)));
                self.members.push(member);
            }
        }
        Ok(())
    }

    fn rows(&self, read: &mut Imported) {
        let row = |prefix, member: &Member| Row::listed(prefix, member.until, member.comment.clone());
        if !self.members.iter().any(|member| member.is_nomatch) {
            let each = self.members.iter().flat_map(|member| member.prefixes.iter().map(move |of| row(*of, member)));
            read.rows.extend(each);
            return;
        }
        self.refuse_exceptions_that_end(read);
        let nested = self.members.iter().enumerate().flat_map(|(id, member)| {
            let kind = if member.is_nomatch { Kind::Exempt } else { Kind::Denied };
            let until = member.until;
            member.prefixes.iter().map(move |prefix| Nested { prefix: *prefix, kind, until, id })
        });
        let found = in_effect(nested.collect()).into_iter();
        read.rows.extend(found.filter_map(|(prefix, id)| Some(row(prefix, self.members.get(id)?))));
    }

    /// Refuses exceptions that end before the entries around them, because no denial may begin later than its import.
    fn refuse_exceptions_that_end(&self, read: &mut Imported) {
        let end = |until: Option<Timestamp>| until.unwrap_or(Timestamp::MAX);
        let mut denied: BTreeMap<IpNet, Timestamp> = BTreeMap::new();
        for member in self.members.iter().filter(|member| !member.is_nomatch) {
            for prefix in &member.prefixes {
                let last = denied.entry(*prefix).or_insert(Timestamp::MIN);
                *last = end(member.until).max(*last);
            }
        }
        for member in self.members.iter().filter(|member| member.is_nomatch && member.until.is_some()) {
            let is_outlasted = member.prefixes.iter().any(|prefix| {
                let around = std::iter::successors(Some(*prefix), IpNet::supernet);
                around.into_iter().any(|around| denied.get(&around).is_some_and(|last| *last > end(member.until)))
            });
            if is_outlasted {
                let (text, name) = (&member.text, &self.name);
                let problem = format!(
                    "`{text} nomatch` of set {name} ends before what it is taken from: its addresses are not denied \
                     then either"
                );
                read.refused.push(Refused { line: member.line, problem });
            }
        }
    }
}

/// Splits an element into the text before a quoted comment, the comment, and the text after it.
fn commented(element: &str) -> Result<(&str, Option<&str>, &str), String> {
    let Some((before, rest)) = element.split_once(" comment \"") else { return Ok((element, None, "")) };
    let (comment, after) = rest.split_once('"').ok_or("the quotes of its comment are not closed")?;
    Ok((before, Some(comment), after))
}
