//! Tests with block lists in the exact format of published ones. Independent code for each format computes the
//! expected addresses.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use super::*;

fn read(text: &str) -> Result<Vec<IpNet>, String> {
    parse(Path::new("list"), text).map_err(|error| error.to_string())
}

/// Returns every IPv4 address in these prefixes. Only for small lists.
fn addresses(prefixes: &[IpNet]) -> BTreeSet<u32> {
    let hosts = prefixes.iter().flat_map(|prefix| match prefix {
        IpNet::V4(of) => u32::from(of.network())..=u32::from(of.broadcast()),
        IpNet::V6(of) => panic!("{of} in a list of IPv4"),
    });
    hosts.collect()
}

/// Returns an address as a number. This independent reader parses octets by hand, without an address type.
fn number(text: &str) -> u32 {
    let octets: Vec<u32> = text.trim().split('.').map(|octet| octet.parse().unwrap()).collect();
    assert_eq!(octets.len(), 4, "{text}");
    octets.iter().fold(0, |sum, octet| sum * 256 + octet)
}

fn span(first: &str, last: &str) -> BTreeSet<u32> {
    (number(first)..=number(last)).collect()
}

fn network(address: &str, length: u32) -> BTreeSet<u32> {
    let size = 1_u32 << (32 - length);
    let first = number(address) / size * size;
    (first..first + size).collect()
}

/// Returns the addresses of a text with one network per line. Each network ends at one of `ends`.
fn networks(text: &str, ends: &[char]) -> BTreeSet<u32> {
    let lines = text.lines().map(|line| line.split(ends).next().unwrap().trim());
    let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let of = |line: &str| match line.split_once('/') {
        Some((address, length)) => network(address, length.parse().unwrap()),
        None => network(line, 32),
    };
    lines.flat_map(of).collect()
}

const SPAMHAUS: &str = "; Spamhaus DROP List 2026/11/26 - (c) 2026 The Spamhaus Project SLU\n\
    ; https://www.spamhaus.org/drop/drop.txt\n; Last-Modified: Thu, 26 Nov 2026 07:01:03 GMT\n; Expires: Thu, 26 Nov \
    2026 13:02:00 GMT\n192.0.2.0/25 ; SBL256894\n198.51.100.0/24 ; SBL434604\n203.0.113.64/26 ; SBL459831\n";
const SPAMHAUS_JSON: &str = "{\"cidr\":\"192.0.2.0/25\",\"sblid\":\"SBL256894\",\"rir\":\"apnic\"}\n\
    {\"cidr\":\"198.51.100.0/24\",\"sblid\":\"SBL434604\",\"rir\":\"ripencc\"}\n{\"type\":\"metadata\",\"timestamp\":\
    1764140463,\"size\":99831,\"records\":2,\"copyright\":\"(c) 2026\",\"terms\":\"https://www.spamhaus.org/drop/terms/\"}\n";
const DSHIELD: &str = "#\n#   DShield.org Recommended Block List\n#   (c) 2026 DShield.org\n#\n# columns (tab delimited):\n#\n\
    #    (1) start of netblock\n#    (2) end of netblock\n#    (3) subnet (/24 for class C)\n#    (4) number of targets \
    scanned\n#\nStart\tEnd\tNetmask\tAttacks\tName\tCountry\temail\n";
const DSHIELD_ROWS: &str = "198.51.100.0\t198.51.100.255\t24\t3512\tEXAMPLE-NET\tUS\tabuse@example.net\n\
    203.0.113.0\t203.0.113.255\t24\t2990\t\t\t\n192.0.2.0\t192.0.2.127\t25\t1\tA LONG NAME\tNL\t-\n";
const FIREHOL: &str = "#\n# firehol_level1\n#\n# ipv4 hash:net ipset\n#\n# A firewall blacklist composed from IP lists,\n\
    # Maintainer      : FireHOL\n# Entries         : 4 subnets, 1281 unique IPs\n#\n192.0.2.1\n198.51.100.0/24\n\
    203.0.113.0/25\n198.18.4.0/22\n";
const EMERGING_THREATS: &str = "# Feodo\n# -- none\n\n#Spamhaus DROP Nets\n192.0.2.0/26\n198.51.100.128/25\n\n\
    #Dshield Top Attackers\n203.0.113.0/24\n";
