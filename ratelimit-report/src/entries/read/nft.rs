//! Reader for the output of `nft list` and scripts for `nft -f`: sets, their elements, and whether rules drop them.
//! Pure.

use std::collections::HashMap;

use ipnet::IpNet;
use jiff::Timestamp;

use super::super::times::seconds;
use super::super::{Row, shortened};
use super::{CUT_OFF, Imported, Refused, Wrong, ends_in};
use lexer::{Lexer, Token};
pub(super) use words::is_statement;
use words::{FAMILIES, element, meaning, objection_to_type, place};

mod lexer;
mod words;

/// Maximum depth of nested braces. A table, a set and its elements need three.
const DEPTH_MAX: usize = 16;

/// Sets by table and name, while statements are read.
#[derive(Debug, Default)]
pub(super) struct Script {
    sets: Vec<Set>,
    by_name: HashMap<(String, String), usize>,
    /// Uses of sets in rules that do not drop their sources: table and name, line, and the rule's action in words.
    passing: Vec<((String, String), usize, &'static str)>,
    refused: Vec<Refused>,
}

#[derive(Debug, Default)]
struct Set {
    table: String,
    name: String,
    line: usize,
    /// Default timeout of elements in seconds; 0 is none.
    timeout: i64,
    /// Reason why the set's elements cannot be imported.
    refusal: Option<String>,
    elements: Vec<Element>,
}

#[derive(Debug)]
struct Element {
    line: usize,
    prefixes: Result<Vec<IpNet>, String>,
    /// Seconds until the element expires; 0 means no end, none means the set's default.
    left: Option<i64>,
    comment: Option<String>,
    text: String,
    now: Timestamp,
}

impl Script {
    /// Reads the statement at the start of `text`, which begins in line `line`. Returns the text after it and its line.
    ///
    /// # Errors
    /// Fails if the braces of the statement do not end.
    pub(super) fn statement<'a>(
        &mut self,
        text: &'a str,
        line: usize,
        now: Timestamp,
    ) -> Result<(&'a str, usize), Wrong> {
        let mut read = Statement { lexer: Lexer::new(text, line), now, script: self, braces: Vec::new() };
        read.command()?;
        // Further statements in the same line.
        while !matches!(read.lexer.peek(), Token::Line | Token::Over) {
            match read.lexer.peek() {
                Token::Semicolon => read.lexer.pass(),
                Token::Word(_) => read.command()?,
                Token::Text(_) | Token::Open | Token::Close | Token::Comma | Token::Line | Token::Over => {
                    read.skip()?;
                    if matches!(read.lexer.peek(), Token::Close) {
                        read.lexer.next();
                    }
                }
            }
        }
        let (rest, line) = read.lexer.rest();
        Ok((rest, line))
    }

    fn set(&mut self, table: &str, name: &str, line: usize) -> Option<&mut Set> {
        let key = (table.to_owned(), name.to_owned());
        let at = *self.by_name.entry(key).or_insert(self.sets.len());
        if at == self.sets.len() {
            let (table, name) = (table.to_owned(), name.to_owned());
            self.sets.push(Set { table, name, line, ..Set::default() });
        }
        self.sets.get_mut(at)
    }

    fn refuse(&mut self, line: usize, problem: String) {
        self.refused.push(Refused { line, problem });
    }

    /// Adds the denials of all sets, and the items that cannot be imported.
    pub(super) fn finish(mut self, read: &mut Imported) {
        read.refused.append(&mut self.refused);
        for set in self.sets {
            let used = self.passing.iter().find(|((table, name), ..)| *table == set.table && *name == set.name);
            let used = used.map(|(_, line, what)| format!("the rule in line {line} {what}"));
            if let Some(why) = set.refusal.or(used) {
                let (name, count) = (&set.name, set.elements.len());
                let problem = format!("set {name}: {why}; its elements, {count}, are not denied");
                read.refused.push(Refused { line: set.line, problem });
                continue;
            }
            for Element { line, prefixes, left, comment, text, now } in set.elements {
                match (prefixes, ends_in(left.unwrap_or(set.timeout), now)) {
                    (Ok(prefixes), Some(until)) => {
                        read.rows.extend(prefixes.into_iter().map(|of| Row::listed(of, until, comment.clone())));
                    }
                    (prefixes, _) => {
                        let why = prefixes.err().unwrap_or_else(|| "this is no time".to_owned());
                        let problem = format!("`{text}` of set {}: {why}", set.name);
                        read.refused.push(Refused { line, problem });
                    }
                }
            }
        }
    }
}

/// Statement that is being read.
struct Statement<'a, 'b> {
    lexer: Lexer<'a>,
    now: Timestamp,
    script: &'b mut Script,
    /// Lines of the open braces, outermost first.
    braces: Vec<usize>,
}

