//! Relocated windows do what the originals do: both run here, on the processor, from the same random state.
//!
//! A private copy of libc's image is mapped executable. A run begins with `int3`: the SIGTRAP handler puts
//! the random registers into the signal frame and the window's address into rip. It ends with the next
//! signal: there is an `int3` behind the window and at every address that a branch in it may lead to. A fault
//! ends the run too; then both must have the same fault. Compared: the address at the end, 16 registers,
//! status flags, xmm registers, stack and scratch memory.
//!
//! `admissible` leaves out windows that write memory through registers that the harness does not choose. It
//! also leaves out those that depend on more than the state that it sets up (clocks, random numbers, the
//! kernel, FPU instruction pointers).

mod machine;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use machine::{Image, Machine, Outcome, Rng, State};
use std::collections::BTreeMap;
use trapline_insn::x86_64::{Flow, Gpr, Insn, Relocated, relocate, sweep};

/// Number of states tried for each window.
const STATES: usize = 3;
/// Maximum number of windows for each of libc's functions: the first at its entry, the others behind that.
const PER_FUNCTION: usize = 6;

#[test]
fn windows_of_libc_do_the_same_elsewhere() {
    let mut machine = Machine::new(&Image::libc());
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let (mut tally, mut flows) = (Tally::default(), BTreeMap::<&str, usize>::new());
    for (start, len) in machine.functions() {
        let bytes = machine.bytes(start, len);
        let insns: Vec<Insn> = sweep(&bytes, start).collect();
        for first in (0..insns.len()).step_by(3).take(PER_FUNCTION) {
            let Some(window) = window_of_five(&insns[first..]) else { continue };
            if let Some(outcome) = try_window(&mut machine, window, &mut rng) {
                tally.add(outcome);
                *flows.entry(name_of(window[window.len() - 1].flow())).or_default() += 1;
            }
        }
    }
    println!("{tally:?}; last instructions: {flows:?}");
    assert!(tally.windows > 4000, "only {tally:?}");
    for flow in ["jump", "branch", "call", "ret", "next"] {
        assert!(flows.get(flow).copied().unwrap_or(0) >= 20, "too few windows end in {flow}: {flows:?}");
    }
}

#[test]
fn rare_windows_do_the_same_elsewhere() {
    let mut machine = Machine::new(&Image::libc());
    let mut rng = Rng(42);
    let windows: &[&[u8]] = &[
        &[0x90, 0xFF, 0xC9, 0x75, 0xFC, 0x48, 0x89, 0xD0], // nop; 1: dec ecx; jnz 1; mov rax, rdx
        &[0x48, 0xFF, 0xC0, 0xE2, 0xFB, 0x90],             // inc rax; loop to the head; nop
        &[0x90, 0x48, 0xFF, 0xC0, 0xE2, 0xFB],             // nop; 1: inc rax; loop 1
        &[0x90, 0xFF, 0xC0, 0xE1, 0xFC, 0x90],             // loope
        &[0x90, 0xFF, 0xC0, 0xE0, 0xFC, 0x90],             // loopne
        &[0xE3, 0x10, 0x90, 0x90, 0x90],                   // jrcxz out
        &[0x67, 0xE3, 0x02, 0xFF, 0xC0, 0x90],             // jecxz over inc eax
        &[0xE2, 0x20, 0x48, 0xFF, 0xC0],                   // loop out
        &[0xEB, 0x03, 0x48, 0xFF, 0xC0, 0x90],             // jmp over inc rax
        &[0x0F, 0x84, 0x03, 0, 0, 0, 0x48, 0xFF, 0xC0, 0x90], // je over inc rax
        &[0x31, 0xC0, 0x90, 0xE8, 0x10, 0, 0, 0],          // call
        &[0xE8, 0, 0, 0, 0],                               // call to what lies behind
        &[0x90, 0x90, 0x90, 0xFF, 0xD1],                   // call rcx
        &[0x90, 0x90, 0xFF, 0x54, 0x24, 0x10],             // call [rsp+16]
        &[0x90, 0x90, 0xFF, 0x14, 0x24],                   // call [rsp]
        &[0x90, 0x90, 0x41, 0xFF, 0x14, 0x24],             // call [r12]
        &[0x90, 0xFF, 0x94, 0xCE, 0x10, 0, 0, 0],          // call [rsi+rcx*8+16]
        &[0xFF, 0x15, 0x00, 0x01, 0, 0],                   // call [rip+256]
        &[0x66, 0x66, 0x48, 0xE8, 0x40, 0, 0, 0],          // a padded TLS call
        &[0xFF, 0x25, 0x00, 0x01, 0, 0],                   // jmp [rip+256]
        &[0x90, 0x90, 0xC2, 0x10, 0x00],                   // ret 16
        &[0x90, 0x90, 0x90, 0xF3, 0xC3],                   // rep ret
        &[0xC7, 0x05, 0x00, 0x02, 0, 0, 1, 2, 3, 4],       // mov dword [rip+512], imm32
        &[0x0F, 0xB6, 0x05, 0x00, 0x02, 0, 0],             // movzx eax, byte [rip+512]
    ];
    for bytes in windows {
        let at = machine.place(bytes);
        let insns: Vec<Insn> = sweep(bytes, at).collect();
        let mut compared = 0;
        for _ in 0..50 {
            compared += try_window(&mut machine, &insns, &mut rng).expect("admissible").compared;
        }
        assert!(compared >= 10, "{bytes:02x?} compared {compared} times only");
    }
}

