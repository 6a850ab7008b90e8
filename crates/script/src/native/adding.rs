//! What is added up: operations that add to a map's values.
//!
//! In: how a block adds to a map. Out: operations. Does not: assign (`keys`).

use trapline_code::{Compare, Compute, Unary};

use super::emit::Emit;
use super::lower::Lower;
use super::maps::{Change, KeyWord, NativeMap, Not};
use super::uses::has_thread;
use crate::diagnostic::At;
use crate::program::{SumArgs, Typed};
use crate::types::Sum;

impl<E: Emit> Lower<'_, E> {
    /// Whether hits do nothing else with a map's values than adding to them.
    pub(super) fn is_counted(&self, map: usize, key: Option<&Typed>) -> bool {
        !has_thread(key) && !self.native.assigned.contains(&map)
    }
    /// Adds to a plain number that hits do nothing else with.
    pub(super) fn add_number(
        &mut self,
        map: usize,
        key: Option<&Typed>,
        by: E::Value,
        at: &At,
    ) -> Result<(), Not> {
        let (keys, words) = self.parts(key)?;
        let one = self.emit.number(1);
        let values = vec![KeyWord::Number; 2];
        self.native.uses(map, NativeMap { keys, values, change: Change::Add }, at)?;
        self.emit.add(map, &words, &[one, by], None);
        Ok(())
    }
    pub(super) fn add(
        &mut self,
        map: usize,
        key: Option<&Typed>,
        (sum, added, args): (Sum, &Typed, SumArgs),
        (signed, at): (bool, &At),
    ) -> Result<(), Not> {
        let (mut keys, mut words) = self.parts(key)?;
        let (one, value) = (self.emit.number(1), self.value(added)?);
        let (mut values, mut change) = (vec![one], Change::Add);
        match sum {
            Sum::Count => {}
            Sum::Total | Sum::Avg | Sum::Stats => values.push(value),
            Sum::Hist | Sum::Lhist => {
                keys.push(KeyWord::Bucket);
                words.push(self.bucket(value, args, at)?);
            }
            Sum::Min | Sum::Max => {
                values.push(value);
                let signed = signed || self.of.program.maps[map].value.is_signed();
                change = Change::Raise(match (sum, signed) {
                    (Sum::Min, true) => Compare::Less,
                    (Sum::Min, false) => Compare::Below,
                    (_, true) => Compare::Greater,
                    (_, false) => Compare::Above,
                });
            }
            Sum::Tseries => return Err(Not::yet("tseries", at)),
        }
        let numbers = vec![KeyWord::Number; values.len()];
        self.native.uses(map, NativeMap { keys, values: numbers, change }, at)?;
        let extreme = if let Change::Raise(when) = change { Some(when) } else { None };
        self.emit.add(map, &words, &values, extreme);
        Ok(())
    }
    /// As `cell::bucket`.
    pub(super) fn bucket(&mut self, value: E::Value, args: SumArgs, at: &At) -> Result<E::Value, Not> {
        let bucket = self.emit.variable();
        let end = self.emit.label();
        let zero = self.emit.number(0);
        self.emit.set(bucket, zero);
        let one = self.emit.number(1);
        match args {
            SumArgs::Hist(0) => {
                self.emit.branch(Compare::Less, value, zero, end);
                let bits = self.emit.unary(Unary::Bits, value);
                let sum = self.emit.compute(Compute::Add, bits, one);
                self.emit.set(bucket, sum);
            }
            SumArgs::Lhist { min, max, step } if step > 0 && max.checked_sub(min).is_some() => {
                let [least, most, step] = [min, max, step].map(|number| self.emit.number(number as u64));
                self.emit.branch(Compare::Less, value, least, end);
                let (kept, within) = (self.emit.variable(), self.emit.label());
                self.emit.set(kept, value);
                self.emit.branch(Compare::LessEqual, value, most, within);
                self.emit.set(kept, most);
                self.emit.bind(within);
                let kept = self.emit.get(kept);
                let over = self.emit.compute(Compute::Subtract, kept, least);
                let nth = self.emit.compute(Compute::Divide, over, step);
                let sum = self.emit.compute(Compute::Add, nth, one);
                self.emit.set(bucket, sum);
            }
            _ => return Err(Not::yet("such a histogram", at)),
        }
        self.emit.bind(end);
        Ok(self.emit.get(bucket))
    }
}
