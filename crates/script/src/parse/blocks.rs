//! Blocks and statements.
//!
//! In: a parser at a brace. Out: statements, and the expression that is the value of the block, if the last one has
//! no semicolon. Does not: know what statements do.

use super::parser::{Parsed, Parser};
use crate::lex::Token;
use crate::source::Span;
use crate::tree::{Binary, Block, Expr, ExprKind, Statement, StatementKind};

/// A statement, or the expression at the end of a block.
enum Item {
    Statement(StatementKind),
    Value(Expr),
}

impl Parser<'_> {
    /// `{ … }`.
    pub(super) fn block(&mut self) -> Parsed<Block> {
        self.nested(|parser| {
            let begin = parser.expect("{")?.begin;
            let (mut statements, mut value) = (Vec::new(), None);
            while !parser.sees("}") {
                let start = parser.begin();
                match parser.statement()? {
                    Item::Statement(kind) => statements.push(Statement { kind, span: parser.since(start) }),
                    Item::Value(expr) => value = Some(Box::new(expr)),
                }
            }
            parser.expect("}")?;
            Ok(Block { statements, value, span: parser.since(begin) })
        })
    }
    pub(super) fn block_expression(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        let block = self.block()?;
        self.node(ExprKind::Block(block), begin)
    }
    fn statement(&mut self) -> Parsed<Item> {
        if let Token::Name(word) = self.peek_token() {
            let kind = match word.as_str() {
                "let" => Some(self.declaration()?),
                "while" => Some(self.while_loop()?),
                "unroll" => Some(self.unroll()?),
                "for" => Some(self.for_loop()?),
                "break" => Some(self.jump(StatementKind::Break)?),
                "continue" => Some(self.jump(StatementKind::Continue)?),
                "return" => Some(self.return_statement()?),
                "_" if self.peek_second() == Token::Sign("=") => Some(self.discard()?),
                _ => None,
            };
            if let Some(kind) = kind {
                return Ok(Item::Statement(kind));
            }
        }
        if self.accept(";") {
            let nothing = Block { statements: Vec::new(), value: None, span: self.since(self.begin()) };
            let expr = Expr { kind: ExprKind::Block(nothing), span: Span::default(), depth: 1 };
            return Ok(Item::Statement(StatementKind::Expr(expr)));
        }
        self.assignment_or_expression()
    }
    /// A semicolon, which may be missing before a brace.
    fn end_of_statement(&mut self) -> Parsed<()> {
        match self.sees("}") {
            true => Ok(()),
            false => self.expect(";").map(drop),
        }
    }
    fn jump(&mut self, kind: StatementKind) -> Parsed<StatementKind> {
        self.take();
        self.end_of_statement()?;
        Ok(kind)
    }
    fn return_statement(&mut self) -> Parsed<StatementKind> {
        self.take();
        let value = if self.sees(";") || self.sees("}") { None } else { Some(self.expression()?) };
        self.end_of_statement()?;
        Ok(StatementKind::Return(value))
    }
    fn discard(&mut self) -> Parsed<StatementKind> {
        self.take();
        self.take();
        let value = self.expression()?;
        self.end_of_statement()?;
        Ok(StatementKind::Discard(value))
    }
    fn variable(&mut self, what: &str) -> Parsed<String> {
        match self.peek_token() {
            Token::Variable(name) => {
                self.take();
                Ok(name)
            }
            _ => Err(self.unexpected(what)),
        }
    }
    fn declaration(&mut self) -> Parsed<StatementKind> {
        let begin = self.begin();
        self.take();
        let name = self.variable("variable after 'let'")?;
        let declared = self.since(begin);
        let ty = if self.accept(":") { Some(self.declared_type()?) } else { None };
        let value = if self.accept("=") { Some(self.expression()?) } else { None };
        self.end_of_statement()?;
        Ok(StatementKind::Let { name, ty, value, declared })
    }
    fn while_loop(&mut self) -> Parsed<StatementKind> {
        self.take();
        let condition = self.controlling()?;
        Ok(StatementKind::While { condition, body: self.block()? })
    }
    fn unroll(&mut self) -> Parsed<StatementKind> {
        self.take();
        let times = self.controlling()?;
        Ok(StatementKind::Unroll { times, body: self.block()? })
    }
    fn for_loop(&mut self) -> Parsed<StatementKind> {
        self.take();
        let bracket = self.accept("(");
        let declared = self.peek().1;
        let variable = self.variable("variable in for loop")?;
        self.expect(":")?;
        let first = self.operand()?;
        let last = if self.accept("..") { Some(self.operand()?) } else { None };
        if bracket {
            self.expect(")")?;
        }
        match last {
            Some(to) => {
                Ok(StatementKind::ForRange { variable, from: first, to, body: self.block()?, declared })
            }
            None if matches!(first.kind, ExprKind::Map { key: None, .. }) => {
                Ok(StatementKind::ForMap { variable, map: first, body: self.block()?, declared })
            }
            None => Err(Self::error("expected map or range in for loop", first.span)),
        }
    }
    /// `target = value`, `target += value`, or an expression.
    fn assignment_or_expression(&mut self) -> Parsed<Item> {
        let mark = self.mark();
        if let Token::Variable(_) | Token::Map(_) = self.peek_token() {
            let target = self.operand()?;
            if let Some(op) = self.accept_assignment() {
                let value = self.expression()?;
                self.end_of_statement()?;
                return Ok(Item::Statement(StatementKind::Assign { target, op, value }));
            }
            self.restore(mark);
        }
        let expr = self.expression()?;
        if self.sees("=") {
            let message = match expr.kind {
                ExprKind::Item { .. } | ExprKind::Field { .. } => {
                    "Tuples and records are immutable once created. Consider creating a new value and assigning it \
                     instead."
                }
                _ => "invalid assignment target",
            };
            return Err(Self::error(message, expr.span));
        }
        if self.accept(";") {
            return Ok(Item::Statement(StatementKind::Expr(expr)));
        }
        match expr.kind {
            _ if self.sees("}") => Ok(Item::Value(expr)),
            ExprKind::If { .. } | ExprKind::Block(_) => Ok(Item::Statement(StatementKind::Expr(expr))),
            _ => Err(self.unexpected("';'")),
        }
    }
    /// The sign of an assignment; the operator in it, if it is a compound one.
    fn accept_assignment(&mut self) -> Option<Option<Binary>> {
        let Token::Sign(sign) = self.peek_token() else { return None };
        let op = match sign.strip_suffix('=')? {
            "" => None,
            op if op.starts_with(['<', '>', '=', '!']) && op.len() == 1 => return None,
            op => Some(Binary::ALL.into_iter().find(|(_, text, _)| *text == op)?.0),
        };
        self.take();
        Some(op)
    }
}
