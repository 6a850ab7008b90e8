//! A program: a flat list of operations over virtual registers of 64 bits.
//!
//! In: nothing; a [`Builder`](crate::Builder) makes programs. Out: plain values.
//!
//! ```text
//!   v0 = input 0                        v0 = pointer 0, mine
//!   v1 = extend v0, 32 bits, signed     v1 = input 1
//!   if v1 < 3, outcome 1                commit [v0 + (v1 << 3) + 16] += 1
//!   v2 = v1 * 10
//!   end, result v2                      outcome 0: control goes on behind the code
//! ```
//!
//! Does not: check programs (`verify`), or run them (`interpret`).

use crate::compute::{Compare, Compute, Unary};
use crate::operand::{Label, Memory, Operand, Place, Target, Var, Walk};

/// Upper bound of a program's operations.
pub const MAX_OPS: usize = 4096;

/// Upper bound of the operations that a program's walks take.
pub const MAX_STEPS: usize = 1 << 14;
/// The bit that a word has while a thread has claimed it.
pub const CLAIMED: u64 = 1 << 63;

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `to` = an input of the program, by its number.
    Input {
        /// Is written.
        to: Var,
        /// Which input.
        nth: u16,
    },
    /// `to` = a number.
    Number {
        /// Is written.
        to: Var,
        /// Any number.
        value: u64,
    },
    /// `to = from`
    Move {
        /// Is written.
        to: Var,
        /// Is read.
        from: Var,
    },
    /// `to` = a computation of one operand.
    Unary {
        /// Which.
        op: Unary,
        /// Is written.
        to: Var,
        /// Is read.
        from: Var,
    },
    /// `to` = a computation of two operands.
    Compute {
        /// Which.
        op: Compute,
        /// Is written.
        to: Var,
        /// Is read.
        left: Var,
        /// Is read.
        right: Operand,
    },
    /// Goes to `to` if the comparison holds.
    Branch {
        /// Which comparison.
        when: Compare,
        /// Is read.
        left: Var,
        /// Is read.
        right: Operand,
        /// Where to.
        to: Target,
    },
    /// Goes to `to`.
    Jump {
        /// Where to.
        to: Target,
    },
    /// A label's place.
    Bind {
        /// Which label.
        label: Label,
    },
    /// `to` = an input of the program that is a pointer.
    Pointer {
        /// Is written.
        to: Var,
        /// Which input.
        nth: u16,
        /// What it leads to.
        memory: Memory,
    },
    /// `to` = an address.
    Address {
        /// Is written.
        to: Var,
        /// Which address.
        place: Place,
    },
    /// `to` = a word in memory, or a byte.
    Load {
        /// Is written.
        to: Var,
        /// Where the word is.
        place: Place,
        /// Whether it is a byte.
        byte: bool,
    },
    /// A word in memory = a variable or a number.
    Store {
        /// Where the word is.
        place: Place,
        /// Is read.
        from: Operand,
    },
    /// A byte in memory = a number.
    StoreByte {
        /// Where the byte is.
        place: Place,
        /// The number.
        value: u8,
    },
    /// Goes to `to` if the comparison of a word in memory with an operand holds.
    BranchWord {
        /// Which comparison.
        when: Compare,
        /// Where the word is.
        place: Place,
        /// Is read.
        right: Operand,
        /// Where to.
        to: Target,
    },
    /// Loads a word that other threads change, or that a commit of this CPU has changed. What is loaded or stored later is
    /// loaded or stored after it, and after a commit before it. As in the next three and a commit, the word's address is a
    /// multiple of 8.
    Look {
        /// Where the word is.
        place: Place,
        /// Where to if it is 0.
        free: Target,
        /// Where to if it is [`CLAIMED`], or negative otherwise.
        claimed: Target,
    },
    /// `to` = such a word. What is loaded or stored later is loaded or stored after it.
    Watch {
        /// Is written.
        to: Var,
        /// Where the word is.
        place: Place,
        /// Whether what is loaded earlier is loaded before it.
        last: bool,
    },
    /// Adds [`CLAIMED`] to a word that is `from`, and goes to `to`, by one access; or leaves it as it is. `from` has no such
    /// bit. What is stored later is seen after it.
    Claim {
        /// Where the word is.
        place: Place,
        /// What it must be.
        from: Operand,
        /// Where to.
        to: Target,
    },
    /// A word = a variable or a number, while one is claimed. All that was stored before is seen before it. If it is the
    /// claimed word, that is the end of the claim.
    Publish {
        /// Where the word is.
        place: Place,
        /// Is read.
        value: Operand,
    },
    /// Adds a variable or a number to a word that other threads change, by one access.
    Add {
        /// Where the word is.
        place: Place,
        /// Is read.
        value: Operand,
    },
    /// The same, to a word of a CPU's line, by one store of a thread that is on that CPU: no other thread adds there
    /// meanwhile. If it is on another CPU by now, nothing is added, and it goes to `to`.
    AddHere {
        /// Where the word is.
        place: Place,
        /// Is read.
        value: Operand,
        /// Which input says whether the thread is on another CPU: it is not 0 then.
        nth: u16,
        /// Where to.
        to: Target,
    },
    /// Such a word = `value`, if the comparison of `value` with it holds: the word is the least or the greatest of all
    /// values then. If another thread changes it meanwhile, it is compared again.
    Raise {
        /// Which comparison.
        when: Compare,
        /// Where the word is.
        place: Place,
        /// Is read.
        value: Var,
    },
    /// The walk's end = its entry, now, and the length of all entries.
    /// Or, if a variable says how far the last entry is from the first one: behind that.
    Bound(Walk, Option<Var>),
    /// The walk's operations begin. It may stand several times; then the walk goes on where it was.
    Begin(Walk),
    /// Goes on with the next entry, at the last [`Op::Begin`], unless that was the last entry.
    Next(Walk),
}

