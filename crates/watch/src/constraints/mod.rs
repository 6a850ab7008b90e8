//! Whether a hardware breakpoint fits, known before it goes to the hardware.
//!
//! In: a [`Machine`] (CPUs, debug registers of each), then [`Request`]s: a target, a kind, a weight. Out: a
//! [`Reservation`], or a [`Refusal`] with the numbers. Invariants:
//! - CON-1 on every CPU and in every pool of debug registers, what CPU targets pin there plus the most that
//!   any one task pins there is at most the number of registers;
//! - CON-2 an answer is the one that some serial order of the operations gives, with each operation between
//!   its call and its return;
//! - CON-3 a refused or busy operation changes nothing.
//!
//! Does not: open events, know which address is watched, or notice that a task has exited (the holder of the
//! reservation gives it back).
//!
//! # The rule
//!
//! A breakpoint of a task may be on any CPU (it is wherever the task runs) or on one. On CPU *c* a task *t*
//! pins `any[t] + bound[t][c]` debug registers; CPU targets pin `pinned[c]`. Two tasks are never on one CPU
//! at once, so only the largest counts. With `registers` for the number of debug registers:
//!
//! > for all *c*: `pinned[c] + max over t of (any[t] + bound[t][c]) ≤ registers`
//!
//! This holds before every operation. So an operation on task *t* need only look at *t*'s own count, since
//! the others' have not grown. An operation on CPU *c* need only look at *c*:
//!
//! | target | fits if |
//! |---|---|
//! | *t*, any CPU | `any[t] + weight + most ≤ registers`, where `most` is the largest `pinned`; and for each |
//! | | CPU that *t* has a bound breakpoint on, `pinned[c] + any[t] + bound[t][c] + weight ≤ registers` |
//! | *t* on *c* | `pinned[c] + any[t] + bound[t][c] + weight ≤ registers` |
//! | *c* | `pinned[c] + top[c] + weight ≤ registers`, where `top[c]` is the largest count of any task on *c* |
//!
//! `top[c]` comes from two kinds of histograms, which count tasks by what they pin. `spread` counts all tasks
//! by `any[t]`. `bound[c]` counts the tasks with a bound breakpoint on *c* by `any[t] + bound[t][c]`. A task
//! with both kinds of breakpoints is in both histograms, which is right because its entry in `spread` is
//! never the larger one. So no operation scans CPUs or tasks, and a task's first breakpoint on one CPU moves
//! nothing between histograms. (The kernel since 6.1 keeps a task in either the global or the per-CPU
//! histograms. It moves the task through those of all CPUs when its first CPU-bound breakpoint comes and when
//! its last one goes.)
//!
//! # Which operation may change what
//!
//! | data | written | read |
//! |---|---|---|
//! | a task's own account, a mutex (`many`) | by operations on that task, under its mutex | the same |
//! | `spread`, a copy for each lane: summed up | adds and subtracts, by any operation in a lane | with all lanes closed |
//! | `bound[c]` | adds and subtracts, by any operation in a lane | with all lanes closed |
//! | `pinned[c]`, `most` | with all lanes closed | in a lane |
//!
//! A *lane* is a readers-writer lock on cache lines of its own. There are about as many lanes as CPUs, and
//! each thread always uses the same one, its own lane. To be in any one lane is the read side; to close all
//! of them, in order, is the write side. This is a big-reader lock, as Linux 2.4's `brlock` and the `lglock`
//! after it. Histograms are *modified without being used* in a lane, as the commits that brought this design
//! to the kernel put it. Additions commute, so tasks need not exclude each other. An operation that needs the
//! sum closes the lanes. A task may go up in one lane and down in another: a lane's own numbers wrap, their
//! sum does not.
//!
//! ## An operation on a task
//!
//! | step | what |
//! |---|---|
//! | T1 | find the task's account: an index into a table, no lock (a page of the table is made when first needed) |
//! | T2 | enter the thread's own lane |
//! | T3 | lock the account |
//! | T4 | decide, from the account, `most` and `pinned` |
//! | T5 | if it fits: change the account, then the histograms |
//! | T6 | unlock the account, leave the lane |
//!
//! ## An operation on a CPU
//!
//! | step | what |
//! |---|---|
//! | C1 | close lane 0, 1, … to the last |
//! | C2 | decide, from `pinned[c]`, `bound[c]` and the sum of `spread` |
//! | C3 | if it fits: change `pinned[c]`, then `most` |
//! | C4 | open the lanes |
//!
//! ## Interleavings
//!
//! - *T and T', different tasks, any lanes*: neither takes a lock that the other holds alone. So they never
//!   wait for each other. If their lanes differ, they write to no common cache line. Both may pass T4 before
//!   either reaches T5: neither's decision reads what the other changes.
//! - *T and T' in one lane*: both are readers of its lock, and add atomically.
//! - *T and T', bound to one CPU*: as above; they share the line of `bound[c]`, with atomic additions.
//! - *T and T', one task*: one after the other, by T3. The later one decides from the account that the
//!   earlier one left.
//! - *T before C*: C1 waits for T6, so C2 sees all that T5 wrote (the lane's lock orders them).
//! - *C before T*: T2 waits for C4, so T4 sees what C3 wrote. T holds no account while it waits (T2 precedes
//!   T3), so it delays no other operation.
//! - *T between C's lanes* (C has closed lane 0 and waits at lane 1, T is in lane 2): C2 is still to come,
//!   and comes after T6. T decided by numbers that C had not changed, so T is before C.
//! - *T enters a lane behind which C has passed*: this cannot happen, since C holds that lane closed until
//!   C4.
//! - *C and C'*: one after the other, by lane 0. There is no deadlock. All close the lanes in the same order,
//!   and an operation in a lane asks for no other lane. Only operations in a lane wait for an account, and
//!   its holder needs nothing more.
//! - *T waits at T3 in the lane that C is about to close*: it waits for another operation on the same task,
//!   which is in a lane already and leaves it without waiting.
//! - *many T, one C*: a lane for which a writer waits admits no new reader (std's lock prefers the writer),
//!   so C gets its turn.
//! - *T stands still in a lane* (preempted, or stopped by a debugger): operations on other tasks go on; those
//!   on CPUs wait.
//! - *[modify](Accounting::modify)*: the new claim replaces the old one within one T4–T5 (or C2–C3), and the
//!   decision leaves the old one out. So at no moment can another operation take the register that it had,
//!   and there is nothing to roll back.
//! - *try forms*: T2, T3 and C1 with the non-blocking forms of the same locks. At the first lock that is not
//!   free, the locks taken so far are released, and the answer is [`TryError::Busy`]. So the caller may run
//!   while all other threads stand still anywhere. No wakeup is lost by that, since releasing is the lock's
//!   own operation.
//! - *two T make the same page at T1*: one of them makes it, the other waits for it (once for each 512 task
//!   numbers). The same holds for try forms; it is the only place where they depend on another thread.
//!   [`Constraints::prepare`] rules it out.
//!
//! ## One CPU
//!
//! A machine of one CPU gains nothing from lanes and from mutexes of tasks. There one mutex (`one`) guards
//! the same accounts, and an operation takes that and nothing else.

