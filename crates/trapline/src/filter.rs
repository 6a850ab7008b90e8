//! Filters: which hits count, by conditions, samples and thread names.
//!
//! In: a condition, and the names of a probe's arguments. Out: a [`Filter`], with a part for the target,
//! which decides before anything is recorded, and a part for the reader, which decides about recorded calls.
//! At an entry the target knows the arguments and the thread's number, and fields once they are read. At a
//! return it also knows what was returned and how long the call took. Does not: evaluate in the target
//! (`trapline_plan`).

use std::sync::Arc;

mod constants;
mod decided;

pub use constants::constants;
pub use decided::Undecided;
pub use trapline_plan::filter::{
    Binary, Facts, FilterError, Float, FloatArguments, GroupBy, Int, Known, MAX_FIELDS, Misread, Sort,
    Symbol, Taken, Tally, TargetFilter, Tree, Unary, parse, parse_with,
};

use trapline_plan::filter::Late;
use trapline_plan::hit::{HitClock, HitProgram, NAMES, input};
use trapline_plan::{Action, Floats, KeptText, Operand, Read, Results, Unwind, filter};

use crate::arch::{FILTERS_ROWS_BY_NAME, held_in_go};
use crate::calls::{Call, Text};
use crate::values::{MarkCode, Marked, texts_at_entry};

/// Longest thread name in bytes.
const COMM_LEN: usize = 15;

/// Filter of one probe; the default passes all calls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    early: Option<Tree>,
    /// Part of the condition that is known at the entry once fields are read.
    read: Option<Tree>,
    late: Option<Tree>,
    sample: u32,
    names: Vec<String>,
    tally: Option<Tally>,
    /// The aggregation is of whole calls, and is made at their return.
    of_calls: bool,
    reads: Vec<Read>,
    kept: Vec<KeptText>,
    /// What hits run instead of all else.
    program: Option<Arc<HitProgram>>,
    /// At a USDT probe: the operands that stand for argument registers, and then for words of the stack.
    operands: Vec<Operand>,
    /// There, what a program has in their places.
    taken: Vec<Taken>,
    /// The program runs at an instruction.
    inside: bool,
}