impl<'a> Statement<'a, '_> {
    fn command(&mut self) -> Result<(), Wrong> {
        let line = self.lexer.line();
        let Token::Word(command) = self.lexer.next() else { return Ok(()) };
        match command {
            "table" | "set" | "map" | "chain" | "element" => self.object(command, line, ""),
            "add" | "create" | "insert" | "replace" => match self.lexer.next() {
                Token::Word(object) => self.object(object, line, ""),
                Token::Text(_) | Token::Open | Token::Close | Token::Comma | Token::Semicolon => self.skip(),
                Token::Line | Token::Over => Ok(()),
            },
            "flush" | "delete" | "destroy" | "reset" => self.removal(command, line),
            other => {
                self.script.refuse(line, format!("`{other}` is not read"));
                self.skip()
            }
        }
    }

    /// Returns the words up to a brace or the end of the statement.
    fn words(&mut self) -> Vec<&'a str> {
        let mut words = Vec::new();
        while let Token::Word(word) = self.lexer.peek() {
            self.lexer.next();
            words.push(word);
        }
        words
    }

    fn open(&mut self) -> Result<bool, Wrong> {
        let (is_open, line) = (matches!(self.lexer.peek(), Token::Open), self.lexer.line());
        if is_open {
            self.braces.push(line);
            self.lexer.next();
        }
        if self.braces.len() > DEPTH_MAX {
            return Err(Wrong { line, problem: format!("more than {DEPTH_MAX} braces are open here") });
        }
        Ok(is_open)
    }

    /// Consumes a closing brace if it is next. Fails at the end of the script.
    fn closes(&mut self) -> Result<bool, Wrong> {
        match self.lexer.peek() {
            Token::Close => {
                self.lexer.next();
                self.braces.pop();
                Ok(true)
            }
            Token::Over => {
                let line = self.braces.first().copied().unwrap_or(self.lexer.line());
                Err(Wrong { line, problem: CUT_OFF.to_owned() })
            }
            Token::Word(_) | Token::Text(_) | Token::Open | Token::Comma | Token::Semicolon | Token::Line => Ok(false),
        }
    }

    /// Skips the rest of a statement, including all braces in it.
    fn skip(&mut self) -> Result<(), Wrong> {
        loop {
            match self.lexer.peek() {
                Token::Semicolon | Token::Line | Token::Over | Token::Close => return Ok(()),
                Token::Open => {
                    self.open()?;
                    while !self.closes()? {
                        match self.lexer.peek() {
                            Token::Open => self.skip()?,
                            Token::Word(_) | Token::Text(_) | Token::Close | Token::Comma => self.lexer.pass(),
                            Token::Semicolon | Token::Line | Token::Over => self.lexer.pass(),
                        }
                    }
                }
                Token::Word(_) | Token::Text(_) | Token::Comma => self.lexer.pass(),
            }
        }
    }

    /// Reads the object of a command. `table` is the surrounding table, or empty.
    fn object(&mut self, object: &str, line: usize, table: &str) -> Result<(), Wrong> {
        // The words of a rule have their own syntax.
        if object == "rule" {
            let mut words = self.lexer.clone();
            let first = if let Token::Word(word) = words.next() { word } else { "" };
            let family = if FAMILIES.contains(&first) { first } else { "ip" };
            let name = if family == first { words.next() } else { Token::Word(first) };
            let table = if let Token::Word(name) = name { format!("{family} {name}") } else { String::new() };
            return self.rule(&table, line);
        }
        let words = self.words();
        let (place, name) = place(&words, table, object == "table");
        match object {
            "table" => {
                if self.open()? {
                    while !self.closes()? {
                        let line = self.lexer.line();
                        match self.lexer.next() {
                            Token::Word(object @ ("set" | "map" | "chain")) => self.object(object, line, &name)?,
                            Token::Word(_) | Token::Text(_) => self.skip()?,
                            Token::Open | Token::Close | Token::Comma | Token::Semicolon => {}
                            Token::Line | Token::Over => {}
                        }
                    }
                }
                Ok(())
            }
            "set" => self.set(&place, &name, line),
            "map" => {
                if let Some(map) = self.script.set(&place, &name, line) {
                    map.refusal =
                        Some("a map assigns verdicts or values to its addresses, and is not a list of them".to_owned());
                }
                self.skip()
            }
            "element" => self.elements(&place, &name),
            "chain" => self.chain(&place),
            _ => self.skip(),
        }
    }

    fn set(&mut self, table: &str, name: &str, line: usize) -> Result<(), Wrong> {
        if let Some(set) = self.script.set(table, name, line) {
            (set.line, set.timeout, set.refusal) = (line, 0, None);
        }
        if !self.open()? {
            return Ok(());
        }
        while !self.closes()? {
            let Token::Word(key) = self.lexer.next() else { continue };
            if key == "elements" {
                if matches!(self.lexer.peek(), Token::Word("=")) {
                    self.lexer.next();
                }
                self.elements(table, name)?;
                continue;
            }
            let mut words = Vec::new();
            while let word @ (Token::Word(_) | Token::Comma | Token::Text(_)) = self.lexer.peek() {
                self.lexer.next();
                if let Token::Word(word) = word {
                    words.push(word);
                }
            }
            let value = words.join(" ");
            let Some(set) = self.script.set(table, name, line) else { continue };
            let refusal = match key {
                "type" | "typeof" => objection_to_type(key, &value),
                "flags" => {
                    let is_known = |word: &&&str| matches!(**word, "constant" | "interval" | "timeout" | "dynamic");
                    let unknown = words.iter().find(|word| !is_known(word));
                    unknown.map(|word| format!("its flag `{word}` is not known"))
                }
                "timeout" => match seconds(&value) {
                    Some(seconds) => {
                        set.timeout = seconds;
                        None
                    }
                    None => Some("its `timeout` is no time".to_owned()),
                },
                // These options concern storage and counters, and do not change what the set matches.
                "gc-interval" | "size" | "policy" | "auto-merge" | "counter" | "comment" | "handle" | "last" => None,
                "limit" | "quota" | "ct" => Some(format!("its elements match up to a `{key}` only")),
                other => Some(format!("its option `{other}` is not known")),
            };
            set.refusal = set.refusal.take().or(refusal);
        }
        Ok(())
    }

    /// Reads the elements between braces into a set.
    fn elements(&mut self, table: &str, name: &str) -> Result<(), Wrong> {
        let line = self.lexer.line();
        if !self.open()? {
            self.script.refuse(line, format!("set {name} has no elements between braces"));
            return self.skip();
        }
        loop {
            let is_over = self.closes()?;
            if is_over {
                return Ok(());
            }
            if matches!(self.lexer.peek(), Token::Comma | Token::Semicolon | Token::Line) {
                self.lexer.next();
                continue;
            }
            let line = self.lexer.line();
            let (mut words, mut comment) = (Vec::new(), None);
            loop {
                match self.lexer.peek() {
                    Token::Word(word) => words.push(word),
                    Token::Text(text) => {
                        comment = Some(text);
                        words.push("\"");
                    }
                    Token::Line | Token::Semicolon => {}
                    Token::Open => {
                        self.skip()?;
                        words.push("{");
                        continue;
                    }
                    Token::Comma | Token::Close | Token::Over => break,
                }
                self.lexer.next();
            }
            let (prefixes, left) = match element(&words) {
                Ok((prefixes, left)) => (Ok(prefixes), left),
                Err(why) => (Err(why), None),
            };
            let comment = comment.map(shortened).filter(|text| !text.is_empty());
            let text = words.join(" ").chars().take(80).collect();
            let now = self.now;
            if let Some(set) = self.script.set(table, name, line) {
                set.elements.push(Element { line, prefixes, left, comment, text, now });
            }
        }
    }

    fn chain(&mut self, table: &str) -> Result<(), Wrong> {
        if self.open()? {
            while !self.closes()? {
                match self.lexer.peek() {
                    Token::Semicolon | Token::Line => self.lexer.pass(),
                    Token::Word(_) | Token::Text(_) | Token::Open | Token::Close | Token::Comma | Token::Over => {
                        let line = self.lexer.line();
                        self.rule(table, line)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a rule: its action on the sources in a set, and whether it names sources itself, which are not imported.
    fn rule(&mut self, table: &str, line: usize) -> Result<(), Wrong> {
        let mut lexer = self.lexer.clone();
        self.skip()?;
        let mut words = Vec::new();
        while lexer.left() > self.lexer.left() {
            match lexer.next() {
                Token::Word(word) => words.push(word),
                Token::Open => words.push("{"),
                Token::Text(_) | Token::Close | Token::Comma | Token::Semicolon | Token::Line => {}
                Token::Over => break,
            }
        }
        let of = meaning(&words);
        for (set, what) in of.passing {
            self.script.passing.push(((table.to_owned(), set.to_owned()), line, what));
        }
        if of.denies_by_itself {
            self.script.refuse(line, "a rule names its sources itself: only sets are read from rules".to_owned());
        }
        Ok(())
    }

    /// Reads a command that removes objects or elements.
    fn removal(&mut self, command: &str, line: usize) -> Result<(), Wrong> {
        let words = self.words();
        let (object, words) = words.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
        let (table, name) = place(words, "", object == "table");
        let is_meant = |set: &Set| match object {
            "ruleset" => true,
            "table" => set.table == name,
            "set" | "map" => set.table == table && set.name == name,
            _ => false,
        };
        match (command, object) {
            // These commands remove rules only.
            ("flush", "table" | "chain") => {}
            ("flush" | "delete" | "destroy", "ruleset" | "table" | "set" | "map") => {
                self.script.sets.iter_mut().filter(|set| is_meant(set)).for_each(|set| set.elements.clear());
            }
            ("delete" | "destroy", "element") => {
                let before = self.script.set(&table, &name, line).map(|set| std::mem::take(&mut set.elements));
                self.elements(&table, &name)?;
                let Some(set) = self.script.set(&table, &name, line) else { return Ok(()) };
                let gone = std::mem::replace(&mut set.elements, before.unwrap_or_default());
                for element in gone {
                    let count = set.elements.len();
                    set.elements.retain(|of| of.prefixes != element.prefixes);
                    if set.elements.len() == count {
                        set.refusal = Some(format!("`{command} element` in line {line} takes out a part of others"));
                    }
                }
            }
            _ => self.script.refuse(line, format!("`{command} {object}` is not read")),
        }
        self.skip()
    }
}
