//! What a seccomp filter may answer to a system call, derived from its program alone.
//!
//! Input: a classic BPF program as the kernel returns it (PTRACE_SECCOMP_GET_FILTER; the language: seccomp(2)
//! and Documentation/networking/filter.rst), and a call of which some arguments are not known yet. Output:
//! the worst answer on any path. An unknown value may be anything, so both ways of a branch on it are
//! followed. Invariant: the search ends for every program. Does not: read filters.

use std::collections::BTreeSet;

use crate::numbers::AUDIT_ARCH;

/// An instruction, as `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Insn {
    /// The operation.
    pub code: u16,
    /// Instructions to skip when a comparison holds.
    pub jt: u8,
    /// Instructions to skip when it does not hold.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// A call that is going to be made in the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Name for messages.
    pub name: &'static str,
    /// Its number.
    pub nr: u32,
    /// Its arguments, as far as they are known.
    pub args: [Option<u64>; 6],
}

/// What the filter does with a call, from good to bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Answer {
    /// It is made.
    Allowed,
    /// It returns an error.
    Fails,
    /// It kills, raises a signal, waits for another process, or cannot be determined.
    Harms,
}

/// Bytes of `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
const DATA_LEN: u32 = 64;
/// Limit of visited states, after which a program counts as one with an answer that cannot be determined.
const PATIENCE: usize = 100_000;

/// The state of a filter program. `None` is an unknown value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct State {
    pc: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// The worst that a filter may answer to a call.
#[must_use]
pub fn worst(filter: &[Insn], call: &Call) -> Answer {
    let mut open = vec![State { a: Some(0), x: Some(0), memory: [Some(0); 16], ..State::default() }];
    let mut seen = BTreeSet::new();
    let mut worst = Answer::Allowed;
    while let Some(state) = open.pop() {
        if worst == Answer::Harms || seen.len() > PATIENCE {
            return Answer::Harms;
        }
        if !seen.insert(state) {
            continue;
        }
        match filter.get(state.pc).and_then(|insn| step(*insn, state, call)) {
            Some(Outcome::On(next)) => open.push(next),
            Some(Outcome::Either(one, other)) => open.extend([one, other]),
            Some(Outcome::Returns(answer)) => worst = worst.max(answer),
            None => return Answer::Harms,
        }
    }
    worst
}

enum Outcome {
    On(State),
    Either(State, State),
    Returns(Answer),
}

/// Executes one instruction; `None` for what seccomp does not know.
fn step(insn: Insn, mut state: State, call: &Call) -> Option<Outcome> {
    let Insn { code, k, .. } = insn;
    let cell = k as usize;
    state.pc += 1;
    match code {
        0x20 => state.a = data(k, call)?,                 // ld [k]
        0x00 => state.a = Some(k),                        // ld #k
        0x60 => state.a = *state.memory.get(cell)?,       // ld M[k]
        0x80 => state.a = Some(DATA_LEN),                 // ld len
        0x01 => state.x = Some(k),                        // ldx #k
        0x61 => state.x = *state.memory.get(cell)?,       // ldx M[k]
        0x81 => state.x = Some(DATA_LEN),                 // ldx len
        0x02 => *state.memory.get_mut(cell)? = state.a,   // st M[k]
        0x03 => *state.memory.get_mut(cell)? = state.x,   // stx M[k]
        0x07 => state.x = state.a,                        // tax
        0x87 => state.a = state.x,                        // txa
        0x06 => return Some(Outcome::Returns(answer(k))), // ret #k
        0x16 => return Some(Outcome::Returns(state.a.map_or(Answer::Harms, answer))), // ret a
        0x05 => state.pc = state.pc.checked_add(cell)?,   // ja
        _ if code & 7 == 4 => state.a = alu(code, state.a, operand(insn, &state))?,
        _ if code & 7 == 5 => return jump(insn, state),
        _ => return None,
    }
    Some(Outcome::On(state))
}

/// The right operand of an arithmetic instruction or a comparison.
fn operand(insn: Insn, state: &State) -> Option<u32> {
    if insn.code & 8 == 0 { Some(insn.k) } else { state.x }
}

