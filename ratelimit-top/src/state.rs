//! Displayed state of `top`, and how snapshots and keys change it. Pure: time is an argument, counted from the start
//! of `top`. A key returns an [`Ask`], and its answer arrives as [`Heard`].

use std::cmp::Ordering;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratelimit_policy::config::network::Target;
use ratelimit_report::snapshot::{Snapshot, TopSource};

use crate::order::{Lasts, Order, Verb};
use crate::rates::{Rates, refused};

/// Number of rows that PgUp and PgDn move.
const PAGE: isize = 10;

/// Maximum length in bytes of a typed filter or duration.
const TYPED_MAX: usize = 60;

/// Action that a key or the clock requests from the main loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Quit `top`.
    Quit,
    /// Restore the terminal and stop the process until the shell continues it.
    Suspend,
    /// Read a new snapshot.
    Read,
    /// Run `check` on one source.
    Look(IpAddr),
    /// Allow, deny or unblock a source.
    Order(Order),
}

/// Answer to an [`Ask`].
#[derive(Debug)]
pub enum Heard {
    /// New snapshot, or the reason for its absence.
    Read(Result<Box<Snapshot>, String>),
    /// Address and its `check` output as text, or the reason for its absence.
    Looked(IpAddr, Result<String, String>),
    /// Outcome of an order in words, or the reason why it failed.
    Ordered(Result<String, String>),
}

/// Sort order of the source table, greatest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Number of refused packets.
    #[default]
    Refused,
    /// Refused packets per second.
    Rate,
    /// Used share of the limit.
    Share,
    /// Time until the source passes again.
    Wait,
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Refused => Self::Rate,
            Self::Rate => Self::Share,
            Self::Share => Self::Wait,
            Self::Wait => Self::Refused,
        }
    }

    /// Returns the sort key in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Refused => "packets refused",
            Self::Rate => "packets refused a second",
            Self::Share => "share of the limit used",
            Self::Wait => "time until it passes again",
        }
    }
}

/// Row of the source table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Source shown in the row.
    pub of: &'a TopSource,
    /// Packets per second that are refused to the source, or would be in a dry run.
    pub per_second: Option<f64>,
}

/// Detail view of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Source, as a row or the filter names it.
    pub source: String,
    /// Address that `check` is called with.
    pub address: IpAddr,
    /// Output of `check`. None until the first answer.
    pub text: Option<String>,
    /// Reason why the last call of `check` failed.
    pub problem: Option<String>,
    /// Number of lines scrolled off the top.
    pub scrolled: usize,
}

/// Dialog that covers the view and receives the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialog {
    /// Input of the filter.
    Filter {
        /// Filter before the dialog opened, restored by Esc.
        before: String,
    },
    /// List of keys.
    Help,
    /// Input of a duration.
    Lasts {
        /// Action that the duration applies to.
        verb: Verb,
        /// Source that the action applies to.
        source: String,
        /// Text typed so far.
        text: String,
        /// Reason why the typed duration was rejected.
        problem: Option<String>,
    },
    /// Confirmation of an order, answered with y or n.
    Question(Order),
    /// Order that the daemon has not answered yet.
    Waiting(Order),
    /// Outcome of an order, or the reason why it failed.
    Answer(Result<String, String>),
}

/// Complete state of the display.
#[derive(Debug)]
pub struct State {
    /// Last snapshot received from the daemon.
    pub snapshot: Snapshot,
    read_at: Duration,
    rates: Rates,
    /// Reason why the last `stats` call failed.
    pub gone: Option<String>,
    /// Sort order of the source table.
    pub sort: Sort,
    /// Filter of sources and rules: an address, a network, or part of a name. Empty shows all.
    pub filter: String,
    /// True while the display is paused and makes no calls.
    pub is_paused: bool,
    /// Index of the selected row, used if no source was chosen by name or the chosen one is gone.
    place: usize,
    chosen: Option<String>,
    /// Detail view of one source, shown instead of the tables.
    pub whole: Option<Whole>,
    /// Dialog shown above everything else.
    pub dialog: Option<Dialog>,
}

impl State {
    /// Creates the state from a first snapshot received at `now`.
    pub fn new(snapshot: Snapshot, now: Duration) -> Self {
        let mut rates = Rates::default();
        rates.push(&snapshot);
        Self {
            snapshot,
            read_at: now,
            rates,
            gone: None,
            sort: Sort::default(),
            filter: String::new(),
            is_paused: false,
            place: 0,
            chosen: None,
            whole: None,
            dialog: None,
        }
    }

