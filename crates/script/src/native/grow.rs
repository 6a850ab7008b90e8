//! What hits left in the target's maps, as rows of the program's maps.
//!
//! In: keys and words. Out: [`Totals`] of what was added up; for a thread's maps, their entries. Does not: read a
//! target.

use crate::amount::Amount;
use crate::bytes::filled;
use crate::cell::Cell;
use crate::program::Program;
use crate::run::{Machine, Totals};
use crate::types::Type;
use crate::value::{StackMode, Value};

/// A part of a key or a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyValue {
    /// A number.
    Int(i64),
    /// A text.
    Text(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// The numbers of a stack's frames, and how it is shown.
    Stack(Vec<u64>, StackMode),
}

impl Totals {
    /// Adds what hits have added for a key.
    pub fn add_key(&mut self, program: &Program, map: usize, key: &[KeyValue], amount: &Amount) {
        self.add_value(map, value_of(key, program.maps[map].key.as_ref()), amount);
    }
}

impl Machine {
    /// Replaces all entries of a map by those that hits have assigned.
    pub fn replace(&mut self, map: usize, entries: impl Iterator<Item = (Vec<KeyValue>, Vec<KeyValue>)>) {
        let (program, maps) = self.maps();
        let info = &program.maps[map];
        maps[map].replace(entries.map(|(key, value)| {
            let value = value_of(&value, Some(&info.value));
            (value_of(&key, info.key.as_ref()), Cell::Plain(value))
        }));
    }
}

/// A key or a value as blocks have it.
pub(super) fn value_of(key: &[KeyValue], ty: Option<&Type>) -> Value {
    let part = |part: &KeyValue| match part {
        KeyValue::Int(number) => Value::Int(*number),
        KeyValue::Text(text) => Value::of_text(text),
        KeyValue::Bytes(bytes) => Value::Bytes(bytes.as_slice().into()),
        KeyValue::Stack(frames, mode) => Value::Stack(frames.as_slice().into(), *mode),
    };
    let value = match (key, ty) {
        (_, Some(Type::Tuple(_))) => Value::Parts(key.iter().map(part).collect()),
        ([one], _) => part(one),
        _ => Value::Nothing,
    };
    ty.map_or(value.clone(), |ty| filled(value, ty))
}
