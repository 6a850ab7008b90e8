//! What a process has had mapped as code, and from which files.
//!
//! In: its mappings, at each look. Out: [`Frame`]s of addresses. Where something else was mapped since the
//! last look, the newer mapping counts. Code that was unmapped and not replaced is still found. Each file is
//! opened when it is first seen, and stays open, since its link in /proc ends with its mapping. Does not:
//! look by itself, or know names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trapline_tracee::{FileId, Mapping, Process};

use super::frame::{Frame, StackFile};

/// A range of code.
#[derive(Clone, Debug)]
struct Stretch {
    end: u64,
    /// File that is mapped there; `None` for code that the program generated itself.
    file: Option<Arc<StackFile>>,
    offset: u64,
}

/// All code that was seen.
#[derive(Debug, Default)]
pub(crate) struct SeenCode {
    stretches: BTreeMap<u64, Stretch>,
    files: HashMap<FileId, Arc<StackFile>>,
    /// Mappings at the last look: start, end, offset, file.
    last: Vec<(u64, u64, u64, Option<FileId>)>,
    /// Number of changes so far.
    version: u64,
}

impl SeenCode {
    /// Takes what is mapped now. Returns whether that is other code than before.
    pub(crate) fn update(
        &mut self,
        maps: &[Mapping],
        open: impl Fn(&Mapping) -> Option<std::fs::File>,
    ) -> bool {
        let code: Vec<&Mapping> = maps.iter().filter(|m| m.perms.exec && !is_ours(m)).collect();
        let now: Vec<_> = code.iter().map(|m| (m.start.0, m.end.0, m.offset.0, m.file)).collect();
        if now == self.last {
            return false;
        }
        self.last = now;
        self.version += 1;
        for mapping in code {
            let file = self.file(mapping, &open);
            self.put(mapping.start.0, Stretch { end: mapping.end.0, file, offset: mapping.offset.0 });
        }
        true
    }
    /// Enters a range of code. An older range gives way, and keeps the parts that stick out.
    fn put(&mut self, start: u64, new: Stretch) {
        let before = self.stretches.range(..start).next_back().filter(|(_, old)| old.end > start);
        if let Some((&at, old)) = before {
            let old = old.clone();
            self.stretches.insert(at, Stretch { end: start, ..old.clone() });
            self.keep_behind(at, old, new.end);
        }
        let inside: Vec<u64> = self.stretches.range(start..new.end).map(|(&at, _)| at).collect();
        for at in inside {
            if let Some(old) = self.stretches.remove(&at) {
                self.keep_behind(at, old, new.end);
            }
        }
        self.stretches.insert(start, new);
    }
    fn keep_behind(&mut self, at: u64, old: Stretch, from: u64) {
        if old.end > from {
            let offset = old.offset + (from - at);
            self.stretches.insert(from, Stretch { offset, ..old });
        }
    }
    fn file(
        &mut self,
        mapping: &Mapping,
        open: impl Fn(&Mapping) -> Option<std::fs::File>,
    ) -> Option<Arc<StackFile>> {
        let make = || Arc::new(StackFile { path: mapping.path.clone(), file: open(mapping) });
        match mapping.file {
            Some(id) => Some(Arc::clone(self.files.entry(id).or_insert_with(make))),
            // The kernel's own, such as `[vdso]`; but `[anon:NAME]` is code that the program generated
            // itself.
            None if mapping.path.starts_with("[v") => {
                Some(Arc::new(StackFile { path: mapping.path.clone(), file: None }))
            }
            None => None,
        }
    }
    /// The address at which code of a file is mapped.
    pub(crate) fn address(&self, path: &str, offset: u64) -> Option<u64> {
        self.stretches.iter().find_map(|(start, stretch)| {
            let inside = offset.checked_sub(stretch.offset).filter(|inside| *inside < stretch.end - start)?;
            stretch.file.as_ref().filter(|file| file.path == path).map(|_| start + inside)
        })
    }
    /// A number that is different after each change; 0 before the first.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }
    /// All ranges with files: start, end, file, offset.
    pub(crate) fn files(&self) -> impl Iterator<Item = (u64, u64, &Arc<StackFile>, u64)> {
        self.stretches
            .iter()
            .filter_map(|(&start, one)| Some((start, one.end, one.file.as_ref()?, one.offset)))
    }
    /// Frame of a return address, if any code is known there.
    pub(crate) fn frame(&self, address: u64) -> Option<Frame> {
        // The call is before that address, and may be the last instruction of its mapping.
        let call = address.wrapping_sub(1);
        let (&start, stretch) =
            self.stretches.range(..=call).next_back().filter(|(_, one)| call < one.end)?;
        let place = stretch.file.as_ref().map(|file| (Arc::clone(file), stretch.offset + (address - start)));
        Some(Frame { address, place, is_return: true })
    }
    /// Frame of the probed place itself.
    pub(crate) fn site(&self, path: &str, offset: u64) -> Frame {
        let holds = |start: u64, one: &Stretch| {
            one.file.as_ref().is_some_and(|file| file.path == path)
                && (one.offset..one.offset + (one.end - start)).contains(&offset)
        };
        let found = self.stretches.iter().find(|&(&start, one)| holds(start, one));
        let address = found.map_or(0, |(start, one)| start + (offset - one.offset));
        let place = found.and_then(|(_, one)| Some((Arc::clone(one.file.as_ref()?), offset)));
        Frame { address, place, is_return: false }
    }
}