#[derive(Debug, Default)]
struct Tally {
    windows: usize,
    compared: usize,
    faulted: usize,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.windows += other.windows;
        self.compared += other.compared;
        self.faulted += other.faulted;
        self.skipped += other.skipped;
    }
}

const fn name_of(flow: Flow) -> &'static str {
    match flow {
        Flow::Next => "next",
        Flow::Jump(Some(_)) => "jump",
        Flow::Jump(None) => "jump*",
        Flow::Branch(_) => "branch",
        Flow::Call(Some(_)) => "call",
        Flow::Call(None) => "call*",
        Flow::Ret => "ret",
        Flow::Syscall | Flow::Trap | Flow::Invalid => "other",
    }
}

/// The shortest sequence of whole instructions with at least five bytes; `None` if there are too few.
fn window_of_five(insns: &[Insn]) -> Option<&[Insn]> {
    let first = insns.first()?;
    let count = 1 + insns.iter().position(|insn| insn.end() - first.addr >= 5)?;
    insns.get(..count)
}

/// Runs both versions from several states; `None` if the window is left out.
fn try_window(machine: &mut Machine, window: &[Insn], rng: &mut Rng) -> Option<Tally> {
    let (start, end) = (window[0].addr, window[window.len() - 1].end());
    let bytes = machine.bytes(start, (end - start) as usize);
    let needs = admissible(&bytes, window, machine)?;
    let copy = relocate(window, &bytes, machine.arena()).ok()?;
    let landings: Vec<u64> = window
        .iter()
        .filter_map(|insn| insn.flow().target())
        .chain([end])
        .filter(|t| !(start..end).contains(t))
        .collect();
    if landings.iter().any(|&t| !machine.holds(t)) {
        return None;
    }
    machine.set_traps(&landings);
    machine.write_arena(&copy.bytes);
    let mut tally = Tally { windows: 1, ..Tally::default() };
    let words: Vec<u64> = window.iter().filter_map(Insn::ip_rel).collect();
    for _ in 0..STATES {
        let state = needs.state(machine, rng);
        let seed = rng.next();
        let old = machine.run(start, &state, seed, &words);
        let new = machine.run(machine.arena(), &state, seed, &words);
        compare(window, &copy, &old, &new, machine, &mut tally, &bytes, &state);
    }
    machine.clear_traps();
    Some(tally)
}

#[allow(clippy::too_many_arguments, reason = "all of it is for the message of a failure")]
fn compare(
    window: &[Insn],
    copy: &Relocated,
    old: &Outcome,
    new: &Outcome,
    machine: &Machine,
    tally: &mut Tally,
    bytes: &[u8],
    state: &State,
) {
    let last = window[window.len() - 1];
    let inside = |rip: u64| (window[0].addr..last.end()).contains(&rip);
    if inside(old.rip) && old.rip == last.addr && matches!(last.flow(), Flow::Call(_)) {
        tally.skipped += 1; // The call itself faulted; its copy has pushed by then.
        return;
    }
    let rip = place_in_window(new.rip, window, copy, machine.arena());
    let what = || format!("{bytes:02x?} at {:#x} -> {:02x?}, from {state:x?}", window[0].addr, copy.bytes);
    assert_eq!((old.signal, old.rip), (new.signal, rip), "control: {}", what());
    for (index, gpr) in Gpr::ALL.into_iter().enumerate() {
        assert_eq!(old.gprs[index], new.gprs[index], "{gpr:?}: {}", what());
    }
    assert_eq!(old.flags, new.flags, "flags: {}", what());
    assert_eq!(old.xmm, new.xmm, "vector registers: {}", what());
    assert!(old.memory == new.memory, "memory: {}", what());
    tally.compared += 1;
    tally.faulted += usize::from(old.signal != libc::SIGTRAP);
}

/// Translates an address in the copy to the matching one in the window; other addresses stay as they are.
fn place_in_window(rip: u64, window: &[Insn], copy: &Relocated, arena: u64) -> u64 {
    let Some(at) = rip.checked_sub(arena).filter(|&at| at <= copy.bytes.len() as u64) else { return rip };
    if at == copy.bytes.len() as u64 {
        return copy.next;
    }
    let old = copy.offsets.iter().rev().find(|(_, new)| u64::from(*new) <= at);
    window[0].addr + u64::from(old.map_or(0, |(old, _)| *old))
}

