//! Tests of the frames in each state at several sizes, and of the keys.

use std::time::Duration;

use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use ratelimit_report::snapshot::{Hold, Mode, Snapshot, State as SourceState, TopSource};

use crate::state::{Ask, Dialog, Heard, Sort, State};
use crate::view::{Paint, draw};
use crate::{Order, Verb};

mod frames;
mod keys;
mod readings;

/// Returns a snapshot of a busy limiter, taken the given number of seconds after the first one.
fn reading(second: u32) -> Snapshot {
    let mut of = ratelimit_report::fixture::snapshot();
    of.time = Timestamp::from_second(of.time.as_second() + i64::from(second)).unwrap();
    of.config.last_reload_successful = true;
    let top = of.top.as_mut().unwrap();
    let like = |of: &TopSource, source: &str, used: u64, dropped: u64, wait: f64| TopSource {
        source: source.to_owned(),
        used,
        dropped,
        retry_after_seconds: wait,
        ..of.clone()
    };
    let banned = like(&top[0], "203.0.113.9", 700, 9_000, 600.0);
    top.push(TopSource { state: SourceState::Banned, reason: "banned".to_owned(), ..banned });
    top[0].dropped += 20 * u64::from(second);
    let mut api = of.rules[0].clone();
    api.name = "api".to_owned();
    api.mode = Mode::DryRun;
    api.would_drop = 7 * u64::from(second);
    api.dropped = 0;
    of.rules.push(api);
    of.rules[0].admitted += 100 * u64::from(second.pow(2));
    of.rules[0].dropped += 20 * u64::from(second);
    of
}

fn busy() -> State {
    let mut state = State::new(reading(0), at(0));
    (1..=10).for_each(|second| state.heard(Heard::Read(Ok(Box::new(reading(second)))), at(u64::from(second))));
    state
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn press(state: &mut State, code: KeyCode) -> Option<Ask> {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Presses one key for each character.
fn write(state: &mut State, text: &str) -> Option<Ask> {
    text.chars().fold(None, |_, c| press(state, KeyCode::Char(c)))
}

fn order(verb: Verb, source: &str) -> Order {
    Order { verb, source: source.to_owned(), lasts: None }
}

fn terminal(state: &State, (width, height): (u16, u16), paint: Paint) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, at(11), paint)).unwrap();
    terminal
}

/// Renders a frame as text.
fn frame(state: &State, size: (u16, u16)) -> String {
    let terminal = terminal(state, size, Paint::Plain);
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(size.0));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}
