//! Fields reached through arguments: `req->next->len`, in a probe's list of arguments, in conditions, in
//! `hist`.
//!
//! In: paths, and the debug information of the function. Out: for each probe, the memory that its records
//! must contain, and what a path stands for. Does not: read memory.

use std::cell::RefCell;
use std::rc::Rc;

use trapline::beyond;
use trapline::calls::FieldRead;
use trapline::filter::{Int, Known, Misread, Symbol};
use trapline::prototypes::{
    CountedRead, Elements, FieldContent, FieldError, Layout, NoField, ProbedFunction, ValueType,
};

use crate::args::command::types::{ArgumentPlace, FieldOf, Parameter, Signature, Type};
use crate::args::command::whole::has_sign;

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
    /// The probe's arguments, and the fields that hold some of them.
    parameters: &'a [Parameter],
    given: &'a [FieldOf],
    known: RefCell<Vec<FieldOf>>,
}

/// Whether a word in the list of arguments is a path.
pub(crate) fn is_path(word: &str) -> bool {
    if let Some(pointer) = word.strip_prefix('*') {
        return pointer.starts_with(|c: char| c.is_alphabetic() || "_*".contains(c));
    }
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

/// The fields that hold what a path leads to in a function: one, or several for what no single one holds.
pub(crate) fn find(noted: Option<&ProbedFunction>, path: &str) -> Result<Vec<FieldOf>, Misread> {
    let whole = |why: &str| Misread { at: 0..path.len(), why: why.to_owned(), is_unknown: true };
    let unknown = "fields are known from debug information alone, and only where no types were typed";
    let field = noted.ok_or_else(|| whole(unknown))?.field(path);
    let (reads, of) = field.map_err(|FieldError { at, why }| {
        let is_unknown = matches!(why, NoField::NoArgument { .. } | NoField::NothingNoted);
        Misread { at, why: why.to_string(), is_unknown }
    })?;
    let shown = match of {
        FieldContent::One(ValueType::Text) => Type::Str,
        FieldContent::One(of) => Type::from(of),
        FieldContent::Whole(layout) => Type::Whole(Rc::new(layout)),
    };
    let one = |read| FieldOf { path: path.to_owned(), read, shown: shown.clone() };
    Ok(reads.into_iter().map(one).collect())
}

/// An argument that is what these fields hold, with the fields added to `all`.
pub(crate) fn held(name: String, found: Vec<FieldOf>, all: &mut Vec<FieldOf>) -> Option<Parameter> {
    let shown = found.first()?.shown.clone();
    let (first, count) = (all.len() as u8, found.len() as u8);
    all.extend(found);
    let place = if count == 1 { ArgumentPlace::Field(first) } else { ArgumentPlace::Fields { first, count } };
    Some(Parameter { name, shown, place })
}

/// What a condition knows of a field that is read as a whole: bits of an integer; none of anything else.
fn bits(nth: u8, of: &Layout) -> Option<Symbol> {
    let Layout::Bits { of, bytes, from, count } = of else { return None };
    let signed = has_sign(of);
    let of = Known::Field(nth, Int { bits: bytes.checked_mul(8)?, signed });
    let fits = *count > 0 && from.checked_add(*count)? <= 64;
    fits.then_some(Symbol::Bits { of, from: *from as u8, count: *count as u8, signed })
}

impl<'a> Fields<'a> {
    /// All fields that hold arguments: each call is shown with them.
    pub(crate) fn of(signature: Option<&'a Signature>) -> Self {
        let known = signature.map_or_else(Vec::new, |signature| signature.fields.clone());
        Self { known: RefCell::new(known), ..Self::used(signature) }
    }
    /// Only those that a condition or a value uses.
    pub(crate) fn used(signature: Option<&'a Signature>) -> Self {
        let noted = signature.and_then(|signature| signature.noted.as_deref());
        let inside = signature.filter(|_| noted.is_some_and(ProbedFunction::is_inside));
        let locals = inside.map_or(&[][..], |signature| &signature.parameters);
        let (parameters, given) =
            signature.map_or((&[][..], &[][..]), |one| (&one.parameters[..], &one.fields[..]));
        Self { noted, locals, parameters, given, known: RefCell::default() }
    }
    /// What a path, or the name of an argument in memory, stands for in a condition.
    pub(crate) fn symbol(&self, path: &str) -> Result<Symbol, Misread> {
        let whole = |why: &str| Misread { at: 0..path.len(), why: why.to_owned(), is_unknown: false };
        let text = || whole("this is text; only numbers can be compared and added up");
        if let Some(local) = self.locals.iter().find(|local| local.name == path) {
            return local.known().map(Symbol::Known).ok_or_else(|| whole("this is no number"));
        }
        let found = self.find(path)?;
        let shown = found.first().map(|one| one.shown.clone());
        let place = match shown {
            Some(Type::Str | Type::BufField(_)) => return Err(text()),
            Some(Type::Whole(_)) if self.leads_to_text(path) => return Err(text()),
            Some(Type::Whole(layout)) if found.len() == 1 => {
                let index = self.put(&found)?;
                return bits(index, &layout).ok_or_else(|| whole("this is no number"));
            }
            Some(Type::Float(float)) => Some(Known::FloatField(self.put(&found)?, float)),
            Some(shown) if found.len() == 1 => match shown.int() {
                Some(int) => Some(Known::Field(self.put(&found)?, int)),
                None => None,
            },
            _ => None,
        };
        place.map(Symbol::Known).ok_or_else(|| whole("this is no number"))
    }
    /// The text that an argument, or a path, is or leads to; `None` if it is no text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<Parameter>, Misread> {
        let named = self.parameters.iter().find(|one| one.name == name);
        let given = |nth: u8| self.given.get(usize::from(nth)).cloned();
        match named.map(|one| (one, one.place, &one.shown)) {
            Some((one, ArgumentPlace::General(_), Type::Str | Type::Buf(_))) => Ok(Some(one.clone())),
            Some((_, ArgumentPlace::Field(nth), Type::Str)) => {
                given(nth).map(|one| self.held(name, vec![one])).transpose()
            }
            Some((_, ArgumentPlace::Field(nth), Type::BufField(number))) => {
                let both = given(*number).zip(given(nth));
                both.map(|(number, text)| self.counted(name, number, text)).transpose()
            }
            Some(_) => Ok(None),
            None if !is_path(name) => Ok(None),
            None => {
                let counted = self.noted.and_then(|noted| noted.counted_field(name));
                if let Some(CountedRead { elements, number, of: Elements::Text }) = counted {
                    let path = || name.to_owned();
                    let number =
                        FieldOf { path: format!("{name}.len"), read: number, shown: Type::Signed(64) };
                    let text = FieldOf { path: path(), read: elements, shown: Type::BufField(0) };
                    return self.counted(name, number, text).map(Some);
                }
                match find(self.noted, name) {
                    Ok(found) if found.iter().all(|one| one.shown == Type::Str) => {
                        self.held(name, found).map(Some)
                    }
                    _ => Ok(None),
                }
            }
        }
    }
    fn leads_to_text(&self, path: &str) -> bool {
        let counted = self.noted.and_then(|noted| noted.counted_field(path));
        counted.is_some_and(|counted| counted.of == Elements::Text)
    }
    /// A text that ends at a 0.
    fn held(&self, name: &str, found: Vec<FieldOf>) -> Result<Parameter, Misread> {
        let place = ArgumentPlace::Field(self.put(&found)?);
        Ok(Parameter { name: name.to_owned(), shown: Type::Str, place })
    }
    /// A text with its length.
    fn counted(&self, name: &str, number: FieldOf, text: FieldOf) -> Result<Parameter, Misread> {
        let shown = Type::BufField(self.put(&[number])?);
        let place = ArgumentPlace::Field(self.put(&[FieldOf { shown: shown.clone(), ..text }])?);
        Ok(Parameter { name: name.to_owned(), shown, place })
    }
    /// The fields that hold what a path stands for.
    fn find(&self, path: &str) -> Result<Vec<FieldOf>, Misread> {
        let same = |all: &[FieldOf]| -> Vec<FieldOf> {
            all.iter().filter(|one| one.path == path).cloned().collect()
        };
        for all in [&self.known.borrow()[..], self.given] {
            let found = same(all);
            if !found.is_empty() {
                return Ok(found);
            }
        }
        find(self.noted, path)
    }
    /// Where these fields are among those that are read; what is not among them yet is added.
    fn put(&self, fields: &[FieldOf]) -> Result<u8, Misread> {
        let mut known = self.known.borrow_mut();
        let path = fields.first().map_or("", |one| &one.path);
        let nth = known.iter().position(|one| one.path == path).unwrap_or(known.len());
        if nth == known.len() {
            if known.len() + fields.len() > PATHS {
                let why = format!("this is one field too many; {PATHS} can be read");
                return Err(Misread { at: 0..path.len(), why, is_unknown: false });
            }
            known.extend_from_slice(fields);
        }
        Ok(nth as u8)
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
        for path in ["req->len", "req.len", "arg0[1]", "a->b[2].c", "Server::count", "*req", "**a", "*a->b"] {
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
