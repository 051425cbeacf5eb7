//! Progress on stderr of long steps, several of which may run at once.
//!
//! On a terminal all running steps share the last line, which keeps changing. Elsewhere each step prints a line at its
//! start, one at its end, and one every half minute.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_millis(200);
const PLAIN_SIGN_OF_LIFE: Duration = Duration::from_secs(30);
/// Length in characters of the shared line. A longer one could wrap, and could then not be erased.
const LINE_CHARS: usize = 79;

static BOARD: Mutex<Board> = Mutex::new(Board { running: Vec::new(), next_id: 0, is_drawn: false });

struct Board {
    running: Vec<Running>,
    next_id: u64,
    /// True if the terminal's last line shows the running steps.
    is_drawn: bool,
}

struct Running {
    id: u64,
    label: String,
    start: Instant,
    status: String,
}

/// A running step. It leaves the shared line on drop.
pub(crate) struct Step {
    id: u64,
    label: String,
    start: Instant,
    next_sign: Instant,
    is_terminal: bool,
}

impl Step {
    pub(crate) fn begin(label: &str) -> Self {
        let (start, is_terminal) = (Instant::now(), io::stderr().is_terminal());
        let mut board = board();
        let id = board.next_id;
        board.next_id += 1;
        board.running.push(Running { id, label: label.to_owned(), start, status: String::new() });
        if is_terminal {
            board.draw();
        } else {
            eprintln!("{label} ...");
        }
        let next_sign = start + pause(is_terminal);
        Self { id, label: label.to_owned(), start, next_sign, is_terminal }
    }

    /// Returns the time to wait for before the next [`Step::show`].
    pub(crate) fn wait(&self) -> Duration {
        self.next_sign.saturating_duration_since(Instant::now())
    }

    /// Shows the step's latest status, if the last sign of life is old enough.
    pub(crate) fn show(&mut self, status: &str) {
        if Instant::now() < self.next_sign {
            return;
        }
        self.next_sign = Instant::now() + pause(self.is_terminal);
        if !self.is_terminal {
            eprintln!("{}: {} s so far, {status}", self.label, self.start.elapsed().as_secs());
            return;
        }
        let mut board = board();
        if let Some(running) = board.running.iter_mut().find(|running| running.id == self.id) {
            running.status = status.to_owned();
        }
        board.draw();
    }

    /// Ends the step, and prints the time that it took.
    pub(crate) fn done(self) {
        let text = format!("{}: done in {:.1} s", self.label, self.start.elapsed().as_secs_f32());
        drop(self);
        say(&text);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut board = board();
        board.running.retain(|running| running.id != self.id);
        board.erase();
        board.draw();
    }
}

/// Prints a line above the shared one.
pub(crate) fn say(line: &str) {
    let mut board = board();
    board.erase();
    eprintln!("{line}");
    board.draw();
}

fn pause(is_terminal: bool) -> Duration {
    if is_terminal { REDRAW } else { PLAIN_SIGN_OF_LIFE }
}

fn board() -> MutexGuard<'static, Board> {
    // Each change of the board is complete before anything in it can panic.
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn draw(&mut self) {
        if self.running.is_empty() || !io::stderr().is_terminal() {
            return;
        }
        eprint!("\r\x1b[2K{}", line(&self.running));
        self.is_drawn = true;
        // A failed write to the terminal cannot be handled.
        io::stderr().flush().ok();
    }

    fn erase(&mut self) {
        if self.is_drawn {
            eprint!("\r\x1b[2K");
            self.is_drawn = false;
            io::stderr().flush().ok();
        }
    }
}

/// Returns the shared line. Each running step gets an equal part of its length.
fn line(running: &[Running]) -> String {
    const BETWEEN: &str = " | ";
    let chars = (LINE_CHARS + BETWEEN.len()) / running.len().max(1) - BETWEEN.len();
    let part = |step: &Running| {
        let seconds = format!(": {} s  ", step.start.elapsed().as_secs());
        // The time and some of the status are shown in any case.
        let label = step.label.chars().take((chars / 2).max(chars.saturating_sub(seconds.len() + step.status.len())));
        let text: String = label.chain(seconds.chars()).chain(step.status.chars()).take(chars).collect();
        text.trim_end().to_owned()
    };
    running.iter().map(part).collect::<Vec<_>>().join(BETWEEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(label: &str, status: &str) -> Running {
        Running { id: 0, label: label.to_owned(), start: Instant::now(), status: status.to_owned() }
    }

    #[test]
    fn steps_share_a_line_that_does_not_wrap() {
        let long = "x".repeat(200);
        assert_eq!(line(&[running("setup", "half")]), "setup: 0 s  half");
        assert_eq!(line(&[running("a", "one"), running("b", "two")]), "a: 0 s  one | b: 0 s  two");
        for steps in 1..5 {
            let steps: Vec<_> = (0..steps).map(|_| running(&long, &long)).collect();
            let line = line(&steps);
            assert!(line.chars().count() <= LINE_CHARS, "{line}");
            assert_eq!(line.matches(": 0 s  x").count(), steps.len(), "{line}");
        }
    }
}
