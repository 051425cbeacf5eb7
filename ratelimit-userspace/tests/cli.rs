//! Tests of the command line through the real binary. The expected output is in `snapshots/`. Needs neither privileges
//! nor a daemon.
//!
//! Commands that would limit name an interface that does not exist, so that even one that runs by mistake attaches to
//! nothing.
#![expect(clippy::expect_used, reason = "a test that cannot run its program fails")]

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use tempfile::TempDir;

/// Time limit of a command, as none waits for anything.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Returns the binary in an environment that is the same everywhere, in this directory.
fn ratelimitd(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::cargo_bin("ratelimitd").expect("built with the tests");
    command.args(arguments).current_dir(directory).env_clear().env("COLUMNS", "100").env("TERM", "dumb");
    command.timeout(ENDS_WITHIN);
    command
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().expect("a directory for files");
    for (name, contents) in files {
        std::fs::write(directory.path().join(name), contents).expect("write a file");
    }
    directory
}

/// A capture that ends within the header of its first packet.
const CUT_OFF: [u8; 30] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_capture_that_is_cut_off_is_read_from_standard_input_with_a_warning() {
    let directory = directory(&[]);
    let mut command = ratelimitd(&["replay", "-", "--limit", "3/1m"], directory.path());
    let output = command.write_stdin(CUT_OFF).output().expect("run");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("warning: the capture cannot be read behind packet 0"), "{talk}");
    assert_eq!(output.status.code(), Some(0));
    let mut command = ratelimitd(&["replay", "-", "--limit", "3/1m"], directory.path());
    let output = command.write_stdin(&CUT_OFF[..20]).output().expect("run");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains("standard input: its header is damaged or cut off"), "{talk}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_configuration_that_is_a_pipe_is_refused_without_waiting() {
    let directory = directory(&[]);
    let made = std::process::Command::new("mkfifo").arg(directory.path().join("pipe")).status().expect("run mkfifo");
    assert!(made.success());
    for (arguments, code) in [
        (&["check-config", "pipe"][..], 78),
        (&["run", "--config", "pipe"], 78),
        (&["doctor", "--config", "pipe", "--socket", "none"], 1),
        (&["bug-report", "--config", "pipe", "--socket", "none", "--out", "report.tar.gz"], 0),
    ] {
        let output = ratelimitd(arguments, directory.path()).output().expect("run");
        let talk = [output.stdout, output.stderr].concat();
        let talk = String::from_utf8_lossy(&talk);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {talk}");
        assert!(talk.contains("it is a pipe, not a file") || arguments[0] == "bug-report", "{arguments:?}: {talk}");
    }
}

/// Returns the output on a terminal, with streams and exit code separated.
fn transcript(arguments: &[&str], files: &[(&str, &str)]) -> String {
    let directory = directory(files);
    let output = ratelimitd(arguments, directory.path()).output().expect("run");
    let stream = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes).expect("UTF-8") {
        "" => String::new(),
        text => format!("--- {name}\n{text}"),
    };
    format!(
        "$ ratelimitd {}\nexit code {}\n{}{}",
        arguments.join(" "),
        output.status.code().expect("ended by itself"),
        stream("stdout", &output.stdout),
        stream("stderr", &output.stderr)
    )
}

macro_rules! transcripts {
    ($($name:ident: $arguments:expr $(, $files:expr)?;)*) => {
        $(
            #[test]
            fn $name() {
                let files: &[&[(&str, &str)]] = &[$(&$files)?];
                let text = transcript(&$arguments, &files.concat());
                insta::with_settings!({ omit_expression => true }, {
                    insta::assert_snapshot!(stringify!($name), text);
                });
            }
        )*
    };
}

