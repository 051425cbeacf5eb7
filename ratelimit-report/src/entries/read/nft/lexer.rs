//! Lexer for nft's language. Pure.

/// Word or punctuation mark of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    /// Text between quotation marks, without them.
    Text(&'a str),
    Open,
    Close,
    Comma,
    Semicolon,
    /// End of a line.
    Line,
    /// End of the script.
    Over,
}

/// Lexer over a script, token by token.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    pub(super) const fn new(rest: &'a str, line: usize) -> Self {
        Self { rest, line }
    }

    /// Returns the line number of the next token.
    pub(super) fn line(&self) -> usize {
        self.clone().skipped().line
    }

    /// Returns the number of bytes left.
    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the text after the current line, and its line number.
    pub(super) fn rest(&self) -> (&'a str, usize) {
        match self.peek() {
            Token::Line => {
                let mut after = self.clone();
                after.next();
                (after.rest, after.line)
            }
            Token::Word(_) | Token::Text(_) | Token::Open | Token::Close | Token::Comma => (self.rest, self.line),
            Token::Semicolon | Token::Over => (self.rest.trim_start(), self.line),
        }
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.clone().next()
    }

    /// Skips blanks, comments and line ends after a backslash.
    fn skipped(mut self) -> Self {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            let joined = self.rest.strip_prefix("\\\n").or_else(|| self.rest.strip_prefix("\\\r\n"));
            if let Some(joined) = joined {
                (self.rest, self.line) = (joined, self.line + 1);
            } else if self.rest.starts_with('#') {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = self.rest.get(end..).unwrap_or_default();
            } else {
                return self;
            }
        }
    }

    /// Consumes one token without returning it.
    pub(super) fn pass(&mut self) {
        self.next();
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        let after = self.clone().skipped();
        (self.rest, self.line) = (after.rest, after.line);
        let Some(first) = self.rest.chars().next() else { return Token::Over };
        let (token, length) = match first {
            '\n' => (Token::Line, 1),
            '{' => (Token::Open, 1),
            '}' => (Token::Close, 1),
            ',' => (Token::Comma, 1),
            ';' => (Token::Semicolon, 1),
            '=' => (Token::Word("="), 1),
            '"' => {
                let inside = self.rest.get(1..).unwrap_or_default();
                // A quoted text ends at the end of its line.
                let end = inside.find(['"', '\n']).unwrap_or(inside.len());
                let is_ended = inside.get(end..).is_some_and(|rest| rest.starts_with('"'));
                (Token::Text(inside.get(..end).unwrap_or_default()), 1 + end + usize::from(is_ended))
            }
            _ => {
                let is_end = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | ';' | '=' | '"');
                let end = self.rest.find(is_end).unwrap_or(self.rest.len()).max(first.len_utf8());
                (Token::Word(self.rest.get(..end).unwrap_or_default()), end)
            }
        };
        self.line += usize::from(token == Token::Line);
        self.rest = self.rest.get(length..).unwrap_or_default();
        token
    }
}
