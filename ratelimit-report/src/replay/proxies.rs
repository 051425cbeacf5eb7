//! Detection of replays that name a proxy instead of its clients. The limiter would count all those clients as one
//! source. Pure.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::snapshot::{TALKER_ADVICE, TALKER_PERCENT, source_text};

/// Minimum number of requests or packets for a warning.
const COUNTED_MIN: u64 = 20;
/// Number of sources that may be the machines of one proxy.
const PROXIES_MAX: usize = 8;
/// Share in percent from which [`PROXIES_MAX`] sources together leave hardly any others.
const PERCENT_OF_A_FEW: u64 = 95;
/// Minimum number of sources for which [`PROXIES_MAX`] of them are few.
const SOURCES_MANY: usize = 3 * PROXIES_MAX;

/// Published address ranges from which content delivery networks contact origin servers:
/// <https://www.cloudflare.com/ips>, <https://api.fastly.com/public-ip-list>. Other networks are detected only by their
/// share.
const DELIVERY: [(&str, &str); 2] = [
    (
        "Cloudflare",
        "173.245.48.0/20 103.21.244.0/22 103.22.200.0/22 103.31.4.0/22 141.101.64.0/18 108.162.192.0/18 \
         190.93.240.0/20 188.114.96.0/20 197.234.240.0/22 198.41.128.0/17 162.158.0.0/15 104.16.0.0/13 104.24.0.0/14 \
         172.64.0.0/13 131.0.72.0/22 2400:cb00::/32 2606:4700::/32 2803:f800::/32 2405:b500::/32 2405:8100::/32 \
         2a06:98c0::/29 2c0f:f248::/32",
    ),
    (
        "Fastly",
        "23.235.32.0/20 43.249.72.0/22 103.244.50.0/24 103.245.222.0/23 103.245.224.0/24 104.156.80.0/20 \
         140.248.64.0/18 140.248.128.0/17 146.75.0.0/17 151.101.0.0/16 157.52.64.0/18 167.82.0.0/17 167.82.128.0/20 \
         167.82.160.0/20 167.82.224.0/20 172.111.64.0/18 185.31.16.0/22 199.27.72.0/21 199.232.0.0/16 2a04:4e40::/32 \
         2a04:4e42::/32",
    ),
];

/// Returns true if the Internet cannot reach the address, so that it belongs to a proxy or container rather than a
/// client.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // 100.64.0.0/10 is used between a provider and its customers, RFC 6598.
            let is_shared = first == 100 && second & 0xc0 == 64;
            v4.is_private() || v4.is_loopback() || v4.is_link_local() || is_shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// Returns a warning if few sources account for most of the traffic. `sources` has the amount from each source, and
