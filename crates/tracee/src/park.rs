//! A program held at its start without a tracer.
//!
//! When a program's libraries are mapped and relocated, and none of their constructors has run, its loader tells
//! debuggers so ([`rendezvous`](crate::rendezvous)). That is the moment to probe it. Where it cannot be held
//! there, its entry point is that moment: constructors have run by then. But only one tracer can hold a process,
//! and the batch that patches runs in another thread. So the program is *parked*: its instruction pointer is set to
//! code that waits, and it is detached. That code is written into the unused end of its vdso, where no patch
//! will ever be. The program runs there, a thread like any other, until [`Parked::release`] puts everything
//! back. All changes here are made while it is stopped by ptrace.
//!
//! # If the tracer dies (SAFE-3)
//!
//! The code that waits (`native::park::waiting`) looks at a word beside it. While the tracer lives, one of
//! its threads, the *keeper*, changes that word twenty times a second. When the word has not changed for 0.4
//! to 0.8 seconds, the program goes to its entry point by itself. In detail:
//!
//! - *The tracer dies before the program reaches its entry point*: a launched program dies too
//!   (PTRACE_O_EXITKILL). A followed one goes on, since the breakpoint goes with the tracer. Where the
//!   breakpoint had to be a trap in the code, the program ends by SIGTRAP.
//! - *It dies between the writing of the code and the end of the stop*: the registers are set last, and the
//!   kernel lets the program go on from where they point.
//! - *It dies while the program is parked*: nothing changes the word any more, and the program goes on. What
//!   the dead tracer patched is as in any running program: complete or not, journaled, and left for `trapline
//!   detach`. The code at the vdso's end stays; nothing leads there.
//! - *It dies while it releases the program*: the registers are set before the code is overwritten.
//! - *It stops the program anywhere in the code that waits*: that code pushes and pops, so all registers are
//!   set to their values at the entry point.
//! - *It lives, but gets no CPU time for so long*: the program goes on too early, and runs while it is being
//!   patched, as any running program may. [`Parked::release`] finds it elsewhere, leaves its registers and
//!   the code alone, and returns false.
//! - *The keeper writes to a program that went on*: only the code that waits reads the word, and the program
//!   does not write to that memory. The keeper ends before the code is overwritten.
//!
//! - *It has no descriptors left*: releasing needs none but those that parking opened. If another resource is short,
//!   such as threads, the program is left as by a dead tracer, and goes on by itself.
//!
//! Where the vdso has no space, the program is not parked ([`NO_ROOM`](crate::waiting::NO_ROOM)). There is no other place that it could leave by
//! itself.
//!
//! # Where it is held
//!
//! "Entry point" stands for the place where it is held, and goes on. In an [`ambush`](crate::ambush) that is the
//! loader's function; otherwise an [`EntryTrap`] stops it. The program's memory at a call of that function is as at
//! any call: the stack is aligned for it, and no call of the program's has begun.
//!
//! # A function that it runs meanwhile
//!
//! The parked thread may run a function that allocates (`batch::function`), where the C library is ready for
//! that ([`Process::entry_wait`] is the code in which it then stands). At its entry point it holds no lock:
//! no call of the program's has begun, and those of the loader and of constructors have ended. On x86-64 the
//! code that waits uses 32 bytes below the program's stack pointer, and may have pushed a word. All of them
//! lie in the 128 bytes below the stack pointer that a frame leaves free.
//!
//! | step | what | if the tracer dies right after |
//! |---|---|---|
//! | F1 | the thread is stopped somewhere in the code that waits; | nothing leads to the frame; |
//! | | a frame with its state is written below its stack | it waits on, and then goes to its entry point |
//! | F2 | its registers lead to the frame's rt_sigreturn, | it comes back into the code that waits, |
//! | | then its signals are blocked | with its own mask |
//! | F3 | its registers lead to the function, which will return to that rt_sigreturn | it ends the function first; |
//! | | | the rest is as in F2 |
//! | F4 | it is stopped behind its rt_sigreturn, and gets its registers again | as F1 |
//! | F5 | the batch ends, and later [`Parked::release`] puts the thread to its entry point | as above: registers first |
//!
//! A function that does not end in time is left to end by itself, with the thread in it. [`Parked::release`]
//! then finds the thread elsewhere, so the code that waits must stay. The thread comes back to it, finds that
//! no keeper changes the word, and goes to its entry point. Under a seccomp filter the calls that bring the thread back
//! are checked first, as for every remote call (`call_rights`).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::ambush::{Ambush, Arrived};
use crate::entry_trap::EntryTrap;
use crate::error::TargetError;
use crate::native::park::{ALIVE, waiting};
use crate::process::Process;
use crate::regs::Regs;
use crate::stuck::Stuck;
use crate::sys::wait::pause;
use crate::sys::wait::{self, Stop};
use crate::sys::{ptrace, signals};
use crate::waiting::{Keeper, Room, write};

