//! Tests of rules in a file: their parsed form, and errors with line and column.

use std::path::Path;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;

use crate::config::{Config, file};
use crate::desired::{
    Access, Bans, Grant, Mode, NewSources, QuicPorts, Refuse, RefuseWith, Rule, Unparsable, WindowForm,
};
use crate::diagnostic::{Diagnostic, Place};

mod groups;

fn parsed(contents: &str) -> Result<Config, Diagnostic> {
    let read = |path: &Path| match path.to_str() {
        Some("etc/drop.txt") => Ok("; DROP\n1.10.16.0/20 ; SBL1\n2001:db8:bad::/48\n".to_owned()),
        Some("etc/bad.txt") => Ok("192.0.2.0/24\n192.0.2.0/33\n".to_owned()),
        Some("etc/empty.txt") => Ok("# nobody yet\n".to_owned()),
        Some("etc/all.txt") => Ok("0.0.0.0/1\n128.0.0.0/1\n".to_owned()),
        _ => Err("no such file".to_owned()),
    };
    file::parse(Path::new("etc/r.toml"), &format!("interfaces = [\"eth0\"]\n{contents}"), read)
        .map_err(|errors| errors.first().clone())
}

fn rules(contents: &str) -> Vec<Rule> {
    parsed(contents).expect(contents).policy.rules
}

