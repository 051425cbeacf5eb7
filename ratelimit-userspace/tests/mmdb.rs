//! Tests of lists from generated databases in MaxMind's format: the function against the networks of the database, and
//! `lists from-mmdb` through the real binary.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use ipnet::IpNet;
use proptest::prelude::*;
use ratelimit_common::layout::PREFIXES_MAX;
use ratelimit_policy::config::lists;
use ratelimit_userspace::mmdb::{Listed, MmdbError, Selector, list};

use self::writer::{Form, Value, asn, country, database, raw, text};

#[path = "mmdb/writer.rs"]
mod writer;

const FORM: Form = Form { record_size: 28, ip_version: 6, aliases: true };

fn selectors(asns: &[u32], countries: &[&str]) -> Vec<Selector> {
    let countries = countries.iter().map(|letters| Selector::country(letters).unwrap());
    asns.iter().map(|number| Selector::Asn(*number)).chain(countries).collect()
}

fn net(of: &str) -> IpNet {
    of.parse().unwrap()
}

fn found(bytes: &[u8], asked: &[Selector]) -> Result<Vec<String>, String> {
    let listed = list(bytes, asked, || false).map_err(|error| error.to_string())?;
    Ok(listed.prefixes.iter().map(ToString::to_string).collect())
}

fn of(kind: &str, networks: &[(&str, Value)]) -> Vec<u8> {
    let networks: Vec<_> = networks.iter().map(|(of, value)| (net(of), value.clone())).collect();
    database(kind, FORM, &networks)
}

#[test]
fn networks_of_all_that_is_asked_for_are_joined_and_aliases_are_not_doubled() {
    let bytes = of(
        "Test-ASN",
        &[
            ("192.0.2.0/25", asn(64_496)),
            ("192.0.2.128/25", asn(64_497)),
            ("198.51.100.0/24", asn(64_498)),
            ("198.51.100.7/32", asn(64_496)),
            ("2001:db8::/33", asn(64_496)),
            ("2001:db8:8000::/33", asn(64_496)),
        ],
    );
    assert_eq!(
        found(&bytes, &selectors(&[64_496, 64_497], &[])).unwrap(),
        ["192.0.2.0/24", "198.51.100.7/32", "2001:db8::/32"]
    );
    assert_eq!(found(&bytes, &selectors(&[64_497], &[])).unwrap(), ["192.0.2.128/25"]);
    let listed = list(&bytes, &selectors(&[64_497, 64_511], &[]), || false).unwrap();
    assert_eq!(listed.missing, selectors(&[64_511], &[]));
    let said = text_of(&listed, &selectors(&[64_497, 64_511], &[]));
    assert_eq!(
        said,
        "# AS64497, AS64511, out of Test-ASN of 2026-11-01, by `ratelimitd lists from-mmdb`: changes by hand are \
         overwritten.\n# NOT IN THE DATABASE: AS64511\n192.0.2.128/25\n"
    );
}

fn text_of(listed: &Listed, asked: &[Selector]) -> String {
    ratelimit_userspace::mmdb::text(listed, asked)
}

