//! Import of exact tool output, and of items in it that cannot be imported.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn prefixes(of: &Imported) -> Vec<String> {
    let mut rows: Vec<IpNet> = of.rows.iter().map(|row| row.prefix).collect();
    rows.sort();
    rows.iter().map(IpNet::to_string).collect()
}

fn refused(of: &Imported) -> Vec<String> {
    of.refused.iter().map(|of| format!("{}: {}", of.line, of.problem)).collect()
}

fn read(text: &str) -> Imported {
    import(text, at(1_000)).unwrap()
}

fn denies(of: &Imported, address: &str) -> bool {
    let address: std::net::IpAddr = address.parse().unwrap();
    of.rows.iter().any(|row| row.prefix.contains(&address))
}

#[test]
fn an_exception_of_ipset_is_never_a_denial() {
    for text in [
        "add s 198.51.100.0/24\nadd s 198.51.100.77/32 nomatch\n",
        "create s hash:net family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1\n\
         add s 198.51.100.77 nomatch\nadd s 198.51.100.0/24\n",
        "Name: s\nType: hash:net\nRevision: 7\nHeader: family inet hashsize 1024 maxelem 65536 bucketsize 12\n\
         Size in memory: 918\nReferences: 1\nNumber of entries: 2\nMembers:\n198.51.100.77 nomatch\n198.51.100.0/24\n",
    ] {
        let read = read(text);
        assert_eq!(refused(&read), [""; 0], "{text}");
        assert!(!denies(&read, "198.51.100.77") && denies(&read, "198.51.100.76") && denies(&read, "198.51.100.78"));
        assert_eq!(read.rows.len(), 8, "{text}");
    }
    let within = read(
        "add s 10.0.0.0/8\nadd s 10.1.0.0/16 nomatch\nadd s 10.1.2.3\nadd s 2001:db8::/32\nadd s 2001:db8::1 nomatch\n",
    );
    for (address, is_denied) in
        [("10.0.0.1", true), ("10.1.0.1", false), ("10.1.2.3", true), ("2001:db8::1", false), ("2001:db8::2", true)]
    {
        assert_eq!(denies(&within, address), is_denied, "{address}");
    }
}

#[test]
fn an_exception_that_ends_first_is_named_and_stays_an_exception() {
    let read = read(
        "add s 10.0.0.0/8 timeout 90\nadd s 10.1.0.0/16 timeout 60 nomatch\nadd s 10.2.0.0/16 timeout 99 nomatch\n",
    );
    assert!(!denies(&read, "10.1.0.1") && !denies(&read, "10.2.0.1") && denies(&read, "10.3.0.1"));
    let why =
        "`10.1.0.0/16 nomatch` of set s ends before what it is taken from: its addresses are not denied then either";
    assert_eq!(refused(&read), [format!("2: {why}")]);
}

#[test]
fn the_options_of_ipset_are_kept_or_refused_by_name_and_line() {
    let text = "create a hash:net family inet hashsize 1024 maxelem 65536 timeout 100 counters comment skbinfo bucketsize 12 initval 0x16b11ff8\n\
        add a 198.51.100.0/24 timeout 49 packets 3 bytes 300 comment \"why not, \\ it\" skbmark 0x10/0xff skbprio 1:10 skbqueue 3\n\
        add a 198.51.101.0/24\n\
        add a 198.51.102.0/24 timeout 0\n\
        create b hash:ip family inet hashsize 1024 maxelem 65536 netmask 24 forceadd bucketsize 12 initval 0x175eb859\n\
        add b 192.0.2.0\n\
        create c hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0xbeb61b5d\n\
        add c 192.0.2.1,tcp:80\n\
        add c 192.0.2.2,tcp:80\n\
        create e bitmap:ip range 10.0.0.0-10.0.255.255 netmask 28\n\
        add e 10.0.1.0\n\
        create f bitmap:ip range 10.1.0.0-10.1.0.255\n\
        add f 10.1.0.3-10.1.0.5\n\
        create h hash:net family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0x32e0f55f\n\
        add h ::/1\n\
        add h 192.0.2.9\n\
        create j hash:ip family inet hashsize 1024 maxelem 65536 bitmask 255.255.0.255 bucketsize 12 initval 0xbbe04140\n\
        add j 192.0.0.7\n\
        create k hash:ip family inet bitmask 255.255.0.0\n\
        add k 172.16.0.0\n\
        create n hash:ip family inet new 7\n\
        add n 192.0.2.11\n\
        add a 192.0.2.10 until 7\n\
        add f 10.1.0.9 nomatch\n\
        add f host.example\n\
        swap a b\n\
        create d list:set size 8\n\
        add d a\n";
    let read = read(text);
    assert_eq!(
        prefixes(&read),
        [
            "10.0.1.0/28",
            "10.1.0.3/32",
            "10.1.0.4/31",
            "172.16.0.0/16",
            "192.0.2.0/24",
            "198.51.100.0/24",
            "198.51.101.0/24",
            "198.51.102.0/24",
            "::/1"
        ]
    );
    let until: Vec<Option<i64>> = read.rows.iter().take(3).map(|row| row.until.map(Timestamp::as_second)).collect();
    assert_eq!(until, [Some(1_049), Some(1_100), None]);
    assert_eq!(read.rows[0].reason.as_deref(), Some("why not, \\ it"));
    assert_eq!(
        refused(&read),
        [
            "7: set c: a set of type hash:ip,port contains more than addresses; its elements, 2, are not denied",
            "16: `192.0.2.9` of set h: it is not of the set's family",
            "17: set j: the ones of `bitmask 255.255.0.255` are not contiguous; its elements, 1, are not denied",
            "21: set n: its option `new` is not known; its elements, 1, are not denied",
            "23: `192.0.2.10 until 7` of set a: its option `until` is not known",
            "24: `10.1.0.9 nomatch` of set f: `nomatch` has no meaning in a set of this type",
            "25: `host.example` of set f: this is no address, and no prefix",
            "26: `swap` is not supported: save the sets after it is done",
            "27: set d: a set of type list:set contains more than addresses; its elements, 1, are not denied",
        ]
    );
}

