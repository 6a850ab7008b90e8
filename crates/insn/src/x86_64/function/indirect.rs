//! Where an indirect jump leads: through a jump table, out of the function, or unknown.
//!
//! In: the instructions of the jump's part, in address order. Out: [`Indirect`]. The patterns are those of
//! compilers. They are recognized by following definitions of the jump's register backwards:
//!
//! | pattern | made by |
//! |---|---|
//! | `lea t(%rip),%b; movslq (%b,%i,4),%r; add %b,%r; jmp *%r` | gcc, clang, rustc, position-independent |
//! | `jmp *t(,%i,8)`; `mov t(,%i,8),%r; jmp *%r` | the same, at fixed addresses |
//! | `lea t(%rip),%b; jmp *(%b,%i,8)` | Go, computed goto |
//! | `mov %a,%rsp; pop %r; jmp *%r` | `eh_return`: jumps to where an exception is caught |
//! | `jmp *entry(%rip)`, `jmp *d(%r)`, `mov d(%r),%r; jmp *%r` | tail call by GOT entry, by method table |

use super::super::decode::{Flow, Insn, decoder};
use super::super::gpr::Gpr;
use super::{FunctionRange, Read};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Number of instructions over which definitions are followed back.
const REACH: usize = 64;
/// Maximum number of entries of a jump table: compilers make no longer ones.
const MAX_ENTRIES: u64 = 8192;

/// What an indirect jump is.
pub(super) enum Indirect {
    /// A jump table; all its targets are inside the function.
    JumpTable(Vec<u64>),
    /// A tail call.
    Tail,
    /// A direct jump in disguise.
    To(u64),
    /// Jumps to where an exception is caught, by gcc's `eh_return`: the call never returns to its caller.
    Away,
    /// Not known.
    Unknown,
}

/// The source of a register's value.
enum Origin {
    /// Defined at this index by this instruction.
    At(usize, Instruction),
    /// The caller or a callee: nothing in the line defines it.
    Outside,
    /// Not found: the line is cut off before its definition.
    Lost,
}

/// Address and form of a jump table.
struct JumpTable {
    addr: u64,
    /// Entries are 4 bytes relative to this, or 8 bytes absolute.
    base: Option<u64>,
    index: Register,
}

struct Line<'a> {
    /// All instructions of the part, in address order.
    insns: &'a [Insn],
    part: &'a FunctionRange<'a>,
    /// Index of the jump.
    jump: usize,
    /// Whether the part starts with the function's entry.
    is_body: bool,
}

