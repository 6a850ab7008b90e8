//! The sum and the extremes of values, in the row of a key: the group-by key, or 0. The number of hits is the row's.
//!
//! In: the table, the key, the value; the text, if rows have those. Out: two programs, for this CPU's table and for a
//! table that other threads change at the same time. The row is found as in `rows`, and laid out as
//! `record::tally::sums` says.
//!
//! ```text
//!   entry        n: hits                  entry + 24   version 0     what the first n hits gave, if n is even
//!   entry + 16   lock                     entry + 56   version 1     the same, if n is odd
//!
//!   given a version, and a value v: the other version is
//!     sum      = sum + v          in 128 bits; v is extended by its sign, if its type has one
//!     least    = least if least <= v, else v           compared as the type of v demands
//!     greatest = greatest if greatest >= v, else v
//! ```
//!
//! Four words cannot be stored by one access. But which version counts is one word, n. So a hit writes the version
//! that does not count, and then adds one to n.
//!
//! # This CPU's table
//!
//! | step | what | a signal handler, an abort or the thread's end behind it |
//! |---|---|---|
//! | S1 | `entry` walks to the row with the key and hits whose lock is 0, or to one without hits | nothing has changed |
//! | S2 | a row without hits: its key and text are stored, and version 1: v, v, v | the row is as free as before |
//! | S3 | a row with n hits: version n + 1 mod 2 is stored, | n and version n mod 2 are as before; |
//! | | word by word, from version n mod 2 | the next hit stores all of the other version again |
//! | S4 | no row left: `entry` = the overflow | nothing has changed |
//! | S5 | the commit: n + 1 | the hit is counted and its value is in the sum, once |
//!
//! - *A signal handler* between S1 and S5 runs its own hits as a whole; then the sequence begins again, with the n that
//!   it finds.
//! - *A move to another CPU* begins again too, in that CPU's table.
//! - *The reader*, on another CPU, reads n, then version n mod 2, then n again, until both are the same (D1 to D3 of
//!   `record::tally::sums`). S5 is ordered behind S3. The stores of the next S3 are ordered behind S5, since S1 looks at n:
//!   what follows a look is behind the commit before it.
//! - If the row never rests, the reader claims its lock for a moment (D4). Hits find it in S1, and go to the key's next
//!   row; the reader adds up rows of one key. A hit that had looked before adds to this row: by D3, the reader sees it
//!   or not.
//! - *A fork* between S1 and S5: the child begins again, as another thread.
//!
//! # A table that others change
//!
//! | step | what | another thread, or a signal handler, meanwhile |
//! |---|---|---|
//! | L1 | the hits are loaded. 0, or the key is this one: L2; else the next row | a row with hits keeps its key |
//! | L2 | the lock is claimed, 0 becomes TAKING by one access. | it goes on to its next row, and may begin a second |
//! | | If it is not 0 (another thread, or the reader's D4): | row for the same key, which the reader adds up |
//! | | the next row | |
//! | L3 | the lock is looked at, so all that follows is behind the claim. The hits are loaded again: | - |
//! | | 0: S2. The key is this one: S3. Else 0 is published for the lock: the next row | |
//! | L4 | n + 1 is published | it sees the lock claimed. The reader sees the hit as a whole |
//! | L5 | 0 is published for the lock | it may claim it, and then sees n + 1 |
//! | L6 | no row left: one more overflow, by an atomic addition | - |
//!
//! No thread waits for another one: a claimed row is passed over, at most `PROBES` times, and then the hit is overflow.
//! A thread that ends between L2 and L5 leaves a row that gets no more hits. Those that it has stay as they are, and
//! the reader counts them; the ended thread's hit is among them if it had passed L4. A forked child's copy of the
//! thread is the one case that this does not cover: if a *signal handler* between L2 and L5 forks, parent and child
//! hold one claim. One hit of both may be lost then; and if the parent's next hits come before the child ends its S3,
//! the child overwrites what they gave. Restartable sequences have no such case.

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unsound, Value};
use trapline_record::tally::sums::{LOCK, VERSIONS, WORDS};

use super::input::OWNER;
use super::rows::{Add, Rows};

/// How a hit of one probe finds its row, and what it adds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sums {
    /// As rows without a group-by key of their own.
    pub(crate) rows: Rows,
    /// Whether the value's type has no sign.
    pub(crate) unsigned: bool,
}

/// The program for this CPU's table.
pub(super) fn add(builder: Builder, sums: Sums) -> Result<Program, Unsound> {
    let mut add = Add::begin(builder, sums.rows, Memory::Mine);
    let [free, same, pass, found, end] = [(); 5].map(|()| add.builder.label());
    let (hits, lock) = (add.hits(), lock(&add));
    add.builder.begin(add.walk);
    add.builder.look(hits, Target::Label(free), Target::Label(free));
    add.is_same(Target::Label(same));
    add.builder.jump(Target::Label(pass));
    add.builder.bind(same);
    add.builder.branch_word(Compare::Equal, lock, Value::Number(0), Target::Label(found));
    add.builder.bind(pass);
    add.builder.next(add.walk);
    add.overflow();
    add.builder.jump(Target::Label(end));
    add.builder.bind(free);
    sums.take(&mut add);
    add.builder.jump(Target::Label(end));
    add.builder.bind(found);
    sums.give(&mut add);
    add.builder.bind(end);
    add.builder.commit(hits, Value::Number(1))
}

