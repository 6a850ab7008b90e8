//! Split debug information: what a unit leaves to a `.dwo` file, or to the `.dwp` file that packs these.
//!
//! In: DWARF with skeleton units; a way to the files ([`SplitFiles`]). Out: for each unit, the sections and the unit that have
//! its entries. Invariant: PRO-5 entries are taken from the file whose id the skeleton has, or from none.
//!
//! | step | what |
//! |---|---|
//! | S1 | A unit with an id is a skeleton: it has addresses and lines, and names its file |
//! | S2 | The package is asked for the id. Without a package, or without that id in it, the file is looked for |
//! | S3 | The first unit of what was found must have the same id. Else nothing was found |
//! | S4 | It takes the bases of addresses from the skeleton |
//!
//! If nothing is found, the skeleton itself is the unit. It has no functions and types, so these are unknown.
//! Debug information that several files share (`dwz -m`) is looked for in the same way: by the name and build id that a file
//! has of it. Does not: open files.

use std::cell::OnceCell;
use std::sync::Arc;

use addr2line::{LookupContinuation as _, LookupResult, SplitDwarfLoad};
use gimli::{DebugTypeSignature, Dwarf, DwarfPackage, DwoId, Reader as _, Section as _, Unit, UnitType};
use trapline_record::Svma;

use crate::bytes::{Bytes, SplitFiles};
use crate::debugdata;
use crate::debuginfo::DebugInfo;
use crate::elf::Elf;
use crate::notes;
use crate::sections::{MAX_INFO, Slice, UnitOf, slice};

/// Where split debug information is.
pub(crate) struct Split {
    files: Option<Arc<dyn SplitFiles>>,
    package: OnceCell<Option<DwarfPackage<Slice>>>,
}