const BLOCKLIST_DE: &str = "192.0.2.4\n198.51.100.17\n203.0.113.9\n198.51.100.18\n";
const CINS: &str = "192.0.2.44\n198.51.100.7\n203.0.113.200\n";
const TOR: &str = "192.0.2.7\n192.0.2.8\n198.51.100.3";
const TOR_EXITS: &str = "# This is a list of all Tor exit nodes from the past 16 hours\n192.0.2.7\n203.0.113.3\n";
const CYMRU: &str = "# last updated 1764140463 (Wed Nov 26 07:01:03 2026 GMT)\n0.0.0.0/30\n192.0.2.0/24\n198.51.100.0/24\n\
    203.0.113.0/24\n";
const IPSUM: &str = "# IPsum Threat Intelligence Feed\n# (https://github.com/stamparm/ipsum)\n#\n# Last update: Wed, 26 Nov\
    \n192.0.2.90\t10\n198.51.100.18\t9\n203.0.113.1\t3\n";
const ALIENVAULT: &str =
    "192.0.2.66#4#2#Malicious Host#CN##39.9288,116.3889#3\n198.51.100.8#4#3#Scanning Host#US#Reno#1,2#11\n";
const P2P: &str = "# List distributed by iblocklist.com\n\nSome: organisation - of 12:30 # one:192.0.2.0-192.0.2.130\n\
    192.168 private; net:198.51.100.7-198.51.100.7\nBogon:203.0.113.1-203.0.113.254\n";
const EMULE: &str = "# eMule ipfilter\n192.000.002.000 - 192.000.002.255 , 000 , Bogon\n\
    198.051.100.009 - 198.051.100.077 , 100 , Some org, a name - of 2\n203.0.113.5 - 203.0.113.6 , 000 , no zeros\n";
const NGINX: &str = "# generated\ndeny 192.0.2.0/24;\n  deny 198.51.100.7; # one host\ndeny 203.0.113.0/25;\n";
const APACHE: &str = "Deny from 192.0.2.0/255.255.255.128\ndeny from 198.51.100.7 198.51.100.9\n\
    Require not ip 203.0.113.0/24 198.51.100.64/26\n";
const MASKS: &str = "192.0.2.0/255.255.255.0\n198.51.100.0 255.255.255.128\n203.0.113.8\t255.255.255.248\n";
const CSV: &str = "192.0.2.7,100,\"some, text\",2026-11-26\n\"198.51.100.0/24\",\"DE\",3\n203.0.113.4-203.0.113.6,x\n";

#[test]
fn every_published_block_list_holds_the_addresses_that_another_count_finds_in_it() {
    let p2p = [span("192.0.2.0", "192.0.2.130"), network("198.51.100.7", 32), span("203.0.113.1", "203.0.113.254")];
    let emule =
        [span("192.0.2.0", "192.0.2.255"), span("198.51.100.9", "198.51.100.77"), span("203.0.113.5", "203.0.113.6")];
    let masks = [network("192.0.2.0", 24), network("198.51.100.0", 25), network("203.0.113.8", 29)];
    let mut apache = ["198.51.100.7", "198.51.100.9"].map(|one| network(one, 32)).to_vec();
    apache.extend([network("192.0.2.0", 25), network("203.0.113.0", 24), network("198.51.100.64", 26)]);
    let csv = [network("192.0.2.7", 32), network("198.51.100.0", 24), span("203.0.113.4", "203.0.113.6")];
    let dshield = DSHIELD_ROWS.lines().flat_map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        span(columns[0], columns[1])
    });
    let join = |parts: &[BTreeSet<u32>]| parts.iter().flatten().copied().collect::<BTreeSet<u32>>();
    let json = SPAMHAUS_JSON.replace("{\"cidr\":\"", "").replace('"', " ");
    let nginx = NGINX.replace("deny ", "").replace("  ", "");
    for (name, text, counted) in [
        ("Spamhaus DROP", SPAMHAUS.to_owned(), networks(SPAMHAUS, &[';'])),
        ("Spamhaus DROP, JSON lines", SPAMHAUS_JSON.to_owned(), networks(&json, &[' '])),
        ("DShield", DSHIELD.to_owned() + DSHIELD_ROWS, dshield.collect()),
        ("FireHOL", FIREHOL.to_owned(), networks(FIREHOL, &['#'])),
        ("Emerging Threats", EMERGING_THREATS.to_owned(), networks(EMERGING_THREATS, &['#'])),
        ("blocklist.de", BLOCKLIST_DE.to_owned(), networks(BLOCKLIST_DE, &['#'])),
        ("CINS", CINS.to_owned(), networks(CINS, &['#'])),
        ("Tor bulk exits", TOR.to_owned(), networks(TOR, &['#'])),
        ("Tor exits", TOR_EXITS.to_owned(), networks(TOR_EXITS, &['#'])),
        ("Team Cymru", CYMRU.to_owned(), networks(CYMRU, &['#'])),
        ("IPsum", IPSUM.to_owned(), networks(IPSUM, &['\t'])),
        ("AlienVault", ALIENVAULT.to_owned(), networks(ALIENVAULT, &['#'])),
        ("PeerGuardian", P2P.to_owned(), join(&p2p)),
        ("eMule", EMULE.to_owned(), join(&emule)),
        ("nginx", NGINX.to_owned(), networks(&nginx, &[';'])),
        ("Apache", APACHE.to_owned(), join(&apache)),
        ("netmasks", MASKS.to_owned(), join(&masks)),
        ("CSV", CSV.to_owned(), join(&csv)),
    ] {
        assert!(!counted.is_empty(), "{name}");
        let held = read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(addresses(&held) == counted, "{name}: {held:?}");
        assert!(addresses(&read(&text.replace('\n', "\r\n")).unwrap()) == counted, "{name} with Windows line ends");
    }
}