impl Op {
    /// The variable that it writes.
    #[must_use]
    pub const fn written(&self) -> Option<Var> {
        match *self {
            Self::Input { to, .. }
            | Self::Number { to, .. }
            | Self::Move { to, .. }
            | Self::Unary { to, .. }
            | Self::Compute { to, .. }
            | Self::Pointer { to, .. }
            | Self::Address { to, .. }
            | Self::Load { to, .. }
            | Self::Watch { to, .. } => Some(to),
            Self::Bound(walk, _) => Some(walk.end),
            Self::Next(walk) => Some(walk.entry),
            _ => None,
        }
    }
    /// The variables that it reads.
    pub fn read(&self) -> impl Iterator<Item = Var> + use<> {
        let var = |operand| match operand {
            Operand::Var(var) => Some(var),
            Operand::Number(_) => None,
        };
        let [base, index] = self.place().map_or([None, None], Place::vars);
        let (first, second) = match *self {
            Self::Move { from, .. } | Self::Unary { from, .. } => (Some(from), None),
            Self::Compute { left, right, .. } | Self::Branch { left, right, .. } => (Some(left), var(right)),
            Self::Store { from, .. }
            | Self::Publish { value: from, .. }
            | Self::Add { value: from, .. }
            | Self::AddHere { value: from, .. } => (var(from), None),
            Self::BranchWord { right, .. } | Self::Claim { from: right, .. } => (var(right), None),
            Self::Raise { value, .. } => (Some(value), None),
            Self::Bound(walk, reach) => (Some(walk.entry), reach),
            Self::Begin(walk) | Self::Next(walk) => (Some(walk.entry), Some(walk.end)),
            _ => (None, None),
        };
        [base, index, first, second].into_iter().flatten()
    }
    /// The word in memory that it is about.
    #[must_use]
    pub const fn place(&self) -> Option<Place> {
        match *self {
            Self::Address { place, .. }
            | Self::Load { place, .. }
            | Self::Store { place, .. }
            | Self::StoreByte { place, .. }
            | Self::BranchWord { place, .. }
            | Self::Look { place, .. }
            | Self::Watch { place, .. }
            | Self::Claim { place, .. }
            | Self::Publish { place, .. }
            | Self::Raise { place, .. }
            | Self::Add { place, .. }
            | Self::AddHere { place, .. } => Some(place),
            _ => None,
        }
    }
    /// Whether it is about a word that other threads change at the same time.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(
            self,
            Self::Look { .. }
                | Self::Watch { .. }
                | Self::Claim { .. }
                | Self::Publish { .. }
                | Self::Add { .. }
                | Self::AddHere { .. }
                | Self::Raise { .. }
        )
    }
    /// Whether its code compares a word in memory with a register that the processor names.
    #[must_use]
    pub(crate) const fn swaps(&self) -> bool {
        matches!(self, Self::Claim { .. } | Self::Raise { .. })
    }
    /// Whether it divides.
    #[must_use]
    pub const fn divides(&self) -> bool {
        matches!(self, Self::Compute { op, .. } if op.divides())
    }
    /// Where it may go instead of to the next operation. A walk's way back does not count.
    pub fn targets(&self) -> impl Iterator<Item = Target> + use<> {
        let targets = match *self {
            Self::Branch { to, .. }
            | Self::Jump { to }
            | Self::BranchWord { to, .. }
            | Self::Claim { to, .. }
            | Self::AddHere { to, .. } => [Some(to), None],
            Self::Look { free, claimed, .. } => [Some(free), Some(claimed)],
            _ => [None, None],
        };
        targets.into_iter().flatten()
    }
}

