//! Round trips of rows through every format, and import of foreign formats.

use super::*;
use crate::snapshot::Listed;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Returns the rows of a text, and asserts that nothing is refused.
fn read_whole(text: &str, now: Timestamp) -> Vec<Row> {
    let Imported { rows, refused } = import(text, now).unwrap();
    assert_eq!(refused, []);
    rows
}

fn refused(of: &Imported) -> Vec<String> {
    of.refused.iter().map(|of| format!("line {}: {}", of.line, of.problem)).collect()
}

fn any_row() -> impl Strategy<Value = Row> {
    let v4 = (any::<[u8; 2]>(), 0..=32_u8)
        .prop_map(|([a, b], length)| IpNet::new(IpAddr::from([198, 51, a & 3, b]), length).unwrap().trunc());
    let v6 = (any::<u8>(), 0..=128_u8).prop_map(|(a, length)| {
        IpNet::new(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, a.into()]), length).unwrap().trunc()
    });
    let reason = proptest::option::of("[ -~äß€\\\\\"{}#;']{1,40}");
    let by = proptest::sample::select(vec![Author::Command, Author::Command, Author::Configuration, Author::Ban]);
    let owner = proptest::option::of("[a-z]{1,8}/[a-z0-9.:]{1,20}");
    let all = (prop_oneof![v4, v6], proptest::option::of(1..100_000_i64), reason, by, owner);
    all.prop_map(|(prefix, seconds, reason, by, owner)| Row {
        prefix,
        until: seconds.map(|seconds| at(1_000 + seconds)),
        reason,
        by,
        owner: owner.filter(|_| by == Author::Command),
        of: None,
    })
}

fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    proptest::collection::vec(any_row(), 0..8).prop_map(|rows| {
        let by_prefix: BTreeMap<IpNet, Row> = rows.into_iter().map(|row| (row.prefix, row)).collect();
        by_prefix.into_values().collect()
    })
}

/// Returns the expiry of an address's denial. A permanent denial ends at [`Timestamp::MAX`].
fn until(rows: &[Row], address: IpAddr) -> Option<Timestamp> {
    let around = rows.iter().filter(|row| row.prefix.contains(&address));
    around.map(|row| row.until.unwrap_or(Timestamp::MAX)).max()
}

proptest! {
    #[test]
    fn a_list_keeps_every_prefix_end_and_reason_and_is_a_list_file(rows in any_rows()) {
        let text = export(&rows, Format::Plain, at(1_000));
        prop_assert_eq!(read_whole(&text, at(1_000)), rows.clone());
        let listed = ratelimit_policy::config::lists::parse(std::path::Path::new("list"), &text).unwrap();
        let prefixes: std::collections::BTreeSet<IpNet> = rows.iter().map(|row| row.prefix).collect();
        prop_assert_eq!(listed.into_iter().collect::<std::collections::BTreeSet<_>>(), prefixes);
    }

    #[test]
    fn every_format_gives_back_the_rows_that_it_was_made_of(rows in any_rows(), later in 0..200_000_i64) {
        let (made, read) = (Timestamp::from_nanosecond(1_000_500_000_003).unwrap(), at(1_001 + later));
        let left: Vec<Row> = rows.iter().filter(|row| row.until.is_none_or(|until| read < until)).cloned().collect();
        for format in [Format::Plain, Format::Nft, Format::Ipset] {
            let text = export(&rows, format, made);
            prop_assert_eq!(read_whole(&text, read), left.clone(), "{:?}", format);
            prop_assert!(text.lines().all(|line| line.len() < 1_000), "ipset reads lines of 1024 bytes");
        }
    }

    #[test]
    fn an_edited_script_says_what_its_elements_say_and_whose_they_are(rows in any_rows(), gone in any::<u8>()) {
        for format in [Format::Nft, Format::Ipset] {
            let text = export(&rows, format, at(1_000));
            let is_element = |line: &&str| line.starts_with('\t') || line.starts_with("add denied");
            let elements: Vec<&str> = text.lines().filter(is_element).collect();
            if elements.is_empty() { continue; }
            let gone = elements[usize::from(gone) % elements.len()];
            let edited = text.replacen(&format!("{gone}\n"), "", 1);
            let read = read_whole(&edited, at(1_000));
            prop_assert_eq!(read.len(), elements.len() - 1);
            for element in read {
                let of = rows.iter().filter(|row| row.prefix.contains(&element.prefix)).max_by_key(|row| row.end()).unwrap();
                prop_assert_eq!((element.by, element.owner), (of.by, of.owner.clone()));
            }
        }
    }

    #[test]
    fn exports_to_ipset_and_nft_deny_every_address_as_long(
        rows in any_rows(),
        last in any::<[u8; 2]>(),
        host in any::<u8>(),
    ) {
        let addresses = [
            IpAddr::from([198, 51, last[0] & 3, last[1]]),
            IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]),
        ];
        for format in [Format::Nft, Format::Ipset] {
            // Reads only the elements, as another program would have them.
            let read = read::lines(&export(&rows, format, at(1_000)), at(1_000)).unwrap().rows;
            for address in addresses {
                prop_assert_eq!(until(&read, address), until(&rows, address), "{:?} {}", format, address);
            }
            if format == Format::Nft {
                let overlap = read.iter().enumerate().find(|(at, row)| {
                    read[at + 1..].iter().any(|of| of.prefix.contains(&row.prefix) || row.prefix.contains(&of.prefix))
                });
                prop_assert_eq!(overlap, None);
            }
        }
    }

    #[test]
    fn no_text_panics(text in "(\\PC|\n){0,60}|(add |element |\\{|\\}|timeout |comment \"|[0-9.]{1,9} ){0,8}") {
        let _ = import(&text, at(1_000));
    }
}

