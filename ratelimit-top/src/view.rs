//! Rendering of a frame from the state. Pure: the frame depends only on the state, the time and the size. Colour
//! never carries information that the text lacks.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Wrap};
use ratelimit_policy::config::syntax::{printable, printable_lines};
use ratelimit_report::fleet::FleetState;
use ratelimit_report::snapshot::{Interface, Overload, Rule};
use ratelimit_view::{attachment, attention, duration, mode_of, number, what_it_does};

use crate::rates::whole;
use crate::state::{Dialog, State, Whole};

mod table;

/// Smallest supported terminal size, in columns and rows.
const SIZE_MIN: (u16, u16) = (72, 14);

/// Column widths of a rule before its sparklines: name, mode, and two rates.
const RULE_NAME: u16 = 14;
const RULE_MODE: u16 = 8;
const RULE_RATE: u16 = 8;

const HELP: &str = "\
/       show only an address, a network, or names that hold a text
s       sort: refused, refused a second, share of the limit, wait
p       pause: nothing is read until p again
↑ ↓ j k PgUp PgDn Home End   choose a source, or scroll
Enter   details of one source; Esc or q goes back
a       allow the source, as `ratelimitd allow` does
d       deny it, as `ratelimitd deny` does
u       unblock it, as `ratelimitd unblock` does
?       this help
q       quit; Ctrl-Z suspends

Each change asks first, and names what it will do.
Colours add nothing to what the words say.";

/// Styling of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Colours and text attributes.
    Colours,
    /// Bold and reverse video only.
    Plain,
}

impl Paint {
    const fn of(self, color: Color) -> Style {
        match self {
            Self::Colours => Style::new().fg(color),
            Self::Plain => Style::new(),
        }
    }

    const fn loud(self) -> Style {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }
}

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the complete frame as of `now`.
pub fn draw(frame: &mut Frame<'_>, state: &State, now: Duration, paint: Paint) {
    let area = frame.area();
    let (width, height) = SIZE_MIN;
    if area.width < width || area.height < height {
        let text = format!("{}x{} is too small: top needs {width}x{height}. q quits.", area.width, area.height);
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let head = head(state, now, area, paint);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(rows(&head)), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(head), top);
    match &state.whole {
        Some(of) => one_source(frame, of, middle, paint),
        None => overview(frame, state, middle, paint),
    }
    frame.render_widget(Line::styled(cut(&foot(state), usize::from(area.width)), HEAD), bottom);
    if let Some(dialog) = &state.dialog {
        self::dialog(frame, dialog, area, paint);
    }
}

