//! What is asked of the planner: an action at one function or instruction, and what its records hold.
//!
//! In: what others ask for. Out: plain values; on either processor the same.
//! Does not: know files, processes or code.

use crate::machine::Buckets;
use trapline_image::{Extend, FunctionIndex};
use trapline_insn::origin::Origin;
use trapline_record::latency::Stamps;
use trapline_record::ring::TEXT_WORDS;
use trapline_record::trampolines::Trampolines;
use trapline_record::{RemoteAddr, Svma};

/// Which part of the stack a record holds at a hit (`record::stack`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unwind {
    /// Nothing of the stack.
    #[default]
    None,
    /// At most this many return addresses, found by frame pointers; never more than
    /// [`MAX_FRAMES`](trapline_record::stack::MAX_FRAMES).
    Frames(u8),
    /// A copy of the top of the stack, in a record of this many bytes.
    Copy(u32),
}

/// Which registers a record holds besides those of integer arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Floats {
    /// Bit `n`: the record of an entry holds the low 64 bits of vector register `n` of the eight for arguments (System V
    /// ABI, 3.2.3).
    pub arguments: u8,
    /// What the record of a return holds.
    pub results: Results,
}

impl Floats {
    /// The registers of both. Of two that return differently, the one that returns more than an integer counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let results = if self.results == Results::INTEGER { other.results } else { self.results };
        Self { arguments: self.arguments | other.arguments, results }
    }
}

/// Registers in which a function returns, from the first of each kind on. A record has them in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Results {
    /// How many general registers: on x86-64 of rax and rdx, in Go of rax, rbx, rcx, rdi, rsi, r8, r9, r10 and r11; on arm64
    /// from x0 on.
    pub general: u8,
    /// Behind them the low 64 bits of so many vector registers.
    pub vectors: u8,
}

impl Default for Results {
    fn default() -> Self {
        Self::INTEGER
    }
}

impl Results {
    /// One integer.
    pub const INTEGER: Self = Self { general: 1, vectors: 0 };
    /// One float.
    pub const FLOAT: Self = Self { general: 0, vectors: 1 };
    /// Upper bound of the words of all of them.
    pub const MOST: u8 = trapline_record::ring::MAX_VALUES as u8;

    /// Number of words in a record.
    #[must_use]
    pub const fn words(self) -> usize {
        self.general as usize + self.vectors as usize
    }
}

/// A load of what an argument points to, through as many pointers as there are offsets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read {
    /// Which of the six argument registers, from 0 on; or [`Self::STACK`], [`Self::FILE`], or one from [`Self::GENERAL`] on.
    pub register: u8,
    /// Offsets. Each is added to the address so far (the argument, then each loaded word) before the next load.
    /// Without offsets, the register itself is the value.
    pub offsets: Vec<i32>,
    /// Bytes of the last load, 64 at most.
    pub bytes: u8,
}

impl Read {
    /// In place of a register: the stack pointer of the hit. At a function's entry that is the one with which it
    /// was called. At a USDT probe the words there are the operands from the seventh on
    /// ([`TargetFilter::operands`](crate::filter::TargetFilter::operands)).
    pub const STACK: u8 = 6;
    /// In place of a register: where the probe's file is mapped. The first offset is the address in the file of one of its
    /// variables.
    pub const FILE: u8 = 7;
    /// From here on: general registers, by their hardware numbers.
    pub const GENERAL: u8 = 32;

    /// The general register, by its hardware number, if it is not named as an argument.
    #[must_use]
    pub const fn general(&self) -> Option<u8> {
        self.register.checked_sub(Self::GENERAL)
    }
    /// Number of words that it takes in a record: the kernel's result, then the bytes.
    #[must_use]
    pub const fn words(&self) -> usize {
        1 + (self.bytes as usize).div_ceil(8)
    }
}

/// A text that is copied into memory of the call's own, where the entry's record waits for the return: one that is
/// longer than the stack may be asked for, or that is there only at the return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptText {
    /// What points to it.
    pub pointer: KeptPointer,
    /// It is copied when the call returns, and not at its entry.
    pub at_return: bool,
    /// Bytes, [`Self::MAX`] at most.
    pub bytes: u16,
}

/// What points to such a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptPointer {
    /// One of the six argument registers at the entry. The record holds it.
    Argument(u8),
    /// The returned value; only at the return.
    Returned,
}

impl KeptText {
    /// Upper bound of its bytes.
    pub const MAX: u16 = 4096;

    /// Number of words that it takes in a record: the kernel's result, then the bytes.
    #[must_use]
    pub const fn words(&self) -> usize {
        1 + (self.bytes as usize).div_ceil(8)
    }
}

