//! Tests of `stats` on a terminal of 80x24, and of `--watch` while the daemon goes away and comes back.

use std::fs;
use std::process::{Command, Stdio};

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, binary, once};
use netlab::{Child, needs_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: [&str; 4] = ["--iface", "s0", "--limit", "10/1h connections"];

/// Returns a command for the binary on a terminal of 80x24. It writes its process ID to `pid` and its output to
/// `shown`.
fn on_terminal(lab: &Lab, line: &str) -> Command {
    let mut command = lab.command("script");
    let typed = format!("stty rows 24 cols 80; echo $$ > pid; exec {} {line}", binary().display());
    command.args(["--quiet", "--return", "--flush", "--command", &typed, "shown"]).stdin(Stdio::null());
    command.current_dir(lab.directory()).env("NO_COLOR", "1").env("TERM", "xterm");
    command
}

fn shown(lab: &Lab) -> String {
    String::from_utf8_lossy(&fs::read(lab.directory().join("shown")).unwrap_or_default()).into_owned()
}

/// Returns the lines between those of `script` itself.
fn lines(shown: &str) -> Vec<&str> {
    shown.lines().filter(|line| !line.starts_with("Script ")).collect()
}

#[test]
fn a_terminal_of_80x24_shows_what_fits_and_a_pipe_or_all_gets_the_rest() {
    needs_root!();
    let lab = Lab::quiet();
    let _web = lab.web();
    let mut args = LIMIT.to_vec();
    args.extend(["--allow", "192.0.2.0/24"]);
    let _daemon = lab.start(&args);
    for (at, client) in CLIENTS.into_iter().enumerate() {
        (0..=at).for_each(|_| drop(lab.open(client, 80)));
    }
    for (line, most) in [("stats", 23), ("stats --all -v", usize::MAX)] {
        assert!(on_terminal(&lab, line).status().unwrap().success());
        let shown = shown(&lab);
        let lines = lines(&shown);
        assert!(lines.iter().all(|line| line.chars().count() <= 80) && lines.len() <= most, "{shown}");
        assert!(shown.contains("3 of 10 connections"), "{shown}");
        assert_eq!(shown.contains("Counted connections: exact"), most == usize::MAX, "{shown}");
    }
    let piped = lab.ratelimitd(&["stats"]).stdout;
    assert!(piped.contains("3 of 10 connections in 1h") && piped.contains("native, in the driver"), "{piped}");
}

#[test]
fn a_watched_daemon_may_go_away_and_come_back() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = lab.start(&LIMIT);
    let terminal = Child::start(on_terminal(&lab, "stats --watch")).unwrap();
    let mut pipe = lab.command("sh");
    let typed = format!("exec {} stats --watch --json > piped", binary().display());
    pipe.args(["-c", &typed]).current_dir(lab.directory());
    let mut pipe = Child::start(pipe).unwrap();
    once(|| shown(&lab).contains("enforcing").then_some(())).expect("a first frame");
    let is_read = || fs::metadata(lab.directory().join("piped")).is_ok_and(|of| of.len() > 0);
    once(|| is_read().then_some(())).expect("a first line");
    daemon.kill();
    pipe.wait_for_line("NO ANSWER SINCE ", HANGS_AFTER).unwrap();
    once(|| shown(&lab).contains("NO ANSWER SINCE ").then_some(())).expect("it is said on the terminal");
    let before = shown(&lab).len();
    let _daemon = lab.start(&LIMIT);
    pipe.wait_for_line("the daemon answers again", HANGS_AFTER).unwrap();
    once(|| {
        shown(&lab)[before..]
            .rsplit("\x1b[H")
            .nth(1)
            .is_some_and(|frame| frame.starts_with("ratelimitd "))
            .then_some(())
    })
    .expect("the terminal shows what the new daemon says");
    pipe.signal(Signal::SIGINT).unwrap();
    assert_eq!(pipe.wait(HANGS_AFTER).unwrap().code(), Some(0));
    let pid: i32 = fs::read_to_string(lab.directory().join("pid")).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    let mut terminal = terminal;
    assert_eq!(terminal.wait(HANGS_AFTER).unwrap().code(), Some(0));
    let shown = shown(&lab);
    let shown = shown.split_once('\n').expect("the line of `script`").1;
    let (enters, leaves) = (shown.find("\x1b[?1049h").unwrap(), shown.rfind("\x1b[?1049l").unwrap());
    assert!(shown.find("ratelimitd ").is_none_or(|frame| enters < frame) && enters < leaves, "{shown}");
    for frame in shown[enters..leaves].split("\x1b[H").skip(1) {
        let plain: Vec<String> =
            frame.replace("\x1b[J", "").lines().map(|line| line.replace("\x1b[K", "").trim_end().to_owned()).collect();
        assert!(plain.len() <= 24 && plain.iter().all(|line| line.chars().count() <= 80), "{plain:#?}");
    }
}