/// Classifies the indirect jump at index `jump` of `insns`, which are all instructions of the part. The part
/// is the function's body or a cold part. `is_start` says whether an instruction of the function starts at an
/// address.
pub(super) fn classify(
    insns: &[Insn],
    jump: usize,
    (part, is_body): (&FunctionRange<'_>, bool),
    is_start: &dyn Fn(u64) -> bool,
    read: Read<'_>,
) -> Indirect {
    let line = Line { insns, part, jump, is_body };
    let Some(raw) = line.raw(jump) else { return Indirect::Unknown };
    if raw.is_jmp_far_indirect() {
        return Indirect::Unknown;
    }
    if raw.op0_kind() == OpKind::Register && line.is_eh_return(raw.op0_register()) {
        return Indirect::Away;
    }
    if matches!(raw.memory_base(), Register::RIP | Register::None)
        && raw.op0_kind() == OpKind::Memory
        && raw.memory_index() == Register::None
    {
        return Indirect::Tail;
    }
    let found = if raw.op0_kind() == OpKind::Memory {
        line.through_memory(jump, &raw)
    } else {
        line.through_register(jump, raw.op0_register())
    };
    match found {
        Found::JumpTable(table) => {
            let bound = line.bound(table.index);
            match entries(&table, bound, is_start, read) {
                Indirect::Tail if !line.frame_is_down() => Indirect::Unknown,
                found => found,
            }
        }
        Found::Is(Indirect::Tail) if !line.frame_is_down() => Indirect::Unknown,
        Found::Is(indirect) => indirect,
    }
}

enum Found {
    JumpTable(JumpTable),
    Is(Indirect),
}

impl Line<'_> {
    fn raw(&self, index: usize) -> Option<Instruction> {
        let insn = self.insns.get(index)?;
        let offset = usize::try_from(insn.addr.wrapping_sub(self.part.addr)).ok()?;
        let bytes = self.part.bytes.get(offset..)?;
        let mut decoder = decoder(bytes, insn.addr);
        decoder.can_decode().then(|| decoder.decode())
    }

    /// Whether the stack pointer was computed, and the jump's target is popped from there: `mov %rcx,%rsp;
    /// pop %rcx; jmp *%rcx`.
    fn is_eh_return(&self, to: Register) -> bool {
        let before = |count| self.raw(self.jump.checked_sub(count)?);
        let (Some(pop), Some(set)) = (before(1), before(2)) else { return false };
        let pops = pop.mnemonic() == Mnemonic::Pop && pop.op0_register() == to;
        let moves = set.mnemonic() == Mnemonic::Mov && set.op0_register() == Register::RSP;
        pops && moves && set.op1_kind() == OpKind::Register && set.op1_register() != Register::RBP
    }

    /// A jump through memory, or a load of the register that is then jumped to, at `index`.
    fn through_memory(&self, index: usize, raw: &Instruction) -> Found {
        let (base, scaled) = (raw.memory_base(), raw.memory_index());
        let displacement = raw.memory_displacement64();
        if scaled == Register::None {
            return Found::Is(self.by_entry(index, base));
        }
        if raw.memory_index_scale() != 8 {
            return Found::Is(Indirect::Unknown);
        }
        if base == Register::None {
            return Found::JumpTable(JumpTable { addr: displacement, base: None, index: scaled });
        }
        match self.constant(index, base) {
            Some(addr) => Found::JumpTable(JumpTable {
                addr: addr.wrapping_add(displacement),
                base: None,
                index: scaled,
            }),
            None => Found::Is(Indirect::Unknown),
        }
    }

    /// One word of memory without an index: a tail call, unless the address was computed here from an index.
    fn by_entry(&self, index: usize, base: Register) -> Indirect {
        if matches!(base, Register::RIP | Register::None) {
            return Indirect::Tail;
        }
        if matches!(base, Register::RSP) {
            return Indirect::Unknown;
        }
        match self.origin(index, base) {
            Origin::Outside => Indirect::Tail,
            Origin::At(_, raw) if raw.mnemonic() == Mnemonic::Mov => Indirect::Tail,
            Origin::At(_, raw) if raw.mnemonic() == Mnemonic::Lea && raw.memory_index() == Register::None => {
                Indirect::Tail
            }
            _ if self.behind_epilogue() => Indirect::Tail,
            _ => Indirect::Unknown,
        }
    }

    fn through_register(&self, index: usize, register: Register) -> Found {
        match self.origin(index, register) {
            Origin::At(at, raw) => self.computed(at, &raw),
            Origin::Outside => Found::Is(Indirect::Tail),
            Origin::Lost if self.behind_epilogue() => Found::Is(Indirect::Tail),
            Origin::Lost => Found::Is(Indirect::Unknown),
        }
    }

    fn computed(&self, at: usize, raw: &Instruction) -> Found {
        let is_memory = raw.op1_kind() == OpKind::Memory;
        match raw.mnemonic() {
            Mnemonic::Mov if is_memory => match self.through_memory(at, raw) {
                // An unknown table of pointers, read and jumped to after the frame is gone, is a tail call.
                Found::Is(Indirect::Unknown) if self.behind_epilogue() => Found::Is(Indirect::Tail),
                found => found,
            },
            Mnemonic::Add if raw.op1_kind() == OpKind::Register => {
                self.relative(at, raw.op0_register(), raw.op1_register())
            }
            Mnemonic::Lea if raw.is_ip_rel_memory_operand() => {
                Found::Is(Indirect::To(raw.memory_displacement64()))
            }
            _ if self.behind_epilogue() => Found::Is(Indirect::Tail),
            _ => Found::Is(Indirect::Unknown),
        }
    }

    /// `add one, other` at `at`: one holds a table's address, the other an entry loaded from it.
    fn relative(&self, at: usize, one: Register, other: Register) -> Found {
        for (entry, base) in [(one, other), (other, one)] {
            let Origin::At(load_at, load) = self.origin(at, entry) else { continue };
            let loads = matches!(load.mnemonic(), Mnemonic::Movsxd) && load.op1_kind() == OpKind::Memory;
            if !loads || load.memory_index_scale() != 4 || load.memory_index() == Register::None {
                continue;
            }
            let displacement = load.memory_displacement64();
            let table = self.constant(load_at, load.memory_base()).map(|t| t.wrapping_add(displacement));
            let base = self.constant(at, base).or(table);
            if let (Some(addr), Some(base)) = (table, base) {
                return Found::JumpTable(JumpTable { addr, base: Some(base), index: load.memory_index() });
            }
        }
        Found::Is(Indirect::Unknown)
    }

    /// The address that `register` holds before `index`, if a `lea` or `mov` of a constant set it. The
    /// definition may be anywhere before, hoisted out of a loop. Whether the table's entries are valid is
    /// checked later.
    fn constant(&self, index: usize, register: Register) -> Option<u64> {
        if let Origin::At(_, raw) = self.origin(index, register) {
            return address_in(&raw);
        }
        let loads = |i: usize| {
            let insn = self.insns[i];
            if insn.flow() != Flow::Next {
                return None;
            }
            let raw = self.raw(i)?;
            (raw.op0_kind() == OpKind::Register && raw.op0_register() == register).then_some(raw)
        };
        (0..index).rev().filter_map(loads).find_map(|raw| address_in(&raw))
    }

    /// The instruction before `index` that gave `register` its value; copies between registers are followed.
    fn origin(&self, index: usize, register: Register) -> Origin {
        let mut wanted = register;
        let mut at = index;
        for _ in 0..REACH {
            let Some(before) = self.before(at) else {
                return if self.is_entry(at) { Origin::Outside } else { Origin::Lost };
            };
            at = before;
            if matches!(self.insns[at].flow(), Flow::Call(_) | Flow::Syscall) && is_scratch(wanted) {
                return Origin::Outside;
            }
            let Some(raw) = self.raw(at) else { return Origin::Lost };
            if !defines(&raw, wanted) {
                continue;
            }
            if raw.mnemonic() == Mnemonic::Mov && raw.op1_kind() == OpKind::Register {
                wanted = raw.op1_register();
            } else {
                return Origin::At(at, raw);
            }
        }
        Origin::Lost
    }

    /// An instruction that runs right before the one at `index`: the one that falls through to it, or else
    /// one that jumps to it.
    fn before(&self, index: usize) -> Option<usize> {
        let previous = index.checked_sub(1)?;
        if self.insns[previous].flow().falls_through() && !self.insns[previous].is_padding() {
            return Some(previous);
        }
        let here = self.insns[index].addr;
        let jumps = |insn: &Insn| {
            matches!(insn.flow(), Flow::Jump(_) | Flow::Branch(_)) && insn.flow().target() == Some(here)
        };
        self.insns.iter().position(jumps).or_else(|| {
            // Control may fall through the padding before a loop's head.
            self.insns[previous].flow().falls_through().then_some(previous)
        })
    }

    const fn is_entry(&self, index: usize) -> bool {
        index == 0 && self.is_body
    }

    /// Whether the stack at the jump is as at the function's entry, as a tail call requires. It is if the
    /// last instruction before the jump that moves rsp takes down a frame, or if none moves it. This
    /// distinguishes the jump of a threaded interpreter from a call by pointer.
    fn frame_is_down(&self) -> bool {
        let mut at = self.jump;
        for _ in 0..4 * REACH {
            let Some(before) = self.before(at) else { return self.is_entry(at) };
            at = before;
            let Some(raw) = self.raw(at) else { return false };
            let on_rsp = raw.op0_kind() == OpKind::Register && raw.op0_register() == Register::RSP;
            match raw.mnemonic() {
                Mnemonic::Pop | Mnemonic::Leave => return true,
                Mnemonic::Push => return false,
                Mnemonic::Sub if on_rsp => return false,
                Mnemonic::Add | Mnemonic::Mov if on_rsp => return true,
                Mnemonic::Lea if on_rsp => return (raw.memory_displacement64().cast_signed()) > 0,
                _ => {}
            }
        }
        false
    }

    /// Whether the jump directly follows an instruction that takes down a frame.
    fn behind_epilogue(&self) -> bool {
        let Some(before) = self.jump.checked_sub(1) else { return true };
        self.raw(before).is_some_and(|raw| match raw.mnemonic() {
            Mnemonic::Pop | Mnemonic::Leave => true,
            Mnemonic::Add => raw.op0_register() == Register::RSP,
            _ => false,
        })
    }

    /// Number of entries, from the nearest `cmp index, n` that is followed by a branch on "above".
    fn bound(&self, index: Register) -> Option<u64> {
        let mut wanted = index.full_register();
        let mut at = self.jump;
        let mut branches = Vec::new();
        for _ in 0..REACH {
            at = self.before(at)?;
            let raw = self.raw(at)?;
            let sets = raw.op0_kind() == OpKind::Register && raw.op0_register().full_register() == wanted;
            match raw.mnemonic() {
                Mnemonic::Ja | Mnemonic::Jbe => branches.push(1),
                Mnemonic::Jae | Mnemonic::Jb => branches.push(0),
                Mnemonic::Cmp if sets => return raw.try_immediate(1).ok()?.checked_add(branches.pop()?),
                Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd
                    if sets && raw.op1_kind() == OpKind::Register =>
                {
                    wanted = raw.op1_register().full_register();
                }
                _ if defines(&raw, wanted) => return None,
                _ => {}
            }
        }
        None
    }
}

