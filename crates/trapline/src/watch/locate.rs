//! From an address in a process to a function and a line; each address is looked up once.
//!
//! In: processes. Out: [`Where`]s, starts of functions. Modules that a process maps later are found when an
//! address lies in no known one. Does not: fail; an unknown address is shown as a number.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use trapline_image::DebugInfo;
use trapline_record::RemoteAddr;
use trapline_tracee::{FileId, Mapping, Process};
use trapline_watch::CodeMap;

use super::accesses::Where;
use crate::files::Files;
use crate::modules::{Module, mapped};

pub(super) type SharedLocator = Rc<RefCell<Locator>>;

/// What is known of all watched processes.
#[derive(Debug, Default)]
pub(super) struct Locator {
    files: Files,
    /// In the order of targets.
    processes: Vec<Known>,
    debug: HashMap<FileId, Option<Rc<DebugInfo>>>,
    places: HashMap<(usize, u64, bool), Rc<Where>>,
}

/// One process, running one program.
#[derive(Debug, Default)]
struct Known {
    maps: Vec<Mapping>,
    modules: Vec<Module>,
}

impl Locator {
    /// Reads the maps of a process in which places are to be found.
    pub(super) fn add(&mut self, process: &Process) {
        let mut known = Known::default();
        known.look(process, &mut self.files);
        self.processes.push(known);
    }
    /// Forgets the process that was added last, in which nothing is watched.
    pub(super) fn forget_last(&mut self) {
        self.processes.pop();
    }
    /// Forgets all but the first so many processes.
    pub(super) fn keep_first(&mut self, processes: usize) {
        self.processes.truncate(processes);
    }
    /// Modules of the process that was added last, the program first.
    pub(super) fn modules(&self) -> &[Module] {
        self.processes.last().map_or(&[], |known| &known.modules)
    }
    /// Mappings of the process that was added last.
    pub(super) fn maps(&self) -> &[Mapping] {
        self.processes.last().map_or(&[], |known| &known.maps)
    }
    /// Debug information of a file, read once.
    pub(super) fn debug(&mut self, module: &Module) -> Option<Rc<DebugInfo>> {
        let file = &module.file;
        self.debug.entry(file.id).or_insert_with(|| file.image.debug_info().map(Rc::new)).clone()
    }
    /// Whether an address lies in a file's code.
    pub(super) fn is_code(&self, target: usize, ip: RemoteAddr) -> bool {
        self.processes.get(target).is_some_and(|known| known.module_at(ip).is_some())
    }
    /// Function and line of an address; for a return address, those of its call.
    pub(super) fn place(&mut self, target: usize, ip: RemoteAddr, returns: bool) -> Rc<Where> {
        if let Some(known) = self.places.get(&(target, ip.0, returns)) {
            return known.clone();
        }
        let place = Rc::new(self.look_up(target, ip, returns));
        self.places.insert((target, ip.0, returns), place.clone());
        place
    }
    fn look_up(&mut self, target: usize, ip: RemoteAddr, returns: bool) -> Where {
        let at = RemoteAddr(ip.0.wrapping_sub(u64::from(returns)));
        let Some(module) = self.processes.get(target).and_then(|known| known.module_at(at)).cloned() else {
            return Where { function: ip.to_string(), line: None };
        };
        let image = &module.file.image;
        let svma = module.bias.stated(at);
        let function = match image.function_at(svma) {
            Some(index) => {
                let function = image.function(index);
                let into = svma.0.wrapping_sub(function.start.0) + u64::from(returns);
                let name = image.display_name(function, module.basename());
                let prefix =
                    if module.is_program { String::new() } else { format!("{}:", module.basename()) };
                format!("{prefix}{name}+{into:#x}")
            }
            None => format!("{}+{svma:#x}", module.basename()),
        };
        let line = self.debug(&module).and_then(|debug| debug.line(svma));
        Where { function, line: line.map(|line| (line.file, line.line)) }
    }
    fn start_of(&mut self, target: usize, process: &Process, ip: RemoteAddr) -> Option<RemoteAddr> {
        let Self { files, processes, .. } = self;
        let known = processes.get_mut(target)?;
        if known.module_at(ip).is_none() {
            known.look(process, files);
        }
        let module = known.module_at(ip)?;
        let image = &module.file.image;
        let function = image.function(image.function_at(module.bias.stated(ip))?);
        let start = module.bias.live(function.start);
        (start <= ip).then_some(start)
    }
}

impl Known {
    fn look(&mut self, process: &Process, files: &mut Files) {
        let Ok(maps) = process.maps() else { return };
        // A file that cannot be read leaves its addresses unnamed.
        self.modules =
            mapped(process, &maps).iter().filter_map(|one| one.open(process, files).ok()).collect();
        self.maps = maps;
    }
    fn module_at(&self, at: RemoteAddr) -> Option<&Module> {
        let mapping = self.maps.iter().find(|one| one.perms.exec && one.contains(at))?;
        let id = mapping.file?;
        self.modules.iter().find(|module| {
            let svma = module.bias.stated(at);
            module.file.id == id
                && module
                    .file
                    .image
                    .segments()
                    .any(|one| svma.0.checked_sub(one.svma.0).is_some_and(|into| into < one.memsz))
        })
    }
}

/// The locator, in the form that decoding uses.
#[derive(Debug)]
pub(super) struct Map(pub(super) SharedLocator);

impl CodeMap for Map {
    fn start_of(&mut self, target: usize, process: &Process, ip: RemoteAddr) -> Option<RemoteAddr> {
        self.0.borrow_mut().start_of(target, process, ip)
    }
    fn code(&mut self, target: usize, addr: RemoteAddr, len: u64) -> Option<Vec<u8>> {
        let locator = self.0.borrow();
        let known = locator.processes.get(target)?;
        let module = known.module_at(addr)?;
        module.file.image.text(module.bias.stated(addr), len).map(<[u8]>::to_vec)
    }
}
