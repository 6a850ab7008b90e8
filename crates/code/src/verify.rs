//! Whether a program is sound: it ends, reads nothing that was not written, and stores only where it may.
//!
//! In: a program. Out: nothing, or the first rule that it breaks ([`Unsound`]). Invariants: CODE-2, CODE-3, CODE-5
//! (with `memory`). Branches lead forward, so one pass sees every path: what is written at a label is what is written at
//! all branches to it. A walk leads back to its begin; but a path that goes back has written at least what was written
//! there.

mod memory;

use crate::compute::{Compute, Unary};
use crate::operand::{Label, Memory, Operand, Place, Target, Var, Walk};
use crate::program::{MAX_OPS, Op, Program};
use crate::unsound::Unsound;

/// What is known where an operation stands, on every path to it.
#[derive(Clone, Debug)]
struct State {
    /// The variables that are written.
    written: Vec<bool>,
    /// By the variables of their ends: the walks that may be behind their last entry.
    spent: Vec<bool>,
    /// The word that is claimed.
    claimed: Option<Place>,
}

/// `None` where no path leads.
type Flow = Option<State>;

/// Checks all rules.
pub(crate) fn verify(program: &Program) -> Result<(), Unsound> {
    if program.ops.len() > MAX_OPS {
        return Err(Unsound::Long(program.ops.len()));
    }
    let kinds = memory::check(program)?;
    let start = State {
        written: vec![false; program.vars.into()],
        spent: vec![false; program.vars.into()],
        claimed: None,
    };
    let mut paths = Paths {
        labels: vec![None; program.labels.into()],
        bound: vec![false; program.labels.into()],
        end: None,
    };
    let mut now: Flow = Some(start);
    let mut begun: Option<(Walk, Flow)> = None;
    for (nth, op) in program.ops.iter().enumerate() {
        is_written(&now, op.read(), nth)?;
        shape(program, nth)?;
        if let (Op::Begin(walk), Some(_)) = (op, &now) {
            begun = Some((*walk, now.clone()));
        }
        if let (Op::Next(walk), Some(now)) = (op, &mut now) {
            walks_on(now, *walk, begun.as_ref(), nth)?;
        }
        claims(op, &mut now, &kinds, nth)?;
        for target in op.targets() {
            paths.leads(target, &now, op, nth)?;
        }
        match op {
            Op::Jump { .. } => now = None,
            Op::Bind { label } => paths.bind(*label, &mut now, nth)?,
            _ => {}
        }
        if let (Some(now), Some(to)) = (&mut now, op.written()) {
            now.written[to.index()] = true;
        }
    }
    for (nth, op) in program.ops.iter().enumerate() {
        for target in op.targets() {
            if let Target::Label(label) = target
                && !paths.bound[usize::from(label.0)]
            {
                return Err(Unsound::Backward { op: nth, label: label.0 });
            }
        }
    }
    let end = program.ops.len();
    if now.as_ref().is_some_and(|now| now.claimed.is_some()) {
        return Err(Unsound::Claim(end));
    }
    meet(&mut paths.end, &now, end)?;
    is_written(&paths.end, program.read_at_end(), end)
}

/// What is known at labels and at the end.
#[derive(Debug)]
struct Paths {
    labels: Vec<Flow>,
    bound: Vec<bool>,
    end: Flow,
}

impl Paths {
    fn leads(&mut self, target: Target, now: &Flow, op: &Op, nth: usize) -> Result<(), Unsound> {
        let mut now = now.clone();
        if let (Some(now), &Op::Claim { place, .. }) = (&mut now, op) {
            now.claimed = Some(place);
        }
        match target {
            Target::Label(label) if self.bound[usize::from(label.0)] => {
                Err(Unsound::Backward { op: nth, label: label.0 })
            }
            Target::Label(label) => meet(&mut self.labels[usize::from(label.0)], &now, nth),
            Target::Outcome(_) if now.as_ref().is_some_and(|now| now.claimed.is_some()) => {
                Err(Unsound::Claim(nth))
            }
            Target::Outcome(0) => meet(&mut self.end, &now, nth),
            Target::Outcome(_) => Ok(()),
        }
    }
    fn bind(&mut self, label: Label, now: &mut Flow, nth: usize) -> Result<(), Unsound> {
        if core::mem::replace(&mut self.bound[usize::from(label.0)], true) {
            return Err(Unsound::BoundTwice { op: nth, label: label.0 });
        }
        meet(now, &self.labels[usize::from(label.0)], nth)
    }
}