/// What takes the place of an argument register at a USDT probe ([`Action::RecordMark`]), or of a word on the stack
/// for those from the seventh on. Registers are hardware numbers; 31 is arm64's sp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The content of a general register.
    Register(u8),
    /// The low 64 bits of a vector register.
    Vector(u8),
    /// A constant number.
    Constant(i64),
    /// The live address of this place in the file.
    Static(Svma),
    /// An address: `base + (extended index << scale)`.
    Sum {
        /// Register that is added as it is.
        base: u8,
        /// Register that is multiplied; not rsp.
        index: u8,
        /// Exponent of the power of two, 3 at most.
        scale: u8,
        /// Which bits of the index count; on x86-64 all of them.
        extend: Extend,
    },
    /// A value that cannot be computed: 0.
    Unknown,
}

/// Which action is requested at a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Add one to the counter at every entry.
    CountEntry,
    /// Add one to the counter at every exit (`uretprobe`), tail calls included.
    CountExits,
    /// Add one to the counter whenever this instruction runs (`func+off`, a USDT probe).
    CountAt(Svma),
    /// Write an entry stamp at every entry, and the duration at every exit. The counter is not used.
    Latency,
    /// Replace the return address by a return trampoline at every entry, and take the time when the call
    /// returns to it. The counter is not used.
    LatencyByTrampoline,
    /// Write a record at every entry, with the first arguments, and at every exit. The counter counts dropped
    /// records.
    Record {
        /// How many of the six argument registers are recorded, from the first on.
        values: u8,
        /// Record exits too.
        returns: bool,
        /// In a compact ring, the record of a return holds the value. Elsewhere it always does.
        valued: bool,
        /// Bit `n`: argument `n` points to text. The record holds the first bytes of that text.
        texts: u8,
        /// In a compact ring, those of them that end at a 0: no more is recorded.
        ended: u8,
        /// Floats, which follow the values and texts.
        floats: Floats,
        /// Number of words of fields behind the floats. The request's filter names the fields
        /// ([`TargetFilter::reads`](crate::filter::TargetFilter::reads)).
        fields: u16,
        /// Which part of the stack an entry's record holds; if any, the record holds no arguments.
        stack: Unwind,
    },
    /// Write a record, without values but maybe with a stack, whenever this instruction is about to run.
    RecordAt(Svma, Unwind),
    /// Write a record whenever this instruction, a USDT probe, is about to run. The request's filter names
    /// its values ([`TargetFilter::operands`](crate::filter::TargetFilter::operands)): the record holds the first six,
    /// and this many words of fields follow.
    RecordMark(Svma, u16),
    /// Run the filter's program ([`TargetFilter::program`](crate::filter::TargetFilter::program)) whenever this instruction
    /// is about to run.
    RunAt(Svma),
    /// Add one to a value's row in the counter's table, at every entry or at every exit. The request's filter
    /// names the value.
    Tally {
        /// At exits. With [`TargetFilter::late`](crate::filter::TargetFilter::late), the entries keep for them what is
        /// known only at the entry.
        exits: bool,
    },
    /// Call a consumer at every entry.
    CallEntry,
    /// Call a consumer at every entry of a function. The consumer may replace the return address.
    CallArmed,
    /// Call a consumer whenever this instruction is about to run.
    CallAt(Svma),
    /// Call a consumer at every return. A request is refused if an exit is a tail call, since the value is
    /// not known there yet.
    CallExits,
    /// Hold a thread at the entry of this function when it is about to change a fact that patches rely on. No
    /// counter is used.
    Hold(Hold),
    /// The same at an instruction before a system call.
    HoldAt(Svma, Hold),
    /// At the entry of the program's own handler of faults: if the kernel delivers a fault of a copy, its
    /// context gets the original address. No counter is used.
    Deliver {
        /// The kernel describes the signal to it (SA_SIGINFO), so sent ones are known.
        informed: bool,
    },
}

/// Where a program changes such a fact (`record::control::fact`), and how the code there shows the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// C's `sigaction`.
    Sigaction,
    /// C's `prctl`.
    Prctl,
    /// C's `syscall`.
    Syscall,
    /// A system call: where its number and its first two arguments come from. The number and the first
    /// argument are known. If the second is not, it counts as one that changes the fact.
    Call([Origin; 3]),
    /// A loader's function that tells of libraries: the address of its `r_debug`'s state. No fact changes there; the
    /// thread waits until the libraries were looked at.
    Load(u64),
}

