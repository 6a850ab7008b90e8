//! Code that the exits of a module's recorded functions share: the whole record.
//!
//! In: what is recorded, the same for many functions. Out: that code, correct at one address; the stub that leads to it.
//! Only the probe's number differs, and the stub passes it in a word below rsp. See `latency::shared`, which does the
//! same for timed exits, for why. Does not: choose the address; know filters, marks or texts.
//!
//! ```text
//!              exit, returns                    exit, goes on
//!   stub       [rsp - 40] (PASSED) = probe      rsp -= 128 if the red zone may be live;  [rsp - 40] = probe
//!              jmp                              [rsp - 80] (SAVED_R11) = r11;  r11 = where it goes on;  jmp
//!   shared     the record (`written`)           [rsp - 48] (LINK) = r11;  the record
//!              ret                              jmp [rsp - 48]
//!   stub                                        rsp += 128, the displaced code
//!   dropped    [rsp - 32] (DROPPED) = address of the probe's counter on line 0
//! ```

use trapline_code::NoCode;
use trapline_record::ring::RecordKind;

use super::asm::{Asm, Mem, R11, RSP};
use super::filtering::FilterExits;
use super::machine::Liveness;
use super::passed::{Passed, passed};
use super::saves::{SAVED_R11, Saves};
use super::traced::Traced;
use super::written::Written;
use crate::request::Results;

const LINK: Mem = Mem::At(RSP, -48);

/// Exits whose records have the same code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedExit {
    /// Return or tail call.
    pub kind: RecordKind,
    /// As in [`Liveness`].
    pub red_zone_live: bool,
    /// It stands before a plain `ret`, and the shared code returns.
    pub returns: bool,
    /// As in [`Floats`](crate::Floats).
    pub results: Results,
    /// As in [`Traced`].
    pub by_go: bool,
    /// As in [`Traced`].
    pub valued: bool,
}

impl RecordedExit {
    /// What is dead at such an exit.
    #[must_use]
    pub const fn site(&self) -> Liveness {
        Liveness { flags_dead: false, dead: 0, red_zone_live: self.red_zone_live }
    }
    /// How the number is passed.
    #[must_use]
    pub const fn passed(&self) -> Passed {
        Passed { goes_on: !self.returns }
    }
}

/// Appends the shared code, which starts at `at`. `traced` has neither filter nor marks, and says how the number is passed.
///
/// # Errors
/// Some part has no code.
pub fn shared_record(
    out: &mut Vec<u8>,
    at: u64,
    traced: &Traced<'_>,
    exit: &RecordedExit,
) -> Result<(), NoCode> {
    let mut asm = Asm::new(out, at);
    if !exit.returns {
        asm.store(LINK, R11);
    }
    traced.saves(exit.kind).enter(&mut asm);
    let written = Written::emit(&mut asm, traced, exit.kind, 0, FilterExits::default());
    if exit.returns {
        asm.ret();
    } else {
        asm.jmp_mem(LINK);
    }
    written.finish(&mut asm);
    asm.lacks().map_or(Ok(()), Err)
}

/// Appends the whole stub of a recorded exit, which starts at `at`. The shared code lies at `code`.
pub fn recorded_exit(out: &mut Vec<u8>, at: u64, probe: u32, (exit, code): (&RecordedExit, u64)) {
    let mut asm = Asm::new(out, at);
    let saves = Saves::of(exit.site(), exit.kind, false).first();
    if exit.returns {
        asm.store_imm(passed(0), probe as i32);
        asm.jmp(code);
        return;
    }
    saves.step_down(&mut asm);
    asm.store_imm(passed(0), probe as i32);
    asm.store(Mem::At(RSP, SAVED_R11), R11);
    let on = asm.lea_later(R11);
    asm.jmp(code);
    asm.bind(on);
    saves.step_up(&mut asm);
}