#[test]
fn records_of_other_makers_are_read_too() {
    let map = |of: &[(&'static str, Value)]| Value::Map(of.to_vec());
    let bytes = of(
        "Other",
        &[
            ("192.0.2.1/32", map(&[("asn", text("AS64496")), ("country_code", text("de"))])),
            ("192.0.2.2/32", map(&[("asn", Value::U64(64_496)), ("country", text("DE"))])),
            ("192.0.2.3/32", map(&[("traits", map(&[("autonomous_system_number", Value::U32(64_496))]))])),
            // Values of another form are ignored.
            ("192.0.2.4/32", map(&[("asn", Value::List(vec![Value::U32(64_496)])), ("country", Value::U16(7))])),
            ("192.0.2.5/32", map(&[("asn", text("64496x")), ("country", text("DEU")), ("traits", text("x"))])),
            ("192.0.2.6/32", map(&[("country", map(&[("code", text("DE"))]))])),
        ],
    );
    assert_eq!(found(&bytes, &selectors(&[64_496], &[])).unwrap(), ["192.0.2.1/32", "192.0.2.2/31"]);
    assert_eq!(found(&bytes, &selectors(&[], &["DE"])).unwrap(), ["192.0.2.1/32", "192.0.2.2/32"]);
}

#[test]
fn a_database_without_what_is_asked_for_says_so() {
    let asns = of("Test-ASN", &[("192.0.2.0/24", asn(64_496))]);
    let countries = of("Test-Country", &[("192.0.2.0/24", country("DE"))]);
    for (bytes, asked, said) in [
        (&asns, selectors(&[], &["DE"]), "Test-ASN of 2026-11-01 has no countries"),
        (&countries, selectors(&[64_496], &["DE"]), "Test-Country of 2026-11-01 has no autonomous systems"),
        (&asns, selectors(&[64_511], &[]), "Test-ASN of 2026-11-01 has no network of AS64511"),
        (&countries, selectors(&[], &["FR", "IT"]), "Test-Country of 2026-11-01 has no network of FR, IT"),
    ] {
        assert_eq!(found(bytes, &asked).unwrap_err(), said);
    }
}

#[test]
fn a_record_that_all_of_ipv4_shares_with_others_hides_none_of_them() {
    assert_eq!(
        found(&is_record_of_all_ipv4_shared(), &selectors(&[64_496], &[])).unwrap(),
        ["0.0.0.0/0", "::/8", "8000::/2"]
    );
}

fn is_record_of_all_ipv4_shared() -> Vec<u8> {
    // ::/8 and 8000::/2 share one record.
    let (count, mut nodes) = (9, Vec::new());
    let (none, record) = (count, count + 16);
    nodes.push([2, 1]);
    nodes.push([record, none]);
    nodes.extend((2..8).map(|at| [at + 1, none]));
    nodes.push([record, none]);
    raw("T", Form { aliases: false, ..FORM }, &nodes, b"\xe1\x43asn\xc4\x00\x00\xfb\xf0")
}

fn is_damaged(bytes: &[u8], why: &str) {
    let error = found(bytes, &selectors(&[64_496], &[])).unwrap_err();
    assert!(error.starts_with("this is not a complete database") && error.contains(why), "{error}");
}

#[test]
fn a_tree_that_is_none_is_refused_before_it_takes_time() {
    let data = || {
        let mut data = Vec::new();
        data.extend(b"\xe1\x43asn\xc4\x00\x00\xfb\xf0");
        data
    };
    for record_size in [24, 28, 32] {
        let form = Form { record_size, ..FORM };
        // 2^127 paths to one record, or to none.
        for leaf in [128 + 16, 128] {
            let ladder: Vec<[u32; 2]> = (1..128).map(|next| [next, next]).chain([[leaf, leaf]]).collect();
            is_damaged(&raw("T", form, &ladder, &data()), "more leaves than nodes can have");
        }
        is_damaged(&raw("T", form, &[[0, 0]], &data()), "cycle");
        is_damaged(&raw("T", form, &[[1, 17], [0, 17]], &data()), "");
        is_damaged(&raw("T", form, &[[1 << 20, 1 << 20]], &data()), "pointer");
        is_damaged(&raw("T", form, &[], &data()), "node_count");
    }
}

#[test]
fn a_record_that_unfolds_without_end_is_refused() {
    // A pointer to itself; one to a map that contains itself as a value; a map that claims 16 million entries and has
    // none.
    for data in [&b"\x20\x00"[..], b"\xe1\x43asn\x20\x00", b"\xff\xff\xff\xff", b"\xe1\x46traits\x20\x00"] {
        is_damaged(&raw("T", FORM, &[[17, 17]], data), "");
    }
}

#[test]
fn time_that_is_over_ends_it() {
    let bytes = of("T", &[("192.0.2.0/24", asn(64_496))]);
    let error = list(&bytes, &selectors(&[64_496], &[]), || true).unwrap_err();
    assert!(matches!(error, MmdbError::Overdue), "{error}");
}

#[test]
fn lists_hold_as_many_prefixes_as_the_kernel_and_no_more() {
    // Every second address of the first ones, below a chain of nodes that leads there.
    let of = |pairs: u32| {
        let depth = u32::BITS - pairs.ilog2() - 1;
        let chain = (0..depth).map(|at| (at + 1, None));
        let inner: Vec<(u32, Option<u32>)> = chain.collect();
        let count = depth + 2 * pairs - 1;
        let (none, record) = (count, count + 16);
        let mut nodes: Vec<[u32; 2]> = inner.iter().map(|(next, _)| [*next, none]).collect();
        // A heap: node k has 2k and 2k + 1 below it.
        nodes.extend((1..pairs).map(|k| [2 * k, 2 * k + 1].map(|child| depth + child - 1)));
        nodes.extend((0..pairs).map(|_| [record, none]));
        let form = Form { record_size: 32, ip_version: 4, aliases: false };
        raw("T", form, &nodes, b"\xe1\x43asn\xc4\x00\x00\xfb\xf0")
    };
    let asked = selectors(&[64_496], &[]);
    let most = PREFIXES_MAX;
    assert!(most.is_power_of_two());
    assert_eq!(list(&of(most), &asked, || false).unwrap().prefixes.len(), most as usize);
    let error = list(&of(2 * most), &asked, || false).unwrap_err();
    assert!(matches!(error, MmdbError::TooMany), "{error}");
}

#[test]
fn a_name_of_a_database_cannot_write_lines_of_the_list() {
    let bytes = of("x\n0.0.0.0/0\n\u{1b}[31m", &[("192.0.2.0/24", asn(64_496))]);
    let asked = selectors(&[64_496], &[]);
    let said = text_of(&list(&bytes, &asked, || false).unwrap(), &asked);
    assert_eq!(lists::parse(Path::new("list"), &said).unwrap(), [net("192.0.2.0/24")]);
    assert!(!said.contains('\u{1b}'), "{said}");
}

const ASNS: [u32; 4] = [64_496, 64_497, 64_498, 4_200_000_000];
const COUNTRIES: [&str; 3] = ["DE", "FR", "XX"];

fn networks() -> impl Strategy<Value = Vec<(IpNet, usize, usize)>> {
    let near = prop_oneof![Just(0xc000_0200_u32), Just(0xc633_6400), any::<u32>()];
    let v4 = (near, any::<u8>(), 1..=32_u8)
        .prop_map(|(base, low, len)| IpNet::new(Ipv4Addr::from_bits(base ^ u32::from(low)).into(), len));
    let near = prop_oneof![Just(0x2001_0db8_u128 << 96), Just(0x2001_u128 << 112), any::<u128>()];
    let v6 = (near, any::<u8>(), 1..=128_u8)
        .prop_map(|(base, low, len)| IpNet::new(Ipv6Addr::from_bits(base ^ u128::from(low) << 80).into(), len));
    let of = prop_oneof![3 => v4, 2 => v6].prop_map(|of| of.unwrap().trunc());
    proptest::collection::vec((of, 0..ASNS.len(), 0..COUNTRIES.len()), 0..24)
}

/// Returns the number and letters of an address, by the longest network that contains it; the last one of equals.
fn holds(networks: &[(IpNet, usize, usize)], address: IpAddr) -> Option<(usize, usize)> {
    let mut best: Option<(u8, (usize, usize))> = None;
    for (of, asn, country) in networks {
        // An IPv4 address is also an address of ::/96.
        let (in_it, len) = match (of, address) {
            (IpNet::V4(of), IpAddr::V4(address)) => (of.contains(&address), 96 + of.prefix_len()),
            (IpNet::V6(of), IpAddr::V6(address)) => (of.contains(&address), of.prefix_len()),
            (IpNet::V6(of), IpAddr::V4(address)) => {
                (of.contains(&Ipv6Addr::from_bits(address.to_bits().into())), of.prefix_len())
            }
            (IpNet::V4(of), IpAddr::V6(address)) => {
                let low = u32::try_from(address.to_bits());
                (low.is_ok_and(|low| of.contains(&Ipv4Addr::from_bits(low))), 96 + of.prefix_len())
            }
        };
        if in_it && best.is_none_or(|(longest, _)| len >= longest) {
            best = Some((len, (*asn, *country)));
        }
    }
    best.map(|(_, what)| what)
}

fn is_alias_of_ipv4(address: IpAddr) -> bool {
    let of = ["::ffff:0:0/96", "2001::/32", "2002::/16", "64:ff9b::/96"].map(net);
    of.iter().any(|of| of.contains(&address))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Checks the ends of networks and their neighbours, which represent all addresses: nothing changes in between.
    #[test]
    fn the_list_agrees_with_the_networks_for_every_address(
        networks in networks(),
        record_size in prop_oneof![Just(24_u16), Just(28), Just(32)],
        aliases in any::<bool>(),
        is_ipv4 in any::<bool>(),
        asns in proptest::collection::vec(0..ASNS.len(), 0..3),
        countries in proptest::collection::vec(0..COUNTRIES.len(), 0..2),
    ) {
        let form = Form { record_size, ip_version: if is_ipv4 { 4 } else { 6 }, aliases: aliases && !is_ipv4 };
        let networks: Vec<_> = networks.into_iter().filter(|(of, _, _)| !is_ipv4 || of.addr().is_ipv4()).collect();
        let value = |asn: usize, country: usize| Value::Map(vec![
            ("autonomous_system_number", Value::U32(ASNS[asn])),
            ("country", Value::Map(vec![("iso_code", text(COUNTRIES[country]))])),
        ]);
        let written: Vec<_> = networks.iter().map(|(of, asn, country)| (*of, value(*asn, *country))).collect();
        let bytes = database("Test", form, &written);
        let numbers: Vec<u32> = asns.iter().map(|at| ASNS[*at]).collect();
        let letters: Vec<&str> = countries.iter().map(|at| COUNTRIES[*at]).collect();
        let asked = selectors(&numbers, &letters);
        let is_asked = |address: IpAddr| !(aliases && is_alias_of_ipv4(address)) && holds(&networks, address)
            .is_some_and(|(asn, country)| asns.contains(&asn) || countries.contains(&country));
        let mut ends: BTreeSet<IpAddr> = BTreeSet::new();
        for of in networks.iter().map(|(of, _, _)| *of).chain(
            ["::ffff:0:0/96", "2001::/32", "2002::/16", "64:ff9b::/96", "::/96", "0.0.0.0/0"].map(net)
        ) {
            match of {
                IpNet::V4(of) => ends.extend([
                    of.network().to_bits(), of.broadcast().to_bits(),
                    of.network().to_bits().wrapping_sub(1), of.broadcast().to_bits().wrapping_add(1),
                ].map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))),
                IpNet::V6(of) => ends.extend([
                    of.network().to_bits(), of.broadcast().to_bits(),
                    of.network().to_bits().wrapping_sub(1), of.broadcast().to_bits().wrapping_add(1),
                ].map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))),
            }
        }
        // ::/96 is IPv4, as the database has it.
        ends.retain(|address| match address {
            IpAddr::V4(_) => true,
            // Without aliases, that part is IPv4 too, or belongs to a network around it.
            IpAddr::V6(of) if !aliases && is_alias_of_ipv4((*of).into()) => false,
            IpAddr::V6(of) => !is_ipv4 && of.to_bits() > u128::from(u32::MAX),
        });
        let prefixes = match list(&bytes, &asked, || false) {
            Ok(listed) => {
                let said = text_of(&listed, &asked);
                let read = lists::parse(Path::new("list"), &said).unwrap();
                prop_assert_eq!(&read, &listed.prefixes, "the list file holds them");
                let joined = IpNet::aggregate(&listed.prefixes);
                prop_assert_eq!(joined.len(), listed.prefixes.len(), "as few as possible");
                listed.prefixes
            }
            Err(MmdbError::Nothing { .. } | MmdbError::NoAsns(_) | MmdbError::NoCountries(_)) => Vec::new(),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        for address in ends {
            let is_listed = prefixes.iter().any(|of| of.contains(&address));
            prop_assert_eq!(is_listed, is_asked(address), "{} of {:?}", address, prefixes);
        }
    }

    #[test]
    fn arbitrary_bytes_end_without_a_panic(
        networks in networks(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let written: Vec<_> = networks.iter().map(|(of, at, _)| (*of, asn(ASNS[*at]))).collect();
        let mut bytes = database("Test", FORM, &written);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _either = list(&bytes, &selectors(&ASNS, &["DE"]), || false);
        let _either = list(&bytes[bytes.len() / 2..], &selectors(&ASNS, &["DE"]), || false);
    }
}

