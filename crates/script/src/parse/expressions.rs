//! Expressions: operators by how tightly they bind, what is behind and before an operand, and operands.
//!
//! In: a parser at an expression. Out: its tree. Does not: know names or types.

use super::parser::{Parsed, Parser};
use crate::lex::Token;
use crate::tree::{Binary, Expr, ExprKind, Unary};

impl Parser<'_> {
    /// An expression.
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.nested(Self::ternary)
    }
    fn ternary(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        let condition = self.binary(0)?;
        if !self.accept("?") {
            return Ok(condition);
        }
        let then = if self.sees(":") { condition.clone() } else { self.expression()? };
        self.expect(":")?;
        let other = Some(Box::new(self.expression()?));
        let kind = ExprKind::If { condition: Box::new(condition), then: Box::new(then), other };
        self.node(kind, begin)
    }
    fn binary(&mut self, least: u8) -> Parsed<Expr> {
        let left = self.unary()?;
        self.binary_after(left, least)
    }
    /// The operators behind `left` that bind at least so tightly.
    pub(super) fn binary_after(&mut self, mut left: Expr, least: u8) -> Parsed<Expr> {
        while let Some((op, binds)) = self.peek_operator().filter(|(_, binds)| *binds >= least) {
            self.take();
            let right = self.nested(|parser| parser.binary(binds + 1))?;
            let begin = left.span.begin;
            left = self.node(ExprKind::Binary { op, left: Box::new(left), right: Box::new(right) }, begin)?;
        }
        Ok(left)
    }
    fn peek_operator(&self) -> Option<(Binary, u8)> {
        let (Token::Sign(sign), span) = self.peek() else { return None };
        // A slash before a brace closes a predicate.
        if sign == "/" && self.lexer.byte(self.lexer.layout(span.end)) == b'{' {
            return None;
        }
        Binary::ALL.into_iter().find(|(_, text, _)| *text == sign).map(|(op, _, binds)| (op, binds))
    }
    /// What is before an operand.
    pub(super) fn unary(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        let Token::Sign(sign) = self.peek_token() else { return self.operand_and_after() };
        let op = match sign {
            "++" | "--" => return self.step_before(sign == "++"),
            "&" => return self.address(),
            "!" => Unary::Not,
            "~" => Unary::Invert,
            "-" => Unary::Negate,
            "*" => Unary::Deref,
            _ => return self.operand_and_after(),
        };
        self.take();
        let of = Box::new(self.nested(Self::unary)?);
        self.node(ExprKind::Unary { op, of }, begin)
    }
    fn step_before(&mut self, up: bool) -> Parsed<Expr> {
        let begin = self.begin();
        self.take();
        let of = self.nested(Self::unary)?;
        if !is_place(&of) {
            return Err(Self::error("increment/decrement requires a variable or map", of.span));
        }
        self.node(ExprKind::Step { of: Box::new(of), up, before: true }, begin)
    }
    fn address(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        self.take();
        let of = self.operand()?;
        match of.kind {
            ExprKind::Variable(_) | ExprKind::Map { key: None, .. } | ExprKind::Name(_) => {
                self.node(ExprKind::AddressOf(Box::new(of)), begin)
            }
            _ => Err(Self::error(
                "address-of operator (&) can only be used on a map or variable",
                self.since(begin),
            )),
        }
    }
    fn operand_and_after(&mut self) -> Parsed<Expr> {
        let operand = self.operand()?;
        self.after(operand)
    }
    /// What is behind an operand: fields, elements, `++`.
    pub(super) fn after(&mut self, mut expr: Expr) -> Parsed<Expr> {
        loop {
            let begin = expr.span.begin;
            let Token::Sign(sign) = self.peek_token() else { return Ok(expr) };
            let kind = match sign {
                "." | "->" => {
                    self.take();
                    let of = Box::new(expr);
                    match self.peek_token() {
                        Token::Int(index) if sign == "." => {
                            self.take();
                            ExprKind::Item { of, index: usize::try_from(index).unwrap_or(usize::MAX) }
                        }
                        _ => ExprKind::Field { of, name: self.name(&format!("field name after '{sign}'"))? },
                    }
                }
                "[" => {
                    self.take();
                    let index = Box::new(self.expression()?);
                    self.expect("]")?;
                    ExprKind::Element { of: Box::new(expr), index }
                }
                "++" | "--" if is_place(&expr) => {
                    self.take();
                    ExprKind::Step { of: Box::new(expr), up: sign == "++", before: false }
                }
                "++" | "--" => {
                    let message = "increment/decrement requires a variable or map";
                    return Err(Self::error(message, self.peek().1));
                }
                _ => return Ok(expr),
            };
            expr = self.node(kind, begin)?;
        }
    }
    /// One operand.
    pub(super) fn operand(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        let kind = match self.peek_token() {
            Token::Sign("(") => return self.nested(Self::in_brackets),
            Token::Sign("{") => ExprKind::Block(self.block()?),
            Token::Name(name) => return self.named(&name),
            Token::Map(name) => return self.map(name),
            Token::Int(value) => self.taken(ExprKind::Int(value)),
            Token::Text(text) => self.taken(ExprKind::Text(text)),
            Token::Variable(name) => self.taken(ExprKind::Variable(name)),
            Token::Positional(index) => self.taken(ExprKind::Positional(index)),
            Token::PositionalCount => self.taken(ExprKind::PositionalCount),
            _ => return Err(self.unexpected("expression")),
        };
        self.node(kind, begin)
    }
    fn taken(&mut self, kind: ExprKind) -> ExprKind {
        self.take();
        kind
    }
    /// An operand that begins with a word.
    fn named(&mut self, name: &str) -> Parsed<Expr> {
        let begin = self.begin();
        let kind = match name {
            "if" => return self.nested(Self::condition),
            "typeof" => return self.type_expression(),
            "comptime" => {
                self.take();
                return self.nested(Self::unary);
            }
            "true" | "false" => self.taken(ExprKind::Bool(name == "true")),
            "sizeof" => {
                self.take();
                self.expect("(")?;
                let ty = self.type_or_expression()?;
                self.expect(")")?;
                ExprKind::SizeOf(ty)
            }
            "offsetof" => self.offset_of()?,
            name => {
                self.take();
                if let Some(meaning) = self.defines.get(name).filter(|_| !self.sees("(")) {
                    return Ok(Expr { span: self.since(begin), ..meaning.clone() });
                }
                match self.sees("(") {
                    true => ExprKind::Call { name: name.to_owned(), args: self.arguments()? },
                    false => ExprKind::Name(name.to_owned()),
                }
            }
        };
        self.node(kind, begin)
    }
    fn offset_of(&mut self) -> Parsed<ExprKind> {
        self.take();
        self.expect("(")?;
        let ty = self.type_or_expression()?;
        self.expect(",")?;
        let mut fields = vec![self.name("a field")?];
        while self.accept(".") {
            fields.push(self.name("a field")?);
        }
        self.expect(")")?;
        Ok(ExprKind::OffsetOf(ty, fields))
    }
    /// `(a, b)` of a call.
    fn arguments(&mut self) -> Parsed<Vec<Expr>> {
        self.expect("(")?;
        let args = self.list(")")?;
        self.expect(")")?;
        Ok(args)
    }
    /// Expressions with commas between them, up to a sign that is not taken.
    fn list(&mut self, end: &str) -> Parsed<Vec<Expr>> {
        let mut all = Vec::new();
        while !self.sees(end) {
            all.push(self.argument()?);
            if !self.accept(",") {
                break;
            }
        }
        Ok(all)
    }
    /// An argument: an expression, or a type that a function takes.
    fn argument(&mut self) -> Parsed<Expr> {
        match self.sees_type() {
            true => self.type_expression(),
            false => self.expression(),
        }
    }
    /// `@name`, perhaps with a key.
    pub(super) fn map(&mut self, name: String) -> Parsed<Expr> {
        let begin = self.begin();
        self.take();
        let key_begin = self.begin() + 1;
        if !self.accept("[") {
            return self.node(ExprKind::Map { name, key: None }, begin);
        }
        let mut parts = self.list("]")?;
        let key = match parts.len() {
            0 => return Err(self.unexpected("expression")),
            1 => parts.remove(0),
            _ => self.node(ExprKind::Tuple(parts), key_begin)?,
        };
        self.expect("]")?;
        self.node(ExprKind::Map { name, key: Some(Box::new(key)) }, begin)
    }
    /// `if c { … } else { … }`.
    fn condition(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        self.take();
        let condition = Box::new(self.controlling()?);
        let then = Box::new(self.block_expression()?);
        let other = match self.accept_word("else") {
            true if self.sees_word("if") => Some(Box::new(self.nested(Self::condition)?)),
            true if self.sees("{") => Some(Box::new(self.block_expression()?)),
            true => return Err(self.unexpected("'{' or 'if' after 'else'")),
            false => None,
        };
        self.node(ExprKind::If { condition, then, other }, begin)
    }
    /// What decides in `if` and `while`: an expression in brackets, or one operand.
    pub(super) fn controlling(&mut self) -> Parsed<Expr> {
        if !self.sees("(") {
            return self.unary();
        }
        self.expect("(")?;
        let expr = self.expression()?;
        self.expect(")")?;
        Ok(expr)
    }
    /// A grouping, a tuple, a record or a cast.
    fn in_brackets(&mut self) -> Parsed<Expr> {
        let begin = self.begin();
        self.take();
        if self.sees_record() {
            return self.record(begin);
        }
        if let Some(ty) = self.cast_type() {
            let of = Box::new(self.nested(Self::unary)?);
            return self.node(ExprKind::Cast { ty, of }, begin);
        }
        if self.accept(")") {
            return self.node(ExprKind::Tuple(Vec::new()), begin);
        }
        let first = self.expression()?;
        if self.accept(")") {
            return Ok(first);
        }
        if !self.sees(",") {
            return Err(self.unexpected("')'"));
        }
        self.take();
        let mut parts = vec![first];
        parts.append(&mut self.list(")")?);
        self.expect(")")?;
        self.node(ExprKind::Tuple(parts), begin)
    }
    fn sees_record(&self) -> bool {
        matches!(self.peek_token(), Token::Name(_)) && self.peek_second() == Token::Sign("=")
    }
    fn record(&mut self, begin: usize) -> Parsed<Expr> {
        let mut fields: Vec<(String, Expr)> = Vec::new();
        while !self.sees(")") {
            let (span, name) = (self.peek().1, self.name("the name of a field")?);
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(Self::error(format!("Named argument list already contains name: {name}"), span));
            }
            self.expect("=")?;
            fields.push((name, self.expression()?));
            if !self.accept(",") {
                break;
            }
        }
        self.expect(")")?;
        self.node(ExprKind::Record(fields), begin)
    }
}

/// Whether something can be assigned to it.
const fn is_place(expr: &Expr) -> bool {
    matches!(expr.kind, ExprKind::Variable(_) | ExprKind::Map { .. } | ExprKind::Name(_))
}