#[test]
fn elements_that_a_script_deletes_are_not_denied() {
    let text = "add s 192.0.2.1\nadd s 192.0.2.2\ndel s 192.0.2.1\ndel s 192.0.2.9\nadd t 192.0.2.3\nflush t\n\
        add u 192.0.2.4 nomatch\nadd u 192.0.2.4\nadd v 192.0.2.5 nomatch\nadd v 192.0.2.5 -exist\n\
        add element ip t s { 198.51.100.1, 198.51.100.2, 198.51.100.3 }\ndelete element ip t s { 198.51.100.1 }\n\
        add element ip t r { 198.51.100.9 }\nflush set ip t r\n\
        add element ip t q { 198.51.100.0-198.51.100.9 }\ndelete element ip t q { 198.51.100.4 }\n";
    let read = read(text);
    assert_eq!(prefixes(&read), ["192.0.2.2/32", "192.0.2.5/32", "198.51.100.2/32", "198.51.100.3/32"]);
    assert_eq!(
        refused(&read),
        [
            "4: `del` of `192.0.2.9` from set s: the lines before it have no such element",
            "8: `192.0.2.4` of set u: line 7 contradicts it",
            "15: set q: `delete element` in line 16 takes out a part of others; its elements, 1, are not denied",
        ]
    );
}

/// Output of nft 1.0.6.
const RULESET: &str = "table inet t {
\tset s {
\t\ttype ipv4_addr
\t\tflags interval,timeout
\t\tcounter
\t\tauto-merge
\t\ttimeout 1d
\t\tgc-interval 1h
\t\tcomment \"a set\"
\t\telements = { 10.0.0.5-10.0.0.9 counter packets 0 bytes 0 expires 23h59m59s976ms, 192.0.2.1 counter packets 3 bytes 4 expires 1m,
\t\t\t     198.51.100.0/24 counter packets 0 bytes 0 timeout 1h expires 59m59s976ms comment \"why, {b} # c\", 203.0.113.0/24 counter }
\t}

\tset s6 {
\t\ttype ipv6_addr
\t\tflags interval
\t\telements = { 2001:db8::/32,
\t\t\t     2001:db9::1,
\t\t\t     fd00::1-fd00::9 }
\t}

\tset lim {
\t\ttype ipv4_addr
\t\tflags dynamic
\t\telements = { 192.0.2.11 limit rate 10/second, 192.0.2.12 expires 59s968ms }
\t}

\tset c {
\t\ttype ipv4_addr . inet_service
\t\telements = { 192.0.2.13 . 80 }
\t}

\tset ty {
\t\ttypeof ip saddr
\t\tflags constant
\t\telements = { 192.0.2.14, 192.0.2.16 }
\t}

\tset po {
\t\ttype inet_service
\t\telements = { 80, 443 }
\t}

\tmap m {
\t\ttype ipv4_addr : verdict
\t\tflags interval
\t\telements = { 10.0.0.0/8 : drop, 11.1.0.0/16 : accept }
\t}

\tset friends {
\t\ttype ipv4_addr
\t\telements = { 192.0.2.17 }
\t}

\tset known {
\t\ttype ipv4_addr
\t\telements = { 192.0.2.18 }
\t}

\tset there {
\t\ttype ipv4_addr
\t\telements = { 192.0.2.19, * }
\t}

\tchain x {
\t\ttype filter hook input priority filter; policy accept;
\t\tip saddr @s counter packets 0 bytes 0 drop
\t\tip saddr @friends accept
\t\tip saddr != @known drop
\t\tip saddr { 1.2.3.4, 1.2.3.6 } drop
\t\tip daddr vmap { 1.2.3.4 : drop }
\t\tip daddr @there drop
\t\tadd @lim { ip saddr timeout 5s }
\t}
}
";

