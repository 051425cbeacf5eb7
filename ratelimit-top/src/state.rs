//! What is shown, and what readings and keys make of it. Pure: time is an argument, counted from the start of `top`; a key
//! gives what is to be asked for, and an answer comes back as [`Heard`].

use std::cmp::Ordering;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratelimit_policy::config::network::Target;
use ratelimit_report::snapshot::{Snapshot, TopSource};

use crate::order::{Lasts, Order, Verb};
use crate::rates::{Rates, refused};

/// Rows that PgUp and PgDn go.
const PAGE: isize = 10;

/// Characters of a filter or a duration that are taken.
const TYPED_MAX: usize = 60;

/// What to do for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// End.
    Quit,
    /// Give the terminal back until the shell continues the process.
    Suspend,
    /// Read now.
    Read,
    /// Look at one source.
    Look(IpAddr),
    /// Change something.
    Order(Order),
}

/// What came of it.
#[derive(Debug)]
pub enum Heard {
    /// A reading, or why there is none.
    Read(Result<Box<Snapshot>, String>),
    /// One source whole, as text, or why not.
    Looked(IpAddr, Result<String, String>),
    /// What came of an order, in words: what was done, or why not.
    Ordered(Result<String, String>),
}

/// The order of sources, greatest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// What was refused.
    #[default]
    Refused,
    /// What is refused a second.
    Rate,
    /// The share of the limit that is used.
    Share,
    /// How long until it passes again.
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

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Refused => "packets refused",
            Self::Rate => "packets refused a second",
            Self::Share => "share of the limit used",
            Self::Wait => "time until it passes again",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The source.
    pub of: &'a TopSource,
    /// Packets that it is refused per second, or would be in a dry run.
    pub per_second: Option<f64>,
}

/// One source whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// As it is named in a row or a filter.
    pub source: String,
    /// The address that is looked at.
    pub address: IpAddr,
    /// What is known of it; none until the first answer.
    pub text: Option<String>,
    /// Why the last look gave nothing.
    pub problem: Option<String>,
    /// Lines that are scrolled away.
    pub scrolled: usize,
}

/// What lies over the rest and takes the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialog {
    /// The filter is typed; what it was before.
    Filter {
        /// Esc goes back to it.
        before: String,
    },
    /// The keys.
    Help,
    /// For how long?
    Lasts {
        /// What is to be done.
        verb: Verb,
        /// With which source.
        source: String,
        /// What is typed.
        text: String,
        /// What is wrong with it.
        problem: Option<String>,
    },
    /// Yes or no?
    Question(Order),
    /// The daemon has been asked.
    Waiting(Order),
    /// What came of it.
    Answer(Result<String, String>),
}

/// All that is shown.
#[derive(Debug)]
pub struct State {
    /// The last reading.
    pub snapshot: Snapshot,
    read_at: Duration,
    rates: Rates,
    /// Why the last time of asking gave no reading.
    pub gone: Option<String>,
    /// The order of sources.
    pub sort: Sort,
    /// Sources and rules that are shown: an address, a network, or a part of a name. Empty is all.
    pub filter: String,
    /// Nothing is read.
    pub is_paused: bool,
    /// Its place where nothing was chosen by name, or that is gone.
    place: usize,
    chosen: Option<String>,
    /// In place of the tables.
    pub whole: Option<Whole>,
    /// Over all of it.
    pub dialog: Option<Dialog>,
}

impl State {
    /// From a first reading at `now`.
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

    /// How old the reading is.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.read_at)
    }

    /// A rule's last two minutes, admitted and refused, in so many columns each.
    pub fn history(&self, rule: &str, columns: usize) -> [Vec<Option<u64>>; 2] {
        [
            self.rates.columns(rule, columns, |rate| rate.admitted),
            self.rates.columns(rule, columns, |rate| rate.refused),
        ]
    }

    /// A rule's packets per second, admitted and refused.
    pub fn per_second(&self, rule: &str) -> Option<[f64; 2]> {
        self.rates.now(rule).map(|rate| [rate.admitted, rate.refused])
    }

    /// Sources that the filter shows, in order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let shown = self.snapshot.top.iter().flatten().filter(|of| self.shows(of));
        let mut rows: Vec<Row<'_>> = shown.map(|of| Row { of, per_second: self.rates.of_source(&of.source) }).collect();
        // What the daemon ranks comes worst first: that decides between equals.
        rows.sort_by(|a, b| self.key_of(b).partial_cmp(&self.key_of(a)).unwrap_or(Ordering::Equal));
        rows
    }

    /// The row that keys are about.
    pub fn chosen(&self, rows: &[Row<'_>]) -> Option<usize> {
        let by_name = self.chosen.as_ref().and_then(|chosen| rows.iter().position(|row| row.of.source == *chosen));
        by_name.or_else(|| rows.len().checked_sub(1).map(|last| self.place.min(last)))
    }

    /// Takes in an answer.
    pub fn heard(&mut self, heard: Heard, now: Duration) {
        match heard {
            Heard::Read(Ok(snapshot)) => {
                self.rates.push(&snapshot);
                (self.snapshot, self.read_at, self.gone) = (*snapshot, now, None);
            }
            Heard::Read(Err(why)) => self.gone = Some(why),
            Heard::Looked(address, found) => {
                // One that was left meanwhile is of no interest.
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

    /// What is asked each second: nothing in a pause.
    pub fn due(&self) -> Vec<Ask> {
        if self.is_paused {
            return Vec::new();
        }
        let look = self.whole.as_ref().map(|whole| Ask::Look(whole.address));
        [Some(Ask::Read), look].into_iter().flatten().collect()
    }

    /// What a key does.
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
                // Enter is no answer: it ended the duration, and may have been typed twice.
                _ => self.dialog = Some(Dialog::Question(order)),
            },
            // The order is under way, and its answer will be shown.
            Dialog::Waiting(order) => self.dialog = Some(Dialog::Waiting(order)),
            Dialog::Help | Dialog::Answer(_) => {}
        }
        None
    }

    /// Begins an order about the source that is chosen or open.
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

    /// The source that is open, else chosen, else the one address that the filter names.
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

    /// Whether a rule is shown: all are, unless the filter is a part of some rule's name.
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

/// An address or a network. What is typed so far is none as a rule: `198.51.` is a part of a name.
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