/// The address that `lea x(%rip)` or `mov $x` loads.
fn address_in(raw: &Instruction) -> Option<u64> {
    match raw.mnemonic() {
        Mnemonic::Lea if raw.is_ip_rel_memory_operand() => Some(raw.memory_displacement64()),
        Mnemonic::Mov => raw.try_immediate(1).ok(),
        _ => None,
    }
}

fn defines(raw: &Instruction, wanted: Register) -> bool {
    let writes = !matches!(raw.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt);
    let exchanges = matches!(raw.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd)
        && raw.op1_register().full_register() == wanted.full_register();
    let first = raw.op0_kind() == OpKind::Register && raw.op0_register().is_gpr();
    writes && (first && raw.op0_register().full_register() == wanted.full_register() || exchanges)
}

/// Registers that a call may change.
fn is_scratch(register: Register) -> bool {
    !matches!(
        Gpr::of(register),
        Some(Gpr::Rbx | Gpr::Rbp | Gpr::Rsp | Gpr::R12 | Gpr::R13 | Gpr::R14 | Gpr::R15)
    )
}

/// The table's targets. With a bound each entry must be valid. Without one, the table ends at the first entry
/// that is not, and there must be at least two valid ones.
fn entries(
    table: &JumpTable,
    bound: Option<u64>,
    is_start: &dyn Fn(u64) -> bool,
    read: Read<'_>,
) -> Indirect {
    let entry = |i: u64| match table.base {
        Some(base) => {
            let relative = read(table.addr.wrapping_add(i.wrapping_mul(4)), 4)? as u32;
            Some(base.wrapping_add_signed(i64::from(relative.cast_signed())))
        }
        None => read(table.addr.wrapping_add(i.wrapping_mul(8)), 8),
    };
    let limit = bound.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
    let targets: Vec<u64> = (0..limit).map_while(|i| entry(i).filter(|&t| is_start(t))).collect();
    let sound = targets.len() as u64;
    let complete = bound.map_or(sound >= 2, |n| sound == n && n > 0);
    // If all pointers lead elsewhere, it is a table of functions. Zero is a word that was not relocated.
    let elsewhere = || (0..limit.min(4)).all(|i| entry(i).is_some_and(|t| t != 0 && !is_start(t)));
    match complete {
        true => Indirect::JumpTable(targets),
        false if table.base.is_none() && sound == 0 && elsewhere() => Indirect::Tail,
        false => Indirect::Unknown,
    }
}