impl Filter {
    /// Adds a condition; it and all earlier ones must hold. `symbols` are the names that it may use; if two
    /// are spelled alike, the first counts.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn condition(self, text: &str, symbols: &[(String, Symbol)]) -> Result<Self, FilterError> {
        Ok(self.tree(filter::parse(text, symbols)?))
    }
    /// Adds a condition that is already parsed.
    #[must_use]
    pub fn tree(self, tree: Tree) -> Self {
        let (early, rest) = tree.split();
        let (read, late) = rest.map_or((None, None), |rest| rest.split_by(Tree::is_known_with_fields));
        let [early, read, late] = [(self.early, early), (self.read, read), (self.late, late)]
            .map(|(before, more)| Tree::and(before, more));
        Self { early, read, late, ..self }
    }
    /// Of the hits that pass in the target, takes one in so many on each CPU.
    #[must_use]
    pub fn sample(self, one_in: u32) -> Self {
        Self { sample: one_in, ..self }
    }
    /// Passes only threads of these names. The target rejects threads that are known to have another name.
    /// For all others, the name counts that they have when their calls are read.
    #[must_use]
    pub fn named(self, names: Vec<String>) -> Self {
        // Cut as the kernel cuts a thread's name, and decoded as such a name is.
        let cut =
            |name: String| String::from_utf8_lossy(&name.as_bytes()[..name.len().min(COMM_LEN)]).into_owned();
        Self { names: names.into_iter().map(cut).collect(), ..self }
    }
    /// Lets hits run a program, instead of all else: no condition, no sample. Only with
    /// [`ProbeAction::Run`](crate::ProbeAction).
    #[must_use]
    pub fn runs(self, program: HitProgram) -> Self {
        Self { program: Some(Arc::new(program)), ..self }
    }
    /// Whether hits run a program.
    pub(crate) const fn runs_program(&self) -> bool {
        self.program.is_some()
    }
    /// Arguments of a USDT probe that the program needs, and those that point to texts, as bits.
    pub(crate) fn run_arguments(&self) -> Option<(u16, u16)> {
        self.program.as_ref().map(|program| (program.arguments(), program.pointers()))
    }
    /// The same program at a function's entry, with what it has in the places of its texts.
    pub(crate) fn with_texts(&self) -> Self {
        let Some(program) = self.program.as_ref().filter(|program| !program.texts.is_empty()) else {
            return self.clone();
        };
        let (MarkCode { operands, reads }, taken) = texts_at_entry(program);
        Self { operands, reads, taken, ..self.clone() }
    }
    /// The same in a function of Go's: registers are read where the stub has put them.
    pub(crate) fn in_go(&self) -> Self {
        let moved = |read: &Read| match read.general() {
            Some(nth) => Read { register: Read::GENERAL + held_in_go(nth), ..read.clone() },
            None => read.clone(),
        };
        Self { reads: self.reads.iter().map(moved).collect(), ..self.clone() }
    }
    /// The same program at an instruction.
    pub(crate) fn inside(&self) -> Self {
        Self { inside: true, ..self.clone() }
    }
    /// Whether hits run a program that uses what other hits assigned.
    pub(crate) fn assigns(&self) -> bool {
        self.program.as_ref().is_some_and(|program| program.reads(input::ASSIGNED))
    }
    /// The same with these numbers of the place's names.
    pub(crate) fn with_names(mut self, names: [u32; NAMES]) -> Self {
        if let Some(program) = &mut self.program {
            Arc::make_mut(program).names = names;
        }
        self
    }
    /// The same with this clock.
    pub(crate) fn with_clock(mut self, clock: HitClock) -> Self {
        if let Some(program) = &mut self.program {
            Arc::make_mut(program).clock = clock;
        }
        self
    }
    /// Memory that records hold: the fields that [`Known::Field`] numbers, at most [`MAX_FIELDS`]. Each load
    /// costs the target a system call.
    #[must_use]
    pub fn reads(self, reads: Vec<Read>) -> Self {
        Self { reads, ..self }
    }
    /// Texts that calls keep for their return ([`Call::kept`]): long ones, and those that are there only at the return.
    /// Each costs the target a system call. Only for calls that are recorded with their returns; a call's records are
    /// written when it returns then.
    #[must_use]
    pub fn keeps(self, kept: Vec<KeptText>) -> Self {
        Self { kept, ..self }
    }
    /// Whether calls keep texts for their return.
    pub(crate) const fn keeps_texts(&self) -> bool {
        !self.kept.is_empty()
    }
    /// Bytes of the texts that calls of a probe keep. None are kept where no return can decide.
    pub(crate) fn kept_bytes(&self, action: Action, returns_decide: bool) -> Vec<u16> {
        let kept = self.kept.iter().filter(|_| returns_decide && self.is_decided_at_return(action));
        kept.map(|text| text.bytes).collect()
    }
    /// What records hold besides.
    pub(crate) fn read_memory(&self) -> &[Read] {
        &self.reads
    }
    /// Words that the fields take in a record.
    pub(crate) fn field_words(&self) -> u16 {
        let fields: usize = self.reads.iter().map(Read::words).sum();
        (fields + self.kept.iter().map(KeptText::words).sum::<usize>()) as u16
    }
    /// Length of each field in bytes.
    pub(crate) fn field_bytes(&self) -> Vec<u8> {
        self.reads.iter().map(|read| read.bytes).collect()
    }
    /// Whether it serves only to read fields, and passes all.
    pub(crate) const fn only_reads(&self) -> bool {
        let reads = !self.reads.is_empty() || !self.operands.is_empty() || !self.kept.is_empty();
        reads && !self.rejects()
    }
    /// The same filter in terms of a USDT probe's arguments.
    pub(crate) fn at_mark(&self, marked: &Marked, code: MarkCode) -> Self {
        let MarkCode { operands, reads } = code;
        if let Some(program) = &self.program {
            let taken = marked.taken(program);
            return Self { operands, reads, taken, inside: true, ..self.clone() };
        }
        let whole = self.whole().map(|tree| tree.with_known(&|known| marked.known(known)));
        let bare = Self { early: None, read: None, late: None, operands, reads, ..self.clone() };
        match whole {
            Some(tree) => bare.tree(tree),
            None => bare,
        }
    }
    /// The same filter with thread numbers translated by `other`.
    pub(crate) fn with_threads(&self, other: &impl Fn(u64) -> u64) -> Self {
        let one = |tree: &Option<Tree>| tree.as_ref().map(|tree| tree.with_threads(other));
        let (early, read, late) = (one(&self.early), one(&self.read), one(&self.late));
        let tally = self.tally.clone().map(|tally| Tally { value: tally.value.with_threads(other), ..tally });
        Self { early, read, late, tally, ..self.clone() }
    }
    /// Arguments that it names, as bits.
    pub(crate) fn arguments_named(&self) -> u16 {
        self.named_values(|known| match known {
            Known::Argument(nth, _) | Known::FloatArgument(nth, _) => 1 << (nth & 15),
            _ => 0,
        })
    }
    /// Whether it needs anything that a function takes or returns.
    pub(crate) fn asks_for_values(&self) -> bool {
        let asks = |known| !matches!(known, Known::Thread | Known::Took);
        !self.reads.is_empty()
            || !self.kept.is_empty()
            || self.tally.as_ref().is_some_and(|tally| tally.texts() != 0)
            || self.named_values(|known| asks(known).into()) != 0
    }
    fn named_values(&self, bits: impl Fn(Known) -> u16) -> u16 {
        let mut all = 0;
        let trees = [&self.early, &self.read, &self.late].into_iter().flatten();
        let trees = trees.chain(self.tally.iter().flat_map(Tally::trees));
        trees.for_each(|tree| tree.each_known(&mut |known| all |= bits(known)));
        all
    }
    /// Aggregates hits that pass by this value, at entries or at exits. `None` if the target cannot do that
    /// because it does not know there the value, or what decides which hits pass. Threads can be chosen by
    /// name if rows belong to threads ([`GroupBy::Thread`]); not on arm64, where only the reader knows names.
    #[must_use]
    pub fn tally(self, tally: Tally, exits: bool) -> Option<Self> {
        if !self.fits_rows(&tally) {
            return None;
        }
        if exits {
            let decides = self.whole();
            let known = tally.trees().chain(&decides).all(Tree::is_known_at_exit) && tally.texts() == 0;
            let (early, tally, reads) = (decides, Some(tally), Vec::new());
            return known.then_some(Self { early, read: None, late: None, tally, reads, ..self });
        }
        let known = tally.trees().chain(&self.read).all(|tree| self.is_known_when_read(tree));
        let can = known && self.late.is_none();
        let asks = self.read.is_some() || !tally.trees().all(Tree::is_known_at_entry);
        let reads = if asks { self.reads.clone() } else { Vec::new() };
        can.then_some(Self { tally: Some(tally), reads, ..self })
    }
    /// Whether the table's rows allow for the thread names that are requested.
    const fn fits_rows(&self, tally: &Tally) -> bool {
        let by_thread = matches!(tally.group_by, GroupBy::Thread);
        let may_be_named = FILTERS_ROWS_BY_NAME && by_thread && !matches!(tally.sort, Sort::Sums);
        tally.is_sound() && (self.names.is_empty() || may_be_named)
    }
    /// Whether the target knows the value at an entry where fields are read.
    fn is_known_when_read(&self, tree: &Tree) -> bool {
        tree.is_known_at_entry() || tree.is_known_with_fields() && self.fits(tree)
    }
    /// Aggregates whole calls when they return. Value and condition may mix what is known at the entry,
    /// fields included, with what was returned and how long the call took. `None` if thread names are
    /// requested and rows do not belong to threads (or on arm64), or if the expressions are too long.
    #[must_use]
    pub fn tally_calls(self, tally: Tally) -> Option<Self> {
        let trees: Vec<&Tree> = [&self.read, &self.late].into_iter().flatten().chain(tally.trees()).collect();
        let can = self.fits_rows(&tally) && trees.iter().all(|tree| self.is_known_of_calls(tree));
        let reads =
            if trees.iter().any(|tree| asks_for_fields(tree)) { self.reads.clone() } else { Vec::new() };
        can.then_some(Self { tally: Some(tally), of_calls: true, reads, ..self })
    }
    /// Whether the target knows the value at a return, given what the entry left.
    fn is_known_of_calls(&self, tree: &Tree) -> bool {
        tree.is_known_at_return() && self.fits(tree)
    }
    /// Whether whole calls are aggregated.
    pub(crate) const fn tallies_calls(&self) -> bool {
        self.of_calls
    }
    /// The aggregation, if there is one.
    pub(crate) const fn tallied(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }
    /// Whether it may reject any hit.
    pub(crate) const fn rejects(&self) -> bool {
        self.early.is_some()
            || self.read.is_some()
            || self.late.is_some()
            || self.sample > 1
            || !self.names.is_empty()
    }
    /// How many arguments the reader needs to decide.
    #[must_use]
    pub fn arguments(&self) -> u8 {
        let mut most = 0;
        for tree in [&self.read, &self.late].into_iter().flatten() {
            tree.each_known(&mut |known| {
                if let Known::Argument(index, _) | Known::FloatArgument(index, _) = known {
                    most = most.max(index.saturating_add(1));
                }
            });
        }
        most
    }
    /// Floats that the reader needs to decide.
    #[must_use]
    pub fn floats(&self) -> Floats {
        let trees = [&self.read, &self.late].into_iter().flatten();
        trees.fold(Floats::default(), |all, tree| all.and(tree.floats()))
    }
    /// Whole condition for a hit that is not recorded.
    fn whole(&self) -> Option<Tree> {
        Tree::and(self.early.clone(), self.rest())
    }
    /// Condition on fields and condition on returns, joined: both must hold.
    fn rest(&self) -> Option<Tree> {
        Tree::and(self.read.clone(), self.late.clone())
    }
    /// Whether the target decides by fields at the entry, where the role provides for that.
    fn is_decided_by_fields(&self, action: Action) -> bool {
        let read =
            matches!(action, Action::Record { stack: Unwind::None, .. } | Action::Tally { exits: false });
        read && self.read.as_ref().is_some_and(|tree| self.fits(tree))
    }
    /// Whether each field that the condition names was read at the width that the condition assumes.
    fn fits(&self, tree: &Tree) -> bool {
        let mut fits = true;
        let bits = |nth: u8| self.reads.get(usize::from(nth)).map_or(0, |read| u32::from(read.bytes) * 8);
        tree.each_known(&mut |known| match known {
            Known::Field(nth, int) => fits &= bits(nth) == u32::from(int.bits),
            Known::FloatField(nth, Float::Single) => fits &= bits(nth) == 32,
            Known::FloatField(nth, Float::Double) => fits &= bits(nth) == 64,
            _ => {}
        });
        fits
    }
    /// Whether the target also decides at the return of calls, where the role provides for that. It does not
    /// where stacks are recorded.
    pub(crate) fn is_decided_at_return(&self, action: Action) -> bool {
        let Action::Record { values, returns: true, floats, stack: Unwind::None, .. } = action else {
            return false;
        };
        let known = |late: Tree| {
            let needed = late.floats();
            late.is_known_at_return()
                && self.fits(&late)
                && self.arguments() <= values
                && needed.arguments & !floats.arguments == 0
                && [Results::INTEGER, floats.results].contains(&needed.results)
        };
        (self.late.is_some() || self.keeps_texts()) && self.rest().is_none_or(known)
    }
    /// The target's part, if there is any. `tick` is as in [`Late`], and set where returns may decide.
    pub(crate) fn in_target(&self, action: Action, tick: Option<u64>) -> Option<TargetFilter> {
        if let Some(program) = self.program.clone() {
            let (reads, operands, taken) = (self.reads.clone(), self.operands.clone(), self.taken.clone());
            let (program, inside, sample) = (Some(program), self.inside, 1);
            return Some(TargetFilter {
                program,
                sample,
                reads,
                operands,
                taken,
                inside,
                ..TargetFilter::default()
            });
        }
        let aggregated = matches!(
            action,
            Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..) | Action::Tally { .. }
        );
        // For records, the reader decides the rest. For aggregations, all is known in the target
        // ([`Self::tally`]). For other roles there is no reader: what the target does not decide is refused.
        let whole = !aggregated;
        let condition = if whole { self.whole() } else { self.early.clone() };
        let tally = self.tally.clone();
        let tick = tick.filter(|_| self.of_calls || self.is_decided_at_return(action));
        let always = self.of_calls || self.keeps_texts();
        let rest = self.rest().filter(|_| !whole).or(always.then_some(Tree::Number(1, false)));
        let late = rest.zip(tick).map(|(condition, tick)| Late { condition, tick });
        let fields = self.read.clone().filter(|_| late.is_none() && self.is_decided_by_fields(action));
        let (sample, reads) = (self.sample.max(1), self.reads.clone());
        let on_stack = matches!(action, Action::Record { stack, .. } | Action::RecordAt(_, stack) if stack != Unwind::None);
        let by_name = !on_stack && self.is_named();
        let operands = self.operands.clone();
        let kept = if late.is_some() { self.kept.clone() } else { Vec::new() };
        let filter = TargetFilter {
            condition,
            sample,
            tally,
            reads,
            fields,
            late,
            kept,
            by_name,
            operands,
            ..TargetFilter::default()
        };
        let tells = filter.tally.is_some() || !filter.reads.is_empty() || !filter.operands.is_empty();
        (!filter.passes_all() || tells).then_some(filter)
    }
    /// Whether the reader decides too.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.of_calls || self.late.is_some() || self.read.is_some() || !self.names.is_empty()
    }
    /// The part that is left to the reader, given the role. `returns_decide` is false in programs where no
    /// return can decide.
    pub(crate) fn left_to_reader(&self, action: Action, returns_decide: bool) -> Self {
        let at_return = returns_decide && self.is_decided_at_return(action);
        let mut left = self.clone();
        left.late.take_if(|_| at_return);
        left.read.take_if(|_| at_return || self.is_decided_by_fields(action));
        left
    }
    /// Whether it depends on thread names.
    pub(crate) fn is_named(&self) -> bool {
        !self.names.is_empty()
    }
    /// Thread names that pass.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
    /// The same filter, decided by the reader alone, for calls that were recorded before. A sample cannot be
    /// taken then.
    #[must_use]
    pub fn by_reader(self) -> Self {
        let rest = Tree::and(self.read, self.late);
        Self { late: Tree::and(self.early, rest), read: None, early: None, ..self }
    }
    /// Whether the reader passes a call. What it cannot decide does not pass, such as a condition on the
    /// return of a call that has not ended.
    #[must_use]
    pub fn passes(&self, call: &Call, comm: Option<&str>) -> bool {
        let facts = facts(call);
        let named =
            || self.names.is_empty() || comm.is_some_and(|comm| self.names.iter().any(|name| name == comm));
        [&self.read, &self.late].into_iter().flatten().all(|tree| tree.holds(&facts) == Some(true)) && named()
    }
}

fn asks_for_fields(tree: &Tree) -> bool {
    let mut asks = false;
    tree.each_known(&mut |known| asks |= matches!(known, Known::Field(..) | Known::FloatField(..)));
    asks
}

/// What is known of a call, in the form that conditions use.
#[must_use]
pub fn facts(call: &Call) -> Facts {
    let argument = |n: usize| call.arguments.get(n).copied().unwrap_or(0);
    Facts {
        arguments: core::array::from_fn(argument),
        more: core::array::from_fn(|n| argument(6 + n)),
        unseen: call.unseen,
        float_arguments: call.float_arguments,
        floats: call.floats,
        fields: core::array::from_fn(|n| call.fields.get(n).and_then(Text::word)),
        tid: call.tid,
        returned: call.returned,
        took_ns: call.whole_ns(),
    }
}
