//! Tests that no address is left in any spelling and context, and that other text stays readable.

use proptest::prelude::*;

use super::*;

fn masks() -> Masks {
    Masks::with_key([7; 32], Some("web1"))
}

/// Handwritten texts with the part of their address that must be gone.
const NASTY: [(&str, &str); 79] = [
    ("192.0.2.77", "0.2.77"),
    ("src=192.0.2.77,", "0.2.77"),
    ("192.0.2.77:443", "0.2.77"),
    ("192.0.2.77/24", "0.2.77"),
    ("(192.0.2.77)", "0.2.77"),
    ("\"192.0.2.77\"", "0.2.77"),
    ("192.0.2.77.", "0.2.77"),
    ("x192.0.2.77y", "0.2.77"),
    ("1192.0.2.77", "0.2.77"),
    ("192.000.002.077", "002.077"),
    ("192.0.2.77-192.0.2.99", "0.2.99"),
    ("192.0.2.77.in-addr.arpa", "0.2.77"),
    ("ec2-192-0-2-77.compute.example", "0-2-77"),
    ("host_192_0_2_77", "0_2_77"),
    ("192[.]0[.]2[.]77", "2[.]77"),
    ("192(.)0(.)2(.)77", "2(.)77"),
    ("192[dot]0[dot]2[dot]77", "2[dot]77"),
    ("^192\\.0\\.2\\.77$", "2\\.77"),
    ("ip=192%2E0%2e2%2E77", "2%2E77"),
    ("ip=192%2E0%2E2%2E77", "2%2E77"),
    ("é192.0.2.77é", "0.2.77"),
    ("2001:db8::77", "db8"),
    ("2001:DB8::77", "DB8"),
    ("2001:0db8:0000:0000:0000:0000:0000:0077", "0db8"),
    ("[2001:db8::77]:443", "db8"),
    ("2001:db8::77%eth0", "db8"),
    ("fe80::77%eth0.100", "fe80"),
    ("2001:db8::/32", "db8"),
    ("2001:db8:1:2::/64,", "db8"),
    ("src:2001:db8::77.", "db8"),
    ("x2001:db8::77", "db8"),
    ("2001:db8::77z", "db8"),
    ("http://[2001:db8::77%25eth0]/", "db8"),
    ("ip=2001%3Adb8%3a%3A77&x", "db8"),
    ("::ffff:192.0.2.77", "0.2.77"),
    ("::ffff:c000:24d", "c000"),
    ("64:ff9b::192.0.2.77", "0.2.77"),
    ("2001:db8:77::", "db8"),
    ("abcd::77", "abcd"),
    ("7.7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa", "8.b.d"),
    ("link/ether 02:00:5e:10:00:77 brd", "5e:10"),
    ("02-00-5E-10-00-77", "5E-10"),
    ("0200.5e10.0077", "5e10"),
    ("0200.5E10.0077,", "5E10"),
    ("0200-5e10-0077", "5e10"),
    ("0200:5e10:0077", "5e10"),
    ("0200.5eff.fe10.0077", "5eff"),
    ("02005e100077", "5e10"),
    ("mac=02005E100077;", "5E10"),
    ("x020000000077", "0077"),
    ("0x02005e100077", "5e10"),
    ("02.00.5e.10.00.77", "5e.10"),
    ("02_00_5e_10_00_77", "5e_10"),
    ("02 00 5e 10 00 77", "5e 10"),
    ("2:0:5e:10:0:77", "5e:10"),
    ("80:00:02:08:fe:80:00:00:00:00:00:00:02:00:5e:10:00:77", "5e:10"),
    ("2001[:]db8[:]abcd[:][:]77", "db8"),
    ("2001(:)db8(:)(:)77", "db8"),
    ("2001\\:db8\\:\\:77", "db8"),
    ("2001%253Adb8%253A%253A77", "db8"),
    ("[:][:]ffff[:]192[.]0[.]2[.]77", "2[.]77"),
    ("2001[colon]db8[colon][colon]77", "db8"),
    ("2001-db8--77.ipv6-literal.net", "db8"),
    ("2001-db8-0-0-0-0-0-77", "db8"),
    ("20010db8000000000000000000000077", "0db8"),
    ("ec2-203-0-113-84.compute.amazonaws.com", "0-113"),
    ("ec2-203-0-113-84.compute.amazonaws.com", "-84"),
    ("a1_192_0_2_77", "_77"),
    ("host-7-192-0-2-77.example", "-77"),
    ("1.3.6.1.2.1.4.192.0.2.77", "2.77"),
    ("0300.0000.0002.0115", "0115"),
    ("0xc0.0x0.0x02.0x4D", "0x4D"),
    ("0xC000024D", "24D"),
    ("192.0[.]2[dot]77", "2[dot]77"),
    ("192 dot 0 dot 2 dot 77", "2 dot 77"),
    ("192․0․2․77", "2․77"),
    ("2001_db8__77", "db8"),
    ("8.b.d.0.1.0.0.2.ip6.arpa", "8.b.d"),
    ("2.0.192.in-addr.arpa", "2.0.192"),
];

#[test]
fn no_address_of_a_list_of_nasty_spellings_is_left() {
    for (text, must_go) in NASTY {
        let masked = masks().mask(text);
        assert!(text.contains(must_go) && !masked.contains(must_go) && masked.contains('<'), "{text} -> {masked}");
        assert_eq!(masks().mask(&masked), masked, "masks are not masked");
    }
}

