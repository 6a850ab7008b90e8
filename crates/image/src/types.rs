//! Types, as DWARF describes them.
//!
//! In: a unit and the offset of a type's entry in it. Out: the type without typedefs, its size, members,
//! dimensions, names. Invariants: IMG-3: types that contain themselves end each walk.
//! Does not: follow references to other units.

use gimli::{AttributeValue, DebuggingInformationEntry, Reader as _, UnitOffset};

use crate::debuginfo::{DebugInfo, Encoding, Slice, UnitOf};

/// Maximum length of a chain of typedefs and qualifiers; longer ones are forged.
pub(crate) const MAX_CHAIN: u32 = 64;

/// Maximum number of members, parameters or names that are read in one entry; more are forged.
const MAX_CHILDREN: usize = 10_000;

pub(crate) type Entry<'a> = DebuggingInformationEntry<'a, 'a, Slice>;

/// A member of a structure or union.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its name; `None` for an anonymous member, or a base class.
    pub(crate) name: Option<String>,
    pub(crate) offset: u64,
    pub(crate) of: UnitOffset,
    /// Whether it is a bit-field, which does not begin and end at byte boundaries.
    pub(crate) is_bits: bool,
}

impl DebugInfo {
    /// A type without typedefs and qualifiers.
    pub(crate) fn bare<'u>(&self, unit: UnitOf<'u>, mut of: UnitOffset) -> gimli::Result<Entry<'u>> {
        for _ in 0..MAX_CHAIN {
            let entry = unit.unit.entry(of)?;
            let wraps = matches!(
                entry.tag(),
                gimli::DW_TAG_typedef
                    | gimli::DW_TAG_const_type
                    | gimli::DW_TAG_volatile_type
                    | gimli::DW_TAG_atomic_type
                    | gimli::DW_TAG_restrict_type
            );
            match entry.attr_value(gimli::DW_AT_type)? {
                Some(AttributeValue::UnitRef(next)) if wraps => of = next,
                _ => return Ok(entry),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    pub(crate) fn dimensions(&self, unit: UnitOf<'_>, array: UnitOffset) -> gimli::Result<Vec<u64>> {
        let mut tree = unit.entries_tree(Some(array))?;
        let mut children = tree.root()?.children();
        let mut lens = Vec::new();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let number =
                |which| entry.attr_value(which).map(|value| value.and_then(|value| value.udata_value()));
            if entry.tag() == gimli::DW_TAG_subrange_type {
                let bound = number(gimli::DW_AT_upper_bound)?.map(|bound| bound.saturating_add(1));
                lens.push(number(gimli::DW_AT_count)?.or(bound).unwrap_or(0));
            }
        }
        Ok(lens)
    }
    /// Size and encoding of a type.
    pub(crate) fn scalar(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<(u64, Encoding)> {
        let entry = self.bare(unit, of)?;
        let size = entry.attr_value(gimli::DW_AT_byte_size)?.and_then(|size| size.udata_value());
        let encoding = match entry.tag() {
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type => {
                return Ok((size.unwrap_or(8), Encoding::Pointer));
            }
            gimli::DW_TAG_array_type => {
                let Some(AttributeValue::UnitRef(element)) = entry.attr_value(gimli::DW_AT_type)? else {
                    return Ok((size.unwrap_or(0), Encoding::Unsigned));
                };
                let all: u64 = self.dimensions(unit, entry.offset())?.iter().product();
                // An array of itself is forged. If an element is an array, `bare` goes one level down.
                let one = self.bare(unit, element)?.attr_value(gimli::DW_AT_byte_size)?;
                let one = one.and_then(|size| size.udata_value()).unwrap_or(0);
                return Ok((size.unwrap_or(all.saturating_mul(one)), Encoding::Unsigned));
            }
            _ => match entry.attr_value(gimli::DW_AT_encoding)? {
                Some(AttributeValue::Encoding(encoding)) => meaning(encoding),
                _ => Encoding::Unsigned,
            },
        };
        Ok((size.unwrap_or(0), encoding))
    }
    pub(crate) fn text(
        &self,
        unit: UnitOf<'_>,
        entry: &Entry<'_>,
        which: gimli::DwAt,
    ) -> gimli::Result<Option<String>> {
        let Some(value) = entry.attr_value(which)? else { return Ok(None) };
        let text = unit.attr_string(value)?;
        Ok(text.to_string().ok().map(std::borrow::Cow::into_owned))
    }
    /// The type of an entry, or the type that it refers to.
    pub(crate) fn type_of(entry: &Entry<'_>) -> gimli::Result<Option<UnitOffset>> {
        Ok(match entry.attr_value(gimli::DW_AT_type)? {
            Some(AttributeValue::UnitRef(of)) => Some(of),
            _ => None,
        })
    }
    /// Members in order, including base classes.
    pub(crate) fn members(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Vec<Member>> {
        let mut members = Vec::new();
        let mut tree = unit.entries_tree(Some(of))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let is_static = entry.attr_value(gimli::DW_AT_external)?.is_some();
            if !matches!(entry.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance) || is_static {
                continue;
            }
            let (Some(of), Some(offset)) = (Self::type_of(entry)?, member_offset(entry)?) else { continue };
            let is_bits = entry.attr_value(gimli::DW_AT_bit_size)?.is_some();
            members.push(Member { name: self.text(unit, entry, gimli::DW_AT_name)?, offset, of, is_bits });
            if members.len() == MAX_CHILDREN {
                break;
            }
        }
        Ok(members)
    }
    /// The names of an enumeration's values.
    pub(crate) fn enumerators(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<Vec<(String, i128)>> {
        let mut names = Vec::new();
        let mut tree = unit.entries_tree(Some(of))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let Some(value) = entry.attr_value(gimli::DW_AT_const_value)? else { continue };
            let signed = value.sdata_value().map(i128::from);
            let value = signed.or_else(|| value.udata_value().map(i128::from));
            if let (Some(name), Some(value)) = (self.text(unit, entry, gimli::DW_AT_name)?, value) {
                names.push((name, value));
            }
            if names.len() == MAX_CHILDREN {
                break;
            }
        }
        Ok(names)
    }
    /// Size of a type in bytes.
    pub(crate) fn size(&self, unit: UnitOf<'_>, of: UnitOffset) -> gimli::Result<u64> {
        Ok(self.scalar(unit, of)?.0)
    }
}

/// Whether an entry is a type or namespace in which names are declared.
pub(crate) fn is_scope(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
    )
}