fn prefixes(of: &[ipnet::IpNet]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

/// Returns problem, line, column and help of the error. The first line of the file is `interfaces`.
fn wrong(contents: &str) -> (String, usize, usize, String) {
    let error = parsed(contents).expect_err(contents);
    let Place::File { excerpt, .. } = error.place else { panic!("not in a file") };
    let (line, column) = excerpt.map_or((0, 0), |excerpt| (excerpt.line, excerpt.column));
    (error.problem, line, column, error.help.join("; "))
}

#[test]
fn rules_keep_their_order_and_every_key_says_what_it_says() {
    let rules = rules(
        r#"
        [lists]
        premium = ["192.0.2.0/24", "198.51.100.7"]
        [[rule]]
        name = "premium"
        from = ["@premium", "file:drop.txt", "192.0.2.0/24"]
        to = ["203.0.113.5", "203.0.113.0/25"]
        ports = "443/tcp"
        limits = ["1000/5m", "50MB/1m bytes"]
        count = "packets"
        window = "lenient"
        refuse = "all"
        mode = "dry-run"
        block_for = ["1m", "10m", "1h"]
        forget_after = "2d"
        ban_unverified = true
        block_kill = true
        refuse_with = "reset"
        shadow_limits = ["500/5m", "2000/5m"]
        under_attack_ok = true
        new_sources = "20000/s"
        quic_ports = "none"
        unparsable = "count"
        [[rule]]
        name = "web"
        limits = ["10/s"]
        "#,
    );
    let [premium, web] = rules.as_slice() else { panic!("{rules:?}") };
    assert_eq!(prefixes(&premium.from), ["1.10.16.0/20", "192.0.2.0/24", "198.51.100.7/32", "2001:db8:bad::/48"]);
    assert_eq!(prefixes(&premium.to), ["203.0.113.0/25", "203.0.113.5/32"]);
    assert_eq!((premium.mode, premium.refuse, premium.under_attack_ok), (Mode::DryRun, Refuse::All, true));
    let minute = 60_000_000_000;
    let bans =
        Bans { steps_ns: vec![minute, 10 * minute, 60 * minute], forget_ns: 2 * 1_440 * minute, needs_proof: false };
    assert_eq!(premium.bans, Some(bans));
    assert_eq!(premium.limits.iter().map(|limit| limit.unit).collect::<Vec<_>>(), [Unit::Packets, Unit::Bytes]);
    assert!(premium.limits.iter().all(|limit| limit.form == WindowForm::Lenient));
    assert_eq!(premium.shadow_limits.iter().map(|limit| limit.amount).collect::<Vec<_>>(), [500, 2_000]);
    assert_eq!(
        (premium.new_sources, web.new_sources),
        (Some(NewSources { amount: 20_000, window_ns: minute / 60 }), None)
    );
    assert_eq!((premium.quic_ports, premium.unparsable), (QuicPorts::NONE, Unparsable::Count));
    assert_eq!((premium.refuse_with, premium.block_kill), (RefuseWith::Reset, true));
    assert_eq!((web.refuse_with, web.block_kill), (RefuseWith::Drop, false));
    assert_eq!((web.quic_ports, web.unparsable), (QuicPorts::DEFAULT, Unparsable::Drop));
    assert_eq!((web.name.as_str(), web.from.len(), web.to.len(), &web.bans), ("web", 0, 0, &None));
}

#[test]
fn an_override_is_a_rule_of_its_own_just_before_its_parent() {
    let rules = rules(
        r#"
        [[rule]]
        name = "first"
        limits = ["1/s"]
        [[rule]]
        name = "api"
        ports = "8443/tcp"
        to = ["203.0.113.5"]
        refuse = "all"
        mode = "dry-run"
        block_for = "10m"
        count = "packets"
        window = "lenient"
        limits = ["100/1m"]
        shadow_limits = ["50/1m"]
        [[rule.override]]
        name = "partner"
        from = ["192.0.2.0/24"]
        limits = ["5000/1h"]
        until = "2027-03-31"
        note = "until the contract ends"
        [[rule.override]]
        from = ["198.51.100.0/24"]
        limits = ["6/30s"]
        algorithm = "gcra"
        burst = 10
        until = 2027-03-31T18:00:00Z
        "#,
    );
    assert_eq!(
        rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
        ["first", "api:partner", "api:2", "api"]
    );
    let [_, partner, second, api] = rules.as_slice() else { panic!("{rules:?}") };
    for of in [partner, second] {
        assert_eq!((&of.ports, &of.to, of.refuse, of.mode), (&api.ports, &api.to, api.refuse, api.mode));
        assert_eq!(of.bans, api.bans);
        assert!(of.shadow_limits.is_empty());
        assert_eq!(of.limits[0].unit, Unit::Packets);
    }
    assert_eq!((partner.limits[0].form, second.limits[0].form), (WindowForm::Lenient, WindowForm::Gcra));
    assert_eq!(
        (partner.until, second.until),
        (Some(Nanos(1_806_537_600_000_000_000)), Some(Nanos(1_806_516_000_000_000_000)))
    );
    assert_eq!((second.limits[0].burst, api.until), (Some(10), None));
}

#[test]
fn forms_and_shadows_never_share_a_slot_and_those_of_buckets_stay() {
    let limit = |lines: &str| rules(&format!("[rule]\nlimits = [\"10/5m\"]\n{lines}\n"))[0].clone();
    let buckets = limit("").limits[0];
    assert_eq!(buckets.slot, crate::desired::slot("default", Unit::Requests, 60_000_000_000));
    let fixed = limit("algorithm = \"fixed\"").limits[0];
    let gcra = limit("algorithm = \"gcra\"").limits[0];
    assert_eq!((fixed.buckets, fixed.bucket_ns, fixed.form), (1, 300_000_000_000, WindowForm::Fixed));
    assert_eq!((gcra.buckets, gcra.bucket_ns, gcra.form), (1, 300_000_000_000, WindowForm::Gcra));
    let shadows = limit("shadow_limits = [\"10/5m\", \"20/5m\"]").shadow_limits;
    let mut slots = vec![buckets.slot, fixed.slot, gcra.slot, shadows[0].slot, shadows[1].slot];
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 5);
}

#[test]
fn shadow_limits_may_have_conditions_where_a_log_shows_them() {
    let of = |more: &str| {
        let shadows = "shadow_limits = [\"5/1m path=/login method=POST\", \"9/1m path=/login method=POST\", \"5/1m\"]";
        format!("[rule]\nlimits = [\"10/1m\", \"5/1m path=/login method=POST\"]\n{shadows}\n{more}\n")
    };
    let rule = rules(&of("access_log = [\"/var/log/nginx/access.log\"]"))[0].clone();
    let said: Vec<String> = rule.shadow_limits.iter().map(ToString::to_string).collect();
    let conditioned = "requests path=/login method=POST";
    assert_eq!(said, [format!("5/1m {conditioned}"), format!("9/1m {conditioned}"), "5/1m requests".to_owned()]);
    let mut slots: Vec<u32> = rule.limits.iter().chain(&rule.shadow_limits).map(|limit| limit.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 5, "each limit has windows of its own");
    let alone = "[rule]\nlimits = [\"10/1m\"]\nshadow_limits = [\"5/1m status=401\"]\n";
    let (problem, line, _, help) = wrong(alone);
    assert!(problem.contains("`5/1m requests status=401` counts what packets do not show"), "{problem}");
    assert!(line == 4 && help.contains("access_log = "), "line {line}: {help}");
    let (problem, ..) = wrong(&format!("{alone}access_log = [\"/log\"]\nalgorithm = \"gcra\"\n"));
    assert!(problem.contains("charged in buckets"), "{problem}");
}

