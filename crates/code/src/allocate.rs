//! Which register or stack word holds a variable.
//!
//! In: a program; the registers and words that its code may use ([`Pool`]). Out: a [`Location`] for each variable.
//! Neutral: a register is a number that the back end knows.
//!
//! Branches lead forward only. So on every path positions grow, and a variable is in use from its first write to its
//! last read in the order of the program (its *span*), whatever path is taken. A walk leads back: what was written before
//! its begin and is read within it is in use until its last step. Two variables may share a register if
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
//! If a variable is in memory, some operations need registers that hold it on the way. They are those of the pool that no
//! variable is in where the operation stands. If that are too few, the last registers of the pool are kept free.
//! The end of a walk is the first to wait: it is read once for each entry.
//!
//! Does not: split spans, move variables, or know instructions.

use crate::operand::Var;
use crate::program::{Op, Program};

/// How many registers an operation needs besides those of its variables, which are at these locations.
pub(crate) type Ways = fn(&Op, &[Location]) -> usize;

/// What a program's code may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a> {
    /// Registers, the preferred ones first. The last ones are kept free if operations need them.
    pub registers: &'a [u8],
    /// Those that a division overwrites.
    pub divided: &'a [u8],
    /// One that a claim overwrites.
    pub claims: Option<u8>,
    /// What operations need.
    pub ways: Ways,
    /// Number of stack words.
    pub words: usize,
    /// Where the result is wanted.
    pub result: u8,
    /// Where what a part hands on must be, each in its register.
    pub handed: &'a [u8],
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
    registers: Vec<u8>,
    /// For each operation, and for the end: a bit for each register with a variable.
    busy: Vec<u32>,
    /// For each variable: how often operations and the end read it.
    reads: Vec<u32>,
    divides: bool,
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
    pub(crate) fn new(
        program: Program,
        pool: &Pool<'_>,
        in_place: impl Fn(u16) -> bool,
    ) -> Result<Self, NoRoom> {
        let mut in_place_only = vec![Location::Nowhere; program.vars.into()];
        let mut spans = spans(&program);
        read_in_place(&program, &mut spans, &mut in_place_only, in_place);
        let at = |is: fn(&Op) -> bool| positions(&program, is);
        let (divisions, claims) = (at(Op::divides), at(Op::swaps));
        let scan = Scan { program: &program, pool, divisions: &divisions, claims: &claims, spans: &spans };
        for kept in (0..=pool.registers.len()).rev() {
            let mut locations = in_place_only.clone();
            let waiting = scan.run(&pool.registers[..kept], &mut locations);
            words(&waiting, pool.words, &mut locations)?;
            let busy = busy(&program, &spans, &locations);
            if is_enough(&program, pool, &locations, &busy) && is_handed(&program, pool, &locations) {
                let mut reads = vec![0; program.vars.into()];
                let all = program.ops.iter().flat_map(Op::read).chain(program.read_at_end());
                all.for_each(|var| reads[var.index()] += 1);
                let (registers, divides) = (pool.registers.to_vec(), !divisions.is_empty());
                return Ok(Self { program, locations, registers, busy, reads, divides });
            }
        }
        Err(NoRoom { needed: pool.words + 1, words: pool.words })
    }
    /// The registers in which no variable is where an operation stands; the preferred ones last.
    pub(crate) fn free(&self, at: usize) -> impl Iterator<Item = u8> + use<'_> {
        let busy = self.busy[at];
        self.registers.iter().rev().copied().filter(move |register| busy >> register & 1 == 0)
    }
    /// Whether one operation reads a variable, once.
    pub(crate) fn is_read_once(&self, var: Var) -> bool {
        self.reads[var.index()] == 1
    }
    /// Whether the program divides.
    pub(crate) const fn divides(&self) -> bool {
        self.divides
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

/// Whether every operation has the registers that it needs on the way to memory.
fn is_enough(program: &Program, pool: &Pool<'_>, locations: &[Location], busy: &[u32]) -> bool {
    let free = |at: usize| pool.registers.iter().filter(|register| busy[at] >> **register & 1 == 0).count();
    // A commit needs what an addition needs.
    let commit = program.commit.is_none_or(|commit| {
        let addition = Op::Add { place: commit.place, value: commit.value };
        free(program.ops.len()) >= (pool.ways)(&addition, locations)
    });
    commit && program.ops.iter().enumerate().all(|(at, op)| free(at) >= (pool.ways)(op, locations))
}

/// Whether each value that is handed on is in its register.
fn is_handed(program: &Program, pool: &Pool<'_>, locations: &[Location]) -> bool {
    let mut handed = program.handed.iter().enumerate();
    handed.all(|(nth, var)| {
        let register = pool.handed.get(nth).copied().map(Location::Register);
        register == Some(locations[var.index()])
    })
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
    for var in program.read_at_end() {
        is_read[var.index()] = true;
        spans[var.index()].get_or_insert(Span { var, first: end, last: end }).last = end;
    }
    for (begin, step) in program.walks() {
        let live = |span: &&mut Span| span.first < begin && (begin..step).contains(&span.last);
        spans.iter_mut().flatten().filter(live).for_each(|span| span.last = step);
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
        if let Op::Input { to, nth } | Op::Pointer { to, nth, .. } = *op
            && writes[to.index()] == 1
            && in_place(nth)
        {
            locations[to.index()] = Location::Input(nth);
        }
    }
    spans.retain(|span| !matches!(locations[span.var.index()], Location::Input(_)));
}

fn positions(program: &Program, is: fn(&Op) -> bool) -> Vec<usize> {
    program.ops.iter().enumerate().filter(|(_, op)| is(op)).map(|(at, _)| at).collect()
}

/// For each operation, and for the end: the registers with variables.
fn busy(program: &Program, spans: &[Span], locations: &[Location]) -> Vec<u32> {
    let mut busy = vec![0; program.ops.len() + 1];
    for span in spans {
        if let Location::Register(register) = locations[span.var.index()] {
            busy[span.first..=span.last].iter_mut().for_each(|busy| *busy |= 1 << register);
        }
    }
    busy
}

/// What one scan goes by.
#[derive(Debug)]
struct Scan<'a> {
    program: &'a Program,
    pool: &'a Pool<'a>,
    divisions: &'a [usize],
    claims: &'a [usize],
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
            let is_for_result = |register: &u8| self.is_for_end(*span, *register);
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
            match usable.max_by_key(|(other, _)| self.waits(*other)) {
                Some((other, register)) if self.waits(*other) > self.waits(*span) => {
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
        let claims = |at: &usize| self.program.ops[*at].read().any(|var| var == span.var);
        !(self.pool.divided.contains(&register) && self.divisions.iter().any(across)
            || self.pool.claims == Some(register) && self.claims.iter().any(claims))
    }
    /// Orders variables by which of two waits in memory, if not both can be in registers.
    fn waits(&self, span: Span) -> (bool, usize) {
        let is_end = |op: &Op| matches!(op, Op::Bound(walk, _) if walk.end == span.var);
        (self.program.ops.get(span.first).is_some_and(is_end), span.last)
    }
    /// Whether another variable that is in use together with this one is wanted in a register at the end.
    fn is_for_end(&self, span: Span, register: u8) -> bool {
        let is_beside =
            |other: &Span| other.var != span.var && other.first < span.last && span.first < other.last;
        let mut spans = self.spans.iter().filter(|other| self.at_end(other.var) == Some(register));
        spans.any(is_beside)
    }
    /// The register in which a variable is wanted at the end.
    fn at_end(&self, var: Var) -> Option<u8> {
        if self.program.result == Some(var) {
            return Some(self.pool.result);
        }
        let nth = self.program.handed.iter().position(|handed| *handed == var)?;
        self.pool.handed.get(nth).copied()
    }
    /// The register that saves a move.
    fn wanted(&self, span: Span, locations: &[Location]) -> Option<u8> {
        if let Some(register) = self.at_end(span.var) {
            return Some(register);
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
