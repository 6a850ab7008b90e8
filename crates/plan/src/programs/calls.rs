//! An entry or an exit in a compact ring (`record::calls`): finds this CPU's ring, writes one word behind its head, or two,
//! and publishes them by storing the head.
//!
//! In: the rings' shape. Out: programs, as parts of the bodies of two restartable sequences. The first one is for most
//! records. It is left if the thread or the epoch is another than that of the record before; the second one writes a context
//! first, whatever the head says. Between their parts the stub reads the clock.
//!
//! ```text
//!   ring    = rings + stride · CPU
//!   used    = (head - tail) >> 32                     there is no room if used >= full
//!   context = (time >> 34 & 1023) << 22 | thread      the low half of the head, as it is to be
//!   slot    = ring + SLOTS + 8 · ((head >> 32) mod words)
//!
//!   a record     time << 30 | stack pointer & 0x3f0 | probe << 10 | kind
//!   values       each one word behind the record; texts come last
//!   a context    time >> 34 << 34 | thread << 4 | 3
//! ```
//!
//! | step | part | what | a signal handler, an abort or the thread's end behind it |
//! |---|---|---|---|
//! | C1 | `find` | the CPU's number; none, or one that was not known: | nothing has changed |
//! | | | outcome 1. Head and tail; no room for two words: outcome 2 | |
//! | C2 | the stub | the clock | the same |
//! | C3 | `word` | another context than the head's: outcome 3. The record | the ring is as before |
//! | | `pair` | in its place: a context, and the record behind it | the ring is as before |
//! | | both | the record's values behind it | the ring is as before |
//! | C4 | `word`, `pair` | the commit: so many words more, and the new context | the records are there, once |
//!
//! - *A signal handler* between C1 and C4 writes its own records as a whole. The sequence begins again, and finds their head.
//!   If they had another epoch, so has the head, and `word` leaves.
//! - *A move to another CPU* begins again with that CPU's ring. What was stored stays behind the other ring's head.
//! - *Between `word`'s outcome 3 and `pair`* the sequence is another one: the thread may be moved, and others may write. `pair`
//!   finds everything again. Its context may then say what the head says already, which is no harm.
//! - *The head* is read from memory more than once. Only code on this CPU changes it, and then the sequence begins again.
//! - *The reader* loads the head first, and then what is before it; C4 is ordered behind C3. *The tail moves* between C1 and C4:
//!   there is more room than C1 saw.
//! - *A fork* between C1 and C4: the child begins again, in the same rings, as another thread.
//! - *The clock* is read in C2, and no other code records on this CPU until C4. So times in a ring never fall.
//!
//! *Values* are words that the stub has in registers, or copied to its stack before C1: arguments, floats, fields, texts; at an exit
//! the returned value. They do not change between C1 and C4. Room is always asked for the longest hit of the segment, with the
//! longest texts, so whether a hit finds room depends neither on its probe nor on its texts. The head grows by what was written:
//! texts are as long as they are (`packed`), and how long is known before C1.
//!
//! Does not: read the clock, wait for room (`stub/wait.rs`).

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unsound, Value, Var};
use trapline_record::calls::{
    CONTEXT, EPOCH_BITS, MOST_WORDS, STACK_BITS, THREAD_BITS, THREAD_SHIFT, TIME_BITS, TIME_SHIFT,
    WORDS_SHIFT,
};
use trapline_record::ring::{HEAD, SLOTS};

use super::records::{Compact, Part, input, ring_of};

/// C1. Hands on the ring.
pub(super) fn find(cpus: u32, stride: u64, full: u32) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let (ring, _, used) = ring_of(&mut builder, cpus, stride);
    let used = builder.compute(Compute::ShiftRight, used, Value::Number(WORDS_SHIFT.into()));
    builder.branch(Compare::AboveEqual, used, Value::Number(full.into()), Target::Outcome(Part::NO_ROOM));
    builder.hand_on(&[ring])
}

/// C3 and C4 for a record of the head's context, with its values.
pub(super) fn word(compact: Compact) -> Result<Program, Unsound> {
    let mut writer = Writer::new(compact);
    let now = writer.context();
    let head = writer.head();
    let differs = writer.builder.compute(Compute::Xor, head, now);
    let differs = writer.shift(Compute::ShiftLeft, differs, WORDS_SHIFT);
    writer.builder.branch(Compare::NotEqual, differs, Value::Number(0), Target::Outcome(Part::SWITCH));
    let record = writer.record();
    writer.store(0, record);
    writer.values(1);
    let by = writer.all(1);
    writer.commit(by)
}