/// Where two paths come together, only what both have written is written.
fn meet(here: &mut Flow, other: &Flow, op: usize) -> Result<(), Unsound> {
    match (here.as_mut(), other) {
        (Some(here), Some(other)) => {
            if here.claimed != other.claimed {
                return Err(Unsound::Claim(op));
            }
            here.written.iter_mut().zip(&other.written).for_each(|(a, b)| *a &= b);
            here.spent.iter_mut().zip(&other.spent).for_each(|(a, b)| *a |= b);
        }
        (None, _) => here.clone_from(other),
        (_, None) => {}
    }
    Ok(())
}

fn is_written(now: &Flow, read: impl Iterator<Item = Var>, op: usize) -> Result<(), Unsound> {
    let Some(now) = now else { return Ok(()) };
    for var in read {
        if !now.written.get(var.index()).is_some_and(|written| *written) {
            return Err(Unsound::Unwritten { op, var: var.index() });
        }
    }
    Ok(())
}

/// A step to the next entry: its walk was begun last, has entries left, and knows at least as much as at its begin, to
/// which it may go back.
fn walks_on(now: &mut State, walk: Walk, begun: Option<&(Walk, Flow)>, op: usize) -> Result<(), Unsound> {
    let Some((begun, Some(begin))) = begun else { return Err(Unsound::Walk(op)) };
    let forgets = |(then, now): (&bool, &bool)| *then && !now;
    let is_spent = core::mem::replace(&mut now.spent[walk.end.index()], true);
    if *begun != walk
        || is_spent
        || now.claimed.is_some()
        || begin.written.iter().zip(&now.written).any(forgets)
    {
        return Err(Unsound::Walk(op));
    }
    Ok(())
}

/// Plain stores to tables that other threads change stand between a claim and its end, and nothing is left claimed.
fn claims(op: &Op, now: &mut Flow, kinds: &[Option<Memory>], nth: usize) -> Result<(), Unsound> {
    let Some(now) = now else { return Ok(()) };
    let is_shared = |place: Place| kinds[place.base.index()] == Some(Memory::Shared);
    match *op {
        Op::Store { place, .. } | Op::StoreByte { place, .. }
            if is_shared(place) && now.claimed.is_none() =>
        {
            Err(Unsound::Claim(nth))
        }
        Op::Claim { .. } | Op::Begin(_) if now.claimed.is_some() => Err(Unsound::Claim(nth)),
        Op::Publish { place, .. } => match now.claimed {
            None if is_shared(place) => Err(Unsound::Claim(nth)),
            None => Ok(()),
            Some(claimed) => {
                now.claimed = (claimed != place).then_some(claimed);
                Ok(())
            }
        },
        _ => Ok(()),
    }
}

/// Whether an operation's operands have the form that it demands.
fn shape(program: &Program, nth: usize) -> Result<(), Unsound> {
    match program.ops[nth] {
        Op::Unary { op: Unary::Extend(width), .. } if !matches!(width.bits, 8 | 16 | 32 | 64) => {
            Err(Unsound::Bits { op: nth, bits: width.bits })
        }
        Op::Compute { op, right, .. } if op.shifts() => match right {
            Operand::Number(0..=63) => Ok(()),
            _ => Err(Unsound::Shift(nth)),
        },
        Op::Compute { op, right, .. } if op.divides() => divisor(program, right, nth),
        Op::Claim { place, .. } | Op::Raise { place, .. } if place.index.is_some() => {
            Err(Unsound::Claim(nth))
        }
        Op::Bound(walk, _) if walk.stride == 0 || walk.count == 0 => Err(Unsound::Walk(nth)),
        Op::Bound(walk, Some(reach)) if !is_reach(program, walk, reach) => Err(Unsound::Walk(nth)),
        op => match op.place() {
            Some(Place { index: Some((_, 64..)), .. }) => Err(Unsound::Shift(nth)),
            _ => Ok(()),
        },
    }
}

