//! From `server.clients[2].count` to an address and a type.
//!
//! In: DWARF, a path. Out: [`Variable`]s, one for each global variable of that name (there may be several
//! static ones), or why there is none. It walks all units, so it is called once for each name. Invariants:
//! IMG-3: types that contain themselves end the walk.

use std::collections::HashMap;

use gimli::AttributeValue;
use trapline_record::Svma;

use crate::debuginfo::{DebugInfo, NoVariable, Variable};
use crate::entries::{At, Entry};
use crate::nearest::nearest_of;
use crate::sections::EntryId;
use crate::sections::UnitOf;
use crate::types::is_scope;

/// Maximum number of members that are read in one type, with those of anonymous members and base classes;
/// more are forged.
const MAX_MEMBERS: u32 = 100_000;

/// One step of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PathPart {
    Field(String),
    Index(u64),
}

/// Splits `name.field[3]` into the name and the steps.
fn steps(path: &str) -> Result<(String, Vec<PathPart>), NoVariable> {
    let wrong = || NoVariable::Syntax(path.to_owned());
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    let mut steps = Vec::new();
    while let Some(first) = rest.chars().next() {
        rest = &rest[1..];
        if first == '.' {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(PathPart::Field(rest[..end].to_owned()));
            rest = &rest[end..];
        } else {
            let (index, behind) = rest.split_once(']').ok_or_else(wrong)?;
            steps.push(PathPart::Index(index.trim().parse().map_err(|_| wrong())?));
            rest = behind;
            if !(rest.is_empty() || rest.starts_with(['.', '['])) {
                return Err(wrong());
            }
        }
    }
    let empty = |step: &PathPart| matches!(step, PathPart::Field(name) if name.is_empty());
    if name.is_empty() || steps.iter().any(empty) { Err(wrong()) } else { Ok((name.to_owned(), steps)) }
}

impl DebugInfo {
    /// The global and static variables that a path refers to.
    ///
    /// # Errors
    /// [`NoVariable`], with similar names.
    pub fn variables(&self, path: &str) -> Result<Vec<Variable>, NoVariable> {
        let (name, steps) = steps(path)?;
        let (mut found, mut trouble) = (Vec::new(), None);
        let mut begin = |at, of: Option<At<'_>>| {
            let reached = self.at_steps((&name, at, of), &steps, path);
            match reached.unwrap_or_else(|_| Err(not_fixed(&name, NO_TYPE))) {
                Ok(variable) => found.push(variable),
                Err(why) => trouble = Some(why),
            }
        };
        let (known, elsewhere) = self.each_variable_named(&name, &mut begin);
        let trouble = trouble.or(elsewhere);
        found.sort_by_key(|one| one.at);
        found.dedup_by_key(|one| one.at);
        match (found.is_empty(), trouble) {
            (false, _) => Ok(found),
            (true, Some(trouble)) => Err(trouble),
            (true, None) => Err(NoVariable::Unknown { nearest: nearest_of(&name, known.into_iter()), name }),
        }
    }
    /// Calls `found` with the address and type of each variable of a name; some may come twice. Returns the names of all other
    /// variables, and why one of that name has no fixed address.
    pub(crate) fn each_variable_named(
        &self,
        name: &str,
        found: &mut dyn FnMut(Svma, Option<At<'_>>),
    ) -> (Vec<String>, Option<NoVariable>) {
        let mut search =
            Search { info: self, name, found, trouble: None, known: Vec::new(), elsewhere: HashMap::new() };
        // A malformed unit ends the walk; what was found before it stays.
        let _ = self.each_unit(|unit| search.unit(unit).map(|()| None::<()>));
        (search.known, search.trouble)
    }
    /// What steps lead to from a variable.
    fn at_steps(
        &self,
        (name, at, of): (&str, Svma, Option<At<'_>>),
        steps: &[PathPart],
        path: &str,
    ) -> gimli::Result<Result<Variable, NoVariable>> {
        let Some(of) = of else { return Ok(Err(not_fixed(name, NO_TYPE))) };
        let mut place = Place { offset: 0, of, path: name.to_owned() };
        for step in steps {
            place = match self.step(&place, step)? {
                Ok(next) => next,
                Err(trouble) => return Ok(Err(trouble)),
            };
        }
        let (size, encoding) = self.scalar(place.of)?;
        Ok(Ok(Variable { path: path.to_owned(), at: at + place.offset, size, encoding }))
    }
}

/// The namespaces, classes and functions around an entry.
#[derive(Debug, Default)]
struct Scopes {
    depth: isize,
    names: Vec<(isize, String)>,
}

impl Scopes {
    /// Moves to the next entry, which is so many levels below the last.
    fn move_by(&mut self, step: isize) {
        self.depth = self.depth.saturating_add(step);
        while self.names.last().is_some_and(|(depth, _)| *depth >= self.depth) {
            self.names.pop();
        }
    }
    fn enter(&mut self, name: String) {
        self.names.push((self.depth, name));
    }
    fn qualified(&self, name: &str) -> String {
        let around = self.names.iter().map(|(_, name)| name.as_str());
        around.chain([name]).collect::<Vec<_>>().join("::")
    }
}

/// Whether a typed name refers to a variable: it must be the last parts of the variable's qualified name.
fn means(typed: &str, qualified: &str) -> bool {
    match typed.strip_prefix("::") {
        Some(whole) => qualified == whole,
        None => qualified.strip_suffix(typed).is_some_and(|rest| rest.is_empty() || rest.ends_with("::")),
    }
}

struct Search<'a> {
    info: &'a DebugInfo,
    name: &'a str,
    /// Takes those of that name.
    found: &'a mut dyn FnMut(Svma, Option<At<'_>>),
    /// Why a variable of that name cannot be used.
    trouble: Option<NoVariable>,
    /// Names of all other variables.
    known: Vec<String>,
    /// Names of variables that other units than their own define.
    elsewhere: HashMap<EntryId, String>,
}

