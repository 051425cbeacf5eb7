//! Tests of the bounds on a deny list's coverage and growth.

use super::super::bounds::{Covered, ListBounds, parse_growth, parse_share};
use super::*;

fn nets(texts: impl IntoIterator<Item = String>) -> Vec<IpNet> {
    texts.into_iter().map(|text| text.parse().unwrap()).collect()
}

fn objection(now: &[IpNet], before: Option<&[IpNet]>) -> Option<String> {
    ListBounds::default().objection(now, before)
}

#[test]
fn a_list_that_covers_more_than_its_share_is_refused_and_overlaps_count_once() {
    let of_eights = |count: u8| nets((1..=count).map(|octet| format!("{octet}.0.0.0/8")));
    assert_eq!(objection(&of_eights(11), None), None, "11 of 224");
    let why = objection(&of_eights(12), None).unwrap();
    assert!(why.starts_with("it covers 5.4 % of IPv4, and 5 % is the most"), "{why}");
    assert!(objection(&of_eights(223), None).unwrap().contains("99.6 %"));
    let inner = nets((0..=255).map(|octet| format!("1.{octet}.0.0/16")));
    assert_eq!(objection(&[of_eights(11), inner].concat(), None), None, "each address counts once");
    let multicast = nets((224..=255).map(|octet| format!("{octet}.0.0.0/8")));
    assert_eq!(objection(&multicast, None), None, "no host is there");
    let of_v6 = |count: u32| nets((0..count).map(|at| format!("{:x}::/16", 0x2000 + at)));
    assert_eq!(objection(&of_v6(409), None), None, "409 of 8192");
    assert!(objection(&of_v6(410), None).unwrap().contains("5.1 % of IPv6"));
    assert!(objection(&of_v6(8192), None).unwrap().contains("100.0 % of IPv6"));
    let off = ListBounds { share: None, growth: None };
    assert_eq!(off.objection(&of_v6(8192), Some(&of_v6(1))), None);
}

#[test]
fn a_list_that_grows_too_fast_is_refused_and_a_tiny_one_may_grow() {
    let sixteens = |count: u32| nets((0..count).map(|at| format!("11.{at}.0.0/16")));
    let one = |text: &str| nets([text.to_owned()]);
    assert_eq!(objection(&sixteens(20), Some(&sixteens(10))), None);
    let why = objection(&sixteens(21), Some(&sixteens(10))).unwrap();
    let said = "1376256 addresses of IPv4 where it covered 655360, and 2 times as many are the most";
    assert!(why.contains(said), "{why}");
    assert_eq!(objection(&sixteens(1), Some(&one("192.0.2.1/32"))), None, "as many as the floor");
    assert!(objection(&sixteens(2), Some(&one("192.0.2.1/32"))).is_some());
    assert_eq!(objection(&sixteens(100), Some(&[])), None, "the first version is no growth");
    assert_eq!(objection(&sixteens(100), Some(&one("0.0.0.0/32"))), None, "nor is it after a placeholder");
    assert!(objection(&one("2a00::/31"), Some(&sixteens(1))).is_some(), "a family that was not in it");
    assert_eq!(objection(&one("2a00::/32"), Some(&sixteens(1))), None);
    let faster = ListBounds { growth: Some(3), ..ListBounds::default() };
    assert_eq!(faster.objection(&sixteens(30), Some(&sixteens(10))), None);
}

#[test]
fn bounds_are_read_from_their_keys() {
    assert_eq!((parse_share("5%"), parse_share("100%"), parse_share("off")), (Ok(Some(5)), Ok(Some(100)), Ok(None)));
    let growth = (parse_growth("2x"), parse_growth("1000x"), parse_growth("off"));
    assert_eq!(growth, (Ok(Some(2)), Ok(Some(1000)), Ok(None)));
    for bad in ["", "5", "0%", "101%", "x%", "5 %"] {
        assert!(parse_share(bad).is_err(), "{bad}");
    }
    for bad in ["", "2", "1x", "1001x", "x"] {
        assert!(parse_growth(bad).is_err(), "{bad}");
    }
    let of = |top: &str| {
        let text = format!("interfaces = [\"eth0\"]\n{top}\n[rule]\nlimits = [\"1/1s\"]\n[safety]\n");
        let text = text + "deny_list_share = \"9%\"\ndeny_list_growth = \"off\"\n";
        crate::config::file::parse(Path::new("r.toml"), &text, |_| Err("none".into())).unwrap()
    };
    assert_eq!(of("").list_bounds, ListBounds { share: Some(9), growth: None });
    assert_eq!(of("deny_everyone = true").list_bounds, ListBounds { share: None, growth: None });
}

proptest! {
    #[test]
    fn covered_addresses_are_those_of_the_joined_prefixes(
        parts in prop::collection::vec((0x0100_0000..=u32::MAX, 8..=32_u8), 0..40),
    ) {
        let net = |(bits, length): &(u32, u8)| IpNet::new(std::net::Ipv4Addr::from_bits(*bits).into(), *length);
        let nets: Vec<IpNet> = parts.iter().map(|part| net(part).unwrap().trunc()).collect();
        // An independent computation: ipnet joins the prefixes, then the unicast ones are summed.
        let unicast = |net: &IpNet| match net {
            IpNet::V4(of) if of.addr().octets()[0] < 224 => Some(1_u128 << (32 - of.prefix_len())),
            IpNet::V4(_) | IpNet::V6(_) => None,
        };
        let whole: u128 = IpNet::aggregate(&nets).iter().filter_map(unicast).sum();
        prop_assert_eq!(Covered::of(&nets), Covered { v4: whole, v6: 0 });
    }
}
