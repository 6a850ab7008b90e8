//! Holds a program at its entry point, where it cannot be held at its loader's rendezvous
//! ([`ambush`](crate::ambush)).
//!
//! In: a process that is stopped at its exec. Out: a trap that stops it at its entry point. Constructors of its
//! libraries have run by then. Does not: wait, or park the process there.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use crate::auxv::{AT_ENTRY, Auxv};
use crate::native::park::{BEHIND, IS_HELD, LEN, TRAP};
use crate::regs::Regs;
use crate::sys::perf::{self, Attr};
use crate::waiting::{Room, write};

/// A trap that stops a program where it is to be held.
///
/// It is a breakpoint of the processor, which the kernel keeps for the tracer. The program's memory stays as
/// it is, so other tools' probes at the same instruction may come and go, and the breakpoint ends with the
/// tracer. Where the kernel grants none, it is a trap in the program's code. That one is lost if another
/// tool's probe there comes or goes meanwhile; the program then runs without being seen at its entry point.
#[derive(Debug)]
pub(crate) struct EntryTrap {
    entry: u64,
    by: By,
    /// Where it is to wait. Letting it go needs no other descriptor.
    room: Room,
}

#[derive(Debug)]
enum By {
    /// Nothing is needed: the program has no interpreter, so it is there already.
    Nothing,
    Breakpoint(OwnedFd),
    /// A trap in the code, and the bytes under it.
    Code([u8; TRAP.len()]),
}

impl EntryTrap {
    /// Sets the trap in a process that is stopped at its exec.
    ///
    /// # Errors
    /// [`NO_ROOM`](crate::waiting::NO_ROOM), or when it cannot be read or written.
    pub(crate) fn set(pid: u32) -> io::Result<Self> {
        let (room, auxv) = (Room::find(pid, LEN)?, Auxv::of(pid)?);
        let entry = auxv.word(AT_ENTRY).ok_or_else(|| io::Error::other("no AT_ENTRY in its auxv"))?;
        if auxv.loader().is_none() {
            return Ok(Self { entry, by: By::Nothing, room });
        }
        if let Ok(breakpoint) = breakpoint(pid, entry) {
            return Ok(Self { entry, by: By::Breakpoint(breakpoint), room });
        }
        let mut under = [0u8; TRAP.len()];
        room.memory.read_exact_at(&mut under, entry)?;
        write(&room.memory, entry, &TRAP)?;
        Ok(Self { entry, by: By::Code(under), room })
    }
    /// Whether the program is at its entry point already (it has no interpreter).
    pub(crate) const fn is_there(&self) -> bool {
        matches!(self.by, By::Nothing)
    }
    /// Removes the trap. Returns the address of the entry point, and the room there is for the code that waits.
    pub(crate) fn clear(self) -> io::Result<(u64, Room)> {
        match self.by {
            By::Nothing => {}
            By::Breakpoint(breakpoint) => drop(breakpoint),
            By::Code(under) => write(&self.room.memory, self.entry, &under)?,
        }
        Ok((self.entry, self.room))
    }
    /// Whether this trap has stopped the program, which stands in the stop for this signal.
    pub(crate) fn is_hit(&self, pid: u32, signal: i32) -> bool {
        let behind = if matches!(self.by, By::Code(..)) { BEHIND } else { 0 };
        let is_here = || Regs::read(pid, None).is_ok_and(|regs| regs.pc() == self.entry + behind);
        signal == libc::SIGTRAP && is_here()
    }
}

/// A breakpoint of the processor that stops a thread before it executes this instruction. It is removed when
/// the descriptor is closed.
fn breakpoint(tid: u32, at: u64) -> io::Result<OwnedFd> {
    if !IS_HELD {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = perf::EXCLUDE_KERNEL | perf::EXCLUDE_HV | perf::REMOVE_ON_EXEC | perf::SIGTRAP;
    let attr = Attr {
        kind: perf::BREAKPOINT,
        bp_type: perf::EXECUTE,
        config1: at,
        config2: size_of::<u64>() as u64,
        sample_period: 1,
        flags,
        ..Attr::default()
    };
    perf::open(attr, tid.cast_signed(), -1)
}