/// A process that waits at its entry point.
#[derive(Debug)]
pub struct Parked {
    pid: u32,
    entry: u64,
    /// Where the code that waits is. Its memory is open from the beginning: the process must be let go also when no
    /// descriptor is left.
    room: Room,
    /// Registers as they were at the entry point. The code that waits changes some of them for moments, the
    /// stack pointer too. In an ambush they are the thread's own.
    regs: Option<Box<Regs>>,
    /// Address of the word in which it has said that it arrived, in an ambush.
    said: Option<u64>,
    keeper: Option<Keeper>,
}

impl PartialEq for Parked {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.entry, self.room.at) == (other.pid, other.entry, other.room.at)
    }
}

impl Eq for Parked {}

impl Parked {
    /// Parks a process that the calling thread holds in the stop of its exec. `None` if it ends before, as a
    /// program does that lacks a library, or if `goes_on` says no; then it is let go.
    pub(crate) fn from_exec(pid: u32, goes_on: &dyn Fn() -> bool) -> io::Result<Option<Self>> {
        if let Some(ambush) = Ambush::at_exec(pid) {
            ptrace::detach(pid)?;
            return Ok(ambush.wait(goes_on)?.map(Self::in_ambush));
        }
        let trap = EntryTrap::set(pid)?;
        if trap.is_there() {
            return Self::at_entry(pid, trap).map(Some);
        }
        let mut pass = 0;
        loop {
            let stop = match ptrace::cont(pid, pass).and_then(|()| next_stop(pid, goes_on)) {
                Err(_) if wait::ended(pid)? => return Ok(None),
                stop => stop?,
            };
            let Some(stop) = stop else {
                // A breakpoint goes with the trap.
                trap.clear()?;
                return Ok(None);
            };
            pass = match stop {
                Stop::Signal { signal, .. } if trap.is_hit(pid, signal) => {
                    return Self::at_entry(pid, trap).map(Some);
                }
                Stop::Signal { signal, .. } => signal,
                _ => 0,
            };
        }
    }
    /// Parks a process that the calling thread holds in the stop of this trap, and detaches from it.
    ///
    /// # Errors
    /// [`NO_ROOM`](crate::waiting::NO_ROOM), or when it is gone. If it lives, it is still in that stop.
    pub(crate) fn at_entry(pid: u32, trap: EntryTrap) -> io::Result<Self> {
        let (entry, room) = trap.clear()?;
        // Another tracer may have set an ambush there since the exec.
        room.check()?;
        room.fill(&waiting(entry))?;
        let regs = Regs::read(pid, None)?;
        let mut waits = regs;
        waits.set_pc(room.at);
        waits.write(pid)?;
        ptrace::detach(pid)?;
        // Without a keeper the program goes on too early, and nothing worse happens.
        let keeper = Keeper::start(Arc::clone(&room.memory), room.at + ALIVE).ok();
        Ok(Self { pid, entry, room, regs: Some(Box::new(regs)), said: None, keeper })
    }
    /// One that has arrived in an ambush.
    pub(crate) fn in_ambush(ambush: Ambush) -> Self {
        let Arrived { pid, entry, room, said, keeper } = ambush.arrived();
        Self { pid, entry, room, regs: None, said: Some(said), keeper }
    }
    /// Whether it waits at its loader's rendezvous, where it will go on.
    #[must_use]
    pub const fn is_at_rendezvous(&self) -> bool {
        self.said.is_some()
    }
    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }
    /// The address where it will go on.
    #[must_use]
    pub const fn entry(&self) -> u64 {
        self.entry
    }
    /// Opens the process, which then knows the code in which it waits ([`Process::entry_wait`]).
    ///
    /// # Errors
    /// As [`Process::open`].
    pub fn process(&self) -> Result<Process, TargetError> {
        Ok(Process::open(self.pid)?.with_entry_wait(self.room.range()))
    }
    /// Stops it and puts it back to its entry point; the calling thread holds it afterwards. Returns whether
    /// it was still waiting.
    pub(crate) fn seize(&mut self) -> io::Result<bool> {
        ptrace::seize(self.pid, ptrace::OPTIONS)?;
        ptrace::interrupt(self.pid)?;
        wait_stop(self.pid)?;
        let mut regs = Regs::read(self.pid, None)?;
        let there = self.room.range().contains(&regs.pc());
        if let Some(said) = self.said {
            write(&self.room.memory, said, &0u32.to_le_bytes())?;
        }
        if there {
            // It may have been stopped in its sleep.
            regs.leave_call();
            regs = self.regs.as_deref().copied().unwrap_or(regs);
            regs.set_pc(self.entry);
            regs.write(self.pid)?;
        }
        self.keeper = None;
        // A thread that is elsewhere may be in a function (step F3), which returns to the code that waits.
        if there {
            self.room.clear()?;
        }
        Ok(there)
    }
    /// Lets it run its program. Returns false if it runs already, because the tracer had no CPU time to keep
    /// it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn release(mut self) -> io::Result<bool> {
        let work = move || {
            let there = self.seize()?;
            ptrace::detach(self.pid)?;
            Ok(there)
        };
        in_own_thread(work)
    }
}

