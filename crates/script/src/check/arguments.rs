//! `args`: a function's parameters by their names, with the types that debug information has for them.
//!
//! In: names. Out: the arguments, cast. Invariant: a parameter that is in no argument of its own is an error, never
//! another value. Does not: read debug information.

use super::checker::Checker;
use crate::calls::Meaning;
use crate::declared::Parameter;
use crate::diagnostic::Diagnostic;
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::suggest::nearest;
use crate::types::Type;

impl Checker<'_> {
    /// `args.name`.
    pub(super) fn argument_named(&mut self, name: &str, span: Span) -> Typed {
        let at = self.at(span);
        let Some(all) = self.parameters(span) else { return Typed::nothing(&at) };
        if let Some(one) = all.iter().find(|one| one.name == name) {
            return self.parameter(one, span);
        }
        let near = nearest(name, all.iter().map(|one| one.name.as_str()))
            .map(|near| format!("Did you mean {near}?"));
        let mut error =
            Diagnostic::error(format!("the function has no parameter named '{name}'"), at.clone());
        error.hints.extend(near);
        self.say(error);
        Typed::nothing(&at)
    }
    /// `args` as a whole: a record of all.
    pub(super) fn all_arguments(&mut self, span: Span) -> Typed {
        let at = self.at(span);
        let Some(all) = self.parameters(span) else { return Typed::nothing(&at) };
        let parts: Vec<Typed> = all.iter().map(|one| self.parameter(one, span)).collect();
        let ty = all.iter().map(|one| (one.name.clone(), one.ty.clone()));
        Typed::new(Op::Tuple(parts), Type::Record(ty.collect()), &at)
    }
    /// The parameters of the functions at which the block runs; they must be the same for all.
    fn parameters(&mut self, span: Span) -> Option<Vec<Parameter>> {
        let sorts: &[&str] = &["uprobe"];
        if let Some(sort) = self.sorts.iter().find(|sort| !sorts.contains(sort)) {
            self.error(
                format!("The args builtin can only be used with uprobe probes, not with '{sort}'"),
                span,
            );
            return None;
        }
        let Some(declared) = self.options.declared.clone() else {
            self.error("args are not known: there is no debug information", span);
            return None;
        };
        let mut first: Option<Vec<Parameter>> = None;
        for probe in &self.probes.clone() {
            match (declared.parameters(probe), &first) {
                (Err(why), _) => {
                    self.error(format!("args of {probe} are not known: {why}"), span);
                    return None;
                }
                (Ok(all), Some(other)) if all != *other => {
                    self.error("the functions of the block's probes have different args", span);
                    return None;
                }
                (Ok(all), _) => first = Some(all),
            }
        }
        first
    }
    fn parameter(&mut self, one: &Parameter, span: Span) -> Typed {
        let at = self.at(span);
        let Some(nth) = one.argument else {
            let name = &one.name;
            return self.fail(
                format!("the parameter '{name}' is in no register or word of its own at the entry"),
                span,
            );
        };
        self.needs.args |= 1 << nth;
        let word =
            Typed::new(Op::Call { meaning: Meaning::Argument(nth), args: Vec::new() }, Type::int(8), &at);
        Typed::new(Op::Cast(word), one.ty.clone(), &at)
    }
}
