//! One more in the row of a key: finds the row, or claims a free one. The key is a value, a cell or the hash of a
//! text. If hits are grouped, a row also has an owner, the group-by key: the thread, or a value of the call
//! (`record::tally`).
//!
//! In: the table, the key; the owner and the text, if rows have those. Out: two programs, [`add`] for the body of a
//! restartable sequence that has found this CPU's table, and [`add_anywhere`] for a table that other threads change
//! at the same time.
//!
//! ```text
//!   table + OVERFLOW 0, + UNSEEN 8      words
//!   table + CELLS 16                    rows, `size` bytes each: 16, or 32 with owners
//!   entry - 8  key                      entry: pointer to a row's hits
//!   entry      hits                     0: free;  TAKING, negative: claimed
//!   entry + 8  owner
//!   table + first_text                  the rows' texts, TEXT_BYTES each
//! ```
//!
//! The rows that a key may have, with g the owner, all modulo 2^64:
//!
//! ```text
//!   h     = key · PHI;  with owners h = (g · FNV.1 + key) · PHI
//!   first = table + CELLS + 8 + size · (h >> (64 - bits))
//!   last  = first + size · (PROBES - 1)
//!   text of a row = table + first_text + (TEXT_BYTES / size) · (entry - table - CELLS - 8)
//! ```
//!
//! # This CPU's table
//!
//! | step | what | a signal handler, an abort or the thread's end behind it |
//! |---|---|---|
//! | W1 | `entry` walks from the first row of the key | nothing has changed |
//! | W2 | a row with the key, the owner and hits: W5 | the same |
//! | W3 | a row without hits: its key, | the row is as free as before, whatever it holds: |
//! | | owner and text are stored, each by a plain store | the next one to take it stores all of it again |
//! | W4 | no row left: `entry` = the overflow | nothing has changed |
//! | W5 | the commit: one more at `entry` | the hit is counted, once |
//!
//! - *A signal handler* between W1 and W5 runs its own hits as a whole; then the sequence begins again with W1, and sees the
//!   rows that they have.
//! - *A move to another CPU* begins again too, with that CPU's table. What W3 has stored stays in a free row. No other
//!   thread is between W3 and W5 on a CPU without its sequence beginning again, so one thread's key never gets another
//!   one's hit.
//! - *The reader*, on another CPU, looks at key, owner and text only if it has seen hits. W5 is ordered behind W3 (on
//!   arm64 by a release), and a row with hits never changes its key: it sees a whole row, or none.
//! - *A fork* between W1 and W5: the child begins again, in the shared table, as another thread.
//!
//! Before W2, rows with owners or texts are looked at for hits first: a free row may hold the key of a sequence that
//! began again, with another owner or without its text.
//!
//! # A table that others change
//!
//! | step | what | another thread, or a signal handler, meanwhile |
//! |---|---|---|
//! | R1 | the hits are loaded: TAKING: the next row | it may publish the row then: this thread has gone on, and may |
//! | | | claim a second row for the same key, which the reader adds up |
//! | R2 | 0: the row is claimed, 0 becomes TAKING by one access. | it sees TAKING, and goes on |
//! | | If it is not 0 any more: R1 again, for it never becomes 0 again | |
//! | R2 | claimed: key, owner and text are stored; then 1 is published for the hits | it sees TAKING until all is stored |
//! | R3 | other hits: the key and the owner are compared: | what is compared stays, as R1's load comes first |
//! | | one more by an atomic addition, or the next row | |
//! | R4 | no row left: one more overflow, by an atomic addition | - |
//!
//! A thread that ends between R2 and the publishing leaves a row that is not used again. Its hit has not run. A forked
//! child's copy of the thread goes on, and publishes the same row a second time with the same content, and 1: one hit of
//! parent or child is lost then, but no row is wrong.

use trapline_code::{
    Builder, CLAIMED, Compare, Compute, Memory, Place, Program, Target, Unsound, Value, Var, Walk,
};
use trapline_record::tally::{
    self, CELLS, FNV, OVERFLOW, OWNER as OWNER_AT, PHI, PROBES, TAKING, TEXT_BYTES, bits_in_reach,
};

use super::input::{KEY, OWNER, TABLE, TEXT};

const _: () = assert!(TAKING == CLAIMED);

/// How a hit of one probe finds its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// The rows' layout.
    pub(crate) rows: tally::Rows,
    /// If a new row gets a text: how far behind the input `TEXT` its result is; its bytes follow.
    pub(crate) text: Option<i32>,
    /// Whether the owner is loaded again at the walk, because registers are short.
    pub(crate) reloads: bool,
}

/// The program for this CPU's table.
pub(super) fn add(builder: Builder, rows: Rows) -> Result<Program, Unsound> {
    let mut add = Add::begin(builder, rows, Memory::Mine);
    let [free, found] = [(); 2].map(|()| add.builder.label());
    let looks_first = rows.text.is_some() || rows.rows.owned;
    let is_free = |add: &mut Add| {
        add.builder.branch_word(Compare::Equal, add.hits(), Value::Number(0), Target::Label(free));
    };
    add.builder.begin(add.walk);
    if looks_first {
        is_free(&mut add);
    }
    add.is_same(Target::Label(found));
    if !looks_first {
        is_free(&mut add);
    }
    add.builder.next(add.walk);
    add.overflow();
    add.builder.jump(Target::Label(found));
    add.builder.bind(free);
    add.take();
    add.builder.bind(found);
    let hits = add.hits();
    add.builder.commit(hits, Value::Number(1))
}

