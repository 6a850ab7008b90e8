//! Copies of displaced words, and the rooms that they lie in.
//!
//! In: a word and where it stands. Out: the address of its copy, within reach; what the handler must know of it. Invariants: COPY-1; a copy is written once, and
//! stays. Does not: lead anybody there.

use std::collections::HashMap;
use std::io::ErrorKind;

use trapline_plan::AddressSpace;
use trapline_plan::aarch64::room::{LEN, near, reaches};
use trapline_plan::aarch64::{Options, Refusal};
use trapline_record::RemoteAddr;
use trapline_runtime::aarch64::{Brought, CopyError, SLOT, Windows, copy};
use trapline_target::{OwnCaller, Process, TargetError};

use crate::error::PatchError;
use crate::why::Why;

#[derive(Debug)]
struct Room {
    at: RemoteAddr,
    used: u64,
}

/// All rooms of a process.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    all: Vec<Room>,
    /// By address and word.
    copies: HashMap<(u64, u32), u64>,
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

impl Rooms {
    /// The copy of a word, which the handler knows of behind this.
    pub(super) fn copy(
        &mut self,
        (process, windows): (&Process, &Windows),
        one: &Displaced,
    ) -> Result<Result<u64, Why>, PatchError> {
        let Displaced { at, word, options, .. } = *one;
        if let Some(&known) = self.copies.get(&(at.0, word)) {
            return Ok(Ok(known));
        }
        let Some(room) = self.room(process, one)? else {
            return Ok(Err(Why::Word(Refusal::NoRoom { at: at.0 })));
        };
        let to = room.at + room.used;
        let made = match copy(&word.to_le_bytes(), at.0, to.0, options) {
            Ok(made) => made,
            Err(CopyError::Relocate(why)) => {
                return Ok(Err(Why::Word(Refusal::Immovable { at: at.0, word, why })));
            }
            Err(_) => return Ok(Err(Why::Word(Refusal::NoRoom { at: at.0 }))),
        };
        process.write_text(to, &made.bytes)?;
        room.used += SLOT;
        let (start, originals) = (room.at.0, made.originals(to.0, at.0).to_vec());
        windows.add(Brought { region: start..start + LEN, originals, guards: Vec::new() });
        self.copies.insert((at.0, word), to.0);
        Ok(Ok(to.0))
    }
    /// A room in reach with a free slot, made if there is none.
    fn room(&mut self, process: &Process, one: &Displaced) -> Result<Option<&mut Room>, PatchError> {
        let serves = |room: &Room| room.used + SLOT <= LEN && (!one.comes_back || reaches(room.at, one.at));
        if let Some(index) = self.all.iter().position(serves) {
            return Ok(Some(&mut self.all[index]));
        }
        let Some(at) = map_near(process, one.at)? else { return Ok(None) };
        self.all.push(Room { at, used: 0 });
        Ok(self.all.last_mut())
    }
}

/// Maps a room near an address.
fn map_near(process: &Process, near_to: RemoteAddr) -> Result<Option<RemoteAddr>, PatchError> {
    /// So often somebody else may map right there between our look and our call.
    const LOOKS: u32 = 16;
    for _ in 0..LOOKS {
        let space = AddressSpace { occupied: process.occupied()?, heap_end: process.heap_end()? };
        let Some(at) = near(&space, near_to) else { return Ok(None) };
        match OwnCaller::default().code(at, LEN) {
            Ok(()) => return Ok(Some(at)),
            Err(TargetError::System { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(None)
}
