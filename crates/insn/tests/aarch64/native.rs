//! Simulation compared with execution, and relocated code compared with the original, both on the processor
//! (or its emulator).

use super::classes::{Class, SIMULATED, VECTOR};
use super::machine::{Machine, REACH, Registers, STACK};
use super::{Rng, setting};
use trapline_insn::aarch64::{
    Fault, Memory, Op, Options, Regs, Relocated, Through, Verdict, decode, relocate, simulate,
};

/// Number of states that one word is run with.
const STATES: u64 = 250;
/// No push of the classes reaches further from sp, in either direction.
const BELOW: usize = 528;
/// Bytes around the middle that hold code.
const TAKEN: u64 = 256;

/// A word, and where it may lead.
struct Subject {
    word: u32,
    verdict: Verdict,
    /// Address of the original.
    at: u64,
    /// Address that it branches to, or loads from; never right beside the word itself.
    names: Option<u64>,
}

impl Subject {
    /// A random word of the class, with a pad at each address that it may lead to, and random bytes where it
    /// loads from.
    fn new(class: &Class, machine: &Machine, rng: &mut Rng) -> Self {
        let at = machine.middle() + 4 * rng.below(1 << 10);
        loop {
            let word = class.word(rng.next() as u32);
            let verdict = decode(word);
            let offset = match verdict {
                Verdict::Simulate(Op::Branch { offset, .. } | Op::BranchIf { offset, .. }) => Some(offset),
                Verdict::Simulate(Op::BranchTo { .. }) => {
                    Some((rng.below(2 * REACH) as i32 & !3) - REACH as i32)
                }
                Verdict::Simulate(Op::Load { offset, .. })
                | Verdict::OutOfLine(trapline_insn::aarch64::Away::LoadVector { offset, .. }) => Some(offset),
                _ => None,
            };
            if offset.is_some_and(|offset| offset.unsigned_abs() < TAKEN as u32) {
                continue;
            }
            let names = offset.map(|offset| at.wrapping_add_signed(offset.into()));
            let subject = Self { word, verdict, at, names };
            machine.place(at, &[word]);
            machine.pad(at + 4);
            match (names, subject.loads()) {
                (Some(literal), true) => {
                    machine.write(literal, &[rng.next().to_le_bytes(), rng.next().to_le_bytes()].concat());
                }
                (Some(target), false) => machine.pad(target),
                (None, _) => {}
            }
            return subject;
        }
    }

    const fn loads(&self) -> bool {
        matches!(self.verdict, Verdict::Simulate(Op::Load { .. }) | Verdict::OutOfLine(_))
    }

    /// Random registers with which it may take either path.
    fn registers(&self, machine: &Machine, rng: &mut Rng) -> Registers {
        let mut x = [0; 31];
        for register in &mut x {
            let random = rng.next();
            *register = match random >> 60 {
                0 | 1 => 0,
                2 | 3 => random << 32,
                4 | 5 => random & 3,
                6 | 7 => 1 << (random & 63),
                _ => random.rotate_left(17),
            };
        }
        if let (Verdict::Simulate(Op::BranchTo { to, .. }), Some(target)) = (self.verdict, self.names)
            && let Some(register) = x.get_mut(to.number() as usize)
        {
            *register = target;
        }
        let sp = machine.stack + 1024 + 16 * rng.below((STACK as u64 - 2048) / 16);
        let (low, high) = (rng.next(), rng.next());
        let v = std::array::from_fn(|n| u128::from(low) << 64 | u128::from(high.rotate_left(n as u32)));
        Registers { x, sp, pc: self.at, nzcv: (rng.next() & 0xF) << 28, v }
    }
}

/// Memory for a simulation: the machine's for loads, and a copy of the stack for stores.
struct Shadow<'a> {
    machine: &'a Machine,
    stack: Vec<u8>,
}

