//! A whole script: definitions, `config`, then macros, maps and probes in any order.
//!
//! In: a parser at the begin of a text. Out: the tree. Does not: know which probes exist.

use super::parser::{Parsed, Parser};
use crate::lex::Token;
use crate::source::Span;
use crate::tree::{MacroDef, MapDef, Param, ProbeDef, Tree};

impl Parser<'_> {
    /// The whole script.
    pub(crate) fn tree(mut self) -> Parsed<Tree> {
        let mut tree = Tree::default();
        if self.lexer.byte(0) == b'#' && self.lexer.byte(1) == b'!' {
            self.go_to(self.lexer.skip(0, |byte| byte != b'\n'));
        }
        let mut begun = false;
        while self.peek_token() != Token::End {
            let (token, span) = self.peek();
            let is_definition = self.sees("#") || self.sees_definition();
            if begun && is_definition {
                return Err(Self::error("C definitions must appear before probes and functions", span));
            }
            match token {
                Token::Sign("#") => self.directive()?,
                _ if is_definition => self.definition(&mut tree)?,
                Token::Name(word) if word == "config" && self.peek_second() == Token::Sign("=") => {
                    if begun || !tree.settings.is_empty() {
                        let message = "config must appear once, before probes and functions";
                        return Err(Self::error(message, span));
                    }
                    tree.settings = self.config()?;
                }
                Token::Name(word) if word == "import" => {
                    return Err(Self::error(
                        "import is not supported; put what is imported into the script",
                        span,
                    ));
                }
                Token::Name(word) if word == "fn" => {
                    return Err(Self::error("functions (fn) are not supported; use a macro", span));
                }
                token => {
                    begun = true;
                    self.root(&token, &mut tree)?;
                }
            }
        }
        Ok(tree)
    }
    /// A macro, a map, or a probe.
    fn root(&mut self, token: &Token, tree: &mut Tree) -> Parsed<()> {
        match token {
            Token::Name(word) if word == "macro" => tree.macros.push(self.macro_definition()?),
            Token::Name(word) if word == "let" => tree.maps.push(self.map_definition()?),
            _ => tree.probes.push(self.probe()?),
        }
        Ok(())
    }
    fn macro_definition(&mut self) -> Parsed<MacroDef> {
        self.take();
        let name = self.name("macro name")?;
        self.expect("(")?;
        let mut params = Vec::new();
        while !self.sees(")") {
            params.push(match self.peek_token() {
                Token::Variable(name) => Param::Variable(name),
                Token::Map(name) => Param::Map(name),
                Token::Name(name) => Param::Expr(name),
                _ => return Err(self.unexpected("macro argument ($var, @map, or identifier)")),
            });
            self.take();
            if !self.accept(",") {
                break;
            }
        }
        self.expect(")")?;
        Ok(MacroDef { name, params, body: self.block()? })
    }
    fn map_definition(&mut self) -> Parsed<MapDef> {
        let begin = self.begin();
        self.take();
        let Token::Map(name) = self.peek_token() else {
            let message = "root-level let statements need to be map declarations, e.g. let @a = hash(2);";
            return Err(Self::error(message, self.since(begin)));
        };
        self.take();
        self.expect("=")?;
        let kind = self.name("map type name")?;
        self.expect("(")?;
        let entries = self.integer("positive integer for map declaration max entries")?;
        self.expect(")")?;
        let span = self.since(begin);
        self.accept(";");
        Ok(MapDef { name, kind, entries, span })
    }
    fn probe(&mut self) -> Parsed<ProbeDef> {
        let mut attach = vec![self.attach_point()?];
        while self.accept(",") {
            if self.sees("/") || self.sees("{") {
                break;
            }
            attach.push(self.attach_point()?);
        }
        let predicate = if self.accept("/") { Some(self.predicate()?) } else { None };
        let body = self.block()?;
        if body.depth() > crate::tree::MAX_DEPTH {
            return Err(Self::error("the script is nested too deeply here", body.span));
        }
        Ok(ProbeDef { attach, predicate, body })
    }
    fn predicate(&mut self) -> Parsed<crate::tree::Expr> {
        let expr = self.expression()?;
        match self.accept("/") {
            true => Ok(expr),
            false => Err(self.unexpected("'/' to close predicate")),
        }
    }
    /// Everything up to white space, a comma, a brace, or a predicate. Positional parameters are put in.
    fn attach_point(&mut self) -> Parsed<(String, Span)> {
        let begin = self.begin();
        let (mut at, mut text) = (begin, Vec::new());
        let mut quoted = false;
        while !self.lexer.is_end(at) {
            let byte = self.lexer.byte(at);
            let in_path = text.contains(&b':');
            match byte {
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'{' | b',' => break,
                b'/' if !in_path && !text.is_empty() => break,
                b'$' if self.lexer.byte(at + 1).is_ascii_digit() => {
                    let (token, span) = self.lexer.token(at);
                    if let Token::Positional(index) = token {
                        let param = self.positional.get(index - 1).map_or("", String::as_str);
                        text.extend_from_slice(param.as_bytes());
                    }
                    at = span.end;
                    continue;
                }
                byte if byte.is_ascii_whitespace() => break,
                _ => {}
            }
            text.push(byte);
            at += 1;
        }
        self.go_to(at);
        if text.is_empty() {
            return Err(self.unexpected("attach point"));
        }
        Ok((String::from_utf8_lossy(&text).into_owned(), Span::new(begin, at)))
    }
}
