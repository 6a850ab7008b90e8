//! Simulation compared with known values: `nop` and the push, faults, and the effect of a guarded page.

use trapline_insn::aarch64::{Fault, Memory, Op, Regs, Verdict, decode, simulate};

const NOP: u32 = 0xD503_201F;
const PUSH: u32 = 0xA9BF_7BFD; // stp x29, x30, [sp, #-16]!

/// Memory of 64 KiB from [`BASE`] on, and nothing else.
struct Flat {
    bytes: Vec<u8>,
    guarded: bool,
}

const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 16;

impl Flat {
    fn new() -> Self {
        Self { bytes: vec![0xA5; SIZE], guarded: false }
    }
    /// The range, or the lowest address outside.
    fn range(&self, addr: u64, len: usize) -> Result<usize, u64> {
        let end = BASE + self.bytes.len() as u64;
        let outside = (0..len as u64).map(|n| addr.wrapping_add(n)).find(|a| !(BASE..end).contains(a));
        outside.map_or(Ok((addr - BASE) as usize), Err)
    }
}

impl Memory for Flat {
    fn load(&mut self, addr: u64, into: &mut [u8]) -> Result<(), u64> {
        let at = self.range(addr, into.len())?;
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        Ok(())
    }
    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), u64> {
        let at = self.range(addr, bytes.len())?;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn is_guarded(&self, _pc: u64) -> bool {
        self.guarded
    }
}

fn state() -> Regs {
    let mut x = [0; 31];
    x.iter_mut().zip(1_u64..).for_each(|(x, n)| *x = n * 0x0101_0101_0101_0101);
    Regs { x, sp: BASE + 0x1000, pc: BASE + 0x8000, pstate: 0x6000_0C00 }
}

fn op(word: u32) -> Op {
    match decode(word) {
        Verdict::Simulate(op) => op,
        other => panic!("{word:#010x} is not simulated: {other:?}"),
    }
}

/// Neither needs a second trap: a `nop` and a function's first push need no copy to run in.
#[test]
fn nop_and_push_are_simulated() {
    let (mut memory, before) = (Flat::new(), state());
    let mut after = before;
    simulate(op(NOP), &mut after, &mut memory).expect("nop");
    assert_eq!(after, Regs { pc: before.pc + 4, pstate: 0x6000_0000, ..before });
    assert!(memory.bytes.iter().all(|b| *b == 0xA5));

    let mut after = before;
    simulate(op(PUSH), &mut after, &mut memory).expect("stp");
    assert_eq!(after, Regs { pc: before.pc + 4, sp: before.sp - 16, pstate: 0x6000_0000, ..before });
    let (x29, x30) = (before.x[29].to_le_bytes(), before.x[30].to_le_bytes());
    assert_eq!(memory.bytes[0xFF0..0xFF8], x29);
    assert_eq!(memory.bytes[0xFF8..0x1000], x30);
    assert!(memory.bytes[..0xFF0].iter().chain(&memory.bytes[0x1000..]).all(|b| *b == 0xA5));
}

/// Each immediate that compilers may choose for the push.
#[test]
fn every_frame_size_of_the_push_moves_sp_by_it() {
    for imm7 in -64..64_i32 {
        let word = PUSH & !(0x7F << 15) | (imm7 as u32 & 0x7F) << 15;
        let (mut memory, mut after) = (Flat::new(), state());
        simulate(op(word), &mut after, &mut memory).expect("mapped");
        assert_eq!(after.sp, state().sp.wrapping_add_signed(8 * i64::from(imm7)));
        let at = (after.sp - BASE) as usize;
        assert_eq!(memory.bytes[at..at + 8], state().x[29].to_le_bytes());
    }
}

