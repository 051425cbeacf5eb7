//! Tasks of a new user, typed into a shell beside a real client. Snapshots show what a terminal shows.
//!
//! Tasks without a daemon are in `ratelimit-userspace/tests/newcomer.rs`. Only [`FILTERS`] replaces what varies, so the
//! remaining counts are exact.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::Duration;

use integration_test::lab::{CLIENTS, Daemon, Lab, SERVER, binary, run};
use netlab::{Child, HttpServer, needs_root};
use nix::sys::signal::Signal;
use regex_lite::Regex;

/// Maximum time to start or stop a daemon on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);

/// Patterns of what varies between two runs, and their replacements, applied in this order. Exact counts stay.
const FILTERS: [(&str, &str); 12] = [
    // Times: in lists, with the same width; in log lines; in notes, which name another day.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "YYYY-MM-DD HH:MM:SS UTC"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "HH:MM:SS"),
    (r"\b(\d{4}-\d\d-\d\d )?\d\d:\d\d UTC", "HH:MM UTC"),
    // Durations of which a part has passed.
    (r"(gain in|, up|  in|(dropped|been) in) \d+ ?(d|h|min|m|s)( \d+ ?(h|min|m|s))?([\s:;.])", "$1 DUR$6"),
    (r"(trial for|rolled back in) \d+ ?(min|[ms])( \d+ ?s)?", "$1 DUR"),
    (r"(without a daemon( since [^(]+ \()?( for )?)(\d+[hm])?\d+s", "${1}DUR"),
    (r"ratelimitd \d+\.\d+\.\d+", "ratelimitd VERSION"),
    (r"/ratelimitd/v\d+/", "/ratelimitd/vLAYOUT/"),
    // Packets depend on the times of TCP's acknowledgements; counts of limits do not.
    (r"(native, in the driver|GENERIC, slow: behind the driver)( +[\d,-]+){6}", "$1  N N N N N N"),
    (r"(?m)^( s0 +native)( +[\d,-]+){5}", "$1  N N N N N"),
    (r"(?m)^(  admitted  +)[\d,]+ packets?; [\d,]+ more", "${1}N packets; N more"),
    // The buckets of a window, any number of them.
    (r"(?m)(^  YYYY-MM-DD HH:MM:SS UTC +[\d,]+\n)+", "  YYYY-MM-DD HH:MM:SS UTC  N\n"),
];

/// A laboratory, a web server, and a shell that records what is typed and shown.
struct Shell {
    lab: Lab,
    daemon: Option<Daemon>,
    environment: Vec<(&'static str, String)>,
    _web: HttpServer,
    written: String,
}

impl Shell {
    fn new() -> Self {
        let lab = Lab::quiet();
        symlink(binary(), lab.directory().join("ratelimitd")).expect("a place on the path");
        let web = lab.web();
        Self { lab, daemon: None, environment: Vec::new(), _web: web, written: String::new() }
    }

    /// Records something that happens without being typed.
    fn say(&mut self, text: &str) {
        self.written += &format!("# {text}\n");
    }

    fn file(&mut self, name: &str, text: &str) {
        // A file without a socket gets the service's socket.
        let text = &text.replacen(
            '\n',
            &format!("\nsocket = \"{}\"\n", self.lab.socket().display()),
            usize::from(name.ends_with("toml")),
        );
        fs::write(self.lab.directory().join(name), text).expect("a file");
        self.written += &format!("$ cat {name}\n{}\n", text.trim_end());
        self.written.push('\n');
    }

    fn command(&self, line: &str) -> std::process::Command {
        let mut command = self.lab.command("sh");
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.lab.directory().display());
        // The name servers of the real machine do not belong to this host.
        let line = format!("mount --bind /dev/null /etc/resolv.conf; {line}");
        command.args(["-c", &line]).current_dir(self.lab.directory());
        command.env_remove("SSH_CONNECTION").env_remove("SUDO_USER").env("PATH", path).env("TZ", "UTC");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("COLUMNS", "100").env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }

