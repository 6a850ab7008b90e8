//! The files in which something is registered, each parsed once.
//!
//! In: paths of requests, and the maps. Out: parsed files, and where they are mapped. Invariants: INS-5 a file
//! is used only as it was at its first registration; a file that was written to since is refused. Does not:
//! parse a large batch's file by itself if another thread does so already (`speculate`).

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::{Mapping, Process};

use super::Error;
use super::check::{Stamp, opened};
use super::mapped_files::takes_breakpoints;
use super::site_request::Load;
use super::speculate::SpeculativePlan;
use crate::files::{Files, ModuleFile};
use crate::modules::mapped;

/// Files, with what shows whether they changed.
#[derive(Debug, Default)]
pub(super) struct RegisteredFiles {
    files: Files,
    /// Stamp of each file at its first registration.
    stamps: HashMap<FileId, Stamp>,
    /// A file that another thread parses.
    speculative: Option<SpeculativePlan>,
}

impl RegisteredFiles {
    /// All files that were parsed.
    pub(super) const fn all(&mut self) -> &mut Files {
        &mut self.files
    }
    /// What another thread parses; `None` ends that.
    pub(super) fn expect(&mut self, speculative: Option<SpeculativePlan>) {
        self.speculative = speculative;
    }
    /// What another thread parses.
    pub(super) const fn speculative(&mut self) -> Option<&mut SpeculativePlan> {
        self.speculative.as_mut()
    }
    /// Parses a file, if it is still the one that was registered first.
    pub(super) fn file(&mut self, path: &Path) -> Result<Arc<ModuleFile>, Error> {
        let (_, id, stamp) = opened(path)?;
        if self.stamps.get(&id).is_some_and(|known| *known != stamp) {
            return Err(Error::Changed { path: path.to_owned() });
        }
        let parsed = self.speculative.take_if(|one| one.is_of(path)).and_then(SpeculativePlan::wait);
        let parsed = parsed.filter(|parsed| parsed.file.id == id && parsed.stamp == stamp);
        parsed.into_iter().for_each(|parsed| self.files.put(parsed.file));
        let fail = |why: String| Error::File { path: path.to_owned(), why };
        let file = self.files.of_path(path).map_err(fail)?;
        self.stamps.insert(id, stamp);
        Ok(file)
    }
    /// Mappings of these files in which the kernel would set probes, each with the address where it begins.
    pub(super) fn loads(
        &mut self,
        process: &Process,
        registered: &HashSet<FileId>,
        maps: &[Mapping],
    ) -> Vec<(Load, RemoteAddr)> {
        let found = mapped(process, maps).into_iter().filter(|one| registered.contains(&one.id));
        let load = |one: crate::modules::Mapped| {
            let module = one.open(process, &mut self.files).ok()?;
            Some((Load { file: one.id, bias: module.bias.0 }, one.mapping.start))
        };
        found.filter(|one| takes_breakpoints(&one.mapping)).filter_map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::speculate::Parsed;
    use super::*;
    use crate::files::parsed;

    /// B3: what was parsed is another file by now, or the same with other bytes.
    #[test]
    fn what_is_not_the_file_of_now_is_parsed_anew() {
        let program = std::env::current_exe().expect("this program");
        let other = Path::new("/proc/self/exe");
        for is_same in [true, false] {
            let (hand, file) = sync_channel(1);
            let (opened_file, id, mut stamp) = opened(&program).expect("readable");
            let ahead = parsed(&opened_file, id, other).expect("a program");
            if !is_same {
                stamp = opened(Path::new("/etc/passwd")).expect("readable").2;
            }
            hand.send(Parsed { file: ahead.clone(), stamp }).expect("room for one");
            let mut files = RegisteredFiles::default();
            files.expect(Some(SpeculativePlan::new(program.clone(), file)));
            let found = files.file(&program).expect("a program");
            assert_eq!(Arc::ptr_eq(&found, &ahead), is_same);
            assert!(files.speculative().is_none());
        }
        // The thread ended without a result.
        let (_, file) = sync_channel(1);
        let mut files = RegisteredFiles::default();
        files.expect(Some(SpeculativePlan::new(program.clone(), file)));
        assert!(files.file(&program).is_ok());
    }
}
