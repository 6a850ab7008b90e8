//! Which calls are told: conditions, samples, names of threads.
//!
//! In: a condition, and what a probe's arguments are called. Out: a [`Filter`]: what the target decides before anything is recorded,
//! and what the reader decides of calls that were. The target knows arguments and the thread's number at the entry, and with what was
//! returned and how long it took at the return; fields too, once they are read. Does not: evaluate in the target (`trapline_plan`).

mod constants;
mod decided;

pub use constants::constants;
pub use decided::Undecided;
pub use trapline_plan::filter::{
    Apart, Facts, FilterError, Float, Int, Known, MAX_FIELDS, Misread, Sort, Symbol, Tally, TargetFilter,
    Tree, parse, parse_with,
};

use trapline_plan::filter::Late;
use trapline_plan::{Floats, Operand, Read, Role, Unwind, filter};

use crate::calls::{Call, Text};
use crate::values::Marked;

/// Most bytes of a thread's name.
const COMM_LEN: usize = 15;

/// Which calls of one probe are told; all of them, by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    early: Option<Tree>,
    /// What is known at the entry once fields are read.
    read: Option<Tree>,
    late: Option<Tree>,
    sample: u32,
    names: Vec<String>,
    tally: Option<Tally>,
    /// The tally is of whole calls.
    of_calls: bool,
    reads: Vec<Read>,
    /// At a mark: what stands for argument registers.
    operands: Vec<Operand>,
}

