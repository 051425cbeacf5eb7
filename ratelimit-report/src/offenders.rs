//! Refused sources, one row each, in formats for an abuse desk, a firewall or a script. Made from the answers of
//! `history`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::{Timestamp, Unit};
use serde::Serialize;

use crate::entries::{self, Row};
use crate::history::{Episode, HistoryReport, WorstReport};
use crate::snapshot::{SCHEMA, source_key};

/// Maximum number of a source's episodes in a letter.
const NAMED_MAX: usize = 50;

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line per source with blank-separated fields, which is also a valid list file.
    Plain,
    /// One JSON object per line.
    Json,
    /// Letter to the abuse desk of the source's network.
    Abuse,
    /// Script for `nft -f`.
    Nft,
    /// Script for `ipset restore`.
    Ipset,
}

/// Source that was refused, or would have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offender {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Address or prefix of the source.
    pub source: String,
    /// Time of the first refusal.
    pub first: Timestamp,
    /// Time of the last refusal; none while an episode goes on.
    pub last: Option<Timestamp>,
    /// Number of episodes of the source.
    pub episodes: u64,
    /// Number of refused packets.
    pub packets: u64,
    /// Number of refused bytes.
    pub bytes: u64,
    /// Names of the rules that refused the source.
    pub rules: Vec<String>,
    /// Labels of the reasons.
    pub reasons: Vec<String>,
    /// True if nothing was dropped.
    pub would: bool,
    #[serde(skip)]
    named: Vec<Episode>,
}

/// Returns the offenders in a report on an address or prefix. Refused sources come before would-be refused ones, each
/// sorted by packets, most first.
pub fn of_history(report: &HistoryReport) -> Vec<Offender> {
    let mut by_source: BTreeMap<(bool, &str), Vec<&Episode>> = BTreeMap::new();
    for episode in &report.episodes {
        by_source.entry((episode.would, &episode.source)).or_default().push(episode);
    }
    let mut offenders: Vec<Offender> = by_source.into_values().filter_map(|of| Offender::of(&of)).collect();
    offenders.sort_by(|a, b| {
        let key = |of: &Offender, packets| (of.would, packets, source_key(&of.source));
        key(a, b.packets).cmp(&key(b, a.packets))
    });
    offenders
}

/// Returns the offenders in a report on a period, in its order.
pub fn of_worst(report: &WorstReport) -> Vec<Offender> {
    let one = |of: &crate::history::WorstSource| Offender {
        schema: SCHEMA,
        source: of.source.clone(),
        first: of.began,
        last: of.ended,
        episodes: of.episodes,
        packets: of.packets,
        bytes: of.bytes,
        rules: of.rules.clone(),
        reasons: of.reasons.clone(),
        would: of.would,
        named: Vec::new(),
    };
    report.sources.iter().map(one).collect()
}

impl Offender {
    fn of(episodes: &[&Episode]) -> Option<Self> {
        let first = episodes.first()?;
        let sum =
            |of: fn(&Episode) -> u64| episodes.iter().fold(0, |sum: u64, episode| sum.saturating_add(of(episode)));
        let names = |of: fn(&Episode) -> &str| {
            let names: BTreeSet<&str> =
                episodes.iter().map(|episode| of(episode)).filter(|name| !name.is_empty()).collect();
            names.into_iter().map(str::to_owned).collect()
        };
        let goes_on = episodes.iter().any(|of| of.ended.is_none());
        Some(Self {
            schema: SCHEMA,
            source: first.source.clone(),
            first: episodes.iter().map(|of| of.began).min()?,
            last: episodes.iter().filter_map(|of| of.ended).max().filter(|_| !goes_on),
            episodes: episodes.len() as u64,
            packets: sum(|of| of.packets),
            bytes: sum(|of| of.bytes),
            rules: names(|of| &of.rule),
            reasons: names(|of| &of.reason),
            would: first.would,
            named: episodes.iter().map(|of| (*of).clone()).collect(),
        })
    }

    fn prefix(&self) -> Option<IpNet> {
        self.source.parse().ok().or_else(|| self.source.parse::<IpAddr>().ok().map(IpNet::from))
    }
}