#[test]
fn a_line_that_may_name_more_than_is_understood_is_refused() {
    for line in [
        // Two neighbouring addresses may be a range or two addresses.
        "198.51.100.0\t198.51.100.255",
        "198.51.100.0,198.51.100.255",
        "198.51.100.0 198.51.100.255 4",
        "198.51.100.9 198.51.100.7",
        "198.51.100.7 198.51.100.9 198.51.100.11",
        "198.51.100.7;198.51.100.9",
        "198.51.100.7;198.51.100.9;24",
        "192.0.2.0/24 198.51.100.0/24",
        "192.0.2.0/24,198.51.100.0/24",
        "192.0.2.1,US,192.0.2.9",
        "192.0.2.1 name:192.0.2.4-192.0.2.9",
        "198.51.100.0 255.255.255.255",
        "0.0.0.0 255.255.255.255",
        // Invalid ranges.
        "192.0.2.9-192.0.2.1",
        "192.0.2.1-50",
        "192.0.2.1 - 50",
        "192.0.2.1-",
        "192.0.2.1-2001:db8::",
        "192.0.2.0/24-192.0.3.0/24",
        "192.0.2.0 - 192.0.2.0/28",
        "192.0.2.0..192.0.2.255",
        "192.0.2.0 to 192.0.2.255",
        "192.0.2.0 \u{2013} 192.0.2.255",
        "name:192.0.2.9-192.0.2.1",
        "name:192.0.2.1-192.0.2.300",
        "192.0.2.1 - 192.0.2.9 , 200 , passes",
        // Lengths and masks.
        "192.0.2.0 /24",
        "192.0.2.0/ 24",
        "192.0.2.0 24",
        "192.0.2.0,24",
        "2001:db8:: 32",
        "192.0.2.0/0.0.0.255",
        "192.0.2.0/255.0.255.0",
        "192.0.2.0/255.255.255",
        "192.0.2.0;24",
        "192.0.2.0;24;US",
        "192.0.2.0,'24'",
        "192.0.2.0 netmask 24",
        "192.0.2.0 mask 24",
        "192.0.2.0 prefix /24",
        "192.0.2.0 (/24)",
        "192.0.2.0 = /24",
        "192.0.2.0 len=24",
        "192.0.2.0 Cidr: 24",
        "::ffff:192.0.2.0/24",
        "::ffff:0:0/95",
        // Some of the addresses are excluded, or all are permitted.
        "192.0.2.0/24 !192.0.2.4",
        "192.0.2.0/24,!192.0.2.4",
        "192.0.2.0/24 except 192.0.2.4",
        "192.0.2.0/24 (excluding 192.0.2.4)",
        "192.0.2.0/24 nomatch",
        "192.0.2.0/24 OK",
        "192.0.2.0/24 good",
        "192.0.2.1 permit",
        "192.0.2.1,allow",
        "!192.0.2.1",
        // Wildcards, partial addresses, ports, octal digits.
        "192.0.2.*",
        "192.0.2.0 192.0.2.*",
        "192.0.2.1 198.51.100.8:80",
        "192.0.2.1 192.0.2.1|198.51.100.9",
        "192.0.2",
        "192.0.2.",
        "192.0.2.1:80",
        "010.0.0.1",
        "[2001:db8::1]",
        // Hosts files and other directives.
        "0.0.0.0 ads.example.com",
        "127.0.0.1\tlocalhost",
        "::1 ip6-localhost",
        "deny all;",
        "allow 192.0.2.1;",
        "deny 192.0.2.1; deny 192.0.2.2;",
        "Require ip 192.0.2.0/24",
        "Deny from 192.0.2",
        "Deny from env=bad",
        "address=/example.com/192.0.2.1",
        // JSON with several fields that change the meaning.
        "{\"ip\":\"192.0.2.0\",\"prefix\":24}",
        "{\"network\":\"192.0.2.0\",\"netmask\":\"255.255.255.0\"}",
        "{\"ip\":\"192.0.2.0\",\"prefix_len\":\"24\"}",
        "{\"address\":\"192.0.2.0\",\"end\":\"192.0.2.255\"}",
        "{\"ip\":\"192.0.2.1\",\"network\":\"192.0.2.0/24\"}",
        "{\"cidr\":\"192.0.2.0/24 198.51.100.0/24\"}",
        "{\"ip\":\"192.0.2.0\",\"cidr\":24}",
        "{\"ip\":\"192.0.2.0\",\"size\":24}",
        "{\"ip\":\"192.0.2.0\",\"count\":256}",
        "{\"ip\":\"192.0.2.0\",\"meta\":{\"mask\":24}}",
        "{\"cidr\":\"192.0.2.0/24\",\"cidr\":\"203.0.113.0/24\"}",
        "{\"cidr\":\"192.0.2.0/24\",\"exceptions\":[\"192.0.2.4\"]}",
        "{\"cidr\":\"192.0.2.0/24\",\"others\":[\"203.0.113.4\"]}",
        "{\"ip\":\"192.0.2.1\",\"action\":\"allow\"}",
        // Apache reads the second address as another source, other programs as a netmask.
        "Require not ip 192.0.2.0 255.255.255.0",
        "Deny from 192.0.2.0 255.255.255.0",
    ] {
        let error = read(&format!("203.0.113.1\n{line}\n")).expect_err(line);
        assert!(error.starts_with("list:2:") && error.lines().count() == 1, "{line}: {error}");
        assert!(!error.contains("198.51.100"), "the text is not quoted: {error}");
    }
}

