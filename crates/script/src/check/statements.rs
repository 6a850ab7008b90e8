//! Statements.
//!
//! In: blocks of the tree. Out: steps. Does not: know expressions.

use super::checker::Checker;
use crate::diagnostic::Diagnostic;
use crate::program::{Op, Step, Typed};
use crate::source::Span;
use crate::tree::{Block, Expr, ExprKind, ProbeDef, Statement, StatementKind, TypeOf};
use crate::types::Type;

impl<'a> Checker<'a> {
    /// The predicate and the statements of a block.
    pub(super) fn probe_body(&mut self, def: &'a ProbeDef) -> Vec<Step> {
        let predicate = def.predicate.as_ref().map(|predicate| (self.condition(predicate), predicate.span));
        let body = self.scoped(|checker| checker.steps(&def.body));
        let Some((condition, span)) = predicate else { return body };
        let at = self.at(span);
        let then = Typed::new(Op::Block { steps: body, value: Typed::nothing(&at) }, Type::None, &at);
        let other = Typed::nothing(&at);
        vec![Step::Do(Typed::new(Op::If { condition, then, other }, Type::None, &at))]
    }
    /// The statements of a block, and its value as the last of them.
    pub(super) fn steps(&mut self, block: &'a Block) -> Vec<Step> {
        let mut steps = self.statements(&block.statements);
        if let Some(value) = &block.value {
            if ends(steps.last()) {
                self.warn("Unreachable statement", value.span);
            }
            steps.push(self.expression_step(value));
        }
        steps
    }
    pub(super) fn statements(&mut self, statements: &'a [Statement]) -> Vec<Step> {
        let (mut steps, mut ended) = (Vec::new(), false);
        for statement in statements {
            if ended {
                self.warn("Unreachable statement", statement.span);
                ended = false;
            }
            self.statement(statement, &mut steps);
            ended |= ends(steps.last());
        }
        steps
    }
    fn statement(&mut self, statement: &'a Statement, steps: &mut Vec<Step>) {
        let span = statement.span;
        match &statement.kind {
            StatementKind::Let { name, ty, value, declared } => {
                steps.extend(self.declaration(name, ty.as_ref(), value.as_ref(), *declared, span));
            }
            StatementKind::Assign { target, op, value } => {
                let value = match op {
                    Some(op) => self.binary(*op, target, value, span),
                    None => self.expr(value),
                };
                steps.extend(self.assign(target, value, span));
            }
            StatementKind::Expr(expr) => steps.push(self.expression_step(expr)),
            StatementKind::Discard(expr) => steps.push(Step::Do(self.expr(expr))),
            StatementKind::While { condition, body } => {
                let (condition, at) = (self.condition(condition), self.at(span));
                let body = self.looped(body);
                steps.push(Step::While { condition, body, at });
            }
            StatementKind::Unroll { times, body } => {
                let (count, at) = (self.times(times), self.at(span));
                let body = self.looped(body);
                steps.push(Step::Times { count, body, at });
            }
            StatementKind::ForRange { variable, from, to, body, declared } => {
                let (from, to) = (self.number(from), self.number(to));
                let ty = from.ty.promoted(&to.ty).unwrap_or(Type::int(8)).plain();
                let at = self.at(span);
                let (slot, body) = self.for_body(variable, *declared, &ty, body);
                steps.push(Step::ForRange { slot, from, to, body, at });
            }
            StatementKind::ForMap { variable, map, body, declared } => {
                steps.extend(self.for_map(variable, map, body, *declared));
            }
            StatementKind::Break => steps.push(self.within_loop("break", Step::Break, span)),
            StatementKind::Continue => steps.push(self.within_loop("continue", Step::Continue, span)),
            StatementKind::Return(value) => {
                steps.extend(value.as_ref().map(|value| self.returned(value, span)));
                steps.push(Step::Return);
            }
        }
    }
    /// A step that only a loop may hold.
    fn within_loop(&mut self, word: &str, step: Step, span: Span) -> Step {
        if self.loops == 0 {
            self.error(format!("{word} statement outside of a loop"), span);
        }
        step
    }
    /// The value behind `return`; it is computed, and nothing uses it.
    fn returned(&mut self, value: &'a Expr, span: Span) -> Step {
        let value = self.expr(value);
        if !value.ty.is_number() && !value.ty.is_none() {
            self.error(format!("Probe return values can only be integers. Found {}", value.ty), span);
        }
        Step::Do(value)
    }
    /// An expression as a statement: its value is not used.
    fn expression_step(&mut self, expr: &'a Expr) -> Step {
        let value = match &expr.kind {
            ExprKind::If { condition, then, other } => {
                let at = self.at(expr.span);
                let condition = self.condition(condition);
                let part = |checker: &mut Self, part: &'a Expr| {
                    let (at, step) = (checker.at(part.span), checker.expression_step(part));
                    Typed::new(Op::Block { steps: vec![step], value: Typed::nothing(&at) }, Type::None, &at)
                };
                let then = part(self, then);
                let other = match other {
                    Some(other) => part(self, other),
                    None => Typed::nothing(&at),
                };
                Typed::new(Op::If { condition, then, other }, Type::None, &at)
            }
            ExprKind::Block(block) => {
                let at = self.at(expr.span);
                let steps = self.scoped(|checker| checker.steps(block));
                Typed::new(Op::Block { steps, value: Typed::nothing(&at) }, Type::None, &at)
            }
            _ => self.unused(expr),
        };
        Step::Do(value)
    }
    /// An expression whose value is not used; a warning, unless that is how it is used mostly.
    fn unused(&mut self, expr: &'a Expr) -> Typed {
        let value = self.expr(expr);
        let silent = match &expr.kind {
            ExprKind::Step { .. } => true,
            ExprKind::Call { name, .. } => !matches!(name.as_str(), "has_key" | "len" | "str" | "strlen"),
            _ => false,
        };
        if !silent && !value.ty.is_none() {
            self.warn("Return value discarded.", expr.span);
        }
        if matches!(value.ty, Type::Sum(..)) && matches!(&*value.op, Op::Sum(..)) {
            self.error("an aggregation must be assigned to a map", expr.span);
        }
        value
    }
    fn declaration(
        &mut self,
        name: &str,
        ty: Option<&'a TypeOf>,
        value: Option<&'a Expr>,
        declared: Span,
        span: Span,
    ) -> Vec<Step> {
        let value = value.map(|value| self.expr(value));
        let ty = ty.map(|ty| self.type_of(ty));
        if let Some(old) = self.variable(name) {
            let message =
                format!("Variable ${name} was already declared. Variable shadowing is not allowed.");
            let at = self.at(declared);
            let error = Diagnostic::error(message, at);
            self.say(error.note("This is the initial declaration.", old.declared));
            return Vec::new();
        }
        let slot = self.declare(name, declared);
        if let Some(ty) = ty.filter(|ty| !ty.is_none()) {
            self.fix_local(slot, ty, value.as_ref().map(|value| &value.ty));
        }
        let at = self.at(span);
        match value {
            Some(value) => {
                let value = self.local_value(slot, name, value, span);
                vec![Step::Set(slot, value)]
            }
            None => vec![Step::Set(slot, Typed::new(Op::Zero, self.local(slot), &at))],
        }
    }
    /// Gives a variable its declared type. A text without size is as long as what is assigned.
    fn fix_local(&mut self, slot: usize, ty: Type, value: Option<&Type>) {
        let (ty, sized) = match (ty, value) {
            (Type::Text(0), Some(Type::Text(size))) => (Type::Text(*size), false),
            (Type::Text(0), _) => (Type::Text(0), false),
            (ty, _) => (ty, true),
        };
        self.fixed[self.block][slot] = sized;
        let old = self.local(slot);
        if sized && old != ty {
            self.locals[self.block][slot] = ty;
            self.changed = true;
        }
    }
    /// A value as a variable holds it; the variable's type grows.
    fn local_value(&mut self, slot: usize, name: &str, value: Typed, span: Span) -> Typed {
        if matches!(&*value.op, Op::Sum(..)) {
            let ty = value.ty;
            return self.fail(format!("'{ty}' cannot be assigned to a variable; assign it to a map"), span);
        }
        if value.ty.is_none() {
            if self.last {
                self.error("Invalid expression for assignment", span);
            }
            return value;
        }
        let value = self.read_sum(value);
        self.grow_local(slot, name, &value.ty, span);
        let ty = self.local(slot);
        if self.fixed[self.block][slot] {
            self.check_fits(&value, &ty, name, span);
        }
        self.fit(value, &ty)
    }
    /// Whether a constant has room in a declared type.
    fn check_fits(&mut self, value: &Typed, ty: &Type, name: &str, span: Span) {
        let (Type::Int(int), Some(constant)) = (ty, value.constant()) else { return };
        let bits = u32::from(int.size) * 8;
        let fits = match int.signed {
            true => bits == 64 || (constant >> (bits - 1) == 0 || constant >> (bits - 1) == -1),
            false => bits == 64 && constant >= 0 || bits < 64 && (constant as u64) >> bits == 0,
        };
        if !fits {
            let of = &value.ty;
            self.error(
                format!(
                    "Type mismatch for ${name}: trying to assign value '{constant}' of type '{of}' which does not \
                     fit into the type '{ty}'"
                ),
                span,
            );
        }
    }
    /// Assigns to a variable or a map.
    fn assign(&mut self, target: &'a Expr, value: Typed, span: Span) -> Vec<Step> {
        match &target.kind {
            ExprKind::Variable(name) => {
                let slot = match self.variable(name) {
                    Some(variable) => variable.slot,
                    None => self.declare(name, span),
                };
                let value = self.local_value(slot, name, value, span);
                vec![Step::Set(slot, value)]
            }
            ExprKind::Map { name, key } => {
                let Some(map) = self.map_named(name, target.span) else { return Vec::new() };
                let key = self.map_key(map, key.as_deref(), target.span);
                let value = self.map_value(map, value, span);
                vec![Step::SetMap { map, key, value }]
            }
            _ => {
                self.error("invalid assignment target", target.span);
                Vec::new()
            }
        }
    }
    /// A value as a map holds it; the map's type grows.
    pub(super) fn map_value(&mut self, map: usize, value: Typed, span: Span) -> Typed {
        if value.ty.is_none() {
            if self.last {
                self.error("Invalid expression for assignment", span);
            }
            return value;
        }
        let is_sum = holds_sum(&value);
        let value = if is_sum { value } else { self.read_sum(value) };
        self.grow_value(map, &value.ty, span);
        self.note_sums(map, &value, span);
        let ty = self.maps[map].info.value.clone();
        if is_sum { value } else { self.fit(value, &ty) }
    }
    fn looped(&mut self, body: &'a Block) -> Vec<Step> {
        self.loops += 1;
        let steps = self.scoped(|checker| checker.steps(body));
        self.loops -= 1;
        steps
    }
    fn for_body(&mut self, name: &str, declared: Span, ty: &Type, body: &'a Block) -> (usize, Vec<Step>) {
        if let Some(old) = self.variable(name) {
            let message = format!("Loop declaration shadows existing variable: ${name}");
            let at = self.at(declared);
            self.say(Diagnostic::error(message, at).note("This is the initial declaration.", old.declared));
        }
        self.scoped(|checker| {
            let slot = checker.declare(name, declared);
            if !ty.is_none() {
                checker.grow_local(slot, name, ty, declared);
            }
            (slot, checker.looped(body))
        })
    }
    fn for_map(&mut self, name: &str, map: &'a Expr, body: &'a Block, declared: Span) -> Option<Step> {
        let ExprKind::Map { name: map_name, .. } = &map.kind else { return None };
        let index = self.map_named(map_name, map.span)?;
        self.note_used(index);
        if self.maps[index].keyed == Some(false) {
            let message =
                format!("{map_name} has no explicit keys (scalar map), and cannot be used for iteration");
            self.error(message, map.span);
        }
        let info = &self.maps[index].info;
        let value = match &info.value {
            Type::Sum(sum, _) if !sum.is_number() => {
                let message = format!("'{}' maps cannot be used for iteration", info.value);
                self.error(message, map.span);
                Type::None
            }
            Type::Sum(_, true) => Type::int(8),
            Type::Sum(_, false) => Type::uint(8),
            other => other.clone(),
        };
        let key = self.maps[index].info.key.clone().unwrap_or(Type::None);
        let known = !key.is_none() && !value.is_none();
        if !known && self.last && self.maps[index].keyed != Some(false) {
            self.error(format!("Undefined map: {map_name}"), map.span);
        }
        let ty = if known { Type::Tuple(vec![key, value].into()) } else { Type::None };
        let (slot, body) = self.for_body(name, declared, &ty, body);
        let at = self.at(declared);
        Some(Step::ForMap { slot, map: index, body, at })
    }
    /// How often `unroll` goes round.
    fn times(&mut self, expr: &'a Expr) -> u64 {
        let value = self.expr(expr);
        match value.constant() {
            Some(count @ 1..=100) => count as u64,
            Some(count) if count > 100 => {
                self.error("unroll maximum value is 100", expr.span);
                1
            }
            Some(_) => {
                self.error("unroll minimum value is 1", expr.span);
                1
            }
            None => {
                self.error("unroll expects a number that is known before the script runs", expr.span);
                1
            }
        }
    }
}

/// Whether an expression adds to a map, perhaps at the end of a block.
fn holds_sum(value: &Typed) -> bool {
    match &*value.op {
        Op::Sum(..) => true,
        Op::Block { value, .. } => holds_sum(value),
        Op::If { then, other, .. } => holds_sum(then) || holds_sum(other),
        _ => false,
    }
}

/// Whether nothing behind a step is reached.
fn ends(step: Option<&Step>) -> bool {
    use crate::calls::Meaning;
    match step {
        Some(Step::Break | Step::Continue | Step::Return) => true,
        Some(Step::Do(value)) => matches!(&*value.op, Op::Call { meaning: Meaning::Exit, .. }),
        _ => false,
    }
}
