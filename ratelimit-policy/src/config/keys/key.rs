//! What a row of the table of keys says. Pure data.

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// What stands before its keys in their full names: `rule.`, or nothing at the top of the file.
    pub prefix: &'static str,
    /// Its keys, in the order of the documents.
    pub keys: &'static [Key],
}

/// A key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in its table.
    pub name: &'static str,
    /// The flag that sets the same.
    pub flag: Option<Flag>,
    /// What its value may be.
    pub value: Value,
    /// What holds without it: a value as the file writes it, or words.
    pub default: &'static str,
    /// What it is for, in a clause; the flag's help.
    pub help: &'static str,
    /// Further sentences, for documents alone.
    pub more: &'static str,
    /// Whether a running daemon can change it.
    pub reload: Reload,
}

/// A flag of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, with its dashes.
    pub name: &'static str,
    /// What stands behind it.
    pub takes: Takes,
}

/// What stands behind a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A value, which is called this in help.
    One(&'static str),
    /// The same, and the flag may be there several times.
    Many(&'static str),
    /// Nothing.
    Nothing {
        /// What it has the key be.
        means: &'static str,
        /// Its help, where that is not the key's.
        help: Option<&'static str>,
    },
}

/// What may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number, both ends included.
    Integer(u64, u64),
    /// `true` or `false`.
    Boolean,
    /// Anything else, in words.
    Other(&'static str),
    /// The same, which is a text: what else there is would pass for one by accident.
    Text(&'static str),
    /// A list, or one of it, in words.
    List(&'static str),
    /// The same of texts.
    Texts(&'static str),
}

/// Whether a running daemon can change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// `ratelimitd reload` and `apply` put it in force.
    Follows,
    /// They refuse a file that changes it.
    NeedsRestart,
}

/// A row that a reload follows and no flag sets.
pub(super) const fn key(name: &'static str, value: Value, default: &'static str, help: &'static str) -> Key {
    Key { name, flag: None, value, default, help, more: "", reload: Reload::Follows }
}

impl Key {
    pub(super) const fn flag(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some(Flag { name, takes: Takes::One(value) }), ..self }
    }

    pub(super) const fn flags(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some(Flag { name, takes: Takes::Many(value) }), ..self }
    }

    pub(super) const fn switch(self, name: &'static str, means: &'static str, help: Option<&'static str>) -> Self {
        Self { flag: Some(Flag { name, takes: Takes::Nothing { means, help } }), ..self }
    }

    pub(super) const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    pub(super) const fn fixed(self) -> Self {
        Self { reload: Reload::NeedsRestart, ..self }
    }

    /// Its help with the default, as `--help` says it.
    pub fn flag_help(&self) -> String {
        if let Some(Flag { takes: Takes::Nothing { help: Some(help), .. }, .. }) = self.flag {
            return help.to_owned();
        }
        let mut help = self.help.replace('`', "");
        if let Value::Integer(least, most) = self.value {
            help.push_str(&format!(", {least} to {most}"));
        }
        let is_list = self.default == "[]" || self.default == "required";
        if is_list { help } else { format!("{help} [default: {}]", self.default.trim_matches('"')) }
    }

    /// The words of a choice.
    pub const fn choices(&self) -> &'static [&'static str] {
        match self.value {
            Value::Choice(words) => words,
            Value::Integer(..)
            | Value::Boolean
            | Value::Other(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Texts(_) => &[],
        }
    }
}