#[test]
fn a_table_whose_column_says_how_much_a_line_means_is_refused_once() {
    for (head, line, column) in [
        ("network,cc,prefixlen", "192.0.2.0,US,24", "prefixlen"),
        ("start,count,cc", "192.0.2.0,65536,US", "count"),
        ("ip\tnetmask", "192.0.2.0\t255.255.255.0", "netmask"),
        ("\"ip\",\"country\",\"end_ip\"", "\"192.0.2.0\",\"US\",\"192.0.2.255\"", "end_ip"),
    ] {
        let error = read(&format!("{head}\n{line}\n{line}\n")).expect_err(head);
        assert!(error.contains(&format!("its column `{column}`")) && error.lines().count() == 1, "{head}: {error}");
        assert_eq!(parse_tolerant(Path::new("list"), &format!("{head}\n{line}\n")), None, "{head}");
    }
    let reports = "ip,country,count,lastReportedAt\n192.0.2.0,US,24,2026-01-01\n192.0.2.7,DE,256,2026-01-01\n";
    assert_eq!(read(reports).unwrap().len(), 2);
}

#[test]
fn a_remark_behind_an_entry_is_no_address() {
    for (line, held) in [
        ("192.0.2.7 partner, since May 2026-05-01", "192.0.2.7/32"),
        ("192.0.2.7 - partner", "192.0.2.7/32"),
        ("192.0.2.7 # was 198.51.100.7", "192.0.2.7/32"),
        ("192.0.2.0/24 gateway 192.0.2.1", "192.0.2.0/24"),
        ("192.0.2.7 0 reports, 12:30", "192.0.2.7/32"),
        ("192.0.2.0 32 reports", "192.0.2.0/32"),
        ("192.0.2.7 blocked until 2026, good riddance", "192.0.2.7/32"),
        ("192.0.2.7 not a nice host (24 reports)", "192.0.2.7/32"),
        ("{\"ip\":\"192.0.2.7\",\"count\":256}", "192.0.2.7/32"),
        ("{\"ip\":\"192.0.2.7\",\"tags\":[\"ssh\",\"web\"],\"action\":\"block\"}", "192.0.2.7/32"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("192.0.2.7, https://example.com/a?b=1.2.3", "192.0.2.7/32"),
        ("0.0.0.0/32 # nobody", "0.0.0.0/32"),
        ("{\"ip\":\"192.0.2.7\",\"source\":\"192.0.2.7\",\"asn\":24}", "192.0.2.7/32"),
        ("{\"range\":\"192.0.2.0 - 192.0.2.127\"}", "192.0.2.0/25"),
    ] {
        let read = read(line).map(|of| of.iter().map(ToString::to_string).collect());
        assert_eq!(read, Ok(vec![held.to_owned()]), "{line}");
    }
}

#[test]
fn a_file_of_another_kind_is_one_error_that_names_the_kind() {
    let utf16 = |text: &str| -> String {
        let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        String::from_utf8_lossy(&[&[0xff, 0xfe], bytes.as_slice()].concat()).into_owned()
    };
    let pretty = format!("{{\n  \"data\": [\n{}  ]\n}}\n", "    { \"ip\": \"192.0.2.1\" },\n".repeat(200));
    let page = format!("<!DOCTYPE html>\n<html>\n{}</html>\n", "<p>Error 503</p>\n".repeat(200));
    for (text, kind) in [
        (page.clone(), "an HTML page"),
        (format!("\u{feff}\n  {page}"), "an HTML page"),
        ("<?xml version=\"1.0\"?>\n<Error/>\n".to_owned(), "an XML document"),
        ("<?xml version=\"1.0\"?>\n<html/>\n".to_owned(), "an HTML page"),
        (pretty, "a JSON document"),
        (format!("[\n{}]\n", "\"192.0.2.1\",\n".repeat(200)), "a JSON document"),
        ("[\"192.0.2.1\"]".to_owned(), "a JSON document"),
        (utf16(&"192.0.2.1\r\n".repeat(200)), "UTF-16 text"),
        (utf16("192.0.2.1").trim_start_matches('\u{fffd}').to_owned(), "UTF-16 text"),
        ("PK\u{3}\u{4}\0\0xxxxxxxxxxxx".repeat(9), "a zip archive"),
        (format!("GIF89a\0{}", "x\u{fffd}".repeat(100)), "a binary file"),
        ("name\tof\nnothing\n".repeat(100), "no list of addresses"),
    ] {
        let error = parse(Path::new("list"), &text).expect_err(kind);
        assert_eq!((error.iter().count(), error.more()), (1, 0), "{kind}: {error}");
        assert!(error.to_string().contains(kind), "{kind}: {error}");
        assert!(parse_tolerant(Path::new("list"), &text).is_none(), "{kind}");
    }
}

proptest! {
    #[test]
    fn a_range_is_its_addresses_and_no_others(
        first: u32,
        size in prop_oneof![0..4096_u32, any::<u32>()],
        form in 0..6_usize,
    ) {
        let last = first.saturating_add(size);
        let text = |of: u32| std::net::Ipv4Addr::from_bits(of).to_string();
        let padded = |of: u32| of.to_be_bytes().map(|octet| format!("{octet:03}")).join(".");
        let line = match form {
            0 => format!("{}-{}", text(first), text(last)),
            1 => format!("{} - {} # all", text(first), text(last)),
            2 => format!("{} - {} , 000 , a name", padded(first), padded(last)),
            3 => format!("a name: of-2:{}-{}", text(first), text(last)),
            4 => format!("{}-{},US", text(first), text(last)),
            _ => format!("{{\"range\":\"{}-{}\"}}", text(first), text(last)),
        };
        let held = read(&line).unwrap();
        // The prefixes are ascending, without gaps and overlaps, from the first to the last address.
        let mut next = u64::from(first);
        for prefix in &held {
            let IpNet::V4(of) = prefix else { panic!("{prefix}") };
            prop_assert_eq!(u64::from(u32::from(of.network())), next);
            next += 1_u64 << (32 - of.prefix_len());
        }
        prop_assert_eq!(next, u64::from(last) + 1);
    }

    #[test]
    fn a_range_of_ipv6_is_its_addresses_and_no_others(first: u128, bits in 0..=128_u32, size: u128) {
        let size = if bits == 0 { 0 } else { size >> (128 - bits) };
        let last = first.saturating_add(size);
        let (from, to) = (Ipv6Addr::from_bits(first), Ipv6Addr::from_bits(last));
        // IPv4-mapped ends would be read as IPv4.
        prop_assume!(from.to_ipv4_mapped().is_none() && to.to_ipv4_mapped().is_none());
        let held = read(&format!("{from} - {to}")).unwrap();
        let mut next = Some(first);
        for prefix in &held {
            let IpNet::V6(of) = prefix else { panic!("{prefix}") };
            prop_assert_eq!(Some(of.network().to_bits()), next);
            next = of.broadcast().to_bits().checked_add(1);
        }
        prop_assert_eq!(next, last.checked_add(1));
    }

    #[test]
    fn a_netmask_means_what_its_length_does_and_other_masks_are_refused(
        address: u32,
        mask: u32,
        length in 0..=32_u32,
    ) {
        let text = |of: u32| std::net::Ipv4Addr::from_bits(of).to_string();
        let of_length = |length: u32| u32::MAX.checked_shl(32 - length).unwrap_or(0);
        let by_mask = read(&format!("{}/{}", text(address), text(of_length(length)))).unwrap();
        prop_assert_eq!(by_mask, read(&format!("{}/{length}", text(address))).unwrap());
        let is_mask = (0..=32).any(|length| mask == of_length(length));
        prop_assert_eq!(read(&format!("{}/{}", text(address), text(mask))).is_ok(), is_mask);
    }
}

const GOOGLEBOT: &str = r#"{
  "creationTime": "2026-11-20T15:00:43.000000",
  "prefixes": [{
    "ipv6Prefix": "2001:db8:4864::/64"
  }, {
    "ipv4Prefix": "192.0.2.0/27"
  }]
}
"#;
const GOOGLE_CLOUD: &str = r#"{
  "syncToken": "1764140463000",
  "creationTime": "2026-11-26T07:01:03.000",
  "prefixes": [{
    "ipv4Prefix": "198.51.100.0/25",
    "service": "Google Cloud",
    "scope": "africa-south1"
  }, {
    "ipv6Prefix": "2001:db8:1900::/44",
    "service": "Google Cloud",
    "scope": "africa-south1"
  }]
}
"#;
const AWS: &str = r#"{
  "syncToken": "1764140463",
  "createDate": "2026-11-26-07-01-03",
  "prefixes": [
    {
      "ip_prefix": "192.0.2.0/26",
      "region": "ap-northeast-2",
      "service": "AMAZON",
      "network_border_group": "ap-northeast-2"
    },
    {
      "ip_prefix": "192.0.2.0/26",
      "region": "ap-northeast-2",
      "service": "S3",
      "network_border_group": "ap-northeast-2"
    }
  ],
  "ipv6_prefixes": [
    {
      "ipv6_prefix": "2001:db8:5000::/52",
      "region": "eu-west-1",
      "service": "AMAZON",
      "network_border_group": "eu-west-1"
    }
  ]
}
"#;
const AZURE: &str = r#"{
  "changeNumber": 422,
  "cloud": "Public",
  "values": [
    {
      "name": "ActionGroup",
      "id": "ActionGroup",
      "properties": {
        "changeNumber": 50,
        "region": "",
        "regionId": 0,
        "platform": "Azure",
        "systemService": "ActionGroup",
        "addressPrefixes": [
          "192.0.2.8/29",
          "2001:db8:0:1::/122"
        ],
        "networkFeatures": ["API", "NSG"]
      }
    },
    {
      "name": "Empty",
      "id": "Empty",
      "properties": {"changeNumber": 1, "addressPrefixes": []}
    }
  ]
}
"#;
const ORACLE: &str = r#"{
  "last_updated_timestamp": "2026-11-20T18:03:33.741281",
  "regions": [
    {
      "region": "us-phoenix-1",
      "cidrs": [
        {"cidr": "203.0.113.0/25", "tags": ["OCI"]},
        {"cidr": "198.51.100.128/26", "tags": ["OSN", "OBJECT_STORAGE"]}
      ]
    }
  ]
}
"#;
const CLOUDFLARE: &str = r#"{"result":{"ipv4_cidrs":["192.0.2.0/24","198.51.100.0/24"],"ipv6_cidrs":["2001:db8:2400::/48"],"etag":"38f79d050aa027e3be3865e495dcc9bc"},"success":true,"errors":[],"messages":[]}"#;
const FASTLY: &str = r#"{"addresses":["203.0.113.0/24","192.0.2.128/25"],"ipv6_addresses":["2001:db8:4e40::/48"]}"#;
const GITHUB: &str = r#"{
  "verifiable_password_authentication": false,
  "ssh_key_fingerprints": {"SHA256_ECDSA": "p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM"},
  "ssh_keys": ["ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAI"],
  "hooks": ["192.0.2.252/30", "2001:db8:a0a4::/48"],
  "web": ["192.0.2.252/30"],
  "actions": ["198.51.100.4/32"],
  "domains": {"website": ["*.github.com"], "codespaces": ["*.app.github.dev"]}
}
"#;

