//! Tests of `top` in a real terminal, with tmux for the keys and the screen.

use integration_test::lab::{CLIENTS, Daemon, Lab, binary};
use integration_test::terminal::Tmux;
use netlab::needs_root;
use nix::sys::signal::Signal;

/// Returns whether the screen is the shell's again, with a terminal in its normal mode.
fn is_restored(screen: &str) -> bool {
    let words: Vec<&str> = screen.split_whitespace().collect();
    ["icanon", "isig", "echo"].iter().all(|word| words.contains(word)) && !screen.contains("Sources: ")
}

/// Asserts that `top` ended successfully, and left the terminal as it was.
fn assert_restored(tmux: &Tmux<'_>) {
    tmux.holds(|screen| screen.contains("ended with 0") && is_restored(screen), "terminal as before");
}

fn limit(lab: &Lab) -> Daemon {
    lab.limit(&["--port", "80", "--count", "connections", "--limit", "2/1h"])
}

#[test]
fn top_shows_and_unblocks_a_refused_client_and_survives_a_daemons_restart() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = limit(&lab);
    let _web = lab.web();
    let tmux = Tmux::with_top(&lab, "");
    tmux.shows(&["enforcing", "s0 ", "No source uses anything of a limit now."]);
    lab.assert_admitted(CLIENTS[0], 80, 2);
    tmux.shows(&[CLIENTS[0], "over the limit", "100%"]);

    tmux.keys(&["Enter"]);
    tmux.shows(&["10.9.0.2 is blocked on port 80", "decided by", "undo ", "2 of 2 connections used in 1h"]);
    tmux.keys(&["Escape"]);
    tmux.shows(&["SOURCE", "over the limit"]);
    tmux.keys(&["u"]);
    tmux.shows(&["Unblock 10.9.0.2: lift its denials and bans", "ratelimitd unblock 10.9.0.2"]);
    assert!(lab.is_blocked(CLIENTS[0], 80), "a question changes nothing");
    tmux.keys(&["y"]);
    tmux.shows(&["Done", "10.9.0.2: counters reset"]);
    lab.assert_admitted(CLIENTS[0], 80, 2);

    tmux.keys(&["q"]);
    tmux.ask(&["resize-window", "-x", "40", "-y", "10"]);
    tmux.shows(&["40x10 is too small"]);
    tmux.ask(&["resize-window", "-x", "120", "-y", "40"]);
    tmux.shows(&["USED OF THE LIMIT", "2 of 2 connections in 1h"]);

    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    tmux.shows(&["NO ANSWER", "old, and the daemon is asked again every second", CLIENTS[0]]);
    let _daemon = limit(&lab);
    tmux.holds(|screen| screen.contains("reading 0s old") && !screen.contains("NO ANSWER"), "daemon that is back");
    tmux.keys(&["q"]);
    assert_restored(&tmux);
}

#[test]
fn sigterm_gives_the_terminal_back_and_no_color_is_obeyed() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = limit(&lab);
    let _web = lab.web();
    for (variables, is_coloured) in [("", true), ("NO_COLOR=1", false)] {
        let tmux = Tmux::with_top(&lab, variables);
        lab.open(CLIENTS[1], 80);
        tmux.shows(&["SOURCE", CLIENTS[1]]);
        let painted = tmux.painted();
        // Colours of the palette. tmux itself writes 39, the terminal's default colour.
        assert_eq!(painted.contains("\x1b[38;5;"), is_coloured, "{painted:?}");
        let pid: i32 = tmux.ask(&["list-panes", "-F", "#{pane_pid}"]).trim().parse().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let top = nix::unistd::Pid::from_raw(children.trim().parse().unwrap());
        nix::sys::signal::kill(top, Signal::SIGTERM).unwrap();
        assert_restored(&tmux);
    }
}

#[test]
fn a_suspended_top_gives_the_terminal_back_and_goes_on_where_it_was() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = limit(&lab);
    let tmux = Tmux::start(&lab, [80, 24], "bash --norc");
    tmux.keys(&[&format!("{} top", binary().display()), "Enter"]);
    tmux.shows(&["Sources: "]);
    tmux.keys(&["C-z"]);
    tmux.shows(&["Stopped"]);
    tmux.keys(&["stty -a", "Enter"]);
    tmux.holds(is_restored, "terminal as before");
    tmux.keys(&["fg", "Enter"]);
    tmux.shows(&["Sources: ", "reading 0s old"]);
    tmux.keys(&["?"]);
    tmux.shows(&["Any key goes back"]);
    tmux.keys(&["C-c"]);
    tmux.holds(is_restored, "shell");
}
