//! Holds a program at its loader's rendezvous by code that waits there. No signal and no stop is needed, so a tracer
//! that dies at any moment harms nobody.
//!
//! In: a process that has not come to its rendezvous. Out: the process, which waits there. Invariants: TGT-18 a function
//! is replaced only if it does nothing but return. Does not: patch, or trace.
//!
//! A breakpoint would do the same with less code. But its signal is fatal to the program if the tracer dies between
//! the signal and its answer.
//!
//! | step | by | what | if the tracer dies right after |
//! |---|---|---|---|
//! | A1 | tracer | writes the code that waits into the unused end of the vdso | nothing leads there |
//! | A2 | tracer | writes a jump to it over the loader's function, in one write | the program waits up to a second |
//! | | | | at its rendezvous, goes on, and never waits again |
//! | A3 | program | comes there: passes while libraries are being mapped | – |
//! | A4 | program | all are mapped: says that it has arrived, in the padding of its `r_debug`; waits, | as A2 |
//! | | | asleep if no filter forbids system calls and none of its code has run | |
//! | A5 | tracer | sees that; the program counts as [parked](crate::park) | as A2 |
//! | A6 | tracer | puts the function back, so that it can be probed as any other | it goes on by itself, and returns |
//! | A7 | tracer | stops it, puts the padding back, sends it to the function | it returns from there |
//!
//! Interleavings:
//!
//! - *The program ends, or executes another one, before A4*: [`State::Gone`].
//! - *The tracer is too slow, and the program has gone on* (the keeper of [`crate::park`] had no CPU): it has said so
//!   in the padding. The function is put back; the code stays, since another thread may be in it.
//! - *The program goes on while A6 writes* (no keeper for 0.4 seconds): it is past the function by then, and the loader
//!   calls it again only for another library, some hundred microseconds later.
//! - *Another thread calls the function meanwhile*: the loader's lock does not let it.
//! - *A2 while a thread stands in the function*: at an exec there is none. A thread that opens a library holds the
//!   loader's lock.
//! - *A debugger has a breakpoint there, or another tool's probe*: the function is not bare, and nothing is done.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::auxv::{AT_PHDR, Auxv};
use crate::native::park::{AMBUSH, AMBUSH_ALIVE, LEAP, ambush, leap};
use crate::procfs;
use crate::rendezvous::{Rendezvous, holds_sanitizer, is_starting};
use crate::status::{Seccomp, ThreadStatus};
use crate::stuck::Stuck;
use crate::sys::signals;
use crate::waiting::{Keeper, Room, memory, write};

/// Words in the padding of `r_debug`: where it lies, and what the code that waits writes there.
const SAID: u64 = 4;
const ARRIVED: u32 = 1;

/// Code that waits for a program.
#[derive(Debug)]
pub(crate) struct Ambush {
    pid: u32,
    /// The loader's function, and the bytes that the jump overwrote.
    pub(crate) at: u64,
    under: [u8; LEAP],
    /// Where the code is.
    room: Room,
    list: u64,
    keeper: Option<Keeper>,
}

/// Whether no filter forbids a process system calls. The main thread's filter is that of the loader's call.
fn may_call(pid: u32) -> bool {
    let status = procfs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = ThreadStatus::parse(&status);
    status.tgid != 0 && status.seccomp == Seccomp::Off
}

/// How far a program has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It has not come to its rendezvous.
    OnItsWay,
    /// It waits there.
    Arrived,
    /// It waited, and went on.
    Passed,
    /// It has ended, or runs another program.
    Gone,
}