#[test]
fn every_publisher_s_json_document_holds_its_prefixes_and_no_others() {
    for (name, text, held) in [
        ("googlebot.json", GOOGLEBOT, &["192.0.2.0/27", "2001:db8:4864::/64"][..]),
        ("cloud.json", GOOGLE_CLOUD, &["198.51.100.0/25", "2001:db8:1900::/44"]),
        ("ip-ranges.json", AWS, &["192.0.2.0/26", "2001:db8:5000::/52"]),
        ("ServiceTags_Public.json", AZURE, &["192.0.2.8/29", "2001:db8:0:1::/122"]),
        ("public_ip_ranges.json", ORACLE, &["198.51.100.128/26", "203.0.113.0/25"]),
        ("Cloudflare", CLOUDFLARE, &["192.0.2.0/24", "198.51.100.0/24", "2001:db8:2400::/48"]),
        ("Fastly", FASTLY, &["192.0.2.128/25", "203.0.113.0/24", "2001:db8:4e40::/48"]),
        ("GitHub", GITHUB, &["192.0.2.252/30", "198.51.100.4/32", "2001:db8:a0a4::/48"]),
    ] {
        for text in [text.to_owned(), text.replace('\n', "\r\n"), format!("\u{feff}{text}"), text.replace('\n', " ")] {
            let read: Vec<String> =
                read(&text).unwrap_or_else(|error| panic!("{name}: {error}")).iter().map(ToString::to_string).collect();
            assert_eq!(read, held, "{name}");
        }
    }
}

