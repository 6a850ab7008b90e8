//! Copies of displaced words and stubs of jumps, and the code regions that they lie in.
//!
//! In: a word and its address. Out: the address of its copy or stub, within reach; what the handler must know
//! about it. Invariants: COPY-1; a copy or stub is written once, and stays. Does not: make anything lead
//! there.
//!
//! A code region has [`LEN`] bytes. If there is no such gap in reach (a long text, reservations beside it), it is
//! a page. Islands, as they are used from outside, would save nothing: a stub here is no longer than one, as
//! the code that it calls lies elsewhere.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::Range;

use trapline_plan::AddressSpace;
use trapline_plan::aarch64::code_region::{LEN, near, reaches};
use trapline_plan::aarch64::stub::{Called as Stub, call};
use trapline_plan::aarch64::{Options, Refusal};
use trapline_record::RemoteAddr;
use trapline_runtime::aarch64::gate::Jump;
use trapline_runtime::aarch64::{Brought, Called, CopyError, PART_LEN, Windows, copy};
use trapline_tracee::{OwnCaller, Process, TargetError};

use crate::error::PatchError;
use crate::why::Why;

/// Length in bytes of the longest stub.
const MOST: u64 = 2 * PART_LEN;

#[derive(Debug)]
struct CodeRegion {
    at: RemoteAddr,
    len: u64,
    used: u64,
}

/// All code regions of a process.
#[derive(Debug, Default)]
pub(super) struct CodeRegions {
    all: Vec<CodeRegion>,
    /// Addresses of copies, by the word's address and value.
    copies: HashMap<(u64, u32), u64>,
    /// Stubs by the same key, each with the probes that it calls, and what the copy may use.
    stubs: HashMap<(u64, u32), Vec<(&'static Jump, Options, Entrance)>>,
    /// Stubs were written that processors may not have seen yet.
    fresh: bool,
}

/// Where a stub begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entrance {
    pub(super) at: u64,
    /// Address of its displaced code.
    pub(super) displaced: u64,
}

/// A word to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Displaced {
    pub(super) at: RemoteAddr,
    pub(super) word: u32,
    pub(super) options: Options,
    /// Control comes back from it.
    pub(super) comes_back: bool,
}

impl CodeRegions {
    /// Returns the copy of a word; the handler knows about it afterwards.
    pub(super) fn copy(
        &mut self,
        process: &Process,
        windows: &Windows,
        one: &Displaced,
    ) -> Result<Result<u64, Why>, PatchError> {
        let Displaced { at, word, options, .. } = *one;
        if let Some(&known) = self.copies.get(&(at.0, word)) {
            return Ok(Ok(known));
        }
        let Some(into) = self.with_room(process, one)? else {
            return Ok(Err(Why::Word(Refusal::NoRoom { at: at.0 })));
        };
        let to = into.at + into.used;
        let made = match copy(&word.to_le_bytes(), at.0, to.0, options) {
            Ok(made) => made,
            Err(CopyError::Relocate(why)) => {
                return Ok(Err(Why::Word(Refusal::Immovable { at: at.0, word, why })));
            }
            Err(_) => return Ok(Err(Why::Word(Refusal::NoRoom { at: at.0 }))),
        };
        process.write_text(to, &made.bytes)?;
        into.used += PART_LEN;
        let (region, originals) = (into.range(), made.originals(to.0, at.0).to_vec());
        windows.add(Brought { region, originals, guards: Vec::new() });
        self.copies.insert((at.0, word), to.0);
        Ok(Ok(to.0))
    }
    /// Returns a stub through `gate` that calls these probes; the handler knows about it afterwards. `None`
    /// if no branch leads there and back, or if the word cannot be moved there.
    pub(super) fn stub(
        &mut self,
        process: &Process,
        windows: &Windows,
        &Displaced { at, word, options, .. }: &Displaced,
        gate: u64,
        called: &[Called],
    ) -> Result<Option<Entrance>, PatchError> {
        let known = self.stubs.get(&(at.0, word)).into_iter().flatten();
        let mut same = known.filter(|(jump, of, _)| *jump.called == *called && *of == options);
        if let Some(&(.., entrance)) = same.next() {
            return Ok(Some(entrance));
        }
        // Every thread comes by a branch from the word.
        let Some(into) = self.with_room(process, &Displaced { at, word, options, comes_back: true })? else {
            return Ok(None);
        };
        let to = into.at.0 + into.used;
        let jump = Box::new(Jump::new(at.0, called));
        let argument = std::ptr::from_ref(&*jump).addr() as u64;
        let Ok(Stub { words, displaced }) = call(to, (word, at.0), options, (gate, argument)) else {
            return Ok(None);
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        process.write_text(RemoteAddr(to), &bytes)?;
        into.used += (bytes.len() as u64).next_multiple_of(PART_LEN);
        // At its first word nothing is done yet. From there to its displaced word it stands for no place of
        // the program's.
        let (begins, ends) = displaced;
        let originals = vec![(to, at.0), (to + 4, 0), (begins, at.0), (ends, at.0 + 4), (ends + 4, 0)];
        windows.add(Brought { region: into.range(), originals, guards: Vec::new() });
        let entrance = Entrance { at: to, displaced: begins };
        self.stubs.entry((at.0, word)).or_default().push((Box::leak(jump), options, entrance));
        self.fresh = true;
        Ok(Some(entrance))
    }
    /// Whether stubs were written since the last call of this function.
    pub(super) fn are_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }
    /// A code region in reach that has as much left as the longest stub takes; makes one if there is none.
    fn with_room(
        &mut self,
        process: &Process,
        one: &Displaced,
    ) -> Result<Option<&mut CodeRegion>, PatchError> {
        let serves = |region: &CodeRegion| {
            region.used + MOST <= region.len && (!one.comes_back || reaches(region.at, one.at))
        };
        if let Some(index) = self.all.iter().position(serves) {
            return Ok(Some(&mut self.all[index]));
        }
        let Some(made) = map_near(process, one.at)? else { return Ok(None) };
        self.all.push(made);
        Ok(self.all.last_mut())
    }
}

impl CodeRegion {
    const fn range(&self) -> Range<u64> {
        self.at.0..self.at.0 + self.len
    }
}

/// Maps a code region near an address.
fn map_near(process: &Process, near_to: RemoteAddr) -> Result<Option<CodeRegion>, PatchError> {
    /// How often another thread may map right there between our look and our call.
    const LOOKS: u32 = 16;
    for _ in 0..LOOKS {
        let space =
            AddressSpace { occupied: process.occupied()?, heap_end: process.heap_end(&process.maps()?)? };
        let place = |len| near(&space, near_to, len).map(|at| CodeRegion { at, len, used: 0 });
        let Some(region) = place(LEN).or_else(|| place(OwnCaller::page_size())) else { return Ok(None) };
        match OwnCaller::default().code(region.at, region.len) {
            Ok(()) => return Ok(Some(region)),
            Err(TargetError::System { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(None)
}
