//! Restartable sequences: one committing store on the CPU that it was computed for, or none.
//!
//! In: code that computes and ends with the store. Out: the section; its abort handler and descriptor for
//! behind the code. A section does this: announce the descriptor in the thread's area, read the CPU number,
//! compute, store. If the kernel moves or interrupts the thread in between, the thread goes on at the abort
//! handler, which starts again.
//!
//! ```text
//!   restart:      area = tpidr_el0 + rseq.offset         `struct rseq`
//!                 scratch = descriptor
//!                 [area + RSEQ_CS] = scratch             announced
//!   start:        the body, with the area in `area`      it may overwrite both registers
//!                 its last instruction: the committing store
//!   end:          committed; `clear` takes the announcement away later
//!   ...
//!                 brk (SIGNATURE)                        the kernel requires it; it never runs
//!   abort:        b restart                              sp and memory are as at the abort, registers too
//!   descriptor:   (version, flags) = 0, start, end - start, abort: four words, at a multiple of 32
//! ```

use super::asm::{Asm, Fix, Reg, ZERO};
use super::machine::{Rseq, SIGNATURE};
use crate::sections;

/// A section without its descriptor.
pub(super) type Section = sections::Section<Fix>;
/// A section whose body follows.
pub(super) type Begun = sections::Begun<Fix>;

/// `struct rseq`, fields.
pub(super) const CPU_ID: u32 = sections::CPU_ID.unsigned_abs();
const RSEQ_CS: u32 = sections::RSEQ_CS.unsigned_abs();

/// Emits a section. `body` finds the thread's area in `area`, and ends with the committing instruction; it
/// may use both registers.
pub(super) fn section(
    asm: &mut Asm,
    rseq: Rseq,
    [area, scratch]: [Reg; 2],
    body: impl FnOnce(&mut Asm),
) -> Section {
    section_with(asm, rseq, [area, scratch], body).0
}

/// As [`section`]; also returns the result of `body`.
pub(super) fn section_with<T>(
    asm: &mut Asm,
    rseq: Rseq,
    [area, scratch]: [Reg; 2],
    body: impl FnOnce(&mut Asm) -> T,
) -> (Section, T) {
    let begun = begin(asm, rseq, [area, scratch]);
    let left = body(asm);
    (begun.end(asm.here()), left)
}

/// Announces a section. `area` = the thread's area.
pub(super) fn begin(asm: &mut Asm, rseq: Rseq, [area, scratch]: [Reg; 2]) -> Begun {
    let restart = asm.here();
    find_area(asm, rseq, area);
    let descriptor = asm.adr_later(scratch);
    asm.store(scratch, area, RSEQ_CS);
    Begun { descriptor, restart, start: asm.here() }
}

/// Clears `rseq_cs`, so that no descriptor of ours is announced while other code runs.
pub(super) fn clear(asm: &mut Asm, rseq: Rseq, scratch: Reg) {
    find_area(asm, rseq, scratch);
    asm.store(ZERO, scratch, RSEQ_CS);
}

/// `to` = the thread's area.
pub(super) fn find_area(asm: &mut Asm, rseq: Rseq, to: Reg) {
    asm.thread_pointer(to);
    asm.add_imm(to, to, rseq.offset);
}

/// Emits abort handlers and descriptors, after code that does not fall through.
pub(super) fn descriptors(asm: &mut Asm, sections: &[Section]) {
    for section in sections {
        asm.word(SIGNATURE);
        let abort = asm.here();
        asm.b(section.restart());
        asm.align(32);
        asm.bind(section.fix());
        section.descriptor(abort).into_iter().for_each(|word| asm.double(word));
    }
}