/// A word of `struct seccomp_data`; the outer `None` for an offset that seccomp refuses.
fn data(at: u32, call: &Call) -> Option<Option<u32>> {
    if !at.is_multiple_of(4) {
        return None;
    }
    match at {
        0 => Some(Some(call.nr)),
        4 => Some(Some(AUDIT_ARCH)),
        8 | 12 => Some(None),
        16..DATA_LEN => {
            let word = (at - 16) / 4;
            let arg = call.args[(word / 2) as usize];
            Some(arg.map(|arg| (arg >> (word % 2 * 32)) as u32))
        }
        _ => None,
    }
}

fn alu(code: u16, a: Option<u32>, by: Option<u32>) -> Option<Option<u32>> {
    let apply: fn(u32, u32) -> Option<u32> = match code & 0xf0 {
        0x00 => |a, b| Some(a.wrapping_add(b)),
        0x10 => |a, b| Some(a.wrapping_sub(b)),
        0x20 => |a, b| Some(a.wrapping_mul(b)),
        0x30 => |a, b| a.checked_div(b),
        0x40 => |a, b| Some(a | b),
        0x50 => |a, b| Some(a & b),
        0x60 => |a, b| a.checked_shl(b),
        0x70 => |a, b| a.checked_shr(b),
        0x80 => |a, _| Some(a.wrapping_neg()),
        0xa0 => |a, b| Some(a ^ b),
        _ => return None,
    };
    // Where the kernel would decide otherwise (a division by 0), the value counts as unknown.
    Some(a.zip(by).and_then(|(a, b)| apply(a, b)))
}

fn jump(insn: Insn, state: State) -> Option<Outcome> {
    let holds: fn(u32, u32) -> bool = match insn.code & 0xf0 {
        0x10 => |a, b| a == b,
        0x20 => |a, b| a > b,
        0x30 => |a, b| a >= b,
        0x40 => |a, b| a & b != 0,
        _ => return None,
    };
    let to = |skip: u8| State { pc: state.pc + usize::from(skip), ..state };
    Some(match state.a.zip(operand(insn, &state)) {
        Some((a, b)) => Outcome::On(to(if holds(a, b) { insn.jt } else { insn.jf })),
        None => Outcome::Either(to(insn.jt), to(insn.jf)),
    })
}

/// The meaning of a filter's return value; its low half is data.
const fn answer(value: u32) -> Answer {
    match value & 0xffff_0000 {
        0x7fff_0000 | 0x7ffc_0000 => Answer::Allowed, // ALLOW, LOG
        0x0005_0000 | 0x7ff0_0000 => Answer::Fails,   // ERRNO; TRACE, which is ENOSYS without a tracer
        _ => Answer::Harms,
    }
}

const fn call(name: &'static str, nr: i64, args: [Option<u64>; 6]) -> Call {
    Call { name, nr: nr as u32, args }
}

/// Calls that are made in a target. The protection of the memory is known, its address is not.
pub(crate) const CALLS: [Call; 9] = {
    const RW: Option<u64> = Some((libc::PROT_READ | libc::PROT_WRITE) as u64);
    const RX: Option<u64> = Some((libc::PROT_READ | libc::PROT_EXEC) as u64);
    [
        call("rt_sigreturn", libc::SYS_rt_sigreturn, [None; 6]),
        call("memfd_create", libc::SYS_memfd_create, [None; 6]),
        call("mmap", libc::SYS_mmap, [None, None, RW, None, None, None]),
        call("mmap of code", libc::SYS_mmap, [None, None, RX, None, None, None]),
        call("munmap", libc::SYS_munmap, [None; 6]),
        call("close", libc::SYS_close, [None; 6]),
        call("rt_sigaction", libc::SYS_rt_sigaction, [None; 6]),
        call("membarrier", libc::SYS_membarrier, [None, Some(0), Some(0), None, None, None]),
        call("prctl", libc::SYS_prctl, [Some(libc::PR_GET_TSC as u64), None, None, None, None, None]),
    ]
};

/// The first of our calls for which these filters may harm the process. A call that only fails is harmless,
/// except the one by which a thread returns.
pub(crate) fn harmful(filters: &[Vec<Insn>]) -> Option<Call> {
    let most = |call: &Call| {
        if i64::from(call.nr) == libc::SYS_rt_sigreturn { Answer::Allowed } else { Answer::Fails }
    };
    CALLS.into_iter().find(|call| filters.iter().any(|filter| worst(filter, call) > most(call)))
}

