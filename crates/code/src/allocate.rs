//! Which register or stack word holds a variable.
//!
//! In: a program; the registers and words that its code may use ([`Pool`]). Out: a [`Location`] for each variable.
//! Neutral: a register is a number that the back end knows.
//!
//! Branches lead forward only. So on every path positions grow, and a variable is in use from its first write to its
//! last read in the order of the program (its *span*), whatever path is taken. Two variables may share a register if
//! one's span ends where the other's begins: operations read before they write. This is linear scan (Poletto and
//! Sarkar 1999), with whole spans.
//!
//! ```text
//!   spans       v0 ├────────┤              r0
//!               v1    ├──────────────┤     word 0     its span ends last, so it waits in memory
//!               v2         ├─────┤         r1
//! ```
//!
//! A division overwrites registers: a variable that is in use across it is in none of them.
//! If a variable is in memory, the last register of the pool holds what operations load and store on the way.
//!
//! Does not: split spans, move variables, or know instructions.

use crate::program::{Op, Program, Var};

/// What a program's code may use.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// Registers, the preferred ones first. The last one is kept free if variables are in memory.
    pub registers: &'a [u8],
    /// Those that a division overwrites.
    pub divided: &'a [u8],
    /// Number of stack words.
    pub words: usize,
    /// Where the result is wanted.
    pub result: u8,
}

/// Where a variable is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In a register of the pool.
    Register(u8),
    /// In a stack word, by its number.
    Word(u8),
    /// Where the program's input already is; nothing writes there.
    Input(u16),
    /// Nothing reads it, so nothing is kept.
    Nowhere,
}

/// More values are in use at once than the stub has words for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the program keeps {needed} values in memory at once; the stub has room for {words}")]
pub struct NoRoom {
    /// Words that it needs.
    pub needed: usize,
    /// Words that there are.
    pub words: usize,
}

/// A program with a location for each variable.
#[derive(Clone, Debug)]
pub struct Allocated {
    pub(crate) program: Program,
    pub(crate) locations: Vec<Location>,
}

/// From a variable's first write to its last read, as numbers of operations; the end counts as one.
#[derive(Clone, Copy, Debug)]
struct Span {
    var: Var,
    first: usize,
    last: usize,
}

impl Allocated {
    /// Chooses locations. `in_place`: whether an input is in a register that the program does not write.
    ///
    /// # Errors
    /// The stub has fewer stack words than the program needs.
    pub fn new(program: Program, pool: &Pool<'_>, in_place: impl Fn(u16) -> bool) -> Result<Self, NoRoom> {
        let mut locations = vec![Location::Nowhere; program.vars.into()];
        let mut spans = spans(&program);
        read_in_place(&program, &mut spans, &mut locations, in_place);
        let divisions = divisions(&program);
        let scan = Scan { program: &program, pool, divisions: &divisions, spans: &spans };
        let mut waiting = scan.run(pool.registers, &mut locations);
        if !waiting.is_empty() {
            let fewer = pool.registers.split_last().map_or(pool.registers, |(_, rest)| rest);
            waiting = scan.run(fewer, &mut locations);
        }
        words(&waiting, pool.words, &mut locations)?;
        Ok(Self { program, locations })
    }
    /// The program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }
    /// Where a variable is.
    #[must_use]
    pub fn location(&self, var: Var) -> Location {
        self.locations[var.index()]
    }
}

/// The spans of all variables that are read, by their begin.
fn spans(program: &Program) -> Vec<Span> {
    let mut spans: Vec<Option<Span>> = vec![None; program.vars.into()];
    let mut is_read = vec![false; program.vars.into()];
    let end = program.ops.len();
    for (at, op) in program.ops.iter().enumerate() {
        for var in op.read() {
            is_read[var.index()] = true;
            spans[var.index()].get_or_insert(Span { var, first: at, last: at }).last = at;
        }
        if let Some(var) = op.written() {
            spans[var.index()].get_or_insert(Span { var, first: at, last: at }).last = at;
        }
    }
    if let Some(var) = program.result {
        is_read[var.index()] = true;
        spans[var.index()].get_or_insert(Span { var, first: end, last: end }).last = end;
    }
    let mut spans: Vec<_> = spans.into_iter().flatten().filter(|span| is_read[span.var.index()]).collect();
    spans.sort_by_key(|span| span.first);
    spans
}

