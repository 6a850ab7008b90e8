//! The number of a text that a key names (`record::key_texts`).
//!
//! In: [`TEXT`], a pointer to the kernel's result and, behind it, the bytes that it copied; how long the text may be. Out: a
//! program whose result is the number: the distance of the text's entry from the begin of the table. Invariant: HIT-4 a
//! number in a key stands for one text, whole, from before the key is in a map; a hit without one runs no program.
//!
//! | step | what | another thread, a signal handler, the thread's end, or a fork behind it |
//! |---|---|---|
//! | N1 | the bytes that count are found, zeros are written behind them; | the copy is on the hit's own stack: |
//! | | hash = FNV of these bytes, then of their number | nobody else knows it |
//! | N2 | the entries that the hash gives are looked at (M1, M2, M5 of `maps`): | - |
//! | | hash, length and all bytes are compared. The same: its place is the number | |
//! | N3 | a free entry is claimed, hash, length and bytes are stored, LIVE is | it sees TAKING until all is stored, and takes |
//! | | published (M3, M4). Its place is the number | another entry for this text: *twice* |
//! | N4 | no entry is left: one more update without an entry; the program does | - |
//! | | not run | |
//! | N5 | the hit's program runs, and has the number as an input | the entry keeps its text for ever |
//!
//! *Twice*: two threads that meet a new text at once may take two entries, so the text has two numbers. Keys of maps that are
//! added up may say so: the reader puts a number's text in its place, and adds up keys that are the same then. A map of
//! plain values has no such keys.
//!
//! A thread that ends in N3 leaves an entry that is not used again; its hit has not run. A forked child's copy of the thread
//! stores the same text a second time, which changes nothing.
//!
//! The reader reads keys first and texts then. So a number that it knows has been published.
//!
//! Does not: copy the text (`stub::text`).

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unsound, Value, Var};
use trapline_record::key_texts::TextTable;
use trapline_record::maps::LIVE;

use super::hash::{fold, hash};
use super::input::TEXT;
use super::maps::Map;
use super::search::{Ends, Key};
use crate::hit::{TextLength, TextOfKey, input};

/// Outcome: there is no room for the text (N4).
pub(crate) const NO_ROOM: u8 = 1;
/// Outcome: it is not known whether the program could have read the text.
pub(crate) const UNKNOWN: u8 = 2;
/// Input: the number of bytes that count, if that is a value of the hit.
pub(crate) const LENGTH: u16 = 1;
/// Words that a stub needs for variables, at most.
pub(crate) const WORDS: usize = 6;

/// The kernel's result where the program could not have read anything either.
const EFAULT: i64 = -14;

/// N1 to N4. `at`: how far behind [`TEXT`] the kernel's result is.
///
/// # Errors
/// None, for all texts that there are.
pub(crate) fn number(of: TextOfKey, at: i32) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let text = builder.pointer(TEXT, Memory::Own);
    let most = most(&mut builder, of, Place::at(text, at));
    let (hash, length) = whole(&mut builder, of, (text, at + 8), most);
    let shape = TextTable { is_there: true }.shape();
    let map = Map { line: input::TEXTS, shape, beyond: None };
    let words = [Value::Var(hash), Value::Var(length)];
    let found = builder.label();
    let ends = Ends { found: Target::Label(found), missing: Target::Outcome(NO_ROOM), full: None };
    let key = Key { words: &words, text: Some((text, at + 8)) };
    let entry = map.search(&mut builder, key, Some((LIVE, None)), ends);
    builder.bind(found);
    let table = map.pointer(&mut builder);
    let number = builder.compute(Compute::Subtract, Value::Var(entry), Value::Var(table));
    builder.finish(Some(number))
}

/// How many bytes may count: those that were read, and no more than asked for.
fn most(builder: &mut Builder, of: TextOfKey, result: Place) -> Var {
    let most = builder.var();
    let [known, fits, positive] = [(); 3].map(|()| builder.label());
    let read = builder.load(result);
    builder.set(most, read);
    builder.branch(Compare::GreaterEqual, read, Value::Number(0), Target::Label(known));
    let fault = Value::Number(EFAULT as u64);
    builder.branch(Compare::NotEqual, read, fault, Target::Outcome(UNKNOWN));
    builder.set(most, Value::Number(0));
    builder.bind(known);
    let limit = match of.length {
        TextLength::AtMost(bytes) => Value::Number(bytes.into()),
        TextLength::Argument(_) => {
            let limit = builder.input(LENGTH);
            let limit = builder.in_var(limit);
            let limit = Value::Var(limit);
            builder.branch(Compare::GreaterEqual, limit, Value::Number(0), Target::Label(positive));
            builder.set(most, Value::Number(0));
            builder.jump(Target::Label(fits));
            builder.bind(positive);
            limit
        }
    };
    builder.branch(Compare::BelowEqual, Value::Var(most), limit, Target::Label(fits));
    builder.set(most, limit);
    builder.bind(fits);
    most
}

/// N1: hash and length of the bytes that count; zeros follow them then. `bytes`: where they are.
fn whole(builder: &mut Builder, of: TextOfKey, (text, bytes): (Var, i32), most: Var) -> (Var, Var) {
    let length = builder.var();
    builder.set(length, Value::Number(0));
    let hash = hash(builder, Place::at(text, bytes), |builder, byte, ended| {
        builder.branch(Compare::Equal, Value::Var(length), Value::Var(most), Target::Label(ended));
        if of.ends {
            builder.branch(Compare::Equal, byte, Value::Number(0), Target::Label(ended));
        }
        builder.set_computed(length, Compute::Add, Value::Var(length), Value::Number(1));
    });
    fold(builder, hash, Value::Var(length));
    (hash, length)
}

#[cfg(test)]
mod tests;
