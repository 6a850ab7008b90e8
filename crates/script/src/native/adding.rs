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
            SumArgs::Hist(bits) => {
                self.emit.branch(Compare::Less, value, zero, end);
                let sum = self.within_power(value, bits);
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
    /// As `cell::power` with bits, of what is not negative. A shift by a number that is not known is six shifts, each of
    /// which is done or not.
    fn within_power(&mut self, value: E::Value, bits: u32) -> E::Value {
        let (bucket, end) = (self.emit.variable(), self.emit.label());
        let [zero, one] = [0, 1].map(|number| self.emit.number(number));
        let below = self.emit.compute(Compute::Add, value, one);
        self.emit.set(bucket, below);
        let most = self.emit.number((1 << bits) - 1);
        self.emit.branch(Compare::BelowEqual, value, most, end);
        let (rest, shift) = (self.emit.variable(), self.emit.variable());
        let length = self.emit.unary(Unary::Bits, value);
        let (kept, over) = (self.emit.number(u64::from(bits)), self.emit.number(1 + u64::from(bits)));
        self.emit.set(rest, value);
        let by = self.emit.compute(Compute::Subtract, length, over);
        self.emit.set(shift, by);
        for part in [32, 16, 8, 4, 2, 1] {
            let (without, by) = (self.emit.label(), self.emit.get(shift));
            let part = self.emit.number(part);
            let has = self.emit.compute(Compute::And, by, part);
            self.emit.branch(Compare::Equal, has, zero, without);
            let shifted = self.emit.get(rest);
            let shifted = self.emit.compute(Compute::ShiftRight, shifted, part);
            self.emit.set(rest, shifted);
            self.emit.bind(without);
        }
        let (by, rest) = (self.emit.get(shift), self.emit.get(rest));
        let octave = self.emit.compute(Compute::Add, by, one);
        let octave = self.emit.compute(Compute::ShiftLeft, octave, kept);
        let inside = self.emit.compute(Compute::And, rest, most);
        let sum = self.emit.compute(Compute::Add, octave, inside);
        let sum = self.emit.compute(Compute::Add, sum, one);
        self.emit.set(bucket, sum);
        self.emit.bind(end);
        self.emit.get(bucket)
    }
}
