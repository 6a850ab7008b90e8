//! Texts of a record in a compact ring, as long as they are (`record::calls::Behind`).
//!
//! In: [`input::COPIES`], a pointer to the stub's copies: of each text the kernel's result and
//! [`MOST_BYTES`] bytes, one text behind the other; which of them end at a 0. Out: a program that leaves the texts, one behind
//! the other without room between them, from the last byte of the first result on; and the number of their words before that
//! result. All of that is the stub's own.
//!
//! ```text
//!   C - 8     the number of words, U
//!   C         the result of the first text
//!   C + 7     first byte of the first text, and its bytes: where they were copied to
//!   C + 7 + 8 (words of those before)     another text
//!   C + 7 + 8 U                           the end, up to 7 bytes behind the last byte that was copied
//! ```
//!
//! | step | what |
//! |---|---|
//! | P1 | the length: up to the first 0, by words; a text that does not end there has all bytes |
//! | P2 | no more than was read. EFAULT at the first byte is a length of 0. Another error is kept |
//! | P3 | the first word, and of later texts the others, go to their place. It is not behind the place where they are, |
//! | | so what is not moved yet is not written over |
//!
//! It runs once for each hit, before C1 (`calls`): a sequence that begins again finds the texts as they are. *A signal handler*
//! runs below them. Bytes behind a text's end, up to a whole word, are what was there before.
//!
//! Does not: copy texts, or know rings.

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unary, Unsound, Value, Var};
use trapline_record::calls::{FAILED, FAULT, MOST_BYTES, MOST_WORDS};
use trapline_record::ring::TEXT_WORDS;

use super::records::{Texts, input};

/// Words that a stub needs for variables, at most.
pub(crate) const WORDS: usize = 8;
/// Where the number of words is left, from the first result on.
pub(crate) const USED_AT: i32 = -8;
/// Where the texts are left.
pub(crate) const TEXTS_AT: i32 = 7;

/// From one text's result to the next one's.
const STRIDE: i32 = 8 * TEXT_WORDS as i32;
/// The kernel's result where nothing can be read.
const EFAULT: i64 = -14;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

const _: () = assert!(MOST_WORDS as usize == TEXT_WORDS && MOST_BYTES == 64);

/// P1 to P3 for all texts.
///
/// # Errors
/// None, for as many texts as there are arguments.
pub(super) fn packed(texts: Texts) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let copies = builder.pointer(input::COPIES, Memory::Own);
    let used = builder.var();
    for nth in 0..texts.many {
        let mut text = Text { builder: &mut builder, copies, at: STRIDE * i32::from(nth) };
        let first = text.first(texts.ended >> nth & 1 == 1);
        text.put(first, used, nth == 0);
    }
    builder.store(Place::at(copies, USED_AT), Value::Var(used));
    builder.finish(None)
}

/// A text that is being packed.
struct Text<'a> {
    builder: &'a mut Builder,
    copies: Var,
    /// Offset of its result.
    at: i32,
}

