//! A stopped thread's general registers, and how a call that the stop interrupted is made again.
//!
//! Input: registers at a stop, and the call that the thread was in before it was ordered to stop. Output:
//! registers to go on with. Invariants: TGT-3.
//!
//! # What a stop shows of a call (arch/arm64/kernel/signal.c, `do_signal`)
//!
//! The kernel decides about a restart *before* it stops the thread, and forgets the call's number. Only x0 is
//! left of the call: it holds first the call's first argument and then its result.
//!
//! | the call returned | x0 | pc | if the thread goes on with just the registers shown |
//! |---|---|---|---|
//! | one of the kernel's own codes for "again" | the argument | at the `svc` | it is made again |
//! | | | | (what the kernel would have continued begins its timeout anew) |
//! | EINTR | −4 | behind the `svc` | the program sees EINTR |
//! | anything else | the result | behind the `svc` | the call is done |
//!
//! An EINTR can be undone if the old x0 is known. The kernel shows it as long as the thread sleeps in the
//! call (`/proc/PID/task/TID/syscall`). So that is read before the order to stop ([`NOTES_CALLS`]). It is
//! believed if number, five arguments, stack pointer and pc are still the same. This is wrong only for a
//! thread that came back meanwhile and made the same call again with another x0. It would have to do that in
//! the microseconds between the look and the order.

use crate::aarch64::gadget::Gadgets;
use crate::calls::Repair;
use crate::status::InCall;
use crate::sys::ptrace::{self, Registers};

/// Whether a thread's call must be noted before the thread is ordered to stop.
pub(crate) const NOTES_CALLS: bool = true;
/// The instruction that makes a call.
pub(crate) const SYSCALL: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];

const EINTR: u64 = (-4_i64).cast_unsigned();
/// Index of x8, which holds the call's number.
const NUMBER: usize = 8;
const LINK: usize = 30;
/// Bits of pstate with the type of the branch that led to pc; landing pads check them.
const BTYPE: u64 = 3 << 10;

/// The user registers that samples hold, by bit numbers of `asm/perf_regs.h`: x0…x30 sp pc.
pub const USER_REGS: u64 = (1 << 33) - 1;

/// General registers, as the kernel shows them.
#[derive(Clone, Copy, Debug)]
pub struct Regs {
    now: Registers,
    /// The call in which the thread was stopped.
    call: Option<(i64, [u64; 6])>,
}

/// Never here: a trap's reason comes with its exception.
pub(crate) const fn of_lost_trap(_: u32) -> Option<Vec<u64>> {
    None
}

impl Regs {
    /// Reads a stopped thread's registers. `before` is the call that it was in before it was ordered to stop.
    pub(crate) fn read(tid: u32, before: Option<&InCall>) -> std::io::Result<Self> {
        let now = ptrace::regs(tid)?;
        Ok(Self { now, call: before.and_then(|before| same_call(&now, before)) })
    }
    pub(crate) fn write(&self, tid: u32) -> std::io::Result<()> {
        ptrace::set_regs(tid, &self.now)
    }
    /// The instruction pointer.
    #[must_use]
    pub const fn pc(&self) -> u64 {
        self.now.pc
    }
    /// Sets the instruction pointer.
    pub const fn set_pc(&mut self, pc: u64) {
        self.now.pc = pc;
    }
    /// Lets a thread that was stopped in a call go on without making it again.
    pub(crate) const fn leave_call(&mut self) {
        self.call = None;
    }
    /// The stack pointer.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.now.sp
    }
    /// x30: the return address of the running function, as long as that is a leaf.
    #[must_use]
    pub const fn link(&self) -> u64 {
        self.now.x[30]
    }
    /// Sets x30.
    pub const fn set_link(&mut self, to: u64) {
        self.now.x[30] = to;
    }
    /// The thread pointer (tpidr_el0).
    #[must_use]
    pub const fn thread_pointer(&self) -> u64 {
        self.now.thread_pointer
    }
    /// The general registers, in any order.
    pub fn general(&self) -> impl Iterator<Item = u64> + use<> {
        let Registers { x, sp, pc, .. } = self.now;
        x.into_iter().chain([sp, pc])
    }
    pub(crate) const fn registers(&self) -> &Registers {
        &self.now
    }
    /// The call that the thread is in, with its arguments.
    pub(crate) const fn call(&self) -> Option<(i64, [u64; 6])> {
        self.call
    }
    /// Whether the thread stands behind a call that returned EINTR.
    pub(crate) const fn shows_eintr(&self) -> bool {
        self.call.is_some() && self.now.x[0] == EINTR
    }
    /// Registers that make an interrupted call again when the kernel can no longer do so. `may_redo_eintr`:
    /// `svc` stands before the pc, and no signal is pending.
    ///
    /// ```text
    ///   (x0, pc) = (args[0], pc - 4)        if x0 = EINTR, and the call is not close
    /// ```
    pub(crate) const fn repaired(mut self, may_redo_eintr: bool) -> (Self, Repair) {
        let Some((nr, args)) = self.call else { return (self, Repair::None) };
        if self.now.x[0] != EINTR {
            return (self, Repair::Restarted);
        }
        if !may_redo_eintr || nr == libc::SYS_close {
            return (self, Repair::Eintr);
        }
        self.now.x[0] = args[0];
        self.now.pc -= SYSCALL.len() as u64;
        (self, Repair::Again)
    }
    /// Does the same for a thread that will come back through rt_sigreturn.
    pub(crate) const fn repaired_for_sigreturn(self, may_redo_eintr: bool) -> Self {
        self.repaired(may_redo_eintr).0
    }
    /// Registers that make a call with the stack pointer `sp`, and then return through the frame there. x7
    /// keeps its value: at a call's stops the kernel shows something else in it, and restores it afterwards.
    ///
    /// ```text
    ///   x0 to x5 = args, x8 = nr, x30 = restorer, sp = sp, pc = call, BTYPE = 0; all others stay
    /// ```
    pub(crate) const fn for_call(&self, gadgets: &Gadgets, sp: u64, nr: i64, args: [u64; 6]) -> Self {
        let mut regs = *self;
        let mut n = 0;
        while n < args.len() {
            regs.now.x[n] = args[n];
            n += 1;
        }
        regs.now.x[NUMBER] = nr.cast_unsigned();
        regs.now.x[LINK] = gadgets.restorer;
        (regs.now.pc, regs.now.sp) = (gadgets.call, sp);
        regs.now.pstate &= !BTYPE;
        regs
    }
    /// Registers that run a function of one argument, which returns through the frame at `sp`; and a word
    /// that must be written for that, if any.
    ///
    /// ```text
    ///   x0 = argument, x1 to x5 = 0, x8 = 0, x30 = restorer, sp = sp, pc = function, BTYPE = 0; all others stay
    /// ```
    pub(crate) const fn for_function(
        &self,
        gadgets: &Gadgets,
        sp: u64,
        function: u64,
        argument: u64,
    ) -> (Self, Option<(u64, u64)>) {
        let mut regs = self.for_call(gadgets, sp, 0, [argument, 0, 0, 0, 0, 0]);
        regs.now.pc = function;
        (regs, None)
    }
    /// What a call returned; valid at its end.
    pub(crate) const fn result(&self) -> u64 {
        self.now.x[0]
    }
    /// Whether the thread, which is at the entry of a call, is about to return through the frame at `sp`.
    pub(crate) const fn returns_through(&self, sp: u64) -> bool {
        self.now.x[NUMBER] == libc::SYS_rt_sigreturn.cast_unsigned() && self.now.sp == sp
    }
}

