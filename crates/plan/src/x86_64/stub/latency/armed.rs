//! The other form of a timed call: the entry puts a return trampoline into its stack word, and the
//! trampoline's code is the one exit.
//!
//! In: what is timed, with [`Trampolines`]. Out: the entry's stub, and for each segment the trampolines with
//! the code that they share. Steps A1 to B4 are those of `trampolines`; between B2 and B4 the duration is
//! recorded as at any exit (see `record`). The trampolines of one process serve all its segments. Does not:
//! inform unwinders.
//!
//! # What began and did not end (LOSS-2)
//!
//! An exception or `longjmp` leaves a call whose end never comes. While the process lives, its trampoline shows
//! it. Trampolines are private memory and end with the process. So the count of armed calls is in shared memory:
//!
//! | step | what | if the process is killed right after |
//! |---|---|---|
//! | A1 to A4 | the call is armed | one call too few is reported |
//! | A5 | a commit of its own: `[BEGUN] += 1` | the call is reported as under way, which it was |
//! | B4 | a commit of its own: [BUCKETS + …] += 1 | the call has ended |
//!
//! Begun - ended - UNRETURNED calls are under way or were left. The reader sums up BEGUN of all lines before it
//! reads what ended. So it never reports a call that has ended.
//!
//! - *A handler between any two steps*: its calls have their own A5 and B4.
//! - *Another CPU after A5*: BEGUN and BUCKETS are on different lines; only sums over all lines are compared.
//! - *A fork while a call is under way*: parent and child both return, so it ends twice and began once. Then as
//!   many calls too few are reported, but none too many.
//! - *A call that is given back* (RET-2): it counts as UNRETURNED, so it is subtracted.
//! - *A detach*: calls whose return addresses are put back do not end here. They stay what they were then.
//! - *No free trampoline, or a chain that is too long*: MISSED counts it, and A5 is skipped.
//!
//! A call stores no more for it: A5 is the commit that an exit has for RETURNS, and here each bucket counts returns.
//! Its `clear` is paid for by the hint, which is stored only where a search moves on.
//!
//! The stack word at S, and the registers, in the entry's stub (saves: `saves`):
//!
//! ```text
//!   arm          rax = [S] - code;  below code_len: a trampoline lies there, so a tail call led here (`chained`)
//!   A1           rdi = private memory, rcx = n                        (`Taking::begin`)
//!   A2           rsi = rdi + ENTRY · n, the base of the entry;  REAL = [S], UNDER = r8 or 0, WHAT, TIME
//!   A3           [S] = rcx = code + CODE · n + RETURN
//!   A4           WORD = S
//!   A5           rsi = the function's block;  [rsi + STRIDE · CPU + BEGUN] += 1       without `ahead`
//!   chained      n' = (rax >> log2 CODE);  r8 = UNDER of n' + 1, missed from CHAIN on; then A1 to A5
//! ```
//!
//! In the code behind the trampolines, with rsp = S and `[S]` = n:
//!
//! ```text
//!   come_back    rdi = time, rax = n, rcx = table, rsi = base of the entry
//!                [rsp - 80] = rdx = REAL;  rdi -= TIME, or 0 if that is below 0;  rdx = WHAT
//!   B3           WORD = 0, LENT = 0
//!   record       rsi = WHAT, the function's block;  rdi = duration
//!   B4           all loaded, rsp = S + 8, jmp [S - 80]
//!   lead_on      rax = n, rcx = table, rsi = base;  rdx = REAL, [rsp - 80] = rdi = WHAT;  B3
//!   C4, C5       [S] = rdx;  all loaded, rsp = S, jmp [S - 80]
//! ```

use trapline_record::latency::at;
use trapline_record::trampolines::{self, Trampolines, at as entry_at};

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, R8, RAX, RCX, RDI, RDX, RSI, RSP, Shift};
use super::super::machine::{Liveness, Machine};
use super::super::trampolines::{Taking, entry, entry_of, give_back, lay};
use super::area::Latency;
use super::record::{DurationBlock, RareBegun};
use super::saves::{Saves, reload, save, spill};
use crate::unwind::{TrampolineCode, X86_64, unwind_info};

/// What is left to append behind an arming entry's displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Armed {
    taking: Taking,
    chained: Fix,
    /// Where A5 begins.
    armed: u64,
    begun: Option<RareBegun>,
    leave: u64,
    /// If the trampoline leads on: the fix that waits for the word behind the stub, which holds the address.
    ahead: Option<Fix>,
}

/// Upper bound of the bytes that [`trampoline_code`] makes.
#[must_use]
pub const fn trampoline_code_len(trampolines: &Trampolines) -> u64 {
    trampolines.code_len() + 4096
}