    /// Types a command, and waits for its end.
    fn types(&mut self, line: &str) {
        let output = run(self.command(&format!("exec 2>&1; {line}")));
        let code = if output.code() == 0 { String::new() } else { format!("[exit code {}]\n", output.code()) };
        self.written += &format!("$ {line}\n{}{code}\n", output.stdout);
    }

    /// Types a command that keeps running, and waits until it is ready.
    fn starts(&mut self, line: &str) {
        let child = Child::start(self.command(&format!("exec {line}"))).expect("it starts");
        child.wait_for_line("ratelimitd: ready", WITHIN).expect("it is ready");
        self.written += &format!("$ {line} &\n{}\n", child.stderr());
        self.daemon = Some(Daemon { child });
    }

    /// Interrupts the running command as Ctrl-C does, and records its output since it was ready.
    fn interrupts(&mut self) {
        let mut daemon = self.daemon.take().expect("something goes on");
        daemon.child.signal(Signal::SIGINT).expect("it is there");
        let status = daemon.child.wait(WITHIN).expect("it ends");
        let said = daemon.child.stderr();
        let last = said.split_once("ratelimitd: ready\n").map_or("", |(_, last)| last);
        self.written += &format!("^C\n{last}[exit code {}]\n\n", status.code().unwrap_or(-1));
    }

    /// Waits until the running command has printed this text, so that later output comes later.
    fn hears(&self, text: &str) {
        let daemon = self.daemon.as_ref().expect("something goes on");
        daemon.child.wait_for_line(text, WITHIN).expect("it is said");
    }

    fn kills(&mut self) {
        self.daemon.take().expect("something goes on").kill();
        self.say("The daemon is killed with SIGKILL.\n");
    }

    /// Opens connections to port 80 from an address, and records how many succeed.
    fn connects(&mut self, from: &str, times: usize, expected: usize) {
        for _ in 0..expected.min(times) {
            self.lab.open(from, 80);
        }
        for _ in expected..times {
            self.lab.assert_blocked(from, 80);
        }
        let s = if times == 1 { "" } else { "s" };
        self.say(&format!("{from} tries {times} connection{s} to port 80; {expected} opened.\n"));
    }

    /// Makes a source exceed the limit on an open connection, because forged SYNs alone ban nobody.
    fn exceeds(&mut self, from: &str) {
        let mut open = self.lab.open(from, 80);
        (1..10).for_each(|_| drop(self.lab.open(from, 80)));
        self.lab.assert_blocked(from, 80);
        open.write_all(b"GET").expect("it is sent");
        self.say(&format!("{from} tries 11 connections to port 80; 10 opened, and one of these sends more.\n"));
    }

    /// Returns everything recorded, with [`FILTERS`] applied.
    fn transcript(&self) -> String {
        let directory = self.lab.directory().display().to_string();
        let mut text = self.written.replace(&directory, "/srv/web");
        for (pattern, with) in FILTERS {
            text = Regex::new(pattern).expect("a pattern").replace_all(&text, with).into_owned();
        }
        text
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.transcript());
        }
    }
}

macro_rules! tasks {
    ($($name:ident: |$shell:ident| $script:block)*) => {
        $(
            #[test]
            fn $name() {
                needs_root!();
                let mut shell = Shell::new();
                let $shell = &mut shell;
                $script
                insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => true }, {
                    insta::assert_snapshot!(stringify!($name), shell.transcript());
                });
            }
        )*
    };
}

const LIMIT: &str = "--limit \"10/1h connections\"";