/// Generates reports of nested entries with prefix, state and optional expiry.
fn any_report() -> impl Strategy<Value = ListReport> {
    let prefix = (any::<u8>(), 24..=32_u8, any::<bool>()).prop_map(|(host, length, is_ipv6)| {
        let (address, longer) = if is_ipv6 {
            (IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()]), 96)
        } else {
            (IpAddr::from([198, 51, 100, host]), 0)
        };
        IpNet::new(address, length + longer).unwrap().trunc()
    });
    let state = proptest::sample::select(vec![State::Denied, State::Denied, State::Exempt, State::Banned]);
    let entry = (prefix, state, proptest::option::of(1..9_000_i64));
    proptest::collection::vec(entry, 0..12).prop_map(|entries| {
        let mut by_prefix: BTreeMap<IpNet, Listed> = BTreeMap::new();
        for (prefix, state, seconds) in entries {
            let by = if state == State::Banned { Author::Ban } else { Author::Command };
            let until = seconds.map(|seconds| at(1_000 + seconds));
            let listed = Listed { prefix: prefix.to_string(), state, by, until, decides: true, ..Listed::default() };
            by_prefix.insert(prefix, listed);
        }
        let entries = by_prefix.into_values().collect();
        ListReport { schema: 1, time: at(1_000), entries, omitted: Vec::new(), would_ban: Vec::new() }
    })
}

/// Returns true if the entry with the longest prefix denies. Without an entry, a ban decides.
fn is_denied(report: &ListReport, address: IpAddr) -> bool {
    let around = |of: &&Listed| prefix_of(&of.prefix).unwrap().contains(&address);
    let (bans, grants): (Vec<&Listed>, Vec<&Listed>) =
        report.entries.iter().filter(around).partition(|of| of.state == State::Banned);
    match grants.iter().max_by_key(|of| prefix_of(&of.prefix).unwrap().prefix_len()) {
        Some(of) => of.state == State::Denied,
        None => !bans.is_empty(),
    }
}

proptest! {
    #[test]
    fn every_export_format_contains_exactly_the_addresses_denied_here(
        report in any_report(),
        host in any::<u8>(),
    ) {
        let rows = rows(&report);
        let addresses =
            [IpAddr::from([198, 51, 100, host]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()])];
        for address in addresses {
            let is_denied = is_denied(&report, address);
            prop_assert_eq!(until(&rows, address).is_some(), is_denied, "{}", address);
            for format in [Format::Plain, Format::Nft, Format::Ipset] {
                let text = export(&rows, format, at(1_000));
                let again = read_whole(&text, at(1_000));
                prop_assert_eq!(&again, &rows, "{:?}", format);
                // Reads only the elements, as another program would have them.
                let read = read::lines(&text, at(1_000)).unwrap().rows;
                prop_assert_eq!(until(&read, address), until(&rows, address), "{:?} {}", format, address);
            }
        }
    }
}

#[test]
fn rows_that_are_asked_for_lack_what_others_exempt() {
    let of = |prefix: &str, state, reason: &str| Listed {
        prefix: prefix.to_owned(),
        state,
        reason: Some(reason.to_owned()),
        decides: true,
        ..Listed::default()
    };
    let entries = vec![
        of("10.90.0.0/30", State::Denied, "scraper"),
        of("10.90.0.2", State::Exempt, "a friend"),
        of("10.91.0.0/24", State::Denied, "other"),
    ];
    let report = ListReport { schema: 1, time: at(0), entries, omitted: Vec::new(), would_ban: Vec::new() };
    let filter = ListFilter { reason: Some("scraper".to_owned()), ..ListFilter::default() };
    let rows: Vec<_> = rows_of(&report, &filter).into_iter().map(|row| (row.prefix.to_string(), row.of)).collect();
    let whole = Some("10.90.0.0/30".parse().unwrap());
    assert_eq!(rows, [("10.90.0.0/31".to_owned(), whole), ("10.90.0.3/32".to_owned(), whole)]);
}

