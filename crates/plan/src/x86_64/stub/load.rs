//! At a loader's rendezvous: the thread waits until the libraries that it has loaded were looked at.
//!
//! In: the address of the state in the loader's `r_debug`; addresses of two words of the control block (`LOADED`,
//! `LOOKED`), within ±2 GiB. Out: code that runs into the displaced code. It makes no system call.
//! Invariants: LOAD-1 a thread waits at most `TURNS` turns after the tracer's last sign of life (`ALIVE`), whether or not
//! it gets an answer. LOAD-2 a thread that waited in vain lets all later ones pass. The protocol is `patch`'s `loading`. Does not: find the rendezvous.
//!
//! ```text
//!   rsp - 40 to rsp        as in `hold`
//!   rax                    the word that is looked at
//!   rcx                    the thread's ticket
//! ```
//!
//! ```text
//!   pass    if the loader's list is not complete
//!   ticket  = loaded += 1;  then up to TURNS turns, until looked >= ticket; if alive changes: TURNS again
//!   then    if no turn is left: looked = the greatest number                          (LOAD-2)
//! ```

use trapline_record::control::at;

use super::asm::{Alu, Asm, Cond, Mem, RAX, RCX};
use super::hold::{RED_ZONE, begin, count_anew, end, take_turn};

/// Appends the whole stub. `red_zone`: the function's own red zone may be live.
pub fn load(out: &mut Vec<u8>, start: u64, state: u64, (loaded, looked): (u64, u64), red_zone: bool) {
    let lowered = if red_zone { RED_ZONE } else { 0 };
    let mut asm = Asm::new(out, start);
    begin(&mut asm, lowered);
    asm.mov_imm64(RAX, state);
    asm.cmp_mem_imm32(Mem::At(RAX, 0), 0);
    let is_busy = asm.jcc_later(Cond::NotEqual);
    asm.alu_mem_imm(Alu::Add, Mem::Rip(loaded), 1, true);
    // Another process' ticket may lie between the two. A later ticket is answered later, and no less.
    asm.load(RCX, Mem::Rip(loaded));
    let alive = loaded + (at::ALIVE - at::LOADED);
    count_anew(&mut asm, alive);
    let again = asm.here();
    asm.load(RAX, Mem::Rip(looked));
    asm.alu(Alu::Cmp, RAX, RCX);
    let is_answered = asm.jcc_later(Cond::AboveEq);
    take_turn(&mut asm, alive, again, |_| {});
    asm.store_imm(Mem::Rip(looked), -1);
    asm.bind(is_busy);
    asm.bind(is_answered);
    end(&mut asm, lowered);
}