/// Whether a mapping holds stubs and copies. A return address there is always a call that is about to go on.
fn is_ours(mapping: &Mapping) -> bool {
    mapping.path.starts_with("/memfd:trapline")
}

/// Opens the very file of a mapping.
pub(crate) fn open(process: &Process) -> impl Fn(&Mapping) -> Option<std::fs::File> {
    |mapping| Some(process.open_file_of(mapping).ok()?.file)
}

#[cfg(test)]
mod tests {
    use super::SeenCode;
    use trapline_tracee::Mapping;

    fn maps(lines: &[&str]) -> Vec<Mapping> {
        lines.iter().map(|line| Mapping::parse(line).expect("a line")).collect()
    }

    fn seen(places: &SeenCode, address: u64) -> Option<(Option<String>, u64)> {
        let frame = places.frame(address)?;
        Some(frame.place.map_or((None, 0), |(file, offset)| (Some(file.path.clone()), offset)))
    }

    #[test]
    fn what_is_unmapped_is_remembered_until_something_else_lies_there() {
        let mut places = SeenCode::default();
        let first = maps(&[
            "1000-5000 r-xp 00001000 fd:01 42 /lib/a.so",
            "6000-7000 r--p 00001000 fd:01 42 /lib/a.so",
            "8000-9000 r-xp 00000000 00:00 0 ",
            "a000-b000 r-xp 00000000 00:00 0 [anon:jit code]",
            "c000-d000 r-xp 00000000 00:00 0 [vdso]",
        ]);
        assert!(places.update(&first, |_| None) && !places.update(&first, |_| None));
        let a = |offset| Some((Some("/lib/a.so".to_owned()), offset));
        assert_eq!(
            (seen(&places, 0x1001), seen(&places, 0x5000), seen(&places, 0x1000)),
            (a(0x1001), a(0x5000), None)
        );
        assert_eq!((seen(&places, 0x6100), seen(&places, 0x8100)), (None, Some((None, 0))));
        assert_eq!(seen(&places, 0xa100), Some((None, 0)));
        assert_eq!(seen(&places, 0xc100), Some((Some("[vdso]".to_owned()), 0x100)));
        assert!(places.update(&maps(&["2000-3000 r-xp 00000000 fd:01 43 /lib/b.so"]), |_| None));
        assert_eq!(seen(&places, 0x1100), a(0x1100));
        assert_eq!(seen(&places, 0x2100), Some((Some("/lib/b.so".to_owned()), 0x100)));
        assert_eq!((seen(&places, 0x3001), seen(&places, 0x4100)), (a(0x3001), a(0x4100)));
        let site = places.site("/lib/a.so", 0x4800);
        assert_eq!((site.address, site.is_return), (0x4800, false));
        assert!(places.site("/lib/a.so", 0x8000).place.is_none());
    }
}
