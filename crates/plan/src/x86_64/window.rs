//! Which bytes a patch may cover, and which instructions it displaces.
//!
//! In: a stretch of instructions and where to begin. Out: whole instructions, and the padding behind them, up
//! to the first thing that forbids more (PLAN-1).

use super::env::Env;
use super::jump::JUMP;
use crate::machine::TrapsPolicy;
use crate::refusal::Refusal;
use trapline_insn::x86_64::{Flow, Gpr, Immovable, Insn, faults_on_register, may_displace};
use trapline_record::Svma;

/// Instructions in address order without gaps, all in one piece of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch<'a> {
    /// The instructions.
    pub(crate) insns: &'a [Insn],
    /// Whether the last one ends the piece of code, so that padding may follow.
    pub(crate) whole: bool,
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// There was enough room.
    Enough,
    /// There is no more code or padding.
    End,
    /// There is a branch target inside.
    Target(Svma),
    /// This instruction (by index) returns to the next one.
    Returns(usize),
    /// This instruction must stay where it is.
    Immovable(usize, Immovable),
    /// This instruction may fault.
    Faults(usize),
    /// These bytes are no instruction.
    NotCode(usize),
    /// Go's runtime may go on at this instruction.
    UnknownGo,
}

/// A window: bytes that may be covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Index of the first instruction.
    pub(crate) from: usize,
    /// Index behind the last displaced instruction.
    pub(crate) until: usize,
    /// Address of the first byte.
    pub(crate) start: Svma,
    /// Length of the displaced instructions.
    pub(crate) len: u64,
    /// Number of padding bytes behind them that may be covered too.
    pub(crate) pad: u64,
    /// Offset of the last displaced instruction that may fault and is not the first; 0 if there is none. A
    /// handler may return to it, so it has to lie within the changed bytes, and have a guard.
    pub(crate) faults_at: u64,
    /// Why the window ends there.
    pub(crate) stop: Stop,
}

impl Window {
    /// Number of bytes that may be overwritten.
    pub(crate) fn room(&self) -> u64 {
        self.len + self.pad
    }
    /// First byte behind all that the window takes if `changed` bytes change.
    pub(crate) fn end(&self, changed: u64) -> Svma {
        self.start + self.len.max(changed)
    }
}

/// Walks on from instruction `from` until a jump fits and instruction `must` is included, or something
/// forbids more.
pub(crate) fn walk(env: &Env<'_>, stretch: Stretch<'_>, from: usize, must: usize) -> Window {
    let start = Svma(stretch.insns[from].addr);
    let mut window = Window { from, until: from, start, len: 0, pad: 0, faults_at: 0, stop: Stop::End };
    for (j, insn) in stretch.insns.iter().enumerate().skip(from) {
        if window.len >= JUMP && j > must {
            window.stop = Stop::Enough;
            return window;
        }
        if let Some(stop) = forbids(env, &window, j, insn, must) {
            window.stop = stop;
            return window;
        }
        if faults_on_register(insn) {
            window.faults_at = window.len;
        }
        window.until = j + 1;
        window.len += u64::from(insn.len);
        if matches!(insn.flow(), Flow::Call(_) | Flow::Syscall) {
            window.stop = if window.len >= JUMP && j >= must { Stop::Enough } else { Stop::Returns(j) };
            return window;
        }
        if !insn.flow().falls_through() {
            return with_padding(env, stretch, window, j + 1);
        }
    }
    if window.len >= JUMP {
        window.stop = Stop::Enough;
    }
    window
}