impl Action {
    /// Number of values that an entry's record has in a compact ring, or an exit's: the larger number.
    #[must_use]
    pub const fn compact_values(self) -> u32 {
        match self {
            Self::Record { values, valued, texts, floats, fields, stack: Unwind::None, .. } => {
                let texts = texts.count_ones() * TEXT_WORDS as u32;
                let all = values as u32 + texts + floats.arguments.count_ones() + fields as u32;
                if valued && all == 0 { 1 } else { all }
            }
            _ => 0,
        }
    }
    /// Whether nothing but the first instructions of a function is needed to plan it.
    pub(crate) const fn is_at_entry_alone(self) -> bool {
        matches!(self, Self::CountEntry | Self::CallEntry | Self::Hold(_) | Self::Deliver { .. })
    }
    /// The single instruction that is probed, if not a function.
    pub(crate) const fn instruction(self) -> Option<Svma> {
        match self {
            Self::CountAt(at)
            | Self::RecordAt(at, _)
            | Self::RecordMark(at, _)
            | Self::RunAt(at)
            | Self::CallAt(at) => Some(at),
            _ => None,
        }
    }
    /// Whether durations are measured.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Latency | Self::LatencyByTrampoline)
    }
    /// Whether a call's beginning and its end are paired.
    #[must_use]
    pub const fn pairs(self) -> bool {
        self.is_timed() || matches!(self, Self::Record { returns: true, .. } | Self::Tally { exits: true })
    }
    /// Whether a consumer is called. Such a request has no counter.
    #[must_use]
    pub const fn calls(self) -> bool {
        matches!(self, Self::CallEntry | Self::CallArmed | Self::CallAt(_) | Self::CallExits)
    }
    /// Whether the request has a counter of its own.
    #[must_use]
    pub const fn counts(self) -> bool {
        !self.calls() && !self.is_for_us()
    }
    /// Whether it is none of the user's: it holds threads, or delivers faults.
    #[must_use]
    pub const fn is_for_us(self) -> bool {
        self.is_hold() || self.holds_loads() || matches!(self, Self::Deliver { .. })
    }
    /// Whether it holds threads that are about to change a fact.
    #[must_use]
    pub const fn is_hold(self) -> bool {
        matches!(self, Self::Hold(_) | Self::HoldAt(..)) && !self.holds_loads()
    }
    /// Whether it holds threads that have loaded libraries.
    #[must_use]
    pub const fn holds_loads(self) -> bool {
        matches!(self, Self::Hold(Hold::Load(_)))
    }
}

/// One request: an action at one function or instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActionRequest {
    /// Number of the counter (or callee), to which answers refer. Each request of a segment has its own.
    pub probe: u32,
    /// For [`Action::Latency`] and [`Action::LatencyByTrampoline`]: index of the latency area.
    pub latency: Option<u32>,
    /// The function. `None` is allowed for [`Action::CountAt`] outside all known functions.
    pub function: Option<FunctionIndex>,
    /// The requested action.
    pub action: Action,
}

/// How durations are measured; the same for all modules of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatencyInput {
    /// Where the entry stamps will be mapped ([`Stamps::bytes`]); any address will do, see
    /// `AddressSpace::find`.
    pub stamps: RemoteAddr,
    /// Size of the stamp cells. They hold whole records if a return decides about some of them
    /// ([`TargetFilter::late`](crate::filter::TargetFilter::late)).
    pub shape: Stamps,
    /// Calls shorter than this many ticks are counted as returns, but not timed.
    pub min_ticks: u64,
    /// How durations are sorted into histogram buckets.
    pub buckets: Buckets,
    /// Count a recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go_g: Option<i32>,
    /// Where [`Action::LatencyByTrampoline`] finds return trampolines; required if there is such a request.
    pub trampolines: Option<Trampolines>,
    /// A function gets a return trampoline if its exits cannot be found or patched, or if one of them jumps
    /// to another function. Applies to [`Action::Latency`], and to returns of [`Action::Record`] and
    /// [`Action::Tally`].
    pub or_trampolines: bool,
    /// Returns of [`Action::Record`] and [`Action::Tally`] always go through a return trampoline.
    pub by_trampolines: bool,
    /// A return trampoline leads on to the action of its function's return, instead of taking the time.
    pub leads_on: bool,
}

/// Which functions a [`CodeMap`](crate::CodeMap) covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// All of the module's text.
    All,
    /// The requested functions and their neighbours. A branch from elsewhere into a window is not seen then;
    /// a thread that takes it is served by the guards. Not for a process in which no trap can be served.
    For(&'a [ActionRequest]),
}
