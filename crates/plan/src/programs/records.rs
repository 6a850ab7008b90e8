//! A record in a ring (`record::ring`): finds this CPU's ring, finds the slot behind its head, fills the record's
//! words, and publishes them by storing the head.
//!
//! In: the rings' shape, how many values a record holds. Out: three programs ([`Part`]). They are parts of one
//! restartable sequence's body, or follow the stub's own code that has locked a ring. Between them the stub does what
//! no program can: it copies texts, vector registers and stacks into the slot, and reads the clock.
//!
//! ```text
//!   ring = rings + stride · CPU
//!   used = head - tail                       there is no room if used >= full
//!   slot = ring + SLOTS + (head + ahead) mod bytes
//!
//!   slot + 0                 IDS: thread << 32 | probe
//!   slot + 8                 time
//!   slot + 16                key + kind      key: the stack pointer, or the address of the call's cell
//!   slot + 8 FIRST_VALUE     values, or how many bytes a record with a stack fills; behind them what the stub has copied
//! ```
//!
//! | step | part | what | a signal handler, an abort or the thread's end behind it |
//! |---|---|---|---|
//! | W1 | `Find` | the CPU's number; none, or one that was not known: | nothing has changed |
//! | | | outcome 1. Head and tail; no room: outcome 2 | |
//! | W2 | `Slot`, the stub, `Words` | the slot behind the head | the ring is as before, |
//! | | | is filled, by plain stores | since readers look at nothing behind the head |
//! | W3 | `Words` | the commit: the head, and the length of the record | the record is there, once |
//!
//! - *A signal handler* between W1 and W3 writes its own records as a whole, into the same slot and further on. Then the
//!   sequence begins again with W1, and finds the slot behind them.
//! - *A move to another CPU* begins again too, with that CPU's ring. What was filled stays behind the other ring's head, and
//!   the next record there is written over it.
//! - *The reader* loads the head first, and then what is before it. W3 is ordered behind W2 (on arm64 by a release), so
//!   every slot before the head is whole.
//! - *The tail moves* between W1 and W3: there is more room than W1 saw.
//! - *A fork* between W1 and W3: the child begins again, in the same rings, as another thread.
//!
//! In a ring that is locked (L1 to L3 are the stub's), this thread alone writes the slot and the head. `Words` is L4
//! and L5 then: the commit takes the lock's bit off the head, too. What may come between is told in `record::ring`.
//!
//! The record that an entry keeps back is in its call's own cell, in private memory: [`Publish`] is `None`. Nothing is
//! published there.
//!
//! Does not: look for a ring that is free (L1 to L3), read the clock, know how long texts are.

use trapline_code::{Builder, Compare, Compute, Memory, Place, Program, Target, Unsound, Value, Var};
use trapline_record::ring::{FIRST_VALUE, HEAD, LOCKED, RingArea, SLOTS, TAIL};
use trapline_record::stack::USED;

use super::{calls, packed};

/// The inputs, by their numbers.
pub(crate) mod input {
    /// Pointer to ring 0.
    pub(crate) const RINGS: u16 = 0;
    /// The CPU's number, of 32 bits.
    pub(crate) const CPU: u16 = 1;
    /// Pointer to the ring.
    pub(crate) const RING: u16 = 2;
    /// The ring's head, without a lock's bit.
    pub(crate) const HEAD: u16 = 3;
    /// Pointer to the slot.
    pub(crate) const SLOT: u16 = 4;
    /// The time. It is read before any variable is written.
    pub(crate) const TIME: u16 = 5;
    /// The thread's number and the probe's.
    pub(crate) const IDS: u16 = 6;
    /// The key, and the kind.
    pub(crate) const KEY: u16 = 7;
    /// How many bytes of the slots a record with a stack fills; in a compact ring, how many words the record's texts.
    pub(crate) const USED: u16 = 8;
    /// The thread's number, of 32 bits.
    pub(crate) const THREAD: u16 = 9;
    /// Pointer to the result of the first text that the stub has copied. Its bytes, and the other texts, follow.
    pub(crate) const COPIES: u16 = 10;
    /// The first value.
    pub(crate) const VALUE: u16 = 11;
}

