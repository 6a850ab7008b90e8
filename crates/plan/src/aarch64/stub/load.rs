//! At a loader's rendezvous: the thread waits until the libraries that it has loaded were looked at.
//!
//! In: the address of the state in the loader's `r_debug`; addresses of two words of the control block (`LOADED`,
//! `LOOKED`). Out: code that runs into the displaced code. It makes no system call. Invariants: LOAD-1, LOAD-2
//! (x86-64's twin). Does not: find the rendezvous.
//!
//! ```text
//!   sp to sp + 48   as in `hold`
//!   WORD       the word that is looked at
//!   TICKET     the thread's ticket                   AT       the word's address
//! ```
//!
//! ```text
//!   pass    if the loader's list is not complete
//!   ticket  = loaded += 1;  then up to TURNS turns, until looked >= ticket; if alive changes: TURNS again
//!   then    if no turn is left: looked = the greatest number                          (LOAD-2)
//! ```

use trapline_record::control::at;

use super::asm::{Cond, Update};
use super::hold::{CLOSED as AT, FACTS as TICKET, SCRATCH, UnfinishedHold, WORD, count_anew, take_turn};
use super::machine::Machine;

/// The part of the stub that comes before the displaced code, for the address `at`. `below` as in `hold`.
pub fn load(
    at: u64,
    machine: &Machine,
    state: u64,
    (loaded, looked): (u64, u64),
    below: u32,
) -> UnfinishedHold {
    let mut stub = UnfinishedHold::new(at, below);
    stub.begin();
    let asm = &mut stub.asm;
    asm.constant(WORD, state);
    asm.load32(WORD, WORD, 0);
    let is_busy = asm.unless_zero_later(WORD);
    asm.number(TICKET, 1);
    asm.constant(AT, loaded);
    asm.update(machine.lse, Update::Add, TICKET, AT, [WORD, SCRATCH]);
    // Another process' ticket may lie between the two. A later ticket is answered later, and no less.
    asm.load(TICKET, AT);
    asm.constant(AT, looked);
    count_anew(asm, loaded + (at::ALIVE - at::LOADED));
    let again = asm.here();
    asm.load_acquire(WORD, AT);
    asm.compare(WORD, TICKET);
    let is_answered = asm.if_later(Cond::AboveEq);
    take_turn(asm, again, |_| {});
    asm.constant(WORD, u64::MAX);
    asm.store(WORD, AT, 0);
    asm.bind(is_busy);
    asm.bind(is_answered);
    stub.end();
    stub
}
