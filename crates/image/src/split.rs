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
//! Does not: read type units; open files.

use std::cell::OnceCell;
use std::sync::Arc;

use addr2line::{LookupContinuation as _, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, DwoId, Reader as _, Unit};
use trapline_record::Svma;

use crate::bytes::{Bytes, SplitFiles};
use crate::debugdata;
use crate::debuginfo::{DebugInfo, MAX_INFO, Slice, UnitOf, slice};
use crate::elf::Elf;

/// Where split debug information is.
pub(crate) struct Split {
    files: Option<Arc<dyn SplitFiles>>,
    package: OnceCell<Option<DwarfPackage<Slice>>>,
}

impl Split {
    pub(crate) const fn new(files: Option<Arc<dyn SplitFiles>>) -> Self {
        Self { files, package: OnceCell::new() }
    }
    /// S2 and S3.
    fn find(&self, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let files = self.files.as_ref()?;
        let package = self.package.get_or_init(|| package(files.package()?));
        let packed = package.as_ref().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        let dwarf = packed.or_else(|| {
            let text = |slice: &Option<Slice>| Some(slice.as_ref()?.to_string().ok()?.into_owned());
            let (folder, name) = (text(&load.comp_dir).unwrap_or_default(), text(&load.path)?);
            let mut dwarf = Dwarf::load(sections(files.unit(&folder, &name)?)?).ok()?;
            dwarf.make_dwo(&load.parent);
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
        Ok(slice(&name.map(|name| debugdata::section(&elf, name)).unwrap_or_default()))
    })
}

fn package(bytes: Bytes) -> Option<DwarfPackage<Slice>> {
    DwarfPackage::load(sections(bytes)?, slice(&[])).ok()
}

fn first_unit(dwarf: &Dwarf<Slice>) -> Option<Unit<Slice>> {
    dwarf.unit(dwarf.units().next().ok()??).ok()
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
                Some((dwarf, own)) => look(UnitOf::new(&dwarf, &own))?,
                None => look(UnitOf::new(&self.dwarf, &unit))?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
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