#[test]
fn text_that_is_no_address_stays_as_do_loopback_and_unspecified_ones() {
    for text in [
        "127.0.0.1:9464 ::1 [::1]:80 0.0.0.0/0 ::/0 255.255.255.255",
        "2026-11-25T10:04:11Z 10:04:11.123 2026-11-25-10",
        "ratelimit_daemon::engine std::fade::decade crate::decide",
        "Linux 6.12.0-18-amd64, 1.95.0, 3/5m, 80,443, 8000-8100",
        "eth0.100 x: y:: z",
        "1000/5m connections on ports 80,443",
        "web10 xweb1",
        "123456789012 bytes, 4096 8192 1048576, 250b832a, sha256",
        "2026-1125, 10-11-12, a-b--c, --all --by x",
        "10 20 30 40 50 60 70",
    ] {
        assert_eq!(masks().mask(text), text);
    }
    assert_eq!(Masks::none().mask("192.0.2.1 web1"), "192.0.2.1 web1");
}

#[test]
fn one_address_has_one_mask_however_it_is_written_and_another_report_another() {
    let of = |text: &str| masks().mask(text);
    let one = of("2001:db8::77");
    for other in ["2001:DB8::77", "2001:0db8:0:0:0:0:0:77", "2001%3adb8%3a%3a77", "2001:db8::0.0.0.119"] {
        assert_eq!(of(other), one, "{other}");
    }
    assert_eq!(of("::ffff:192.0.2.77"), of("192.0.2.77"));
    assert_eq!(of("192-0-2-77"), of("192.0.2.77"));
    for other in ["0300.0.2.0115", "0xc0.0.2.77", "0xc000024d", "192[.]0[.]2[.]77", "192.0[dot]2.77"] {
        assert_eq!(of(other), of("192.0.2.77"), "{other}");
    }
    assert_eq!(of("ec2-192-0-2-77.compute"), format!("ec2-{}.compute", of("192.0.2.77")));
    for other in ["2001[:]db8[:][:]77", "2001-db8--77", "20010db8000000000000000000000077"] {
        assert_eq!(of(other), one, "{other}");
    }
    let hardware = of("02:00:5e:10:00:77");
    for other in ["0200.5e10.0077", "02005E100077", "02-00-5e-10-00-77", "2:0:5e:10:0:77", "02 00 5e 10 00 77"] {
        assert_eq!(of(other), hardware, "{other}");
    }
    assert_ne!(of("192.0.2.77"), of("192.0.2.78"));
    let fresh = || Masks::new(None).unwrap().mask("192.0.2.77");
    assert_ne!(fresh(), fresh());
    assert!(of("[2001:db8::77]:443/64%eth0").ends_with(">]:443/64%eth0"));
}

#[test]
fn the_hosts_own_name_and_names_of_urls_are_masked() {
    assert_eq!(masks().mask("web1 WEB1. (web1)"), "<host> <host>. (<host>)");
    let masked = masks().mask("rediss://store.example.net:6379 redis://localhost:1 redis://<secret>@kv.example/0");
    assert!(!masked.contains("store.example") && !masked.contains("kv.example"), "{masked}");
    assert!(masked.contains("localhost:1") && masked.contains(">:6379"), "{masked}");
}

/// Returns all parts of a text that parse as an address, found independently of the masks.
fn left(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let words = text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty());
    let parses = |word: &&str| {
        let word = word.trim_matches('.');
        let address = word.parse::<IpAddr>().or_else(|_| word.trim_end_matches(':').parse());
        address.is_ok_and(|address: IpAddr| {
            let address = address.to_canonical();
            !address.is_loopback() && !address.is_unspecified() && address != IpAddr::V4(Ipv4Addr::BROADCAST)
        })
    };
    words.filter(parses).map(str::to_owned).collect()
}

fn spellings(address: u128, kind: usize) -> String {
    let v6 = Ipv6Addr::from(address);
    #[expect(clippy::cast_possible_truncation, reason = "an address of the other family is made of the last bits")]
    let v4 = Ipv4Addr::from(address as u32);
    match kind {
        0 => v4.to_string(),
        1 => v6.to_string(),
        2 => v6.to_string().to_uppercase(),
        3 => v6.segments().map(|of| format!("{of:04x}")).join(":"),
        4 => v4.to_ipv6_mapped().to_string(),
        5 => format!("[{v6}]:443"),
        6 => format!("{v6}/64"),
        _ => format!("{v4}/24"),
    }
}

proptest! {
    #[test]
    fn no_address_is_left_in_any_spelling_beside_anything(
        address in any::<u128>(),
        kind in 0_usize..8,
        before in "([ \\[(\"=,>@|]|\n|src=|from |é)?",
        after in "([ \\])\",.;<|]|\n|é|: |, )?",
    ) {
        let text = format!("{before}{}{after}", spellings(address, kind));
        let masked = masks().mask(&text);
        prop_assert!(left(&masked).is_empty(), "{text} -> {masked}");
        prop_assert!(masked.contains('<') || left(&text).is_empty(), "{text} -> {masked}");
    }

    // The generated texts have no letters, as letters of code paths stay.
    #[test]
    fn no_text_panics_and_none_has_an_address_left(text in "[0-9:.%\\[\\] /-]{0,60}") {
        let masked = masks().mask(&text);
        prop_assert!(left(&masked).is_empty(), "{text} -> {masked}");
    }

    #[test]
    fn any_text_is_masked_without_a_panic(text in "\\PC{0,60}") {
        let _masked = masks().mask(&text);
    }
}
