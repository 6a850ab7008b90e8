//! Parameters by name: `getopt("name", default, "description")`.
//!
//! In: calls, and what was given behind `--`. Out: constants of the default's type; the parameters that a script has.
//! Does not: read the command line.

use super::checker::{Checker, NamedParam};
use super::expressions::signed;
use crate::calls::Arg;
use crate::config::truth;
use crate::diagnostic::{At, Diagnostic};
use crate::program::Typed;
use crate::source::Span;
use crate::tree::Expr;
use crate::types::Type;

impl<'a> Checker<'a> {
    pub(super) fn getopt(&mut self, args: &'a [Expr], span: Span) -> Typed {
        let at = self.at(span);
        let name = self.argument("getopt", Arg::Literal, &args[0]);
        let name = String::from_utf8_lossy(name.literal().unwrap_or_default()).into_owned();
        let default = args.get(1).map(|arg| self.expr(arg));
        let description = args.get(2).map(|arg| self.argument("getopt", Arg::Literal, arg));
        let description = description.as_ref().and_then(Typed::literal).unwrap_or_default();
        let description = String::from_utf8_lossy(description).into_owned();
        if !self.named.iter().any(|param| param.name == name) {
            self.named.push(NamedParam { name: name.clone(), description });
        }
        let given = self.options.named.iter().rev().find_map(|param| match param.split_once('=') {
            Some((other, value)) if other == name => Some(value),
            None if *param == name => Some("true"),
            _ => None,
        });
        let wrong =
            |what: &str, value: &str| format!("program command line option --{name} {what} (value: {value})");
        let Some(default) = default else {
            let Some(value) = given.map(truth).unwrap_or(Some(false)) else {
                return self
                    .param_error(&wrong("expects a boolean (e.g. 'true')", given.unwrap_or_default()), &at);
            };
            return Typed::int(i64::from(value), Type::Bool, &at);
        };
        self.given_for(default, given, &wrong, span)
    }
    /// The value of a parameter: as it was given, if it was, and of the default's type.
    fn given_for(
        &mut self,
        default: Typed,
        given: Option<&str>,
        wrong: &dyn Fn(&str, &str) -> String,
        span: Span,
    ) -> Typed {
        let at = self.at(span);
        match (&default.ty, given) {
            (Type::Int(_), None) if default.constant().is_some_and(|value| value >= 0) => {
                Typed::int(default.constant().unwrap_or(0), Type::uint(8), &at)
            }
            (_, None) => default,
            (Type::Bool, Some(value)) => match truth(value) {
                Some(value) => Typed::int(i64::from(value), Type::Bool, &at),
                None => self.param_error(&wrong("expects a boolean (e.g. 'true')", value), &at),
            },
            (Type::Int(_), Some(value)) => {
                let negative = default.constant().is_some_and(|value| value < 0);
                match signed(value) {
                    Some((number, _)) if negative => Typed::int(number, Type::int(8), &at),
                    Some((number, ty)) if number >= 0 || ty == Type::uint(8) => {
                        Typed::int(number, Type::uint(8), &at)
                    }
                    _ => self.param_error(&wrong("invalid integer", value), &at),
                }
            }
            (Type::Text(_), Some(value)) => self.literal(value.as_bytes(), span),
            _ => self.fail("getopt() expects a boolean, integer or string literal as its default", span),
        }
    }
    fn param_error(&mut self, message: &str, at: &At) -> Typed {
        self.say(Diagnostic::error(message, at.clone()).placeless());
        Typed::nothing(at)
    }
}
