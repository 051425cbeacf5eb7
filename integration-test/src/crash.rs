//! A daemon that is killed at a crash point, the traffic meanwhile, and the checks then and after the next start.
//!
//! Knows the command line, the JSON output and raw frames. `acts` has the operations that are interrupted, and `moves`
//! the starts over the pins of another layout. `ears` counts the frames that pass. `policies` has two configurations
//! and the frames that tell them apart.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use netlab::{Child, PacketSocket};
use nix::sys::signal::Signal;
use ratelimit_crash::{Point, VARIABLE, reached};
use serde_json::Value;

use crate::lab::{Daemon, HANGS_AFTER, Lab, binary};
use acts::Act;
use ears::{Ears, Traffic};
use policies::{Judged, Letter, WEB_MAX, config};

pub mod acts;
pub mod ears;
pub mod moves;
pub mod policies;

const WORKS: &str = "what a test needs works";
/// Source that every configuration denies.
pub const DENIED: [u8; 4] = [192, 0, 2, 66];
/// Source that a command denies before the first run.
pub const DENIED_BY_COMMAND: [u8; 4] = [172, 20, 0, 9];
/// Source that a command allows before the first run.
pub const ALLOWED_BY_COMMAND: [u8; 4] = [172, 21, 0, 9];
/// Number of frames of a source that is to exceed the limit of the rule `web`.
const OVER: u64 = WEB_MAX + 5;

/// Traffic while the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No traffic at all.
    Idle,
    /// One source over its limit, one within it and one denied.
    Two,
    /// The sources of [`Load::Two`], a banned one, a denied prefix, and thousands of others.
    Flood,
}

impl Load {
    /// Every kind of load.
    pub const ALL: [Self; 3] = [Self::Idle, Self::Two, Self::Flood];
}

/// A crash point, and the operation that reaches it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Point at which the daemon is killed.
    pub point: Point,
    /// Number of times that the daemon passes the point before it is killed.
    pub passes: u32,
    /// Operation that the kill interrupts.
    pub act: Act,
}

impl fmt::Display for Case {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { point, passes, act } = self;
        write!(to, "{act:?} killed at {}", point.name())?;
        if *passes == 0 { Ok(()) } else { write!(to, " after {passes} of it") }
    }
}

/// Sources that are used in one run only.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// Source that sends less than its limit until the end.
    pub within: [u8; 4],
    /// Source that is over its limit from the beginning.
    pub offender: [u8; 4],
    /// Source that is banned from the beginning.
    pub banned: [u8; 4],
    /// Source that the run's commands deny, allow and unblock.
    pub named: [u8; 4],
}

impl Cast {
    fn of(run: u16) -> Self {
        let [high, low] = run.to_be_bytes();
        Self {
            within: [11, 1, high, low],
            offender: [11, 2, high, low],
            banned: [11, 3, high, low],
            named: [172, 22, high, low],
        }
    }
}

/// Laboratory for one run after another.
pub struct Ground {
    /// Namespaces of the laboratory.
    pub lab: Lab,
    /// Counter of the frames that pass the limiter.
    pub ears: Ears,
    /// Configuration that the daemon's own file has.
    pub letter: Letter,
    daemon: Option<Daemon>,
    runs: u16,
    /// Names of the pinned files of a daemon on one interface.
    pins: BTreeSet<String>,
}

impl Default for Ground {
    fn default() -> Self {
        Self::new()
    }
}

impl Ground {
    /// Creates a laboratory with a running daemon.
    pub fn new() -> Self {
        let lab = Lab::quiet();
        lab.connect_second_ends();
        let sender = PacketSocket::sender(&lab.client, "c0").expect(WORKS);
        let ears = Ears::open(&lab.server, "s0", sender);
        let mut ground = Self { lab, ears, letter: Letter::A, daemon: None, runs: 0, pins: BTreeSet::new() };
        ground.begin();
        ground.pins = ground.pinned();
        ground
    }

