//! A function's parameters and value, as its compiler noted them, and the registers that hold them.
//!
//! In: DWARF, a function's address. Out: a [`Prototype`]. The registers follow from the types by the System V ABI (AMD64 supplement,
//! 3.2.3): integers and floats are numbered apart; a structure of up to 16 bytes takes what its halves are made of, if there is
//! enough of both; others lie on the stack; one that is returned in memory takes the first integer register for the place.
//! Invariant: PRO-1 from a type on whose way of passing is not known for certain, no parameter has a register.
//! Does not: know calling conventions but C's: units in other languages have no prototypes.

use gimli::{DwLang, Unit, UnitOffset};
use trapline_record::Svma;

use crate::debuginfo::{DebugInfo, Slice};
use crate::types::{Entry, MAX_CHAIN};

/// Registers that hold integers.
const GENERAL: u8 = 6;
/// Registers that hold floats.
const VECTOR: u8 = 8;

/// How a value is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// Nothing is returned.
    Void,
    /// An integer of 1, 2, 4 or 8 bytes.
    Integer {
        /// How wide.
        bytes: u8,
        /// With a sign.
        signed: bool,
    },
    /// A character of one byte.
    Char,
    /// True or false.
    Bool,
    /// A float of 4 or 8 bytes.
    Float(u8),
    /// An address.
    Pointer,
    /// The address of a character.
    Text,
    /// One of named numbers.
    Enumeration {
        /// How wide.
        bytes: u8,
        /// With a sign.
        signed: bool,
        /// Each with its value.
        names: Vec<(String, i128)>,
    },
    /// What fits into no register, or is no single value; what it is called.
    Other(String),
}

/// Where a parameter lies at the function's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterPlace {
    /// In the general register for arguments of this number, from 0 on.
    General(u8),
    /// In the vector register for arguments of this number.
    Vector(u8),
    /// In several registers, on the stack, or nobody knows.
    Elsewhere,
}

/// One parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredParameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// What it is.
    pub of: ValueType,
    /// Where.
    pub place: ParameterPlace,
}

/// What a function takes and returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prototype {
    /// In their order.
    pub parameters: Vec<DeclaredParameter>,
    /// What it returns.
    pub value: ValueType,
}

/// How a type is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passed {
    /// In so many general and vector registers, if all are free.
    Registers(u8, u8),
    /// By its address.
    Reference,
    /// On the stack.
    Memory,
    /// Nobody knows.
    Unknown,
}

/// What half of a structure is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Nothing,
    Vector,
    General,
}

/// Why a structure is in no registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Not {
    InRegisters,
    Known,
}