mod lanes;
mod many;
mod one;
mod rule;
mod sync;
mod table;
mod words;

pub mod laws;

#[cfg(loom)]
pub use lanes::set_lane;
pub use words::{
    Accounting, BadMachine, BreakpointKind, Claim, Cpu, DebugRegisters, Held, MAX_REGISTERS, Machine,
    Refusal, Request, Reservation, Target, TaskId, TryError,
};

use rule::Exchange;
use sync::Patience;

/// The accounting of one machine.
#[derive(Debug)]
pub struct Constraints {
    machine: Machine,
    books: Books,
}

#[derive(Debug)]
enum Books {
    One(Box<one::One>),
    Many(Box<many::Many>),
}

impl Constraints {
    /// Makes an accounting with nothing reserved.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        let books = match machine.cpus() {
            1 => Books::One(Box::new(one::One::new(machine))),
            _ => Books::Many(Box::new(many::Many::new(machine))),
        };
        Self { machine, books }
    }
    /// As [`Accounting::reserve`], without waiting for another operation.
    ///
    /// # Errors
    /// [`TryError::Busy`] if another operation holds a lock that is needed.
    pub fn try_reserve(&self, request: Request) -> Result<Reservation, TryError> {
        let exchange = self.machine.exchange(None, Some(request.claim()));
        self.exchange(request.target(), exchange, Patience::Never).ok_or(TryError::Busy)??;
        Ok(Reservation::granted(request))
    }
    /// As [`Accounting::release`], without waiting for another operation.
    ///
    /// # Errors
    /// The reservation, if another operation holds a lock that is needed.
    pub fn try_release(&self, reservation: Reservation) -> Result<(), Reservation> {
        let exchange = self.machine.exchange(Some(reservation.claim()), None);
        match self.exchange(reservation.target(), exchange, Patience::Never) {
            Some(_) => Ok(()),
            None => Err(reservation),
        }
    }
    /// As [`Accounting::modify`], without waiting for another operation.
    ///
    /// # Errors
    /// [`TryError::Busy`] if another operation holds a lock that is needed.
    pub fn try_modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), TryError> {
        let exchange = self.machine.exchange(Some(reservation.claim()), Some(to));
        self.exchange(reservation.target(), exchange, Patience::Never).ok_or(TryError::Busy)??;
        *reservation = Reservation::granted(reservation.target().wants(to));
        Ok(())
    }
    /// Makes the page for a task's account, so that no later operation on the task has to.
    pub fn prepare(&self, task: TaskId) {
        if let Books::Many(books) = &self.books {
            books.prepare(task);
        }
    }
    /// The registers that each task holds, all at one moment. Waits as an operation on a CPU does.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        match &self.books {
            Books::One(books) => books.held(),
            Books::Many(books) => books.held(),
        }
    }
    /// Makes an exchange; `None` if that would have to wait and may not.
    fn exchange(
        &self,
        target: Target,
        exchange: Exchange,
        patience: Patience,
    ) -> Option<Result<(), Refusal>> {
        let place = match self.machine.place(target) {
            Ok(place) => place,
            Err(refusal) => return Some(Err(refusal)),
        };
        match &self.books {
            Books::One(books) => books.exchange(place, exchange, patience),
            Books::Many(books) => books.exchange(place, exchange, patience),
        }
    }
    fn patiently(&self, target: Target, exchange: Exchange) -> Result<(), Refusal> {
        loop {
            if let Some(answer) = self.exchange(target, exchange, Patience::Wait) {
                return answer;
            }
        }
    }
}

impl Accounting for Constraints {
    fn reserve(&self, request: Request) -> Result<Reservation, Refusal> {
        self.patiently(request.target(), self.machine.exchange(None, Some(request.claim())))?;
        Ok(Reservation::granted(request))
    }
    fn release(&self, reservation: Reservation) {
        let exchange = self.machine.exchange(Some(reservation.claim()), None);
        let released = self.patiently(reservation.target(), exchange);
        debug_assert!(released.is_ok(), "giving back is never refused");
    }
    fn modify(&self, reservation: &mut Reservation, to: Claim) -> Result<(), Refusal> {
        let exchange = self.machine.exchange(Some(reservation.claim()), Some(to));
        self.patiently(reservation.target(), exchange)?;
        *reservation = Reservation::granted(reservation.target().wants(to));
        Ok(())
    }
}