/// The entry of the same unit that an attribute refers to.
///
/// # Errors
/// The attribute is no such reference.
pub(crate) fn reference(entry: &Entry<'_>, which: gimli::DwAt) -> gimli::Result<Option<UnitOffset>> {
    Ok(match entry.attr_value(which)? {
        Some(AttributeValue::UnitRef(of)) => Some(of),
        Some(_) => return Err(gimli::Error::UnexpectedNull),
        None => None,
    })
}

pub(crate) fn member_offset(entry: &Entry<'_>) -> gimli::Result<Option<u64>> {
    if let Some(bits) = entry.attr_value(gimli::DW_AT_data_bit_offset)?.and_then(|bits| bits.udata_value()) {
        return Ok(Some(bits / 8));
    }
    Ok(match entry.attr_value(gimli::DW_AT_data_member_location)? {
        Some(value) => value.udata_value(),
        // Members of a union begin where the union does.
        None => Some(0),
    })
}

const fn meaning(encoding: gimli::DwAte) -> Encoding {
    match encoding {
        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => Encoding::Signed,
        gimli::DW_ATE_float => Encoding::Float,
        gimli::DW_ATE_boolean => Encoding::Bool,
        gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF => Encoding::Char,
        gimli::DW_ATE_address => Encoding::Pointer,
        _ => Encoding::Unsigned,
    }
}