#[test]
fn nft_listings_are_kept_or_refused_by_name_and_line() {
    let read = read(RULESET);
    assert_eq!(
        prefixes(&read),
        [
            "10.0.0.5/32",
            "10.0.0.6/31",
            "10.0.0.8/31",
            "192.0.2.1/32",
            "192.0.2.12/32",
            "192.0.2.14/32",
            "192.0.2.16/32",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "2001:db8::/32",
            "2001:db9::1/128",
            "fd00::1/128",
            "fd00::2/127",
            "fd00::4/126",
            "fd00::8/127"
        ]
    );
    let until = |prefix: &str| {
        let prefix: IpNet = prefix.parse().unwrap();
        let row = read.rows.iter().find(|row| row.prefix == prefix).unwrap();
        (row.until.map(Timestamp::as_second), row.reason.as_deref())
    };
    assert_eq!(until("192.0.2.1/32"), (Some(1_060), None), "what is left of it, and not what it began with");
    assert_eq!(until("198.51.100.0/24"), (Some(4_599), Some("why, {b} # c")));
    assert_eq!(until("203.0.113.0/24"), (Some(87_400), None), "the set's own time");
    assert_eq!(until("2001:db8::/32"), (None, None));
    assert_eq!(
        refused(&read),
        [
            "25: `192.0.2.11 limit rate 10/second` of set lim: it matches up to a `limit` only",
            "28: set c: a concatenation (`ipv4_addr . inet_service`) contains more than addresses; its elements, 1, \
             are not denied",
            "39: set po: `type inet_service` is no address; its elements, 2, are not denied",
            "44: set m: a map assigns verdicts or values to its addresses, and is not a list of them; its elements, \
             0, are not denied",
            "50: set friends: the rule in line 68 lets its addresses pass; its elements, 1, are not denied",
            "55: set known: the rule in line 69 matches what is not in it (`!=`); its elements, 1, are not denied",
            "60: set there: the rule in line 72 matches destinations; its elements, 2, are not denied",
            "70: a rule names its sources itself: only sets are read from rules",
        ]
    );
}

#[test]
fn a_script_of_nft_is_read_as_nft_reads_it() {
    let text = "#!/usr/sbin/nft -f\ntable inet t; delete table inet t\ntable inet t { set s { type ipv4_addr; flags interval; \
        elements = { 192.0.2.0/24, \\\n 198.51.100.7 } }; }\nadd set inet t x { type ipv4_addr; timeout 1h; }\n\
        add element inet t x { 203.0.113.1, 203.0.113.2 timeout 0s }\ndefine bad = { 192.0.2.1 }\n\
        add element inet t x { $bad, !203.0.113.4, 203.0.113.5 new 7 }\nadd rule inet t c ip saddr @x accept\n203.0.113.9\n";
    let read = read(text);
    assert_eq!(prefixes(&read), ["192.0.2.0/24", "198.51.100.7/32", "203.0.113.9/32"]);
    let refused = refused(&read);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert_eq!(refused[0], "5: set x: the rule in line 9 lets its addresses pass; its elements, 5, are not denied");
    assert_eq!(refused[1], "7: `define` is not read");
}

#[test]
fn an_input_that_is_no_list_is_one_error() {
    for (text, problem) in [
        ("<!DOCTYPE html>\n<html>\n<p>192.0.2.1\n</html>\n", "line 1: it is an HTML page, not a list of addresses"),
        ("<ipsets>\n<ipset name=\"g\">\n", "line 1: this is ipset's XML; what `ipset save` prints is read"),
        (
            "{\"nftables\": [{\"set\": {}}]}",
            "line 1: this is nft's JSON; what `nft list set` prints without -j is read",
        ),
        ("add element ip t s { {{{{{{{{{{{{{{{{{{", "line 1: more than 16 braces are open here"),
        (
            "192.0.2.1\ntable ip t {\n set s {\n",
            "line 2: the braces that begin here are not closed: the file is cut off",
        ),
    ] {
        assert_eq!(import(text, at(0)).unwrap_err().to_string(), problem);
    }
}

#[test]
fn no_line_of_a_list_is_read_as_less_than_it_says() {
    let read = read("198.51.100.0\t198.51.100.255\t24\n192.0.2.0-192.0.2.9\n10.0.0.1 10.0.0.9\n");
    assert_eq!(prefixes(&read), ["192.0.2.0/29", "192.0.2.8/31", "198.51.100.0/24"]);
    assert_eq!(refused(&read), ["3: two addresses stand in this line, which may be a range"]);
}