impl DebugInfo {
    /// What the function that begins at an address takes and returns. `None`: nothing is noted, or not in C's way.
    #[must_use]
    pub fn prototype(&self, function: Svma) -> Option<Prototype> {
        self.with_function(function, |unit, entry| self.noted(unit, entry)).ok()?
    }
    /// Calls with the entry of the function that begins at an address.
    pub(crate) fn with_function<T>(
        &self,
        function: Svma,
        found: impl FnOnce(&Unit<Slice>, &Entry<'_>) -> gimli::Result<Option<T>>,
    ) -> gimli::Result<Option<T>> {
        let lines = self.lines.as_ref();
        let Some(here) = lines.and_then(|lines| lines.find_dwarf_and_unit(function.0).skip_all_loads())
        else {
            return Ok(None);
        };
        let unit = here.unit;
        let mut entries = unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            if entry.tag() == gimli::DW_TAG_subprogram
                && self.dwarf.die_ranges(unit, entry)?.next()?.is_some_and(|range| range.begin == function.0)
            {
                return if is_c(unit)? { found(unit, &unit.entry(entry.offset())?) } else { Ok(None) };
            }
        }
        Ok(None)
    }
    fn noted(&self, unit: &Unit<Slice>, entry: &Entry<'_>) -> gimli::Result<Option<Prototype>> {
        let value = match self.returned(unit, entry)? {
            None => (ValueType::Void, Passed::Registers(0, 0)),
            Some(of) => (self.value_type(unit, of)?, self.passed(unit, of)?),
        };
        let parameters = self.parameters(unit, entry)?;
        let (mut general, mut vector) = (0, 0);
        let mut known = value.1 != Passed::Unknown;
        if matches!(value.1, Passed::Memory | Passed::Reference) && !is_x87(&value.0) {
            general = 1;
        }
        let mut noted = Vec::new();
        for (name, of) in parameters {
            let (meaning, passed) = (self.value_type(unit, of)?, self.passed(unit, of)?);
            known &= passed != Passed::Unknown;
            let (more_general, more_vector) = match passed {
                Passed::Registers(general, vector) => (general, vector),
                Passed::Reference => (1, 0),
                Passed::Memory | Passed::Unknown => (0, 0),
            };
            let fits = known && general + more_general <= GENERAL && vector + more_vector <= VECTOR;
            let place = match (passed, &meaning) {
                (Passed::Registers(..), ValueType::Other(_)) | (Passed::Memory | Passed::Unknown, _) => {
                    ParameterPlace::Elsewhere
                }
                (Passed::Registers(1, 0) | Passed::Reference, _) if fits => ParameterPlace::General(general),
                (Passed::Registers(0, 1), _) if fits => ParameterPlace::Vector(vector),
                _ => ParameterPlace::Elsewhere,
            };
            if fits {
                general += more_general;
                vector += more_vector;
            }
            let of = if passed == Passed::Reference { ValueType::Pointer } else { meaning };
            noted.push(DeclaredParameter { name, of, place });
        }
        Ok(Some(Prototype { parameters: noted, value: value.0 }))
    }
    /// Names and types of parameters; those of the source where the function is a copy of one.
    pub(crate) fn parameters(
        &self,
        unit: &Unit<Slice>,
        entry: &Entry<'_>,
    ) -> gimli::Result<Vec<(String, UnitOffset)>> {
        let source = reference(entry, gimli::DW_AT_abstract_origin)?.unwrap_or_else(|| entry.offset());
        let mut parameters = Vec::new();
        let mut tree = unit.entries_tree(Some(source))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() != gimli::DW_TAG_formal_parameter {
                continue;
            }
            let Some(of) = Self::type_of(entry)? else { return Err(gimli::Error::UnexpectedNull) };
            parameters.push((self.text(unit, entry, gimli::DW_AT_name)?.unwrap_or_default(), of));
        }
        Ok(parameters)
    }
    fn returned(&self, unit: &Unit<Slice>, entry: &Entry<'_>) -> gimli::Result<Option<UnitOffset>> {
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
    /// How a value of a type is meant.
    pub(crate) fn value_type(&self, unit: &Unit<Slice>, of: UnitOffset) -> gimli::Result<ValueType> {
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
                        let value = self.value_type(unit, of)?;
                        matches!(value, ValueType::Integer { signed: true, .. } | ValueType::Char)
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
    /// What a pointer leads to, if it is a number.
    fn value_type_of_base(&self, unit: &Unit<Slice>, of: UnitOffset) -> gimli::Result<Option<ValueType>> {
        let is_base = self.bare(unit, of)?.tag() == gimli::DW_TAG_base_type;
        if is_base { self.value_type(unit, of).map(Some) } else { Ok(None) }
    }
    /// `char` is a character; `signed char` and `unsigned char` are numbers.
    fn character(&self, unit: &Unit<Slice>, entry: &Entry<'_>) -> gimli::Result<ValueType> {
        let signed = self.text(unit, entry, gimli::DW_AT_name)?.is_some_and(|name| name == "signed char");
        let unsigned = self.text(unit, entry, gimli::DW_AT_name)?.is_some_and(|name| name == "unsigned char");
        let number = ValueType::Integer { bytes: 1, signed };
        Ok(if signed || unsigned { number } else { ValueType::Char })
    }
    /// `struct pair`, `long double`.
    pub(crate) fn called(&self, unit: &Unit<Slice>, entry: &Entry<'_>) -> gimli::Result<String> {
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
    fn passed(&self, unit: &Unit<Slice>, of: UnitOffset) -> gimli::Result<Passed> {
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        let record = matches!(
            entry.tag(),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
        );
        if record {
            match entry.attr_value(gimli::DW_AT_calling_convention)? {
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_reference)) => {
                    return Ok(Passed::Reference);
                }
                Some(gimli::AttributeValue::CallingConvention(gimli::DW_CC_pass_by_value)) => {}
                // Whether a class may be copied as it is decides, and is not noted.
                _ if is_cplus(unit)? => return Ok(Passed::Unknown),
                _ => {}
            }
            if bytes > 16 {
                return Ok(Passed::Memory);
            }
            if bytes == 0 {
                return Ok(Passed::Registers(0, 0));
            }
        }
        let mut halves = [Class::Nothing; 2];
        Ok(match self.classify(unit, of, 0, &mut halves, 0)? {
            Err(Not::InRegisters) => Passed::Memory,
            Err(Not::Known) => Passed::Unknown,
            Ok(()) if halves == [Class::Nothing; 2] => Passed::Unknown,
            Ok(()) => {
                let count = |class| halves.iter().filter(|half| **half == class).count() as u8;
                Passed::Registers(count(Class::General), count(Class::Vector))
            }
        })
    }
    /// What the halves are made of that a value of this type covers, `offset` bytes into them.
    fn classify(
        &self,
        unit: &Unit<Slice>,
        of: UnitOffset,
        offset: u64,
        halves: &mut [Class; 2],
        depth: u32,
    ) -> gimli::Result<Result<(), Not>> {
        if depth > MAX_CHAIN {
            return Ok(Err(Not::Known));
        }
        let entry = self.bare(unit, of)?;
        let bytes = self.size(unit, of)?;
        let class = match (entry.tag(), self.value_type(unit, of)?) {
            (_, ValueType::Float(_)) => Class::Vector,
            (_, ValueType::Other(_)) => match entry.tag() {
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                    for member in self.members(unit, entry.offset())? {
                        let inner =
                            self.classify(unit, member.of, offset + member.offset, halves, depth + 1)?;
                        if inner.is_err() {
                            return Ok(inner);
                        }
                    }
                    return Ok(Ok(()));
                }
                gimli::DW_TAG_array_type if entry.attr_value(gimli::DW_AT_GNU_vector)?.is_none() => {
                    return self.classify_array(unit, &entry, offset, halves, depth);
                }
                gimli::DW_TAG_base_type if self.called(unit, &entry)? == "long double" => {
                    return Ok(Err(Not::InRegisters));
                }
                _ => return Ok(Err(Not::Known)),
            },
            _ => Class::General,
        };
        if !offset.is_multiple_of(bytes.max(1)) {
            return Ok(Err(Not::InRegisters));
        }
        let Some(half) = halves.get_mut((offset / 8) as usize) else { return Ok(Err(Not::InRegisters)) };
        if *half != Class::General {
            *half = class;
        }
        Ok(Ok(()))
    }
    fn classify_array(
        &self,
        unit: &Unit<Slice>,
        array: &Entry<'_>,
        offset: u64,
        halves: &mut [Class; 2],
        depth: u32,
    ) -> gimli::Result<Result<(), Not>> {
        let Some(of) = Self::type_of(array)? else { return Ok(Err(Not::Known)) };
        let size = self.size(unit, of)?;
        let count: u64 = self.dimensions(unit, array.offset())?.iter().product();
        if size == 0 || count > 16 {
            return Ok(Err(if count > 16 { Not::InRegisters } else { Not::Known }));
        }
        for n in 0..count {
            let one = self.classify(unit, of, offset + n * size, halves, depth + 1)?;
            if one.is_err() {
                return Ok(one);
            }
        }
        Ok(Ok(()))
    }
}

