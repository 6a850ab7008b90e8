//! Exchanges pages: O4 to O6 of the [`protocol`](super::protocol).
//!
//! In: words to be changed, the maps. Out: pages that hold them. Invariants: a page changes as a whole;
//! nothing else in it changes.
//! Does not: decide what is written, or compare it with what was there.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;

use trapline_record::RemoteAddr;
use trapline_tracee::{FileId, Mapping, OwnCaller, Process};

use crate::error::PatchError;

/// Words to be written, by address.
pub(super) type NewWords = BTreeMap<u64, u32>;

/// Pages of our own code.
pub(super) struct Pages<'a> {
    process: &'a Process,
    maps: &'a [Mapping],
    files: HashMap<FileId, File>,
    /// Whether mappings are guarded, by their start.
    guarded: HashMap<RemoteAddr, bool>,
    len: u64,
}

impl<'a> Pages<'a> {
    /// The process as of these maps. Exchanging pages changes the maps only in how many lines show the same.
    pub(super) fn new(process: &'a Process, maps: &'a [Mapping]) -> Self {
        Self { process, maps, files: HashMap::new(), guarded: HashMap::new(), len: OwnCaller::page_size() }
    }
    /// Changes all these words. Words on pages that are no file's code any more are left out, and returned.
    pub(super) fn change(&mut self, words: &NewWords) -> Result<Vec<u64>, PatchError> {
        let mut gone = Vec::new();
        let mut of_page: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
        for (&at, &word) in words {
            of_page.entry(at & !(self.len - 1)).or_default().push((at, word));
        }
        for (page, words) in of_page {
            if !self.exchange(RemoteAddr(page), &words)? {
                gone.extend(words.iter().map(|word| word.0));
            }
        }
        OwnCaller::default().sync_cores()?;
        Ok(gone)
    }
    /// Steps O4 and O5. Returns false if nothing that could be exchanged is there.
    fn exchange(&mut self, page: RemoteAddr, words: &[(u64, u32)]) -> Result<bool, PatchError> {
        let Some(mapping) = mapping(self.maps, page) else { return Ok(false) };
        let (Some(id), true) = (mapping.file, mapping.perms.exec) else { return Ok(false) };
        let off = mapping.offset + (page - mapping.start);
        let guarded = *self.guarded.entry(mapping.start).or_insert_with(|| OwnCaller::is_guarded(page));
        if !self.files.contains_key(&id) {
            self.files.insert(id, self.process.open_file_of(mapping)?.file);
        }
        let spare = OwnCaller::default().spare(&self.files[&id], off.0, guarded)?;
        let (mut wanted, mut has) = (vec![0; self.len as usize], vec![0; self.len as usize]);
        self.process.read(page, &mut wanted)?;
        for &(at, word) in words {
            let n = (at - page.0) as usize;
            wanted[n..n + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.process.read(spare.at(), &mut has)?;
        if has != wanted {
            self.process.write_text(spare.at(), &wanted)?;
        }
        spare.put_over(page)?;
        Ok(true)
    }
}

/// The mapping that an address lies in.
pub(super) fn mapping(maps: &[Mapping], at: RemoteAddr) -> Option<&Mapping> {
    let after = maps.partition_point(|mapping| mapping.start <= at);
    maps[..after].last().filter(|mapping| mapping.contains(at))
}