#[test]
fn a_list_of_crowdsecs_decisions_ends_as_they_do_and_leaves_out_what_is_over() {
    let text = "192.0.2.7 # until 1970-01-01T00:00:50Z other: cscli: probing\n\
                192.0.2.8 # until 1970-01-01T00:00:05Z gone\n192.0.2.9 # until noon\n192.0.2.10 # until 1970-01-01T00:00:50Z\n";
    let rows = read_whole(text, at(10));
    let seen: Vec<_> = rows.iter().map(|row| (row.prefix.to_string(), row.until, row.reason.as_deref())).collect();
    assert_eq!(
        seen,
        [
            ("192.0.2.7/32".to_owned(), Some(at(50)), Some("other: cscli: probing")),
            ("192.0.2.9/32".to_owned(), None, Some("until noon")),
            ("192.0.2.10/32".to_owned(), Some(at(50)), None),
        ]
    );
}

#[test]
fn formats_of_other_programs_are_read() {
    let text = "create bad hash:net family inet timeout 60\nadd bad 198.51.100.0/24 timeout 60 comment \"why not\"\n\
        add bad 198.51.100.7\nadd element inet t s { 2001:db8::/32 timeout 1h30m expires 9m }\n\
        add element inet t s {\n# why\n\t192.0.2.1 comment \"a, {b} # c\", 192.0.2.2 timeout 1157d12s, # two\n\n192.0.2.3 }\n\
        add element inet t s { }\n203.0.113.7 ; SBL1\n\
        {\"type\":\"metadata\"}\n{\"cidr\":\"203.0.113.8/32\",\"sblid\":\"SBL2\"}\n";
    let rows = read_whole(text, at(1_000));
    let shown: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {:?} {:?}", row.prefix, row.until.map(Timestamp::as_second), row.reason))
        .collect();
    assert_eq!(
        shown,
        [
            "203.0.113.7/32 None Some(\"SBL1\")",
            "203.0.113.8/32 None None",
            "2001:db8::/32 Some(1540) None",
            "192.0.2.1/32 None Some(\"a, {b} # c\")",
            "192.0.2.2/32 Some(99965812) None",
            "192.0.2.3/32 None None",
            "198.51.100.0/24 Some(1060) Some(\"why not\")",
            "198.51.100.7/32 Some(1060) None",
        ]
    );
    let part = import("192.0.2.1\nhere\n", at(0)).unwrap();
    assert_eq!(part.rows.len(), 1);
    assert_eq!(refused(&part), ["line 2: this is no address, and no prefix"]);
}

#[test]
fn a_script_that_was_cut_off_is_refused_with_where_its_braces_begin() {
    for text in ["192.0.2.9\nadd element inet t s {\n192.0.2.1,\n", "\nadd element inet t s { 192.0.2.1,"] {
        let wrong = import(text, at(0)).unwrap_err().to_string();
        assert_eq!(wrong, "line 2: the braces that begin here are not closed: the file is cut off", "{text}");
    }
}

#[test]
fn nft_exports_contain_only_numbers_and_times_that_nft_accepts() {
    for (seconds, expected) in [
        (1, " timeout 1s,"),
        (86_399, " timeout 86399s,"),
        (86_400, " timeout 1d,"),
        (3_600 * 86_400 + 7, " timeout 3600d7s,"),
        (99_999_999_999, " timeout 213503d84872s,"),
    ] {
        let row = Row::listed("192.0.2.7/32".parse().unwrap(), Some(at(1_000 + seconds)), None);
        let text = export(std::slice::from_ref(&row), Format::Nft, at(1_000));
        let element = text.lines().find(|line| line.starts_with('\t')).unwrap();
        assert_eq!(element.strip_prefix("\t192.0.2.7/32").unwrap(), expected, "{seconds}");
        assert!(element.split(|c: char| !c.is_ascii_digit()).all(|number| number.len() <= 8), "{element}");
        assert_eq!(read_whole(&text, at(1_000)), [row]);
    }
}

#[test]
fn nft_gets_one_command_for_each_set_and_ipset_the_same_set_for_any_rows() {
    let row = |number: u32| Row::command(IpNet::from(IpAddr::from(number.to_be_bytes())), None);
    let of = |count: u32, format| export(&(0..count).map(|at| row(at * 2)).collect::<Vec<_>>(), format, at(0));
    let commands = |count| of(count, Format::Nft).lines().filter(|line| line.starts_with("add element ")).count();
    assert_eq!([commands(0), commands(1), commands(20_000)], [0, 1, 1]);
    let sets = |count| -> Vec<String> {
        of(count, Format::Ipset).lines().filter(|line| line.starts_with("create ")).map(str::to_owned).collect()
    };
    assert_eq!(sets(1), sets(100_000));
    assert_eq!(sets(1).len(), 2);
}
