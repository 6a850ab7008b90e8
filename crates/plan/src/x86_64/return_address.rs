//! Functions with a return address that may not be replaced, because they read it, or because the word that they
//! are entered with is none.
//!
//! In: a function. Out: the instruction that reads the word at the entry's stack pointer, or takes its
//! address. `setjmp`, `getcontext` and `vfork` return through a copy of it a second time, long after the
//! return trampoline was given back. `dlsym` finds its caller by it; `_start` finds `argc` there. The stack
//! pointer is followed along every path from the entry, and rbp if it is set from it; an access through other
//! registers is not seen. A jump to such a function of another file is known by its name
//! ([`Image::reader_words`]): that function finds what its caller was entered with. Does not: examine
//! functions that are called.
//!
//! (sp, bp) are the distances of rsp and rbp from the entry's stack pointer, `?` if unknown; at first (0, ?):
//!
//! ```text
//!   push r, pushf                 sp - 8                   lea rsp, [r + n]    sp = r + n,  r = sp or bp
//!   pop r, popf                   sp + 8                   mov rsp, rbp        sp = bp
//!   add, sub rsp, n               sp + n, sp - n           mov rbp, rsp        bp = sp
//!   leave                         sp = bp + 8, bp = ?      call                as before it
//!   any other write               ?
//!   names the return address      an access [b + n, b + n + length) that overlaps [0, 8);  b = sp or bp
//!                                 pop at sp = 0;  mov r, rsp at sp = 0, unless r = rbp
//! ```

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use trapline_image::Image;
use trapline_record::Svma;

/// Distances of rsp and rbp from the entry's stack pointer; `None` if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Frame {
    sp: Option<i64>,
    bp: Option<i64>,
}

/// Upper bound of the instructions that are examined.
const MOST: usize = 4096;

/// The first instruction found that reads, writes or points to the return address; returns and calls do not
/// count. Jumps to other functions are followed, since `setjmp` is a jump to another function that reads it.
pub(crate) fn names_return_address(image: &Image, entry: Svma) -> Option<Svma> {
    let mut info = InstructionInfoFactory::new();
    let mut seen: HashSet<u64, BuildHasherDefault<Spread>> = HashSet::default();
    let mut open = vec![(entry.0, Frame { sp: Some(0), bp: None })];
    while let Some((at, frame)) = open.pop() {
        let unknown = frame == Frame { sp: None, bp: None };
        if unknown || seen.len() == MOST || !seen.insert(at) {
            continue;
        }
        let bytes = (1..=15).rev().find_map(|len| image.text(Svma(at), len));
        let insn = Decoder::with_ip(64, bytes.unwrap_or(&[]), at, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            continue;
        }
        if frame.touches(&insn) || jumps_through(&insn, image.reader_words()) {
            return Some(Svma(at));
        }
        let next = frame.after(&insn, &mut info);
        let (taken, on) = match insn.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => (false, true),
            FlowControl::UnconditionalBranch => (true, false),
            FlowControl::ConditionalBranch => (true, true),
            _ => (false, false),
        };
        if taken {
            open.push((insn.near_branch_target(), next));
        }
        if on {
            open.push((insn.next_ip(), next));
        }
    }
    None
}

/// Whether an instruction jumps through one of these words.
fn jumps_through(insn: &Instruction, words: &[Svma]) -> bool {
    insn.flow_control() == FlowControl::IndirectBranch
        && insn.is_ip_rel_memory_operand()
        && words.binary_search(&Svma(insn.ip_rel_memory_address())).is_ok()
}

