//! The histogram bucket of a value (*cell* in tables).
//!
//! In: a value, whether its type has a sign, how an aggregation sorts values. Out: the bucket, as
//! [`Tally::key`](crate::filter::Tally::key); the value itself if each value has a row.
//!
//! ```text
//!   Log2     cell = 0 if value < 0; else 1 + bits(value)           0 in cell 1, 2^n in cell n + 2
//!   Linear   cell = 0 if value < min; else 1 + lesser((value - min) / step, count)
//! ```
//!
//! | step | what |
//! |---|---|
//! | B1 | a value that is too low: cell 0 |
//! | B2 | Log2: the number of the value's bits; Linear: the difference, the quotient, at most `count` |
//! | B3 | plus one |
//!
//! All steps read and write variables of this hit alone, so no other thread and no signal handler interferes. A restart
//! begins with B1, from the same value.
//!
//! Does not: look anything up in a table.

use trapline_code::{Builder, Compare, Compute, Target, Unary, Value, Var};

use crate::filter::Sort;

/// Lower bound of cell 1, width of a cell, number of cells.
type Linear = (i64, u64, u32);

/// Appends the operations. `unsigned`: whether the value's type has no sign.
pub(crate) fn bucket(builder: &mut Builder, value: Value, unsigned: bool, sort: Sort) -> Value {
    match sort {
        Sort::Each | Sort::Text(_) | Sort::Sums => value,
        Sort::Log2 => Value::Var(log2(builder, value, unsigned)),
        Sort::Linear { min, step, count } => {
            Value::Var(linear(builder, (value, unsigned), (min, step.max(1), count)))
        }
    }
}

fn log2(builder: &mut Builder, value: Value, unsigned: bool) -> Var {
    let (cell, end) = (builder.var(), builder.label());
    if !unsigned {
        builder.set(cell, Value::Number(0));
        builder.branch(Compare::Less, value, Value::Number(0), Target::Label(end));
    }
    builder.set_unary(cell, Unary::Bits, value);
    builder.set_computed(cell, Compute::Add, Value::Var(cell), Value::Number(1));
    builder.bind(end);
    cell
}

fn linear(builder: &mut Builder, (value, unsigned): (Value, bool), (min, step, count): Linear) -> Var {
    let (below, within, end) = (builder.label(), builder.label(), builder.label());
    let least = builder.number(min.cast_unsigned());
    // No unsigned value is below a minimum that is not above 0.
    let may_be_below = !unsigned || min > 0;
    if may_be_below {
        let when = if unsigned { Compare::Below } else { Compare::Less };
        builder.branch(when, value, least, Target::Label(below));
    }
    let over = if min == 0 { value } else { builder.compute(Compute::Subtract, value, least) };
    let cell = quotient(builder, over, step);
    builder.branch(Compare::Below, Value::Var(cell), Value::Number(count.into()), Target::Label(within));
    builder.set(cell, Value::Number(count.into()));
    builder.bind(within);
    builder.set_computed(cell, Compute::Add, Value::Var(cell), Value::Number(1));
    if may_be_below {
        builder.jump(Target::Label(end));
        builder.bind(below);
        builder.set(cell, Value::Number(0));
        builder.bind(end);
    }
    cell
}

/// `of / step`, unsigned, in a variable of its own.
fn quotient(builder: &mut Builder, of: Value, step: u64) -> Var {
    let quotient = builder.var();
    if step.is_power_of_two() {
        let by = Value::Number(step.trailing_zeros().into());
        builder.set_computed(quotient, Compute::ShiftRight, of, by);
    } else if step <= i64::MAX as u64 {
        builder.set_computed(quotient, Compute::Divide, of, Value::Number(step));
    } else {
        // No more than one such step fits into 64 bits.
        let end = builder.label();
        builder.set(quotient, Value::Number(0));
        builder.branch(Compare::Below, of, Value::Number(step), Target::Label(end));
        builder.set(quotient, Value::Number(1));
        builder.bind(end);
    }
    quotient
}

#[cfg(test)]
mod tests {
    use trapline_code::{Builder, interpret};

    use super::bucket;
    use crate::filter::{GroupBy, Int, Known, Sort, Tally, Tree};

    #[test]
    fn flt_1_buckets_are_those_of_the_reader() {
        let numbers = [0, 1, 2, 3, 9, 10, 11, 0xffff_ffff, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX];
        let linear = |(min, step, count)| Sort::Linear { min, step, count };
        let mut sorts = vec![Sort::Log2, Sort::Each];
        for min in [0, 1, 10, -7, 1 << 40, i64::MIN, i64::MAX] {
            sorts.extend([0, 1, 3, 8, 1 << 40, 1 << 63, u64::MAX].map(|step| linear((min, step, 7))));
        }
        for (sort, signed) in sorts.into_iter().flat_map(|sort| [(sort, true), (sort, false)]) {
            let value = Tree::Known(Known::Argument(0, Int { bits: 64, signed }));
            let tally = Tally { value, sort, group_by: GroupBy::Nothing };
            let mut builder = Builder::new();
            let input = builder.input(0);
            let result = bucket(&mut builder, input, !signed, sort);
            let program = builder.finish(Some(result)).expect("sound");
            for number in numbers {
                let bucket = interpret(&program, &[number]).result;
                assert_eq!(bucket, Some(tally.key(number)), "{number:#x} {sort:?} {signed}\n{program}");
            }
        }
    }
}