const LOG: &str = r#"198.51.100.7 - - [10/Oct/2026:13:55:36 -0700] "GET / HTTP/1.1" 200 2326
198.51.100.7 - - [10/Oct/2026:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326
192.0.2.9 - frank [10/Oct/2026:13:55:37 -0700] "GET / HTTP/1.1" 200 2326 "http://a.example/" "Mozilla/5.0 (X11)"
198.51.100.7 - - [10/Oct/2026:13:55:38 -0700] "GET /b HTTP/1.1" 200 2326
198.51.100.7 - - [10/Oct/2026:13:55:39 -0700] "GET /c HTTP/1.1" 200 2326
crawler.example - - [10/Oct/2026:13:55:40 -0700] "GET /c HTTP/1.1" 200 2326
198.51.100.7 - - [10/Oct/2026:13:55:41 -0700] "GET /d HTTP/1.1" 200 2326
"#;

const GOOD: &str = r#"
interfaces = ["lo"]
on_exit = "keep"
allow = ["2001:db8::/32", "192.0.2.0/24"]
ipv6_prefix = 56
listen = "127.0.0.1:9464"

[rule]
name = "login"
limits = ["5/1m", "20/1h", "10MB/1m"]
ports = "22/tcp"
mode = "dry-run"
refuse = "all"
"#;

const FLEET: &str = r#"
interfaces = ["lo"]

[fleet]
url = ["rediss://192.0.2.1:6379", "rediss://192.0.2.2:6379"]
name = "web"
secret_file = "/nonexistent/fleet.secret"
username = "rl"
password_file = "/nonexistent/fleet.password"
ca_file = "/nonexistent/ca.pem"
hosts = 4
floor = "10%"

[[rule]]
name = "web"
limits = ["1000/5m", "50/10s connections"]

[[rule]]
name = "all"
limits = ["250MB/5m"]
ports = "8443"
fleet_sum = "all"

[[rule]]
name = "login"
limits = ["6/30s"]
ports = "8444"
algorithm = "gcra"
fleet = false
"#;

const GUARDS: &str = r#"
interfaces = ["lo"]

[[rule]]
name = "two"
limits = ["10/1m", "2000/1h"]
ports = "443/tcp"

[[rule]]
name = "all"
limits = ["10/1m"]
ports = "444/tcp"
refuse = "all"
unparsable = "count"

[[rule]]
name = "off"
limits = ["10/1m"]
ports = "445/tcp"
guard = "off"

[[rule]]
name = "udp"
limits = ["10/1m"]
ports = "53/udp"

[[rule]]
name = "leaky"
limits = ["10/1m"]
ports = "446/tcp"
algorithm = "gcra"
"#;

transcripts! {
    nothing_is_a_short_usage: [];
    help_short: ["-h"];
    help_long: ["--help"];
    help_run: ["run", "--help"];
    help_stats: ["stats", "--help"];
    help_check: ["check", "--help"];
    help_check_config: ["check-config", "-h"];
    help_detach: ["detach", "--help"];
    help_reload: ["reload", "-h"];
    help_explain: ["explain", "--help"];
    help_suggest: ["suggest", "--help"];
    help_list: ["list", "-h"];
    help_fleet: ["fleet", "-h"];
    help_import: ["import", "-h"];
    help_lists_check: ["lists", "check", "-h"];
    help_lists_from_mmdb: ["lists", "from-mmdb", "-h"];
    help_crowdsec: ["crowdsec", "-h"];
    help_allow: ["allow", "--help"];
    help_deny: ["deny", "-h"];
    help_unblock: ["unblock", "-h"];
    help_unallow: ["unallow", "-h"];
    help_reset: ["reset", "-h"];
    help_panic: ["panic", "-h"];
    help_mode: ["mode", "-h"];
    help_apply: ["apply", "--help"];
    help_confirm: ["confirm", "-h"];
    help_rollback: ["rollback", "-h"];
    help_completions: ["completions", "-h"];
    help_man: ["man", "-h"];
    help_replay: ["replay", "--help"];

    bad_unit_of_time: ["--iface", "nosuch0", "--limit", "1000/5x"];
    bad_second_limit: ["--iface", "nosuch0", "--limit", "10/1m, 60/1horu"];
    bad_limit_without_window: ["--iface", "nosuch0", "--limit", "1000"];
    bad_limit_with_a_short_window: ["--iface", "nosuch0", "--limit", "10/500ms"];
    bad_limit_with_a_long_window: ["--iface", "nosuch0", "--limit", "1000 per week"];
    bad_limit_with_a_point: ["--iface", "nosuch0", "--limit", "1.000/1m"];
    bad_limit_with_a_fraction: ["--iface", "nosuch0", "--limit", "1.5r/s"];
    bad_limit_of_nginx: ["--iface", "nosuch0", "--limit", "rate=10r/s burst=20"];
    bad_limit_of_fail2ban: ["--iface", "nosuch0", "--limit", "maxretry=5 findtime=600 bantime=1h"];
    bad_limit_of_haproxy: ["--iface", "nosuch0", "--limit", "http_req_rate(10s) gt 100"];
    bad_limit_of_nothing: ["--iface", "nosuch0", "--limit", "0/5m"];
    bad_limit_empty: ["--iface", "nosuch0", "--limit", ""];
    bad_limit_twice: ["--iface", "nosuch0", "--limit", "1000/5m", "--limit", "900/5m"];
    bad_limit_too_large: ["--iface", "nosuch0", "--limit", "10GB/1s"];
    bad_size: ["--iface", "nosuch0", "--limit", "50mb/1m"];
    bad_unit: ["--iface", "nosuch0", "--limit", "10/1m", "--count", "conections"];
    bad_budget_of_new_sources: ["--iface", "nosuch0", "--limit", "10/1m", "--new-sources", "20000/5x"];
    bad_port: ["--iface", "nosuch0", "--limit", "10/1m", "--port", "80,htps"];
    bad_cidr: ["--iface", "nosuch0", "--limit", "10/1m", "--allow", "192.0.2.1/24"];
    bad_prefix: ["--iface", "nosuch0", "--limit", "10/1m", "--ipv4-prefix", "33"];
    bad_interface_name: ["--iface", "eth0,eth1", "--limit", "10/1m"];
    bad_mode: ["--iface", "nosuch0", "--limit", "10/1m", "--xdp-mode", "natve"];
    bad_listen: ["--iface", "nosuch0", "--limit", "10/1m", "--listen", "9464"];
    missing_interface: ["--limit", "1000/5m"];
    missing_limit: ["--iface", "nosuch0"];
    fleet_without_a_daemon: ["fleet", "--socket", "none.sock"];
    suggest_without_a_daemon: ["suggest", "--socket", "none.sock"];
    missing_value: ["--iface", "nosuch0", "--limit"];
    unknown_flag: ["--iface", "nosuch0", "--limti", "1000/5m"];
    unknown_command: ["stat"];
    flag_of_the_one_liner_with_a_command: ["--iface", "nosuch0", "stats"];
    socket_before_the_command: ["--socket", "my.sock", "stats"];
    flags_with_run: ["--dry-run", "run"];
    bad_prefix_to_deny: ["deny", "192.0.2.1/33"];
    bad_time_to_deny: ["deny", "192.0.2.1", "--for", "5x"];
    bad_prefix_to_unblock_among_several: ["unblock", "192.0.2.1/33", "192.0.2.2", "--socket", "none.sock"];
    nothing_to_unblock: ["unblock"];
    all_and_one_to_unblock: ["unblock", "--all", "192.0.2.1"];
    nothing_on_standard_input_to_deny: ["deny", "-"];
    bad_time_to_confirm: ["apply", "--confirm", "500ms"];
    bad_port_to_explain: ["explain", "192.0.2.1", "--to", "htps"];
    bad_mode_to_set: ["mode", "off"];
    bad_source_to_reset: ["reset", "192.0.2.0/24"];
    top_without_a_terminal: ["top"];
    top_as_json: ["top", "--json"];
    bad_source: ["check", "198.51.100.300"];

    file_missing: ["run", "--config", "ratelimitd.toml"];
    file_is_a_directory: ["check-config", "."];
    file_unknown_key: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"]\n\n[rule]\nlimts = [\"1000/5m\"]\n")];
    file_key_of_the_other_table: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"]\nmode = \"dry-run\"\n")];
    file_bad_in_many_places: ["check-config", "r.toml"], [("r.toml", "interface = [\"lo\"]\nxdp_mode = \"natve\"\n\n[rule]\nlimits = [\"10/1m\", \"100/1x\"]\nports = [80, \"htps\"]\nmode = enforce\nblock-for = \"10m\"\n")];
    run_of_a_file_bad_in_two_places: ["run", "--config", "r.toml"], [("r.toml", "interfaces = [\"nosuch0\"]\n[rule]\nlimits = [\"10/1m\"]\nports = 80, 443\n\n[safty]\n")];
    flags_bad_in_two_places: ["--iface", "nosuch0", "--limit", "10/1x", "--port", "htps", "--xdp-mode", "natve"];
    check_config_of_ports_in_a_list: ["check-config", "r.toml", "--json"], [("r.toml", "interfaces = \"lo\"\n[rule]\nlimits = \"10 requests per minute\"\nports = [80, \"https\", \"8000-8100\", \"53/udp\"]\n")];
    file_bad_limit: ["run", "--config", "r.toml"], [("r.toml", "interfaces = [\"nosuch0\"]\n[rule]\nlimits = [\"10/1m\", \"60/1y\"]\n")];
    file_candidate_of_no_limit: ["check-config", "r.toml"],
        [("r.toml", "interfaces = [\"lo\"]\n[rule]\nlimits = [\"10/1m\", \"60/1h\"]\ncandidates = [\"20/1m\", \"100/2h\"]\n")];
    file_bad_budget_of_new_sources: ["check-config", "r.toml"],
        [("r.toml", "interfaces = [\"lo\"]\n[rule]\nlimits = [\"10/1m\"]\nnew_sources = \"20000/1h\"\n")];
    file_key_near_new_sources: ["check-config", "r.toml"],
        [("r.toml", "interfaces = [\"lo\"]\n[rule]\nlimits = [\"10/1m\"]\nnew_source = \"20000/s\"\n")];
    file_bad_syntax: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"\n[rule]\n")];
    file_bad_type: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"]\nmax_sources = \"many\"\n")];
    file_two_rules_without_a_name: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"]\n[[rule]]\nlimits = [\"10/1m\"]\n[[rule]]\nlimits = [\"10/1m\"]\n")];
    file_bad_list_file: ["check-config", "r.toml"],
        [("r.toml", "interfaces = [\"lo\"]\ndeny = [\"file:drop.txt\"]\n[rule]\nlimits = [\"10/1m\"]\n"), ("drop.txt", "; DROP\n192.0.2.0/24 ; a\n192.0.2.999 ; b\n")];
    file_without_its_list_file: ["check-config", "r.toml"],
        [("r.toml", "interfaces = [\"lo\"]\ndeny = [\"file:drop.txt\"]\n[rule]\nlimits = [\"10/1m\"]\n")];
    file_key_twice: ["check-config", "r.toml"], [("r.toml", "interfaces = [\"lo\"]\ninterfaces = [\"eth0\"]\n")];
    file_empty: ["check-config", "r.toml"], [("r.toml", "")];
    file_bad_number: ["check-config", "r.toml"], [("r.toml", "ipv4_prefix = 33\n")];

    replay_of_a_log: ["replay", "access.log", "--limit", "3/1m"], [("access.log", LOG)];
    replay_of_a_log_in_json: ["replay", "access.log", "--limit", "3/1m", "--json"], [("access.log", LOG)];
    replay_of_a_log_that_nobody_exceeds: ["replay", "access.log", "--limit", "100/1m", "--window", "lenient"], [("access.log", LOG)];
    replay_of_nothing: ["replay", "access.log", "--limit", "3/1m"], [("access.log", "")];
    replay_of_another_text: ["replay", "notes.txt", "--limit", "3/1m"], [("notes.txt", "Buy bread.\n")];
    replay_of_a_program: ["replay", "program", "--limit", "3/1m"], [("program", "\x7fELF\x02\x01\0\0")];
    replay_of_no_file: ["replay", "nosuch.pcap", "--limit", "3/1m"];
    replay_of_a_directory: ["replay", ".", "--limit", "3/1m"];
    replay_without_a_limit: ["replay", "access.log"], [("access.log", LOG)];
    replay_of_connections_in_a_log: ["replay", "access.log", "--limit", "3/1m", "--count", "connections"], [("access.log", LOG)];
    replay_of_ports_of_a_log: ["replay", "access.log", "--limit", "3/1m", "--port", "443"], [("access.log", LOG)];
    replay_with_a_bad_limit: ["replay", "access.log", "--limit", "3/1y"], [("access.log", LOG)];
    limit_before_replay: ["--limit", "3/1m", "replay", "access.log"];

    check_config_of_flags: ["check-config", "--iface", "lo", "--limit", "1000/5m"];
    check_config_of_habits:
        ["check-config", "--iface", "lo", "--limit", "10r/s", "--limit", "1,000 per minute", "--limit", "5 requests per hour",
         "--port", "ssh,dns/udp", "--block-for", "1 hour, 1w"];
    check_config_of_a_budget: ["check-config", "--iface", "lo", "--limit", "1000/5m,60/1h", "--new-sources", "20000/s"];
    check_config_lenient: ["check-config", "--iface", "lo", "--limit", "1000/1m", "--window", "lenient", "--dry-run"];
    check_config_warns: ["check-config", "--iface", "nosuch0", "--limit", "1000/1m,1000/5m", "--port", "all"];
    check_config_quietly: ["-q", "check-config", "--iface", "nosuch0", "--limit", "1000/5m"];
    check_config_of_a_file: ["check-config", "r.toml"], [("r.toml", GOOD)];
    check_config_of_guards: ["check-config", "g.toml"], [("g.toml", GUARDS)];
    check_config_json: ["check-config", "r.toml", "--json"], [("r.toml", GOOD)];
    check_config_json_of_a_bad_file:
        ["check-config", "r.toml", "--json"], [("r.toml", "interfaces = [\"lo\"]\n[rule]\nlimits = [\"0/1m\"]\n")];
    check_config_of_a_site: ["check-config", "site.toml"],
        [("site.toml", &include_str!("../../examples/site.toml").replace("eth0", "lo")), ("deny.txt", include_str!("../../examples/deny.txt"))];
    check_config_of_a_fleet: ["check-config", "f.toml"], [("f.toml", FLEET)];
    check_config_json_of_a_fleet: ["check-config", "f.toml", "--json"], [("f.toml", FLEET)];
    check_config_of_a_fleet_by_flags:
        ["check-config", "--iface", "lo", "--limit", "1000/5m", "--fleet", "redis://127.0.0.1:7000", "--fleet",
         "redis://127.0.0.1:7001"];
    check_config_of_a_fleet_without_a_secret:
        ["check-config", "--iface", "lo", "--limit", "1000/5m", "--fleet", "redis://192.0.2.1"];
    check_config_of_a_password_in_an_address:
        ["check-config", "--iface", "lo", "--limit", "1000/5m", "--fleet", "redis://rl:hunter2@127.0.0.1"];
    check_config_of_both: ["check-config", "r.toml", "--limit", "10/1m"], [("r.toml", GOOD)];
}