    /// Returns the age of the last snapshot.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.read_at)
    }

    /// Returns a rule's admitted and refused rates of the last two minutes, each in the given number of columns.
    pub fn history(&self, rule: &str, columns: usize) -> [Vec<Option<u64>>; 2] {
        [
            self.rates.columns(rule, columns, |rate| rate.admitted),
            self.rates.columns(rule, columns, |rate| rate.refused),
        ]
    }

    /// Returns a rule's admitted and refused packets per second.
    pub fn per_second(&self, rule: &str) -> Option<[f64; 2]> {
        self.rates.now(rule).map(|rate| [rate.admitted, rate.refused])
    }

    /// Returns the sources that match the filter, in sort order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let shown = self.snapshot.top.iter().flatten().filter(|of| self.shows(of));
        let mut rows: Vec<Row<'_>> = shown.map(|of| Row { of, per_second: self.rates.of_source(&of.source) }).collect();
        // The daemon lists the worst source first. The stable sort keeps that order between equals.
        rows.sort_by(|a, b| self.key_of(b).partial_cmp(&self.key_of(a)).unwrap_or(Ordering::Equal));
        rows
    }

    /// Returns the index of the selected row.
    pub fn chosen(&self, rows: &[Row<'_>]) -> Option<usize> {
        let by_name = self.chosen.as_ref().and_then(|chosen| rows.iter().position(|row| row.of.source == *chosen));
        by_name.or_else(|| rows.len().checked_sub(1).map(|last| self.place.min(last)))
    }

    /// Applies an answer to the state.
    pub fn heard(&mut self, heard: Heard, now: Duration) {
        match heard {
            Heard::Read(Ok(snapshot)) => {
                self.rates.push(&snapshot);
                (self.snapshot, self.read_at, self.gone) = (*snapshot, now, None);
            }
            Heard::Read(Err(why)) => self.gone = Some(why),
            Heard::Looked(address, found) => {
                // The user left this detail view meanwhile: ignore the answer.
                if let Some(whole) = self.whole.as_mut().filter(|whole| whole.address == address) {
                    match found {
                        Ok(text) => (whole.text, whole.problem) = (Some(text), None),
                        Err(why) => whole.problem = Some(why),
                    }
                }
            }
            Heard::Ordered(answer) => self.dialog = Some(Dialog::Answer(answer)),
        }
    }

    /// Returns the calls due each second, or none during a pause.
    pub fn due(&self) -> Vec<Ask> {
        if self.is_paused {
            return Vec::new();
        }
        let look = self.whole.as_ref().map(|whole| Ask::Look(whole.address));
        [Some(Ask::Read), look].into_iter().flatten().collect()
    }

    /// Applies a key to the state, and returns the action that it requests.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other key means nothing here")]
    pub fn key(&mut self, key: KeyEvent) -> Option<Ask> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Some(Ask::Quit),
                KeyCode::Char('z') => return Some(Ask::Suspend),
                KeyCode::Char('u') => self.erase(),
                _ => {}
            }
            return None;
        }
        match self.dialog.take() {
            None => self.plain_key(key.code),
            Some(dialog) => self.dialog_key(dialog, key.code),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "every other key means nothing here")]
    fn plain_key(&mut self, code: KeyCode) -> Option<Ask> {
        match code {
            KeyCode::Char('q') if self.whole.is_none() => return Some(Ask::Quit),
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.whole.is_some() => {
                self.whole = None;
            }
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return (!self.is_paused).then_some(Ask::Read);
            }
            KeyCode::Char('a') => self.begin(Verb::Allow),
            KeyCode::Char('d') => self.begin(Verb::Deny),
            KeyCode::Char('u') => self.begin(Verb::Unblock),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            KeyCode::Char('s') if self.whole.is_none() => self.sort = self.sort.next(),
            KeyCode::Char('/') if self.whole.is_none() => {
                self.dialog = Some(Dialog::Filter { before: self.filter.clone() });
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Enter if self.whole.is_none() => return self.look(),
            _ => {}
        }
        None
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "every other key means nothing here")]
    fn dialog_key(&mut self, dialog: Dialog, code: KeyCode) -> Option<Ask> {
        match dialog {
            Dialog::Filter { before } => match code {
                KeyCode::Enter => {}
                KeyCode::Esc => self.filter = before,
                _ => {
                    edit(&mut self.filter, code);
                    self.dialog = Some(Dialog::Filter { before });
                }
            },
            Dialog::Lasts { .. } if code == KeyCode::Esc => {}
            Dialog::Lasts { verb, source, text, .. } if code == KeyCode::Enter => {
                self.dialog = Some(match Lasts::parse(&text) {
                    Ok(lasts) => Dialog::Question(Order { verb, source, lasts: Some(lasts) }),
                    Err(problem) => Dialog::Lasts { verb, source, text, problem: Some(problem) },
                });
            }
            Dialog::Lasts { verb, source, mut text, .. } => {
                edit(&mut text, code);
                self.dialog = Some(Dialog::Lasts { verb, source, text, problem: None });
            }
            Dialog::Question(order) => match code {
                KeyCode::Char('y' | 'Y') => {
                    self.dialog = Some(Dialog::Waiting(order.clone()));
                    return Some(Ask::Order(order));
                }
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {}
                // Enter does not confirm: it ended the duration input, and may have been typed twice.
                _ => self.dialog = Some(Dialog::Question(order)),
            },
            // The order is in progress, and its answer will replace this dialog.
            Dialog::Waiting(order) => self.dialog = Some(Dialog::Waiting(order)),
            Dialog::Help | Dialog::Answer(_) => {}
        }
        None
    }

    /// Starts an order for the open or selected source.
    fn begin(&mut self, verb: Verb) {
        let Some(source) = self.meant() else { return };
        self.dialog = Some(match verb.lasts() {
            Some(text) => Dialog::Lasts { verb, source, text: text.to_owned(), problem: None },
            None => Dialog::Question(Order { verb, source, lasts: None }),
        });
    }

    fn look(&mut self) -> Option<Ask> {
        let source = self.meant()?;
        let address = Target::parse(&source).ok()?.address();
        self.whole = Some(Whole { source, address, text: None, problem: None, scrolled: 0 });
        Some(Ask::Look(address))
    }

    /// Returns the open source, else the selected one, else the one address that the filter names.
    fn meant(&self) -> Option<String> {
        let open = self.whole.as_ref().map(|whole| whole.source.clone());
        let rows = self.rows();
        let chosen = || self.chosen(&rows).map(|at| rows[at].of.source.clone());
        let filtered = || self.filter.trim().parse::<IpAddr>().ok().map(|address| address.to_string());
        open.or_else(chosen).or_else(filtered)
    }

    fn step(&mut self, by: isize) {
        if let Some(whole) = &mut self.whole {
            let last = whole.text.as_ref().map_or(0, |text| text.lines().count().saturating_sub(1));
            whole.scrolled = whole.scrolled.saturating_add_signed(by).min(last);
            return;
        }
        let rows = self.rows();
        let Some(at) = self.chosen(&rows) else { return };
        let place = at.saturating_add_signed(by).min(rows.len() - 1);
        let name = rows[place].of.source.clone();
        (self.place, self.chosen) = (place, Some(name));
    }

    fn erase(&mut self) {
        match &mut self.dialog {
            Some(Dialog::Filter { .. }) => self.filter.clear(),
            Some(Dialog::Lasts { text, .. }) => text.clear(),
            Some(Dialog::Help | Dialog::Question(_) | Dialog::Waiting(_) | Dialog::Answer(_)) | None => {}
        }
    }

    /// Returns true if a rule is shown. All rules are, unless the filter is part of some rule's name.
    pub fn shows_rule(&self, rule: &str) -> bool {
        let filter = self.filter.trim();
        let names_rules = self.snapshot.rules.iter().any(|of| of.name.contains(filter));
        filter.is_empty() || network(filter).is_some() || !names_rules || rule.contains(filter)
    }

    fn shows(&self, of: &TopSource) -> bool {
        let filter = self.filter.trim();
        match (network(filter), network(&of.source)) {
            (Some(wanted), Some(source)) => wanted.contains(&source) || source.contains(&wanted),
            (Some(_) | None, _) => of.source.contains(filter) || of.rule.contains(filter),
        }
    }

    fn key_of(&self, row: &Row<'_>) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an order for people")]
        let ratio = |part: u64, whole: u64| part as f64 / whole as f64;
        match self.sort {
            Sort::Refused => ratio(refused(row.of), 1),
            Sort::Rate => row.per_second.unwrap_or(0.0),
            Sort::Share if row.of.limit == 0 => f64::INFINITY,
            Sort::Share => ratio(row.of.used, row.of.limit),
            Sort::Wait if row.of.never => f64::INFINITY,
            Sort::Wait => row.of.retry_after_seconds,
        }
    }
}

/// Parses an address or a network. Partial input such as `198.51.` usually is neither and matches as part of a name.
fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "every other key means nothing here")]
fn edit(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Char(c) if text.len() < TYPED_MAX && !c.is_control() => text.push(c),
        KeyCode::Backspace => drop(text.pop()),
        _ => {}
    }
}