/// Calls `found` with each variable and member of a unit, and its qualified name.
fn each_variable<'u>(
    unit: UnitOf<'u>,
    mut found: impl FnMut(&Entry<'u>, Option<String>) -> gimli::Result<()>,
) -> gimli::Result<()> {
    let mut scopes = Scopes::default();
    let mut entries = unit.unit.entries();
    while let Some((step, entry)) = entries.next_dfs()? {
        scopes.move_by(step);
        if is_scope(entry.tag()) || entry.tag() == gimli::DW_TAG_subprogram {
            let name = Entry::new(unit, entry.clone()).name()?;
            scopes.enter(name.unwrap_or_else(|| "(anonymous)".to_owned()));
        }
        if matches!(entry.tag(), gimli::DW_TAG_variable | gimli::DW_TAG_member) {
            let entry = Entry::new(unit, entry.clone());
            let name = entry.name()?.map(|own| scopes.qualified(&own));
            found(&entry, name)?;
        }
    }
    Ok(())
}

/// Whether another entry may say where a variable is.
fn may_be_defined(entry: &Entry<'_>) -> gimli::Result<bool> {
    Ok(entry.tag() == gimli::DW_TAG_variable || entry.has(gimli::DW_AT_external)?)
}

const NO_TYPE: &str = "its type is not in the debug information";

fn not_fixed(name: &str, why: &'static str) -> NoVariable {
    NoVariable::NotFixed { name: name.to_owned(), why }
}

impl Search<'_> {
    fn unit(&mut self, unit: UnitOf<'_>) -> gimli::Result<()> {
        let info = self.info;
        let mut declared = HashMap::new();
        each_variable(unit, |entry, name| {
            // One that leads nowhere makes this variable unknown, and no other.
            let specified = info.origin(entry).unwrap_or(None);
            let own = match (name, specified) {
                (Some(name), _) => Some(name),
                (None, Some(of)) => match declared.get(&of.id()) {
                    Some(name) => Some(String::clone(name)),
                    None => self.declared_elsewhere(unit, of)?,
                },
                (None, None) => None,
            };
            let Some(name) = own else { return Ok(()) };
            if !entry.has(gimli::DW_AT_location)? {
                if may_be_defined(entry)? {
                    declared.insert(entry.at().id(), name);
                }
                return Ok(());
            }
            if !means(self.name, &name) && !self.is_linked_as(entry)? {
                self.known.push(name);
                return Ok(());
            }
            let typed = match specified {
                Some(of) => info.inherited(&of.entry()?, |entry| info.type_of(entry))?,
                None => info.type_of(entry)?,
            };
            match location(entry)? {
                Ok(at) => (self.found)(Svma(at), typed),
                // A local variable of the same name has no fixed address.
                Err(why) if self.trouble.is_none() => self.trouble = Some(not_fixed(self.name, why)),
                Err(_) => {}
            }
            Ok(())
        })
    }
    /// The name of a variable that another unit declares, as with link-time optimisation. That unit is looked through
    /// once.
    fn declared_elsewhere(&mut self, here: UnitOf<'_>, at: At<'_>) -> gimli::Result<Option<String>> {
        if at.unit.header.offset() == here.header.offset() {
            return Ok(None);
        }
        if !self.elsewhere.contains_key(&at.id()) {
            each_variable(at.unit, |entry, name| {
                if let Some(name) = name
                    && may_be_defined(entry)?
                {
                    self.elsewhere.insert(entry.at().id(), name);
                }
                Ok(())
            })?;
        }
        Ok(self.elsewhere.get(&at.id()).cloned())
    }
    fn is_linked_as(&self, entry: &Entry<'_>) -> gimli::Result<bool> {
        let linked = self.info.inherited(entry, |entry| entry.text(gimli::DW_AT_linkage_name))?;
        Ok(linked.is_some_and(|name| name == self.name))
    }
}