#[test]
fn the_version_is_that_of_the_package() {
    let directory = directory(&[]);
    for arguments in [&["version"][..], &["--version"], &["version", "--json"], &["-o", "json", "version"]] {
        let output = ratelimitd(arguments, directory.path()).assert().success().get_output().stdout.clone();
        let text = String::from_utf8(output).expect("UTF-8");
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{arguments:?}: {text}");
        if arguments.contains(&"json") || arguments.contains(&"--json") {
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((&json["schema"], &json["layout"]), (&1.into(), &ratelimit_common::layout::VERSION.into()));
            assert!(json["target"].as_str().is_some_and(|target| target.ends_with("linux")));
            let hash = json["bpf_object_sha256"].as_str().expect("the hash of the object");
            assert!(hash.len() == 64 && hash.chars().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
        }
    }
}

#[test]
fn every_shell_has_completions() {
    let directory = directory(&[]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output =
            ratelimitd(&["completions", shell], directory.path()).assert().success().get_output().stdout.clone();
        let script = String::from_utf8(output).expect("UTF-8");
        assert!(script.contains("check-config") && script.contains("lenient"), "{shell}");
    }
    ratelimitd(&["completions", "ksh"], directory.path()).assert().code(2);
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = directory(&[]);
    let page = ratelimitd(&["man"], directory.path()).assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(page).expect("UTF-8").contains(".TH ratelimitd 1"));
    ratelimitd(&["man", "--dir", "pages"], directory.path()).assert().success();
    for name in ["ratelimitd", "ratelimitd-run", "ratelimitd-stats", "ratelimitd-check", "ratelimitd-check-config"] {
        assert!(directory.path().join(format!("pages/{name}.1")).is_file(), "{name}");
    }
    let of_file = std::fs::read_to_string(directory.path().join("pages/ratelimitd.toml.5")).expect("the file's page");
    assert!(of_file.contains(".TH ratelimitd.toml 5") && of_file.contains("rule.block_for"), "{of_file}");
    ratelimitd(&["man", "--dir", "pages/ratelimitd.1"], directory.path()).assert().code(1);
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let directory = directory(&[]);
    let is_coloured = |arguments: &[&str], variable: Option<&str>| {
        let mut command = ratelimitd(arguments, directory.path());
        variable.map(|name| command.env(name, "1"));
        command.output().expect("run").stderr.contains(&0x1b)
    };
    assert!(!is_coloured(&["--limit", "1/1s"], None));
    assert!(is_coloured(&["--limit", "1/1s", "--color", "always"], None));
    assert!(is_coloured(&["--limit", "1/1s"], Some("CLICOLOR_FORCE")));
    assert!(!is_coloured(&["--limit", "1/1s"], Some("NO_COLOR")));
    assert!(!is_coloured(&["--limit", "1/1s", "--color", "never"], Some("CLICOLOR_FORCE")));
}

