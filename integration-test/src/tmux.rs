//! A real terminal for what draws on one: tmux has the keys and the screen.

use std::path::PathBuf;

use crate::lab::{Lab, binary, once, run};

/// A terminal of 80 columns and 24 lines in the server's namespace, ended on drop.
pub struct Tmux<'a> {
    lab: &'a Lab,
    socket: PathBuf,
}

impl<'a> Tmux<'a> {
    /// With `top`, and behind it what that ended with and how it left the terminal.
    pub fn start(lab: &'a Lab, variables: &str) -> Self {
        let shell = format!("{variables} {} top; echo \"ended with $?\"; stty -a; cat", binary().display());
        Self::running(lab, &shell)
    }

    /// With another command.
    pub fn running(lab: &'a Lab, shell: &str) -> Self {
        let tmux = Self { lab, socket: lab.directory().join("tmux.sock") };
        tmux.ask(&["new-session", "-d", "-x", "80", "-y", "24", shell]);
        tmux
    }

    /// Has tmux do this: what it prints.
    pub fn ask(&self, args: &[&str]) -> String {
        let mut command = self.lab.command("tmux");
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").args(["-u", "-f", "/dev/null", "-S"]);
        command.arg(&self.socket).args(args);
        let output = run(command);
        assert_eq!(output.code(), 0, "tmux {args:?}: {}", output.stderr);
        output.stdout
    }

    /// Types.
    pub fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    /// What is to be seen.
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// The screen once it has all of this.
    pub fn shows(&self, words: &[&str]) -> String {
        self.holds(|screen| words.iter().all(|word| screen.contains(word)), &format!("{words:?}"))
    }

    /// The screen once that is held of it.
    pub fn holds(&self, is_held: impl Fn(&str) -> bool, what: &str) -> String {
        let held = once(|| Some(self.screen()).filter(|screen| is_held(screen)));
        held.unwrap_or_else(|| panic!("no {what} in:\n{}", self.screen()))
    }

    /// The shell's screen, with a terminal that obeys it.
    pub fn is_restored(screen: &str) -> bool {
        let words: Vec<&str> = screen.split_whitespace().collect();
        ["icanon", "isig", "echo"].iter().all(|word| words.contains(word)) && !screen.contains("Sources: ")
    }

    /// `top` has ended well, and left the terminal as it was.
    pub fn assert_restored(&self) {
        self.holds(|screen| screen.contains("ended with 0") && Self::is_restored(screen), "terminal as before");
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let mut command = self.lab.command("tmux");
        command.arg("-S").arg(&self.socket).arg("kill-server");
        let _ended = command.output();
    }
}
