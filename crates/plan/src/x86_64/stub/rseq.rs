//! Restartable sequences: one committing store on the CPU that it was computed for, or none.
//!
//! A section does this: announce the descriptor in the thread's area, read the CPU number, compute, store. If
//! the kernel moves or interrupts the thread in between, the thread goes on at the abort handler, which
//! starts again. The signature stands in the immediate of a `ud1` before the handler, so that disassemblers
//! stay in step.
//!
//! ```text
//!   restart    scratch = descriptor;  fs:[offset + RSEQ_CS] = scratch
//!   start      the body: scratch = fs:[offset + CPU_ID], …
//!              its last instruction is the commit
//!   end        from here on the kernel no longer interferes; `clear`: fs:[offset + RSEQ_CS] = 0
//!
//!              ud1 with the signature
//!   abort      jmp restart           the kernel changes rip, and sets fs:[offset + RSEQ_CS] = 0
//!   descriptor { 0, start, end - start, abort }      a multiple of 32
//! ```

use super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RSP, Reg, Shift};
use super::machine::Machine;
use crate::machine::Rseq;
pub(super) use crate::sections::CPU_ID;
use crate::sections::{self, RSEQ_CS};

/// A section without its descriptor.
pub(super) type Section = sections::Section<Fix>;
/// A section whose body follows.
pub(super) type Begun = sections::Begun<Fix>;

/// Emits a section; `body` may use `scratch` and ends with the committing instruction.
pub(super) fn section(
    asm: &mut Asm<'_>,
    rseq: Rseq,
    scratch: Reg,
    body: impl FnOnce(&mut Asm<'_>),
) -> Section {
    section_with(asm, rseq, scratch, body).0
}

/// As [`section`]; also returns the result of `body`.
pub(super) fn section_with<T>(
    asm: &mut Asm<'_>,
    rseq: Rseq,
    scratch: Reg,
    body: impl FnOnce(&mut Asm<'_>) -> T,
) -> (Section, T) {
    let begun = begin(asm, rseq, scratch);
    let left = body(asm);
    (begun.end(asm.here()), left)
}

/// Announces a section.
pub(super) fn begin(asm: &mut Asm<'_>, rseq: Rseq, scratch: Reg) -> Begun {
    let restart = asm.here();
    let descriptor = asm.lea_later(scratch);
    asm.store(Mem::Fs(rseq.offset + RSEQ_CS), scratch);
    Begun { descriptor, restart, start: asm.here() }
}

/// Clears `rseq_cs`, so that no descriptor of ours is announced while other code runs.
pub(super) fn clear(asm: &mut Asm<'_>, rseq: Rseq) {
    asm.store_imm(Mem::Fs(rseq.offset + RSEQ_CS), 0);
}

/// Emits abort handlers and descriptors, after code that does not fall through.
pub(super) fn descriptors(asm: &mut Asm<'_>, rseq: Rseq, sections: &[Section]) {
    for section in sections {
        asm.raw(&[0x0F, 0xB9, 0x3D]);
        asm.raw(&rseq.signature.to_le_bytes());
        let abort = asm.here();
        asm.jmp(section.restart());
        asm.align(32);
        asm.bind(section.fix());
        section.descriptor(abort).into_iter().for_each(|word| asm.u64(word));
    }
}

/// `line` = a number below `lines` that differs between most threads which run at once. Uses flags. It is for
/// processes without rseq, where every line is written by `lock add` and any choice counts exactly.
///
/// ```text
///   mask = (greatest power of two <= lines) - 1
///   line = rdpid & mask                                        with `rdpid`
///   line = (((rsp >> 16) · PHI mod 2^32) >> 16) & mask         without
/// ```
pub(super) fn any_line(asm: &mut Asm<'_>, line: Reg, rdpid: bool, lines: u32) {
    let mask = (lines.next_power_of_two() >> u32::from(!lines.is_power_of_two())) - 1;
    if rdpid {
        asm.rdpid(line);
    } else {
        asm.mov(line, RSP);
        asm.shift(Shift::Right, line, 16, true);
        asm.imul_imm(line, line, PHI, false);
        asm.shift(Shift::Right, line, 16, false);
    }
    asm.alu_imm(Alu::And, line, mask as i32, false);
    debug_assert!(line != RAX, "rax holds the flags");
}

/// `cpu` = the number of the CPU that this most likely runs on, below `lines - 1`. Uses flags. If `rdpid` is
/// missing, it uses the limit of the segment that Linux keeps for this (`__CPUNODE_SEG`,
/// arch/x86/include/asm/segment.h; its vDSO reads it so). The low 12 bits hold the number, and the node is
/// above, as with `rdpid`. A kernel without that segment leaves a meaningless number.
///
/// ```text
///   n   = (rdpid, or limit of CPU_SEGMENT) & NUMBER
///   cpu = n if n < lines - 1, else 0
/// ```
pub(super) fn likely_cpu(asm: &mut Asm<'_>, cpu: Reg, machine: &Machine) {
    const CPU_SEGMENT: u32 = 0x7b;
    const NUMBER: i32 = 0xfff;
    if machine.rdpid {
        asm.rdpid(cpu);
    } else {
        asm.mov_imm32(cpu, CPU_SEGMENT);
        asm.segment_limit(cpu, cpu);
    }
    asm.alu_imm(Alu::And, cpu, NUMBER, false);
    asm.alu_imm(Alu::Cmp, cpu, machine.lines as i32 - 1, false);
    let known = asm.jcc_later(Cond::Below);
    asm.mov_imm32(cpu, 0);
    asm.bind(known);
}

/// 2^32 over the golden ratio: spreads neighbouring numbers.
pub(super) const PHI: i32 = 0x9E37_79B1_u32.cast_signed();