#[cfg(test)]
mod tests {
    use super::{Answer, Call, Insn, harmful, worst};

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0001;

    const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
        Insn { code, jt, jf, k }
    }
    /// `if nr == call { value } else { allow }`
    fn punish(call: i64, value: u32) -> Vec<Insn> {
        let word = insn(0x20, 0, 0, 0);
        vec![word, insn(0x15, 0, 1, call as u32), insn(6, 0, 0, value), insn(6, 0, 0, ALLOW)]
    }
    fn mmap(prot: Option<u64>) -> Call {
        Call { name: "mmap", nr: libc::SYS_mmap as u32, args: [None, None, prot, None, None, None] }
    }

    #[test]
    fn what_is_killed_for_is_named() {
        let first = |call, value| harmful(&[punish(0, KILL), punish(call, value)]).map(|call| call.name);
        assert_eq!(first(libc::SYS_memfd_create, KILL), Some("memfd_create"));
        assert_eq!(
            first(libc::SYS_memfd_create, 0x7fc0_0000),
            Some("memfd_create"),
            "waits for a supervisor"
        );
        assert_eq!(first(libc::SYS_memfd_create, ERRNO), None);
        assert_eq!(first(libc::SYS_rt_sigreturn, ERRNO), Some("rt_sigreturn"), "there is no other way back");
        assert_eq!(first(libc::SYS_execve, KILL), None, "never called");
        assert_eq!(first(libc::SYS_mmap, 0x7ffc_0000), None, "logged and made");
    }

    #[test]
    fn arguments_count_as_far_as_they_are_known() {
        // Kills for an mmap that is writable and executable: ld [32]; and #6; jeq #6.
        let filter = [
            insn(0x20, 0, 0, 32),
            insn(0x54, 0, 0, 6),
            insn(0x15, 0, 1, 6),
            insn(6, 0, 0, KILL),
            insn(6, 0, 0, ALLOW),
        ];
        assert_eq!(worst(&filter, &mmap(Some(5))), Answer::Allowed);
        assert_eq!(worst(&filter, &mmap(Some(7))), Answer::Harms);
        assert_eq!(worst(&filter, &mmap(None)), Answer::Harms, "it may be 7");
    }

    #[test]
    fn both_ways_of_an_unknown_are_followed_once_each() {
        // 3000 comparisons of an unknown address, all leading on: 2^3000 paths, 3000 places.
        let mut filter = vec![insn(0x20, 0, 0, 16)];
        filter.extend((0..3000).map(|n| insn(0x15, 0, 0, n)));
        filter.push(insn(6, 0, 0, ALLOW));
        assert_eq!(worst(&filter, &mmap(None)), Answer::Allowed);
    }

    #[test]
    fn what_cannot_be_decided_harms() {
        let cases: [&[Insn]; 6] = [
            &[],
            &[insn(0x20, 0, 0, 0)],
            &[insn(0x05, 0, 0, u32::MAX)],
            &[insn(0x20, 0, 0, 62), insn(6, 0, 0, ALLOW)],
            &[insn(0x61, 0, 0, 16), insn(6, 0, 0, ALLOW)],
            &[insn(0xffff, 0, 0, 0), insn(6, 0, 0, ALLOW)],
        ];
        for filter in cases {
            assert_eq!(worst(filter, &mmap(None)), Answer::Harms, "{filter:?}");
        }
        let divided = [insn(0x34, 0, 0, 0), insn(0x16, 0, 0, 0)];
        assert_eq!(worst(&divided, &mmap(None)), Answer::Harms, "the kernel decides a division by 0");
    }

    #[test]
    fn words_move_through_registers_and_memory() {
        // a = nr; M[3] = a; x = M[3]; a = x - nr + ALLOW: ret a.
        let filter = [
            insn(0x20, 0, 0, 0),
            insn(0x02, 0, 0, 3),
            insn(0x61, 0, 0, 3),
            insn(0x00, 0, 0, ALLOW),
            insn(0x0c, 0, 0, 0),
            insn(0x1c, 0, 0, 0),
            insn(0x16, 0, 0, 0),
        ];
        assert_eq!(worst(&filter, &mmap(None)), Answer::Allowed);
    }
}
