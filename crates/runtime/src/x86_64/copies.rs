//! Copies of displaced instructions, and which address is the copy of which.
//!
//! In: for writers, an instruction and the memory that its copy will lie in; for handlers, an address. Out: the copy's bytes; the
//! original's address. Invariants: COPY-1 a copy is one instruction and a way back, so a fault in it is that instruction's, and
//! nothing has happened yet; COPY-2 readers take no lock, and what they are told about a live copy stays true while a thread can be in it.
//! Does not: map or write memory (`patch` does), decide which instructions are copied, or when a copy is free.
//!
//! An [`Arena`] is a stretch of executable memory in slots of equal size, so that the table of originals is found by division.
//! Arenas are added at the front of a list and stay.
//!
//! | writer | handler |
//! |---|---|
//! | C1 claim a slot, store its original (release) | H1 a thread traps at the site, goes on in the copy |
//! | C2 write the bytes | H2 a fault, or a signal: look up the original (acquire) |
//! | C3 publish the site's trap | |
//! | C4 take the trap out; wait until no thread is in the slot, nor a frame that leads there | |
//! | C5 give the slot back | |
//!
//! H1 happens behind C3, which is behind C1; H2 happens before C4 ends. So H2 finds what C1 stored.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use trapline_insn::x86_64::{Flow, Options, RelocateError, decode_one, relocate_with};

/// Bytes of a slot: an instruction, what a system call needs behind it, and the longest way back, with room to spare.
pub const SLOT: u64 = 64;
/// What stands where no copy does.
const FILLER: u8 = 0xCC;

/// One copy, before it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// All of its slot.
    pub bytes: [u8; SLOT as usize],
    /// Bytes of the original.
    len: u8,
    /// Bytes of the copy up to the way back.
    done: u8,
}

/// Why there is no copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be moved.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
    /// It is none that is run out of line.
    #[error("{len} bytes in place of {bytes:02x?}: more than one instruction")]
    TooLong {
        /// The instruction.
        bytes: Vec<u8>,
        /// Bytes of its copy.
        len: usize,
    },
}

/// The copy at `to` of the first instruction of `bytes`, which stands at `original`.
///
/// # Errors
/// Why not.
pub fn copy(bytes: &[u8], original: u64, to: u64, options: Options) -> Result<Copy, CopyError> {
    let insn = decode_one(bytes, original).unwrap_or_default();
    let own = bytes.get(..usize::from(insn.len)).unwrap_or_default();
    let moved = relocate_with(core::slice::from_ref(&insn), own, to, options)?;
    let mut code = moved.bytes;
    let done = code.len();
    if insn.flow == Flow::Syscall {
        // The kernel leaves the address behind the instruction in rcx: lea rcx, [rip + distance], or by 64 bits.
        let distance = moved.next.wrapping_sub(to.wrapping_add(code.len() as u64 + 7)).cast_signed();
        if let Ok(distance) = i32::try_from(distance) {
            code.extend([0x48, 0x8D, 0x0D]);
            code.extend(distance.to_le_bytes());
        } else {
            code.extend([0x48, 0xB9]);
            code.extend(moved.next.to_le_bytes());
        }
    }
    if moved.falls_through {
        way_back(&mut code, to, moved.next);
    }
    let mut whole = [FILLER; SLOT as usize];
    match whole.get_mut(..code.len()) {
        Some(room) => room.copy_from_slice(&code),
        None => return Err(CopyError::TooLong { bytes: own.to_vec(), len: code.len() }),
    }
    Ok(Copy { bytes: whole, len: insn.len, done: done as u8 })
}

/// `jmp next`, through memory behind it if that is too far.
fn way_back(code: &mut Vec<u8>, to: u64, next: u64) {
    let end = to.wrapping_add(code.len() as u64 + 5);
    if let Ok(distance) = i32::try_from(next.wrapping_sub(end).cast_signed()) {
        code.push(0xE9);
        code.extend(distance.to_le_bytes());
    } else {
        code.extend([0xFF, 0x25, 0, 0, 0, 0]);
        code.extend(next.to_le_bytes());
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// 0: free.
    original: AtomicU64,
    /// Bytes of the original, and of the copy up to the way back.
    lens: AtomicU32,
}

/// A stretch of executable memory for copies.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    slots: Box<[Slot]>,
    next: AtomicPtr<Self>,
}

impl Arena {
    /// For the `len` bytes at `start`, which stay mapped.
    #[must_use]
    pub fn new(start: u64, len: u64) -> Self {
        let slots = (0..len / SLOT).map(|_| Slot::default()).collect();
        Self { start, slots, next: AtomicPtr::new(ptr::null_mut()) }
    }
    /// C1: a free slot's address, now taken for the instruction at `original`. For the writer. `None` if all are taken.
    #[must_use]
    pub fn claim(&self, original: u64) -> Option<u64> {
        let index = self.slots.iter().position(|slot| slot.original.load(Relaxed) == 0)?;
        self.slots[index].original.store(original, Release);
        Some(self.start + index as u64 * SLOT)
    }
    /// C1: what was made for that slot. For the writer.
    pub fn describe(&self, at: u64, copy: &Copy) {
        if let Some(slot) = self.slot(at) {
            slot.lens.store(u32::from(copy.len) | u32::from(copy.done) << 8, Release);
        }
    }
    /// C5. For the writer, once no thread is in it.
    pub fn release(&self, at: u64) {
        if let Some(slot) = self.slot(at) {
            slot.lens.store(0, Relaxed);
            slot.original.store(0, Relaxed);
        }
    }
    #[inline]
    fn slot(&self, at: u64) -> Option<&Slot> {
        self.slots.get((at.wrapping_sub(self.start) / SLOT) as usize)
    }
    /// What a thread at `pc` in a copy would be at without it.
    fn original(&self, pc: u64) -> Option<u64> {
        let slot = self.slot(pc)?;
        let (original, lens) = (slot.original.load(Acquire), slot.lens.load(Acquire));
        let (len, done) = (u64::from(lens & 0xFF), u64::from(lens >> 8));
        let into = pc.wrapping_sub(self.start) % SLOT;
        (original != 0).then(|| original.wrapping_add(if into < done { 0 } else { len }))
    }
}

/// All arenas of a process.
#[derive(Debug, Default)]
pub struct Copies(AtomicPtr<Arena>);

impl Copies {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
    /// Adds one. For the writer.
    pub fn add(&self, arena: &'static Arena) {
        arena.next.store(self.0.load(Relaxed), Relaxed);
        self.0.store(ptr::from_ref(arena).cast_mut(), Release);
    }
    /// If `pc` is in a copy: the address that the thread would be at without it. That is the original instruction, or the one
    /// behind it if the copy has run and only the way back is left.
    #[must_use]
    pub fn original(&self, pc: u64) -> Option<u64> {
        let mut at = self.0.load(Acquire);
        loop {
            // SAFETY: null, or an arena that was added, which is 'static. Acquire pairs with the release in `add`.
            let arena = unsafe { at.as_ref() }?;
            if let Some(original) = arena.original(pc) {
                return Some(original);
            }
            at = arena.next.load(Acquire);
        }
    }
}
