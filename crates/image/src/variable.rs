//! From `server.clients[2].count` to an address and a type.
//!
//! In: DWARF, a path. Out: [`Variable`]s, one for each global variable of that name (there may be several
//! static ones), or why there is none. It walks all units, so it is called once for each name. Invariants:
//! IMG-3: types that contain themselves end the walk.

use std::collections::HashMap;

use gimli::{AttributeValue, UnitOffset};
use trapline_record::Svma;

use crate::debuginfo::{DebugInfo, NoVariable, Slice, UnitOf, Variable};
use crate::nearest::nearest_of;
use crate::types::{Entry, MAX_CHAIN, is_scope, member_offset};

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
        let mut search =
            Search { info: self, name: &name, found: Vec::new(), trouble: None, known: Vec::new() };
        // A malformed unit ends the walk; what was found before it stays.
        let _ = self.each_unit(|unit| search.unit(unit, &steps, path).map(|()| None::<()>));
        let Search { mut found, trouble, known, .. } = search;
        found.sort_by_key(|one| one.at);
        found.dedup_by_key(|one| one.at);
        match (found.is_empty(), trouble) {
            (false, _) => Ok(found),
            (true, Some(trouble)) => Err(trouble),
            (true, None) => Err(NoVariable::Unknown { nearest: nearest_of(&name, known.into_iter()), name }),
        }
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
    found: Vec<Variable>,
    /// Why a variable of that name cannot be used.
    trouble: Option<NoVariable>,
    /// Names of all other variables.
    known: Vec<String>,
}

