//! WCH-3: `Accessor::effect` is right about what the processor does: single instructions run natively from
//! random states. Then memory is compared with what `effect` derives from the registers after them (INSN-4).

#[allow(dead_code, reason = "the bench of `semantics`, of which this test uses a part")]
mod machine;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use machine::{Image, Machine, Outcome, Rng, State};
use std::collections::BTreeMap;
use trapline_insn::x86_64::{Accessor, Effect, Gpr, RegFile, Stored};

/// Number of states tried for each instruction.
const STATES: usize = 16;

/// Instructions that may not occur in libc, each with a memory operand based on rbx, rdi or rsp.
const RARE: &[&[u8]] = &[
    &[0x48, 0x89, 0x03],                         // mov [rbx], rax
    &[0x88, 0x63, 0x05],                         // mov [rbx+5], ah
    &[0xc6, 0x03, 0x80],                         // mov byte [rbx], 0x80
    &[0x48, 0xc7, 0x03, 0xff, 0xff, 0xff, 0xff], // mov qword [rbx], -1
    &[0x48, 0x89, 0x1b],                         // mov [rbx], rbx
    &[0x0f, 0xc3, 0x0b],                         // movnti [rbx], ecx
    &[0x0f, 0x38, 0xf1, 0x0b],                   // movbe [rbx], ecx
    &[0x66, 0x0f, 0x38, 0xf1, 0x0b],             // movbe [rbx], cx
    &[0x48, 0x01, 0x0b],                         // add [rbx], rcx
    &[0x83, 0x03, 0xff],                         // add dword [rbx], -1
    &[0x66, 0x29, 0x0b],                         // sub [rbx], cx
    &[0x11, 0x0b],                               // adc [rbx], ecx
    &[0x19, 0x0b],                               // sbb [rbx], ecx
    &[0x20, 0x0b],                               // and [rbx], cl
    &[0x48, 0x81, 0x0b, 0, 0, 0, 0x80],          // or qword [rbx], sign-extended
    &[0x31, 0x0b],                               // xor [rbx], ecx
    &[0xff, 0x03],                               // inc dword [rbx]
    &[0x48, 0xff, 0x0b],                         // dec qword [rbx]
    &[0xf7, 0x13],                               // not dword [rbx]
    &[0x48, 0xf7, 0x1b],                         // neg qword [rbx]
    &[0xd1, 0x23],                               // shl dword [rbx], 1
    &[0xc1, 0x2b, 0x21],                         // shr dword [rbx], 33
    &[0xc0, 0x23, 0x0c],                         // shl byte [rbx], 12
    &[0x48, 0xd3, 0x3b],                         // sar qword [rbx], cl
    &[0xd2, 0x3b],                               // sar byte [rbx], cl
    &[0xd3, 0x03],                               // rol dword [rbx], cl
    &[0x66, 0xd3, 0x0b],                         // ror word [rbx], cl
    &[0xd3, 0x13],                               // rcl dword [rbx], cl
    &[0x48, 0x0f, 0xba, 0x2b, 0x2a],             // bts qword [rbx], 42
    &[0x0f, 0xba, 0x33, 0x05],                   // btr dword [rbx], 5
    &[0x0f, 0xba, 0x3b, 0x45],                   // btc dword [rbx], 69
    &[0x48, 0x87, 0x0b],                         // xchg [rbx], rcx
    &[0xf0, 0x48, 0x0f, 0xc1, 0x0b],             // lock xadd [rbx], rcx
    &[0xf0, 0x48, 0x0f, 0xb1, 0x0b],             // lock cmpxchg [rbx], rcx
    &[0x0f, 0xb0, 0x0b],                         // cmpxchg [rbx], cl
    &[0xf0, 0xff, 0x03],                         // lock inc dword [rbx]
    &[0x0f, 0x94, 0x03],                         // sete [rbx]
    &[0x0f, 0x9c, 0x03],                         // setl [rbx]
    &[0x0f, 0x97, 0x03],                         // seta [rbx]
    &[0x50],                                     // push rax
    &[0x54],                                     // push rsp
    &[0x6a, 0x85],                               // push -123
    &[0x68, 1, 2, 3, 0x84],                      // push imm32
    &[0x66, 0x50],                               // push ax
    &[0xff, 0x33],                               // push [rbx]
    &[0x8f, 0x03],                               // pop [rbx]
    &[0x8f, 0x44, 0x24, 0x10],                   // pop [rsp+16]
    &[0x9c],                                     // pushfq
    &[0xaa],                                     // stosb
    &[0x48, 0xab],                               // stosq
    &[0xf3, 0xaa],                               // rep stosb
    &[0xf3, 0x48, 0xab],                         // rep stosq
    &[0xa4],                                     // movsb
    &[0xf3, 0xa5],                               // rep movsd
    &[0x0f, 0x11, 0x03],                         // movups [rbx], xmm0
    &[0x66, 0x0f, 0xd6, 0x03],                   // movq [rbx], xmm0
    &[0x48, 0x8b, 0x1b],                         // mov rbx, [rbx]
    &[0x48, 0x3b, 0x0b],                         // cmp rcx, [rbx]
];

