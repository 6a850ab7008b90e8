//! Functions that exist only as inlined copies, so that a message can say so.
//!
//! In: `.debug_info` of the file or its debug file. Out: how many inlined copies of a name there are. It
//! walks all units, so it is called only after nothing matched.
//! Does not: locate the copies.

use crate::debugdata;
use crate::elf::Elf;
use crate::types::is_scope;
use gimli::{AttributeValue, DebugInfoOffset, EndianSlice, LittleEndian, UnitSectionOffset};
use std::borrow::Cow;
use std::collections::HashSet;

/// Maximum size in bytes of debug information that is searched.
const MAX_INFO: u64 = 512 << 20;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Number of inlined copies of functions with the name, qualified name or linkage name `wanted`.
pub(crate) fn copies(elf: &Elf, wanted: &str) -> u32 {
    if elf.section(".debug_info").is_none_or(|s| s.size > MAX_INFO) {
        return 0;
    }
    let load = |id: gimli::SectionId| Ok::<Cow<'_, [u8]>, gimli::Error>(debugdata::section(elf, id.name()));
    let Ok(sections) = gimli::DwarfSections::load(load) else { return 0 };
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
    let plain = wanted.split_once('(').map_or(wanted, |(name, _)| name);
    let path: Vec<&str> = plain.split("::").collect();
    let mut origins = HashSet::new();
    // A malformed unit ends the walk; the message is then less helpful, no worse.
    let _ = find_origins(&dwarf, wanted, &path, &mut origins);
    if origins.is_empty() {
        return 0;
    }
    let mut count = 0;
    let _ = count_copies(&dwarf, &origins, &mut count);
    count
}

fn find_origins(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    raw: &str,
    path: &[&str],
    origins: &mut HashSet<DebugInfoOffset>,
) -> gimli::Result<()> {
    let Some((last, within)) = path.split_last() else { return Ok(()) };
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        let mut depth = 0;
        let mut scopes: Vec<(isize, String)> = Vec::new();
        while let Some((delta, entry)) = entries.next_dfs()? {
            depth += delta;
            scopes.retain(|(of, _)| *of < depth);
            if is_scope(entry.tag()) || entry.tag() == gimli::DW_TAG_enumeration_type {
                let name = entry.attr_value(gimli::DW_AT_name)?;
                let name = name.and_then(|name| dwarf.attr_string(&unit, name).ok());
                let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
                scopes.push((depth, name.unwrap_or_default()));
                continue;
            }
            if entry.tag() != gimli::DW_TAG_subprogram {
                continue;
            }
            let is = |attribute, text: &str| -> gimli::Result<bool> {
                let Some(value) = entry.attr_value(attribute)? else { return Ok(false) };
                Ok(dwarf.attr_string(&unit, value).is_ok_and(|name| name.slice() == text.as_bytes()))
            };
            if is(gimli::DW_AT_name, last)? && lies_in(&scopes, within) || is(gimli::DW_AT_linkage_name, raw)?
            {
                origins.extend(entry.offset().to_debug_info_offset(&unit.header));
            } else if let Some(AttributeValue::UnitRef(of)) = entry.attr_value(gimli::DW_AT_specification)? {
                // A member function: the abstract instance refers to the declaration that has the name.
                if of.to_debug_info_offset(&unit.header).is_some_and(|of| origins.contains(&of)) {
                    origins.extend(entry.offset().to_debug_info_offset(&unit.header));
                }
            }
        }
    }
    Ok(())
}

/// Whether these scopes end in those names. A scope that the compiler named (`{impl#0}` in Rust) matches any
/// name.
fn lies_in(scopes: &[(isize, String)], within: &[&str]) -> bool {
    let scopes = scopes.iter().rev().map(|(_, name)| name.as_str());
    let mut scopes = scopes.filter(|name| !name.is_empty());
    within
        .iter()
        .rev()
        .all(|wanted| scopes.next().is_some_and(|name| name == *wanted || name.starts_with('{')))
}

fn count_copies(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    origins: &HashSet<DebugInfoOffset>,
    count: &mut u32,
) -> gimli::Result<()> {
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        while let Some((_, entry)) = entries.next_dfs()? {
            if entry.tag() != gimli::DW_TAG_inlined_subroutine {
                continue;
            }
            let origin = match entry.attr_value(gimli::DW_AT_abstract_origin)? {
                Some(AttributeValue::UnitRef(of)) => match of.to_unit_section_offset(&unit) {
                    UnitSectionOffset::DebugInfoOffset(of) => Some(of),
                    UnitSectionOffset::DebugTypesOffset(_) => None,
                },
                Some(AttributeValue::DebugInfoRef(of)) => Some(of),
                _ => None,
            };
            *count += u32::from(origin.is_some_and(|of| origins.contains(&of)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::lies_in;

    #[test]
    fn a_name_in_another_scope_is_another_name() {
        let scopes = |names: &[&str]| names.iter().map(|name| (0, (*name).to_owned())).collect::<Vec<_>>();
        for (names, within, fits) in [
            (&["a", "B"][..], &["a", "B"][..], true),
            (&["a", "B"], &["B"], true),
            (&["a", "B"], &[], true),
            (&["a", "", "B"], &["a", "B"], true),
            (&["a", "{impl#0}"], &["a", "B"], true),
            (&["a", "B"], &["c", "B"], false),
            (&["B"], &["a", "B"], false),
            (&[], &["B"], false),
        ] {
            assert_eq!(lies_in(&scopes(names), within), fits, "{names:?} {within:?}");
        }
    }
}