/// Takes out the variables that are an input and nothing else, if the input may be read where it is.
fn read_in_place(
    program: &Program,
    spans: &mut Vec<Span>,
    locations: &mut [Location],
    in_place: impl Fn(u16) -> bool,
) {
    let mut writes = vec![0_u32; program.vars.into()];
    program.ops.iter().filter_map(Op::written).for_each(|var| writes[var.index()] += 1);
    for op in &program.ops {
        if let Op::Input { to, nth } = *op
            && writes[to.index()] == 1
            && in_place(nth)
        {
            locations[to.index()] = Location::Input(nth);
        }
    }
    spans.retain(|span| !matches!(locations[span.var.index()], Location::Input(_)));
}

fn divisions(program: &Program) -> Vec<usize> {
    program.ops.iter().enumerate().filter(|(_, op)| op.divides()).map(|(at, _)| at).collect()
}

/// What one scan goes by.
#[derive(Debug)]
struct Scan<'a> {
    program: &'a Program,
    pool: &'a Pool<'a>,
    divisions: &'a [usize],
    spans: &'a [Span],
}

impl Scan<'_> {
    /// Gives registers to as many variables as fit. Returns the others.
    fn run(&self, registers: &[u8], locations: &mut [Location]) -> Vec<Span> {
        let (mut active, mut waiting): (Vec<(Span, u8)>, Vec<Span>) = (Vec::new(), Vec::new());
        for span in self.spans {
            active.retain(|(other, _)| other.last > span.first);
            let may_use = |register: &u8| self.may_use(*span, *register);
            let is_free = |register: &u8| active.iter().all(|(_, used)| used != register);
            let wanted = self.wanted(*span, locations);
            let is_for_result = |register: &u8| *register == self.pool.result && self.is_beside_result(*span);
            let free = registers.iter().copied().filter(|register| may_use(register) && is_free(register));
            let chosen = free
                .clone()
                .find(|register| Some(*register) == wanted)
                .or_else(|| free.clone().find(|register| !is_for_result(register)))
                .or_else(|| free.clone().next());
            if let Some(register) = chosen {
                active.push((*span, register));
                locations[span.var.index()] = Location::Register(register);
                continue;
            }
            // The one that is needed last waits in memory.
            let usable = active.iter_mut().filter(|(_, register)| may_use(register));
            match usable.max_by_key(|(other, _)| other.last) {
                Some((other, register)) if other.last > span.last => {
                    locations[span.var.index()] = Location::Register(*register);
                    waiting.push(core::mem::replace(other, *span));
                }
                _ => waiting.push(*span),
            }
        }
        waiting
    }
    /// Whether a register keeps its value over the span.
    fn may_use(&self, span: Span, register: u8) -> bool {
        let across = |at: &usize| (span.first + 1..span.last).contains(at);
        !self.pool.divided.contains(&register) || !self.divisions.iter().any(across)
    }
    /// Whether it is in use together with the result, and is another variable.
    fn is_beside_result(&self, span: Span) -> bool {
        let other = self.spans.iter().find(|other| Some(other.var) == self.program.result);
        other.is_some_and(|other| other.var != span.var && other.first < span.last && span.first < other.last)
    }
    /// The register that saves a move.
    fn wanted(&self, span: Span, locations: &[Location]) -> Option<u8> {
        if self.program.result == Some(span.var) {
            return Some(self.pool.result);
        }
        let from = self.program.ops.get(span.first)?.read().next()?;
        match locations[from.index()] {
            Location::Register(register) => Some(register),
            _ => None,
        }
    }
}

/// Gives each waiting variable a word that no other one uses during its span.
fn words(waiting: &[Span], most: usize, locations: &mut [Location]) -> Result<(), NoRoom> {
    let mut waiting = waiting.to_vec();
    waiting.sort_by_key(|span| span.first);
    // For each word, the last read of the variable that is in it.
    let mut used: Vec<usize> = Vec::new();
    for span in &waiting {
        let word = match used.iter().position(|last| *last <= span.first) {
            Some(word) => word,
            None => {
                used.push(0);
                used.len() - 1
            }
        };
        used[word] = span.last;
        locations[span.var.index()] = Location::Word(word as u8);
    }
    if used.len() > most { Err(NoRoom { needed: used.len(), words: most }) } else { Ok(()) }
}