fn forbids(env: &Env<'_>, window: &Window, j: usize, insn: &Insn, must: usize) -> Option<Stop> {
    if insn.flow() == Flow::Invalid {
        return Some(Stop::NotCode(j));
    }
    let first = Svma(insn.addr + u64::from(j == window.from));
    let covered = Svma(insn.end()).min(window.start + JUMP);
    let last = if j <= must { covered.max(Svma(insn.addr + 1)) } else { covered };
    if first < last
        && let Some(target) = env.map.target_in(first, last)
    {
        return Some(Stop::Target(target));
    }
    if j > window.from && env.image.is_unknown_go() {
        return Some(Stop::UnknownGo);
    }
    if let Err(why) = may_displace(insn) {
        return Some(Stop::Immovable(j, why));
    }
    if env.traits.shadow_stack && matches!(insn.flow(), Flow::Call(_)) {
        return Some(Stop::Immovable(j, Immovable::ShadowStack));
    }
    let faults = env.traits.has_fault_handler && faults_on_register(insn) && !is_go_g(env, insn);
    (faults && !is_delivered(env, insn, j == window.from)).then_some(Stop::Faults(j))
}

/// Whether a fault of the instruction's copy is as good as one of its own (docs/design/faults.md). At a call by
/// memory the copy faults behind the push of the return address. A handler that returns to an instruction
/// other than the first needs a guard there.
fn is_delivered(env: &Env<'_>, insn: &Insn, is_first: bool) -> bool {
    let traits = env.traits;
    let returns = is_first || traits.traps == TrapsPolicy::Guarded;
    traits.faults_delivered && returns && !matches!(insn.flow(), Flow::Call(_))
}

/// Whether an instruction accesses memory only through r14, in code that keeps g there, which always points to
/// mapped memory. C and assembly in a Go program do not, nor does code of Go 1.16.
fn is_go_g(env: &Env<'_>, insn: &Insn) -> bool {
    env.traits.go
        && insn.mem.base == Some(Gpr::R14)
        && insn.mem.index.is_none()
        && env.image.keeps_goroutine(Svma(insn.addr))
}

/// Adds the bytes behind an instruction that leaves, which never run: padding inside the piece, or behind it.
fn with_padding(env: &Env<'_>, stretch: Stretch<'_>, mut window: Window, next: usize) -> Window {
    let mut end = window.start + window.len;
    let limit = window.start + JUMP;
    let mut rest = stretch.insns[next..].iter();
    while end < limit {
        match rest.next() {
            Some(insn) if insn.is_padding() && env.map.target_in(end, Svma(insn.end())).is_none() => {
                end = Svma(insn.end());
            }
            Some(_) => break,
            None if stretch.whole => {
                end = end + env.map.padding_after(env.image, end);
                break;
            }
            None => break,
        }
    }
    window.pad = end - (window.start + window.len);
    window.stop = if window.room() >= JUMP { Stop::Enough } else { Stop::End };
    window
}

/// The refusal for the reason why a walk ended.
pub(crate) fn refusal(env: &Env<'_>, stretch: Stretch<'_>, window: &Window) -> Refusal {
    let site = env.place(window.start, JUMP);
    let insn = |j: usize| {
        let insn = &stretch.insns[j];
        env.place(Svma(insn.addr), u64::from(insn.len))
    };
    match window.stop {
        Stop::Enough => Refusal::NoRoom { site },
        Stop::End => Refusal::TooShort { site, room: window.room().min(255) as u8 },
        Stop::Target(target) => Refusal::BranchIn { site, target },
        Stop::Returns(j) => Refusal::ReturnsIn { site, insn: insn(j) },
        Stop::Immovable(j, why) => Refusal::Immovable { site, insn: insn(j), why },
        Stop::Faults(j) => Refusal::MayFault { site, insn: insn(j) },
        Stop::NotCode(j) => Refusal::NotCode { site: insn(j) },
        Stop::UnknownGo => Refusal::UnknownGo { at: window.start },
    }
}

/// A refusal if `start..end` touches a restartable sequence.
pub(crate) fn in_rseq(env: &Env<'_>, start: Svma, end: Svma) -> Option<Refusal> {
    let section = env.image.rseq_sections().iter().find(|s| s.start < end && start < s.start + s.len)?;
    Some(Refusal::InRseq { site: env.place(start, end - start), section: section.start })
}