impl Frame {
    fn at(self, register: Register) -> Option<i64> {
        match register {
            Register::RSP | Register::ESP => self.sp,
            Register::RBP => self.bp,
            _ => None,
        }
    }
    /// Whether an instruction accesses the eight bytes at the entry's stack pointer.
    fn touches(self, insn: &Instruction) -> bool {
        let word = |from: i64, len: i64| from < 8 && from + len > 0;
        if matches!(insn.mnemonic(), Mnemonic::Pop | Mnemonic::Popf | Mnemonic::Popfq) && self.sp == Some(0) {
            return true;
        }
        // A copy of the stack pointer would point to the word.
        if insn.mnemonic() == Mnemonic::Mov && insn.op1_kind() == OpKind::Register && self.sp == Some(0) {
            return insn.op1_register() == Register::RSP && insn.op0_register() != Register::RBP;
        }
        let memory = (0..insn.op_count()).any(|n| insn.op_kind(n) == OpKind::Memory);
        let base = self.at(insn.memory_base()).filter(|_| memory && insn.memory_index() == Register::None);
        base.is_some_and(|base| {
            let len =
                if insn.mnemonic() == Mnemonic::Lea { 1 } else { insn.memory_size().size().max(1) as i64 };
            insn.mnemonic() != Mnemonic::Nop && word(base + insn.memory_displacement64().cast_signed(), len)
        })
    }
    fn after(self, insn: &Instruction, info: &mut InstructionInfoFactory) -> Self {
        let mut next = self;
        let from = |register: Register, off: i64| self.at(register).map(|at| at + off);
        let to = (insn.op_count() > 0 && insn.op0_kind() == OpKind::Register).then(|| insn.op0_register());
        let moved = match (insn.mnemonic(), to) {
            (Mnemonic::Mov, Some(_)) if insn.op1_kind() == OpKind::Register => from(insn.op1_register(), 0),
            (Mnemonic::Lea, Some(_)) if insn.memory_index() == Register::None => {
                from(insn.memory_base(), insn.memory_displacement64().cast_signed())
            }
            (Mnemonic::Add, Some(r)) => immediate(insn).and_then(|n| from(r, n)),
            (Mnemonic::Sub, Some(r)) => immediate(insn).and_then(|n| from(r, -n)),
            _ => None,
        };
        let used = if may_write_frame(insn) { info.info(insn).used_registers() } else { &[] };
        for used in used {
            if matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite) {
                match used.register().full_register() {
                    Register::RSP => next.sp = None,
                    Register::RBP => next.bp = None,
                    _ => {}
                }
            }
        }
        match (insn.mnemonic(), to) {
            // A call's return pops what the call pushed.
            (Mnemonic::Call, _) => next.sp = self.sp,
            (Mnemonic::Leave, _) => next.sp = self.bp.map(|bp| bp + 8),
            (Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq, _)
                if insn.code() != Code::Pop_r64 || to != Some(Register::RSP) =>
            {
                next.sp = self.sp.map(|sp| sp + i64::from(insn.stack_pointer_increment()));
            }
            (_, Some(Register::RSP)) => next.sp = moved,
            (_, Some(Register::RBP)) => next.bp = moved,
            _ => {}
        }
        next
    }
}

/// Whether an instruction may write rsp or rbp. One that does so without naming them uses the stack, or names
/// nothing.
fn may_write_frame(insn: &Instruction) -> bool {
    let names = |n| {
        insn.op_kind(n) == OpKind::Register
            && matches!(insn.op_register(n).full_register(), Register::RSP | Register::RBP)
    };
    insn.op_count() == 0 || insn.is_stack_instruction() || (0..insn.op_count()).any(names)
}

/// Hash of an address: its bits, spread over the word (Knuth, TAOCP 3, 6.4). Nobody chooses addresses so that
/// they collide: a file that did would only make its own plan slower.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.0 << 8 | u64::from(byte)));
    }
    fn write_u64(&mut self, address: u64) {
        let product = address.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }
}

