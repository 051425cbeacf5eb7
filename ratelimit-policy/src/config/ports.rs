//! Lists of ports: `80,443`, `8000-8100`, `53/udp`, `443/tcp`, `ssh`, `all`. Pure.

use std::fmt;

use ratelimit_common::layout::QUIC_PORTS_MAX;

use super::port;
use super::syntax::{Scanner, SyntaxError, items, near_miss};
use crate::desired::{Ports, Protocol, without};

const HELP: &str = "ports are 80,443 (TCP and UDP), ssh, 8000-8100, 53/udp, or all";

/// Range of all ports.
const EVERY: (u16, u16) = (0, u16::MAX);

/// Parses a list of ports.
pub fn parse(text: &str) -> Result<Ports, SyntaxError> {
    let mut ports = Ports::default();
    for item in items(text) {
        let (start, item) = item.map_err(|error| error.with_help(HELP))?;
        parse_one(item, &mut ports).map_err(|error| error.shifted(start))?;
    }
    Ok(joined([ports]))
}

/// Returns the union of several port sets.
pub(super) fn joined(all: impl IntoIterator<Item = Ports>) -> Ports {
    let mut joined = Ports::default();
    for ports in all {
        joined.tcp.extend(ports.tcp);
        joined.udp.extend(ports.udp);
        joined.other_protocols |= ports.other_protocols;
    }
    Ports { tcp: merged(joined.tcp), udp: merged(joined.udp), ..joined }
}

/// Parses a list of UDP ports that speak QUIC, and appends them to `ports`. Fails for a port that the rule does not
/// protect.
pub(super) fn parse_quic(text: &str, protected: &Ports, ports: &mut Vec<u16>) -> Result<(), SyntaxError> {
    const HELP: &str = "these are UDP ports, as in 443,8443, or none";
    if text == "none" {
        return Ok(());
    }
    for item in items(text) {
        let (start, item) = item.map_err(|error| error.with_help(HELP))?;
        let mut scanner = Scanner::new(item);
        let port = parse_port(&mut scanner).map_err(|error| error.shifted(start))?;
        let span = start..start + item.len();
        if !scanner.is_done() {
            return Err(SyntaxError::new(span, format!("`{item}` is not one port")).with_help(HELP));
        }
        if !protected.holds(Protocol::Udp, port) {
            let problem = format!("the rule does not protect UDP port {port}");
            return Err(SyntaxError::new(span, problem).with_help(format!("its ports are {protected}")));
        }
        ports.push(port);
    }
    Ok(())
}

/// Returns the error for more than [`QUIC_PORTS_MAX`] QUIC ports.
pub(super) fn too_many_quic(text: &str) -> SyntaxError {
    let problem = format!("there are more than {QUIC_PORTS_MAX} ports that speak QUIC");
    SyntaxError::new(0..text.len(), problem).with_help("leave some out: there each datagram is a request")
}

fn parse_one(text: &str, ports: &mut Ports) -> Result<(), SyntaxError> {
    if text == "all" {
        ports.tcp.push(EVERY);
        ports.udp.push(EVERY);
        ports.other_protocols = true;
        return Ok(());
    }
    let mut scanner = Scanner::new(text);
    let first = parse_port(&mut scanner)?;
    let last = if scanner.take('-') { parse_port(&mut scanner)? } else { first };
    if last < first {
        return Err(SyntaxError::new(scanner.span_from(0), "the range ends before it begins")
            .with_help(format!("did you mean {last}-{first}?")));
    }
    let range = (first, last);
    if scanner.is_done() {
        ports.tcp.push(range);
        ports.udp.push(range);
        return Ok(());
    }
    if !scanner.take('/') {
        let next = scanner.rest().chars().next().unwrap_or(' ');
        return Err(
            SyntaxError::new(scanner.next_span(), format!("`{next}` does not belong in a port")).with_help(HELP)
        );
    }
    let protocol_at = scanner.at();
    match scanner.rest() {
        "tcp" => ports.tcp.push(range),
        "udp" => ports.udp.push(range),
        other => {
            let problem = if other.is_empty() {
                "the protocol is missing".to_owned()
            } else {
                format!("`{other}` is not a protocol with ports")
            };
            let help = near_miss(other, ["tcp", "udp"]).map_or_else(
                || "the protocols are tcp and udp; without one, both".to_owned(),
                |meant| format!("did you mean `{meant}`?"),
            );
            return Err(SyntaxError::new(protocol_at..text.len(), problem).with_help(help));
        }
    }
    Ok(())
}

fn parse_port(scanner: &mut Scanner<'_>) -> Result<u16, SyntaxError> {
    let start = scanner.at();
    let digits = scanner.take_while(|c| c.is_ascii_digit());
    if digits.is_empty() {
        let word = scanner.take_while(|c| !c.is_whitespace() && c != '/');
        let span = scanner.span_from(start);
        if let Some(port) = port::named(word) {
            return Ok(port);
        }
        let problem =
            if word.is_empty() { "the port is missing".to_owned() } else { format!("`{word}` is not a port") };
        let meant = match word {
            "any" | "*" | "ALL" => Some("did you mean `all`?".to_owned()),
            _ => port::near(word).map(|(name, port)| format!("did you mean `{name}` ({port})? {HELP}")),
        };
        return Err(SyntaxError::new(span, problem).with_help_if(meant.or(Some(HELP.into()))));
    }
    match digits.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(SyntaxError::new(scanner.span_from(start), format!("{digits} is not a port"))
            .with_help("ports are 1 to 65535")),
    }
}