#[test]
fn a_push_that_faults_changes_nothing_and_names_the_address() {
    let cases = [
        (BASE, BASE - 16),                                  // below all memory
        (BASE + SIZE as u64 + 32, BASE + SIZE as u64 + 16), // above it
        (0, 0_u64.wrapping_sub(16)),
    ];
    for (sp, addr) in cases {
        let mut memory = Flat::new();
        let before = Regs { sp, ..state() };
        let mut after = before;
        assert_eq!(simulate(op(PUSH), &mut after, &mut memory), Err(Fault::Store { addr }));
        assert_eq!(after, before);
        assert!(memory.bytes.iter().all(|b| *b == 0xA5));
    }
    // str x30, [sp, #-248]!: the last 8 bytes lie across the end.
    let mut memory = Flat::new();
    let before = Regs { sp: BASE + SIZE as u64 + 256, ..state() };
    let mut after = before;
    simulate(op(0xF810_0FFE), &mut after, &mut memory).expect_err("outside");
    assert_eq!(after, before);
}

/// Half of the pair is mapped: nothing is stored, and the reported address is the first one outside.
#[test]
fn a_push_across_the_end_of_memory_names_the_first_address_outside() {
    let mut memory = Flat { bytes: vec![0xA5; SIZE - 8], guarded: false };
    let before = Regs { sp: BASE + SIZE as u64, ..state() };
    let mut after = before;
    let outside = BASE + SIZE as u64 - 8;
    assert_eq!(simulate(op(PUSH), &mut after, &mut memory), Err(Fault::Store { addr: outside }));
    assert_eq!(after, before);
    assert!(memory.bytes.iter().all(|b| *b == 0xA5));
}

#[test]
fn a_push_by_an_odd_stack_pointer_is_an_alignment_fault() {
    let before = Regs { sp: BASE + 0x1008, ..state() };
    let mut after = before;
    assert_eq!(
        simulate(op(PUSH), &mut after, &mut Flat::new()),
        Err(Fault::StackAlignment { sp: before.sp })
    );
    assert_eq!(after, before);
}

#[test]
fn a_literal_that_faults_changes_nothing() {
    let before = Regs { pc: BASE - 0x100, ..state() };
    let mut after = before;
    // ldr x3, .+8
    assert_eq!(
        simulate(op(0x5800_0043), &mut after, &mut Flat::new()),
        Err(Fault::Load { addr: BASE - 0x100 + 8 })
    );
    assert_eq!(after, before);
    // prfm pldl1keep, .+8: a hint never faults
    simulate(op(0xD800_0040), &mut after, &mut Flat::new()).expect("a hint");
    assert_eq!(after.pc, before.pc + 4);
}

/// BTYPE by instruction, register and page, after the pseudocode of BR, BLR, RET in the Arm ARM.
#[test]
fn branches_through_registers_say_what_they_may_land_on() {
    let (br_x3, br_x16, br_x17) = (0xD61F_0060, 0xD61F_0200, 0xD61F_0220);
    let (blr_x3, ret_x3) = (0xD63F_0060, 0xD65F_0060);
    let cases = [
        (br_x3, false, 1),
        (br_x3, true, 3),
        (br_x16, true, 1),
        (br_x17, true, 1),
        (blr_x3, false, 2),
        (blr_x3, true, 2),
        (ret_x3, true, 0),
    ];
    for (word, guarded, btype) in cases {
        let mut memory = Flat { guarded, ..Flat::new() };
        let mut after = state();
        simulate(op(word), &mut after, &mut memory).expect("no memory");
        assert_eq!(after.pstate >> 10 & 3, btype, "{word:#x}");
    }
}

#[test]
fn only_calls_and_returns_move_the_control_stack() {
    for (word, moves) in [(0x9400_0001, true), (0xD63F_0060, true), (0xD65F_03C0, true)] {
        assert_eq!(op(word).moves_control_stack(), moves);
    }
    for word in [0x1400_0001, 0xD61F_0060, NOP, PUSH, 0x5400_0020] {
        assert!(!op(word).moves_control_stack());
    }
}

/// `blr x30` reads its target before it writes the return address.
#[test]
fn a_call_through_the_link_register() {
    let before = state();
    let mut after = before;
    simulate(op(0xD63F_03C0), &mut after, &mut Flat::new()).expect("no memory");
    assert_eq!((after.pc, after.x[30]), (before.x[30], before.pc + 4));
}
