//! What a hit does if it runs a program: a script's block that reads and writes maps.
//!
//! In: a program, whose inputs are numbered here; how a clock's ticks become nanoseconds. Out: [`HitProgram`], which a
//! filter carries ([`TargetFilter::program`](crate::filter::TargetFilter::program)). Does not: know scripts, or where
//! maps are; whether a program has code says [`fits`](crate::fits()).

use trapline_code::{Memory, Op};

pub use crate::programs::maps::Map;
pub use trapline_code::{
    Builder, Compare, Compute, Label, NoCode, Program, Target, Unary, Unsound, Value, Var, Width,
};
pub use trapline_record::maps::{MapBytes, StackTable, TextTable};

/// Inputs of a hit's program, by their numbers.
pub mod input {
    /// The first of six argument registers.
    pub const ARGUMENT: u16 = 0;
    /// What the call returned.
    pub const RETURNED: u16 = 6;
    /// The thread's number, as the thread sees it.
    pub const THREAD: u16 = 7;
    /// Nanoseconds since the machine's start, once for the whole program.
    pub const NANOS: u16 = 8;
    /// Pointer to the maps' line of this CPU, for what is added up.
    pub const LINE: u16 = 10;
    /// Pointer to the maps that are there once, for what is assigned.
    pub const ASSIGNED: u16 = 11;
    /// The same, for words of this thread alone.
    pub const OWN: u16 = 12;
    /// The number of the stack, at a function's entry or its exit
    /// ([`StackTable`](trapline_record::maps::StackTable)). A hit for whose stack there is no room runs no program.
    pub const STACK: u16 = 13;
    /// Pointer to the table of stacks; the stub's own programs read it.
    pub(crate) const STACKS: u16 = 14;
    /// Pointer to the maps' last line, where threads add that are on another CPU than their line's.
    pub const OTHERS: u16 = 15;
    /// Whether the thread has left the CPU whose line [`LINE`] is. Only an addition asks.
    pub const MOVED: u16 = 16;
    /// The first of six arguments behind those in registers, at a USDT probe.
    pub const MORE: u16 = 17;
    /// The first of [`TEXTS_OF_KEYS`](super::TEXTS_OF_KEYS) numbers of texts, at a USDT probe.
    pub const TEXT: u16 = 23;
    /// Pointer to the table of texts; the stub's own programs read it.
    pub(crate) const TEXTS: u16 = 29;
    /// The thread among all of the processes that share the maps: the process' number, times 2³², and the thread's
    /// ([`trapline_record::sharers`]).
    pub const MEMBER: u16 = 9;
    /// The first of [`NAMES`](super::NAMES) numbers that stand for names of the place that was hit.
    pub const NAME: u16 = 30;
}

/// Where a hit's program finds what it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapsAt {
    /// Address of the maps.
    pub maps: u64,
    /// Address of the page that each process has for itself ([`trapline_record::sharers`]).
    pub own_page: u64,
    /// Address of the word that counts the numbers of processes; on x86-64 within ±2 GiB.
    pub sharers: u64,
}

/// How ticks of the clock become nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HitClock {
    /// Nanoseconds of a tick, times 2³².
    pub tick: u64,
    /// Is added, modulo 2⁶⁴.
    pub offset: u64,
}

impl HitClock {
    /// Nanoseconds at a tick. Generated code must give the same result.
    #[must_use]
    pub const fn nanos(self, ticks: u64) -> u64 {
        (((ticks as u128 * self.tick as u128) >> 32) as u64).wrapping_add(self.offset)
    }
}

/// How many names a place has.
pub const NAMES: usize = 3;
/// Texts that keys of one program name, at most.
pub const TEXTS_OF_KEYS: usize = 6;

/// A text that keys name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextOfKey {
    /// The argument that points to it.
    pub argument: u8,
    /// It ends at its first zero byte.
    pub ends: bool,
    /// How long it is at most; never more than [`TEXT_BYTES`](trapline_record::ring::TEXT_BYTES).
    pub length: TextLength,
}

/// How many bytes of a text count, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextLength {
    /// So many.
    AtMost(u8),
    /// As many as this argument says; none if it is below 0.
    Argument(u8),
}

/// A program that hits run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HitProgram {
    program: Program,
    /// Bytes of its maps; the same for all programs of a session.
    pub bytes: MapBytes,
    /// Used if it asks for the time.
    pub clock: HitClock,
    /// The table of stacks that its keys name; the same for all programs of a session that have one.
    pub stacks: StackTable,
    /// The texts whose numbers are its inputs from [`input::TEXT`] on.
    pub texts: Vec<TextOfKey>,
    /// The numbers of the place's names.
    pub names: [u32; NAMES],
}

impl HitProgram {
    /// `bytes`: those of its maps.
    #[must_use]
    pub const fn new(program: Program, bytes: MapBytes) -> Self {
        let (clock, stacks) = (HitClock { tick: 0, offset: 0 }, StackTable { frames: 0 });
        Self { program, bytes, clock, stacks, texts: Vec::new(), names: [0; NAMES] }
    }
    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }
    /// Arguments that it needs, as bits.
    #[must_use]
    pub fn arguments(&self) -> u16 {
        let inputs = (0..6).map(|nth| (nth, input::ARGUMENT + nth));
        let more = (0..6).map(|nth| (6 + nth, input::MORE + nth));
        let read = inputs.chain(more).filter(|(_, input)| self.reads(*input)).map(|(nth, _)| 1 << nth);
        let lengths = self.texts.iter().filter_map(|text| match text.length {
            TextLength::Argument(nth) => Some(1 << nth),
            TextLength::AtMost(_) => None,
        });
        read.chain(lengths).fold(self.pointers(), |all, bit: u16| all | bit)
    }
    /// Arguments that point to its texts, as bits.
    #[must_use]
    pub fn pointers(&self) -> u16 {
        self.texts.iter().fold(0, |all, text| all | 1 << text.argument)
    }
    /// Whether it reads this input.
    #[must_use]
    pub fn reads(&self, input: u16) -> bool {
        let is_it = |op: &Op| matches!(op, Op::Input { nth, .. } | Op::Pointer { nth, .. } if *nth == input);
        self.program.ops().iter().any(is_it)
    }
}

/// A pointer to a line of maps, by the number of its input.
pub fn line(builder: &mut Builder, nth: u16) -> Var {
    builder.pointer(nth, if nth == input::OWN { Memory::Own } else { Memory::Shared })
}