impl Memory for Shadow<'_> {
    fn load(&mut self, addr: u64, into: &mut [u8]) -> Result<(), u64> {
        self.machine.read(addr, into);
        Ok(())
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), u64> {
        let (start, end) = (self.machine.stack, self.machine.stack + STACK as u64);
        for at in (0..bytes.len() as u64).map(|n| addr + n) {
            if !(start..end).contains(&at) {
                return Err(at);
            }
        }
        let at = (addr - start) as usize;
        self.stack[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn simulated(op: Op, before: &Registers, memory: &mut Shadow<'_>) -> Result<Registers, Fault> {
    let mut state = Regs { x: before.x, sp: before.sp, pc: before.pc, pstate: before.nzcv };
    simulate(op, &mut state, memory)?;
    let nzcv = state.pstate & 0xF000_0000;
    Ok(Registers { x: state.x, sp: state.sp, pc: state.pc, nzcv, v: before.v })
}

#[test]
fn simulation_does_what_the_processor_does() {
    let (machine, mut rng) = (Machine::new(), Rng(0x5EED_0002));
    let runs = setting("TRAPLINE_A64_RUNS", 100_000);
    for class in SIMULATED {
        let mut shadow = Shadow { machine: &machine, stack: vec![0; STACK] };
        machine.write(machine.stack, &shadow.stack);
        for _ in 0..runs.div_ceil(STATES) {
            let subject = Subject::new(class, &machine, &mut rng);
            let Verdict::Simulate(op) = subject.verdict else { panic!("{} is simulated", class.name) };
            for _ in 0..STATES {
                let before = subject.registers(&machine, &mut rng);
                let ours = simulated(op, &before, &mut shadow).expect("mapped");
                let (theirs, signal) = machine.run(subject.at, &before);
                // A branch to zero, through xzr, faults there: it was taken.
                let to_zero = theirs.pc == 0 && signal.is_some();
                assert!(signal.is_none() || to_zero, "{}: {:#010x}: {signal:?}", class.name, subject.word);
                let theirs = Registers { v: if to_zero { ours.v } else { theirs.v }, ..theirs };
                assert_eq!(ours, theirs, "{}: {:#010x} on {before:x?}", class.name, subject.word);
            }
            let mut stack = vec![0; STACK];
            machine.read(machine.stack, &mut stack);
            assert!(stack == shadow.stack, "{}: {:#010x} stores the same", class.name, subject.word);
        }
        println!("{:20} {} runs agree", class.name, runs.div_ceil(STATES) * STATES);
    }
}

/// Pushes at both ends of the stack: the same signal, address, sp and pc.
#[test]
fn a_push_that_faults_is_the_programs_own_fault() {
    let (machine, mut rng) = (Machine::new(), Rng(0xFA17));
    let mut faults = 0;
    for class in SIMULATED.iter().filter(|class| class.name.contains("pre sp")) {
        for _ in 0..200 {
            let subject = Subject::new(class, &machine, &mut rng);
            let Verdict::Simulate(op) = subject.verdict else { panic!("{} is simulated", class.name) };
            let end = machine.stack + if rng.below(2) == 0 { 0 } else { STACK as u64 };
            let sp = (end + rng.below(1024) - 512) & !15;
            let before = Registers { sp, ..subject.registers(&machine, &mut rng) };
            let mut shadow = Shadow { machine: &machine, stack: vec![0; STACK] };
            let ours = simulated(op, &before, &mut shadow);
            let (theirs, signal) = machine.run(subject.at, &before);
            let word = subject.word;
            match ours {
                Ok(ours) => assert_eq!((ours, None), (theirs, signal), "{word:#010x}"),
                Err(Fault::Store { addr }) => {
                    assert_eq!(signal, Some((libc::SIGSEGV, addr)), "{word:#010x} at {sp:#x}");
                    assert_eq!(
                        (theirs.x, theirs.sp, theirs.pc),
                        (before.x, before.sp, before.pc),
                        "{word:#010x}"
                    );
                    assert!(shadow.stack.iter().all(|byte| *byte == 0));
                    faults += 1;
                }
                Err(other) => panic!("{word:#010x}: {other}"),
            }
        }
    }
    assert!(faults > 100, "{faults}");
}

/// Writes the copy to `to`, and behind it a pad that stands for the next instruction.
fn place_copy(machine: &Machine, to: u64, copy: &Relocated) -> u64 {
    machine.place(to, copy.words());
    let end = to + 4 * copy.words().len() as u64;
    machine.pad(end);
    end
}

#[test]
fn relocated_code_does_what_the_original_does() {
    let (machine, mut rng) = (Machine::new(), Rng(0x0E10_CA7E));
    // Each consists of two runs and two comparisons of the stack.
    let runs = setting("TRAPLINE_A64_RUNS", 100_000) / 4;
    let none = Options::default();
    for class in SIMULATED.iter().chain(VECTOR) {
        let (mut moved, mut stayed) = (0_u64, 0_u64);
        for round in 0..runs.div_ceil(STATES).max(8) {
            let subject = Subject::new(class, &machine, &mut rng);
            let options = match round % 3 {
                0 => none,
                1 => Options { ip_free: true, ..none },
                _ => Options { ip_free: true, guarded: true, ..none },
            };
            // A few pages away, tens of megabytes away, and out of reach of everything.
            let to = match rng.below(4) {
                0 => subject.at + TAKEN + 4 * rng.below(1 << 10),
                1 => subject.at + 4 * rng.below(REACH / 4 - (1 << 16)) + (1 << 16),
                2 => subject.at - 4 * rng.below(REACH / 4 - (1 << 16)) - (1 << 16),
                _ => machine.far + 64 + 4 * rng.below(1 << 20),
            };
            // Neither over a target nor over a literal.
            if subject.names.is_some_and(|names| names.abs_diff(to) < TAKEN) {
                continue;
            }
            let Ok(copy) = relocate(subject.word, subject.at, to, options) else {
                stayed += 1;
                continue;
            };
            let end = place_copy(&machine, to, &copy);
            for _ in 0..STATES {
                let before = subject.registers(&machine, &mut rng);
                compare(&machine, &subject, &before, (to, end), &copy, options);
                moved += 1;
            }
        }
        assert!(moved > 0, "{}: some can be moved", class.name);
        println!("{:20} {moved} runs of copies agree, {stayed} words stay", class.name);
    }
}

/// Runs the original and the copy with the same registers.
fn compare(
    machine: &Machine,
    subject: &Subject,
    before: &Registers,
    (to, end): (u64, u64),
    copy: &Relocated,
    options: Options,
) {
    let slot = before.sp - BELOW as u64;
    let (mut there, mut here, fresh) = ([0; 2 * BELOW], [0; 2 * BELOW], [0; 2 * BELOW]);
    machine.write(slot, &fresh);
    let (original, signal) = machine.run(subject.at, before);
    machine.read(slot, &mut there);
    machine.write(slot, &fresh);
    let (mut moved, other_signal) = machine.run(to, before);
    machine.read(slot, &mut here);
    if moved.pc == end {
        assert!(copy.falls_through, "{:#010x} ran off its end", subject.word);
        moved.pc = copy.next;
    }
    let call = matches!(
        subject.verdict,
        Verdict::Simulate(Op::Branch { link: true, .. } | Op::BranchTo { through: Through::Call, .. })
    );
    if options.ip_free || call {
        moved.x[16] = original.x[16];
    }
    // Memory below sp is not in use; the copy may have pushed there.
    let above = if subject.loads() { BELOW } else { 0 };
    let word = subject.word;
    if signal.is_some() {
        moved.v = original.v;
    }
    assert_eq!((original, signal), (moved, other_signal), "{word:#010x} to {to:#x} as {:x?}", copy.words());
    assert!(there[above..] == here[above..], "{word:#010x} to {to:#x} stores the same");
}