fn immediate(insn: &Instruction) -> Option<i64> {
    let is = !matches!(insn.op1_kind(), OpKind::Register | OpKind::Memory);
    is.then(|| insn.immediate(1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::{Frame, Svma, jumps_through, may_write_frame};
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register};

    /// The index of the first instruction that names the return address.
    fn first(code: &[u8]) -> Option<usize> {
        let mut info = InstructionInfoFactory::new();
        let mut frame = Frame { sp: Some(0), bp: None };
        Decoder::new(64, code, DecoderOptions::NONE).iter().position(|insn| {
            let touches = frame.touches(&insn);
            frame = frame.after(&insn, &mut info);
            touches
        })
    }

    #[test]
    fn code_that_reads_the_return_address_is_found_through_pushes_and_frames() {
        assert_eq!(first(&[0x90, 0x5F]), Some(1), "vfork: pop rdi");
        assert_eq!(first(&[0x48, 0x8B, 0x04, 0x24]), Some(0), "setjmp: mov rax, [rsp]");
        assert_eq!(first(&[0x48, 0x89, 0xE7]), Some(0), "ld.so's start: mov rdi, rsp");
        let jump = [0x48, 0x8D, 0x64, 0x24, 0xC8, 0x4C, 0x8B, 0x44, 0x24, 0x38];
        assert_eq!(first(&jump), Some(1), "lea rsp, [rsp-56]; mov r8, [rsp+56]");
        let framed = [0x55, 0x48, 0x89, 0xE5, 0x48, 0x83, 0xEC, 0x20, 0x48, 0x8B, 0x45, 0x08];
        assert_eq!(first(&framed), Some(3), "push rbp; mov rbp, rsp; sub rsp, 32; mov rax, [rbp+8]");
    }

    #[test]
    fn a_jump_through_the_word_of_a_reader_is_found() {
        // jmp [rip + 0x10], at 0x1000.
        let jump = Decoder::with_ip(64, &[0xFF, 0x25, 0x10, 0, 0, 0], 0x1000, DecoderOptions::NONE).decode();
        assert!(jumps_through(&jump, &[Svma(0x1000), Svma(0x1016)]));
        assert!(!jumps_through(&jump, &[Svma(0x1000), Svma(0x1018)]));
        let call = Decoder::with_ip(64, &[0xFF, 0x15, 0x10, 0, 0, 0], 0x1000, DecoderOptions::NONE).decode();
        assert!(!jumps_through(&call, &[Svma(0x1016)]), "its own return address is found there");
    }

    #[test]
    fn what_writes_the_frame_s_registers_names_them_or_uses_the_stack() {
        let mut info = InstructionInfoFactory::new();
        let mut word = 1_u64;
        let (mut wrote, mut passed_over) = (0, 0);
        for _ in 0..300_000 {
            // Knuth's MMIX generator.
            let mut next = || {
                word = word.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (word >> 32) as u32
            };
            let bytes: Vec<u8> = (0..4).flat_map(|_| next().to_le_bytes()).collect();
            let insn = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            if insn.is_invalid() {
                continue;
            }
            let writes = |used: &&iced_x86::UsedRegister| {
                matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite)
                    && matches!(used.register().full_register(), Register::RSP | Register::RBP)
            };
            let does = info.info(&insn).used_registers().iter().any(|used| writes(&used));
            assert!(!does || may_write_frame(&insn), "{bytes:x?} {insn:?}");
            wrote += u32::from(does);
            passed_over += u32::from(!may_write_frame(&insn));
        }
        assert!(wrote > 10_000 && passed_over > 10_000, "{wrote} {passed_over}");
    }

    #[test]
    fn what_stands_beside_it_is_no_return_address() {
        let plain =
            [0x55, 0x48, 0x89, 0xE5, 0x53, 0x48, 0x8B, 0x45, 0xF8, 0x48, 0x8B, 0x4D, 0x10, 0x5B, 0xC9, 0xC3];
        assert_eq!(first(&plain), None, "a local and the first argument on the stack");
        assert_eq!(first(&[0x4C, 0x8D, 0x54, 0x24, 0x08]), None, "lea r10, [rsp+8]: arguments on the stack");
        assert_eq!(
            first(&[0x48, 0x83, 0xE4, 0xF0, 0x48, 0x8B, 0x04, 0x24]),
            None,
            "an aligned stack: unknown"
        );
        assert_eq!(first(&[0xC3]), None);
    }
}