#[test]
fn effects_are_what_the_processor_does() {
    let mut machine = Machine::new(&Image::libc());
    let mut rng = Rng(0x5851_F42D_4C95_7F2D);
    let nop = machine.place(&[0x90, 0xcc]);
    let mut known: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut tried = 0;
    for bytes in instructions(&machine) {
        let at = machine.arena();
        machine.write_arena(&bytes);
        let Some(accessor) = Accessor::decode(&bytes, at) else { continue };
        let raw = Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode();
        for _ in 0..STATES {
            let Some(state) = fitting(&raw, &machine, &mut rng) else { break };
            let seed = rng.next();
            let before = machine.run(nop, &state, seed, &[]).memory;
            let after = machine.run(at, &state, seed, &[]);
            if after.signal != libc::SIGTRAP || after.rip != at + bytes.len() as u64 {
                continue;
            }
            let knows = check(&machine, &accessor, &before, &after, &bytes, &state);
            let row = known.entry(format!("{:?}", raw.mnemonic())).or_default();
            row[usize::from(knows)] += 1;
            tried += 1;
        }
    }
    println!("{tried} runs; by mnemonic [not known, known]: {known:?}");
    assert!(tried > 3000, "only {tried}");
    for must in
        ["Mov", "Add", "Sub", "Inc", "Dec", "And", "Or", "Xor", "Not", "Neg", "Shl", "Sar", "Rol", "Ror"]
    {
        assert!(known.get(must).is_some_and(|row| row[1] > 0), "{must} was never known");
    }
    for must in ["Cmpxchg", "Sete", "Push", "Stosb", "Stosq", "Movbe", "Movnti", "Bts", "Btr", "Btc"] {
        assert!(known.get(must).is_some_and(|row| row[1] > 0), "{must} was never known");
    }
}

/// The rare instructions, and one of each kind that libc contains.
fn instructions(machine: &Machine) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = RARE.iter().map(|bytes| bytes.to_vec()).collect();
    let mut factory = InstructionInfoFactory::new();
    let mut seen = BTreeMap::<String, usize>::new();
    for (start, len) in machine.functions() {
        let bytes = machine.bytes(start, len);
        for raw in Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE) {
            let info = factory.info(&raw);
            let access = |memory: &&iced_x86::UsedMemory| {
                !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
            };
            let stores: Vec<_> = info.used_memory().iter().filter(access).collect();
            let plain = matches!(stores[..], [one] if one.base().is_gpr64() && one.segment() != Register::FS
                && one.segment() != Register::GS && one.displacement().cast_signed().abs() < 512);
            let count = seen.entry(format!("{:?} {:?}", raw.code(), raw.op1_register())).or_default();
            if plain && harmless(&raw) && *count < 2 {
                *count += 1;
                let at = (raw.ip() - start) as usize;
                all.push(bytes[at..at + raw.len()].to_vec());
            }
        }
    }
    all
}