/// The program for a table that other threads change at the same time.
pub(super) fn add_anywhere(builder: Builder, sums: Sums) -> Result<Program, Unsound> {
    let mut add = Add::begin(builder, sums.rows, Memory::Shared);
    let [claim, claimed, pass, held, free, found, none, counted, end] = [(); 9].map(|()| add.builder.label());
    let (hits, lock) = (add.hits(), lock(&add));
    add.builder.begin(add.walk);
    add.builder.look(hits, Target::Label(claim), Target::Label(pass));
    add.is_same(Target::Label(claim));
    add.builder.jump(Target::Label(pass));
    add.builder.bind(claim);
    add.builder.claim(lock, Value::Number(0), Target::Label(claimed));
    add.builder.bind(pass);
    add.builder.next(add.walk);
    add.builder.jump(Target::Label(none));
    add.builder.bind(claimed);
    add.builder.look(lock, Target::Label(held), Target::Label(held));
    add.builder.bind(held);
    add.builder.branch_word(Compare::Equal, hits, Value::Number(0), Target::Label(free));
    add.is_same(Target::Label(found));
    add.builder.publish(lock, Value::Number(0));
    add.builder.next(add.walk);
    add.builder.bind(none);
    add.overflow();
    add.builder.add(hits, Value::Number(1));
    add.builder.jump(Target::Label(end));
    add.builder.bind(free);
    sums.take(&mut add);
    add.builder.jump(Target::Label(counted));
    add.builder.bind(found);
    sums.give(&mut add);
    add.builder.bind(counted);
    let now = add.builder.load(hits);
    let more = add.builder.compute(Compute::Add, now, Value::Number(1));
    add.builder.publish(hits, more);
    add.builder.publish(lock, Value::Number(0));
    add.builder.bind(end);
    add.builder.finish(None)
}

impl Sums {
    /// S2.
    fn take(self, add: &mut Add) {
        add.take();
        let [low, high, least, greatest] = version(add, 1);
        let value = add.builder.input(OWNER);
        [low, least, greatest].into_iter().for_each(|place| add.builder.store(place, value));
        let sign = self.sign(&mut add.builder, value);
        add.builder.store(high, sign);
    }
    /// S3. Registers are few, so the value is loaded again where it is needed.
    fn give(self, add: &mut Add) {
        let (odd, end) = (add.builder.label(), add.builder.label());
        let hits = add.builder.load(add.hits());
        let parity = add.builder.compute(Compute::And, hits, Value::Number(1));
        add.builder.branch(Compare::NotEqual, parity, Value::Number(0), Target::Label(odd));
        self.next(add, 0);
        add.builder.jump(Target::Label(end));
        add.builder.bind(odd);
        self.next(add, 1);
        add.builder.bind(end);
    }
    /// From this version to the other one.
    fn next(self, add: &mut Add, from: usize) {
        let (from, to) = (version(add, from), version(add, 1 - from));
        let builder = &mut add.builder;
        let (value, low) = (builder.input(OWNER), builder.load(from[0]));
        let low = builder.compute(Compute::Add, low, value);
        builder.store(to[0], low);
        let (no_carry, high) = (builder.label(), builder.load(from[1]));
        let sum = builder.in_var(high);
        builder.branch_word(Compare::AboveEqual, to[0], value, Target::Label(no_carry));
        builder.set_computed(sum, Compute::Add, high, Value::Number(1));
        builder.bind(no_carry);
        let sign = self.sign(builder, value);
        builder.set_computed(sum, Compute::Add, high, sign);
        builder.store(to[1], high);
        let [at_most, at_least] = match self.unsigned {
            true => [Compare::BelowEqual, Compare::AboveEqual],
            false => [Compare::LessEqual, Compare::GreaterEqual],
        };
        for (word, stays) in [(2, at_most), (3, at_least)] {
            let (end, before) = (builder.label(), builder.load(from[word]));
            let kept = builder.in_var(before);
            let value = builder.input(OWNER);
            builder.branch(stays, before, value, Target::Label(end));
            builder.set(kept, value);
            builder.bind(end);
            builder.store(to[word], before);
        }
    }
    /// The high word of a value.
    fn sign(self, builder: &mut Builder, value: Value) -> Value {
        if self.unsigned {
            Value::Number(0)
        } else {
            builder.compute(Compute::ShiftSigned, value, Value::Number(63))
        }
    }
}

/// The row's lock.
const fn lock(add: &Add) -> Place {
    Place::at(add.walk.entry, LOCK as i32 - 8)
}

/// The words of a version.
fn version(add: &Add, nth: usize) -> [Place; 4] {
    WORDS.map(|word| Place::at(add.walk.entry, (VERSIONS[nth] + word) as i32 - 8))
}

#[cfg(test)]
mod tests;
