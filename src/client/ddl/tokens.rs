//! The words, names, texts and signs of a DDL.

use crate::error::{Error, Result};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A word without quotes: keyword, type or name.
    Word(String),
    /// A name in backticks or double quotes.
    Name(String),
    /// Text in single quotes.
    Text(String),
    Sign(char),
}

/// Tokens, and which is next.
#[derive(Debug)]
pub(super) struct Tokens {
    list: Vec<(Token, usize)>,
    next: usize,
}

impl Tokens {
    pub(super) fn of(text: &str) -> Result<Self> {
        let mut list = Vec::new();
        let mut chars = text.chars().peekable();
        let mut line = 1;
        while let Some(char) = chars.next() {
            let started = line;
            let token = match char {
                '\n' => {
                    line += 1;
                    continue;
                }
                _ if char.is_whitespace() => continue,
                '-' if chars.peek() == Some(&'-') => {
                    while chars.next_if(|next| *next != '\n').is_some() {}
                    continue;
                }
                '/' if chars.peek() == Some(&'*') => {
                    chars.next();
                    let mut last = ' ';
                    loop {
                        let Some(next) = chars.next() else { return Err(open(started, "comment")) };
                        line += usize::from(next == '\n');
                        if last == '*' && next == '/' {
                            break;
                        }
                        last = next;
                    }
                    continue;
                }
                '\'' | '`' | '"' => {
                    let mut inside = String::new();
                    loop {
                        let Some(next) = chars.next() else { return Err(open(started, "quote")) };
                        line += usize::from(next == '\n');
                        // A doubled quote is one of the text.
                        if next == char && chars.next_if_eq(&char).is_none() {
                            break;
                        }
                        inside.push(next);
                    }
                    if char == '\'' { Token::Text(inside) } else { Token::Name(inside) }
                }
                _ if char.is_alphanumeric() || char == '_' => {
                    let mut word = String::from(char);
                    while let Some(next) = chars.next_if(|next| next.is_alphanumeric() || *next == '_') {
                        word.push(next);
                    }
                    Token::Word(word)
                }
                '(' | ')' | '<' | '>' | ',' | '.' | '=' | ';' => Token::Sign(char),
                other => return Err(Error::invalid(format!("line {line}: `{}` has no place in a DDL", other.escape_debug()))),
            };
            list.push((token, started));
        }
        Ok(Self { list, next: 0 })
    }

    fn peek(&self) -> Option<&Token> {
        self.list.get(self.next).map(|(token, _)| token)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.next += 1;
        token
    }

    /// The line of the next token, or of the last one at the end.
    pub(super) fn line(&self) -> usize {
        self.list.get(self.next).or(self.list.last()).map_or(1, |(_, line)| *line)
    }

    /// The error that `expected` does not come next.
    pub(super) fn wrong(&self, expected: &str) -> Error {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Word(word) | Token::Name(word)) => format!("`{word}`"),
            Some(Token::Text(text)) => format!("`'{text}'`"),
            Some(Token::Sign(sign)) => format!("`{sign}`"),
        };
        Error::invalid(format!("line {}: {found} where {expected} should be", self.line()))
    }

    /// As [`Tokens::wrong`], for a token that was taken already.
    pub(super) fn wrong_before(&mut self, expected: &str) -> Error {
        self.next = self.next.saturating_sub(1);
        self.wrong(expected)
    }

    pub(super) fn peek_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek_word(word);
        self.next += usize::from(found);
        found
    }

    /// These keywords, one after the other.
    pub(super) fn words(&mut self, words: &[&str]) -> Result<()> {
        for word in words {
            if !self.take_word(word) {
                return Err(self.wrong(&format!("`{word}`")));
            }
        }
        Ok(())
    }

    pub(super) fn take(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.next += usize::from(found);
        found
    }

    pub(super) fn sign(&mut self, sign: char) -> Result<()> {
        if self.take(sign) { Ok(()) } else { Err(self.wrong(&format!("`{sign}`"))) }
    }

    pub(super) fn name(&mut self, what: &str) -> Result<String> {
        match self.next() {
            Some(Token::Word(name) | Token::Name(name)) if !name.is_empty() => Ok(name),
            _ => Err(self.wrong_before(what)),
        }
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        match self.next() {
            Some(Token::Text(text)) => Ok(text),
            _ => Err(self.wrong_before(&format!("{what} in single quotes"))),
        }
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let number = match self.next() {
            Some(Token::Word(word)) => word.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.wrong_before(what))
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.next >= self.list.len() { Ok(()) } else { Err(self.wrong("the end")) }
    }
}

fn open(line: usize, what: &str) -> Error {
    Error::invalid(format!("line {line}: a {what} starts that does not end"))
}
