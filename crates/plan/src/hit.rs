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
pub use trapline_record::maps::{MapBytes, StackTable};

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
    /// The number of the probe ([`ActionRequest::probe`](crate::ActionRequest::probe)).
    pub const PROBE: u16 = 9;
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
}

impl HitProgram {
    /// `bytes`: those of its maps.
    #[must_use]
    pub const fn new(program: Program, bytes: MapBytes) -> Self {
        Self { program, bytes, clock: HitClock { tick: 0, offset: 0 }, stacks: StackTable { frames: 0 } }
    }
    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
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
