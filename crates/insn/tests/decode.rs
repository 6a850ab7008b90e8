//! Hand-written encodings, decoded.

use trapline_insn::x86_64::{
    Class, Flow, Gpr, Insn, MemKind, decode_one, faults_on_register, flags_dead_after, overwritten_gprs,
    padding_len, sweep,
};

const AT: u64 = 0x40_1000;

fn one(bytes: &[u8]) -> Insn {
    let insn = decode_one(bytes, AT).expect("bytes");
    assert_eq!(usize::from(insn.len), bytes.len(), "{bytes:02x?}");
    insn
}

#[test]
fn flows() {
    let cases: &[(&[u8], Flow, Class)] = &[
        (&[0xF3, 0x0F, 0x1E, 0xFA], Flow::Next, Class::Endbr64),
        (&[0x55], Flow::Next, Class::Push),
        (&[0x41, 0x5F], Flow::Next, Class::Pop),
        (&[0x90], Flow::Next, Class::Nop),
        (&[0x66, 0x90], Flow::Next, Class::Nop),
        (&[0x66, 0x2E, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0], Flow::Next, Class::Nop),
        (&[0xF3, 0x90], Flow::Next, Class::Plain), // pause is no padding
        (&[0xCC], Flow::Trap, Class::Int3),
        (&[0x0F, 0x0B], Flow::Trap, Class::Plain),
        (&[0xF4], Flow::Trap, Class::Plain),
        (&[0xEB, 0xFE], Flow::Jump(Some(AT)), Class::Plain),
        (&[0xE9, 1, 0, 0, 0], Flow::Jump(Some(AT + 6)), Class::Plain),
        (&[0x74, 0x10], Flow::Branch(AT + 0x12), Class::Jcc),
        (&[0x0F, 0x85, 0xFA, 0xFF, 0xFF, 0xFF], Flow::Branch(AT), Class::Jcc),
        (&[0xE2, 0], Flow::Branch(AT + 2), Class::Loop),
        (&[0xE3, 2], Flow::Branch(AT + 4), Class::Loop),
        (&[0x67, 0xE3, 2], Flow::Branch(AT + 5), Class::Loop),
        (&[0xC7, 0xF8, 0, 0, 0, 0], Flow::Branch(AT + 6), Class::Xbegin),
        (&[0xE8, 0, 0, 0, 0], Flow::Call(Some(AT + 5)), Class::Plain),
        (&[0x66, 0x66, 0x48, 0xE8, 0, 0, 0, 0], Flow::Call(Some(AT + 8)), Class::Plain),
        (&[0x66, 0xE8, 0, 0, 0, 0], Flow::Call(Some(AT + 6)), Class::DataSize),
        (&[0xFF, 0xD0], Flow::Call(None), Class::Plain),
        (&[0x3E, 0xFF, 0xE0], Flow::Jump(None), Class::Plain),
        (&[0xFF, 0x2D, 0, 0, 0, 0], Flow::Jump(None), Class::Far),
        (&[0xC3], Flow::Ret, Class::Plain),
        (&[0xF3, 0xC3], Flow::Ret, Class::Plain),
        (&[0xC2, 8, 0], Flow::Ret, Class::Plain),
        (&[0xCB], Flow::Ret, Class::Far),
        (&[0x0F, 0x05], Flow::Syscall, Class::Plain),
        (&[0xCD, 0x80], Flow::Syscall, Class::Plain),
    ];
    for (bytes, flow, class) in cases {
        let insn = one(bytes);
        assert_eq!((insn.flow(), insn.class), (*flow, *class), "{bytes:02x?}");
    }
}

#[test]
fn a_direct_branch_knows_the_size_of_its_displacement() {
    let cases: &[(&[u8], u8)] = &[
        (&[0xEB, 0], 1),
        (&[0x74, 0], 1),
        (&[0xE3, 0], 1),
        (&[0xE2, 0], 1),
        (&[0xE9, 0, 0, 0, 0], 4),
        (&[0xE8, 0, 0, 0, 0], 4),
        (&[0x0F, 0x84, 0, 0, 0, 0], 4),
        (&[0xFF, 0xE0], 0),
        (&[0xC3], 0),
    ];
    for (bytes, size) in cases {
        assert_eq!(one(bytes).rel_size, *size, "{bytes:02x?}");
    }
}

#[test]
fn rex2_is_invalid_and_skips_one_byte() {
    let insns: Vec<Insn> = sweep(&[0xD5, 0x10, 0x90, 0xC3], AT).collect();
    assert_eq!(insns[0].flow(), Flow::Invalid);
    assert_eq!((insns[0].len, insns[1].addr), (1, AT + 1));
    assert_eq!(insns.last().expect("a last one").end(), AT + 4);
    assert_eq!(decode_one(&[0x48, 0x8B], AT).expect("bytes").flow(), Flow::Invalid, "truncated");
    assert_eq!(decode_one(&[], AT), None);
}