/// Runs the binary with a umask under which files are readable only by their owner.
fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" lists from-mmdb \"$@\"", env!("CARGO_BIN_EXE_ratelimitd")]);
    command.args(arguments).current_dir(directory).env_clear().env("COLUMNS", "100").output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_list_is_made_whole_or_the_old_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let asns = of("Test-ASN", &[("192.0.2.0/24", asn(64_496)), ("2001:db8::/32", asn(64_496))]);
    fs::write(at("asn.mmdb"), &asns).unwrap();
    fs::write(at("cut.mmdb"), &asns[..asns.len() / 2]).unwrap();
    fs::write(at("packed.mmdb"), [&[0x1f, 0x8b, 8][..], &asns].concat()).unwrap();
    let made = ["asn.mmdb", "--asn", "AS64496", "--asn", "64511", "-o", "list.txt"];
    let (code, stdout, stderr) = said(&run(directory.path(), &made));
    assert_eq!((code, stderr.as_str()), (Some(0), "warning: asn.mmdb: no network belongs to AS64511\n"));
    assert_eq!(stdout, "list.txt: 1 prefixes of IPv4 and 1 of IPv6, from Test-ASN of 2026-11-01\n");
    let list = fs::read_to_string(at("list.txt")).unwrap();
    assert_eq!(fs::metadata(at("list.txt")).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(lists::parse(Path::new("list"), &list).unwrap(), ["192.0.2.0/24", "2001:db8::/32"].map(net));

    for (arguments, code_then, what) in [
        (&["asn.mmdb", "--asn", "64511"][..], 2, "Test-ASN of 2026-11-01 has no network of AS64511"),
        (&["asn.mmdb", "--country", "XX"], 78, "Test-ASN of 2026-11-01 has no countries"),
        (&["cut.mmdb", "--asn", "64496"], 78, "not a complete database"),
        (&["packed.mmdb", "--asn", "64496"], 78, "the database is packed"),
        (&["none.mmdb", "--asn", "64496"], 78, "cannot read the database"),
        (&["/dev/zero", "--asn", "64496"], 78, "it is a device"),
        (&["asn.mmdb", "--asn", "x"], 2, "write the number of an autonomous system"),
        (&["asn.mmdb", "--country", "DEU"], 2, "write the two letters of a country"),
        (&["asn.mmdb"], 2, "--asn"),
    ] {
        let (code, stdout, stderr) = said(&run(directory.path(), &[arguments, &["-o", "list.txt"]].concat()));
        assert_eq!((code, stdout.as_str()), (Some(code_then), ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(what) && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
        assert_eq!(fs::read_to_string(at("list.txt")).unwrap(), list, "{arguments:?}");
    }
    let (code, _, stderr) = said(&run(directory.path(), &["asn.mmdb", "--asn", "64496", "-o", "./asn.mmdb"]));
    assert!(code == Some(2) && stderr.contains("would replace the database"), "{stderr}");
    assert_eq!(fs::read(at("asn.mmdb")).unwrap(), asns);
    let (code, _, stderr) = said(&run(directory.path(), &["asn.mmdb", "--asn", "64496", "-o", "."]));
    assert!(code == Some(78) && stderr.contains("no regular file"), "{stderr}");
    let (code, _, stderr) = said(&run(directory.path(), &["asn.mmdb", "--asn", "64496", "-o", "none/list.txt"]));
    assert!(code == Some(78) && stderr.contains("cannot write the list file"), "{stderr}");
    let names: BTreeSet<_> = fs::read_dir(directory.path()).unwrap().map(|of| of.unwrap().file_name()).collect();
    let names: Vec<_> = names.iter().map(|name| name.to_str().unwrap()).collect();
    assert_eq!(names, ["asn.mmdb", "cut.mmdb", "list.txt", "packed.mmdb"], "nothing is left beside");
}

#[test]
fn a_list_that_has_everybody_is_made_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let halves = [("0.0.0.0/1", country("DE")), ("128.0.0.0/1", country("DE"))];
    fs::write(directory.path().join("c.mmdb"), of("Test-Country", &halves)).unwrap();
    let (code, _, stderr) = said(&run(directory.path(), &["c.mmdb", "--country", "DE"]));
    let warning = "warning: c.mmdb: the list has 0.0.0.0/0, which is every address: to deny it locks out everybody\n";
    assert_eq!((code, stderr.as_str()), (Some(0), warning));
}

#[test]
fn without_a_file_or_with_a_dash_the_list_goes_to_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("c.mmdb"), of("Test-Country", &[("192.0.2.0/24", country("DE"))])).unwrap();
    let expected = "# DE, out of Test-Country of 2026-11-01, by `ratelimitd lists from-mmdb`: changes by hand are \
                    overwritten.\n192.0.2.0/24\n";
    for more in [&[][..], &["-o", "-"], &["--out", "-"]] {
        let output = said(&run(directory.path(), &[&["c.mmdb", "--country", "de"][..], more].concat()));
        assert_eq!(output, (Some(0), expected.to_owned(), String::new()));
    }
    let (code, _, stderr) = said(&run(directory.path(), &["c.mmdb"]));
    assert!(code == Some(2) && stderr.contains("--asn or --country is missing"), "{stderr}");
    let json = ["c.mmdb", "--country", "DE", "--country", "FR", "-o", "l", "--json", "-q"];
    let (code, stdout, stderr) = said(&run(directory.path(), &json));
    let made: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let expected = serde_json::json!({ "schema": 1, "file": "l", "database": "Test-Country",
        "built": "2026-11-01T00:00:00Z", "ipv4_prefixes": 1, "ipv6_prefixes": 0, "not_found": ["FR"] });
    assert_eq!((code, made, stderr.as_str()), (Some(0), expected, ""));
}