/// C3 and C4 for a context and a record, with its values.
pub(super) fn pair(compact: Compact) -> Result<Program, Unsound> {
    let mut writer = Writer::new(compact);
    let time = writer.time;
    let epoch = writer.shift(Compute::ShiftRight, time, TIME_BITS);
    let epoch = writer.shift(Compute::ShiftLeft, epoch, TIME_BITS);
    let thread = writer.builder.input(input::THREAD);
    let thread = writer.shift(Compute::ShiftLeft, thread, THREAD_SHIFT);
    let context = writer.builder.compute(Compute::Or, epoch, thread);
    let context = writer.builder.compute(Compute::Or, context, Value::Number(CONTEXT));
    writer.store(0, context);
    let record = writer.record();
    writer.store(1, record);
    writer.values(2);
    // What the head grows by: these words, and from its context to the new one.
    let now = writer.context();
    let head = writer.head();
    let before = writer.shift(Compute::ShiftLeft, head, WORDS_SHIFT);
    let before = writer.shift(Compute::ShiftRight, before, WORDS_SHIFT);
    let by = writer.builder.compute(Compute::Subtract, now, before);
    let all = writer.all(2);
    let all = Value::Var(writer.builder.in_var(all));
    let by = writer.builder.compute(Compute::Add, by, all);
    writer.commit(by)
}

/// What both programs are made of.
struct Writer {
    builder: Builder,
    ring: Var,
    time: Value,
    mask: u64,
    values: u16,
    texts: u16,
}

impl Writer {
    fn new(Compact { words, values, texts }: Compact) -> Self {
        let mut builder = Builder::new();
        let time = builder.input(input::TIME);
        let ring = builder.pointer(input::RING, Memory::Mine);
        Self { builder, ring, time, mask: u64::from(words) - 1, values, texts: texts.into() }
    }
    fn shift(&mut self, op: Compute, value: Value, by: u32) -> Value {
        self.builder.compute(op, value, Value::Number(by.into()))
    }
    fn head(&mut self) -> Value {
        self.builder.load(Place::at(self.ring, HEAD as i32))
    }
    /// The low half of a head behind this record.
    fn context(&mut self) -> Value {
        let epoch = self.shift(Compute::ShiftRight, self.time, TIME_BITS);
        let epoch = self.builder.compute(Compute::And, epoch, Value::Number((1 << EPOCH_BITS) - 1));
        let epoch = self.shift(Compute::ShiftLeft, epoch, THREAD_BITS);
        let thread = self.builder.input(input::THREAD);
        self.builder.compute(Compute::Or, epoch, thread)
    }
    fn record(&mut self) -> Value {
        let time = self.shift(Compute::ShiftLeft, self.time, TIME_SHIFT);
        let key = self.builder.input(input::KEY);
        let place = self.builder.compute(Compute::And, key, Value::Number(STACK_BITS));
        let record = self.builder.compute(Compute::Or, time, place);
        let ids = self.builder.input(input::IDS);
        self.builder.compute(Compute::Or, record, ids)
    }
    /// Stores a word that is so many behind the head.
    fn store(&mut self, ahead: u64, word: Value) {
        let head = self.head();
        let mut written = self.shift(Compute::ShiftRight, head, WORDS_SHIFT);
        if ahead > 0 {
            written = self.builder.compute(Compute::Add, written, Value::Number(ahead));
        }
        let nth = self.builder.compute(Compute::And, written, Value::Number(self.mask));
        let nth = self.builder.in_var(nth);
        self.builder.store(Place { base: self.ring, index: Some((nth, 3)), offset: SLOTS as i32 }, word);
    }
    /// Stores the values, from so many behind the head on. Of texts, so many words as they have.
    fn values(&mut self, ahead: u16) {
        for nth in 0..self.values {
            let value = self.builder.input(input::VALUE + nth);
            self.store((ahead + nth).into(), value);
        }
        let done = self.builder.label();
        for nth in 0..self.texts * MOST_WORDS as u16 {
            // Each text has a word at least.
            if nth >= self.texts {
                let (used, nth) = (Value::Input(input::USED), Value::Number(nth.into()));
                self.builder.branch(Compare::BelowEqual, used, nth, Target::Label(done));
            }
            let value = self.builder.input(input::VALUE + self.values + nth);
            self.store((ahead + self.values + nth).into(), value);
        }
        self.builder.bind(done);
    }
    /// What the head grows by, for so many words and the values.
    fn all(&mut self, words: u16) -> Value {
        let fixed = Value::Number(u64::from(words + self.values) << WORDS_SHIFT);
        if self.texts == 0 {
            return fixed;
        }
        let texts = self.builder.input(input::USED);
        let texts = self.builder.compute(Compute::Add, texts, Value::Number((words + self.values).into()));
        self.shift(Compute::ShiftLeft, texts, WORDS_SHIFT)
    }
    fn commit(self, by: Value) -> Result<Program, Unsound> {
        self.builder.commit(Place::at(self.ring, HEAD as i32), by)
    }
}

#[cfg(test)]
mod tests;