impl Split {
    pub(crate) const fn new(files: Option<Arc<dyn SplitFiles>>) -> Self {
        Self { files, package: OnceCell::new() }
    }
    fn package(&self) -> Option<&DwarfPackage<Slice>> {
        self.package.get_or_init(|| package(self.files.as_ref()?.package()?)).as_ref()
    }
    /// The sections of the package that have a type.
    pub(crate) fn packed_type(
        &self,
        signature: DebugTypeSignature,
        parent: &Dwarf<Slice>,
    ) -> Option<Dwarf<Slice>> {
        self.package()?.find_tu(signature, parent).ok()?
    }
    /// Looks through the type units of the package.
    fn each_packed_type<T>(
        &self,
        parent: &Dwarf<Slice>,
        look: &mut impl FnMut(UnitOf<'_>) -> gimli::Result<Option<T>>,
    ) -> gimli::Result<Option<T>> {
        let Some(package) = self.package() else { return Ok(None) };
        for row in 1..=package.tu_index.unit_count() {
            let found = each_type_unit(&package.tu_sections(row, parent)?, look)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
    /// The debug information that a file shares with others, which it names with its build id (`.gnu_debugaltlink`).
    pub(crate) fn shared(&self, elf: &Elf) -> Option<Dwarf<Slice>> {
        let link = elf.section_data(".gnu_debugaltlink")?;
        let end = link.iter().position(|byte| *byte == 0)?;
        let (name, id) = (str::from_utf8(&link[..end]).ok()?, &link[end + 1..]);
        let shared = Elf::parse_debug(self.files.as_ref()?.shared(name, id)?).ok()?;
        let is_small = shared.section(".debug_info").is_some_and(|section| section.size <= MAX_INFO);
        let is_it = !id.is_empty() && notes::build_id(&shared) == id;
        let load =
            |id: gimli::SectionId| Ok::<Slice, gimli::Error>(slice(&debugdata::section(&shared, id.name())));
        if is_small && is_it { Dwarf::load(load).ok() } else { None }
    }
    /// S2 and S3.
    fn find(&self, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let files = self.files.as_ref()?;
        let packed = self.package().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        let dwarf = packed.or_else(|| {
            let text = |slice: &Option<Slice>| Some(slice.as_ref()?.to_string().ok()?.into_owned());
            let (folder, name) = (text(&load.comp_dir).unwrap_or_default(), text(&load.path)?);
            let mut dwarf = Dwarf::load(sections(files.unit(&folder, &name)?)?).ok()?;
            dwarf.make_dwo(&load.parent);
            in_front(&mut dwarf, load.dwo_id);
            Some(dwarf)
        })?;
        (first_unit(&dwarf)?.dwo_id == Some(load.dwo_id)).then(|| Arc::new(dwarf))
    }
}

/// A file's sections by their names for split debug information.
fn sections(bytes: Bytes) -> Option<impl FnMut(gimli::SectionId) -> gimli::Result<Slice>> {
    let elf = Elf::parse_debug(bytes).ok()?;
    let is_small = elf.section(".debug_info.dwo").is_some_and(|section| section.size <= MAX_INFO);
    is_small.then_some(move |id: gimli::SectionId| {
        let name = id.dwo_name();
        Ok(slice(&name.map(|name| debugdata::joined(&elf, name, MAX_INFO)).unwrap_or_default()))
    })
}

fn package(bytes: Bytes) -> Option<DwarfPackage<Slice>> {
    DwarfPackage::load(sections(bytes)?, slice(&[])).ok()
}

/// Puts the unit with this id before all others of its section (S3): type units may stand there. Nothing in the section
/// depends on where a unit is.
fn in_front(dwarf: &mut Dwarf<Slice>, id: DwoId) {
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Some(start) = header.offset().as_debug_info_offset() else { return };
        let end = start.0.saturating_add(header.length_including_self());
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
            let bytes = dwarf.debug_info.reader().bytes();
            if let Some((before, rest)) = bytes.split_at_checked(start.0)
                && let Some((own, behind)) = rest.split_at_checked(end - start.0)
                && !before.is_empty()
            {
                dwarf.debug_info = gimli::DebugInfo::from(slice(&[own, before, behind].concat()));
            }
            return;
        }
    }
}

fn first_unit(dwarf: &Dwarf<Slice>) -> Option<Unit<Slice>> {
    dwarf.unit(dwarf.units().next().ok()??).ok()
}

/// Looks through the type units of `.debug_types`, and those behind the first unit of a split file.
fn each_type_unit<T>(
    dwarf: &Dwarf<Slice>,
    look: &mut impl FnMut(UnitOf<'_>) -> gimli::Result<Option<T>>,
) -> gimli::Result<Option<T>> {
    let mut headers = Vec::new();
    let mut units = dwarf.type_units();
    while let Some(header) = units.next()? {
        headers.push(header);
    }
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        if matches!(header.type_(), UnitType::SplitType { .. }) {
            headers.push(header);
        }
    }
    for header in headers {
        let found = look(UnitOf::new(dwarf, &dwarf.unit(header)?))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl DebugInfo {
    /// The unit with the code at an address.
    pub(crate) fn unit_at(&self, at: Svma) -> Option<UnitOf<'_>> {
        let mut looked = self.lines.as_ref()?.find_dwarf_and_unit(at.0);
        loop {
            match looked {
                LookupResult::Output(found) => return found,
                LookupResult::Load { load, continuation } => {
                    looked = continuation.resume(self.split.find(&load));
                }
            }
        }
    }
    /// Looks through all units, until something is found.
    ///
    /// # Errors
    /// A malformed unit ends the walk.
    pub(crate) fn each_unit<T>(
        &self,
        mut look: impl FnMut(UnitOf<'_>) -> gimli::Result<Option<T>>,
    ) -> gimli::Result<Option<T>> {
        let mut units = self.dwarf.units();
        while let Some(header) = units.next()? {
            let unit = self.dwarf.unit(header)?;
            let found = match self.split_off(&unit) {
                Some((dwarf, own)) => {
                    let found = look(UnitOf::new(&dwarf, &own))?;
                    if found.is_some() { found } else { each_type_unit(&dwarf, &mut look)? }
                }
                None => look(UnitOf::new(&self.dwarf, &unit))?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        let found = each_type_unit(&self.dwarf, &mut look)?;
        if found.is_some() { Ok(found) } else { self.split.each_packed_type(&self.dwarf, &mut look) }
    }
    /// What a skeleton left to another file.
    fn split_off(&self, skeleton: &Unit<Slice>) -> Option<(Arc<Dwarf<Slice>>, Unit<Slice>)> {
        let dwo_id: DwoId = skeleton.dwo_id?;
        let path = skeleton.dwo_name().ok()?.and_then(|name| self.dwarf.attr_string(skeleton, name).ok());
        let (comp_dir, parent) = (skeleton.comp_dir.clone(), self.dwarf.clone());
        let dwarf = self.split.find(&SplitDwarfLoad { dwo_id, comp_dir, path, parent })?;
        let mut unit = first_unit(&dwarf)?;
        unit.copy_relocated_attributes(skeleton);
        Some((dwarf, unit))
    }
}