/// A program that was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) vars: u16,
    pub(crate) labels: u16,
    pub(crate) result: Option<Var>,
    pub(crate) commit: Option<Commit>,
    pub(crate) handed: Vec<Var>,
    pub(crate) is_sequence: bool,
}

/// How a restartable sequence ends: one store to this CPU's table, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The word to which the value is added.
    pub place: Place,
    /// What is added: a variable, or a number of 24 bits and a sign.
    pub value: Operand,
}

impl Commit {
    /// Whether a number may be added.
    pub(crate) const fn holds(number: i64) -> bool {
        number.unsigned_abs() < 1 << 24
    }
    /// The variables that it reads.
    pub(crate) fn read(self) -> impl Iterator<Item = Var> {
        let value = if let Operand::Var(var) = self.value { Some(var) } else { None };
        self.place.vars().into_iter().chain([value]).flatten()
    }
}

impl Program {
    /// Its operations, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
    /// The variable with the result, if it has one; it is read at outcome 0 alone.
    #[must_use]
    pub const fn result(&self) -> Option<Var> {
        self.result
    }
    /// Its last step at outcome 0, if it is the body of a restartable sequence.
    #[must_use]
    pub const fn commit(&self) -> Option<Commit> {
        self.commit
    }
    /// Whether it is the body of a restartable sequence, or a part of one.
    #[must_use]
    pub const fn is_sequence(&self) -> bool {
        self.is_sequence
    }
    /// What a part of a sequence's body leaves to the next one, at outcome 0.
    #[must_use]
    pub fn handed(&self) -> &[Var] {
        &self.handed
    }
    /// The variables that are read at outcome 0, behind all operations.
    pub(crate) fn read_at_end(&self) -> impl Iterator<Item = Var> {
        let handed = self.handed.iter().copied();
        self.result.into_iter().chain(self.commit.into_iter().flat_map(Commit::read)).chain(handed)
    }
    /// The begin of each walk's operations, and their last step.
    pub(crate) fn walks(&self) -> Vec<(usize, usize)> {
        let mut walks: Vec<(usize, usize)> = Vec::new();
        for (at, op) in self.ops.iter().enumerate() {
            match op {
                Op::Begin(_) => walks.push((at, at)),
                Op::Next(_) => walks.iter_mut().last().into_iter().for_each(|walk| walk.1 = at),
                _ => {}
            }
        }
        walks
    }
    /// The last operation that may run before the one at `at` runs for the last time: the last step of a walk that it
    /// stands in, or itself.
    pub(crate) fn runs_until(&self, at: usize) -> usize {
        self.walks()
            .into_iter()
            .find(|(begin, step)| (*begin..=*step).contains(&at))
            .map_or(at, |walk| walk.1)
    }
    /// Whether it stores anything before its commit.
    pub(crate) fn stores(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Store { .. } | Op::StoreByte { .. }))
    }
}