impl Ambush {
    /// A1 and A2 in a process that is stopped at its exec; `None` if it is to be held at its entry point. That is so
    /// for sanitizers: their runtime takes its memory in the first constructor, and ends the program if ours is in
    /// its place.
    pub(crate) fn at_exec(pid: u32) -> Option<Self> {
        let auxv = Auxv::of(pid).ok()?;
        let (loader, headers) = (auxv.loader()?, auxv.word(AT_PHDR)?);
        let is_suited = !holds_sanitizer(&memory(pid).ok()?, headers);
        is_suited.then(|| Self::set(pid, loader, may_call(pid))).flatten()
    }
    /// A1 and A2 in a process that runs, and loads a library. It spins there, if code of the program has run: what that
    /// has set up for its system calls cannot be seen as a whole (user dispatch, PR_SET_SYSCALL_USER_DISPATCH).
    pub(crate) fn at_load(pid: u32) -> Option<Self> {
        let auxv = Auxv::of(pid).ok()?;
        let (loader, headers) = (auxv.loader()?, auxv.word(AT_PHDR)?);
        let is_starting = is_starting(pid, &memory(pid).ok()?, headers);
        Self::set(pid, loader, is_starting && may_call(pid))
    }
    /// A1 and A2; `None` if that is not possible.
    fn set(pid: u32, loader: u64, may_call: bool) -> Option<Self> {
        let room = Room::find(pid, AMBUSH).ok()?;
        let rendezvous = Rendezvous::of(&room.memory, loader)?;
        let (at, list) = (rendezvous.at, rendezvous.list);
        let mut under = [0; LEAP];
        room.memory.read_exact_at(&mut under, at).ok()?;
        let jump = leap(at, under, room.at)?;
        room.fill(&ambush(list, may_call)).ok()?;
        // Before the first wait, so that the word changes from its beginning.
        let keeper = Keeper::start(Arc::clone(&room.memory), room.at + AMBUSH_ALIVE).ok();
        write(&room.memory, at, &jump).ok()?;
        Some(Self { pid, at, under, room, list, keeper })
    }
    /// A5.
    pub(crate) fn state(&self) -> State {
        let mut word = [0; 4];
        match self.room.memory.read_at(&mut word, self.list + SAID) {
            Ok(4) if u32::from_le_bytes(word) == 0 => State::OnItsWay,
            Ok(4) if u32::from_le_bytes(word) == ARRIVED => State::Arrived,
            Ok(4) => State::Passed,
            _ => State::Gone,
        }
    }
    /// Waits until it has arrived, as long as `goes_on` says so. `None` if it does not come.
    ///
    /// # Errors
    /// If Ctrl-C ends the wait.
    pub(crate) fn wait(self, goes_on: &dyn Fn() -> bool) -> io::Result<Option<Self>> {
        let start = Instant::now();
        loop {
            match self.state() {
                State::Arrived => return Ok(Some(self)),
                State::Passed | State::Gone => {
                    self.cancel();
                    return Ok(None);
                }
                State::OnItsWay if !goes_on() => {
                    self.cancel();
                    return Ok(None);
                }
                State::OnItsWay if signals::asked_to_end(start) => {
                    let how = Stuck::of(self.pid, self.pid);
                    self.cancel();
                    return Err(io::Error::other(format!(
                        "asked to end while its loader was at work: {how}"
                    )));
                }
                State::OnItsWay if start.elapsed() < Duration::from_millis(1) => std::thread::yield_now(),
                State::OnItsWay => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }
    /// A6. The program waits in our code, and its loader's lock keeps others from the function.
    pub(crate) fn arrived(self) -> Arrived {
        self.restore();
        let Self { pid, at, room, list, keeper, .. } = self;
        Arrived { pid, entry: at, room, said: list + SAID, keeper }
    }
    /// Puts the function back. The code stays: the program may be on its way into it.
    pub(crate) fn cancel(self) {
        self.restore();
    }
    fn restore(&self) {
        // If the program is gone, so are its bytes.
        drop(write(&self.room.memory, self.at, &self.under));
    }
}

/// A program that waits in an ambush.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) pid: u32,
    /// Address where it is to go on: the function.
    pub(crate) entry: u64,
    /// Where the code is in which it waits.
    pub(crate) room: Room,
    /// Address of the padding in which it has said that it arrived.
    pub(crate) said: u64,
    pub(crate) keeper: Option<Keeper>,
}