/// A reach is what one operation leaves of a number: 0 or the offset of another entry of the walk.
fn is_reach(program: &Program, walk: Walk, reach: Var) -> bool {
    let mut writes = program.ops.iter().filter(|op| op.written() == Some(reach));
    let is_masked = matches!(
        (writes.next(), writes.next()),
        (Some(Op::Compute { op: Compute::And, right: Operand::Number(mask), .. }), None)
            if *mask == walk.bytes() - i32::from(walk.stride)
    );
    is_masked && walk.stride.is_power_of_two() && walk.count.is_power_of_two()
}

/// A divisor is a number, or a variable that one operation writes, and this is a number.
fn divisor(program: &Program, right: Operand, nth: usize) -> Result<(), Unsound> {
    let is_sound = match right {
        Operand::Number(number) => number >= 1,
        Operand::Var(var) => {
            let mut writes = program.ops.iter().filter(|op| op.written() == Some(var));
            matches!((writes.next(), writes.next()), (Some(Op::Number { value, .. }), None) if value.cast_signed() >= 1)
        }
    };
    if is_sound { Ok(()) } else { Err(Unsound::Divisor(nth)) }
}

#[cfg(test)]
mod tests {
    use super::Unsound;
    use crate::{Builder, Compare, Compute, MAX_OPS, Target, Unary, Value, Width};

    /// What `make` builds breaks a rule. It may return the program's result.
    fn broken(make: impl FnOnce(&mut Builder) -> Option<Value>) -> Unsound {
        let mut builder = Builder::new();
        let result = make(&mut builder);
        builder.finish(result).expect_err("a rule is broken")
    }

    #[test]
    fn code_3_a_variable_must_be_written_on_every_path() {
        let on_one_path = |builder: &mut Builder| {
            let (var, skip) = (builder.var(), builder.label());
            let input = builder.input(0);
            builder.branch(Compare::Equal, input, Value::Number(0), Target::Label(skip));
            builder.set(var, Value::Number(1));
            builder.bind(skip);
            Some(Value::Var(var))
        };
        assert_eq!(broken(on_one_path), Unsound::Unwritten { op: 4, var: 0 });
        let never = |builder: &mut Builder| {
            let var = builder.var();
            Some(builder.unary(Unary::Negate, Value::Var(var)))
        };
        assert_eq!(broken(never), Unsound::Unwritten { op: 0, var: 0 });
    }

    #[test]
    fn code_2_branches_lead_forward_and_programs_are_short() {
        let backward = |builder: &mut Builder| {
            let label = builder.label();
            builder.bind(label);
            builder.jump(Target::Label(label));
            None
        };
        assert_eq!(broken(backward), Unsound::Backward { op: 1, label: 0 });
        let nowhere = |builder: &mut Builder| {
            let label = builder.label();
            builder.jump(Target::Label(label));
            None
        };
        assert_eq!(broken(nowhere), Unsound::Backward { op: 0, label: 0 });
        let twice = |builder: &mut Builder| {
            let label = builder.label();
            (0..2).for_each(|_| builder.bind(label));
            None
        };
        assert_eq!(broken(twice), Unsound::BoundTwice { op: 1, label: 0 });
        let long = |builder: &mut Builder| {
            (0..=MAX_OPS).for_each(|_| _ = builder.input(0));
            None
        };
        assert_eq!(broken(long), Unsound::Long(MAX_OPS + 1));
    }

    #[test]
    fn operands_have_the_form_that_back_ends_expect() {
        let compute = |op, right| {
            broken(|builder: &mut Builder| {
                let input = builder.input(0);
                Some(builder.compute(op, input, right))
            })
        };
        assert_eq!(compute(Compute::ShiftLeft, Value::Number(64)), Unsound::Shift(1));
        for divisor in [0, u64::MAX] {
            assert_eq!(compute(Compute::Divide, Value::Number(divisor)), Unsound::Divisor(1));
        }
        assert_eq!(compute(Compute::Remainder, Value::Number(1 << 63)), Unsound::Divisor(2));
        let odd = |builder: &mut Builder| {
            let input = builder.input(0);
            Some(builder.unary(Unary::Extend(Width { bits: 24, signed: true }), input))
        };
        assert_eq!(broken(odd), Unsound::Bits { op: 1, bits: 24 });
    }
}