#[test]
fn colours_that_are_asked_for_are_in_help_refusals_and_tables_and_never_in_json() {
    let directory = directory(&[("access.log", LOG), ("r.toml", GOOD)]);
    let codes = |arguments: &[&str], variable: Option<&str>| {
        let mut command = ratelimitd(arguments, directory.path());
        variable.map(|name| command.env(name, "1"));
        let output = command.output().expect("run");
        [output.stdout, output.stderr].map(|stream| stream.contains(&0x1b))
    };
    let table = ["replay", "access.log", "--limit", "3/1m"];
    for (arguments, expected) in [
        (&["--help"][..], [true, false]),
        (&["deny", "-h"], [true, false]),
        (&["stat"], [false, true]),
        (&["--limit", "1/1s"], [false, true]),
        (&["--limit", "1/1s", "stats"], [false, true]),
        // This log has an unreadable line.
        (&table, [true, true]),
    ] {
        let with = |when: &'static str| [arguments, &["--color", when]].concat();
        assert_eq!(codes(&with("always"), None), expected, "{arguments:?}");
        assert_eq!(codes(&with("always"), Some("NO_COLOR")), expected, "a flag overrides a variable: {arguments:?}");
        for (when, variable) in [("never", Some("CLICOLOR_FORCE")), ("auto", None), ("auto", Some("NO_COLOR"))] {
            assert_eq!(codes(&with(when), variable), [false, false], "{when} {variable:?} {arguments:?}");
        }
        let first = [&["--color=always"], arguments].concat();
        assert_eq!(codes(&first, None), expected, "{first:?}");
    }
    for arguments in
        [&["version", "--json"][..], &["check-config", "r.toml", "--json"], &["completions", "bash"], &["man"]]
    {
        let arguments = [arguments, &["--color", "always"]].concat();
        assert!(!codes(&arguments, Some("CLICOLOR_FORCE"))[0], "{arguments:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let directory = directory(&[]);
    let binary = assert_cmd::cargo::cargo_bin("ratelimitd");
    let script = format!("'{}' man | head -n 1 > /dev/null; exit ${{PIPESTATUS[0]}}", binary.display());
    let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(directory.path()).output();
    let output = output.expect("run bash");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &[][..]));
}
