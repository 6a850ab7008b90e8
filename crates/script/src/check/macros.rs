//! Macros: a call becomes the macro's body, with names of its own.
//!
//! In: a call of a macro. Out: its body as a typed expression. A `$x` of the macro's head is the caller's variable, a
//! `@x` the caller's map, and a plain name an expression, evaluated in the caller's scopes wherever it stands. The
//! body sees nothing else of the caller. Invariant: a macro does not contain itself. Does not: change the tree.

use std::collections::HashMap;
use std::rc::Rc;

use super::checker::{Bound, Checker, Frame};
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::tree::{Expr, ExprKind, MacroDef, Param};

impl<'a> Checker<'a> {
    /// Whether there is a macro of this name with so many arguments.
    pub(super) fn has_macro(&self, name: &str, args: usize) -> bool {
        self.tree.macros.iter().any(|def| def.name == name && def.params.len() == args)
    }
    /// Expands a call, if it is one of a macro whose head suits the arguments.
    pub(super) fn expand(&mut self, name: &str, args: &'a [Expr], span: Span) -> Option<Typed> {
        let tree = self.tree;
        let candidates: Vec<&'a MacroDef> = tree.macros.iter().filter(|def| def.name == name).collect();
        let suits = |def: &&&MacroDef| {
            def.params.len() == args.len()
                && def.params.iter().zip(args).all(|(param, arg)| suits(param, arg))
        };
        let Some(def) = candidates.iter().find(suits) else {
            return self.no_macro(&candidates, name, args, span);
        };
        if self.here().names.contains(&def.name.as_str()) {
            return Some(self.fail(format!("Recursive macro call detected: {name}"), span));
        }
        let mut params = HashMap::new();
        for (param, arg) in def.params.iter().zip(args) {
            let (name, bound) = self.bind(param, arg)?;
            params.insert(name, bound);
        }
        Some(self.expanded(def, params, span))
    }
    /// The error that no macro of a name suits; `None` if there is none of that name.
    fn no_macro(
        &mut self,
        candidates: &[&'a MacroDef],
        name: &str,
        args: &'a [Expr],
        span: Span,
    ) -> Option<Typed> {
        let same_count = candidates.iter().find(|def| def.params.len() == args.len());
        if crate::calls::find(name).is_some() && same_count.is_none() {
            return None;
        }
        let message = match (candidates.first(), same_count) {
            (None, _) => return None,
            (Some(def), None) => {
                let (wanted, given) = (def.params.len(), args.len());
                format!(
                    "Call to macro '{name}' has wrong number of arguments: expected {wanted}, got {given}"
                )
            }
            (_, Some(def)) => {
                let wrong = def.params.iter().zip(args).find(|(param, arg)| !suits(param, arg));
                let what = match wrong.map(|(param, _)| param) {
                    Some(Param::Map(map)) => format!("a map for its argument {map}"),
                    Some(Param::Variable(name)) => format!("a scratch variable for its argument ${name}"),
                    _ => "something else".to_owned(),
                };
                format!("Mismatched macro argument: macro '{name}' expects {what}")
            }
        };
        Some(self.fail(message, span))
    }
    /// What a parameter stands for.
    fn bind(&mut self, param: &Param, arg: &'a Expr) -> Option<(String, Bound<'a>)> {
        // An argument may itself be a parameter of the macro in which the call stands.
        let (arg, frame) = self.origin(arg);
        self.elsewhere(frame, |checker| match (param, &arg.kind) {
            (Param::Variable(name), ExprKind::Variable(variable)) => match checker.variable(variable) {
                Some(found) => Some((name.clone(), Bound::Slot(found.slot))),
                None => {
                    checker.error(format!("Undefined or undeclared variable: ${variable}"), arg.span);
                    None
                }
            },
            (Param::Map(name), ExprKind::Map { name: map, key: None }) => {
                let index = checker.map_named(map, arg.span)?;
                Some((name.clone(), Bound::Map(checker.maps[index].info.name.clone())))
            }
            (Param::Expr(name), _) => Some((name.clone(), Bound::Expr(arg, frame))),
            _ => None,
        })
    }
    /// An expression, or what it stands for in the caller, and the frame of that.
    fn origin(&mut self, arg: &'a Expr) -> (&'a Expr, usize) {
        let mut found = (arg, self.frame);
        while let ExprKind::Name(name) = &found.0.kind
            && let Some(Bound::Expr(expr, frame)) = self.frames[found.1].params.get(name)
        {
            found = (*expr, *frame);
        }
        found
    }
    fn expanded(&mut self, def: &'a MacroDef, params: HashMap<String, Bound<'a>>, span: Span) -> Typed {
        let call = self.at(span);
        let mut names = self.here().names.clone();
        names.push(&def.name);
        self.frames.push(Frame { scopes: vec![HashMap::new()], params, call: Some(Rc::new(call)), names });
        let (frame, loops) = (self.frames.len() - 1, std::mem::take(&mut self.loops));
        let done = self.elsewhere(frame, |checker| {
            let at = checker.at(def.body.span);
            let steps = checker.statements(&def.body.statements);
            let value = match &def.body.value {
                Some(value) => checker.expr(value),
                None => Typed::nothing(&at),
            };
            if steps.is_empty() {
                return value;
            }
            let ty = value.ty.clone();
            Typed::new(Op::Block { steps, value }, ty, &at)
        });
        self.loops = loops;
        self.frames.truncate(frame);
        done
    }
}

/// Whether an argument suits a parameter by its form.
fn suits(param: &Param, arg: &Expr) -> bool {
    match param {
        Param::Variable(_) => matches!(arg.kind, ExprKind::Variable(_) | ExprKind::Name(_)),
        Param::Map(_) => matches!(arg.kind, ExprKind::Map { key: None, .. } | ExprKind::Name(_)),
        Param::Expr(_) => true,
    }
}
