//! Tests of exports and imports with the real ipset and nft, address by address, over random nested lists.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Stdio;
use std::time::Instant;

use integration_test::lab::{Lab, assert_refused, binary, run};
use integration_test::random::Random;
use ipnet::IpNet;
use jiff::Timestamp;
use netlab::{Namespace, Output, needs_root};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_policy::access::{By, Entry, deciding, merged};
use ratelimit_policy::desired::{Grant, covering};
use ratelimit_report::entries::{self, Format, Row};
use ratelimit_report::snapshot::{Author, Clocks, ListReport, Listed, State};
use serde_json::Value;

/// Number of random lists in each test. nft needs a process for each address: 6 x 24 addresses x 2 tools x 2 families.
const CASES: u64 = 6;
/// Number of a list's addresses that are checked.
const ADDRESSES: usize = 24;

/// Runs a program in the namespace with this standard input.
fn with_input(namespace: &Namespace, program: &[&str], input: &str) -> Output {
    let mut command = namespace.command(program[0]);
    command.args(&program[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn done(output: &Output, what: &str) -> String {
    assert_eq!(output.code(), 0, "{}\n{what}", output.stderr);
    output.stdout.clone()
}

/// Returns the addresses that an ipset matches.
fn in_ipset(namespace: &Namespace, set: &str, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let asked: String = addresses.iter().map(|of| format!("test {set} {of}\n")).collect();
    let said = with_input(namespace, &["ipset", "-"], &asked).stderr;
    let found = |of: &&IpAddr| {
        let is_in = said.contains(&format!("Warning: {of} is in set {set}.\n"));
        let is_out = said.contains(&format!("{of} is NOT in set {set}.\n"));
        assert!(is_in != is_out, "{of}: {said}");
        is_in
    };
    addresses.iter().filter(found).copied().collect()
}

/// Returns the addresses that an nft set matches.
fn in_nft(namespace: &Namespace, set: &str, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let is_in = |of: &&IpAddr| {
        let element = format!("{{ {of} }}");
        let mut command = namespace.command("nft");
        command.args(["get", "element"]).args(set.split(' ')).arg(element);
        let got = run(command);
        assert!(got.code() == 0 || got.stderr.contains("No such file or directory"), "{}", got.stderr);
        got.code() == 0
    };
    addresses.iter().filter(is_in).copied().collect()
}

/// Returns the addresses that these rows deny.
fn in_rows(rows: &[Row], addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    let is_in = |of: &&IpAddr| rows.iter().any(|row| row.prefix.contains(*of));
    addresses.iter().filter(is_in).copied().collect()
}

/// Returns a random prefix in a small part of one family, or occasionally a very wide one.
fn any_prefix(random: &mut Random, is_ipv6: bool) -> IpNet {
    let host = u8::try_from(random.below(256)).unwrap();
    let length = |random: &mut Random, narrow: u64, longest: u64| {
        let length =
            if random.one_in(12) { random.below(longest + 1) } else { narrow + random.below(longest + 1 - narrow) };
        u8::try_from(length).unwrap()
    };
    let prefix = if is_ipv6 {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(host));
        IpNet::new(address.into(), length(random, 120, 128))
    } else {
        IpNet::new(Ipv4Addr::new(198, 51, 100, host).into(), length(random, 24, 32))
    };
    prefix.unwrap().trunc()
}

/// Returns the edges of prefixes, their neighbours, and other addresses.
fn addresses(random: &mut Random, prefixes: &[IpNet], is_ipv6: bool) -> Vec<IpAddr> {
    let mut all = BTreeSet::new();
    for prefix in prefixes {
        let beside = |address: IpAddr, up: bool| match address {
            IpAddr::V4(of) => {
                let of = of.to_bits();
                IpAddr::from(Ipv4Addr::from_bits(if up { of.wrapping_add(1) } else { of.wrapping_sub(1) }))
            }
            IpAddr::V6(of) => {
                let of = of.to_bits();
                IpAddr::from(Ipv6Addr::from_bits(if up { of.wrapping_add(1) } else { of.wrapping_sub(1) }))
            }
        };
        let (first, last) = (prefix.network(), prefix.broadcast());
        all.extend([first, last, beside(first, false), beside(last, true)]);
    }
    let mut all: Vec<IpAddr> = all.into_iter().filter(|of| of.is_ipv6() == is_ipv6).collect();
    while all.len() > ADDRESSES {
        let out = random.index(all.len());
        all.swap_remove(out);
    }
    all.extend((0..4).map(|_| any_prefix(random, is_ipv6).addr()));
    // ipset accepts no zero address.
    all.retain(|of| !of.is_unspecified());
    all
}

/// A list of nested entries as the daemon has them, with bans.
struct Nested {
    entries: Vec<Entry>,
    bans: Vec<IpNet>,
    clocks: Clocks,
}

impl Nested {
    fn any(random: &mut Random) -> Self {
        let clocks = Clocks { now: Nanos(1_000 * SECOND_NS), wall: Timestamp::now() };
        let entry = |random: &mut Random| {
            let is_ipv6 = random.one_in(2);
            let seconds = 1_000 + random.below(9_000);
            Entry {
                prefix: any_prefix(random, is_ipv6),
                grant: if random.one_in(3) { Grant::Exempt } else { Grant::Denied },
                by: By::Command { user: "root".to_owned(), is_forced: false },
                owner: None,
                reason: Some("a \"list\"".to_owned()).filter(|_| random.one_in(2)),
                since: None,
                until: Some(clocks.after(seconds * SECOND_NS)).filter(|_| random.one_in(2)),
            }
        };
        let entries = (0..16).map(|_| entry(random)).collect();
        let bans = (0..3).map(|at| any_prefix(random, at == 2)).collect();
        Self { entries, bans, clocks }
    }

    /// Returns the report that `list` gives.
    fn report(&self) -> ListReport {
        let deciding: Vec<*const Entry> =
            deciding(&self.entries, self.clocks.now).into_iter().map(std::ptr::from_ref).collect();
        let listed = |entry: &Entry| Listed::of(entry, deciding.contains(&std::ptr::from_ref(entry)), self.clocks);
        let ban = |prefix: &IpNet| Listed {
            prefix: prefix.to_string(),
            state: State::Banned,
            by: Author::Ban,
            until: Some(self.clocks.wall_of(self.clocks.after(5_000 * SECOND_NS))),
            decides: true,
            ..Listed::default()
        };
        let entries = self.entries.iter().map(listed).chain(self.bans.iter().map(ban)).collect();
        ListReport { schema: 1, time: self.clocks.wall, entries, omitted: Vec::new(), would_ban: Vec::new() }
    }

    /// Returns the addresses with dropped packets: by the access list, or by bans if no entry covers them.
    fn denied(&self, addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
        let access = merged(&self.entries, self.clocks.now);
        let is_denied =
            |of: &&IpAddr| match covering(&access, IpNet::from(**of)).find(|access| access.holds(self.clocks.now)) {
                Some(access) => access.grant == Grant::Denied,
                None => self.bans.iter().any(|ban| ban.contains(*of)),
            };
        addresses.iter().filter(is_denied).copied().collect()
    }

    fn prefixes(&self) -> Vec<IpNet> {
        self.entries.iter().map(|entry| entry.prefix).chain(self.bans.iter().copied()).collect()
    }
}

#[test]
fn the_real_sets_of_an_export_match_what_access_denies_address_by_address() {
    needs_root!();
    let (namespace, began) = (Namespace::new().unwrap(), Instant::now());
    for seed in 0..CASES {
        let mut random = Random(seed);
        let list = Nested::any(&mut random);
        let rows = entries::rows(&list.report());
        let now = Timestamp::now();
        let nft = entries::export(&rows, Format::Nft, now);
        let ipset = entries::export(&rows, Format::Ipset, now);
        done(&with_input(&namespace, &["nft", "-f", "-"], &nft), &nft);
        done(&with_input(&namespace, &["ipset", "restore"], &ipset), &ipset);
        let saved = done(&namespace.run(&["ipset", "save"]).unwrap(), "save");
        let listed = done(&namespace.run(&["nft", "list", "ruleset"]).unwrap(), "list");
        for (set, is_ipv6) in [("denied4", false), ("denied6", true)] {
            let asked = addresses(&mut random, &list.prefixes(), is_ipv6);
            let denied = list.denied(&asked);
            assert_eq!(in_ipset(&namespace, set, &asked), denied, "seed {seed}, ipset\n{ipset}");
            assert_eq!(
                in_nft(&namespace, &format!("inet ratelimitd {set}"), &asked),
                denied,
                "seed {seed}, nft\n{nft}"
            );
            // Importing the tools' output and each export gives the same list again.
            let plain = entries::export(&rows, Format::Plain, now);
            for text in [&saved, &listed, &plain, &nft, &ipset] {
                let again = entries::import(text, Timestamp::now()).unwrap();
                assert_eq!(again.refused, [], "seed {seed}\n{text}");
                assert_eq!(in_rows(&again.rows, &asked), denied, "seed {seed}\n{text}");
            }
        }
    }
    println!("{CASES} lists took {:?}", began.elapsed());
}

#[test]
fn an_import_denies_what_the_sets_of_the_real_ipset_match_and_nothing_else() {
    needs_root!();
    let (namespace, began) = (Namespace::new().unwrap(), Instant::now());
    let mut exceptions = 0;
    for seed in 0..CASES {
        let mut random = Random(1_000 + seed);
        for (set, kind, is_ipv6) in [
            ("net4", "hash:net timeout 9000 counters comment skbinfo forceadd", false),
            ("net6", "hash:net family inet6", true),
            ("ip4", "hash:ip netmask 28", false),
            ("ip6", "hash:ip family inet6 netmask 124 timeout 0", true),
            ("range", "bitmap:ip range 198.51.100.0/24", false),
        ] {
            let mut script = format!("create {set} {kind} -exist\nflush {set}\n");
            let mut prefixes = Vec::new();
            for _ in 0..16 {
                let prefix = any_prefix(&mut random, is_ipv6);
                if prefix.prefix_len() < 24 {
                    continue;
                }
                let is_nomatch = kind.starts_with("hash:net") && random.one_in(3);
                exceptions += usize::from(is_nomatch);
                let element = match (set, is_nomatch) {
                    ("net4" | "net6", true) => format!("{prefix} nomatch"),
                    ("net4", false) => format!("{prefix} timeout 8000 comment \"a, {{b}} # c\""),
                    ("ip6", _) => prefix.addr().to_string(),
                    _ => prefix.to_string(),
                };
                let _ = writeln!(script, "add {set} {element} -exist");
                prefixes.push(prefix);
            }
            done(&with_input(&namespace, &["ipset", "restore"], &script), &script);
            let asked = addresses(&mut random, &prefixes, is_ipv6);
            // A bitmap is only queried within its range.
            let asked: Vec<IpAddr> = match set {
                "range" => asked.into_iter().filter(|of| of.to_string().starts_with("198.51.100.")).collect(),
                _ => asked,
            };
            let matched = in_ipset(&namespace, set, &asked);
            for program in [["ipset", "save", set], ["ipset", "list", set]] {
                let text = done(&namespace.run(&program).unwrap(), set);
                let read = entries::import(&text, Timestamp::now()).unwrap();
                // Only exceptions that end before the set's other elements are reported.
                assert!(read.refused.iter().all(|of| of.problem.contains("ends before")), "{:?}", read.refused);
                assert_eq!(in_rows(&read.rows, &asked), matched, "seed {seed}\n{text}");
            }
            // A manual script gives the set that it creates.
            let read = entries::import(&script, Timestamp::now()).unwrap();
            assert_eq!(in_rows(&read.rows, &asked), matched, "seed {seed}\n{script}");
        }
    }
    assert!(exceptions > 16, "{exceptions}");
    println!("{CASES} lists took {:?}", began.elapsed());
}

#[test]
fn an_import_denies_what_the_sets_of_the_real_nft_match_and_nothing_else() {
    needs_root!();
    let (namespace, began) = (Namespace::new().unwrap(), Instant::now());
    for seed in 0..CASES {
        let mut random = Random(2_000 + seed);
        for (set, kind, is_ipv6) in [("a", "ipv4_addr", false), ("b", "ipv6_addr", true)] {
            let (mut elements, mut prefixes) = (String::new(), Vec::new());
            for _ in 0..8 {
                let prefix = any_prefix(&mut random, is_ipv6);
                let beside = IpNet::from(any_prefix(&mut random, is_ipv6).addr());
                let (first, last) = (prefix.addr().min(beside.addr()), prefix.addr().max(beside.addr()));
                let element = match random.below(3) {
                    0 => format!("{prefix}"),
                    1 => format!("{prefix} timeout 2h comment \"a, {{b}} # c\""),
                    _ => format!("{first}-{last}"),
                };
                let _ = write!(elements, "{element}, ");
                prefixes.extend([prefix, beside]);
            }
            let script = format!(
                "table inet t\ndelete table inet t\ntable inet t {{\n set {set} {{ type {kind}; flags interval,timeout; \
                 auto-merge; timeout 1d; counter; elements = {{ {elements} }} }}\n}}\n"
            );
            let loaded = with_input(&namespace, &["nft", "-f", "-"], &script);
            if loaded.code() != 0 {
                // nft does not merge overlapping elements with different times.
                assert!(loaded.stderr.contains("conflict") || loaded.stderr.contains("overlap"), "{}", loaded.stderr);
                continue;
            }
            let asked = addresses(&mut random, &prefixes, is_ipv6);
            let matched = in_nft(&namespace, &format!("inet t {set}"), &asked);
            for program in [&["nft", "list", "set", "inet", "t", set][..], &["nft", "-s", "-n", "list", "ruleset"]] {
                let text = done(&namespace.run(program).unwrap(), set);
                let read = entries::import(&text, Timestamp::now()).unwrap();
                assert_eq!(read.refused, [], "{text}");
                assert_eq!(in_rows(&read.rows, &asked), matched, "seed {seed}\n{text}");
                assert!(read.rows.iter().all(|row| row.until.is_some()), "{text}");
            }
            let read = entries::import(&script, Timestamp::now()).unwrap();
            assert_eq!(in_rows(&read.rows, &asked), matched, "seed {seed}\n{script}");
        }
    }
    println!("{CASES} lists took {:?}", began.elapsed());
}

#[test]
fn the_daemon_exports_nobody_whom_it_allows_and_imports_no_exception_as_a_denial() {
    needs_root!();
    let lab = Lab::new();
    let at = |name: &str| lab.directory().join(name).to_str().unwrap().to_owned();
    let text = "interfaces = [\"s0\"]\ndeny = [\"10.90.0.0/24\", \"2001:db8:90::/48\"]\n\
                allow = [\"10.90.0.2\", \"2001:db8:90:1::/64\"]\n[rule]\nlimits = [\"1000/1m connections\"]\n";
    fs::write(at("ratelimitd.toml"), format!("socket = {:?}\n{text}", lab.socket())).unwrap();
    let _daemon = lab.start(&["run", "--config", &at("ratelimitd.toml")]);
    for args in [
        &["deny", "203.0.113.0/24", "--for", "1h", "--reason", "scraper"][..],
        &["allow", "203.0.113.9", "--for", "2h"],
        &["deny", "203.0.113.128/25", "--for", "permanent"],
    ] {
        assert_eq!(lab.ratelimitd(args).code(), 0, "{args:?}");
    }
    let asked = ["10.90.0.1", "10.90.0.2", "10.90.0.3", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.129"];
    let asked = asked.map(|of| of.parse::<IpAddr>().unwrap());
    let asked_v6 = ["2001:db8:90::1", "2001:db8:90:1::1", "2001:db8:90:2::1"].map(|of| of.parse::<IpAddr>().unwrap());
    let is_blocked = |of: &&IpAddr| match lab.ratelimitd(&["check", &of.to_string()]).code() {
        0 => false,
        3 => true,
        code => panic!("{of}: {code}"),
    };
    let denied: BTreeSet<IpAddr> = asked.iter().filter(is_blocked).copied().collect();
    let denied_v6: BTreeSet<IpAddr> = asked_v6.iter().filter(is_blocked).copied().collect();
    assert_eq!((denied.len(), denied_v6.len()), (5, 2), "{denied:?} {denied_v6:?}");
    let export = |format: &str| done(&lab.ratelimitd(&["list", "--format", format]), format);
    let (nft, ipset, plain) = (export("nft"), export("ipset"), export("plain"));
    done(&with_input(&lab.server, &["nft", "-f", "-"], &nft), &nft);
    done(&with_input(&lab.server, &["ipset", "restore"], &ipset), &ipset);
    for (at, asked, denied) in [(4, &asked[..], &denied), (6, &asked_v6, &denied_v6)] {
        assert_eq!(in_nft(&lab.server, &format!("inet ratelimitd denied{at}"), asked), *denied, "{nft}");
        assert_eq!(in_ipset(&lab.server, &format!("denied{at}"), asked), *denied, "{ipset}");
    }
    let reason = done(&lab.ratelimitd(&["list", "--format", "plain", "--reason", "scraper"]), "reason");
    let rows = entries::import(&reason, Timestamp::now()).unwrap().rows;
    assert!(!in_rows(&rows, &asked).contains(&asked[4]) && in_rows(&rows, &asked).contains(&asked[5]), "{reason}");

    // Importing each export again changes nothing.
    let listed = || done(&lab.ratelimitd(&["list", "--format", "plain"]), "list");
    let entries_now = || {
        let list: Value = serde_json::from_str(&done(&lab.ratelimitd(&["list", "--json"]), "list")).unwrap();
        list["entries"].as_array().unwrap().len()
    };
    let count = entries_now();
    for (name, text) in [("plain", &plain), ("nft", &nft), ("ipset", &ipset)] {
        fs::write(at(name), text).unwrap();
        let imported = lab.ratelimitd(&["import", &at(name), "--json"]);
        let report: Value = serde_json::from_str(&done(&imported, name)).unwrap();
        assert_eq!((&report["denied"], entries_now()), (&report["unchanged"], count), "{name}: {report}\n{}", listed());
    }

    let import = |text: &str| {
        fs::write(at("set"), text).unwrap();
        let mut command = lab.command(binary());
        command.args(["import", &at("set")]);
        run(command)
    };
    let whole = import("create s hash:net family inet\nadd s 198.51.100.0/24\nadd s 198.51.100.77/32 nomatch\n");
    assert_eq!((whole.code(), whole.stderr.as_str()), (0, ""), "{}", whole.stdout);
    for (address, code) in [("198.51.100.76", 3), ("198.51.100.77", 0), ("198.51.100.78", 3)] {
        assert_eq!(lab.ratelimitd(&["check", address]).code(), code, "{address}");
    }
    let part = import("create p hash:ip,port\nadd p 192.0.2.1,tcp:80\nadd s 192.0.2.2\nadd s 192.0.2.3 mystery 7\n");
    let file = at("set");
    let words = [
        format!("{file}: line 1: set p: a set of type hash:ip,port contains more than addresses"),
        format!("{file}: line 4: `192.0.2.3 mystery 7` of set s: its option `mystery` is not known"),
    ];
    assert_refused(&part, 3, &words.each_ref().map(String::as_str));
    assert_eq!(part.stdout, "1 prefixes are denied; 2 are refused\n");
    for (address, code) in [("192.0.2.1", 0), ("192.0.2.2", 3), ("192.0.2.3", 0)] {
        assert_eq!(lab.ratelimitd(&["check", address]).code(), code, "{address}");
    }
    assert_refused(&import("create p hash:net,port\nadd p 192.0.2.0/24,tcp:80 nomatch\n"), 2, &["set p"]);
    assert_refused(&import("table ip t {\n set s {\n"), 2, &["line 1: the braces that begin here are not closed"]);
}
