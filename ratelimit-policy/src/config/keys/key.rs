//! Types of the table of keys. Pure data.

/// A table of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Prefix of the keys in their full names: `rule.`. Empty at the top of the file.
    pub prefix: &'static str,
    /// Keys of the table, in the order of the documents.
    pub keys: &'static [Key],
}

/// A key of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name within its table.
    pub name: &'static str,
    /// Flag that sets the same value.
    pub flag: Option<Flag>,
    /// Kind of value that the key takes.
    pub value: Value,
    /// Default: a value as the file writes it, or words.
    pub default: &'static str,
    /// Purpose in one clause, which is also the flag's help.
    pub help: &'static str,
    /// Further sentences, used only in documents.
    pub more: &'static str,
    /// Effect of a reload on the key.
    pub reload: Reload,
}

/// A flag of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name of the flag, with its dashes.
    pub name: &'static str,
    /// Value that follows the flag.
    pub takes: Takes,
}

/// Value that follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One value, with its name in help.
    One(&'static str),
    /// One value, with its name in help. The flag may be repeated.
    Many(&'static str),
    /// No value: the flag is a switch.
    Nothing {
        /// Value of the key while the flag is set.
        means: &'static str,
        /// Help of the flag. None for the help of the key.
        help: Option<&'static str>,
    },
}

/// Kind of value that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in this inclusive range.
    Integer(u64, u64),
    /// `true` or `false`.
    Boolean,
    /// Any other kind, described in words.
    Other(&'static str),
    /// A quoted text, described in words. Unquoted values would pass for one by accident.
    Text(&'static str),
    /// A list or a single element, described in words.
    List(&'static str),
    /// A list of quoted texts or a single one, described in words.
    Texts(&'static str),
}

/// Effect of a reload on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// `ratelimitd reload` and `apply` change the value.
    Follows,
    /// `ratelimitd reload` and `apply` refuse a file that changes the value.
    NeedsRestart,
}

/// Returns a key that a reload changes and no flag sets.
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

    /// Returns the key's help with its default, as `--help` prints it.
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

    /// Returns the words of a choice. Empty for other kinds of value.
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