impl Search<'_> {
    fn unit(&mut self, unit: UnitOf<'_>, steps: &[PathPart], path: &str) -> gimli::Result<()> {
        // Declarations (of class members) by offset, for the definitions that refer to them.
        let mut declared: HashMap<UnitOffset, String> = HashMap::new();
        let mut scopes = Scopes::default();
        let mut entries = unit.entries();
        while let Some((step, entry)) = entries.next_dfs()? {
            scopes.move_by(step);
            if is_scope(entry.tag()) || entry.tag() == gimli::DW_TAG_subprogram {
                let name = self.info.text(unit, entry, gimli::DW_AT_name)?;
                scopes.enter(name.unwrap_or_else(|| "(anonymous)".to_owned()));
            }
            if !matches!(entry.tag(), gimli::DW_TAG_variable | gimli::DW_TAG_member) {
                continue;
            }
            let specified = match entry.attr_value(gimli::DW_AT_specification)? {
                Some(AttributeValue::UnitRef(of)) => Some(of),
                _ => None,
            };
            let own = self.info.text(unit, entry, gimli::DW_AT_name)?.map(|own| scopes.qualified(&own));
            let name = own.or_else(|| specified.and_then(|of| declared.get(&of).cloned()));
            let Some(name) = name else { continue };
            if entry.attr_value(gimli::DW_AT_location)?.is_none() {
                if entry.tag() == gimli::DW_TAG_variable || entry.attr_value(gimli::DW_AT_external)?.is_some()
                {
                    declared.insert(entry.offset(), name);
                }
                continue;
            }
            if !means(self.name, &name) && !self.is_linked_as(unit, entry)? {
                self.known.push(name);
                continue;
            }
            let typed = match specified {
                Some(of) => unit.entry(of)?.attr_value(gimli::DW_AT_type)?,
                None => entry.attr_value(gimli::DW_AT_type)?,
            };
            match self.variable(unit, entry, typed, steps, path)? {
                Ok(variable) => self.found.push(variable),
                // A local variable of the same name has no fixed address. If another one has, its problem is
                // the more helpful message.
                Err(NoVariable::NotFixed { .. }) if self.trouble.is_some() => {}
                Err(trouble) => self.trouble = Some(trouble),
            }
        }
        Ok(())
    }
    fn is_linked_as(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<bool> {
        Ok(self.info.text(unit, entry, gimli::DW_AT_linkage_name)?.is_some_and(|name| name == self.name))
    }
    fn variable(
        &self,
        unit: UnitOf<'_>,
        entry: &Entry<'_>,
        typed: Option<AttributeValue<Slice>>,
        steps: &[PathPart],
        path: &str,
    ) -> gimli::Result<Result<Variable, NoVariable>> {
        let not_fixed = |why| NoVariable::NotFixed { name: self.name.to_owned(), why };
        let at = match self.location(unit, entry)? {
            Ok(at) => at,
            Err(why) => return Ok(Err(not_fixed(why))),
        };
        let Some(AttributeValue::UnitRef(of)) = typed else {
            return Ok(Err(not_fixed("its type is not in the debug information")));
        };
        let mut place = Member { offset: 0, of, path: self.name.to_owned() };
        for step in steps {
            place = match self.step(unit, &place, step)? {
                Ok(next) => next,
                Err(trouble) => return Ok(Err(trouble)),
            };
        }
        let (size, encoding) = self.info.scalar(unit, place.of)?;
        Ok(Ok(Variable { path: path.to_owned(), at: Svma(at.wrapping_add(place.offset)), size, encoding }))
    }
    /// The variable's address, or why it has none.
    fn location(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<Result<u64, &'static str>> {
        let Some(AttributeValue::Exprloc(location)) = entry.attr_value(gimli::DW_AT_location)? else {
            return Ok(Err("it lies in registers or on a stack"));
        };
        let mut operations = location.operations(unit.encoding());
        let first = operations.next()?;
        let second = operations.next()?;
        Ok(match (first, second) {
            (Some(gimli::Operation::Address { address }), None) => Ok(address),
            (Some(gimli::Operation::AddressIndex { index }), None) => Ok(unit.address(index)?),
            (_, Some(gimli::Operation::TLS)) => Err("each thread has its own"),
            _ => Err("it lies in registers or on a stack"),
        })
    }
    fn step(
        &self,
        unit: UnitOf<'_>,
        place: &Member,
        step: &PathPart,
    ) -> gimli::Result<Result<Member, NoVariable>> {
        let entry = self.info.bare(unit, place.of)?;
        if entry.tag() == gimli::DW_TAG_pointer_type {
            return Ok(Err(NoVariable::Pointer { of: place.path.clone() }));
        }
        match step {
            PathPart::Field(field) => {
                let record = matches!(
                    entry.tag(),
                    gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
                );
                if !record {
                    let (of, field) = (place.path.clone(), field.clone());
                    return Ok(Err(NoVariable::NotAStructure { of, field }));
                }
                let mut known = Vec::new();
                let mut budget = MAX_MEMBERS;
                match self.field(unit, entry.offset(), field, &mut known, (0, &mut budget))? {
                    Some((_, _, true)) => Ok(Err(NoVariable::Bits { of: format!("{}.{field}", place.path) })),
                    Some((offset, of, false)) => {
                        Ok(Ok(place.inside(offset, of, format!("{}.{field}", place.path))))
                    }
                    None => Ok(Err(NoVariable::NoField {
                        of: place.path.clone(),
                        nearest: nearest_of(field, known.into_iter()),
                        field: field.clone(),
                    })),
                }
            }
            PathPart::Index(index) => self.element(unit, &entry, place, *index),
        }
    }
    /// Offset and type of a field, also of one in an anonymous member or a base class; and whether it is a
    /// bit-field.
    fn field(
        &self,
        unit: UnitOf<'_>,
        of: UnitOffset,
        field: &str,
        known: &mut Vec<String>,
        (depth, budget): (u32, &mut u32),
    ) -> gimli::Result<Option<(u64, UnitOffset, bool)>> {
        if depth > MAX_CHAIN {
            return Ok(None);
        }
        let mut tree = unit.entries_tree(Some(of))?;
        let mut members = tree.root()?.children();
        while let Some(member) = members.next()? {
            let entry = member.entry();
            if !matches!(entry.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance) {
                continue;
            }
            let Some(left) = budget.checked_sub(1) else { return Ok(None) };
            *budget = left;
            let Some(AttributeValue::UnitRef(typed)) = entry.attr_value(gimli::DW_AT_type)? else { continue };
            let offset = member_offset(entry)?;
            let is_bits = entry.attr_value(gimli::DW_AT_bit_size)?.is_some();
            match self.info.text(unit, entry, gimli::DW_AT_name)? {
                Some(name) if name == field => return Ok(offset.map(|offset| (offset, typed, is_bits))),
                Some(name) => known.push(name),
                None => {
                    let inner = self.info.bare(unit, typed)?.offset();
                    if let Some((inside, typed, is_bits)) =
                        self.field(unit, inner, field, known, (depth + 1, budget))?
                    {
                        return Ok(offset.map(|offset| (offset + inside, typed, is_bits)));
                    }
                }
            }
        }
        Ok(None)
    }
    fn element(
        &self,
        unit: UnitOf<'_>,
        array: &Entry<'_>,
        place: &Member,
        index: u64,
    ) -> gimli::Result<Result<Member, NoVariable>> {
        let none = |len| NoVariable::Index { of: place.path.clone(), len, index };
        let typed = array.attr_value(gimli::DW_AT_type)?;
        let (gimli::DW_TAG_array_type, Some(AttributeValue::UnitRef(of))) = (array.tag(), typed) else {
            return Ok(Err(none(0)));
        };
        let lens = self.info.dimensions(unit, array.offset())?;
        let inner: u64 = lens.iter().skip(1).product();
        let len = lens.first().copied().unwrap_or(0);
        if index >= len || lens.len() > 1 {
            return Ok(Err(none(if lens.len() > 1 { len * inner } else { len })));
        }
        let size = self.info.scalar(unit, of)?.0;
        Ok(Ok(place.inside(index.saturating_mul(size), of, format!("{}[{index}]", place.path))))
    }
}

/// A place inside a variable, and the type there.
#[derive(Debug)]
struct Member {
    offset: u64,
    of: UnitOffset,
    path: String,
}

impl Member {
    const fn inside(&self, by: u64, of: UnitOffset, path: String) -> Self {
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