fn harmless(raw: &Instruction) -> bool {
    let name = format!("{:?}", raw.mnemonic());
    let prefixes = ["Xsave", "Fxsave", "Fn", "Fst", "Call", "Enter", "Xbegin", "V", "Std", "Cmpxchg16"];
    !prefixes.iter().any(|prefix| name.starts_with(prefix))
        && raw.flow_control() == iced_x86::FlowControl::Next
        && !raw.is_vsib()
}

/// A random state in which the instruction stays in the memory of the test's machine.
fn fitting(raw: &Instruction, machine: &Machine, rng: &mut Rng) -> Option<State> {
    let mut state = State::random(machine, rng);
    let strings = [Gpr::Rsi, Gpr::Rdi];
    if (0..raw.op_count())
        .any(|operand| raw.op_kind(operand) != OpKind::Memory && is_string(raw.op_kind(operand)))
    {
        strings.iter().for_each(|gpr| state.gprs[*gpr as usize] = machine.pointer(rng));
        state.gprs[Gpr::Rcx as usize] = 1 + rng.next() % 8;
        state.flags &= !0x400;
    }
    let base = raw.memory_base();
    if base.is_gpr64() && base != Register::RSP {
        state.gprs[base.number()] = machine.pointer(rng);
    }
    if raw.mnemonic() == Mnemonic::Cmpxchg && rng.next().is_multiple_of(2) {
        // Memory holds one of a few such values, so that this half succeeds now and then.
        state.gprs[Gpr::Rax as usize] = machine.pointer(rng);
    }
    let index = raw.memory_index();
    if index == base && index != Register::None {
        return None;
    }
    if index.is_gpr64() {
        state.gprs[index.number()] = rng.next() % 16;
    }
    Some(state)
}

const fn is_string(kind: OpKind) -> bool {
    matches!(kind, OpKind::MemorySegRSI | OpKind::MemoryESRDI | OpKind::MemorySegRDI)
}

/// Compares; returns whether `effect` gave the new value.
fn check(
    machine: &Machine,
    accessor: &Accessor,
    before: &[u8],
    after: &Outcome,
    bytes: &[u8],
    state: &State,
) -> bool {
    let regs = RegFile { gprs: after.gprs, flags: after.flags };
    let effect = accessor.effect(&regs);
    let what = || format!("{bytes:02x?} {effect:x?} from {state:x?}");
    let Some(start) = effect.at.and_then(|at| machine.offset_of(at)) else {
        // Only a load may have no address here, since nothing is thread-local.
        assert!(effect.stored == Stored::Nothing || effect.at.is_some(), "no address: {}", what());
        return false;
    };
    let range = start..start + effect.len as usize;
    for (index, (old, new)) in before.iter().zip(&after.memory).enumerate() {
        assert!(
            old == new || range.contains(&index),
            "byte {index} changed outside of {range:?}: {}",
            what()
        );
    }
    assert!(accessor.writes() || before == after.memory, "a load wrote: {}", what());
    known(effect, &before[range.clone()], &after.memory[range], &what)
}

/// Compares the new bytes; returns whether `effect` gave them.
fn known(effect: Effect, before: &[u8], after: &[u8], what: &dyn Fn() -> String) -> bool {
    let word =
        |bytes: &[u8]| bytes.iter().take(8).rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let check_old = |old: Option<u64>| {
        if let Some(old) = old {
            assert_eq!(old, word(before), "the old value: {}", what());
        }
    };
    match effect.stored {
        Stored::Nothing => false,
        Stored::Unknown { old } => {
            check_old(old);
            false
        }
        Stored::Value { new, old } => {
            check_old(old);
            assert_eq!(new, word(after), "the new value: {}", what());
            true
        }
        Stored::Changed(op) => {
            assert_eq!(op.apply(word(before), effect.size), word(after), "the changed value: {}", what());
            true
        }
        Stored::Fill(element) => {
            let size = effect.size as usize;
            // The last element is the one that is certain to be there.
            let last = &after[after.len() - size..];
            assert_eq!(element, word(last), "the element: {}", what());
            true
        }
    }
}