impl DebugInfo {
    fn step<'u>(
        &'u self,
        place: &Place<'u>,
        step: &PathPart,
    ) -> gimli::Result<Result<Place<'u>, NoVariable>> {
        let entry = self.bare(place.of)?;
        if entry.tag() == gimli::DW_TAG_pointer_type {
            return Ok(Err(NoVariable::Pointer { of: place.path.clone() }));
        }
        let field = match step {
            PathPart::Index(index) => return self.element(&entry, place, *index),
            PathPart::Field(field) => field,
        };
        if !entry.is_record() {
            let (of, field) = (place.path.clone(), field.clone());
            return Ok(Err(NoVariable::NotAStructure { of, field }));
        }
        let mut known = Vec::new();
        let mut budget = MAX_MEMBERS;
        Ok(match self.find_field(&entry, field, &mut known, (0, &mut budget))? {
            Some((_, _, Some(_))) => Err(NoVariable::Bits { of: format!("{}.{field}", place.path) }),
            Some((offset, of, None)) => Ok(place.inside(offset, of, format!("{}.{field}", place.path))),
            None => Err(NoVariable::NoField {
                of: place.path.clone(),
                nearest: nearest_of(field, known.into_iter()),
                field: field.clone(),
            }),
        })
    }
    fn element<'u>(
        &'u self,
        array: &Entry<'u>,
        place: &Place<'u>,
        index: u64,
    ) -> gimli::Result<Result<Place<'u>, NoVariable>> {
        let none = |len| NoVariable::Index { of: place.path.clone(), len, index };
        let (gimli::DW_TAG_array_type, Some(of)) = (array.tag(), self.type_of(array)?) else {
            return Ok(Err(none(0)));
        };
        let lens = self.dimensions(array)?;
        let inner: u64 = lens.iter().skip(1).product();
        let len = lens.first().copied().unwrap_or(0);
        if index >= len || lens.len() > 1 {
            return Ok(Err(none(if lens.len() > 1 { len * inner } else { len })));
        }
        let size = self.size(of)?;
        Ok(Ok(place.inside(index.saturating_mul(size), of, format!("{}[{index}]", place.path))))
    }
}

/// A variable's address, or why it has none.
fn location(entry: &Entry<'_>) -> gimli::Result<Result<u64, &'static str>> {
    if let Some(at) = entry.address()? {
        return Ok(Ok(at.0));
    }
    let Some(AttributeValue::Exprloc(location)) = entry.value(gimli::DW_AT_location)? else {
        return Ok(Err("it lies in registers or on a stack"));
    };
    let mut operations = location.operations(entry.unit().encoding());
    operations.next()?;
    let of_threads = matches!(operations.next()?, Some(gimli::Operation::TLS));
    Ok(Err(if of_threads { "each thread has its own" } else { "it lies in registers or on a stack" }))
}

/// A place inside a variable, and the type there.
#[derive(Debug)]
struct Place<'u> {
    offset: u64,
    of: At<'u>,
    path: String,
}

impl<'u> Place<'u> {
    const fn inside(&self, by: u64, of: At<'u>, path: String) -> Self {
        Self { offset: self.offset.wrapping_add(by), of, path }
    }
}

#[cfg(test)]
mod tests {
    use super::{PathPart, Scopes, means, steps};

    #[test]
    fn qualified_names_mean_what_ends_in_them() {
        for (typed, qualified, wanted) in [
            ("count", "Server::count", true),
            ("Server::count", "ns::Server::count", true),
            ("Server::count", "Client::count", false),
            ("NoSuch::count", "count", false),
            ("unt", "Server::count", false),
            ("::count", "Server::count", false),
            ("::count", "count", true),
        ] {
            assert_eq!(means(typed, qualified), wanted, "{typed} {qualified}");
        }
        let mut scopes = Scopes::default();
        for (step, name) in [(0, None), (1, Some("ns")), (1, Some("A")), (0, Some("B"))] {
            scopes.move_by(step);
            name.into_iter().for_each(|name: &str| scopes.enter(name.to_owned()));
        }
        scopes.move_by(1);
        assert_eq!(scopes.qualified("x"), "ns::B::x");
        scopes.move_by(-2);
        assert_eq!(scopes.qualified("x"), "x");
    }

    #[test]
    fn paths_are_taken_apart() {
        let field = |name: &str| PathPart::Field(name.to_owned());
        assert_eq!(steps("a"), Ok(("a".into(), vec![])));
        assert_eq!(steps("a.b[3].c"), Ok(("a".into(), vec![field("b"), PathPart::Index(3), field("c")])));
        for wrong in ["", ".a", "a.", "a..b", "a[", "a[x]", "a[1]b", "a[]", "a[-1]"] {
            assert!(steps(wrong).is_err(), "{wrong}");
        }
    }
}
