//! Tests of commands that lose their terminal, with and without SIGHUP, or their pipe. They end by themselves with code
//! 0.

use std::fs;
use std::path::Path;

use integration_test::lab::{Daemon, Lab, binary, once, run};
use integration_test::terminal::Tmux;
use netlab::needs_root;

/// Denied source, which gives an event to show.
const DENIED: &str = "203.0.113.9";

fn limit(lab: &Lab) -> Daemon {
    lab.limit(&["--port", "80", "--count", "connections", "--limit", "2/1h"])
}

/// Waits for the exit code that a shell writes into a file once a command has ended.
fn code(file: &Path) -> Option<String> {
    once(|| fs::read_to_string(file).ok().filter(|text| text.ends_with('\n')))
}

#[test]
fn commands_end_quietly_when_their_terminal_vanishes() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = limit(&lab);
    assert_eq!(lab.ratelimitd(&["deny", DENIED, "--for", "1h"]).code(), 0);
    // In its own session a command receives no SIGHUP, and reading and writing fail with EIO.
    for (way, prefix) in [("hangup", ""), ("eio", "setsid -w ")] {
        for (name, arguments, shown) in
            [("top", "top", "s0"), ("watch", "stats --watch", "s0"), ("events", "events -f", DENIED)]
        {
            let began = lab.directory().join(format!("{way}-{name}-began"));
            let ended = lab.directory().join(format!("{way}-{name}"));
            let shell = format!(
                "trap '' HUP; echo > {}; {prefix}{} {arguments}; echo $? > {}",
                began.display(),
                binary().display(),
                ended.display()
            );
            let tmux = Tmux::start(&lab, [80, 24], &shell);
            once(|| began.exists().then_some(())).unwrap();
            tmux.shows(&[shown]);
            tmux.ask(&["kill-server"]);
            assert_eq!(code(&ended).as_deref(), Some("0\n"), "{way}: {arguments}");
        }
    }
}

#[test]
fn commands_end_quietly_when_their_pipe_is_closed() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = limit(&lab);
    for (name, arguments) in [
        ("watch", "stats --watch"),
        ("watch-json", "stats --watch --json"),
        ("events", "events -f"),
        ("events-json", "events -f --json"),
        ("list", "list"),
        ("history", "history"),
        ("stats", "stats --all"),
    ] {
        let ended = lab.directory().join(name);
        let words = lab.directory().join(format!("{name}.err"));
        // The reader ends before a line is written.
        let shell = format!(
            "{{ sleep 0.2; {} {arguments} 2> {}; echo $? > {}; }} | true",
            binary().display(),
            words.display(),
            ended.display()
        );
        let mut command = lab.command("sh");
        command.args(["-c", &format!("({shell}) > /dev/null 2>&1 &")]);
        assert_eq!(run(command).code(), 0);
        assert_eq!(code(&ended).as_deref(), Some("0\n"), "{arguments}");
        assert_eq!(fs::read_to_string(&words).unwrap(), "", "{arguments}");
    }
}