/// Trampolines, the code that they share, and their unwind information. `None` if nothing is timed by
/// trampolines.
#[must_use]
pub fn trampoline_code(machine: &Machine, latency: &Latency) -> Option<TrampolineCode> {
    shared_code(machine, latency, |arming, asm| arming.come_back(asm))
}

/// The same for trampolines that lead on.
#[must_use]
pub fn leading_trampoline_code(machine: &Machine, latency: &Latency) -> Option<TrampolineCode> {
    shared_code(machine, latency, |arming, asm| arming.lead_on(asm))
}

fn shared_code(
    machine: &Machine,
    latency: &Latency,
    shared: impl FnOnce(&Arming, &mut Asm<'_>),
) -> Option<TrampolineCode> {
    let arming = Arming::of(machine, latency, 0, Liveness::default())?;
    let trampolines = arming.trampolines;
    let mut bytes = Vec::with_capacity(trampoline_code_len(&trampolines) as usize);
    let common = trampolines.code + trampolines.code_len();
    lay(&mut bytes, &trampolines, common, None);
    shared(&arming, &mut Asm::new(&mut bytes, common));
    let end = trampolines.code + bytes.len() as u64;
    bytes.resize(bytes.len().next_multiple_of(64), 0xCC);
    let unwind = trampolines.code + bytes.len() as u64;
    unwind_info(&mut bytes, &trampolines, X86_64);
    Some(TrampolineCode { bytes, shared: (common, end), unwind })
}

/// The entry of a call that gets a return trampoline, and the code of its end.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Arming {
    machine: Machine,
    trampolines: Trampolines,
    saves: Saves,
    durations: DurationBlock,
    /// Address of the control block's MISSED word.
    missed: u64,
}

impl Arming {
    /// `None` without trampolines.
    pub(super) fn of(machine: &Machine, latency: &Latency, function: u32, site: Liveness) -> Option<Self> {
        let saves = Saves::of(site, true, latency.outermost || latency.go.is_some());
        let durations = DurationBlock::of(machine, latency, function);
        let (trampolines, missed) = (latency.trampolines?, latency.missed);
        Some(Self { machine: *machine, trampolines, saves, durations, missed })
    }
    /// The stack word of the return address.
    const fn word(&self) -> Mem {
        Mem::At(RSP, self.saves.skipped())
    }

    /// The part of an entry's stub that comes before the displaced code: it puts a return trampoline into the
    /// stack word. With `ahead`, the trampoline runs more code right before the call returns, with all
    /// registers and the stack as its `ret` finds them. The code behind the displaced instructions then ends in
    /// a word, which the caller fills with that code's address.
    pub(super) fn begin(&self, asm: &mut Asm<'_>, ahead: bool) -> Armed {
        let trampolines = &self.trampolines;
        self.saves.enter(asm);
        asm.load(RAX, self.word());
        asm.mov_imm64(RCX, trampolines.code);
        let chained = asm.unbroken(|asm| {
            asm.alu(Alu::Sub, RAX, RCX);
            asm.alu_imm(Alu::Cmp, RAX, trampolines.code_len() as i32, true);
            asm.jcc_later(Cond::Below)
        });
        let taking = Taking::begin(asm, trampolines, &self.machine);
        let leads = self.fill(asm, false, ahead);
        let armed = asm.here();
        let begun = if ahead { None } else { self.durations.begun(asm) };
        let leave = asm.here();
        self.saves.leave(asm);
        Armed { taking, chained, armed, begun, leave, ahead: leads }
    }

    /// Steps A2 to A4. Returns, with `ahead`, the fix that waits for the word with the address to which the
    /// trampoline leads.
    ///
    /// ```text
    ///   in    rdi = private memory, rcx = trampoline;  with `chained`, r8 = number of trampolines under it
    ///   uses  rax, rcx, rdx, rsi, flags
    /// ```
    fn fill(&self, asm: &mut Asm<'_>, chained: bool, ahead: bool) -> Option<Fix> {
        let trampolines = &self.trampolines;
        entry_of(asm, RSI, RCX, RDI);
        asm.load(RAX, self.word());
        asm.store(entry(trampolines, RSI, entry_at::REAL), RAX);
        if chained {
            asm.store(entry(trampolines, RSI, entry_at::UNDER), R8);
        } else {
            asm.store_imm(entry(trampolines, RSI, entry_at::UNDER), 0);
        }
        let ahead = if ahead {
            asm.mov_imm32(RAX, 0);
            Some(asm.alu_load_later(Alu::Add, RAX))
        } else {
            asm.mov_imm64(RAX, self.durations.at());
            None
        };
        asm.store(entry(trampolines, RSI, entry_at::WHAT), RAX);
        asm.shift(Shift::Left, RCX, trampolines::CODE.trailing_zeros() as u8, true);
        asm.mov_imm64(RAX, trampolines.code + trampolines::RETURN);
        asm.alu(Alu::Add, RCX, RAX);
        asm.clock(RAX);
        asm.store(entry(trampolines, RSI, entry_at::TIME), RAX);
        asm.store(self.word(), RCX);
        asm.lea(RAX, self.word());
        asm.store(entry(trampolines, RSI, entry_at::WORD), RAX);
        ahead
    }