/// A part of what writes a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// W1. Hands on the ring and its head. Outcome 1: no CPU; outcome 2: no room.
    Find {
        /// Number of CPUs that have a ring.
        cpus: u32,
        /// From one ring to the next, in bytes.
        stride: u64,
        /// Bytes in use from which on there is no room.
        full: u32,
    },
    /// Hands on the slot.
    Slot {
        /// Length of a ring's slots.
        bytes: u32,
        /// How far behind the head it is.
        ahead: u32,
    },
    /// W2 and W3.
    Words {
        /// Number of values.
        values: u8,
        /// How the record is published.
        publish: Option<Publish>,
    },
    /// C1 (`calls`). Hands on the ring. Outcomes as those of `Find`, for words.
    FindCompact {
        /// Number of CPUs that have a ring.
        cpus: u32,
        /// From one ring to the next, in bytes.
        stride: u64,
        /// Words in use from which on there is no room.
        full: u32,
    },
    /// C3 and C4. Outcome 3: the head has another context.
    Word(Compact),
    /// The same, with a context.
    Pair(Compact),
    /// Before C1: copied texts become as long as they are (`packed`).
    Packed(Texts),
}

/// Texts that the stub has copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Texts {
    /// How many.
    pub(crate) many: u8,
    /// Bit `n`: the text that is number `n` of these ends at a 0.
    pub(crate) ended: u8,
}

impl Texts {
    /// Texts of the arguments with these bits, some of which end at a 0.
    pub(crate) fn of(arguments: u8, ended: u8) -> Self {
        let bits = (0..8u8).filter(|nth| arguments >> nth & 1 == 1);
        let ended = (0..8u8).zip(bits).fold(0, |all, (nth, bit)| all | (ended >> bit & 1) << nth);
        Self { many: arguments.count_ones() as u8, ended }
    }
}

/// A record in a compact ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Compact {
    /// Words of the ring.
    pub(crate) words: u32,
    /// Number of values behind the record, without texts.
    pub(crate) values: u16,
    /// Number of texts behind them.
    pub(crate) texts: u8,
}

/// What stands behind a record in a compact ring, in this order; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Behind {
    /// So many of the argument registers.
    pub(crate) arguments: u8,
    /// Bit `n`: vector register `n`.
    pub(crate) floats: u8,
    /// Words of fields, as the stub has copied them behind the texts.
    pub(crate) fields: u16,
    /// The returned value, at an exit.
    pub(crate) returned: bool,
    /// Texts, as `packed` left them.
    pub(crate) texts: Texts,
}

/// Where one of these words is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValuePlace {
    /// An argument register.
    Argument(u8),
    /// The low half of a vector register.
    Vector(u8),
    /// A word of the fields that the stub has copied.
    Field(u16),
    /// The first general register of returned values.
    Returned,
    /// A word of the texts; all of them are one behind the other.
    Text(u16),
}

impl Behind {
    /// Number of words, without those of texts.
    pub(crate) const fn fixed(self) -> u16 {
        let Self { arguments, floats, fields, returned, .. } = self;
        arguments as u16 + floats.count_ones() as u16 + fields + returned as u16
    }
    /// Whether anything stands there.
    pub(crate) const fn is_there(self) -> bool {
        self.fixed() > 0 || self.texts.many > 0
    }
    /// Where a word is that is behind the record.
    pub(crate) fn place(self, nth: u16) -> ValuePlace {
        let Self { arguments, floats, .. } = self;
        if let Some(text) = nth.checked_sub(self.fixed()) {
            return ValuePlace::Text(text);
        }
        let Some(behind) = nth.checked_sub(arguments.into()) else { return ValuePlace::Argument(nth as u8) };
        if self.returned {
            return ValuePlace::Returned;
        }
        let mut vectors = (0..8u8).filter(|n| floats >> n & 1 == 1);
        match vectors.nth(behind.into()) {
            Some(vector) => ValuePlace::Vector(vector),
            None => ValuePlace::Field(behind - floats.count_ones() as u16),
        }
    }
}

/// How a record is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Publish {
    /// Length of the record; if it holds a stack, of one slot.
    pub(crate) bytes: u32,
    /// Whether it holds a stack, and takes as many slots as that fills.
    pub(crate) is_long: bool,
    /// Whether the ring is locked.
    pub(crate) is_locked: bool,
}

impl Part {
    pub(crate) const NO_CPU: u8 = 1;
    pub(crate) const NO_ROOM: u8 = 2;
    pub(crate) const SWITCH: u8 = 3;