/// Returned on the stack of the floating-point unit, not in memory.
fn is_x87(value: &ValueType) -> bool {
    matches!(value, ValueType::Other(name) if name == "long double")
}

fn reference(entry: &Entry<'_>, which: gimli::DwAt) -> gimli::Result<Option<UnitOffset>> {
    Ok(match entry.attr_value(which)? {
        Some(gimli::AttributeValue::UnitRef(of)) => Some(of),
        Some(_) => return Err(gimli::Error::UnexpectedNull),
        None => None,
    })
}

fn language(unit: &Unit<Slice>) -> gimli::Result<Option<DwLang>> {
    let mut entries = unit.entries();
    let Some((_, root)) = entries.next_dfs()? else { return Ok(None) };
    Ok(match root.attr_value(gimli::DW_AT_language)? {
        Some(gimli::AttributeValue::Language(language)) => Some(language),
        _ => None,
    })
}

/// Whether its functions are called as C's are.
fn is_c(unit: &Unit<Slice>) -> gimli::Result<bool> {
    let name = language(unit)?.and_then(|language| language.static_string());
    let c = ["DW_LANG_C89", "DW_LANG_C", "DW_LANG_C99", "DW_LANG_C11", "DW_LANG_C17", "DW_LANG_ObjC"];
    Ok(name.is_some_and(|name| c.contains(&name) || name.starts_with("DW_LANG_C_plus_plus")))
}

fn is_cplus(unit: &Unit<Slice>) -> gimli::Result<bool> {
    let name = language(unit)?.and_then(|language| language.static_string());
    Ok(name.is_none_or(|name| name.starts_with("DW_LANG_C_plus_plus")))
}