/// Formats the offenders. Abuse letters and firewall scripts leave out those of which nothing was dropped.
pub fn export(offenders: &[Offender], format: Format, now: Timestamp) -> String {
    let rows = || {
        let row = |of: &Offender| {
            Some(Row::command(of.prefix()?, Some(format!("{}: {}", of.reasons.join(","), of.rules.join(",")))))
        };
        offenders.iter().filter(|of| !of.would).filter_map(row).collect::<Vec<_>>()
    };
    match format {
        Format::Plain => plain(offenders),
        // Serializing texts, numbers and times cannot fail.
        Format::Json => offenders.iter().map(|of| serde_json::to_string(of).unwrap_or_default() + "\n").collect(),
        Format::Abuse => {
            offenders.iter().filter(|of| !of.would).map(|of| letter(of, now)).collect::<Vec<_>>().join("\n")
        }
        Format::Nft => entries::export(&rows(), entries::Format::Nft, now),
        Format::Ipset => entries::export(&rows(), entries::Format::Ipset, now),
    }
}

fn plain(offenders: &[Offender]) -> String {
    let mut text =
        "# source first last packets episodes rules reasons; times are UTC, - goes on or has none\n".to_owned();
    let listed = |names: &[String]| if names.is_empty() { "-".to_owned() } else { names.join(",").replace(' ', "_") };
    for of in offenders {
        let last = of.last.map_or_else(|| "-".to_owned(), instant);
        let (rules, reasons) = (listed(&of.rules), listed(&of.reasons));
        let _ = writeln!(
            text,
            "{} {} {last} {} {} {rules} {reasons}",
            of.source,
            instant(of.first),
            of.packets,
            of.episodes
        );
    }
    text
}

/// Returns a letter with the facts that an abuse desk needs: source, times in UTC, amounts and the single episodes.
fn letter(of: &Offender, now: Timestamp) -> String {
    let Offender { source, packets, bytes, episodes, .. } = of;
    let last = of.last.map_or_else(|| format!("{}, and goes on", instant(now)), instant);
    let mut text = format!(
        "Subject: Traffic beyond our limits from {source}\n\n\
         {source} sent more than our servers' limits admit. The excess was dropped. All times are UTC.\n\n\
         Source:          {source}\n\
         First refused:   {}\n\
         Last refused:    {last}\n\
         Packets refused: {packets}, {bytes} bytes, {episodes} times over a limit\n",
        instant(of.first)
    );
    if !of.named.is_empty() {
        text += "\nBegan                 Ended                 Packets     Reason, limit\n";
    }
    for episode in of.named.iter().take(NAMED_MAX) {
        let ended = episode.ended.map_or_else(|| "goes on".to_owned(), instant);
        let limit = [episode.reason.as_str(), episode.limit.as_str()].join(", ");
        let limit = limit.trim_end_matches(", ");
        let _ = writeln!(text, "{:<20}  {ended:<20}  {:<10}  {limit}", instant(episode.began), episode.packets);
    }
    let more = of.named.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
    text
}