/// `what` names its unit. Returns none if clients are told apart.
pub(super) fn warning(sources: impl Iterator<Item = (IpNet, u64)>, what: &str) -> Option<String> {
    let mut all: Vec<(Reverse<u64>, IpNet)> = sources.map(|(source, count)| (Reverse(count), source)).collect();
    let total: u64 = all.iter().map(|(Reverse(count), _)| count).sum();
    if total < COUNTED_MIN {
        return None;
    }
    all.sort_unstable();
    let percent = |count: u64| u128::from(count) * 100 / u128::from(total);
    let share = |is_one: &dyn Fn(IpAddr) -> bool| {
        let those = all.iter().filter(|(_, source)| is_one(source.addr()));
        let count = those.clone().map(|(Reverse(count), _)| count).sum();
        Some((percent(count), those.map(|(_, source)| source_text(*source)).next()?))
    };
    let is_most = |(percent, _): &(u128, String)| *percent > u128::from(TALKER_PERCENT);
    let (Reverse(most), first) = all.first()?;
    let networks = delivery();
    let network = |address: IpAddr| {
        let of = networks.iter().find(|(network, _)| network.contains(&address));
        of.map(|(_, name)| *name)
    };
    let kind = |address: IpAddr| match address {
        address if is_private(address) => Some("a private address".to_owned()),
        address => network(address).map(|name| format!("an address of {name}")),
    };
    if percent(*most) > u128::from(TALKER_PERCENT) {
        let kind = kind(first.addr()).map_or_else(String::new, |kind| format!(", {kind}"));
        return Some(format!(
            "{} % of the {what} come from {}{kind}; {TALKER_ADVICE}",
            percent(*most),
            source_text(*first)
        ));
    }
    if let Some((percent, first)) = share(&is_private).filter(is_most) {
        return Some(format!(
            "{percent} % of the {what} come from private addresses, the most from {first}; {TALKER_ADVICE}"
        ));
    }
    for (name, _) in DELIVERY {
        if let Some((percent, first)) = share(&|address| network(address) == Some(name)).filter(is_most) {
            return Some(format!("{percent} % of the {what} come from {name}, the most from {first}; {TALKER_ADVICE}"));
        }
    }
    let few = all.iter().take(PROXIES_MAX).map(|(Reverse(count), _)| count).sum();
    (all.len() >= SOURCES_MANY && percent(few) >= u128::from(PERCENT_OF_A_FEW)).then(|| {
        format!(
            "{} % of the {what} come from {PROXIES_MAX} of {} sources, the most from {}; {TALKER_ADVICE}",
            percent(few),
            all.len(),
            source_text(*first)
        )
    })
}

/// Returns every network of [`DELIVERY`] with its owner.
fn delivery() -> Vec<(IpNet, &'static str)> {
    let of = |(name, networks): &(&'static str, &str)| {
        let networks = networks.split(' ').filter_map(|network| network.parse().ok());
        networks.map(|network| (network, *name)).collect::<Vec<_>>()
    };
    DELIVERY.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(sources: &[(&str, u64)]) -> String {
        let sources = sources.iter().map(|(source, count)| (IpNet::from(source.parse::<IpAddr>().unwrap()), *count));
        warning(sources, "requests").unwrap_or_default()
    }

    #[test]
    fn a_proxy_is_told_from_clients() {
        let clients: Vec<String> = (0..40).map(|at| format!("198.51.100.{at}")).collect();
        let with = |more: &[(&'static str, u64)], each: u64| -> String {
            let clients = clients.iter().map(|client| (client.as_str(), each));
            said(&clients.chain(more.iter().copied()).collect::<Vec<_>>())
        };
        for (of, part) in [
            (with(&[("203.0.113.9", 900)], 1), "95 % of the requests come from 203.0.113.9;"),
            (with(&[("10.0.0.1", 900)], 1), "95 % of the requests come from 10.0.0.1, a private address;"),
            (with(&[("172.70.1.1", 900)], 1), "95 % of the requests come from 172.70.1.1, an address of Cloudflare;"),
            (
                with(&[("10.0.0.1", 300), ("fd00::1", 200)], 1),
                "92 % of the requests come from private addresses, the most from 10.0.0.1",
            ),
            (with(&[("151.101.1.1", 300), ("2a04:4e42::1", 200)], 1), "come from Fastly, the most from 151.101.1.1"),
            (with(&[("203.0.113.8", 1000), ("203.0.113.9", 900)], 1), "98 % of the requests come from 8 of 42 sources"),
        ] {
            assert!(of.contains(part), "{of}");
        }
        for of in [with(&[], 10), with(&[("10.0.0.1", 300)], 10), said(&[("10.0.0.1", 19)]), said(&[])] {
            assert_eq!(of, "");
        }
    }

    #[test]
    fn every_network_of_delivery_is_one() {
        for network in DELIVERY.iter().flat_map(|(_, networks)| networks.split(' ')) {
            let net: IpNet = network.parse().expect(network);
            assert_eq!(net, net.trunc(), "{network}");
        }
    }
}