/// The program for a table that other threads change at the same time.
pub(super) fn add_anywhere(builder: Builder, rows: Rows) -> Result<Program, Unsound> {
    let mut add = Add::begin(builder, rows, Memory::Shared);
    let [free, taking, none, claimed, gone, found, end] = [(); 7].map(|()| add.builder.label());
    let hits = add.hits();
    add.builder.begin(add.walk);
    add.builder.look(hits, Target::Label(free), Target::Label(taking));
    add.is_same(Target::Label(found));
    add.builder.bind(taking);
    add.builder.next(add.walk);
    add.builder.jump(Target::Label(none));
    add.builder.bind(free);
    add.builder.claim(hits, Value::Number(0), Target::Label(claimed));
    add.builder.look(hits, Target::Label(gone), Target::Label(gone));
    add.is_same(Target::Label(found));
    add.builder.bind(gone);
    add.builder.next(add.walk);
    add.builder.bind(none);
    add.overflow();
    add.builder.jump(Target::Label(found));
    add.builder.bind(claimed);
    add.take();
    add.builder.publish(hits, Value::Number(1));
    add.builder.jump(Target::Label(end));
    add.builder.bind(found);
    add.builder.add(hits, Value::Number(1));
    add.builder.bind(end);
    add.builder.finish(None)
}

/// A program on its way.
pub(super) struct Add {
    pub(super) builder: Builder,
    rows: Rows,
    table: Var,
    key: Value,
    /// Is read at the rows, if they have one.
    owner: Option<Value>,
    pub(super) walk: Walk,
}

impl Add {
    /// W1: up to the walk.
    pub(super) fn begin(mut builder: Builder, rows: Rows, memory: Memory) -> Self {
        let table = builder.pointer(TABLE, memory);
        let key = builder.input(KEY);
        let mut owner = rows.rows.owned.then(|| builder.input(OWNER));
        let hash = hash(&mut builder, rows, (key, owner));
        let entry = builder.var();
        let size = rows.rows.size();
        let row = Some((builder.in_var(hash), size.trailing_zeros() as u8));
        builder.set_address(entry, Place { base: table, index: row, offset: CELLS as i32 + 8 });
        let walk = builder.walk(entry, size as u16, PROBES as u16);
        if rows.rows.owned && rows.reloads {
            owner = Some(builder.input(OWNER));
        }
        Self { builder, rows, table, key, owner, walk }
    }
    pub(super) const fn hits(&self) -> Place {
        Place::at(self.walk.entry, 0)
    }
    /// Goes there if the row has this key and this owner.
    pub(super) fn is_same(&mut self, same: Target) {
        let row = |offset| Place::at(self.walk.entry, offset);
        let Some(owner) = self.owner else {
            return self.builder.branch_word(Compare::Equal, row(-8), self.key, same);
        };
        let other = self.builder.label();
        self.builder.branch_word(Compare::NotEqual, row(-8), self.key, Target::Label(other));
        self.builder.branch_word(Compare::Equal, row(OWNER_AT as i32 - 8), owner, same);
        self.builder.bind(other);
    }
    /// `entry` = the word of hits for which no row is left.
    pub(super) fn overflow(&mut self) {
        self.builder.set_address(self.walk.entry, Place::at(self.table, OVERFLOW as i32));
    }
    /// Stores key, owner and text.
    pub(super) fn take(&mut self) {
        let Self { builder, rows, table, key, owner, walk } = self;
        builder.store(Place::at(walk.entry, -8), *key);
        if let Some(owner) = owner {
            builder.store(Place::at(walk.entry, OWNER_AT as i32 - 8), *owner);
        }
        let Some(at) = rows.text else { return };
        // A text is as long as `times` rows, so the offset of its bytes is that many times the offset of its row. Or a row
        // is as long as several texts.
        let (size, len) = (rows.rows.size() as i32, TEXT_BYTES as i32);
        let row = builder.compute(Compute::Subtract, Value::Var(walk.entry), Value::Var(*table));
        let row = (builder.in_var(row), (len / size.min(len)).trailing_zeros() as u8);
        if size > len {
            let by = Value::Number((size / len).trailing_zeros().into());
            builder.set_computed(row.0, Compute::ShiftRight, Value::Var(row.0), by);
        }
        let first = rows.rows.first_text() as i32 - (CELLS as i32 + 8) * len / size;
        let to = builder.var();
        builder.set_address(to, Place { base: *table, index: Some(row), offset: first });
        let text = builder.pointer(TEXT, Memory::Own);
        for word in 0..TEXT_BYTES as i32 / 8 {
            let bytes = builder.load(Place::at(text, at + 8 + word * 8));
            builder.store(Place::at(to, word * 8), bytes);
        }
    }
}

/// The number of the first row.
fn hash(builder: &mut Builder, rows: Rows, (key, owner): (Value, Option<Value>)) -> Value {
    let product = match owner {
        Some(owner) => {
            let times = builder.number(FNV.1);
            let product = builder.compute(Compute::Multiply, owner, times);
            let sum = builder.compute(Compute::Add, product, key);
            let times = builder.number(PHI);
            builder.compute(Compute::Multiply, sum, times)
        }
        None => {
            let times = builder.number(PHI);
            builder.compute(Compute::Multiply, times, key)
        }
    };
    let shift = 64 - u64::from(bits_in_reach(rows.rows.bits));
    builder.compute(Compute::ShiftRight, product, Value::Number(shift))
}

#[cfg(test)]
mod tests;