impl Text<'_> {
    const fn place(&self, offset: i32) -> Place {
        Place::at(self.copies, self.at + offset)
    }
    /// P1 and P2. Its first byte.
    fn first(&mut self, ends: bool) -> Var {
        let read = self.builder.load(self.place(0));
        let first = self.length(ends);
        let [fits, known] = [(); 2].map(|()| self.builder.label());
        // No text that is whole in what was read is longer than that.
        self.builder.branch(Compare::Greater, read, Value::Var(first), Target::Label(known));
        self.builder.branch(Compare::Equal, read, Value::Number(MOST_BYTES), Target::Label(known));
        self.builder.branch(Compare::GreaterEqual, read, Value::Number(0), Target::Label(fits));
        self.builder.set(first, Value::Number(FAULT));
        self.builder.branch(
            Compare::Equal,
            read,
            Value::Number(EFAULT.cast_unsigned()),
            Target::Label(known),
        );
        // The error takes the place of the bytes.
        self.builder.store(self.place(8), read);
        self.builder.set(first, Value::Number(FAILED));
        self.builder.jump(Target::Label(known));
        self.builder.bind(fits);
        self.builder.set_computed(first, Compute::Or, read, Value::Number(FAULT));
        self.builder.bind(known);
        first
    }
    /// P1.
    ///
    /// ```text
    ///   zeros = (word - 01…01) & !word & 80…80         its lowest bit is in the first byte that is 0
    ///   below = zeros ^ (zeros - 1)                    all bits up to that one
    ///   bytes = (bits of below) >> 3, less one         bytes before it
    /// ```
    fn length(&mut self, ends: bool) -> Var {
        let length = self.builder.var();
        if !ends {
            self.builder.set(length, Value::Number(MOST_BYTES));
            return length;
        }
        let [found, known] = [(); 2].map(|()| self.builder.label());
        let zeros = self.builder.var();
        for at in (0..MOST_BYTES).step_by(8) {
            let word = self.builder.load(self.place(8 + at as i32));
            let less = self.builder.compute(Compute::Subtract, word, Value::Number(ONES));
            let others = self.builder.unary(Unary::Complement, word);
            let both = self.builder.compute(Compute::And, less, others);
            self.builder.set_computed(zeros, Compute::And, both, Value::Number(HIGHS));
            self.builder.set(length, Value::Number(at));
            self.builder.branch(Compare::NotEqual, Value::Var(zeros), Value::Number(0), Target::Label(found));
        }
        self.builder.set(length, Value::Number(MOST_BYTES));
        self.builder.jump(Target::Label(known));
        self.builder.bind(found);
        let less = self.builder.compute(Compute::Subtract, Value::Var(zeros), Value::Number(1));
        let below = self.builder.compute(Compute::Xor, Value::Var(zeros), less);
        let bits = self.builder.unary(Unary::Bits, below);
        let bytes = self.builder.compute(Compute::ShiftRight, bits, Value::Number(3));
        let bytes = self.builder.compute(Compute::Subtract, bytes, Value::Number(1));
        self.builder.set_computed(length, Compute::Add, Value::Var(length), bytes);
        self.builder.bind(known);
        length
    }
    /// P3.
    fn put(&mut self, first: Var, used: Var, is_first: bool) {
        let bytes = self.builder.load(self.place(8));
        let word = self.builder.compute(Compute::ShiftLeft, bytes, Value::Number(8));
        let word = self.builder.compute(Compute::Or, word, Value::Var(first));
        let words = self.words(first);
        if is_first {
            self.builder.store(self.place(TEXTS_AT), word);
            self.builder.set(used, words);
            return;
        }
        let to = self.builder.var();
        self.builder.set_address(to, Place { base: self.copies, index: Some((used, 3)), offset: TEXTS_AT });
        self.builder.store(Place::at(to, 0), word);
        let done = self.builder.label();
        for nth in 1..MOST_WORDS as i32 {
            self.builder.branch(Compare::BelowEqual, words, Value::Number(nth as u64), Target::Label(done));
            let word = self.builder.load(self.place(TEXTS_AT + 8 * nth));
            self.builder.store(Place::at(to, 8 * nth), word);
        }
        self.builder.bind(done);
        self.builder.set_computed(used, Compute::Add, Value::Var(used), words);
    }
    /// Number of its words: one if nothing was read, as for a length of 0.
    fn words(&mut self, first: Var) -> Value {
        let words = self.builder.var();
        let known = self.builder.label();
        self.builder.set(words, Value::Number(1));
        self.builder.branch(Compare::Equal, Value::Var(first), Value::Number(FAILED), Target::Label(known));
        let bytes = self.builder.compute(Compute::And, Value::Var(first), Value::Number(0x7f));
        let bytes = self.builder.compute(Compute::Add, bytes, Value::Number(8));
        self.builder.set_computed(words, Compute::ShiftRight, bytes, Value::Number(3));
        self.builder.bind(known);
        Value::Var(words)
    }
}

#[cfg(test)]
mod tests;
