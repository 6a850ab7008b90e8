//! Types, as DWARF describes them.
//!
//! In: a type's entry. Out: the type without typedefs, its size, members, dimensions, names. Invariants: IMG-3: types
//! that contain themselves end each walk. Does not: know how values are passed (`prototype`).

use gimli::AttributeValue;

use crate::debuginfo::{DebugInfo, Encoding};
use crate::entries::{At, Entry, MAX_CHAIN};

/// Maximum number of members or names that are read in one entry; more are forged.
const MAX_CHILDREN: usize = 10_000;

/// A member of a structure or union.
#[derive(Clone, Debug)]
pub(crate) struct Member<'u> {
    /// Its name; `None` for an anonymous member, or a base class.
    pub(crate) name: Option<String>,
    pub(crate) offset: u64,
    pub(crate) of: At<'u>,
    /// The lowest bit of a bit-field in its integer, and how many there are: 0 if that is not known.
    pub(crate) bits: Option<(u32, u32)>,
}

/// A field that was looked for: its offset, its type, and which bits of it, if it is a bit-field.
pub(crate) type FoundField<'u> = (u64, At<'u>, Option<(u32, u32)>);

impl DebugInfo {
    /// A type without typedefs and qualifiers; if a type unit has it, as it is there.
    pub(crate) fn bare<'u>(&'u self, mut of: At<'u>) -> gimli::Result<Entry<'u>> {
        for _ in 0..MAX_CHAIN {
            let entry = of.entry()?;
            let wraps = matches!(
                entry.tag(),
                gimli::DW_TAG_typedef
                    | gimli::DW_TAG_const_type
                    | gimli::DW_TAG_volatile_type
                    | gimli::DW_TAG_atomic_type
                    | gimli::DW_TAG_restrict_type
            );
            match self.type_of(&entry)?.filter(|_| wraps) {
                Some(next) => of = next,
                None => return self.definition(entry),
            }
        }
        Err(gimli::Error::UnexpectedNull)
    }
    /// The definition of a type that a type unit has; else the type as it is.
    pub(crate) fn definition<'u>(&'u self, entry: Entry<'u>) -> gimli::Result<Entry<'u>> {
        self.reference(&entry, gimli::DW_AT_signature)?.map_or(Ok(entry), At::entry)
    }
    pub(crate) fn dimensions(&self, array: &Entry<'_>) -> gimli::Result<Vec<u64>> {
        let mut lens = Vec::new();
        for entry in array.children()? {
            if entry.tag() == gimli::DW_TAG_subrange_type {
                let bound = entry.number(gimli::DW_AT_upper_bound)?.map(|bound| bound.saturating_add(1));
                lens.push(entry.number(gimli::DW_AT_count)?.or(bound).unwrap_or(0));
            }
        }
        Ok(lens)
    }
    /// Size and encoding of a type.
    pub(crate) fn scalar(&self, of: At<'_>) -> gimli::Result<(u64, Encoding)> {
        let entry = self.bare(of)?;
        let size = entry.number(gimli::DW_AT_byte_size)?;
        let encoding = match entry.tag() {
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type => {
                return Ok((size.unwrap_or(8), Encoding::Pointer));
            }
            gimli::DW_TAG_array_type => {
                let Some(element) = self.type_of(&entry)? else {
                    return Ok((size.unwrap_or(0), Encoding::Unsigned));
                };
                let all: u64 = self.dimensions(&entry)?.iter().product();
                // An array of itself is forged. If an element is an array, `bare` goes one level down.
                let one = self.bare(element)?.number(gimli::DW_AT_byte_size)?.unwrap_or(0);
                return Ok((size.unwrap_or(all.saturating_mul(one)), Encoding::Unsigned));
            }
            _ => match entry.value(gimli::DW_AT_encoding)? {
                Some(AttributeValue::Encoding(encoding)) => meaning(encoding),
                _ => Encoding::Unsigned,
            },
        };
        Ok((size.unwrap_or(0), encoding))
    }
    /// Members in order, including base classes.
    pub(crate) fn members<'u>(&'u self, of: &Entry<'u>) -> gimli::Result<Vec<Member<'u>>> {
        let mut members = Vec::new();
        for entry in of.parts()?.into_iter().take(MAX_CHILDREN) {
            let (Some(of), Some(offset)) = (self.type_of(&entry)?, member_offset(&entry)?) else { continue };
            let (offset, bits) = match entry.number(gimli::DW_AT_bit_size)? {
                Some(count) => {
                    let (offset, bits) = bits_of(&entry, self.size(of)?, offset, count)?;
                    (offset, bits.or(Some((0, 0))))
                }
                None => (offset, None),
            };
            members.push(Member { name: entry.name()?, offset, of, bits });
        }
        Ok(members)
    }
    /// A field of a structure, also of one in an anonymous member or a base class. `known` gets the names that were
    /// passed, `budget` is how many members may be looked at.
    pub(crate) fn find_field<'u>(
        &'u self,
        of: &Entry<'u>,
        field: &str,
        known: &mut Vec<String>,
        (depth, budget): (u32, &mut u32),
    ) -> gimli::Result<Option<FoundField<'u>>> {
        if depth > MAX_CHAIN {
            return Ok(None);
        }
        for member in self.members(of)? {
            let Some(left) = budget.checked_sub(1) else { return Ok(None) };
            *budget = left;
            match member.name {
                Some(name) if name == field => return Ok(Some((member.offset, member.of, member.bits))),
                Some(name) => known.push(name),
                None => {
                    let inner = self.bare(member.of)?;
                    if let Some((inside, of, bits)) =
                        self.find_field(&inner, field, known, (depth + 1, budget))?
                    {
                        return Ok(Some((member.offset.saturating_add(inside), of, bits)));
                    }
                }
            }
        }
        Ok(None)
    }
    /// The names of an enumeration's values.
    pub(crate) fn enumerators(&self, of: &Entry<'_>) -> gimli::Result<Vec<(String, i128)>> {
        let mut names = Vec::new();
        for entry in of.children()?.into_iter().take(MAX_CHILDREN) {
            let Some(value) = entry.value(gimli::DW_AT_const_value)? else { continue };
            let signed = value.sdata_value().map(i128::from);
            let value = signed.or_else(|| value.udata_value().map(i128::from));
            if let (Some(name), Some(value)) = (entry.name()?, value) {
                names.push((name, value));
            }
        }
        Ok(names)
    }
    /// Size of a type in bytes.
    pub(crate) fn size(&self, of: At<'_>) -> gimli::Result<u64> {
        Ok(self.scalar(of)?.0)
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

pub(crate) fn member_offset(entry: &Entry<'_>) -> gimli::Result<Option<u64>> {
    if let Some(bits) = entry.number(gimli::DW_AT_data_bit_offset)? {
        return Ok(Some(bits / 8));
    }
    Ok(match entry.value(gimli::DW_AT_data_member_location)? {
        Some(value) => value.udata_value(),
        // Members of a union begin where the union does.
        None => Some(0),
    })
}

/// The unit that holds a bit-field, and its bits in it. In a packed structure a field may go beyond its unit: then its unit
/// begins at the field's first byte. No bits: no unit holds it. Older DWARF counts from the unit's highest bit.
pub(crate) fn bits_of(
    entry: &Entry<'_>,
    unit: u64,
    offset: u64,
    count: u64,
) -> gimli::Result<(u64, Option<(u32, u32)>)> {
    let bits = unit.saturating_mul(8);
    let nothing = (offset, None);
    if bits == 0 || count > bits {
        return Ok(nothing);
    }
    let (base, from) = match entry.number(gimli::DW_AT_data_bit_offset)? {
        Some(at) if at % bits + count > bits => (at / 8, at % 8),
        Some(at) => (at / bits * unit, at % bits),
        None => match entry.number(gimli::DW_AT_bit_offset)? {
            Some(above) => (offset, bits.saturating_sub(above.saturating_add(count))),
            None => (offset, 0),
        },
    };
    Ok(match (u32::try_from(from), u32::try_from(count)) {
        (Ok(low), Ok(count)) if from.saturating_add(count.into()) <= bits => (base, Some((low, count))),
        _ => nothing,
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
