//! The tree of a script as indented lines, for `-d ast`.
//!
//! In: a source. Out: text, or why there is no tree. Does not: check anything.

use std::fmt::Write;

use crate::parse::Parser;
use crate::source::Source;
use crate::tree::{Block, Expr, ExprKind, ProbeDef, Statement, StatementKind, Tree};

/// The tree of a script, or the message why there is none.
pub fn shown_tree(source: &Source, positional: &[String]) -> Result<String, String> {
    let tree = Parser::new(source, positional).tree().map_err(|error| error.text(source))?;
    Ok(Outline { out: String::new(), source }.of(&tree))
}

struct Outline<'a> {
    out: String,
    source: &'a Source,
}

impl Outline<'_> {
    fn of(mut self, tree: &Tree) -> String {
        self.line(0, "Program");
        for def in &tree.structs {
            self.line(1, &format!("struct {}", def.name));
        }
        for def in &tree.enums {
            self.line(1, &format!("enum {}", def.name));
        }
        for setting in &tree.settings {
            self.line(1, &format!("config {} = {}", setting.name, setting.value));
        }
        for def in &tree.maps {
            self.line(1, &format!("map {} = {}({})", def.name, def.kind, def.entries));
        }
        for def in &tree.macros {
            self.line(1, &format!("macro {}", def.name));
            self.block(2, &def.body);
        }
        tree.probes.iter().for_each(|def| self.probe(def));
        self.out
    }
    fn line(&mut self, deep: usize, text: &str) {
        writeln!(self.out, "{:width$}{text}", "", width = deep).unwrap_or_default();
    }
    fn probe(&mut self, def: &ProbeDef) {
        let attach: Vec<&str> = def.attach.iter().map(|(text, _)| text.as_str()).collect();
        self.line(1, &attach.join(","));
        if let Some(predicate) = &def.predicate {
            self.line(2, "pred");
            self.expr(3, predicate);
        }
        self.block(2, &def.body);
    }
    fn block(&mut self, deep: usize, block: &Block) {
        block.statements.iter().for_each(|statement| self.statement(deep, statement));
        if let Some(value) = &block.value {
            self.expr(deep, value);
        }
    }
    fn statement(&mut self, deep: usize, statement: &Statement) {
        match &statement.kind {
            StatementKind::Let { name, value, .. } => {
                self.line(deep, &format!("let ${name}"));
                value.iter().for_each(|value| self.expr(deep + 1, value));
            }
            StatementKind::Assign { target, op, value } => {
                self.line(deep, &format!("{}=", op.map_or("", |op| op.sign())));
                self.expr(deep + 1, target);
                self.expr(deep + 1, value);
            }
            StatementKind::Expr(expr) => self.expr(deep, expr),
            StatementKind::Discard(expr) => {
                self.line(deep, "_ =");
                self.expr(deep + 1, expr);
            }
            StatementKind::While { condition, body } => {
                self.line(deep, "while");
                self.expr(deep + 1, condition);
                self.block(deep + 2, body);
            }
            StatementKind::Unroll { times, body } => {
                self.line(deep, "unroll");
                self.expr(deep + 1, times);
                self.block(deep + 2, body);
            }
            StatementKind::ForMap { variable, map, body, .. } => {
                self.line(deep, &format!("for ${variable}"));
                self.expr(deep + 1, map);
                self.block(deep + 2, body);
            }
            StatementKind::ForRange { variable, from, to, body, .. } => {
                self.line(deep, &format!("for ${variable}"));
                self.expr(deep + 1, from);
                self.expr(deep + 1, to);
                self.block(deep + 2, body);
            }
            StatementKind::Break => self.line(deep, "break"),
            StatementKind::Continue => self.line(deep, "continue"),
            StatementKind::Return(value) => {
                self.line(deep, "return");
                value.iter().for_each(|value| self.expr(deep + 1, value));
            }
        }
    }
    /// An expression: what it is, then its parts. One without parts is as it was written.
    fn expr(&mut self, deep: usize, expr: &Expr) {
        match &expr.kind {
            ExprKind::Block(block) => {
                self.line(deep, "block");
                self.block(deep + 1, block);
            }
            ExprKind::Call { name, args } => self.node(deep, &format!("call: {name}"), args.iter()),
            ExprKind::Map { name, key } => {
                self.node(deep, &format!("map: {name}"), key.iter().map(|key| &**key))
            }
            ExprKind::Unary { op, of } => self.node(deep, op.sign(), [&**of].into_iter()),
            ExprKind::Binary { op, left, right } => {
                self.node(deep, op.sign(), [&**left, &**right].into_iter())
            }
            ExprKind::Step { of, up, .. } => {
                self.node(deep, if *up { "++" } else { "--" }, [&**of].into_iter());
            }
            ExprKind::Field { of, name } => self.node(deep, &format!(".{name}"), [&**of].into_iter()),
            ExprKind::Item { of, index } => self.node(deep, &format!(".{index}"), [&**of].into_iter()),
            ExprKind::Element { of, index } => self.node(deep, "[]", [&**of, &**index].into_iter()),
            ExprKind::If { condition, then, other } => {
                let parts = [&**condition, &**then].into_iter().chain(other.iter().map(|other| &**other));
                self.node(deep, "if", parts);
            }
            ExprKind::Cast { of, .. } => self.node(deep, "cast", [&**of].into_iter()),
            ExprKind::AddressOf(of) => self.node(deep, "&", [&**of].into_iter()),
            ExprKind::Tuple(parts) => self.node(deep, "tuple", parts.iter()),
            ExprKind::Record(fields) => self.node(deep, "record", fields.iter().map(|(_, value)| value)),
            _ => {
                let text = self.source.text().get(expr.span.begin..expr.span.end).unwrap_or_default();
                let text = String::from_utf8_lossy(text).into_owned();
                self.line(deep, &text);
            }
        }
    }
    fn node<'e>(&mut self, deep: usize, name: &str, parts: impl Iterator<Item = &'e Expr>) {
        self.line(deep, name);
        parts.for_each(|part| self.expr(deep + 1, part));
    }
}
