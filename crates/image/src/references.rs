//! References between entries of debug information.
//!
//! In: an entry, and an attribute that refers to another. Out: where that is. Invariants: IMG-3: chains end. PRO-6 a reference is
//! followed to where it leads, or is an error: what cannot be followed is unknown.
//!
//! ```text
//! leads to                          written by
//! its own unit                      every compiler
//! another unit of the file          link-time optimisation (types and names come before the code); `dwz`
//! a type unit, by its signature     -fdebug-types-section
//! a file that programs share        dwz -m
//! ```
//!
//! Does not: know what entries mean (`types`), or find files.

use gimli::{AttributeValue, DwLang};

use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry, MAX_CHAIN};

impl DebugInfo {
    /// The entry that an attribute refers to (PRO-6).
    ///
    /// # Errors
    /// The attribute is no reference, or leads to nothing that is there.
    pub(crate) fn reference<'u>(
        &'u self,
        entry: &Entry<'u>,
        which: gimli::DwAt,
    ) -> gimli::Result<Option<At<'u>>> {
        let unit = entry.unit();
        Ok(Some(match entry.value(which)? {
            None => return Ok(None),
            Some(AttributeValue::UnitRef(offset)) => At { unit, offset },
            Some(AttributeValue::DebugInfoRef(at)) => self.units.of(unit.dwarf).at(at)?,
            Some(AttributeValue::DebugInfoRefSup(at)) => {
                self.units.of(unit.dwarf.sup().ok_or(gimli::Error::UnexpectedNull)?).at(at)?
            }
            Some(AttributeValue::DebugTypesRef(signature)) => {
                let own = self.units.of(unit.dwarf).typed(signature);
                own.or_else(|| self.packed_type(signature)).ok_or(gimli::Error::UnexpectedNull)?
            }
            Some(_) => return Err(gimli::Error::UnexpectedNull),
        }))
    }
    /// The type of an entry, or the type that it refers to.
    pub(crate) fn type_of<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Option<At<'u>>> {
        self.reference(entry, gimli::DW_AT_type)
    }
    /// The entry of which this one is a copy, from one to the next; itself if it is none.
    pub(crate) fn source<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Entry<'u>> {
        let mut source = entry.clone();
        for _ in 0..MAX_CHAIN {
            match self.reference(&source, gimli::DW_AT_abstract_origin)? {
                Some(origin) => source = origin.entry()?,
                None => return Ok(source),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    /// The entry of which this one is a copy, or else its declaration.
    pub(crate) fn origin<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Option<At<'u>>> {
        match self.reference(entry, gimli::DW_AT_abstract_origin)? {
            Some(origin) => Ok(Some(origin)),
            None => self.reference(entry, gimli::DW_AT_specification),
        }
    }
    /// What `found` returns first of an entry, its source, and the declaration of that.
    pub(crate) fn inherited<'u, T>(
        &'u self,
        entry: &Entry<'u>,
        mut found: impl FnMut(&Entry<'u>) -> gimli::Result<Option<T>>,
    ) -> gimli::Result<Option<T>> {
        let mut entry = entry.clone();
        for _ in 0..MAX_CHAIN {
            if let Some(found) = found(&entry)? {
                return Ok(Some(found));
            }
            match self.origin(&entry)? {
                Some(next) => entry = next.entry()?,
                None => return Ok(None),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    /// The language of a function's source; of the unit with its code, if the source's does not say.
    pub(crate) fn language(&self, function: &Entry<'_>) -> gimli::Result<Option<DwLang>> {
        let source = self.source(function)?.language()?;
        source.map_or_else(|| function.language(), |language| Ok(Some(language)))
    }
    /// A type of the package of split debug information.
    pub(crate) fn packed_type(&self, signature: gimli::DebugTypeSignature) -> Option<At<'_>> {
        let dwarf = self.split.packed_type(signature, &self.dwarf)?;
        self.units.of(&dwarf).typed(signature)
    }
}