    /// W1, for as many CPUs.
    pub(crate) const fn find(area: &RingArea, cpus: u32, full: u32) -> Self {
        Self::Find { cpus, stride: area.stride(), full }
    }
    /// C1, for as many CPUs.
    pub(crate) const fn find_compact(area: &RingArea, cpus: u32) -> Self {
        Self::FindCompact { cpus, stride: area.stride(), full: area.full_words() }
    }
    /// The program.
    ///
    /// # Errors
    /// None, for rings that there are.
    pub(crate) fn program(self) -> Result<Program, Unsound> {
        match self {
            Self::Find { cpus, stride, full } => find((cpus, stride, full)),
            Self::Slot { bytes, ahead } => slot(bytes, ahead),
            Self::Words { values, publish } => words(values.into(), publish),
            Self::FindCompact { cpus, stride, full } => calls::find(cpus, stride, full),
            Self::Word(compact) => calls::word(compact),
            Self::Pair(compact) => calls::pair(compact),
            Self::Packed(texts) => packed::packed(texts),
        }
    }
}

/// The CPU's ring, its head, and head - tail. Without a ring for that CPU: outcome 1.
pub(super) fn ring_of(builder: &mut Builder, cpus: u32, stride: u64) -> (Var, Value, Value) {
    let cpu = builder.input(input::CPU);
    builder.branch(Compare::AboveEqual, cpu, Value::Number(cpus.into()), Target::Outcome(Part::NO_CPU));
    let rings = builder.pointer(input::RINGS, Memory::Mine);
    let offset = builder.compute(Compute::Multiply, cpu, Value::Number(stride));
    let (ring, offset) = (builder.var(), builder.in_var(offset));
    builder.set_address(ring, Place { base: rings, index: Some((offset, 0)), offset: 0 });
    let head = builder.load(Place::at(ring, HEAD as i32));
    let tail = builder.load(Place::at(ring, TAIL as i32));
    let used = builder.compute(Compute::Subtract, head, tail);
    (ring, head, used)
}

fn find((cpus, stride, full): (u32, u64, u32)) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let (ring, head, used) = ring_of(&mut builder, cpus, stride);
    builder.branch(Compare::AboveEqual, used, Value::Number(full.into()), Target::Outcome(Part::NO_ROOM));
    let head = builder.in_var(head);
    builder.hand_on(&[ring, head])
}

fn slot(bytes: u32, ahead: u32) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let ring = builder.pointer(input::RING, Memory::Mine);
    let mut head = builder.input(input::HEAD);
    if ahead > 0 {
        head = builder.compute(Compute::Add, head, Value::Number(ahead.into()));
    }
    let past = builder.compute(Compute::And, head, Value::Number(u64::from(bytes) - 1));
    let (slot, past) = (builder.var(), builder.in_var(past));
    builder.set_address(slot, Place { base: ring, index: Some((past, 0)), offset: SLOTS as i32 });
    builder.hand_on(&[slot])
}

fn words(values: u16, publish: Option<Publish>) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let time = builder.input(input::TIME);
    let slot = builder.pointer(input::SLOT, if publish.is_some() { Memory::Mine } else { Memory::Own });
    let word = |nth: u64| Place::at(slot, 8 * nth as i32);
    let ids = builder.input(input::IDS);
    builder.store(word(0), ids);
    builder.store(word(1), time);
    let key = builder.input(input::KEY);
    let used = publish.filter(|publish| publish.is_long).map(|_| builder.input(input::USED));
    builder.store(word(2), key);
    if let Some(used) = used {
        builder.store(word(USED), used);
    }
    for nth in 0..values {
        let value = builder.input(input::VALUE + nth);
        builder.store(word(FIRST_VALUE + u64::from(nth)), value);
    }
    let Some(publish) = publish else { return builder.finish(None) };
    let ring = builder.pointer(input::RING, Memory::Mine);
    let by = publish.by(&mut builder, used);
    builder.commit(Place::at(ring, HEAD as i32), by)
}

impl Publish {
    /// What is added to the head: whole slots, and without the lock's bit.
    ///
    /// ```text
    ///   (used + slot - 1) & -slot          as many slots as are in use
    ///   (used - 1) | (slot - 1)            the same, less one
    /// ```
    fn by(self, builder: &mut Builder, used: Option<Value>) -> Value {
        let Self { bytes, is_locked, .. } = self;
        let less = if is_locked { LOCKED } else { 0 };
        let Some(used) = used else { return Value::Number(u64::from(bytes) - less) };
        const { assert!(LOCKED == 1) };
        let rest = Value::Number(u64::from(bytes) - 1);
        if is_locked {
            let last = builder.compute(Compute::Subtract, used, Value::Number(1));
            return builder.compute(Compute::Or, last, rest);
        }
        let over = builder.compute(Compute::Add, used, rest);
        builder.compute(Compute::And, over, Value::Number(u64::from(bytes).wrapping_neg()))
    }
}

#[cfg(test)]
mod tests;
