//! Tests of list files: their meaning, and the files that are refused.

mod bounds;
mod left_out;
mod published;

use super::*;
use crate::diagnostic::Place;
use proptest::prelude::*;

fn parsed(contents: &str) -> Vec<String> {
    let prefixes = parse(Path::new("list"), contents).expect(contents);
    prefixes.iter().map(ToString::to_string).collect()
}

#[test]
fn published_sets_load_as_they_are() {
    let drop =
        "; Spamhaus DROP List 2026/07/01\r\n; Expires: Wed\r\n1.10.16.0/20 ; SBL256894\r\n1.19.0.0/16 ; SBL434604\r\n";
    assert_eq!(parsed(drop), ["1.10.16.0/20", "1.19.0.0/16"]);
    let netset = "#\n# firehol_level1\n#\n0.0.0.0/8\n10.0.0.0/8\n192.0.2.1\n\n";
    assert_eq!(parsed(netset), ["0.0.0.0/8", "10.0.0.0/8", "192.0.2.1/32"]);
    let other = "\u{feff}2001:db8::/32# ours\n\t 192.0.2.7/24 partner, since May\n192.0.2.0/24;\n";
    assert_eq!(parsed(other), ["192.0.2.0/24", "2001:db8::/32"]);
    assert!(parsed("").is_empty());
}

#[test]
fn an_error_in_a_list_file_names_file_line_and_column() {
    let error = parse(Path::new("drop.txt"), "# ok\n192.0.2.0/24\n  192.0.2.300 x\n").expect_err("no address");
    assert_eq!(error.first().problem, "bad line in a list file: this is no address, and no prefix");
    let Place::File { path, excerpt: Some(excerpt) } = &error.first().place else { panic!("not in the file") };
    assert_eq!((path.as_path(), excerpt.line, excerpt.column), (Path::new("drop.txt"), 3, 3));
    let error = parse(Path::new("drop.txt"), "192.0.2.0/24\n192.0.2.0/33\n").expect_err("no length");
    assert_eq!(
        error.to_string().split(" (").next(),
        Some("drop.txt:2:11: bad line in a list file: this is not a prefix length")
    );
}

#[test]
fn lists_hold_the_documented_number_of_entries_and_no_more() {
    let lines = |count| (0..count).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at)));
    let both = |count| lines(count).chain((0..count).map(|at| format!("2001:db8::{:x}:{:x}\n", at >> 16, at & 0xffff)));
    assert_eq!(parsed(&both(1_048_576).collect::<String>()).len(), LIST_ENTRIES_MAX);
    let error = parse(Path::new("list"), &lines(2_097_153).collect::<String>()).expect_err("too many");
    assert!(error.first().problem.contains("more than 2097152 entries"), "{error}");
    let error = parse(Path::new("list"), &lines(1_048_577).collect::<String>()).expect_err("of one family");
    assert!(error.first().problem.contains("more than 1048576 prefixes of IPv4"), "{error}");
    assert_eq!(parse(Path::new("list"), &lines(1_048_576).collect::<String>()).unwrap().len(), 1_048_576);
}