#[test]
fn allow_goes_before_deny_and_what_is_in_both_is_remembered() {
    let config = parsed(
        "allow = [\"192.0.2.0/24\"]\ndeny = [\"192.0.2.0/24\", \"file:drop.txt\"]\n[rule]\nlimits = [\"1/s\"]\n",
    );
    let config = config.expect("well-formed");
    let denied = ["1.10.16.0/20", "2001:db8:bad::/48"].map(|text| text.parse().expect("a prefix"));
    assert_eq!(config.policy.prefixes(Grant::Denied).collect::<Vec<_>>(), denied);
    assert!(config.policy.access.contains(&Access::exempt(config.overruled[0])));
    assert!(config.policy.access.is_sorted());
    assert_eq!(prefixes(&config.overruled), ["192.0.2.0/24"]);
    let files: Vec<_> = config.list_files.iter().map(|file| (file.path.as_path(), file.named_by.as_str())).collect();
    assert_eq!(files, [(Path::new("etc/drop.txt"), "deny")]);
}

#[test]
fn everyone_is_denied_only_where_that_is_said() {
    for deny in ["0.0.0.0/0", "0.0.0.0/1\", \"128.0.0.0/1", "::/0"] {
        let contents = |more: &str| format!("deny = [\"{deny}\"]\n{more}\n[rule]\nlimits = [\"1/s\"]\n");
        let (problem, line, _, help) = wrong(&contents(""));
        assert!(problem.contains("so every source would be denied"), "{problem}");
        assert_eq!((line, help.contains("deny_everyone = true")), (2, true));
        assert!(parsed(&contents("deny_everyone = true")).is_ok());
    }
}

#[test]
fn halves_of_everyone_in_a_list_file_are_passed_over_unless_everyone_is_meant() {
    let contents = |more: &str| format!("deny = [\"file:all.txt\"]\n{more}\n[rule]\nlimits = [\"1/s\"]\n");
    let config = parsed(&contents("")).unwrap();
    assert!(config.policy.access.is_empty());
    assert_eq!(prefixes(&config.too_wide), ["0.0.0.0/1", "128.0.0.0/1"]);
    assert_eq!(parsed(&contents("deny_everyone = true")).unwrap().policy.access.len(), 2);
}