impl Filter {
    /// Only calls for which this holds, and all that was said before.
    ///
    /// # Errors
    /// What is wrong with it, and where. `symbols` are the names that it may use; the first of one spelling counts.
    pub fn condition(self, text: &str, symbols: &[(String, Symbol)]) -> Result<Self, FilterError> {
        Ok(self.tree(filter::parse(text, symbols)?))
    }
    /// The same, already read.
    #[must_use]
    pub fn tree(self, tree: Tree) -> Self {
        let (early, rest) = tree.split();
        let (read, late) = rest.map_or((None, None), |rest| rest.split_by(Tree::is_known_with_fields));
        let [early, read, late] = [(self.early, early), (self.read, read), (self.late, late)]
            .map(|(before, more)| Tree::and(before, more));
        Self { early, read, late, ..self }
    }
    /// Of those that pass in the target, one in so many on each CPU.
    #[must_use]
    pub fn sample(self, one_in: u32) -> Self {
        Self { sample: one_in, ..self }
    }
    /// Only threads of one of these names. The target passes over those that are known to be called otherwise; of all others what they
    /// are called when their calls are read counts.
    #[must_use]
    pub fn named(self, names: Vec<String>) -> Self {
        // As a thread's own name is cut, and read.
        let cut =
            |name: String| String::from_utf8_lossy(&name.as_bytes()[..name.len().min(COMM_LEN)]).into_owned();
        Self { names: names.into_iter().map(cut).collect(), ..self }
    }
    /// What records hold of memory, at most [`MAX_FIELDS`]; each load costs the target a system call. What [`Known::Field`] numbers.
    #[must_use]
    pub fn reads(self, reads: Vec<Read>) -> Self {
        Self { reads, ..self }
    }
    /// Words that those take in a record.
    pub(crate) fn field_words(&self) -> u16 {
        self.reads.iter().map(|read| read.words() as u16).sum()
    }
    /// Bytes of each.
    pub(crate) fn field_bytes(&self) -> Vec<u8> {
        self.reads.iter().map(|read| read.bytes).collect()
    }
    /// Whether it is there for fields alone.
    pub(crate) const fn only_reads(&self) -> bool {
        let reads = !self.reads.is_empty() || !self.operands.is_empty();
        reads && !self.rejects()
    }
    /// The same of a mark's arguments, with what stands for argument registers there and what is read of memory. What cannot be told is
    /// the last field, which cannot be read.
    pub(crate) fn at_mark(&self, marked: &Marked, operands: Vec<Operand>, reads: Vec<Read>) -> Self {
        let nothing = reads.len().saturating_sub(1) as u8;
        let whole = self.whole().map(|tree| tree.with_known(&|known| marked.known(known, nothing)));
        let bare = Self { early: None, read: None, late: None, operands, reads, ..self.clone() };
        match whole {
            Some(tree) => bare.tree(tree),
            None => bare,
        }
    }
    /// The same with other numbers of threads.
    pub(crate) fn with_threads(&self, other: &impl Fn(u64) -> u64) -> Self {
        let one = |tree: &Option<Tree>| tree.as_ref().map(|tree| tree.with_threads(other));
        let (early, read, late) = (one(&self.early), one(&self.read), one(&self.late));
        let tally = self.tally.clone().map(|tally| Tally { value: tally.value.with_threads(other), ..tally });
        Self { early, read, late, tally, ..self.clone() }
    }
    /// Arguments that it names, as bits.
    pub(crate) fn arguments_named(&self) -> u8 {
        self.named_values(|known| if let Known::Argument(nth, _) = known { 1 << (nth & 7) } else { 0 })
    }
    /// Whether it asks for anything that a function takes or returns.
    pub(crate) fn asks_for_values(&self) -> bool {
        let asks = |known| !matches!(known, Known::Thread | Known::Took);
        !self.reads.is_empty()
            || self.tally.as_ref().is_some_and(|tally| tally.texts() != 0)
            || self.named_values(|known| asks(known).into()) != 0
    }
    fn named_values(&self, bits: impl Fn(Known) -> u8) -> u8 {
        let mut all = 0;
        let trees = [&self.early, &self.read, &self.late].into_iter().flatten();
        let trees = trees.chain(self.tally.iter().flat_map(Tally::trees));
        trees.for_each(|tree| tree.each_known(&mut |known| all |= bits(known)));
        all
    }
    /// Hits that pass are tallied by this value, at entries or at exits. `None` if the target cannot do that, because there it does not know
    /// the value or what decides who passes. Threads are chosen by name where rows are threads' ([`Apart::Thread`]), not on arm64: there the reader knows.
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
    /// Whether rows can be told apart as threads' names are asked for.
    const fn fits_rows(&self, tally: &Tally) -> bool {
        let by_thread = matches!(tally.apart, Apart::Thread);
        tally.is_sound() && (self.names.is_empty() || cfg!(target_arch = "x86_64") && by_thread)
    }
    /// Whether the target knows it at an entry, where fields are read for it.
    fn is_known_when_read(&self, tree: &Tree) -> bool {
        tree.is_known_at_entry() || tree.is_known_with_fields() && self.fits(tree)
    }
    /// The same of whole calls, tallied when they return: the value, and what decides, may mix what is known at entries, fields too, with what was returned and how long it took.
    /// `None` if threads' names are asked for and rows are not threads' (or on arm64), or what is asked is too long.
    #[must_use]
    pub fn tally_calls(self, tally: Tally) -> Option<Self> {
        let trees: Vec<&Tree> = [&self.read, &self.late].into_iter().flatten().chain(tally.trees()).collect();
        let can = self.fits_rows(&tally) && trees.iter().all(|tree| self.is_known_of_calls(tree));
        let reads =
            if trees.iter().any(|tree| asks_for_fields(tree)) { self.reads.clone() } else { Vec::new() };
        can.then_some(Self { tally: Some(tally), of_calls: true, reads, ..self })
    }
    /// Whether the target knows it at a return, of which the entry left what it knew.
    fn is_known_of_calls(&self, tree: &Tree) -> bool {
        tree.is_known_at_return() && self.fits(tree)
    }
    /// Whether whole calls are tallied.
    pub(crate) const fn tallies_calls(&self) -> bool {
        self.of_calls
    }
    /// What is tallied.
    pub(crate) const fn tallied(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }
    /// Whether any hit may be kept back.
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
                if let Known::Argument(index, _) = known {
                    most = most.max(index + 1);
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
    /// What fields say, and what returns say: both must hold.
    fn rest(&self) -> Option<Tree> {
        Tree::and(self.read.clone(), self.late.clone())
    }
    /// Whether the target decides by fields at the entry, where this is learnt of calls.
    fn is_decided_by_fields(&self, role: Role) -> bool {
        let read = matches!(role, Role::Record { stack: Unwind::None, .. } | Role::Tally { exits: false });
        read && self.read.as_ref().is_some_and(|tree| self.fits(tree))
    }
    /// Whether its fields are as wide as what is read for them.
    fn fits(&self, tree: &Tree) -> bool {
        let mut fits = true;
        let bits = |nth: u8| self.reads.get(usize::from(nth)).map_or(0, |read| u32::from(read.bytes) * 8);
        tree.each_known(&mut |known| match known {
            Known::Field(nth, int) => fits &= bits(nth) == int.bits.into(),
            Known::FloatField(nth, Float::Single) => fits &= bits(nth) == 32,
            Known::FloatField(nth, Float::Double) => fits &= bits(nth) == 64,
            _ => {}
        });
        fits
    }
    /// Whether the target decides about calls at their return too, where this is learnt of them: not of stacks.
    pub(crate) fn is_decided_at_return(&self, role: Role) -> bool {
        let Role::Record { values, returns: true, floats, stack: Unwind::None, .. } = role else {
            return false;
        };
        let known = |late: Tree| {
            let needed = late.floats();
            late.is_known_at_return()
                && self.fits(&late)
                && self.arguments() <= values
                && needed.arguments & !floats.arguments == 0
                && needed.returned <= floats.returned
        };
        self.late.is_some() && self.rest().is_some_and(known)
    }
    /// What the target decides, if anything; `tick` is as in [`Late`], and there where returns may decide.
    pub(crate) fn in_target(&self, role: Role, tick: Option<u64>) -> Option<TargetFilter> {
        let told = matches!(
            role,
            Role::Record { .. } | Role::RecordAt(..) | Role::RecordMark(..) | Role::Tally { .. }
        );
        // Of a record the reader decides the rest, and a tally knows what it does ([`Self::tally`]); elsewhere what is not decided is refused.
        let whole = !told;
        let condition = if whole { self.whole() } else { self.early.clone() };
        let tally = self.tally.clone();
        let tick = tick.filter(|_| self.of_calls || self.is_decided_at_return(role));
        let rest = self.rest().filter(|_| !whole).or(self.of_calls.then_some(Tree::Number(1, false)));
        let late = rest.zip(tick).map(|(condition, tick)| Late { condition, tick });
        let fields = self.read.clone().filter(|_| late.is_none() && self.is_decided_by_fields(role));
        let (sample, reads) = (self.sample.max(1), self.reads.clone());
        let on_stack =
            matches!(role, Role::Record { stack, .. } | Role::RecordAt(_, stack) if stack != Unwind::None);
        let by_name = !on_stack && self.is_named();
        let operands = self.operands.clone();
        let filter = TargetFilter { condition, sample, tally, reads, fields, late, by_name, operands };
        let tells = filter.tally.is_some() || !filter.reads.is_empty() || !filter.operands.is_empty();
        (!filter.passes_all() || tells).then_some(filter)
    }
    /// Whether the reader decides too.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.of_calls || self.late.is_some() || self.read.is_some() || !self.names.is_empty()
    }
    /// What is left to the reader, where this is learnt of calls; in some programs no return decides.
    pub(crate) fn left_to_reader(&self, role: Role, returns_decide: bool) -> Self {
        let at_return = returns_decide && self.is_decided_at_return(role);
        let mut left = self.clone();
        left.late.take_if(|_| at_return);
        left.read.take_if(|_| at_return || self.is_decided_by_fields(role));
        left
    }
    /// Whether it looks at what threads are called.
    pub(crate) fn is_named(&self) -> bool {
        !self.names.is_empty()
    }
    /// What threads are to be called.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
    /// The same, decided by the reader alone, as of calls that were recorded before; samples cannot be.
    #[must_use]
    pub fn by_reader(self) -> Self {
        let rest = Tree::and(self.read, self.late);
        Self { late: Tree::and(self.early, rest), read: None, early: None, ..self }
    }
    /// What the reader says of a call. What it cannot decide, as of a call that has not ended, does not pass.
    #[must_use]
    pub fn passes(&self, call: &Call, comm: Option<&str>) -> bool {
        let facts = Facts {
            arguments: call.arguments,
            unseen: call.unseen,
            floats: call.floats,
            fields: fields(call),
            tid: call.tid,
            returned: call.returned,
            took_ns: call.whole_ns(),
        };
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

/// A call's fields, as conditions know them.
#[must_use]
pub fn fields(call: &Call) -> [Option<u64>; MAX_FIELDS] {
    core::array::from_fn(|n| call.fields.get(n).and_then(Text::word))
}