/// The call that a thread is stopped in, if it is the one that it was in before.
fn same_call(now: &Registers, before: &InCall) -> Option<(i64, [u64; 6])> {
    let InCall::Call { nr, args, sp, pc } = *before else { return None };
    let same = now.x[1..6] == args[1..] && now.x[NUMBER] == nr && now.sp == sp;
    let behind = now.pc == pc && now.x[0] == EINTR;
    let again = now.pc == pc.wrapping_sub(SYSCALL.len() as u64) && now.x[0] == args[0];
    (same && (behind || again)).then_some((nr.cast_signed(), args))
}

#[cfg(test)]
mod tests {
    use super::{EINTR, Regs, Repair, same_call};
    use crate::status::InCall;
    use crate::sys::ptrace::Registers;

    const EPOLL: u64 = libc::SYS_epoll_pwait.cast_unsigned();
    const BEFORE: InCall = InCall::Call { nr: EPOLL, args: [3, 1, 2, 700, 0, 8], sp: 0x7000, pc: 0x1004 };

    fn stopped(x0: u64, pc: u64) -> Registers {
        let mut x = [9; 31];
        x[..6].copy_from_slice(&[x0, 1, 2, 700, 0, 8]);
        x[8] = EPOLL;
        Registers { x, sp: 0x7000, pc, pstate: 0, thread_pointer: 0 }
    }
    fn regs(now: Registers) -> Regs {
        Regs { now, call: same_call(&now, &BEFORE) }
    }

    #[test]
    fn a_call_that_gave_eintr_is_made_again() {
        let broken = regs(stopped(EINTR, 0x1004));
        assert!(broken.shows_eintr());
        let (again, repair) = broken.repaired(true);
        assert_eq!((repair, again.now.x[0], again.now.pc), (Repair::Again, 3, 0x1000));
        assert_eq!(broken.repaired(false).1, Repair::Eintr, "a signal waits");
    }

    #[test]
    fn what_the_kernel_makes_again_is_left_alone() {
        let restarted = regs(stopped(3, 0x1000));
        assert!(!restarted.shows_eintr());
        let (same, repair) = restarted.repaired(true);
        assert_eq!((repair, same.now.x[0], same.now.pc), (Repair::Restarted, 3, 0x1000));
    }

    #[test]
    fn another_call_is_not_taken_for_the_one_before() {
        let changes: [fn(&mut Registers); 5] = [
            |now| now.x[3] = 5,
            |now| now.x[8] = 63,
            |now| now.sp = 0x6ff0,
            |now| now.pc = 0x2004,
            |now| now.x[0] = 1,
        ];
        for change in changes {
            let mut now = stopped(EINTR, 0x1004);
            change(&mut now);
            let regs = regs(now);
            assert_eq!((regs.call(), regs.repaired(true).1), (None, Repair::None));
        }
    }
}