    /// Restores the initial state: no state of earlier runs, a running daemon, and the commands that every run relies
    /// on.
    pub fn begin(&mut self) {
        self.remove();
        let _may_be_there = fs::remove_dir_all(self.lab.directory().join("state"));
        let _is_armed = fs::remove_file(self.point_file());
        if self.lab.server.ip(&["link", "show", "dev", "s0"]).is_err() {
            self.lab.rename("s7", "s0");
        }
        if self.lab.server.ip(&["link", "show", "dev", "s1"]).is_err() {
            self.lab.connect_second_ends();
        }
        self.letter = Letter::A;
        self.write(Letter::A, "keep", &["s0"]);
        self.start();
        self.must(&["deny", "172.20.0.0/16", "--for", "1d"]);
        self.must(&["allow", "172.21.0.0/16", "--for", "1d"]);
    }

    fn point_file(&self) -> PathBuf {
        self.lab.directory().join("crash-point")
    }

    /// Returns the path of the daemon's own configuration.
    pub fn file(&self) -> PathBuf {
        self.lab.directory().join("ratelimitd.toml")
    }

    /// Returns the path of another configuration, to be tried.
    pub fn other_file(&self) -> PathBuf {
        self.lab.directory().join("other.toml")
    }

    /// Writes the daemon's own configuration.
    pub fn write(&self, letter: Letter, on_exit: &str, interfaces: &[&str]) {
        fs::write(self.file(), config(letter, on_exit, interfaces, &self.lab.socket())).expect(WORKS);
    }

    /// Writes the other configuration.
    pub fn write_other(&self, letter: Letter) {
        fs::write(self.other_file(), config(letter, "keep", &["s0"], &self.lab.socket())).expect(WORKS);
    }

    fn command(&self) -> Command {
        let mut command = self.lab.command(binary());
        command.env(VARIABLE, self.point_file()).args(["run", "--config"]).arg(self.file());
        command
    }

    /// Starts the daemon, and returns once it is ready.
    pub fn start(&mut self) {
        let child = Child::start(self.command()).expect(WORKS);
        if let Err(error) = child.wait_for_line("ratelimitd: ready", HANGS_AFTER) {
            panic!("it does not start by itself: {error:#}");
        }
        self.daemon = Some(Daemon { child });
    }

    /// Starts a daemon that is killed before it is ready, or at that moment.
    pub fn start_to_die(&mut self) {
        self.daemon = Some(Daemon { child: Child::start(self.command()).expect(WORKS) });
    }

    /// Kills the daemon, if one runs.
    pub fn kill(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.end(Signal::SIGKILL);
        }
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        self.daemon.as_ref().expect("it runs").child.signal(signal).expect(WORKS);
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn must(&self, args: &[&str]) -> String {
        let output = self.lab.ratelimitd(args);
        assert_eq!(output.code(), 0, "{args:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// Runs a command that must succeed with `--json`, and returns its output.
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.must(&[args, &["--json"]].concat())).expect("it prints JSON")
    }

    fn arm(&self, point: Point, passes: u32) {
        ratelimit_crash::arm(&self.point_file(), point, passes).expect(WORKS);
    }

    /// Kills the daemon, and detaches its filter with everything that it has pinned.
    fn remove(&mut self) {
        self.kill();
        let _nothing_is_there = self.lab.ratelimitd(&["detach"]);
    }

    /// Waits until the daemon was killed at this point.
    fn await_death(&mut self, point: Point) {
        let mut daemon = self.daemon.take().expect("it runs");
        let status = daemon.child.wait(HANGS_AFTER);
        let said = daemon.child.stderr();
        let status = status.unwrap_or_else(|_| panic!("it goes on, and does not come to {}:\n{said}", point.name()));
        let is_reached = reached(&self.point_file()).exists();
        assert!(is_reached && status.signal() == Some(Signal::SIGKILL as i32), "it ends by {status}:\n{said}");
    }

    /// Returns the pinned files by name, each with its layout's version.
    fn pinned(&self) -> BTreeSet<String> {
        let of = |version: String| {
            let names = names_in(&self.lab.pins().join(&version)).into_iter();
            names.map(|name| format!("{version}/{name}")).chain([version.clone()]).collect::<Vec<_>>()
        };
        names_in(&self.lab.pins()).into_iter().flat_map(of).collect()
    }

