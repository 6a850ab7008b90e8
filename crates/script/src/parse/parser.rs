//! The parser's place in the text: looking at the next token, taking it, requiring it.
//!
//! In: a source. Out: tokens and errors. Invariant: what is nested too deeply is an error before it is a deep call.
//! Does not: know any rule of the language.

use std::collections::HashMap;

use crate::diagnostic::Diagnostic;
use crate::lex::{Lexer, Token};
use crate::source::{Source, Span};
use crate::tree::{Expr, ExprKind, MAX_DEPTH};

/// What the parser says of a text: a part of the tree, or why there is none.
pub(crate) type Parsed<T> = Result<T, Box<Diagnostic>>;

/// A place in the text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    at: usize,
    /// Where the last token ended.
    pub(super) last: usize,
}

/// A parser of one source.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    mark: Mark,
    nested: u16,
    /// `#define`d names, with the texts that they stand for.
    pub(super) defines: HashMap<String, Expr>,
    /// Names of structures that were defined, for casts.
    pub(super) positional: &'a [String],
}

impl<'a> Parser<'a> {
    /// A parser at the begin of `source`; `positional` are the parameters, which may be parts of attach points.
    pub(crate) fn new(source: &'a Source, positional: &'a [String]) -> Self {
        let (lexer, mark) = (Lexer::new(source.text()), Mark { at: 0, last: 0 });
        Self { lexer, mark, nested: 0, defines: HashMap::new(), positional }
    }
    pub(super) fn peek(&self) -> (Token, Span) {
        self.lexer.token(self.mark.at)
    }
    pub(super) fn peek_token(&self) -> Token {
        self.peek().0
    }
    /// The token behind the next one.
    pub(super) fn peek_second(&self) -> Token {
        self.lexer.token(self.peek().1.end).0
    }
    pub(super) fn take(&mut self) -> (Token, Span) {
        let (token, span) = self.peek();
        self.mark = Mark { at: span.end, last: span.end };
        (token, span)
    }
    pub(super) const fn mark(&self) -> Mark {
        self.mark
    }
    pub(super) const fn restore(&mut self, mark: Mark) {
        self.mark = mark;
    }
    /// Goes on at a byte.
    pub(super) const fn go_to(&mut self, at: usize) {
        self.mark = Mark { at, last: at };
    }
    /// Where the next token begins.
    pub(super) fn begin(&self) -> usize {
        self.lexer.layout(self.mark.at)
    }
    /// From a byte to the end of the last token.
    pub(super) const fn since(&self, begin: usize) -> Span {
        let end = if self.mark.last > begin { self.mark.last } else { begin };
        Span::new(begin, end)
    }
    /// Whether the next token is this sign.
    pub(super) fn sees(&self, sign: &str) -> bool {
        matches!(self.peek_token(), Token::Sign(next) if next == sign)
    }
    /// Whether the next token is this word.
    pub(super) fn sees_word(&self, word: &str) -> bool {
        matches!(self.peek_token(), Token::Name(name) if name == word)
    }
    /// Takes a sign if it is next.
    pub(super) fn accept(&mut self, sign: &str) -> bool {
        let is = self.sees(sign);
        if is {
            self.take();
        }
        is
    }
    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let is = self.sees_word(word);
        if is {
            self.take();
        }
        is
    }
    pub(super) fn expect(&mut self, sign: &str) -> Parsed<Span> {
        match self.sees(sign) {
            true => Ok(self.take().1),
            false => Err(self.unexpected(&format!("'{sign}'"))),
        }
    }
    pub(super) fn name(&mut self, what: &str) -> Parsed<String> {
        match self.peek_token() {
            Token::Name(name) => {
                self.take();
                Ok(name)
            }
            _ => Err(self.unexpected(what)),
        }
    }
    /// A number without sign.
    pub(super) fn integer(&mut self, what: &str) -> Parsed<u64> {
        match self.peek_token() {
            Token::Int(value) => {
                self.take();
                Ok(value)
            }
            _ => Err(self.unexpected(what)),
        }
    }
    /// The error that something else was expected here.
    pub(super) fn unexpected(&self, what: &str) -> Box<Diagnostic> {
        let (token, span) = self.peek();
        let message = match &token {
            Token::Bad(message) => format!("syntax error, {message}"),
            token => format!("syntax error, unexpected {}, expected {what}", token.text()),
        };
        Box::new(Diagnostic::error(message, span))
    }
    pub(super) fn error(message: impl Into<String>, span: Span) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(message, span))
    }
    /// Runs a rule that may contain itself.
    pub(super) fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nested >= MAX_DEPTH {
            return Err(Self::error("the script is nested too deeply here", self.peek().1));
        }
        self.nested += 1;
        let done = rule(self);
        self.nested -= 1;
        done
    }
    /// An expression from `begin` to the last token.
    pub(super) fn node(&self, kind: ExprKind, begin: usize) -> Parsed<Expr> {
        let (depth, span) = (kind.depth().saturating_add(1), self.since(begin));
        match depth > MAX_DEPTH {
            true => Err(Self::error("the expression is nested too deeply", span)),
            false => Ok(Expr { kind, span, depth }),
        }
    }
}