#[test]
fn a_truncated_or_prefixless_published_document_is_one_error() {
    let documents = [GOOGLEBOT, GOOGLE_CLOUD, AWS, AZURE, ORACLE, CLOUDFLARE, FASTLY, GITHUB];
    let cut = documents
        .iter()
        .flat_map(|text| [text.len() / 3, text.len() / 2, text.trim_end().len() - 1].map(|end| &text[..end]));
    let wrong = [
        GOOGLEBOT.replace("192.0.2.0/27", "192.0.2.0/33"),
        GOOGLEBOT.replace("ipv4Prefix", "otherPrefix"),
        AWS.replace("\"192.0.2.0/26\"", "27"),
        FASTLY.replace("203.0.113.0/24", "all"),
        GOOGLEBOT.to_owned() + GOOGLEBOT,
        GOOGLEBOT.to_owned() + "192.0.2.1\n",
        ORACLE.replace("\"cidrs\"", "\"others\""),
    ];
    for text in cut.map(ToOwned::to_owned).chain(wrong) {
        let error = parse(Path::new("list"), &text).expect_err(&text);
        assert_eq!((error.iter().count(), error.more()), (1, 0), "{text}: {error}");
        assert!(error.to_string().contains("a JSON document"), "{text}: {error}");
        assert!(parse_tolerant(Path::new("list"), &text).is_none(), "{text}");
    }
}
