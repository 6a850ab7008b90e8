//! What is asked of the planner: wants, and what the process allows.

use crate::codemap::CodeMap;
use crate::filter::TargetFilter;
use crate::layout::DataLayout;
use crate::space::{AddressSpace, Home};
pub use crate::x86_64::stub::{Buckets, CallFunctions, ExtendedState, Piece, Rseq as RseqTraits, ThreadId};
use trapline_image::{FunctionIndex, Image};
use trapline_record::addr::Bias;
use trapline_record::latency::Stamps;
use trapline_record::slots::Slots;
use trapline_record::{RemoteAddr, Svma};

/// Whether a guard trap may happen in the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrapsPolicy {
    /// Guard traps are served: windows of several instructions may be patched while threads run.
    #[default]
    Guarded,
    /// SIGTRAP is blocked in some thread, or the program owns it. Such windows are still planned; the patch room
    /// checks [`Patch::starts`](crate::Patch::starts) against the stopped threads, and refuses.
    MustNotTrap,
}

/// What the process and its CPU offer and forbid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessTraits {
    /// Where threads have their rseq areas; `None` when some of them have none.
    pub rseq: Option<RseqTraits>,
    /// CPUs that may run the process (highest possible CPU number + 1).
    pub cpus: u32,
    /// The CPU has `rdpid`.
    pub rdpid: bool,
    /// `rdfsbase` may be used.
    pub fsgsbase: bool,
    /// arm64: one instruction adds to memory (FEAT_LSE).
    pub lse: bool,
    /// arm64: there are vectors that a system call does not keep (SVE).
    pub sve: bool,
    /// Somebody catches SIGSEGV or SIGBUS: nothing that can fault on a register-based operand is displaced.
    pub has_fault_handler: bool,
    /// A shadow stack is on: no call is displaced.
    pub shadow_stack: bool,
    /// A Go program: g in r14, stacks that move.
    pub go: bool,
    /// Whether a guard trap may happen.
    pub traps: TrapsPolicy,
    /// Sites that no jump reaches may become kernel uprobes.
    pub kernel_allowed: bool,
    /// Counter lines; see `record::counters`.
    pub lines: u32,
    /// How a thread's number is learnt where hits are counted by thread.
    pub thread_id: ThreadId,
    /// Where stacks end, where records hold stacks.
    pub stacks: Stacks,
}

impl ProcessTraits {
    /// What most processes are: rseq as glibc lays it, no handlers for faults, guard traps served.
    #[must_use]
    pub const fn usual(cpus: u32) -> Self {
        Self {
            rseq: Some(RseqTraits { offset: -160, signature: 0x5305_3053 }),
            cpus,
            rdpid: false,
            fsgsbase: true,
            lse: false,
            sve: false,
            has_fault_handler: false,
            shadow_stack: false,
            go: false,
            traps: TrapsPolicy::Guarded,
            kernel_allowed: false,
            lines: cpus + 1,
            thread_id: ThreadId::Call,
            stacks: Stacks { main: (0, 0), block: None, go: None },
        }
    }
}

/// What a record holds of the stack at a hit (`record::stack`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unwind {
    /// Nothing.
    #[default]
    None,
    /// At most so many return addresses, by frame pointers; [`MAX_FRAMES`](trapline_record::stack::MAX_FRAMES) at most.
    Frames(u8),
    /// The top of the stack, in a record of so many bytes.
    Copy(u32),
}

/// Where stacks end, as far as that is known in a process; see `x86_64::stub::stack`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stacks {
    /// The main thread's stack: its lowest address when this was looked up, and the first behind it. Empty when it is not known.
    pub main: (u64, u64),
    /// Offset from the thread pointer of two words: where a thread's stack begins (0 for the main thread's), and its length.
    pub block: Option<i32>,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go: Option<i32>,
}

/// Which floats records hold: low 64 bits of vector registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Floats {
    /// Bit `n`: at an entry, that of argument register `n` of eight (System V ABI, 3.2.3).
    pub arguments: u8,
    /// What is returned is one, and recorded in the place of the integer.
    pub returned: bool,
}

impl Floats {
    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { arguments: self.arguments | other.arguments, returned: self.returned || other.returned }
    }
}

/// A load of what an argument leads to: through as many pointers as there are offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// Which of the six argument registers.
    pub register: u8,
    /// What is added to that, and to each word loaded behind it, before the next load; at least one.
    pub offsets: Vec<i32>,
    /// Bytes of the last load, 64 at most.
    pub bytes: u8,
}

impl Read {
    /// Words of a record that it takes: the kernel's answer, then the bytes.
    #[must_use]
    pub const fn words(&self) -> usize {
        1 + (self.bytes as usize).div_ceil(8)
    }
}

/// What stands for an argument register at a mark ([`Role::RecordMark`]); registers by their hardware numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// What a general register holds.
    Register(u8),
    /// A number.
    Constant(i64),
    /// The address of this place of the file.
    Static(Svma),
    /// An address: a register and another one times a power of two.
    Sum {
        /// The first.
        base: u8,
        /// The other; not rsp.
        index: u8,
        /// The power, 3 at most.
        scale: u8,
    },
    /// Nothing that can be told: 0.
    Unknown,
}