/// Sorts ranges and joins those that overlap or touch.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

impl fmt::Display for Ports {
    /// Writes the list in the form that [`parse`] reads, ordered by port: `53/udp,80,443`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.other_protocols && self.tcp == [EVERY] && self.udp == [EVERY] {
            return f.write_str("all");
        }
        let (tcp, udp) = (without(&self.tcp, &self.udp), without(&self.udp, &self.tcp));
        let both = without(&self.tcp, &tcp).into_iter().map(|range| (range, ""));
        let either = tcp.into_iter().map(|range| (range, "/tcp")).chain(udp.into_iter().map(|range| (range, "/udp")));
        let mut parts: Vec<((u16, u16), &str)> = both.chain(either).collect();
        parts.sort_unstable();
        for (position, ((first, last), protocol)) in parts.into_iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}{protocol}")?;
            } else {
                write!(f, "{comma}{first}-{last}{protocol}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_merged_sorted_and_printed_again() {
        for (text, printed) in [
            ("80,443", "80,443"),
            ("443, 80", "80,443"),
            ("80/tcp,80/udp", "80"),
            ("53/udp,443/tcp", "53/udp,443/tcp"),
            ("80,80-90,91", "80-91"),
            ("80-90,85/udp", "80-90"),
            ("80-90/tcp,85-95/udp", "80-84/tcp,85-90,91-95/udp"),
            ("80-90/tcp,82,84", "80-81/tcp,82,83/tcp,84,85-90/tcp"),
            ("1-65535", "1-65535"),
            ("65535/udp,65534/udp", "65534-65535/udp"),
            ("all", "all"),
            ("80,all", "all"),
            ("ssh", "22"),
            ("http, HTTPS", "80,443"),
            ("dns/udp,22/tcp", "22/tcp,53/udp"),
            ("http-alt", "8080"),
        ] {
            assert_eq!(parse(text).expect(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn a_plain_number_is_both_protocols() {
        let ports = parse("80,443").expect("a list");
        assert_eq!(ports.tcp, [(80, 80), (443, 443)]);
        assert_eq!(ports.udp, ports.tcp);
        assert!(!ports.other_protocols);
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, span, problem) in [
            ("", 0..0, "it is empty"),
            ("80,,443", 3..3, "there is nothing between the commas"),
            ("0", 0..1, "0 is not a port"),
            ("65536", 0..5, "65536 is not a port"),
            ("80,htps/tcp", 3..7, "`htps` is not a port"),
            ("http-https", 0..10, "`http-https` is not a port"),
            ("80-", 3..3, "the port is missing"),
            ("90-80", 0..5, "the range ends before it begins"),
            ("53/ucp", 3..6, "`ucp` is not a protocol with ports"),
            ("53/", 3..3, "the protocol is missing"),
            ("80 443", 2..3, "` ` does not belong in a port"),
            ("80;443", 2..3, "`;` does not belong in a port"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
        }
    }

    #[test]
    fn every_second_port_is_a_list_like_any_other() {
        let text = (0..32_768).map(|at| (2 * at + 1).to_string()).collect::<Vec<_>>().join(",");
        let ports = parse(&text).expect("ports");
        assert_eq!((ports.tcp.len(), ports.to_string()), (32_768, text));
        assert_eq!(without(&[(1, 65_535)], &ports.tcp).len(), 32_767);
    }

    /// Returns every port below 64 that is in one of the ranges.
    fn each(ranges: &[(u16, u16)]) -> Vec<u16> {
        (0..64).filter(|port| ranges.iter().any(|(first, last)| (first..=last).contains(&port))).collect()
    }

    proptest! {
        #[test]
        fn common_and_remaining_ports_are_right_for_every_port(
            a in prop::collection::vec((0_u16..60, 0_u16..4), 0..8),
            b in prop::collection::vec((0_u16..60, 0_u16..4), 0..8),
        ) {
            let ranges = |of: Vec<(u16, u16)>| merged(of.into_iter().map(|(first, more)| (first, first + more)).collect());
            let (a, b) = (ranges(a), ranges(b));
            let (in_a, in_b) = (each(&a), each(&b));
            let (shared, left): (Vec<u16>, Vec<u16>) = in_a.iter().partition(|port| in_b.contains(port));
            let common = without(&a, &without(&a, &b));
            prop_assert_eq!((each(&common), each(&without(&a, &b))), (shared, left));
            prop_assert_eq!(merged(common.clone()), common);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,16}|[0-9a-z/, -]{0,24}") {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn printed_values_parse_back_to_the_same_value(
            ranges in prop::collection::vec((1_u16.., 0_u16..300, 0_u8..3), 1..12),
        ) {
            let items: Vec<_> = ranges
                .iter()
                .map(|(first, more, protocol)| {
                    let last = first.saturating_add(*more);
                    format!("{first}-{last}{}", ["", "/tcp", "/udp"][usize::from(*protocol)])
                })
                .collect();
            let ports = parse(&items.join(",")).expect("well-formed");
            prop_assert_eq!(parse(&ports.to_string()), Ok(ports));
        }
    }
}
