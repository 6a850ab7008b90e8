//! Types as scripts write them: `uint64`, `struct foo *`, `int8[4]`, `typeof($x)`.
//!
//! In: a parser at a type. Out: type names. Does not: know which types exist, apart from C's own words.

use super::parser::{Parsed, Parser};
use crate::lex::Token;
use crate::tree::{ExprKind, TypeKind, TypeName, TypeOf};

/// Most `*` and `[…]` behind a type.
const MOST_SUFFIXES: usize = 16;

/// Words of which C's integer types consist.
const C_WORDS: [&str; 8] = ["char", "short", "int", "long", "unsigned", "signed", "const", "volatile"];

/// Whether a name is a type's without any definition.
pub(crate) fn is_known(name: &str) -> bool {
    let sized = |rest: &str| matches!(rest, "8" | "16" | "32" | "64");
    let rest = ["uint", "int", "__u", "__s", "u", "s"].iter().find_map(|start| name.strip_prefix(start));
    rest.is_some_and(|rest| sized(rest) || sized(rest.trim_end_matches("_t")))
        || C_WORDS.contains(&name)
        || matches!(name, "bool" | "string" | "buffer" | "inet" | "void" | "_Bool")
        || matches!(
            name,
            "size_t" | "ssize_t" | "pid_t" | "uid_t" | "gid_t" | "off_t" | "time_t" | "uintptr_t"
        )
}

impl Parser<'_> {
    /// Whether a type begins here for certain.
    pub(super) fn sees_type(&self) -> bool {
        match self.peek_token() {
            Token::Name(name) if matches!(name.as_str(), "struct" | "union" | "enum") => {
                matches!(self.peek_second(), Token::Name(_))
            }
            Token::Name(name) => is_known(&name),
            _ => false,
        }
    }
    /// A type, with what is behind it.
    pub(super) fn type_name(&mut self) -> Parsed<TypeName> {
        let begin = self.begin();
        let kind = self.base_type()?;
        let mut ty = TypeName { kind, span: self.since(begin) };
        for _ in 0..MOST_SUFFIXES {
            let kind = if self.accept("*") {
                TypeKind::Pointer(Box::new(ty))
            } else if self.accept("[") {
                let length = if self.sees("]") { None } else { Some(self.integer("a number of elements")?) };
                self.expect("]")?;
                TypeKind::Array(Box::new(ty), length)
            } else {
                return Ok(ty);
            };
            ty = TypeName { kind, span: self.since(begin) };
        }
        Err(Self::error("the type has too many parts", self.since(begin)))
    }
    fn base_type(&mut self) -> Parsed<TypeKind> {
        let name = self.name("a type")?;
        match name.as_str() {
            "struct" | "union" => Ok(TypeKind::Struct(self.name("the name of a structure")?)),
            "enum" => Ok(TypeKind::Enum(self.name("the name of an enumeration")?)),
            word if C_WORDS.contains(&word) => Ok(TypeKind::Named(self.c_type(word))),
            _ => Ok(TypeKind::Named(name)),
        }
    }
    /// The rest of `unsigned long int`, as a type of ours.
    fn c_type(&mut self, first: &str) -> String {
        let mut words = vec![first.to_owned()];
        while let Token::Name(name) = self.peek_token() {
            let is_base = |word: &str| C_WORDS.contains(&word);
            let qualified = words.iter().all(|word| word == "const" || word == "volatile");
            if !is_base(&name) && !(qualified && (is_known(&name) || name == "struct")) {
                break;
            }
            if name == "struct" {
                break;
            }
            self.take();
            words.push(name);
        }
        let has = |word: &str| words.iter().any(|other| other == word);
        let sign = if has("unsigned") { "u" } else { "" };
        let bits = match () {
            () if has("char") => 8,
            () if has("short") => 16,
            () if has("long") => 64,
            () if words.iter().any(|word| !C_WORDS.contains(&word.as_str())) => {
                return words.pop().unwrap_or_default();
            }
            () => 32,
        };
        format!("{sign}int{bits}")
    }
    /// A type or an expression, in the brackets of `sizeof` and the like.
    pub(super) fn type_or_expression(&mut self) -> Parsed<TypeOf> {
        if self.accept_word("typeof") {
            self.expect("(")?;
            let inner = self.type_or_expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let mark = self.mark();
        if matches!(self.peek_token(), Token::Name(_)) {
            let known = self.sees_type();
            let ty = self.type_name();
            let suffixed =
                matches!(&ty, Ok(TypeName { kind: TypeKind::Pointer(_) | TypeKind::Array(..), .. }));
            if let Ok(ty) = ty
                && (known || suffixed)
                && (self.sees(")") || self.sees(","))
            {
                return Ok(TypeOf::Type(ty));
            }
            self.restore(mark);
        }
        self.expression().map(|expr| TypeOf::Expr(Box::new(expr)))
    }
    /// The type of a declaration.
    pub(super) fn declared_type(&mut self) -> Parsed<TypeOf> {
        match self.sees_word("typeof") {
            true => self.type_or_expression(),
            false => self.type_name().map(TypeOf::Type),
        }
    }
    /// The type and the closing bracket of a cast, if it is one: the opening bracket has been taken.
    pub(super) fn cast_type(&mut self) -> Option<TypeOf> {
        let mark = self.mark();
        let known = self.sees_type();
        if self.sees_word("typeof") {
            let ty = self.type_or_expression();
            if let Ok(ty) = ty
                && self.accept(")")
                && self.begins_operand(true)
            {
                return Some(ty);
            }
        } else if let Ok(ty) = self.type_name()
            && self.accept(")")
            && self.begins_operand(known || !matches!(ty.kind, TypeKind::Named(_)))
        {
            return Some(TypeOf::Type(ty));
        }
        self.restore(mark);
        None
    }
    /// Whether what a cast is applied to begins here. Signs that could be operators too count if the type is one
    /// for `certain`.
    fn begins_operand(&self, certain: bool) -> bool {
        match self.peek_token() {
            Token::Name(name) => !matches!(name.as_str(), "else"),
            Token::Int(_) | Token::Text(_) | Token::Variable(_) | Token::Map(_) => true,
            Token::Positional(_) | Token::PositionalCount => true,
            Token::Sign("(" | "!" | "~" | "{") => true,
            Token::Sign("-" | "*" | "&" | "++" | "--") => certain,
            _ => false,
        }
    }
    /// `typeof(…)` where an expression may be.
    pub(super) fn type_expression(&mut self) -> Parsed<crate::tree::Expr> {
        let begin = self.begin();
        let ty = self.type_or_expression()?;
        self.node(ExprKind::Type(ty), begin)
    }
}
