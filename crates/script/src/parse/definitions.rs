//! What stands before the probes: `#define`, structures, enumerations, `config`.
//!
//! In: a parser at a definition. Out: its parts of the tree. `#include` is not followed: definitions are the script's
//! own. Does not: lay structures out.

use super::parser::{Parsed, Parser};
use crate::lex::Token;
use crate::source::Span;
use crate::tree::{EnumDef, ExprKind, FieldDef, Setting, StructDef, Tree, TypeKind, TypeName};

impl Parser<'_> {
    /// A line that begins with `#`.
    pub(super) fn directive(&mut self) -> Parsed<()> {
        let begin = self.begin();
        let end = self.lexer.skip(begin, |byte| byte != b'\n');
        self.take();
        if self.accept_word("define") {
            return self.define(end);
        }
        let is_known = ["include", "pragma", "ifdef", "ifndef", "endif", "undef", "if", "else"];
        if !is_known.iter().any(|word| self.sees_word(word)) {
            return Err(Self::error("unknown preprocessor directive", Span::new(begin, end)));
        }
        self.go_to(end);
        Ok(())
    }
    /// `#define NAME expression`. One with parameters is left alone, as are those that are no expression.
    fn define(&mut self, end: usize) -> Parsed<()> {
        let name = self.name("a name")?;
        let has_value = self.begin() < end && !(self.sees("(") && self.begin() == self.mark().last);
        if has_value {
            let mark = self.mark();
            match self.expression() {
                Ok(expr) if expr.span.end <= end => drop(self.defines.insert(name, expr)),
                _ => self.restore(mark),
            }
        }
        self.go_to(end);
        Ok(())
    }
    /// Whether a structure or enumeration is defined here, and not used as a type.
    pub(super) fn sees_definition(&self) -> bool {
        let is_word = ["struct", "union", "enum"].iter().any(|word| self.sees_word(word));
        let (_, span) = self.peek();
        let (second, span) = self.lexer.token(span.end);
        match second {
            Token::Sign("{") => is_word,
            Token::Name(_) => is_word && self.lexer.token(span.end).0 == Token::Sign("{"),
            _ => false,
        }
    }
    /// `struct name { … };` or `enum name { … };`.
    pub(super) fn definition(&mut self, tree: &mut Tree) -> Parsed<()> {
        match self.sees_word("enum") {
            true => {
                let defined = self.enumeration()?;
                tree.enums.push(defined);
            }
            false => {
                let name = self.structure(tree)?;
                debug_assert!(!name.is_empty());
            }
        }
        self.accept(";");
        Ok(())
    }
    fn enumeration(&mut self) -> Parsed<EnumDef> {
        let begin = self.begin();
        self.take();
        let name = if self.sees("{") { format!("enum at {begin}") } else { self.name("a name")? };
        self.expect("{")?;
        let (mut variants, mut next) = (Vec::new(), 0i64);
        while !self.sees("}") {
            let variant = self.name("the name of a value")?;
            if self.accept("=") {
                next = self.constant(&variants)?;
            }
            variants.push((variant, next));
            next = next.wrapping_add(1);
            if !self.accept(",") {
                break;
            }
        }
        self.expect("}")?;
        Ok(EnumDef { name, variants })
    }
    /// A number, with or without sign, or a value that was defined before.
    fn constant(&mut self, variants: &[(String, i64)]) -> Parsed<i64> {
        let negative = self.accept("-");
        let span = self.peek().1;
        let expr = self.operand()?;
        let value = match &expr.kind {
            ExprKind::Int(value) => *value as i64,
            ExprKind::Name(name) => match variants.iter().find(|(variant, _)| variant == name) {
                Some((_, value)) => *value,
                None => return Err(Self::error("the value of an enumeration must be a number", span)),
            },
            _ => return Err(Self::error("the value of an enumeration must be a number", span)),
        };
        Ok(if negative { value.wrapping_neg() } else { value })
    }
    /// A structure or union, pushed behind those that are defined in it; its name.
    fn structure(&mut self, tree: &mut Tree) -> Parsed<String> {
        let begin = self.begin();
        let union = self.sees_word("union");
        self.take();
        let name = if self.sees("{") { format!("struct at {begin}") } else { self.name("a name")? };
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.sees("}") {
            self.nested(|parser| parser.field(tree, &mut fields))?;
        }
        self.expect("}")?;
        let packed = self.attributes()?;
        tree.structs.push(StructDef { name: name.clone(), union, packed, fields });
        Ok(name)
    }
    /// `__attribute__((packed, …))`; whether one of them is `packed`.
    fn attributes(&mut self) -> Parsed<bool> {
        let mut packed = false;
        while self.accept_word("__attribute__") {
            self.expect("(")?;
            self.expect("(")?;
            let mut open = 2;
            while open > 0 {
                match self.take() {
                    (Token::Sign("("), _) => open += 1,
                    (Token::Sign(")"), _) => open -= 1,
                    (Token::Name(name), _) => packed |= matches!(name.as_str(), "packed" | "__packed__"),
                    (Token::End | Token::Bad(_), span) => {
                        let message = "__attribute__ syntax error, mismatched '(' and ')'";
                        return Err(Self::error(message, span));
                    }
                    _ => {}
                }
            }
        }
        Ok(packed)
    }
    /// `type a, *b, c[4], d : 3;`.
    fn field(&mut self, tree: &mut Tree, fields: &mut Vec<FieldDef>) -> Parsed<()> {
        let span = self.peek().1;
        let base = match self.sees_definition() {
            true if self.sees_word("enum") => {
                let defined = self.enumeration()?;
                let kind = TypeKind::Enum(defined.name.clone());
                tree.enums.push(defined);
                kind
            }
            true => TypeKind::Struct(self.structure(tree)?),
            false => return self.declarators_after_type(fields),
        };
        let base = TypeName { kind: base, span };
        if self.accept(";") {
            fields.push(FieldDef { name: None, ty: base, bits: None });
            return Ok(());
        }
        self.declarators(&base, fields)
    }
    fn declarators_after_type(&mut self, fields: &mut Vec<FieldDef>) -> Parsed<()> {
        let base = self.type_name()?;
        self.declarators(&base, fields)
    }
    fn declarators(&mut self, base: &TypeName, fields: &mut Vec<FieldDef>) -> Parsed<()> {
        loop {
            fields.push(self.declarator(base)?);
            match self.accept(",") {
                true => {}
                // The last semicolon may be missing.
                false if self.sees("}") => return Ok(()),
                false => return self.expect(";").map(drop),
            }
        }
    }
    fn declarator(&mut self, base: &TypeName) -> Parsed<FieldDef> {
        let (begin, mut ty) = (self.begin(), base.clone());
        let wrap = |kind, span| TypeName { kind, span };
        let mut stars = 0;
        while self.accept("*") {
            stars += 1;
            ty = wrap(TypeKind::Pointer(Box::new(ty)), self.since(begin));
        }
        if self.accept("(") {
            let name = self.function_pointer()?;
            let nothing = wrap(TypeKind::Named("void".to_owned()), self.since(begin));
            let ty = wrap(TypeKind::Pointer(Box::new(nothing)), self.since(begin));
            return Ok(FieldDef { name: Some(name), ty, bits: None });
        }
        let name = self.name("a field")?;
        let mut lengths = Vec::new();
        while self.accept("[") {
            lengths.push(if self.sees("]") { 0 } else { self.length()? });
            self.expect("]")?;
        }
        if stars + lengths.len() > 16 {
            return Err(Self::error("the type has too many parts", self.since(begin)));
        }
        for length in lengths.into_iter().rev() {
            ty = wrap(TypeKind::Array(Box::new(ty), Some(length)), self.since(begin));
        }
        let bits = match self.accept(":") {
            true => Some(u32::try_from(self.integer("a number of bits")?).unwrap_or(u32::MAX)),
            false => None,
        };
        Ok(FieldDef { name: Some(name), ty, bits })
    }
    /// The name of a pointer to a function, behind the first bracket: all that is known of it is that it is a pointer.
    fn function_pointer(&mut self) -> Parsed<String> {
        self.expect("*")?;
        let name = self.name("a field")?;
        self.expect(")")?;
        self.expect("(")?;
        while !self.sees(")") {
            if let (Token::End | Token::Bad(_), span) = self.take() {
                return Err(Self::error("missing ')'", span));
            }
        }
        self.take();
        Ok(name)
    }
    fn length(&mut self) -> Parsed<u64> {
        let span = self.peek().1;
        match self.expression()?.kind {
            ExprKind::Int(value) => Ok(value),
            _ => Err(Self::error("the length of an array must be a number", span)),
        }
    }
    /// `config = { name = value; … }`.
    pub(super) fn config(&mut self) -> Parsed<Vec<Setting>> {
        self.take();
        self.expect("=")?;
        self.expect("{")?;
        let mut settings = Vec::new();
        while !self.sees("}") {
            let begin = self.begin();
            let name = self.name("config key")?;
            self.expect("=")?;
            let value = match self.take() {
                (Token::Int(value), _) => value.to_string(),
                (Token::Name(value), _) => value,
                (Token::Text(value), _) => String::from_utf8_lossy(&value).into_owned(),
                (_, span) => return Err(Self::error("expected string, int, boolean, or ident", span)),
            };
            settings.push(Setting { name, value, span: self.since(begin) });
            if !self.accept(";") && !self.sees("}") {
                return Err(self.unexpected("';'"));
            }
        }
        self.expect("}")?;
        self.accept(";");
        Ok(settings)
    }
}
