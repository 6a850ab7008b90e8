//! What operations name: variables, labels, numbers, and words in memory.
//!
//! In: nothing. Out: plain values. Does not: compute.

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Var(pub(crate) u16);

impl Var {
    /// Its number; a program's variables are numbered from 0 on.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// A place in a program, further ahead than all branches to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label(pub(crate) u16);

/// Where a branch leads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// To a place ahead in the program.
    Label(Label),
    /// Out of the program. Outcome 0 is the end: control goes on behind the code, with the program's result.
    Outcome(u8),
}

/// The right operand of a computation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A variable.
    Var(Var),
    /// A number of 32 bits, sign-extended to 64.
    Number(i32),
}

impl From<Var> for Operand {
    fn from(var: Var) -> Self {
        Self::Var(var)
    }
}

/// What a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// This CPU's table. Only a program with a commit writes it: the body of a restartable sequence.
    Mine,
    /// A table that other threads change at the same time.
    Shared,
    /// The stub's own words. No other thread writes there.
    Own,
}

/// An address: `base + (index << shift) + offset`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// A pointer.
    pub base: Var,
    /// A number, and by how many bits it is shifted: 0 to 63.
    pub index: Option<(Var, u8)>,
    /// In bytes.
    pub offset: i32,
}

impl Place {
    /// `base + offset`
    #[must_use]
    pub const fn at(base: Var, offset: i32) -> Self {
        Self { base, index: None, offset }
    }
    /// The variables that it is computed from.
    pub(crate) fn vars(self) -> [Option<Var>; 2] {
        [Some(self.base), self.index.map(|(index, _)| index)]
    }
}

/// A walk over entries: `entry`, `entry + stride`, … until `end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Walk {
    /// Pointer to the entry that is looked at.
    pub entry: Var,
    /// Pointer behind the last entry: `entry + stride · count`, where the walk is bounded.
    pub end: Var,
    /// Length of an entry in bytes.
    pub stride: u16,
    /// Number of entries.
    pub count: u16,
}

impl Walk {
    /// From the first entry to behind the last one, in bytes.
    #[must_use]
    pub const fn bytes(self) -> i32 {
        self.stride as i32 * self.count as i32
    }
}