tasks! {
    the_first_run_is_a_dry_run: |shell| {
        shell.types("ratelimitd");
        shell.types("ratelimitd stats");
        shell.types("ratelimitd --iface s1 --limit 1000/5m");
        shell.types(&format!("ratelimitd check-config --iface s0 {LIMIT} --dry-run"));
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT} --dry-run"));
        shell.connects(CLIENTS[0], 12, 12);
        shell.hears("10.9.0.2 would be refused");
        shell.connects(CLIENTS[1], 3, 3);
        shell.types("ratelimitd stats");
        shell.types("ratelimitd check 10.9.0.2");
        shell.types("ratelimitd mode");
        shell.types("ratelimitd mode enforce");
        shell.interrupts();
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT}"));
        shell.connects(CLIENTS[0], 11, 10);
        shell.interrupts();
        shell.types("ratelimitd stats");
    }

    sources_over_the_limit_are_shown: |shell| {
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT}"));
        shell.connects(CLIENTS[0], 11, 10);
        shell.connects(CLIENTS[1], 3, 3);
        shell.types("ratelimitd stats");
        shell.types("script -qec 'stty rows 24 cols 80; ratelimitd stats' /dev/null | tr -d '\\r'");
        shell.types("ratelimitd check 10.9.0.2");
        shell.types("ratelimitd check 10.9.0.3");
        shell.types("ratelimitd check 10.9.0.77");
        shell.types("ratelimitd check 10.9.0.0/24");
        shell.types("ratelimitd explain 10.9.0.2 --to 80");
        shell.types("ratelimitd explain 10.9.0.2 --to 22");
        shell.types("ratelimitd list");
        shell.types("ratelimitd top");
    }

    a_ban_by_hand: |shell| {
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT}"));
        shell.types("ratelimitd ban 10.9.0.2 --for 1d --reason scraper");
        shell.connects(CLIENTS[0], 1, 0);
        shell.types("ratelimitd list");
        shell.types("ratelimitd check 10.9.0.2");
        shell.types("ratelimitd deny 10.9.0.2 --for 10m");
        shell.types("ratelimitd deny 10.9.0.2 --for 10m --replace");
        shell.types("ratelimitd deny 10.9.0.2");
        shell.types("ratelimitd allow 10.9.0.2");
        shell.types("ratelimitd list");
        shell.connects(CLIENTS[0], 1, 1);
        shell.types("ratelimitd unallow 10.9.0.2");
        shell.types("ratelimitd deny 10.9.0.300");
        shell.types("ratelimitd deny 10.9.0.3/24 --for 1h");
        shell.types("ratelimitd deny");
        shell.types("ratelimitd deny example.org");
        shell.types("ratelimitd deny 10.9.0.3 --for ever");
        shell.types("ratelimitd deny 10.9.0.3 --for permanent");
        shell.types("ratelimitd stats");
    }

    an_address_is_unblocked: |shell| {
        shell.file("bad.txt", "10.9.0.4  # feed of yesterday\n");
        shell.file(
            "web.toml",
            "interfaces = [\"s0\"]\ndeny = [\"file:bad.txt\"]\non_exit = \"detach\"\n\n[rule]\n\
             limits = [\"10/1h connections\"]\nblock_for = \"1h\"\nmode = \"enforce\"\n",
        );
        shell.starts("ratelimitd run --config web.toml");
        shell.exceeds(CLIENTS[0]);
        shell.types("ratelimitd list");
        shell.types("ratelimitd check 10.9.0.2");
        shell.types("ratelimitd unblock 10.9.0.2");
        shell.connects(CLIENTS[0], 11, 10);
        shell.types("ratelimitd unban 10.9.0.3");
        shell.types("ratelimitd deny 10.9.0.3 --reason scraper");
        shell.types("ratelimitd unblock 10.9.0.3");
        shell.connects(CLIENTS[1], 1, 1);
        shell.types("ratelimitd deny 10.9.0.2/31 10.9.0.3");
        shell.types("ratelimitd unblock 10.9.0.3");
        shell.types("ratelimitd check 10.9.0.3");
        shell.types("ratelimitd unblock 10.9.0.2/31");
        shell.types("ratelimitd unblock 10.9.0.4");
        shell.types("ratelimitd unblock");
        shell.types("ratelimitd deny 10.9.0.2 10.9.0.3");
        shell.types("ratelimitd unblock --all");
        shell.types("ratelimitd unblock --all");
        shell.types("ratelimitd reset 10.9.0.2");
        shell.types("ratelimitd unallow 10.9.0.2");
    }

    attempts_to_lock_oneself_out: |shell| {
        shell.lab.server.ip(&["route", "add", "default", "via", CLIENTS[2]]).expect("a route");
        let session = format!("{} 50000 {} 22", CLIENTS[0], SERVER[0]);
        shell.environment.push(("SSH_CONNECTION", session.clone()));
        shell.say(&format!("The SSH session is {session}; the default gateway is {}.\n", CLIENTS[2]));
        shell.types("ratelimitd check-config --iface s0 --port ssh --count connections --limit 5/1m");
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT}"));
        shell.types("ratelimitd deny 10.9.0.2");
        shell.types("ratelimitd deny 10.9.0.4");
        shell.types("ratelimitd deny 10.9.0.0/24");
        shell.types("ratelimitd deny 0.0.0.0/0");
        shell.types("ratelimitd deny 0.0.0.0/0 --force --for 1m");
        shell.types("ratelimitd list");
        shell.types("ratelimitd panic");
        shell.types("ratelimitd stats");
        shell.types("ratelimitd unblock 0.0.0.0/0");
        shell.types("ratelimitd mode enforce");
        shell.types("ratelimitd detach s0");
        shell.types("ratelimitd deny 10.9.0.1");
    }

    a_daemon_that_died: |shell| {
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT} --on-exit keep"));
        shell.connects(CLIENTS[0], 11, 10);
        // A daemon writes its first sign of life beside the pins after two seconds.
        shell.lab.stats_once(|stats| stats["uptime_seconds"].as_f64().is_some_and(|up| up > 3.0));
        shell.kills();
        shell.connects(CLIENTS[0], 1, 0);
        shell.types("ratelimitd stats");
        shell.types("ratelimitd check 10.9.0.2");
        shell.types("ratelimitd deny 10.9.0.3");
        shell.types("ratelimitd mode enforce");
        shell.starts(&format!("ratelimitd --iface s0 {LIMIT} --on-exit keep"));
        shell.connects(CLIENTS[0], 1, 0);
        shell.kills();
        shell.types("ratelimitd detach");
        shell.connects(CLIENTS[0], 1, 1);
        shell.types("ratelimitd stats");
        shell.types("ratelimitd detach");
    }

    a_trial_and_its_roll_back: |shell| {
        let file = |amount: u32| format!(
            "interfaces = [\"s0\"]\non_exit = \"detach\"\n\n[rule]\nlimits = [\"{amount}/1h connections\"]\nmode = \"enforce\"\n"
        );
        shell.file("web.toml", &file(10));
        shell.starts("ratelimitd run --config web.toml");
        shell.types("ratelimitd confirm");
        shell.types("ratelimitd rollback");
        shell.file("web.toml", &file(2));
        shell.types("ratelimitd apply web.toml --confirm 10m");
        shell.connects(CLIENTS[0], 3, 2);
        shell.types("ratelimitd stats");
        shell.types("ratelimitd deny 10.9.0.3 --reason scraper");
        shell.types("ratelimitd reload");
        shell.types("ratelimitd apply web.toml --confirm 10m");
        shell.types("ratelimitd rollback");
        shell.connects(CLIENTS[0], 1, 1);
        shell.connects(CLIENTS[1], 1, 0);
        shell.types("ratelimitd stats");
        shell.types("ratelimitd list");
        shell.types("ratelimitd apply web.toml --confirm 10m");
        shell.types("ratelimitd confirm");
        shell.types("ratelimitd stats | head -3");
        shell.types("ratelimitd apply web.toml");
        shell.file("web.toml", &file(2).replace("limits", "limit"));
        shell.types("ratelimitd reload");
        shell.types("ratelimitd stats | head -3");
    }
}