/// What is wanted at a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Add one to the counter at every entry.
    CountEntry,
    /// Add one to the counter at every exit (`uretprobe`), tail calls included.
    CountExits,
    /// Add one whenever this instruction runs (`func+off`, a USDT marker).
    CountAt(Svma),
    /// Stamp at entry, and time at every exit. The counter is not used.
    Latency,
    /// Put a slot in the place of the return address at entry, and time when the call comes back to it. The counter is not used.
    LatencySlot,
    /// Write a record at every entry, with the first arguments, and at every exit. The counter counts what was dropped.
    Record {
        /// How many of the six arguments that registers hold, from the first on.
        values: u8,
        /// Exits too.
        returns: bool,
        /// Bit `n`: argument `n` points to text, of which the record holds the first bytes.
        texts: u8,
        /// Floats, behind both.
        floats: Floats,
        /// Words behind those: fields, which the want's filter names ([`TargetFilter::reads`]).
        fields: u16,
        /// What an entry's record holds of the stack; then it holds no arguments.
        stack: Unwind,
    },
    /// Write a record, without values but maybe with a stack, whenever this instruction is about to run.
    RecordAt(Svma, Unwind),
    /// Write a record whenever this instruction, a mark, is about to run: with six values that the want's filter says
    /// ([`TargetFilter::operands`]), and this many words of fields behind them.
    RecordMark(Svma, u16),
    /// Add one to a value's row of the counter's table, at every entry or at every exit: the want's filter says of which value.
    Tally {
        /// At exits; with [`TargetFilter::late`] of calls, whose entries leave what is known there.
        exits: bool,
    },
    /// Call a consumer at every entry.
    CallEntry,
    /// The same, at a function whose return address the one called may replace.
    CallArmed,
    /// Call a consumer whenever this instruction is about to run.
    CallAt(Svma),
    /// Call a consumer at every return. An exit by a tail call is refused: the value is not there yet.
    CallExits,
    /// Hold threads that are about to change a fact which patches rely on, at the entry of this function of the C library's. No counter is used.
    Hold(Hold),
}

/// Functions of the C library by which a program changes such facts (`record::control::fact`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// `sigaction`.
    Sigaction,
    /// `prctl`.
    Prctl,
    /// `syscall`.
    Syscall,
}

impl Role {
    /// Whether durations are kept.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Latency | Self::LatencySlot)
    }
    /// Whether a consumer is called; such a want has no counter.
    #[must_use]
    pub const fn calls(self) -> bool {
        matches!(self, Self::CallEntry | Self::CallArmed | Self::CallAt(_) | Self::CallExits)
    }
    /// Whether a counter is its own.
    #[must_use]
    pub const fn counts(self) -> bool {
        !self.calls() && !matches!(self, Self::Hold(_))
    }
}

/// What is called at a hit, in our own process; the same for all modules of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallInput<'a> {
    /// What they all call.
    pub functions: CallFunctions,
    /// By [`Want::probe`]: what is passed, and what is saved around the call.
    pub callees: &'a [Callee],
    /// Sites that no jump reaches become an int3 that the guard table leads on from.
    pub may_trap: bool,
}

/// One consumer list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Callee {
    /// The first argument of the function called.
    pub argument: u64,
    /// Save and restore the extended state around the call.
    pub saves_state: bool,
    /// Nobody is called at the entry: somebody waits for the return alone.
    pub only_returns: bool,
    /// The function's return address may be replaced ([`Role::CallArmed`]).
    pub arms: bool,
    /// Take an int3, though a jump might fit.
    pub by_trap: bool,
}

/// One thing wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which counter (or callee), and what answers refer to. Distinct for each want of a segment.
    pub probe: u32,
    /// For [`Role::Latency`] and [`Role::LatencySlot`]: which latency area.
    pub latency: Option<u32>,
    /// The function. `None` is allowed for [`Role::CountAt`] outside all known functions.
    pub function: Option<FunctionIndex>,
    /// What.
    pub role: Role,
}

/// How durations are kept; the same for all modules of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencyInput {
    /// Where the entry stamps will be mapped ([`Stamps::bytes`]); any place, see `AddressSpace::find`.
    pub stamps: RemoteAddr,
    /// How large their slots are: those of records, where a return decides about some ([`TargetFilter::late`]).
    pub shape: Stamps,
    /// Calls shorter than this many ticks count as returns only.
    pub min_ticks: u64,
    /// How durations fall into buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go_g: Option<i32>,
    /// Where [`Role::LatencySlot`] finds slots; needed when one is wanted.
    pub slots: Option<Slots>,
    /// A function takes a slot where its exits cannot be found or patched, or where one of them is a jump to another function. For
    /// [`Role::Latency`], and for returns of [`Role::Record`] and [`Role::Tally`].
    pub or_slots: bool,
    /// The return of a [`Role::Record`] or [`Role::Tally`] takes a slot in any case.
    pub by_slots: bool,
    /// Slots lead on to what each function's return does, which is not to time it.
    pub leads_on: bool,
}

/// All that a module's plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct ModuleInput<'a> {
    /// The file.
    pub image: &'a Image,
    /// Where it was loaded.
    pub bias: Bias,
    /// Its branch targets; must cover the functions wanted.
    pub map: &'a CodeMap,
    /// What the process allows.
    pub traits: &'a ProcessTraits,
    /// What is mapped, including spaces already given to other modules.
    pub space: &'a AddressSpace,
    /// The module's space, if it has one; else one is chosen for these wants alone.
    pub home: Option<Home>,
    /// No thread is made to help.
    pub alone: bool,
    /// Where the parts of the segment's data lie.
    pub layout: &'a DataLayout,
    /// Where its far part will be mapped.
    pub far: RemoteAddr,
    /// Separate code regions that the module may take.
    pub regions: u32,
    /// Needed when a want [`is_timed`](Role::is_timed), or is a filtered [`Role::Record`] with returns.
    pub latency: Option<LatencyInput>,
    /// Needed when a want calls a consumer.
    pub calls: Option<CallInput<'a>>,
    /// By [`Want::probe`]: which hits are recorded; all, behind the end.
    pub filters: &'a [Option<TargetFilter>],
    /// What is wanted.
    pub wants: &'a [Want],
}