/// What a window requires of the state that it is run from.
#[derive(Default)]
struct Needs {
    /// Registers that must point into the scratch memory.
    pointers: Vec<Register>,
    /// Whether `rcx` is a count of repetitions, which must be small.
    short_count: bool,
}

impl Needs {
    fn state(&self, machine: &Machine, rng: &mut Rng) -> State {
        let mut state = State::random(machine, rng);
        for register in &self.pointers {
            state.gprs[register.number()] = machine.pointer(rng);
        }
        if self.short_count {
            state.gprs[Gpr::Rcx as usize] = 1 + rng.next() % 7;
        }
        state
    }
}

/// What the window requires; `None` if running it could harm this process, or if its result depends on more
/// than the state.
fn admissible(bytes: &[u8], window: &[Insn], machine: &Machine) -> Option<Needs> {
    let mut needs = Needs::default();
    let mut written: Vec<Register> = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    let start = window[0].addr;
    for (raw, insn) in Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter().zip(window) {
        if !is_function_of_state(&raw) || insn.ip_rel().is_some_and(|word| !machine.holds(word)) {
            return None;
        }
        let loops = insn.flow().target().is_some_and(|t| (start..=insn.addr).contains(&t));
        if loops && !bytes.iter().any(|b| matches!(b, 0xE0..=0xE2 | 0xFF)) {
            return None; // Would run for as long as a random register says.
        }
        needs.short_count |= loops || raw.has_rep_prefix() || raw.has_repne_prefix();
        let info = factory.info(&raw);
        for memory in info.used_memory() {
            if matches!(memory.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                continue;
            }
            let plain = memory.index() == Register::None
                && !matches!(memory.segment(), Register::FS | Register::GS)
                && (memory.base() != Register::None || raw.is_ip_rel_memory_operand());
            if !plain || written.contains(&memory.base()) {
                return None;
            }
            let displacement = memory.displacement().cast_signed();
            match memory.base() {
                Register::RSP | Register::None => {}
                base if base.is_gpr64() && displacement.abs() < 2048 => needs.pointers.push(base),
                _ => return None,
            }
        }
        for used in info.used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                && used.register() != Register::RSP
            {
                written.push(used.register().full_register());
            }
        }
    }
    let counted =
        needs.short_count && written.contains(&Register::RCX) && needs.pointers.contains(&Register::RDI);
    (!counted).then_some(needs)
}

fn is_function_of_state(raw: &Instruction) -> bool {
    use Mnemonic as M;
    let name = format!("{:?}", raw.mnemonic());
    let prefixes = ["Xsave", "Xrstor", "Fxsave", "Fxrstor", "Fnsave", "Fnstenv", "Frstor", "Fld", "Rd", "Wr"];
    let sets_segment = raw.op0_kind() == OpKind::Register && raw.op0_register().is_segment_register();
    let far_bits = matches!(raw.mnemonic(), M::Bts | M::Btr | M::Btc) && raw.op0_kind() == OpKind::Memory;
    !sets_segment
        && !far_bits
        && !prefixes.iter().any(|prefix| name.starts_with(prefix))
        && !matches!(
            raw.mnemonic(),
            M::Syscall | M::Int | M::Int3 | M::Popfq | M::Popf | M::Enter | M::Ldmxcsr | M::Iretq
        )
        && !raw.is_vsib()
}

/// The manuals leave AF undefined behind these; `flags_dead_after` relies on what processors do.
#[test]
fn logic_instructions_overwrite_af() {
    const AF: u16 = 0x1000;
    macro_rules! behind {
        ($text:literal, $flags:expr) => {{
            let mut flags: u16 = $flags;
            // SAFETY: only registers that are named, and flags, are changed.
            unsafe {
                std::arch::asm!("sahf", $text, "lahf", inout("ax") flags, inout("ecx") 5 => _, in("edx") 3, options(nomem, nostack));
            }
            flags
        }};
    }
    for (clear, set) in [
        (behind!("and ecx, edx", 0), behind!("and ecx, edx", AF)),
        (behind!("or ecx, edx", 0), behind!("or ecx, edx", AF)),
        (behind!("xor ecx, edx", 0), behind!("xor ecx, edx", AF)),
        (behind!("test ecx, edx", 0), behind!("test ecx, edx", AF)),
        (behind!("xor ecx, ecx", 0), behind!("xor ecx, ecx", AF)),
    ] {
        assert_eq!((clear & AF, set & AF), (0, 0));
    }
    assert_eq!(behind!("not ecx", AF) & AF, AF, "this one leaves it");
}