#[test]
fn memory_operands() {
    type Case = (&'static [u8], MemKind, Option<Gpr>, Option<Gpr>);
    let cases: &[Case] = &[
        (&[0x8B, 0x07], MemKind::Register, Some(Gpr::Rdi), None),
        (&[0x49, 0x3B, 0x66, 0x10], MemKind::Register, Some(Gpr::R14), None),
        (&[0x8B, 0x04, 0x24], MemKind::Stack, Some(Gpr::Rsp), None),
        (&[0x8B, 0x04, 0x04], MemKind::Register, Some(Gpr::Rsp), Some(Gpr::Rax)),
        (&[0x8B, 0x05, 0, 0, 0, 0], MemKind::Ip, None, None),
        (&[0x64, 0x8B, 0x04, 0x25, 0x28, 0, 0, 0], MemKind::Absolute, None, None),
        (&[0x48, 0x8D, 0x07], MemKind::None, None, None),
        (&[0x0F, 0x1F, 0x00], MemKind::None, None, None),
        (&[0x48, 0xAB], MemKind::Register, Some(Gpr::Rdi), None),
        (&[0xA4], MemKind::Register, Some(Gpr::Rdi), Some(Gpr::Rsi)),
        (&[0xC9], MemKind::None, None, None),
        (&[0x55], MemKind::None, None, None),
    ];
    for (bytes, kind, base, index) in cases {
        let insn = one(bytes);
        assert_eq!((insn.mem.kind, insn.mem.base, insn.mem.index), (*kind, *base, *index), "{bytes:02x?}");
        assert_eq!(faults_on_register(&insn), *kind == MemKind::Register);
    }
}

#[test]
fn rip_relative_displacement_is_located_before_an_immediate() {
    let insn = one(&[0xC7, 0x05, 0x10, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!((insn.ip_rel(), insn.disp_at), (Some(AT + 10 + 0x10), 2));
    let lea = one(&[0x48, 0x8D, 0x05, 0xF9, 0xFF, 0xFF, 0xFF]);
    assert_eq!((lea.ip_rel(), lea.disp_at, lea.mem.kind), (Some(AT), 3, MemKind::None));
    assert_eq!(one(&[0x67, 0x8B, 0x05, 0, 0, 0, 0]).class, Class::EipRelative);
}

fn dead(bytes: &[u8]) -> bool {
    flags_dead_after(&sweep(bytes, AT).collect::<Vec<_>>(), bytes)
}

#[test]
fn flags_are_dead_only_when_all_six_are_written_first() {
    assert!(dead(&[0x48, 0x83, 0xEC, 0x18])); // sub rsp, 24
    assert!(dead(&[0x55, 0x48, 0x39, 0xC8])); // push; cmp
    assert!(dead(&[0xFF, 0xC0, 0xF9, 0xF5])); // inc leaves CF, stc writes it
    assert!(!dead(&[0xFF, 0xC0])); // inc leaves CF
    assert!(dead(&[0x31, 0xC0])); // xor clears AF, although the manuals leave it undefined
    assert!(!dead(&[0xC1, 0xE0, 0x04])); // shl leaves AF and OF undefined
    assert!(dead(&[0x31, 0xC0, 0x39, 0xC8])); // xor; cmp
    assert!(!dead(&[0x83, 0xD0, 0x00])); // adc reads CF
    assert!(!dead(&[0x9C, 0x39, 0xC8])); // pushf reads all
    assert!(!dead(&[0x74, 0x00, 0x39, 0xC8])); // a branch ends the line
    assert!(!dead(&[0xD3, 0xE0, 0xC1, 0xE0, 0x00])); // shifts by cl and by 0 may leave all
    assert!(!dead(&[0xF3, 0xA6])); // repe cmpsb with rcx = 0
    assert!(!dead(&[]));
}

fn overwritten(bytes: &[u8]) -> Vec<Gpr> {
    let mask = overwritten_gprs(&sweep(bytes, AT).collect::<Vec<_>>(), bytes);
    Gpr::ALL.into_iter().filter(|gpr| mask & gpr.bit() != 0).collect()
}

#[test]
fn overwritten_registers_are_written_whole_and_not_read_before() {
    assert_eq!(overwritten(&[0x31, 0xC0]), [Gpr::Rax]); // xor eax, eax
    assert_eq!(overwritten(&[0x89, 0xF8]), [Gpr::Rax]); // mov eax, edi
    assert_eq!(overwritten(&[0x89, 0xF8, 0x89, 0xC7]), [Gpr::Rax]); // mov edi, eax: read before
    assert_eq!(overwritten(&[0xB0, 1]), []); // mov al, 1
    assert_eq!(overwritten(&[0x66, 0xB8, 1, 0]), []); // mov ax, 1
    assert_eq!(overwritten(&[0x48, 0x8B, 0x00]), []); // mov rax, [rax]
    assert_eq!(overwritten(&[0x48, 0x0F, 0x44, 0xC1]), []); // cmove rax, rcx
    assert_eq!(overwritten(&[0xE8, 0, 0, 0, 0, 0x31, 0xC0]), []); // a call ends the line
    assert_eq!(overwritten(&[0x5B, 0x5C]), [Gpr::Rbx]); // pop rbx; pop rsp
    assert_eq!(overwritten(&[0x0F, 0xA2]), [Gpr::Rdx, Gpr::Rbx]); // cpuid reads eax and ecx
}

#[test]
fn padding_ends_at_the_first_other_instruction() {
    assert_eq!(padding_len(&[0x66, 0x90, 0xCC, 0xCC, 0x0F, 0x1F, 0x40, 0, 0xC3, 0x90], AT), 8);
    assert_eq!(padding_len(&[0x0F, 0x1F], AT), 0, "cut off");
    assert_eq!(padding_len(&[], AT), 0);
}