#[test]
fn a_file_of_another_kind_is_refused_at_once_however_long_it_is() {
    let began = std::time::Instant::now();
    for line in ["x\n", "{}\n", "{\"a\":1}\n", "192.0.2.1/33\n"] {
        let error = parse(Path::new("list"), &line.repeat((4 << 20) / line.len())).expect_err("no list");
        assert_eq!((error.iter().count(), error.more()), (1, 0), "{line:?}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_line_of_json_has_a_bound_and_lone_carriage_returns_are_said() {
    let object = |zeros: usize| format!("{{\"a\":\"{}\",\"ip\":\"192.0.2.1\"}}\n", "0".repeat(zeros));
    assert_eq!(parse(Path::new("list"), &object(60_000)).unwrap().len(), 1);
    let error = parse(Path::new("list"), &object(70_000)).expect_err("too long");
    assert!(error.first().problem.contains("longer than 65536 bytes"), "{error}");
    for text in ["192.0.2.1\r192.0.2.2\r", "# of one\r192.0.2.1\r192.0.2.2"] {
        let error = parse(Path::new("list"), text).expect_err("one line");
        assert!(error.first().problem.contains("carriage return"), "{error}");
    }
    assert_eq!(parse(Path::new("list"), "192.0.2.1 # of one\r\n192.0.2.2\r\n").unwrap().len(), 2);
}

#[test]
fn a_feed_may_be_as_long_as_a_list_file() {
    let script = include_str!("../../../../dist/feeds/ratelimitd-feed");
    assert!(script.contains(&format!("--max-filesize {LIST_BYTES_MAX} ")), "{script}");
    // The unit is a block of 512 bytes. The file must also have room for the response's header.
    let most: u64 = script.split_once("\nulimit -f ").unwrap().1.split('\n').next().unwrap().parse().unwrap();
    assert!(most * 512 > LIST_BYTES_MAX, "{most}");
}

#[test]
fn lists_of_one_large_file_are_bounded_together() {
    let file: String = (0..131_072).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at))).collect();
    let load = |lists: usize| {
        let named: String = (0..lists).map(|at| format!("l{at:02} = \"file:x\"\n")).collect();
        let text = format!("interfaces = [\"eth0\"]\n[rule]\nlimits = [\"1/1s\"]\n[lists]\n{named}");
        crate::config::file::parse(Path::new("r.toml"), &text, |_| Ok(file.clone()))
    };
    assert!(load(16).is_ok());
    let error = load(17).expect_err("too many");
    let Place::File { excerpt: Some(excerpt), .. } = &error.first().place else { panic!("not in the file") };
    assert!(error.first().problem.contains("more than 2097152 prefixes together") && excerpt.line == 21, "{error}");
}

#[test]
fn published_lists_read_as_they_are() {
    let read = |text: &str| {
        let prefixes = parse(Path::new("list"), text).map_err(|error| error.to_string())?;
        Ok::<_, String>(prefixes.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let spamhaus = "; a list, a date\n192.0.2.0/24 ; SBL1\n203.0.113.0/25 ; SBL2\n";
    assert_eq!(read(spamhaus).unwrap(), ["192.0.2.0/24", "203.0.113.0/25"]);
    let lines = "{\"cidr\":\"192.0.2.0/24\",\"sblid\":\"SBL1\",\"rir\":\"a # b\"}\r\n{\"cidr\": \"2001:db8::/32\" }\n\
        {\"type\":\"metadata\",\"timestamp\":1,\"records\":2}\n";
    assert_eq!(read(lines).unwrap(), ["192.0.2.0/24", "2001:db8::/32"]);
    let netset = "#\n# a_level1\n#\n192.0.2.1\n198.51.100.0/24\n";
    assert_eq!(read(netset).unwrap(), ["192.0.2.1/32", "198.51.100.0/24"]);
    assert_eq!(read("198.51.100.7\n2001:db8::7\n").unwrap(), ["198.51.100.7/32", "2001:db8::7/128"]);
    let abuse = "{\"ipAddress\":\"198.51.100.7\",\"abuseConfidenceScore\":100}\n{\"ip\":\"198.51.100.8\"}\n";
    assert_eq!(read(abuse).unwrap(), ["198.51.100.7/32", "198.51.100.8/32"]);
    for (text, said) in [
        ("{\"cidr\":\"192.0.2.0/24\"", "a JSON document that is cut off"),
        ("{\"asn\":7}", "has no prefix"),
        ("{\"cidr\":7}", "has no prefix"),
        ("{\"cidr\":\"here\"}", "no address"),
        ("<html>", "an HTML page"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(said) && !error.contains("here") && !error.contains("asn"), "{error}");
    }
}

proptest! {
    #[test]
    fn errors_in_a_list_file_are_reported_without_its_text(
        before in "([0-9]{1,3}\n){0,3}",
        address in "(192\\.0\\.2\\.0/|2001:db8::/)?",
        secret in "[a-z:$./]{0,6}qzx[ -~]{0,40}",
    ) {
        let good = before.replace('\n', ".0.0.1\n");
        let contents = format!("{good}{address}{secret}\n");
        if let Err(error) = parse(Path::new("list"), &contents) {
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains("qzx"), "{shown}");
        }
    }

    #[test]
    fn no_list_file_panics(contents in "(\\PC|\n|\r|\t){0,60}|([0-9a-f.:/]{0,20}[ ;#\r]{0,2}\n){0,6}") {
        if let Ok(prefixes) = parse(Path::new("list"), &contents) {
            prop_assert!(prefixes.is_sorted());
            prop_assert!(prefixes.iter().all(|prefix| *prefix == prefix.trunc()));
        }
    }
}
