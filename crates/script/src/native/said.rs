//! What hits say: values that `printf` and `print` write, evaluated in the target.
//!
//! In: a call. Out: operations that put its values into a map of their own (`record::said`); and the other way: values, which
//! are written as the interpreter would. Invariants: SCR-5; HIT-5.
//!
//! ```text
//!   printf("%d %s\n", arg0, ustack)    ──▶   map of this call:  [thread, nanos, nth] ─▶ (arg0, stack's number)
//!                                            the tracer: takes entries, in the order of nanos
//!   printf("%d %s\n", $0, $1)          ◀──   $0, $1 = what the words mean
//! ```
//!
//! A record holds a stack or values. So this is how a script has both; `Natives` asks for it where records are not enough.
//! The key gives the order: what one hit says has one time, and numbers in the order in which the hit says it.
//!
//! `exit()` is said, too: what other hits say later is not written. In a script with maps it is not, since hits would
//! change these until the tracer reads that it was said.
//!
//! Does not: write what asks the system.

use std::rc::Rc;

use super::emit::{Emit, Known};
use super::grow::{KeyValue, value_of};
use super::lower::Lower;
use super::maps::{Change, KeyWord, NativeMap, Not};
use crate::calls::Meaning;
use crate::program::{Op, Typed};
use crate::run::{Hit, Machine, World};
use crate::types::Type;

/// Words of a key that are no values: thread, time, which of the hit's sayings.
const OWN_WORDS: usize = 3;
/// Values of a call at most: they fill a value's words, then the key's.
const MOST: usize = super::maps::MOST_PARTS - OWN_WORDS + super::maps::MOST_VALUES;

/// A call that hits make in the target.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// The call as it stands in the script.
    call: Typed,
    /// The same with variables in the place of values.
    written: Typed,
    /// The types of these.
    types: Vec<Type>,
}

impl Said {
    fn of(call: &Typed, args: &[Typed]) -> Self {
        let mut types = Vec::new();
        let written = args.iter().map(|arg| match is_constant(arg) {
            true => arg.clone(),
            false => {
                types.push(arg.ty.clone());
                Typed::new(Op::Local(types.len() - 1), arg.ty.clone(), &arg.at)
            }
        });
        let args = written.collect();
        let op = match &*call.op {
            Op::Format { meaning, format, .. } => {
                Op::Format { meaning: *meaning, format: Rc::clone(format), args }
            }
            Op::Call { meaning, .. } => Op::Call { meaning: *meaning, args },
            _ => Op::Zero,
        };
        Self { call: call.clone(), written: Typed::new(op, call.ty.clone(), &call.at), types }
    }
}

fn is_constant(arg: &Typed) -> bool {
    matches!(&*arg.op, Op::Text(_) | Op::Int(_) | Op::Zero)
}

impl<E: Emit> Lower<'_, E> {
    /// Says what a call of `printf`, `print` or `exit` does, with these arguments.
    pub(super) fn say(&mut self, call: &Typed, args: &[Typed]) -> Result<(), Not> {
        let (mut are, mut words) = (Vec::new(), Vec::new());
        for arg in args.iter().filter(|arg| !is_constant(arg)) {
            if let Type::Tuple(_) = &arg.ty {
                return Err(Not::yet("a tuple that is written", &arg.at));
            }
            let (is, word) = self.part(arg)?;
            are.push(is);
            words.push(word);
        }
        if are.len() > MOST {
            return Err(Not::yet(format!("more than {MOST} values that are written"), &call.at));
        }
        let nth = self.native.said(call, || Said::of(call, args));
        self.native.sayings += 1;
        let nth_of_hit = self.emit.number(self.native.sayings);
        let own = [self.emit.known(Known::Member), self.emit.known(Known::Nanos), nth_of_hit];
        let first = are.len().min(super::maps::MOST_VALUES);
        let (mut values, mut value) = (are[..first].to_vec(), words[..first].to_vec());
        if values.is_empty() {
            values.push(KeyWord::Number);
            value.push(self.emit.number(0));
        }
        let keys = [&[KeyWord::Number; OWN_WORDS], &are[first..]].concat();
        let key = [&own[..], &words[first..]].concat();
        let map = self.native.maps.len() - self.native.said.len() + nth;
        self.native.uses(map, NativeMap { keys, values, change: Change::Say }, &call.at)?;
        self.emit.say(map, &key, &value);
        Ok(())
    }
}

impl super::Native {
    /// Which of what is said this call is.
    fn said(&mut self, call: &Typed, new: impl FnOnce() -> Said) -> usize {
        let is = |said: &Said| Rc::ptr_eq(&said.call.op, &call.op);
        self.said.iter().position(is).unwrap_or_else(|| {
            self.said.push(new());
            self.maps.push(None);
            self.said.len() - 1
        })
    }
    /// Whether what is said asks the script to end.
    #[must_use]
    pub fn ends(&self, said: usize) -> bool {
        let is_exit = |said: &Said| matches!(*said.call.op, Op::Call { meaning: Meaning::Exit, .. });
        self.said.get(said).is_some_and(is_exit)
    }
    /// Whether hits say anything.
    #[must_use]
    pub fn has_said(&self) -> bool {
        !self.said.is_empty()
    }
    /// Which of what is said a map is of.
    #[must_use]
    pub fn said_in(&self, map: usize) -> Option<usize> {
        map.checked_sub(self.maps.len() - self.said.len())
    }
    /// The order of what was said: the hit's time, which of its sayings. `key`: the words of an entry's key.
    #[must_use]
    pub fn order_of(key: &[KeyValue]) -> (u64, u64) {
        let number = |nth: usize| match key.get(nth) {
            Some(KeyValue::Int(number)) => number.cast_unsigned(),
            _ => 0,
        };
        (number(1), number(2))
    }
}

impl Machine {
    /// Writes what a hit said. `key` and `value`: the words of its entry.
    pub fn say(
        &mut self,
        native: &super::Native,
        (said, key, value): (usize, &[KeyValue], &[KeyValue]),
        (hit, world): (&Hit, &mut dyn World),
    ) {
        let Some(said) = native.said.get(said) else { return };
        let words = value.iter().chain(key.iter().skip(OWN_WORDS));
        let one = |(ty, word): (&Type, &KeyValue)| value_of(std::slice::from_ref(word), Some(ty));
        let values = said.types.iter().zip(words).map(one).collect();
        self.write(&said.written, values, hit, world);
    }
}