/// Runs in one thread what only one thread may do, such as all ptrace requests to a tracee.
pub(crate) fn in_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("trapline-launch".into()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the launching thread panicked")))
}

/// Waits for the next stop of a tracee, and reaps it. A loader may take any time, so only Ctrl-C ends the
/// wait.
pub(crate) fn wait_stop(pid: u32) -> io::Result<Stop> {
    let ended = || io::Error::other("the wait for its next stop was ended");
    next_stop(pid, &|| true)?.ok_or_else(ended)
}

/// The same; `None` once `goes_on` says no.
fn next_stop(pid: u32, goes_on: &dyn Fn() -> bool) -> io::Result<Option<Stop>> {
    let gone = || io::Error::other("it ended");
    let start = Instant::now();
    let stop = loop {
        match wait::peek(pid)? {
            Some(stop) => break stop,
            None if !goes_on() => return Ok(None),
            None if signals::asked_to_end(start) => {
                return Err(io::Error::other(format!(
                    "asked to end while waiting for its next stop: {}",
                    Stuck::of(pid, pid)
                )));
            }
            None => pause(start.elapsed()),
        }
    };
    if matches!(stop, Stop::Exit { .. }) {
        return Err(gone());
    }
    wait::take(pid)?.ok_or_else(gone).map(Some)
}

#[cfg(test)]
mod tests {
    use super::{EntryTrap, Parked, wait_stop};
    use crate::sys::ptrace;
    use crate::waiting::{NO_ROOM, Room};
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    /// It would have no place that it can leave by itself when the tracer dies.
    #[test]
    fn a_program_without_room_to_wait_is_not_parked_and_runs_unharmed() {
        let mut command = Command::new("/bin/echo");
        command.arg("hello").stdout(Stdio::piped());
        let mut child = ptrace::start_traced(&mut command).expect("echo starts");
        let pid = child.id();
        wait_stop(pid).expect("it comes to its exec");
        Room::find(pid, 8).and_then(|room| room.fill(&[0x90; 8])).expect("the vdso can be written");
        let error = Parked::from_exec(pid, &|| true).expect_err("there is no room");
        assert_eq!(error.to_string(), NO_ROOM);
        ptrace::detach(pid).expect("it is still in that stop");
        let mut output = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut output).expect("text");
        assert_eq!(output, "hello\n");
        assert!(child.wait().expect("ours").success());
    }

    /// What another tracer has set there since the exec stays whole.
    #[test]
    fn room_that_was_taken_meanwhile_is_left_alone() {
        let mut child = ptrace::start_traced(&mut Command::new("/bin/true")).expect("it starts");
        let pid = child.id();
        wait_stop(pid).expect("it comes to its exec");
        let trap = EntryTrap::set(pid).expect("there is room");
        let theirs = Room::find(pid, 8).expect("there is room");
        theirs.fill(&[0x90; 8]).expect("the vdso can be written");
        let error = Parked::at_entry(pid, trap).expect_err("the room is taken");
        assert_eq!(error.to_string(), NO_ROOM);
        theirs.clear().expect("only our bytes are there");
        ptrace::detach(pid).expect("it is still in that stop");
        assert!(child.wait().expect("ours").success());
    }
}