#[test]
fn errors_in_one_of_several_rules_are_reported_with_name_and_place() {
    let web = "[[rule]]\nname = \"web\"\nlimits = [\"1/s\"]\n";
    let second = |lines: &str| format!("{web}[[rule]]\n{lines}\n");
    for (lines, problem, line, column, help) in [
        ("limits = [\"1/s\"]", "`rule.name` of rule 2 is missing, or empty", 0, 0, "name = \"login\" under [[rule]]"),
        (
            "name = \"web\"\nlimits = [\"1/s\"]",
            "bad value for `rule.name` of rule web: there is a rule web already",
            6,
            9,
            "identify rules by their names",
        ),
        ("name = \"b\"", "`rule.limits` of rule b is missing, or empty", 0, 0, "limits = [\"1000/5m\"] under [[rule]]"),
        (
            "name = \"b\"\nlimits = [\"1/y\"]",
            "bad value for `rule.limits` of rule b: `y` is not a unit of time",
            7,
            14,
            "units of time",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nfrom = []",
            "`rule.from` of rule b is missing, or empty",
            0,
            0,
            "192.0.2.0/24",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nfrom = [\"@prem\"]",
            "bad value for `rule.from` of rule b: there is no list `prem`",
            8,
            11,
            "under [lists]",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nfrom = [\"file:no.txt\"]",
            "bad value for `rule.from` of rule b: cannot read etc/no.txt: no such file",
            8,
            15,
            "relative",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nfrom = [\"file:empty.txt\"]",
            "bad value for `rule.from` of rule b: it holds no address, so the rule is for no source",
            8,
            10,
            "leave the rule out",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nfrom = [\"file:bad.txt\"]",
            "bad line in a list file: this is not a prefix length",
            2,
            11,
            "0 to 32",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nalgorithm = \"gcar\"",
            "bad value for `rule.algorithm` of rule b: `gcar` is not one of them",
            8,
            14,
            "did you mean `gcra`",
        ),
        (
            "name = \"b\"\nlimits = [\"1/s\"]\nalgorithm = \"gcra\"\nwindow = \"strict\"",
            "bad value for `rule.window` of rule b: algorithm = \"gcra\" has no such choice",
            9,
            11,
            "leave out one",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nburst = 6",
            "bad value for `rule.burst` of rule b: a bucket never holds more than the limit 5/1s requests",
            8,
            9,
            "at most 5",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nburst = 1\nalgorithm = \"fixed\"",
            "bad value for `rule.burst` of rule b: a fixed window is one bucket, which the limit bounds already",
            8,
            9,
            "leave the burst out",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\", \"5MB/s\"]\nburst = 1",
            "bad value for `rule.burst` of rule b: the limits of this rule count different things",
            8,
            9,
            "two rules",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nblock_for = [\"10m\", \"1m\"]",
            "bad value for `rule.block_for` of rule b: it is not longer than the ban before it",
            8,
            22,
            "bans grow",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nblock_for = [\"1s\",\"2s\",\"3s\",\"4s\",\"5s\"]",
            "bad value for `rule.block_for` of rule b: there are at most 4 bans of growing length",
            8,
            35,
            "later bans",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nblock_prefix_after = 8",
            "bad value for `rule.block_prefix_after` of rule b: the rule does not ban",
            8,
            22,
            "give the length of a ban",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nblock_for = \"1m\"\nban_unverified = true\nblock_prefix_after = 8",
            "bad value for `rule.block_prefix_after` of rule b: forged sources could have their prefix denied",
            10,
            22,
            "leave out one of",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nforget_after = \"1d\"",
            "bad value for `rule.forget_after` of rule b: the rule has no bans to forget",
            8,
            17,
            "block_for",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nban_unverified = true",
            "bad value for `rule.ban_unverified` of rule b: the rule does not ban",
            8,
            18,
            "block_for",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nban_unproven = true",
            "unknown key `ban_unproven`",
            8,
            1,
            "it is called `ban_unverified` now",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nquic_ports = \"443,8443\"",
            "bad value for `rule.quic_ports` of rule b: the rule does not protect UDP port 8443",
            8,
            19,
            "its ports are 80,443",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nquic_ports = \"443-444\"",
            "bad value for `rule.quic_ports` of rule b: `443-444` is not one port",
            8,
            15,
            "or none",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nquic_ports = \"udp\"",
            "bad value for `rule.quic_ports` of rule b: `udp` is not a port",
            8,
            15,
            "ports are",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nports = \"1-9\"\nquic_ports = \"1,2,3,4,5,6,7,8,9\"",
            "bad value for `rule.quic_ports` of rule b: there are more than 8 ports that speak QUIC",
            9,
            15,
            "leave some out",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nunparsable = \"dorp\"",
            "bad value for `rule.unparsable` of rule b: `dorp` is not one of them",
            8,
            15,
            "did you mean `drop`",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\n[[rule.override]]\nlimits = [\"1/s\"]",
            "`rule.override.from` of rule b is missing, or empty",
            0,
            0,
            "under [[rule.override]]",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\n[[rule.override]]\nfrom = [\"192.0.2.1\"]\nlimits = [\"1/s\"]\nuntil = \"May\"",
            "bad value for `rule.override.until` of rule b: `May` is not a date",
            11,
            10,
            "2027-03-31",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\n[[rule.override]]\nform = 1",
            "unknown key `form`",
            9,
            1,
            "did you mean `from`",
        ),
        (
            "name = \"b\"\nlimits = [\"5/s\"]\nuntil = \"2027-01-01\"",
            "unknown key `until`",
            8,
            1,
            "`until` belongs under [[rule.override]]",
        ),
    ] {
        let found = wrong(&second(lines));
        assert_eq!((found.0.as_str(), found.1, found.2), (problem, line, column), "{lines}");
        assert!(found.3.contains(help), "{lines}: {}", found.3);
    }
}

#[test]
fn candidates_are_other_amounts_of_the_rules_limits() {
    let of = |lines: &str| parsed(&format!("[rule]\nlimits = [\"100/5m\", \"1MB/1m\"]\n{lines}\n"));
    let config = of("candidates = [\"50/5m, 200/5m\", \"2MB/1m\"]").expect("well-formed");
    let [(rule, candidates)] = config.candidates.as_slice() else { panic!("{:?}", config.candidates) };
    let limits = &config.policy.rules[0].limits;
    let slots: Vec<_> = candidates.iter().map(|of| (of.amount, of.slot)).collect();
    assert_eq!(
        (rule.as_str(), slots),
        ("default", vec![(50, limits[0].slot), (200, limits[0].slot), (2_000_000, limits[1].slot)])
    );
    assert!(of("").expect("well-formed").candidates.is_empty());
    let eight: Vec<String> = (1..=8).map(|amount| format!("\"{amount}/5m\"")).collect();
    assert_eq!(of(&format!("candidates = [{}]", eight.join(","))).expect("eight").candidates[0].1.len(), 8);
    let rule = |lines: &str| wrong(&format!("[rule]\nlimits = [\"100/5m\"]\n{lines}\n"));
    for (lines, problem, column, help) in [
        ("candidates = [\"50/6m\"]", "no limit of this rule counts requests in 6 minutes", 16, "100/5m requests"),
        (
            "candidates = [\"5/5m\", \"50/5m packets\"]",
            "no limit of this rule counts packets in 5 minutes",
            24,
            "another amount",
        ),
        ("candidates = [\"50/5m, 50/5m\"]", "it is there already", 23, ""),
        ("candidates = [\"0/5m\"]", "a limit of 0 would drop everything", 16, "smallest"),
        (
            "candidates = [\"50/5m\"]\nalgorithm = \"gcra\"",
            "100/5m requests is a leaky bucket, which does not record demand over time",
            16,
            "buckets",
        ),
        (
            "candidates = [\"1/5m,2/5m,3/5m,4/5m,5/5m,6/5m,7/5m,8/5m,9/5m\"]",
            "a rule has at most 8 candidates",
            56,
            "matter most",
        ),
    ] {
        let found = rule(lines);
        assert_eq!(
            (found.0.as_str(), found.2),
            (format!("bad value for `rule.candidates`: {problem}").as_str(), column),
            "{lines}"
        );
        assert!(found.3.contains(help), "{lines}: {}", found.3);
    }
}

#[test]
fn rules_up_to_the_kernels_maximum_are_accepted_and_no_more() {
    let many = |count: usize| {
        (0..count).map(|at| format!("[[rule]]\nname = \"r{at}\"\nlimits = [\"1/s\"]\n")).collect::<String>()
    };
    let with_override = |count| many(count) + "[[rule.override]]\nfrom = [\"192.0.2.1\"]\nlimits = [\"2/s\"]\n";
    assert_eq!(rules(&many(64)).len(), 64);
    assert_eq!(rules(&with_override(63)).len(), 64);
    let (problem, ..) = wrong(&with_override(64));
    assert!(problem.contains("there are 65 rules, including overrides, and the maximum is 64"), "{problem}");
}

#[test]
fn safety_is_on_unless_it_is_said_and_the_breaker_off() {
    let of =
        |lines: &str| parsed(&format!("[rule]\nlimits = [\"1/s\"]\n[safety]\n{lines}\n")).map(|config| config.safety);
    let default = of("").expect("well-formed");
    assert!(default.exempt_ssh_peer && default.exempt_gateway && default.exempt_resolvers);
    assert_eq!(default.breaker, None);
    assert!(!of("exempt_gateway = false").expect("well-formed").exempt_gateway);
    assert_eq!(of("breaker = \"80%\"").expect("well-formed").breaker, Some(80));
    for bad in ["100%", "0%", "80", "of", "%"] {
        assert!(of(&format!("breaker = \"{bad}\"")).is_err(), "{bad}");
    }
    assert_eq!(default.breaker_after_ns, 30_000_000_000);
    for (after, is_good) in [("4s", false), ("5s", true), ("1h", true), ("61m", false), ("30", false)] {
        assert_eq!(of(&format!("breaker_after = \"{after}\"")).is_ok(), is_good, "{after}");
    }
}
