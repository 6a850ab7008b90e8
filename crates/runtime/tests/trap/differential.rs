//! Instructions with a trap on them and without, from the same random states: registers, flags and memory are
//! the same afterwards. The stack pointer is random here, so the handler must run on the alternate stack;
//! otherwise the test fails.

use trapline_insn::x86_64::simulate::{Verdict, verdict};
use trapline_insn::x86_64::{Gpr, Options, Regs};
use trapline_runtime::x86_64::Step;

use crate::machine::{AREA, FLAGS, Machine, Rng};
use crate::site::{alternate_stack, arena, forget, nothing, site};
use crate::states::{aim, state};

const STATES: usize = 300;

/// Instructions that run in copies. Memory operands are based on rbx, rdi or rsi.
const COPIED: &[&[u8]] = &[
    &[0x48, 0x01, 0x0B],             // add [rbx], rcx
    &[0x83, 0x03, 0xFF],             // add dword [rbx], -1
    &[0x11, 0xC8],                   // adc eax, ecx
    &[0x48, 0x19, 0x0B],             // sbb [rbx], rcx
    &[0xFF, 0x03],                   // inc dword [rbx]
    &[0x48, 0xFF, 0xC8],             // dec rax
    &[0xF7, 0x13],                   // not dword [rbx]
    &[0x48, 0xF7, 0xD8],             // neg rax
    &[0x48, 0xD3, 0x23],             // shl qword [rbx], cl
    &[0xC1, 0xE8, 0x05],             // shr eax, 5
    &[0x66, 0xD1, 0xC8],             // ror ax, 1
    &[0x48, 0x0F, 0xAF, 0x03],       // imul rax, [rbx]
    &[0x0F, 0xC8],                   // bswap eax
    &[0x48, 0x87, 0x0B],             // xchg [rbx], rcx
    &[0xF0, 0x48, 0x0F, 0xC1, 0x0B], // lock xadd [rbx], rcx
    &[0xF0, 0x48, 0x0F, 0xB1, 0x0B], // lock cmpxchg [rbx], rcx
    &[0x0F, 0x9C, 0x03],             // setl [rbx]
    &[0x48, 0x0F, 0x4C, 0x03],       // cmovl rax, [rbx]
    &[0x48, 0x0F, 0xA3, 0xC8],       // bt rax, rcx
    &[0x48, 0x98],                   // cdqe
    &[0x48, 0x99],                   // cqo
    &[0xF5],                         // cmc
    &[0xFC],                         // cld
    &[0x9C],                         // pushf
    &[0x66, 0x50],                   // push ax
    &[0xAA],                         // stosb
    &[0xA5],                         // movsd
    &[0xF3, 0xAA],                   // rep stosb
    &[0xF3, 0x48, 0x0F, 0xB8, 0x03], // popcnt rax, [rbx]
    &[0x0F, 0x11, 0x03],             // movups [rbx], xmm0
    &[0x66, 0x48, 0x0F, 0x6E, 0xC1], // movq xmm0, rcx
    &[0xF3, 0x90],                   // pause
    &[0x0F, 0xAE, 0xF0],             // mfence
    &[0x0F, 0x38, 0xF0, 0x03],       // movbe eax, [rbx]
    &[0xD7],                         // xlatb
    &[0xC8, 0x10, 0, 0],             // enter 16, 0
];

