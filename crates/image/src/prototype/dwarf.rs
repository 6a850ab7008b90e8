//! Prototypes from DWARF.
//!
//! In: DWARF, a function's address. Out: a [`Prototype`].
//! Functions of C and C++ are called as the ABI says. Rust's own way has no rules that hold from one compiler to the next,
//! so of its functions only locations count, as of copies. Does not: know other languages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gimli::{DwLang, UnitOffset};
use trapline_record::Svma;

use super::entry::{Rules, corrected};
use super::passing::{Components, Passage, Passed, passed, places};
use super::rust::is_returned_as_in_c;
use super::{Declared, Prototype, ValueType, go, passing_aarch64};
use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::sections::{EntryId, UnitOf};

/// Additional parameters of GCC's constructors and destructors of classes with virtual bases. Their source
/// has both. Of its copies, those for a whole object (C1, D1) get neither, and those for a base (C2, D2) the
/// second.
const HIDDEN: [&str; 2] = ["__in_chrg", "__vtt_parm"];

/// How deep structures are within each other at most, where their alignment is looked for.
const DEEPEST: u32 = 12;

impl DebugInfo {
    /// The parameters and return value of the function that begins at an address. `None`: nothing is
    /// recorded, or it is not called like a C function.
    #[must_use]
    pub fn prototype(&self, function: Svma) -> Option<Prototype> {
        self.noted(&self.function(function).ok()??, (function.0, false)).ok()?
    }
    /// The same for a copy of a function that the compiler made for some callers (`.constprop`, `.isra`, `.part`).
    /// Its parameters are where their locations are at the entry, or unknown; and so is the value.
    #[must_use]
    pub fn prototype_of_copy(&self, function: Svma) -> Option<Prototype> {
        if !self.is_x86_64 {
            return None;
        }
        self.noted(&self.function(function).ok()??, (function.0, true)).ok()?
    }
    /// The entry of the function that begins at an address, if it is of a known language.
    pub(crate) fn function(&self, at: Svma) -> gimli::Result<Option<Entry<'_>>> {
        let Some(unit) = self.unit_at(at) else { return Ok(None) };
        let Some(offset) = self.beginnings(unit)?.get(&at).copied() else { return Ok(None) };
        let entry = At { unit, offset }.entry()?;
        Ok(is_known(self.language(&entry)?).then_some(entry))
    }
    /// Where functions of a unit begin, and where their entries are. A unit is looked through once.
    fn beginnings<'u>(&'u self, unit: UnitOf<'u>) -> gimli::Result<Arc<HashMap<Svma, UnitOffset>>> {
        let id = At { unit, offset: UnitOffset(0) }.id();
        if let Some(found) = self.beginnings.borrow().get(&id) {
            return Ok(found.clone());
        }
        let mut found = HashMap::new();
        let mut entries = unit.unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            if entry.tag() == gimli::DW_TAG_subprogram
                && let Some(range) = unit.die_ranges(entry)?.next()?
            {
                found.entry(Svma(range.begin)).or_insert_with(|| entry.offset());
            }
        }
        let found = Arc::new(found);
        self.beginnings.borrow_mut().insert(id, found.clone());
        Ok(found)
    }
    fn noted(&self, entry: &Entry<'_>, (at, is_copy): (u64, bool)) -> gimli::Result<Option<Prototype>> {
        let language = self.language(entry)?;
        if language == Some(gimli::DW_LANG_Go) {
            return self.of_go(entry, at);
        }
        let (is_cplus, is_rust) = (is_cplus(language), language == Some(gimli::DW_LANG_Rust));
        if is_rust && !self.is_x86_64 {
            return Ok(None);
        }
        let value = match self.returned(entry)? {
            None => Passage::VOID,
            // Rust's `()`.
            Some(of) if is_rust && self.size(of)? == 0 => Passage::VOID,
            Some(of) => {
                let mut value = self.passage(of, is_cplus)?;
                let bytes = value.bytes;
                value.layout = value.layout.filter(|layout| !is_rust || is_returned_as_in_c(layout, bytes));
                value
            }
        };
        let mut parameters = Vec::new();
        let declared = self.parameters(entry)?;
        for one in &declared {
            parameters.push((one.name.clone(), self.passage(one.of, is_cplus)?));
        }
        if !self.is_x86_64 {
            return Ok(Some(passing_aarch64::places(value, parameters)));
        }
        let passed: Vec<Passed> = parameters.iter().map(|(_, passage)| passage.passed).collect();
        let by_abi = places(value, parameters, Some(8));
        let compiled = self.compiled(
            entry,
            &declared,
            (at, is_copy, if is_rust { Rules::Locations } else { Rules::Abi }),
        )?;
        Ok(Some(corrected(by_abi, &passed, &compiled)))
    }
    /// The parameters. If the function is a copy, those of its source, without the hidden ones that this copy
    /// does not get.
    pub(crate) fn parameters<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Vec<Declared<'u>>> {
        let source = self.source(entry)?;
        let own = if source.at().id() == entry.at().id() { None } else { Some(self.copied(entry)?) };
        let mut parameters = Vec::new();
        for entry in source.children()? {
            if entry.tag() != gimli::DW_TAG_formal_parameter || go::is_result(&entry)? {
                continue;
            }
            let Some(of) = self.type_of(&entry)? else { return Err(gimli::Error::UnexpectedNull) };
            let (at, name) = (entry.at().id(), entry.name()?.unwrap_or_default());
            let is_hidden = HIDDEN.contains(&&*name) && entry.has(gimli::DW_AT_artificial)?;
            if is_hidden && own.as_ref().is_some_and(|own| !own.contains(&at)) {
                continue;
            }
            parameters.push(Declared { at, name, of });
        }
        Ok(parameters)
    }
    /// Those parameters of the source that a copy has.
    fn copied(&self, copy: &Entry<'_>) -> gimli::Result<HashSet<EntryId>> {
        let parameters = copy.children()?.into_iter();
        let mut parameters = parameters.filter(|child| child.tag() == gimli::DW_TAG_formal_parameter);
        parameters.try_fold(HashSet::new(), |mut own, child| {
            own.insert(self.source(&child)?.at().id());
            Ok(own)
        })
    }
    /// Whether a function, its source or its declaration has an attribute.
    pub(super) fn has_flag(&self, entry: &Entry<'_>, which: gimli::DwAt) -> gimli::Result<bool> {
        let found = self.inherited(entry, |entry| Ok(entry.has(which)?.then_some(())))?;
        Ok(found.is_some())
    }
    pub(crate) fn returned<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Option<At<'u>>> {
        self.inherited(entry, |entry| self.type_of(entry))
    }
    /// How to show a value of a type.
    pub(crate) fn value_type(&self, of: At<'_>) -> gimli::Result<ValueType> {
        let entry = self.bare(of)?;
        let bytes = self.size(of)?;
        let narrow = u8::try_from(bytes).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8));
        let encoding = match entry.value(gimli::DW_AT_encoding)? {
            Some(gimli::AttributeValue::Encoding(encoding)) => Some(encoding),
            _ => None,
        };
        let signed = matches!(encoding, Some(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char));
        Ok(match (entry.tag(), narrow) {
            (gimli::DW_TAG_pointer_type, _) => {
                let to = self.type_of(&entry)?;
                let tag = to.map(|to| self.bare(to)).transpose()?.map(|to| to.tag());
                match to.map(|to| self.value_type_of_base(to)).transpose()?.flatten() {
                    Some(ValueType::Char) => ValueType::Text,
                    _ if tag == Some(gimli::DW_TAG_subroutine_type) => ValueType::Code,
                    _ => ValueType::Pointer,
                }
            }
            // A value of a function's type is Go's, and points to a closure.
            (
                gimli::DW_TAG_reference_type
                | gimli::DW_TAG_rvalue_reference_type
                | gimli::DW_TAG_subroutine_type,
                _,
            ) => ValueType::Pointer,
            (gimli::DW_TAG_enumeration_type, Some(bytes)) => {
                let names = self.enumerators(&entry)?;
                let below = match self.type_of(&entry)? {
                    Some(of) => {
                        let value = self.value_type_of_base(of)?;
                        matches!(value, Some(ValueType::Integer { signed: true, .. } | ValueType::Char))
                    }
                    None => names.iter().any(|(_, value)| *value < 0),
                };
                ValueType::Enumeration { bytes, signed: below, names }
            }
            (gimli::DW_TAG_base_type, Some(bytes)) => match encoding {
                Some(gimli::DW_ATE_float) if bytes >= 4 => ValueType::Float(bytes),
                Some(gimli::DW_ATE_boolean) => ValueType::Bool,
                Some(gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char) => self.character(&entry)?,
                Some(gimli::DW_ATE_signed | gimli::DW_ATE_unsigned | gimli::DW_ATE_UTF) => {
                    ValueType::Integer { bytes, signed }
                }
                _ => ValueType::Other(self.called(&entry)?),
            },
            _ => ValueType::Other(self.called(&entry)?),
        })
    }
    /// The type that a pointer points to, if it is a number.
    fn value_type_of_base(&self, of: At<'_>) -> gimli::Result<Option<ValueType>> {
        let is_base = self.bare(of)?.tag() == gimli::DW_TAG_base_type;
        if is_base { self.value_type(of).map(Some) } else { Ok(None) }
    }
    /// `char` is a character; `signed char` and `unsigned char` are numbers.
    fn character(&self, entry: &Entry<'_>) -> gimli::Result<ValueType> {
        let signed = entry.name()?.is_some_and(|name| name == "signed char");
        let unsigned = entry.name()?.is_some_and(|name| name == "unsigned char");
        let number = ValueType::Integer { bytes: 1, signed };
        Ok(if signed || unsigned { number } else { ValueType::Char })
    }
    /// `struct pair`, `long double`.
    pub(crate) fn called(&self, entry: &Entry<'_>) -> gimli::Result<String> {
        if let Some(called) = entry.called_by_go()? {
            return Ok(called);
        }
        let word = match entry.tag() {
            gimli::DW_TAG_structure_type => "struct",
            gimli::DW_TAG_class_type => "class",
            gimli::DW_TAG_union_type => "union",
            gimli::DW_TAG_array_type => "array",
            gimli::DW_TAG_subroutine_type => "function",
            _ => "",
        };
        let name = entry.name()?.unwrap_or_default();
        Ok([word, &name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
    }
    /// How a value of a type is passed, and what it is.
    fn passage(&self, of: At<'_>, is_cplus: bool) -> gimli::Result<Passage> {
        let (meaning, passed) = (self.value_type(of)?, self.passed(of, is_cplus)?);
        let layout = match &meaning {
            ValueType::Other(_) => self.layout(of)?,
            _ => None,
        };
        let bytes = if matches!(meaning, ValueType::Void) { 0 } else { self.size(of)? };
        Ok(Passage { of: meaning, passed, layout, aligned: self.is_aligned(of, DEEPEST)?, bytes })
    }
    /// Whether a value of a type begins at a multiple of 16 bytes or more, as far as its parts tell; what is too deep
    /// to look at might.
    fn is_aligned(&self, of: At<'_>, deep: u32) -> gimli::Result<bool> {
        let Some(deep) = deep.checked_sub(1) else { return Ok(true) };
        let says_so = |entry: &Entry<'_>| entry.has(gimli::DW_AT_alignment);
        let (entry, named) = (self.bare(of)?, of.entry()?);
        if says_so(&entry)? || says_so(&named)? {
            return Ok(true);
        }
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type => self.size(of)? == 16,
            gimli::DW_TAG_array_type if entry.has(gimli::DW_AT_GNU_vector)? => true,
            gimli::DW_TAG_array_type => match self.type_of(&entry)? {
                Some(of) => self.is_aligned(of, deep)?,
                None => false,
            },
            _ if entry.is_record() => {
                for member in &entry.parts()? {
                    let of = self.type_of(member)?;
                    if says_so(member)? || of.is_some_and(|of| self.is_aligned(of, deep).unwrap_or(true)) {
                        return Ok(true);
                    }
                }
                false
            }
            _ => false,
        })
    }
    fn passed(&self, of: At<'_>, is_cplus: bool) -> gimli::Result<Passed> {
        let entry = self.bare(of)?;
        if entry.is_record() {
            match entry.value(gimli::DW_AT_calling_convention)? {
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_reference)) => {
                    return Ok(Passed::Reference);
                }
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_value)) => {}
                // Whether a class may be copied as it is decides, and is not noted.
                _ if is_cplus => return Ok(Passed::Unknown),
                _ => {}
            }
        }
        let shapes = &mut |of| self.shape(of);
        if self.is_x86_64 { passed(of, shapes) } else { passing_aarch64::passed(of, shapes) }
    }
    /// The components of a type.
    fn shape<'u>(&'u self, of: At<'u>) -> gimli::Result<Components<At<'u>>> {
        let entry = self.bare(of)?;
        let bytes = self.size(of)?;
        Ok(match (entry.tag(), self.value_type(of)?) {
            (_, ValueType::Float(_)) => Components::Vector(bytes),
            (_, ValueType::Other(_)) if entry.is_record() => {
                let members = self.members(&entry)?;
                Components::Members(bytes, members.iter().map(|member| (member.offset, member.of)).collect())
            }
            (gimli::DW_TAG_array_type, _) if !entry.has(gimli::DW_AT_GNU_vector)? => {
                let Some(of) = self.type_of(&entry)? else { return Ok(Components::Unknown) };
                let count = self.dimensions(&entry)?.iter().product();
                Components::Array { of, bytes: self.size(of)?, count }
            }
            (gimli::DW_TAG_base_type, ValueType::Other(name)) if name == "long double" => Components::X87,
            (gimli::DW_TAG_base_type, ValueType::Other(name)) if bytes == 16 && name.contains("int128") => {
                Components::Wide
            }
            (_, ValueType::Other(_)) => Components::Unknown,
            _ => Components::General(bytes),
        })
    }
}

/// Whether anything is known of how functions of a language are called.
fn is_known(language: Option<DwLang>) -> bool {
    let c = [
        "DW_LANG_C89",
        "DW_LANG_C",
        "DW_LANG_C99",
        "DW_LANG_C11",
        "DW_LANG_C17",
        "DW_LANG_ObjC",
        "DW_LANG_Rust",
        "DW_LANG_Go",
    ];
    let name = language.and_then(|language| language.static_string());
    name.is_some_and(|name| c.contains(&name) || name.starts_with("DW_LANG_C_plus_plus"))
}

fn is_cplus(language: Option<DwLang>) -> bool {
    let name = language.and_then(|language| language.static_string());
    name.is_none_or(|name| name.starts_with("DW_LANG_C_plus_plus"))
}