fn instant(at: Timestamp) -> String {
    at.round(Unit::Second).unwrap_or(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn episode(source: &str, began: i64, ended: Option<i64>, packets: u64) -> Episode {
        Episode {
            source: source.to_owned(),
            rule: "web".to_owned(),
            limit: "9/1m packets".to_owned(),
            reason: "over_limit".to_owned(),
            began: at(began),
            ended: ended.map(at),
            packets,
            bytes: packets * 60,
            peak: 9,
            cause: None,
            would: false,
        }
    }

    fn report() -> HistoryReport {
        let banned =
            Episode { reason: "banned".to_owned(), limit: String::new(), ..episode("192.0.2.1", 500, Some(900), 5) };
        let dry = Episode { would: true, reason: "dry_run".to_owned(), ..episode("192.0.2.3", 7, Some(8), 999) };
        let episodes =
            vec![banned, episode("192.0.2.1", 10, Some(70), 30), dry, episode("2001:db8:1:2::/64", 20, None, 40)];
        HistoryReport {
            schema: 1,
            source: "all".to_owned(),
            episodes,
            acts: Vec::new(),
            more: false,
            more_episodes: false,
            more_acts: false,
            losses: Vec::new(),
        }
    }

    #[test]
    fn a_source_is_one_row_from_its_first_refusal_to_its_last() {
        let text = export(&of_history(&report()), Format::Plain, at(1_000));
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "2001:db8:1:2::/64 1970-01-01T00:00:20Z - 40 1 web over_limit",
                "192.0.2.1 1970-01-01T00:00:10Z 1970-01-01T00:15:00Z 35 2 web banned,over_limit",
                "192.0.2.3 1970-01-01T00:00:07Z 1970-01-01T00:00:08Z 999 1 web dry_run",
            ]
        );
        let listed = ratelimit_policy::config::lists::parse(std::path::Path::new("list"), &text).unwrap();
        assert_eq!(listed.len(), 3, "it is a list file");
    }

    #[test]
    fn json_is_an_object_a_line_with_names_that_stay() {
        let text = export(&of_history(&report()), Format::Json, at(1_000));
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines[1],
            serde_json::json!({
                "schema": 1, "source": "192.0.2.1", "first": "1970-01-01T00:00:10Z", "last": "1970-01-01T00:15:00Z",
                "episodes": 2, "packets": 35, "bytes": 2100, "rules": ["web"], "reasons": ["banned", "over_limit"], "would": false,
            })
        );
        assert!(lines[0]["last"].is_null() && lines[2]["would"] == true);
    }

    #[test]
    fn a_letter_says_who_when_and_what_and_is_about_no_dry_run() {
        let text = export(&of_history(&report()), Format::Abuse, at(1_000));
        assert_eq!(text.matches("Subject: ").count(), 2, "{text}");
        assert!(!text.contains("192.0.2.3"), "{text}");
        for line in [
            "Subject: Traffic beyond our limits from 192.0.2.1\n",
            "First refused:   1970-01-01T00:00:10Z\n",
            "Last refused:    1970-01-01T00:16:40Z, and goes on\n",
            "Packets refused: 35, 2100 bytes, 2 times over a limit\n",
            "1970-01-01T00:08:20Z  1970-01-01T00:15:00Z  5           banned\n",
            "1970-01-01T00:00:20Z  goes on               40          over_limit, 9/1m packets\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let mut many = report();
        many.episodes = (0..60).map(|at| episode("192.0.2.1", at, Some(at + 1), 1)).collect();
        assert!(export(&of_history(&many), Format::Abuse, at(1_000)).ends_with("\nand 10 more\n"));
    }

    #[test]
    fn a_firewall_gets_those_that_were_refused_and_no_dry_run() {
        for format in [Format::Nft, Format::Ipset] {
            let text = export(&of_history(&report()), format, at(1_000));
            let rows = entries::import(&text, at(1_000)).unwrap().rows;
            let prefixes: Vec<String> = rows.iter().map(|row| row.prefix.to_string()).collect();
            assert_eq!(prefixes, ["2001:db8:1:2::/64", "192.0.2.1/32"], "{text}");
            assert!(rows.iter().all(|row| row.until.is_none() && row.reason.is_some()));
        }
    }

    #[test]
    fn the_worst_of_a_period_are_rows_as_they_are() {
        let report = WorstReport {
            schema: 1,
            since: at(0),
            until: at(9),
            sources: vec![crate::history::WorstSource {
                source: "192.0.2.1".to_owned(),
                episodes: 3,
                rules: vec!["a".to_owned(), "b".to_owned()],
                reasons: vec!["guard".to_owned()],
                began: at(1),
                ended: Some(at(2)),
                packets: 7,
                bytes: 70,
                would: false,
            }],
            omitted: 0,
            losses: Vec::new(),
        };
        let text = export(&of_worst(&report), Format::Plain, at(9));
        assert!(text.ends_with("192.0.2.1 1970-01-01T00:00:01Z 1970-01-01T00:00:02Z 7 3 a,b guard\n"), "{text}");
        assert!(export(&of_worst(&report), Format::Abuse, at(9)).contains("Packets refused: 7, 70 bytes, 3 times"));
    }
}