    /// Performs one run: interrupts an operation by a kill, starts the daemon again, and panics if a check fails.
    pub fn run(&mut self, case: Case, load: Load) {
        let Case { point, passes, act } = case;
        self.runs += 1;
        let cast = Cast::of(self.runs);
        act.prepare(self, cast);
        let before = self.letter;
        // Creates their windows and the ban beforehand.
        self.assert_passing(cast.within, 80, 3, 3);
        self.assert_passing(cast.offender, 80, OVER, WEB_MAX);
        self.assert_passing(cast.banned, 82, 4, 2);
        if act.starts() {
            self.kill();
        }
        act.clear(self, cast);
        let sender = PacketSocket::sender(&self.lab.client, "c0").expect(WORKS);
        let traffic = Traffic::start(load, cast, sender);
        self.arm(point, passes);
        act.drive(self, cast);
        self.await_death(point);
        let alone = self.ears.judge();
        let expected = act.in_force_alone(before);
        assert!(expected.contains(&alone), "without a daemon {alone:?} is in force, not one of {expected:?}");
        if act.keeps_counts() {
            self.assert_passing(cast.offender, 80, 2, 0);
            self.assert_passing(DENIED, 80, 2, 0);
        }
        self.start();
        let judged = self.ears.judge();
        let expected = act.in_force_after(before);
        assert!(expected.contains(&judged), "after the start {judged:?} is in force, not one of {expected:?}");
        self.assert_nothing_is_left();
        act.settle(self, cast, point, before);
        traffic.stop();
        self.assert_passing(DENIED_BY_COMMAND, 80, 2, 0);
        self.assert_passing(ALLOWED_BY_COMMAND, 80, OVER, OVER);
        if act.keeps_counts() {
            self.ears.send(cast.within, 80, OVER);
            self.ears.send(cast.offender, 80, 3);
            self.ears.send(cast.banned, 82, 3);
            self.ears.fence();
            let admitted = |source, port| self.ears.heard(source, port);
            assert_eq!(admitted(cast.within, 80), WEB_MAX, "admitted of the source that sent on, in all");
            assert_eq!(admitted(cast.offender, 80), WEB_MAX, "admitted of the source over its limit, in all");
            if act.keeps_bans() {
                assert_eq!(admitted(cast.banned, 82), 2, "admitted of the banned source, in all");
            }
            assert_eq!(self.ears.heard(DENIED, 80), 0, "of the denied source");
        } else {
            self.assert_passing(DENIED, 80, 2, 0);
            if act.ends_mode() {
                self.assert_passing(cast.offender, 80, 3, 0);
            }
            let [_, _, high, low] = cast.within;
            self.assert_passing([11, 5, high, low], 80, OVER, WEB_MAX);
        }
        self.ears.clear();
        assert_eq!(self.pinned(), self.pins, "pins");
        assert_eq!(self.ears.judge(), Judged::by(self.letter), "after all");
    }

    /// Sends `sent` frames of a source to a port, and asserts that `passing` of them pass.
    pub fn assert_passing(&self, source: [u8; 4], port: u16, sent: u64, passing: u64) {
        let before = self.ears.heard(source, port);
        self.ears.send(source, port, sent);
        self.ears.fence();
        let heard = self.ears.heard(source, port) - before;
        assert_eq!(heard, passing, "of {sent} frames of {source:?} to port {port}");
    }

    /// Asserts that no temporary file of an interrupted write is left.
    fn assert_nothing_is_left(&self) {
        let directory = self.lab.directory();
        let files = names_in(directory).into_iter().chain(names_in(&directory.join("state")));
        let left: Vec<String> = files.filter(|name| name.ends_with(".new") || name.ends_with(".broken")).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Returns a source's state in `list`, or `None` if it is not listed.
    pub fn listed(&self, source: [u8; 4]) -> Option<String> {
        let source = word(source);
        let list = self.json(&["list"]);
        let entry = list["entries"].as_array().expect("entries").iter().find(|of| of["prefix"] == source);
        entry.map(|of| of["state"].as_str().expect("a state").to_owned())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns a source as text, such as `192.0.2.66`.
pub fn word(source: [u8; 4]) -> String {
    std::net::Ipv4Addr::from(source).to_string()
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.expect(WORKS).file_name().to_string_lossy().into_owned()).collect()
}