/// Instructions that are simulated: prologues, and every way to go on elsewhere.
const SIMULATED: &[&[u8]] = &[
    &[0x55],
    &[0x41, 0x57],
    &[0x54],
    &[0x5D],
    &[0x5C],
    &[0x6A, 0x80],
    &[0x68, 1, 2, 3, 0x84],
    &[0xFF, 0x33],
    &[0x8F, 0x03],
    &[0x8F, 0x44, 0x24, 0x08],
    &[0xC9],
    &[0x90],
    &[0xF3, 0x0F, 0x1E, 0xFA],
    &[0x66, 0x2E, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0],
    &[0x48, 0x89, 0xE5],
    &[0x48, 0x89, 0x5C, 0x24, 0x08],
    &[0x8B, 0x03],
    &[0x88, 0x63, 0x05],
    &[0x66, 0x89, 0x03],
    &[0x48, 0x8B, 0x05, 0, 0, 0, 0],
    &[0x48, 0x8D, 0x05, 0, 0, 0, 0],
    &[0x0F, 0xB6, 0x03],
    &[0x48, 0x63, 0x03],
    &[0x48, 0x83, 0xEC, 0x18],
    &[0x48, 0x81, 0xEC, 0, 1, 0, 0],
    &[0x31, 0xC0],
    &[0x83, 0x3B, 0],
    &[0x48, 0x85, 0xFF],
    &[0xE8, 0, 0, 0, 0],
    &[0xE9, 0, 0, 0, 0],
    &[0xEB, 0],
    &[0x74, 0],
    &[0x0F, 0x8F, 0, 0, 0, 0],
    &[0xE2, 0],
    &[0xE3, 0],
    &[0xFF, 0xE0],
    &[0xFF, 0xD1],
    &[0xFF, 0x23],
    &[0xFF, 0x13],
    &[0xFF, 0x15, 0, 0, 0, 0],
    &[0xC3],
    &[0xC2, 0x20, 0],
    &[0xF3, 0xC3],
];

#[test]
fn simulated_instructions_do_what_they_did() {
    let (mut machine, mut rng) = start(1);
    for bytes in SIMULATED {
        let mut bytes = bytes.to_vec();
        assert!(aim(&mut bytes, &machine, &mut rng), "{bytes:02x?}");
        let Verdict::Simulate(op) = verdict(&bytes, Options::default()) else { panic!("{bytes:02x?}") };
        both(&mut machine, &bytes, true, |machine, memory| state(machine, &op, memory, &mut rng));
    }
}

#[test]
fn copied_instructions_do_what_they_did() {
    let (mut machine, mut rng) = start(2);
    for bytes in COPIED {
        let stack = matches!(bytes, [0x9C] | [0x66, 0x50] | [0xC8, ..]);
        both(&mut machine, bytes, false, |machine, _| {
            let mut regs = Regs { rip: machine.code(), rflags: rng.next() & FLAGS, ..Regs::default() };
            regs.gpr.iter_mut().for_each(|gpr| *gpr = rng.next());
            for pointer in [Gpr::Rbx, Gpr::Rdi, Gpr::Rsi] {
                regs.set(pointer, machine.area() + 64 + rng.below(AREA as u64 - 128));
            }
            if bytes[0] == 0xF3 {
                regs.set(Gpr::Rcx, rng.below(16));
            }
            if bytes[0] == 0xD7 {
                regs.set(Gpr::Rax, rng.next() & !0xFF | rng.below(32));
            }
            if stack {
                regs.set(Gpr::Rsp, machine.area() + 128);
            }
            regs
        });
    }
}

fn start(seed: u64) -> (Machine, Rng) {
    alternate_stack();
    arena();
    (Machine::new(), Rng(0x9E37_79B9_7F4A_7C15 ^ seed))
}

fn both(
    machine: &mut Machine,
    bytes: &[u8],
    simulated: bool,
    mut from: impl FnMut(&Machine, &mut [u8; AREA]) -> Regs,
) {
    let code = machine.code();
    let site = site(code, bytes, nothing);
    assert_eq!(matches!(site.step, Step::Simulate(_)), simulated, "{bytes:02x?}");
    for number in 1..=STATES {
        let mut before = [0; AREA];
        before.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + number) as u8);
        let state = from(machine, &mut before);
        let mut run = |first: u8| {
            machine.set(bytes);
            machine.set_first(first);
            *machine.memory() = before;
            (machine.run(&state), *machine.memory())
        };
        let (native, trapped) = (run(bytes[0]), run(0xCC));
        assert_eq!(native, trapped, "{bytes:02x?} from {state:x?}");
        assert_eq!(site.hits(), number as u64);
    }
    forget(code);
}
