//! A real terminal, with tmux for keys and screen, and a conversion of a screen to HTML for pictures.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::lab::{Lab, binary, once, run};

/// A terminal in the server's namespace, ended on drop.
pub struct Tmux<'a> {
    lab: &'a Lab,
    socket: PathBuf,
}

impl<'a> Tmux<'a> {
    /// Starts `top` in 80 columns and 24 lines. Its exit code and the terminal's settings are shown after its end.
    pub fn with_top(lab: &'a Lab, variables: &str) -> Self {
        let shell = format!("{variables} {} top; echo \"ended with $?\"; stty -a; cat", binary().display());
        Self::start(lab, [80, 24], &shell)
    }

    /// Starts a command in a terminal of this size.
    pub fn start(lab: &'a Lab, [columns, lines]: [u16; 2], shell: &str) -> Self {
        // Each terminal has its own socket, because a server that is about to end would still answer at the previous
        // one.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let tmux = Self { lab, socket: lab.directory().join(format!("tmux{number}.sock")) };
        let size = [columns.to_string(), lines.to_string()];
        tmux.ask(&["new-session", "-d", "-x", &size[0], "-y", &size[1], shell]);
        tmux
    }

    /// Runs a tmux command, which must succeed, and returns its output.
    pub fn ask(&self, args: &[&str]) -> String {
        let mut command = self.lab.command("tmux");
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").args(["-u", "-f", "/dev/null", "-S"]);
        command.arg(&self.socket).args(args);
        let output = run(command);
        assert_eq!(output.code(), 0, "tmux {args:?}: {}", output.stderr);
        output.stdout
    }

    /// Presses keys by their tmux names.
    pub fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// Returns the screen's text.
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// Returns the screen's text with its colours, as escape sequences.
    pub fn painted(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen contains all of these words, and returns it.
    pub fn shows(&self, words: &[&str]) -> String {
        self.holds(|screen| words.iter().all(|word| screen.contains(word)), &format!("{words:?}"))
    }

    /// Waits until the screen satisfies a condition, and returns it.
    pub fn holds(&self, is_held: impl Fn(&str) -> bool, what: &str) -> String {
        let held = once(|| Some(self.screen()).filter(|screen| is_held(screen)));
        held.unwrap_or_else(|| panic!("no {what} in:\n{}", self.screen()))
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let mut command = self.lab.command("tmux");
        command.arg("-S").arg(&self.socket).arg("kill-server");
        let _ended = command.output();
    }
}

/// A terminal's first 16 colours, followed by the colours of text and ground.
const PALETTE: [&str; 16] = [
    "#2e3440", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9", "#7f8796", "#ff7b86",
    "#b5e08f", "#ffd68a", "#82c4ff", "#dd93f2", "#7fd4df", "#ffffff",
];
const TEXT: &str = "#d8dee9";
const GROUND: &str = "#14181f";

/// Rendition of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Paint {
    text: Option<String>,
    ground: Option<String>,
    is_bold: bool,
    is_dim: bool,
    is_underlined: bool,
    is_reversed: bool,
}

impl Paint {
    const PLAIN: Self =
        Self { text: None, ground: None, is_bold: false, is_dim: false, is_underlined: false, is_reversed: false };

    /// Applies an escape sequence that selects a rendition.
    fn select(&mut self, sequence: &str) {
        let mut codes = sequence.split([';', ':']).map(|code| code.parse::<u16>().unwrap_or(0));
        while let Some(code) = codes.next() {
            match code {
                0 => *self = Self::PLAIN,
                1 => self.is_bold = true,
                2 => self.is_dim = true,
                4 => self.is_underlined = true,
                7 => self.is_reversed = true,
                22 => (self.is_bold, self.is_dim) = (false, false),
                24 => self.is_underlined = false,
                27 => self.is_reversed = false,
                30..=37 => self.text = colour(code - 30),
                90..=97 => self.text = colour(code - 90 + 8),
                39 => self.text = None,
                40..=47 => self.ground = colour(code - 40),
                100..=107 => self.ground = colour(code - 100 + 8),
                49 => self.ground = None,
                38 | 48 => {
                    let chosen = match codes.next() {
                        Some(5) => codes.next().and_then(colour),
                        _ => codes
                            .by_ref()
                            .take(3)
                            .map(|part| format!("{part:02x}"))
                            .reduce(|a, b| a + &b)
                            .map(|of| format!("#{of}")),
                    };
                    if code == 38 { self.text = chosen } else { self.ground = chosen }
                }
                other => panic!("a rendition that no picture has: {other} in {sequence:?}"),
            }
        }
    }

    fn css(&self) -> String {
        let text = self.text.as_deref().unwrap_or(TEXT);
        let ground = self.ground.as_deref().unwrap_or(GROUND);
        let (text, ground) = if self.is_reversed { (ground, text) } else { (text, ground) };
        let mut css = format!("color:{text};background:{ground}");
        for (is_set, more) in [
            (self.is_bold, ";font-weight:bold"),
            (self.is_dim, ";opacity:.65"),
            (self.is_underlined, ";text-decoration:underline"),
        ] {
            css += if is_set { more } else { "" };
        }
        css
    }
}

/// Returns one of a terminal's 256 colours.
fn colour(code: u16) -> Option<String> {
    let level = |of: u16| if of == 0 { 0 } else { 55 + of * 40 };
    Some(match code {
        0..=15 => PALETTE[usize::from(code)].to_owned(),
        16..=231 => {
            let at = code - 16;
            format!("#{:02x}{:02x}{:02x}", level(at / 36), level(at / 6 % 6), level(at % 6))
        }
        232..=255 => format!("#{0:02x}{0:02x}{0:02x}", 8 + (code - 232) * 10),
        _ => return None,
    })
}

/// Returns an HTML page that looks like a painted screen, cell by cell.
pub fn html(painted: &str) -> String {
    let mut page = format!(
        "<!doctype html><meta charset=utf-8><body style='margin:12px;background:{GROUND}'>\
         <pre style='margin:0;font:14px/1.25 DejaVu Sans Mono,monospace'>"
    );
    let mut paint = Paint::PLAIN;
    for (at, part) in painted.trim_end().split("\x1b[").enumerate() {
        let text = match part.split_once('m') {
            Some((sequence, text)) if at > 0 => {
                paint.select(sequence);
                text
            }
            _ => part,
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        write!(page, "<span style='{}'>{text}</span>", paint.css()).expect("a text takes more");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_painted_screen_keeps_its_text_and_colours() {
        let page = html(
            "plain \x1b[1m\x1b[31mred <b>\x1b[0m\x1b[38;5;232mdark\x1b[39m \x1b[7mback\x1b[27m \x1b[48;2;1;2;3mlast\n",
        );
        for has in [
            format!("<span style='color:{TEXT};background:{GROUND}'>plain </span>"),
            format!("<span style='color:#e06c75;background:{GROUND};font-weight:bold'>red &lt;b></span>"),
            format!("<span style='color:#080808;background:{GROUND}'>dark</span>"),
            format!("<span style='color:{GROUND};background:{TEXT}'>back</span>"),
            format!("<span style='color:{TEXT};background:#010203'>last</span>"),
        ] {
            assert!(page.contains(&has), "{has} is not in {page}");
        }
    }
}