fn rows(lines: &[Line<'_>]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}

/// Renders the head: mode, interfaces, rates, and warnings.
fn head(state: &State, now: Duration, area: Rect, paint: Paint) -> Vec<Line<'static>> {
    let of = &state.snapshot;
    let width = usize::from(area.width);
    let up = format!("ratelimitd {}, up {}: {}", of.version, duration(of.uptime_seconds), what_it_does(of));
    let mut lines: Vec<Line<'static>> =
        folded(&up, width, 2).into_iter().map(|line| Line::styled(line, HEAD)).collect();
    let interfaces: Vec<String> = of.interfaces.iter().map(interface).collect();
    lines.extend(folded(&interfaces.join("  "), width, 2).into_iter().map(Line::raw));
    lines.push(Line::raw(cut(&traffic(state, now), width)));
    let mut loud = attention(of);
    if let Some(why) = &state.gone {
        let age = duration(state.age(now).as_secs_f64().floor());
        loud.insert(0, format!("NO ANSWER: this is {age} old, and the daemon is asked again every second: {why}"));
    }
    let shown_max = usize::from(area.height / 8).max(1);
    let hidden = loud.len().saturating_sub(shown_max);
    for (at, line) in loud.iter().take(shown_max).enumerate() {
        let more = if hidden > 0 && at + 1 == shown_max {
            format!(" (and {hidden} more: `ratelimitd stats`)")
        } else {
            String::new()
        };
        let room = width.saturating_sub(more.chars().count());
        lines.push(Line::styled(cut(&printable(line), room) + &more, paint.loud()));
    }
    lines
}

/// Formats an interface, such as `eth0 native, in the driver`.
fn interface(of: &Interface) -> String {
    format!("{} {}", of.name, attachment(of))
}

/// Formats the traffic line, such as `passed 4,301/s  dropped 20/s  overload no  reading 0s old`.
fn traffic(state: &State, now: Duration) -> String {
    let rates: Vec<_> = state.snapshot.interfaces.iter().filter_map(|of| of.per_second).collect();
    let sum = |of: &dyn Fn(usize) -> f64| match rates.len() {
        0 => "-".to_owned(),
        count => format!("{}/s", number(whole((0..count).map(of).sum()))),
    };
    let mut out = format!("passed {}  dropped {}", sum(&|at| rates[at].passed), sum(&|at| rates[at].dropped));
    if rates.iter().any(|of| of.would_drop > 0.0) {
        out += &format!("  would drop {}", sum(&|at| rates[at].would_drop));
    }
    let overload = match state.snapshot.sources.overload {
        Overload::None => "no",
        Overload::Sampling => "SAMPLING",
    };
    out += &format!("  overload {overload}");
    out += &format!("  reading {} old", duration(state.age(now).as_secs_f64().floor()));
    if state.is_paused {
        out += "  PAUSED";
    }
    match state.snapshot.fleet.state {
        FleetState::Off => out,
        FleetState::Connected => out + "  fleet of " + &number(state.snapshot.fleet.hosts),
        lost @ (FleetState::Degraded | FleetState::Away) => out + "  fleet " + &lost.label().to_uppercase(),
    }
}

fn overview(frame: &mut Frame<'_>, state: &State, area: Rect, paint: Paint) {
    let shown: Vec<&Rule> = state.snapshot.rules.iter().filter(|rule| state.shows_rule(&rule.name)).collect();
    let rows_max = usize::from(frame.area().height / 6);
    let rules = u16::try_from(shown.len().min(rows_max)).unwrap_or(u16::MAX);
    let [above, below] = Layout::vertical([Constraint::Length(rules + 1), Constraint::Fill(1)]).areas(area);
    self::rules(frame, state, &shown, above, paint);
    table::sources(frame, state, below, paint);
}

/// Draws each rule with its admitted and dropped rates of the last two minutes.
fn rules(frame: &mut Frame<'_>, state: &State, shown: &[&Rule], area: Rect, paint: Paint) {
    let lines = Layout::vertical(vec![Constraint::Length(1); usize::from(area.height)]).split(area);
    let parts = Layout::horizontal([
        Constraint::Length(RULE_NAME),
        Constraint::Length(RULE_MODE),
        Constraint::Length(RULE_RATE),
        Constraint::Fill(1),
        Constraint::Length(RULE_RATE),
        Constraint::Fill(1),
    ])
    .spacing(1);
    let hidden = shown.len().saturating_sub(lines.len() - 1);
    let name = if hidden > 0 { format!("RULE (+{hidden})") } else { "RULE".to_owned() };
    let head = [name.as_str(), "MODE", "ADMIT/S", "2 minutes", "DROP/S", "2 minutes"];
    for (cell, text) in parts.split(lines[0]).iter().zip(head) {
        let side = if text.ends_with("/S") { Alignment::Right } else { Alignment::Left };
        frame.render_widget(Line::styled(text.to_owned(), HEAD).alignment(side), *cell);
    }
    for (line, rule) in lines.iter().skip(1).zip(shown) {
        let cells: [Rect; 6] = parts.areas(*line);
        let now = state.per_second(&rule.name);
        let rate = |at: usize| now.map_or_else(|| "-".to_owned(), |rates| table::short(whole(rates[at]), RULE_RATE));
        frame.render_widget(cut(&rule.name, usize::from(RULE_NAME)), cells[0]);
        frame.render_widget(mode_of(rule), cells[1]);
        frame.render_widget(Line::raw(rate(0)).right_aligned(), cells[2]);
        frame.render_widget(Line::raw(rate(1)).right_aligned(), cells[4]);
        let width = usize::from(cells[3].width.min(cells[5].width));
        let [admitted, refused] = state.history(&rule.name, width);
        for (cell, columns, color) in [(cells[3], admitted, Color::Green), (cells[5], refused, Color::Red)] {
            let line = Sparkline::default().data(columns).absent_value_symbol("\u{b7}").style(paint.of(color));
            frame.render_widget(line, cell);
        }
    }
}

/// Draws the detail view of one source: the output of `check`.
fn one_source(frame: &mut Frame<'_>, of: &Whole, area: Rect, paint: Paint) {
    let block = Block::bordered().title(format!(" {} ", of.source));
    // The missing answer stays visible while the text scrolls.
    let problem = match (&of.text, &of.problem) {
        (_, None) => String::new(),
        (None, Some(why)) => format!("NO ANSWER: {why}\n"),
        (Some(_), Some(why)) => format!("NO ANSWER, what follows is older: {why}\n\n"),
    };
    let text = of.text.as_deref().unwrap_or(if of.problem.is_none() { "…" } else { "" });
    let left: String = text.split_inclusive('\n').skip(of.scrolled).collect();
    let style = if of.problem.is_some() { paint.loud() } else { Style::new() };
    let paragraph =
        Paragraph::new(printable_lines(&(problem + &left))).wrap(Wrap { trim: false }).block(block).style(style);
    frame.render_widget(paragraph, area);
}

/// Returns the foot line: the keys, or the filter being typed.
fn foot(state: &State) -> String {
    match (&state.dialog, &state.whole) {
        (Some(Dialog::Filter { .. }), _) => {
            format!("/{}\u{2588}  Enter keeps it, Esc undoes it", state.filter)
        }
        (_, Some(_)) => "Esc back  ? help  ↑↓ scroll  p pause  a allow  d deny  u unblock".to_owned(),
        (_, None) => "q quit  ? help  / filter  s sort  p pause  \u{21b5} open  a allow  d deny  u unblock".to_owned(),
    }
}

fn dialog(frame: &mut Frame<'_>, dialog: &Dialog, area: Rect, paint: Paint) {
    let (title, text) = match dialog {
        // The filter is typed in the last line.
        Dialog::Filter { .. } => return,
        Dialog::Help => ("Keys".to_owned(), format!("{HELP}\n\nAny key goes back.")),
        Dialog::Lasts { verb, source, text, problem } => {
            let problem = problem.as_ref().map_or_else(String::new, |problem| format!("\n{problem}\n"));
            let body = format!(
                "For how long? 10m, 12h, 7d, or permanent\n\n> {text}\u{2588}\n{problem}\nEnter continues, Esc cancels"
            );
            (format!("{} {source}", verb.word()), body)
        }
        Dialog::Question(order) => {
            let body = format!("{}\n\n    {}\n\ny confirms, n cancels", order.question(), order.command());
            (format!("{} {}", order.verb.word(), order.source), body)
        }
        Dialog::Waiting(order) => ("Asked".to_owned(), format!("{}\n\nThe daemon has been asked …", order.command())),
        Dialog::Answer(Ok(said)) => ("Done".to_owned(), format!("{}\n\nAny key continues", said.trim_end())),
        Dialog::Answer(Err(why)) => ("NOT DONE".to_owned(), format!("{}\n\nAny key continues", why.trim_end())),
    };
    let width = area.width.saturating_sub(8).min(76);
    let inner = usize::from(width.saturating_sub(4));
    let lines: Vec<String> = printable_lines(&text).lines().flat_map(|line| folded(line, inner, usize::MAX)).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let style = if matches!(dialog, Dialog::Answer(Err(_))) { paint.loud() } else { HEAD };
    let block = Block::bordered()
        .title(Line::styled(format!(" {title} "), style))
        .padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines.join("\n")).block(block), place);
}

/// Folds a text at spaces into at most `lines_max` lines of at most `width` columns, and truncates the last line.
/// Assumes `printable` text, in which one character is one column. Rare wider characters are cut off at the frame's
/// edge.
fn folded(text: &str, width: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > width && lines.len() + 1 < lines_max && width > 0 {
        let space = rest[..=width].iter().rposition(|c| *c == ' ').filter(|at| *at > 0);
        let line: String = rest.drain(..space.unwrap_or(width)).collect();
        lines.push(line);
        let blanks = rest.iter().take_while(|c| **c == ' ').count();
        rest.drain(..blanks);
    }
    lines.push(cut(&rest.iter().collect::<String>(), width));
    lines
}

/// Truncates a text with an ellipsis if it exceeds `width` characters.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect()
}
