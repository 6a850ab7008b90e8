//! Fields reached through arguments: `req->next->len`, in a probe's list of arguments, in conditions, in
//! `hist`.
//!
//! In: paths, and the debug information of the function. Out: for each probe, the memory that its records
//! must contain, and what a path stands for. Does not: read memory.

use std::cell::RefCell;

use trapline::beyond;
use trapline::calls::FieldRead;
use trapline::filter::{Known, Misread, Symbol};
use trapline::prototypes::{FieldError, NoField, ProbedFunction, ValueType};

use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Signature, Type};

/// Upper bound of the paths of a probe, and of its arguments that are no values of a record.
pub(crate) const PATHS: usize = 8;
/// Bytes of a text.
const TEXT: u8 = 64;

/// The fields that one probe's records contain. It grows with the paths that are used.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    noted: Option<&'a ProbedFunction>,
    /// Variables that a probe inside a function names: nothing else is read there.
    locals: &'a [Parameter],
    known: RefCell<Vec<FieldOf>>,
}

/// Whether a word in the list of arguments is a path.
pub(crate) fn is_path(word: &str) -> bool {
    let name = word.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(word.len());
    // `str[200]` is a text with a length.
    !word.starts_with("str[")
        && name > 0
        && ["->", ".", "[", "::"].iter().any(|step| word[name..].starts_with(step))
}

/// An argument that is a field of the record, with its field added to `fields`.
pub(crate) fn stacked(name: String, shown: Type, read: FieldRead, fields: &mut Vec<FieldOf>) -> Parameter {
    let read = match shown {
        Type::Str | Type::Buf(_) => beyond::text_at(read, TEXT),
        _ => read,
    };
    let place = ArgumentPlace::Field(fields.len() as u8);
    fields.push(FieldOf { path: name.clone(), read, shown: shown.clone() });
    Parameter { name, shown, place }
}

/// The field to which a path leads in a function.
pub(crate) fn find(noted: Option<&ProbedFunction>, path: &str) -> Result<FieldOf, Misread> {
    let whole = |why: &str| Misread { at: 0..path.len(), why: why.to_owned(), is_unknown: true };
    let unknown = "fields are known from debug information alone, and only where no types were typed";
    let field = noted.ok_or_else(|| whole(unknown))?.field(path);
    let (read, of) = field.map_err(|FieldError { at, why }| {
        let is_unknown = matches!(why, NoField::NoArgument { .. } | NoField::NothingNoted);
        Misread { at, why: why.to_string(), is_unknown }
    })?;
    let shown = if of == ValueType::Text { Type::Str } else { Type::from(of) };
    Ok(FieldOf { path: path.to_owned(), read, shown })
}

impl<'a> Fields<'a> {
    pub(crate) fn of(signature: Option<&'a Signature>) -> Self {
        let known = signature.map_or_else(Vec::new, |signature| signature.fields.clone());
        let noted = signature.and_then(|signature| signature.noted.as_deref());
        let inside = signature.filter(|_| noted.is_some_and(ProbedFunction::is_inside));
        let locals = inside.map_or(&[][..], |signature| &signature.parameters);
        Self { noted, locals, known: RefCell::new(known) }
    }
    /// What a path stands for in a condition.
    pub(crate) fn symbol(&self, path: &str) -> Result<Symbol, Misread> {
        let whole = |why: String| Misread { at: 0..path.len(), why, is_unknown: false };
        if let Some(local) = self.locals.iter().find(|local| local.name == path) {
            return local.known().map(Symbol::Known).ok_or_else(|| whole("this is no number".to_owned()));
        }
        let mut known = self.known.borrow_mut();
        let nth = match known.iter().position(|one| one.path == path) {
            Some(nth) => nth,
            None if known.len() == PATHS => {
                return Err(whole(format!("this is one field too many; {PATHS} can be read")));
            }
            None => {
                known.push(find(self.noted, path)?);
                known.len() - 1
            }
        };
        let index = nth as u8;
        Ok(Symbol::Known(match &known[nth].shown {
            Type::Float(float) => Known::FloatField(index, *float),
            Type::Str => {
                return Err(whole("this is text; only numbers can be compared and added up".to_owned()));
            }
            shown => match shown.int() {
                Some(int) => Known::Field(index, int),
                None => return Err(whole("this is no number".to_owned())),
            },
        }))
    }
    /// All memory that must be read.
    pub(crate) fn reads(&self) -> Vec<FieldRead> {
        self.known.borrow().iter().map(|one| one.read.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::is_path;

    #[test]
    fn paths_are_distinguished_from_types_and_names() {
        for path in ["req->len", "req.len", "arg0[1]", "a->b[2].c", "Server::count"] {
            assert!(is_path(path), "{path}");
        }
        for other in [
            "req",
            "int *p",
            "struct x *p",
            "buf(len=n) p",
            "unsigned",
            "",
            "->x",
            "double",
            "str[200] s",
            "str[9]",
            "buf(len=n)[9] x",
        ] {
            assert!(!is_path(other), "{other}");
        }
    }
}
