//! Prototypes from DWARF.
//!
//! In: DWARF, a function's address. Out: a [`Prototype`].
//! Does not: know units in languages other than C and C++, since their functions are called differently.

use std::collections::HashSet;

use gimli::{DwLang, UnitOffset};
use trapline_record::Svma;

use super::entry::corrected;
use super::passing::{Components, Passage, Passed, passed, places};
use super::{Declared, Prototype, ValueType, passing_aarch64};
use crate::debuginfo::{DebugInfo, UnitOf};
use crate::types::{Entry, MAX_CHAIN, reference};

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
        self.with_function(function, |unit, entry| self.noted(unit, entry, (function.0, false))).ok()?
    }
    /// The same for a copy of a function that the compiler made for some callers (`.constprop`, `.isra`, `.part`).
    /// Its parameters are where their locations are at the entry, or unknown; and so is the value.
    #[must_use]
    pub fn prototype_of_copy(&self, function: Svma) -> Option<Prototype> {
        if !self.is_x86_64 {
            return None;
        }
        self.with_function(function, |unit, entry| self.noted(unit, entry, (function.0, true))).ok()?
    }
    /// Calls `found` with the entry of the function that begins at an address.
    pub(crate) fn with_function<T>(
        &self,
        function: Svma,
        found: impl FnOnce(UnitOf<'_>, &Entry<'_>) -> gimli::Result<Option<T>>,
    ) -> gimli::Result<Option<T>> {
        let Some(unit) = self.unit_at(function) else { return Ok(None) };
        let mut entries = unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            if entry.tag() == gimli::DW_TAG_subprogram
                && unit.die_ranges(entry)?.next()?.is_some_and(|range| range.begin == function.0)
            {
                return if is_c(unit)? { found(unit, &unit.entry(entry.offset())?) } else { Ok(None) };
            }
        }
        Ok(None)
    }
    fn noted(
        &self,
        unit: UnitOf<'_>,
        entry: &Entry<'_>,
        at: (u64, bool),
    ) -> gimli::Result<Option<Prototype>> {
        let value = match self.returned(unit, entry)? {
            None => Passage::VOID,
            Some(of) => self.passage(unit, of)?,
        };
        let mut parameters = Vec::new();
        let declared = self.parameters(unit, entry)?;
        for one in &declared {
            parameters.push((one.name.clone(), self.passage(unit, one.of)?));
        }
        if !self.is_x86_64 {
            return Ok(Some(passing_aarch64::places(value, parameters)));
        }
        let passed: Vec<Passed> = parameters.iter().map(|(_, passage)| passage.passed).collect();
        let by_abi = places(value, parameters, Some(8));
        let compiled = self.compiled(unit, entry, &declared, at)?;
        Ok(Some(corrected(by_abi, &passed, &compiled)))
    }
    /// The parameters. If the function is a copy, those of its source, without the hidden ones that this copy
    /// does not get.
    pub(crate) fn parameters(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<Vec<Declared>> {
        let origin = reference(entry, gimli::DW_AT_abstract_origin)?;
        let source = origin.unwrap_or_else(|| entry.offset());
        let own = origin.map(|_| copied(unit, entry)).transpose()?;
        let mut parameters = Vec::new();
        let mut tree = unit.entries_tree(Some(source))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() != gimli::DW_TAG_formal_parameter {
                continue;
            }
            let Some(of) = Self::type_of(entry)? else { return Err(gimli::Error::UnexpectedNull) };
            let name = self.text(unit, entry, gimli::DW_AT_name)?.unwrap_or_default();
            let is_hidden = HIDDEN.contains(&&*name) && entry.attr_value(gimli::DW_AT_artificial)?.is_some();
            if is_hidden && own.as_ref().is_some_and(|own| !own.contains(&entry.offset())) {
                continue;
            }
            parameters.push(Declared { at: entry.offset(), name, of });
        }
        Ok(parameters)
    }
    /// Whether a function, its source or its declaration has an attribute.
    pub(super) fn has_flag(
        &self,
        unit: UnitOf<'_>,
        entry: &Entry<'_>,
        which: gimli::DwAt,
    ) -> gimli::Result<bool> {
        let mut at = entry.offset();
        for _ in 0..MAX_CHAIN {
            let entry = unit.entry(at)?;
            if entry.attr_value(which)?.is_some() {
                return Ok(true);
            }
            let origin = reference(&entry, gimli::DW_AT_abstract_origin)?;
            match origin.or(reference(&entry, gimli::DW_AT_specification)?) {
                Some(next) => at = next,
                None => return Ok(false),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    fn returned(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<Option<UnitOffset>> {
        let mut at = entry.offset();
        for _ in 0..MAX_CHAIN {
            let entry = unit.entry(at)?;
            if let Some(of) = Self::type_of(&entry)? {
                return Ok(Some(of));
            }
            let origin = reference(&entry, gimli::DW_AT_abstract_origin)?;
            match origin.or(reference(&entry, gimli::DW_AT_specification)?) {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    /// How to show a value of a type.
    pub(crate) fn value_type(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<ValueType> {
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        let narrow = u8::try_from(bytes).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8));
        let encoding = match entry.attr_value(gimli::DW_AT_encoding)? {
            Some(gimli::AttributeValue::Encoding(encoding)) => Some(encoding),
            _ => None,
        };
        let signed = matches!(encoding, Some(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char));
        Ok(match (entry.tag(), narrow) {
            (gimli::DW_TAG_pointer_type, _) => {
                let to = Self::type_of(&entry)?.map(|to| self.value_type_of_base(unit, to)).transpose()?;
                if to == Some(Some(ValueType::Char)) { ValueType::Text } else { ValueType::Pointer }
            }
            (gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type, _) => ValueType::Pointer,
            (gimli::DW_TAG_enumeration_type, Some(bytes)) => {
                let names = self.enumerators(unit, entry.offset())?;
                let below = match Self::type_of(&entry)? {
                    Some(of) => {
                        let value = self.value_type_of_base(unit, of)?;
                        matches!(value, Some(ValueType::Integer { signed: true, .. } | ValueType::Char))
                    }
                    None => names.iter().any(|(_, value)| *value < 0),
                };
                ValueType::Enumeration { bytes, signed: below, names }
            }
            (gimli::DW_TAG_base_type, Some(bytes)) => match encoding {
                Some(gimli::DW_ATE_float) if bytes >= 4 => ValueType::Float(bytes),
                Some(gimli::DW_ATE_boolean) => ValueType::Bool,
                Some(gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char) => {
                    self.character(unit, &entry)?
                }
                Some(gimli::DW_ATE_signed | gimli::DW_ATE_unsigned | gimli::DW_ATE_UTF) => {
                    ValueType::Integer { bytes, signed }
                }
                _ => ValueType::Other(self.called(unit, &entry)?),
            },
            _ => ValueType::Other(self.called(unit, &entry)?),
        })
    }
    /// The type that a pointer points to, if it is a number.
    fn value_type_of_base(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Option<ValueType>> {
        let is_base = self.bare(unit, of)?.tag() == gimli::DW_TAG_base_type;
        if is_base { self.value_type(unit, of).map(Some) } else { Ok(None) }
    }
    /// `char` is a character; `signed char` and `unsigned char` are numbers.
    fn character(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<ValueType> {
        let signed = self.text(unit, entry, gimli::DW_AT_name)?.is_some_and(|name| name == "signed char");
        let unsigned = self.text(unit, entry, gimli::DW_AT_name)?.is_some_and(|name| name == "unsigned char");
        let number = ValueType::Integer { bytes: 1, signed };
        Ok(if signed || unsigned { number } else { ValueType::Char })
    }
    /// `struct pair`, `long double`.
    pub(crate) fn called(&self, unit: UnitOf<'_>, entry: &Entry<'_>) -> gimli::Result<String> {
        let word = match entry.tag() {
            gimli::DW_TAG_structure_type => "struct",
            gimli::DW_TAG_class_type => "class",
            gimli::DW_TAG_union_type => "union",
            gimli::DW_TAG_array_type => "array",
            gimli::DW_TAG_subroutine_type => "function",
            _ => "",
        };
        let name = self.text(unit, entry, gimli::DW_AT_name)?.unwrap_or_default();
        Ok([word, &name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
    }
    /// How a value of a type is passed, and what it is.
    fn passage(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Passage> {
        let (meaning, passed) = (self.value_type(unit, of)?, self.passed(unit, of)?);
        let layout = match &meaning {
            ValueType::Other(_) => self.layout(unit, of)?,
            _ => None,
        };
        let bytes = if matches!(meaning, ValueType::Void) { 0 } else { self.size(unit, of)? };
        Ok(Passage { of: meaning, passed, layout, aligned: self.is_aligned(unit, of, DEEPEST)?, bytes })
    }
    /// Whether a value of a type begins at a multiple of 16 bytes or more, as far as its parts tell; what is too deep
    /// to look at might.
    fn is_aligned(&self, unit: UnitOf<'_>, of: UnitOffset, deep: u32) -> gimli::Result<bool> {
        let Some(deep) = deep.checked_sub(1) else { return Ok(true) };
        let says_so =
            |entry: &Entry<'_>| gimli::Result::Ok(entry.attr_value(gimli::DW_AT_alignment)?.is_some());
        let (entry, named) = (self.bare(unit, of)?, unit.entry(of)?);
        if says_so(&entry)? || says_so(&named)? {
            return Ok(true);
        }
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type => self.size(unit, of)? == 16,
            gimli::DW_TAG_array_type if entry.attr_value(gimli::DW_AT_GNU_vector)?.is_some() => true,
            gimli::DW_TAG_array_type => match Self::type_of(&entry)? {
                Some(of) => self.is_aligned(unit, of, deep)?,
                None => false,
            },
            _ if is_record(&entry) => {
                let mut tree = unit.entries_tree(Some(entry.offset()))?;
                let mut children = tree.root()?.children();
                while let Some(child) = children.next()? {
                    let member = child.entry();
                    let is_member = matches!(member.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance);
                    if !is_member || member.attr_value(gimli::DW_AT_external)?.is_some() {
                        continue;
                    }
                    let of = Self::type_of(member)?;
                    if says_so(member)?
                        || of.is_some_and(|of| self.is_aligned(unit, of, deep).unwrap_or(true))
                    {
                        return Ok(true);
                    }
                }
                false
            }
            _ => false,
        })
    }
    fn passed(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Passed> {
        let entry = self.bare(unit, of)?;
        if is_record(&entry) {
            match entry.attr_value(gimli::DW_AT_calling_convention)? {
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_reference)) => {
                    return Ok(Passed::Reference);
                }
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_value)) => {}
                // Whether a class may be copied as it is decides, and is not noted.
                _ if is_cplus(unit)? => return Ok(Passed::Unknown),
                _ => {}
            }
        }
        let shapes = &mut |of| self.shape(unit, of);
        if self.is_x86_64 { passed(of, shapes) } else { passing_aarch64::passed(of, shapes) }
    }
    /// The components of a type.
    fn shape(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Components<UnitOffset>> {
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        Ok(match (entry.tag(), self.value_type(unit, of)?) {
            (_, ValueType::Float(_)) => Components::Vector(bytes),
            (_, ValueType::Other(_)) if is_record(&entry) => {
                let members = self.members(unit, entry.offset())?;
                Components::Members(bytes, members.iter().map(|member| (member.offset, member.of)).collect())
            }
            (gimli::DW_TAG_array_type, _) if entry.attr_value(gimli::DW_AT_GNU_vector)?.is_none() => {
                let Some(of) = Self::type_of(&entry)? else { return Ok(Components::Unknown) };
                let count = self.dimensions(unit, entry.offset())?.iter().product();
                Components::Array { of, bytes: self.size(unit, of)?, count }
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

/// Those parameters of the source that a copy has.
fn copied(unit: UnitOf<'_>, copy: &Entry<'_>) -> gimli::Result<HashSet<UnitOffset>> {
    let mut own = HashSet::new();
    let mut tree = unit.entries_tree(Some(copy.offset()))?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        if child.entry().tag() == gimli::DW_TAG_formal_parameter {
            own.extend(reference(child.entry(), gimli::DW_AT_abstract_origin)?);
        }
    }
    Ok(own)
}

fn is_record(entry: &Entry<'_>) -> bool {
    let records = [gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type, gimli::DW_TAG_union_type];
    records.contains(&entry.tag())
}

fn language(unit: UnitOf<'_>) -> gimli::Result<Option<DwLang>> {
    let mut entries = unit.entries();
    let Some((_, root)) = entries.next_dfs()? else { return Ok(None) };
    Ok(match root.attr_value(gimli::DW_AT_language)? {
        Some(gimli::AttributeValue::Language(language)) => Some(language),
        _ => None,
    })
}

/// Whether the unit's functions are called like C functions.
fn is_c(unit: UnitOf<'_>) -> gimli::Result<bool> {
    let name = language(unit)?.and_then(|language| language.static_string());
    let c = ["DW_LANG_C89", "DW_LANG_C", "DW_LANG_C99", "DW_LANG_C11", "DW_LANG_C17", "DW_LANG_ObjC"];
    Ok(name.is_some_and(|name| c.contains(&name) || name.starts_with("DW_LANG_C_plus_plus")))
}

fn is_cplus(unit: UnitOf<'_>) -> gimli::Result<bool> {
    let name = language(unit)?.and_then(|language| language.static_string());
    Ok(name.is_none_or(|name| name.starts_with("DW_LANG_C_plus_plus")))
}