    /// Appends the path of an entry that was reached by a tail call, and the rare paths.
    pub(super) fn finish(&self, asm: &mut Asm<'_>, armed: Armed) {
        let Armed { taking, chained, armed, begun, leave, ahead } = armed;
        let (trampolines, missed) = (&self.trampolines, Mem::Rip(self.missed));
        taking.finish(asm, save::R8, missed, leave);
        asm.bind(chained);
        asm.shift(Shift::Right, RAX, trampolines::CODE.trailing_zeros() as u8, true);
        asm.mov_imm64(RDI, trampolines.table);
        entry_of(asm, RSI, RAX, RDI);
        asm.load(RAX, entry(trampolines, RSI, entry_at::UNDER));
        asm.alu_imm(Alu::Add, RAX, 1, true);
        asm.alu_imm(Alu::Cmp, RAX, trampolines::CHAIN as i32, true);
        let deep = asm.jcc_later(Cond::AboveEq);
        spill(asm, save::R9, R8);
        asm.mov(R8, RAX);
        let taking = Taking::begin(asm, trampolines, &self.machine);
        let again = self.fill(asm, true, ahead.is_some());
        reload(asm, R8, save::R9);
        asm.jmp(armed);
        let back = asm.here();
        reload(asm, R8, save::R9);
        asm.jmp(leave);
        taking.finish(asm, save::R8, missed, back);
        asm.bind(deep);
        asm.alu_mem_imm(Alu::Add, missed, 1, true);
        asm.jmp(leave);
        if let Some(rare) = begun {
            self.durations.begun_rare(asm, rare);
        }
        if let Some(first) = ahead {
            asm.align(8);
            asm.bind(first);
            again.into_iter().for_each(|again| asm.bind(again));
            asm.u64(0);
        }
    }

    /// The code that all trampolines share which lead on; `[rsp]` = the trampoline's number, where the return
    /// address was. The trampoline is given back while the number is still there; then the return address
    /// takes its place.
    fn lead_on(&self, asm: &mut Asm<'_>) {
        let trampolines = &self.trampolines;
        self.saves.enter(asm);
        asm.load(RAX, Mem::At(RSP, 0));
        asm.mov_imm64(RCX, trampolines.table);
        entry_of(asm, RSI, RAX, RCX);
        asm.load(RDX, entry(trampolines, RSI, entry_at::REAL));
        asm.load(RDI, entry(trampolines, RSI, entry_at::WHAT));
        spill(asm, save::REAL, RDI);
        give_back(asm, trampolines, RSI, RAX, RCX);
        asm.store(Mem::At(RSP, 0), RDX);
        self.saves.leave(asm);
        asm.jmp_mem(Mem::At(RSP, save::REAL));
    }

    /// The code that all trampolines share; `[rsp]` = the trampoline's number, where the return address was.
    fn come_back(&self, asm: &mut Asm<'_>) {
        let trampolines = &self.trampolines;
        self.saves.enter(asm);
        asm.clock(RAX);
        asm.mov(RDI, RAX);
        asm.load(RAX, Mem::At(RSP, 0));
        asm.mov_imm64(RCX, trampolines.table);
        entry_of(asm, RSI, RAX, RCX);
        asm.load(RDX, entry(trampolines, RSI, entry_at::REAL));
        spill(asm, save::REAL, RDX);
        let negative = asm.unbroken(|asm| {
            asm.alu_load(Alu::Sub, RDI, entry(trampolines, RSI, entry_at::TIME));
            asm.jcc_later(Cond::Below)
        });
        let clamped = asm.here();
        asm.load(RDX, entry(trampolines, RSI, entry_at::WHAT));
        give_back(asm, trampolines, RSI, RAX, RCX);
        asm.mov(RSI, RDX);
        let rare = self.durations.record(asm, self.durations.armed_exit());
        self.saves.leave(asm);
        asm.lea(RSP, Mem::At(RSP, 8));
        asm.jmp_mem(Mem::At(RSP, save::REAL - 8));
        asm.bind(negative);
        asm.load(RDX, entry(trampolines, RSI, entry_at::WHAT));
        let clamped_at = (self.durations.last_line() + at::CLAMPED) as i32;
        asm.alu_mem_imm(Alu::Add, Mem::At(RDX, clamped_at), 1, true);
        asm.mov_imm32(RDI, 0);
        asm.jmp(clamped);
        if let Some(rare) = rare {
            self.durations.record_rare(asm, rare, self.durations.armed_exit());
        }
    }
}
