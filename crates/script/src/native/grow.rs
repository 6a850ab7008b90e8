//! What hits left in the target, put into the maps of a program.
//!
//! In: keys and words. Out: the program's maps as the interpreter would have left them. Does not: read a target.

use crate::bytes::filled;
use crate::cell::Cell;
use crate::run::Machine;
use crate::types::{Sum, Type};
use crate::value::Value;

/// A part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyValue {
    /// A number.
    Int(i64),
    /// A text.
    Text(Vec<u8>),
}

impl Machine {
    /// Adds to a key's value what hits have added since the last time: how often, their sum, and the bucket of a histogram.
    pub fn grow(&mut self, map: usize, key: &[KeyValue], (hits, sum, bucket): (u64, u64, u32)) {
        let (program, maps) = self.maps();
        let info = &program.maps[map];
        let key = value_of(key, info.key.as_ref());
        let ty = &info.value;
        let Some(cell) = maps[map].entry(key, || Cell::empty(ty)) else {
            maps[map].lost += hits.saturating_sub(1);
            return;
        };
        match (&mut *cell, ty) {
            (Cell::Total(total), Type::Sum(Sum::Count, _)) => *total = total.wrapping_add(hits as i64),
            (Cell::Total(total), _) => *total = total.wrapping_add(sum as i64),
            (Cell::Stats { count, total }, _) => {
                *count += hits;
                *total = total.wrapping_add(sum as i64);
            }
            (Cell::Buckets(buckets), _) => *buckets.entry(bucket).or_default() += hits,
            _ => {}
        }
    }
    /// Replaces all entries of a map by those that hits have assigned.
    pub fn replace(&mut self, map: usize, entries: impl Iterator<Item = (Vec<KeyValue>, u64)>) {
        let (program, maps) = self.maps();
        let info = &program.maps[map];
        maps[map].clear();
        for (key, value) in entries {
            let key = value_of(&key, info.key.as_ref());
            if let Some(cell) = maps[map].entry(key, || Cell::Plain(Value::Nothing)) {
                *cell = Cell::Plain(Value::Int(value as i64));
            }
        }
    }
    /// Counts updates that found no room in the target.
    pub fn lose(&mut self, map: usize, updates: u64) {
        self.maps().1[map].lost += updates;
    }
}

/// A key as blocks have it.
fn value_of(key: &[KeyValue], ty: Option<&Type>) -> Value {
    let part = |part: &KeyValue| match part {
        KeyValue::Int(number) => Value::Int(*number),
        KeyValue::Text(text) => Value::of_text(text),
    };
    let value = match (key, ty) {
        (_, Some(Type::Tuple(_))) => Value::Parts(key.iter().map(part).collect()),
        ([one], _) => part(one),
        _ => Value::Nothing,
    };
    ty.map_or(value.clone(), |ty| filled(value, ty))
}
