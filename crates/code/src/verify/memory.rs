//! Where a program may load and store, and how far it may walk.
//!
//! In: a program. Out: nothing, or the first rule that it breaks. Invariant: CODE-5.
//!
//! | rule | why |
//! |---|---|
//! | an address begins at a pointer, and a variable leads to one kind of memory | the other rules know what is stored to |
//! | the commit is to this CPU's table | no other CPU writes it |
//! | no other store has the commit's base and offset | it counts once |
//! | in a sequence's body, stores are to this CPU's table | a sequence that begins again finds its inputs |
//! | in a sequence's body, nothing is atomic but looks | the same |
//! | elsewhere nothing is stored to this CPU's table | only restartable sequences may |
//! | atomic operations are about tables that others change; own words may be published | what they cost has a reason |
//! | plain stores to those stand between a claim and its end | others see whole rows |
//! | a walk's entry and end change by its steps alone | it ends |
//!
//! A body may have several parts; each is checked by itself. Only the last one commits.
//!
//! Does not: know how long a table is; that an index is within it is the program's to see to. Neither that no part
//! before a commit stores to its word.

use crate::operand::{Memory, Operand, Place, Var, Walk};
use crate::program::{Commit, MAX_STEPS, Op, Program};
use crate::unsound::Unsound;

/// Checks the rules.
///
/// Returns what each variable leads to; `None` for numbers.
pub(super) fn check(program: &Program) -> Result<Vec<Option<Memory>>, Unsound> {
    let kinds = kinds(program)?;
    let kind = |place: Place| kinds[place.base.index()];
    for (nth, op) in program.ops.iter().enumerate() {
        let Some(place) = op.place() else { continue };
        let memory = kind(place).ok_or(Unsound::NoPointer(nth))?;
        let is_plain = matches!(op, Op::Store { .. } | Op::StoreByte { .. });
        let is_allowed = match (memory, program.is_sequence) {
            // A look changes nothing.
            (Memory::Mine, true) if matches!(op, Op::Look { .. }) => true,
            (Memory::Own, false) if matches!(op, Op::Publish { .. }) => true,
            _ if op.is_atomic() => memory == Memory::Shared && !program.is_sequence,
            _ if !is_plain => true,
            (Memory::Mine, true) => program.commit.is_none_or(|commit| !is_same(place, commit.place)),
            // Whether a shared word is claimed here, the paths say.
            (Memory::Own | Memory::Shared, false) => true,
            _ => false,
        };
        if !is_allowed {
            return Err(Unsound::Store(nth));
        }
    }
    if let Some(commit) = program.commit {
        let is_short = !matches!(commit.value, Operand::Number(number) if !Commit::holds(number.into()));
        if kind(commit.place) != Some(Memory::Mine) || !is_short {
            return Err(Unsound::Commit);
        }
    }
    walks(program)?;
    Ok(kinds)
}

/// Whether two words surely overlap.
fn is_same(one: Place, other: Place) -> bool {
    (one.base, one.index) == (other.base, other.index) && one.offset.abs_diff(other.offset) < 8
}

/// What each variable leads to; `None` for numbers.
fn kinds(program: &Program) -> Result<Vec<Option<Memory>>, Unsound> {
    let mut kinds: Vec<Option<Option<Memory>>> = vec![None; program.vars.into()];
    for (nth, op) in program.ops.iter().enumerate() {
        let Some(to) = op.written() else { continue };
        let of = |var: Var| kinds[var.index()].flatten();
        let kind = match *op {
            Op::Pointer { memory, .. } => Some(memory),
            Op::Move { from, .. } => of(from),
            Op::Address { place, .. } => of(place.base),
            Op::Bound(Walk { entry, .. }, _) | Op::Next(Walk { entry, .. }) => of(entry),
            _ => None,
        };
        if kinds[to.index()].replace(kind).is_some_and(|before| before != kind) {
            return Err(Unsound::Mixed { op: nth, var: to.index() });
        }
    }
    Ok(kinds.into_iter().map(Option::flatten).collect())
}

/// Walks change their variables by their steps alone, and are not too long.
fn walks(program: &Program) -> Result<(), Unsound> {
    let mut steps = 0;
    for (nth, op) in program.ops.iter().enumerate() {
        let Op::Bound(walk, _) = *op else { continue };
        let is_step = |op: &Op| *op == Op::Next(walk);
        let last = program.ops.iter().rposition(is_step).unwrap_or(nth);
        let others = |var: Var, from: usize, to: usize| {
            let mut ops = program.ops.iter().enumerate().take(to).skip(from);
            ops.any(|(at, op)| at != nth && !is_step(op) && op.written() == Some(var))
        };
        if others(walk.entry, nth, last) || others(walk.end, 0, program.ops.len()) || walk.entry == walk.end {
            return Err(Unsound::Walk(nth));
        }
        steps += (last - nth) * usize::from(walk.count);
    }
    // A walk without a bound has an end that nothing has written, or that something else has.
    let bound = |walk: Walk| program.ops.iter().any(|op| matches!(op, Op::Bound(bound, _) if *bound == walk));
    for (nth, op) in program.ops.iter().enumerate() {
        if let Op::Begin(walk) | Op::Next(walk) = *op
            && !bound(walk)
        {
            return Err(Unsound::Walk(nth));
        }
    }
    if steps > MAX_STEPS { Err(Unsound::Steps(steps)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use crate::{Builder, Compare, Memory, Place, Target, Unsound, Value};

    /// What `make` builds, as the body of a sequence if it returns a place to commit to.
    fn made(make: impl FnOnce(&mut Builder) -> Option<Place>) -> Option<Unsound> {
        let mut builder = Builder::new();
        let program = match make(&mut builder) {
            Some(place) => builder.commit(place, Value::Number(1)),
            None => builder.finish(None),
        };
        program.err()
    }

    #[test]
    fn code_5_a_commit_is_the_only_store_to_its_word() {
        let commit = |memory, store: Option<i32>| {
            made(|builder| {
                let table = builder.pointer(0, memory);
                if let Some(offset) = store {
                    builder.store(Place::at(table, offset), Value::Number(1));
                }
                Some(Place::at(table, 8))
            })
        };
        assert_eq!((commit(Memory::Mine, None), commit(Memory::Mine, Some(0))), (None, None));
        assert_eq!(
            (commit(Memory::Shared, None), commit(Memory::Own, None)),
            (Some(Unsound::Commit), Some(Unsound::Commit))
        );
        assert_eq!(
            (commit(Memory::Mine, Some(8)), commit(Memory::Mine, Some(1))),
            (Some(Unsound::Store(1)), Some(Unsound::Store(1)))
        );
        let number = made(|builder| {
            let number = builder.input(0);
            Some(Place::at(builder.in_var(number), 0))
        });
        assert_eq!(number, Some(Unsound::Commit));
    }

    #[test]
    fn code_5_each_kind_of_memory_is_written_as_it_allows() {
        let stored = |first: Memory, other: Option<Memory>| {
            made(|builder| {
                let table = builder.pointer(0, first);
                let to = other.map(|other| builder.pointer(1, other));
                builder.store(Place::at(to.unwrap_or(table), 0), Value::Number(1));
                to.map(|_| Place::at(table, 8))
            })
        };
        assert_eq!((stored(Memory::Own, None), stored(Memory::Mine, Some(Memory::Mine))), (None, None));
        assert_eq!(stored(Memory::Mine, None), Some(Unsound::Store(1)), "outside of a sequence");
        assert_eq!(
            stored(Memory::Mine, Some(Memory::Own)),
            Some(Unsound::Store(2)),
            "an abort would not undo it"
        );
        assert_eq!(stored(Memory::Shared, None), Some(Unsound::Claim(1)), "nothing is claimed");
        let atomic = |memory, commits: bool| {
            made(|builder| {
                let table = builder.pointer(0, memory);
                builder.add(Place::at(table, 0), Value::Number(1));
                commits.then(|| Place::at(table, 8))
            })
        };
        assert_eq!(atomic(Memory::Shared, false), None);
        assert_eq!(
            (atomic(Memory::Own, false), atomic(Memory::Mine, true)),
            (Some(Unsound::Store(1)), Some(Unsound::Store(1)))
        );
        let unknown = made(|builder| {
            let number = builder.input(0);
            let place = Place::at(builder.in_var(number), 0);
            builder.load(place);
            None
        });
        assert_eq!(unknown, Some(Unsound::NoPointer(1)));
        let mixed = made(|builder| {
            let table = builder.pointer(0, Memory::Shared);
            let own = builder.pointer(1, Memory::Own);
            builder.set_address(own, Place::at(table, 0));
            None
        });
        assert_eq!(mixed, Some(Unsound::Mixed { op: 2, var: 1 }));
    }

    #[test]
    fn code_5_a_part_stores_as_the_body_of_a_sequence_may() {
        let part = |memory, is_atomic: bool| {
            let mut builder = Builder::new();
            let table = builder.pointer(0, memory);
            match is_atomic {
                true => builder.add(Place::at(table, 0), Value::Number(1)),
                false => builder.store(Place::at(table, 0), Value::Number(1)),
            }
            builder.hand_on(&[table]).err()
        };
        assert_eq!(part(Memory::Mine, false), None);
        assert_eq!(part(Memory::Own, false), Some(Unsound::Store(1)), "an abort would not undo it");
        assert_eq!(part(Memory::Shared, true), Some(Unsound::Store(1)));
        let mut builder = Builder::new();
        let never = builder.var();
        assert_eq!(builder.hand_on(&[never]).err(), Some(Unsound::Unwritten { op: 0, var: 0 }));
    }

    #[test]
    fn code_5_what_is_claimed_is_published() {
        let claimed = |publishes: bool, stores_outside: bool| {
            made(|builder| {
                let table = builder.pointer(0, Memory::Shared);
                let (word, taken, end) = (Place::at(table, 8), builder.label(), builder.label());
                builder.claim(word, Value::Number(0), Target::Label(taken));
                if stores_outside {
                    builder.store(Place::at(table, 0), Value::Number(1));
                }
                builder.jump(Target::Label(end));
                builder.bind(taken);
                builder.store(Place::at(table, 0), Value::Number(1));
                if publishes {
                    builder.publish(word, Value::Number(1));
                }
                builder.bind(end);
                None
            })
        };
        assert_eq!(claimed(true, false), None);
        assert_eq!(claimed(false, false), Some(Unsound::Claim(5)), "the paths differ");
        assert_eq!(claimed(true, true), Some(Unsound::Claim(2)));
        let left = made(|builder| {
            let table = builder.pointer(0, Memory::Shared);
            builder.claim(Place::at(table, 8), Value::Number(0), Target::Outcome(1));
            None
        });
        assert_eq!(left, Some(Unsound::Claim(1)));
        let other = made(|builder| {
            let table = builder.pointer(0, Memory::Shared);
            builder.publish(Place::at(table, 8), Value::Number(1));
            None
        });
        assert_eq!(other, Some(Unsound::Claim(1)));
    }

    #[test]
    fn code_5_a_claim_ends_with_its_own_word() {
        let published = |words: &[i32]| {
            made(|builder| {
                let table = builder.pointer(0, Memory::Shared);
                let (taken, end) = (builder.label(), builder.label());
                builder.claim(Place::at(table, 8), Value::Number(0), Target::Label(taken));
                builder.jump(Target::Label(end));
                builder.bind(taken);
                words.iter().for_each(|at| builder.publish(Place::at(table, *at), Value::Number(0)));
                builder.bind(end);
                None
            })
        };
        assert_eq!(published(&[16, 0, 8]), None, "others may come before");
        assert_eq!(published(&[16]), Some(Unsound::Claim(5)), "the word stays claimed");
        assert_eq!(published(&[8, 16]), Some(Unsound::Claim(5)), "nothing is claimed any more");
    }

    #[test]
    fn code_5_a_sequence_may_look() {
        let looked = |memory, commits: bool| {
            made(|builder| {
                let table = builder.pointer(0, memory);
                let end = builder.label();
                builder.look(Place::at(table, 8), Target::Label(end), Target::Label(end));
                builder.bind(end);
                commits.then(|| Place::at(table, 8))
            })
        };
        assert_eq!((looked(Memory::Mine, true), looked(Memory::Shared, false)), (None, None));
        assert_eq!(
            looked(Memory::Mine, false),
            Some(Unsound::Store(1)),
            "nothing orders what is not committed"
        );
    }

    #[test]
    fn code_2_walks_end() {
        let walk = |change: fn(&mut Builder, crate::Walk, crate::Var)| {
            made(|builder| {
                let own = builder.pointer(0, Memory::Own);
                let entry = builder.var();
                builder.set_address(entry, Place::at(own, 0));
                let walk = builder.walk(entry, 8, 4);
                builder.begin(walk);
                change(builder, walk, own);
                None
            })
        };
        assert_eq!(walk(|builder, walk, _| builder.next(walk)), None);
        let changed = walk(|builder, walk, own| {
            builder.set_address(walk.entry, Place::at(own, 0));
            builder.next(walk);
        });
        assert_eq!(changed, Some(Unsound::Walk(2)), "it would begin anew for ever");
        let end = walk(|builder, walk, own| {
            builder.set_address(walk.end, Place::at(own, 0));
            builder.next(walk);
        });
        assert_eq!(end, Some(Unsound::Walk(2)));
        let behind = walk(|builder, walk, _| {
            builder.next(walk);
            builder.next(walk);
        });
        assert_eq!(behind, Some(Unsound::Walk(5)), "it would go on behind its end");
        let nested = walk(|builder, walk, own| {
            let entry = builder.var();
            builder.set_address(entry, Place::at(own, 0));
            let inner = builder.walk(entry, 8, 4);
            builder.begin(inner);
            builder.next(inner);
            builder.next(walk);
        });
        assert_eq!(nested, Some(Unsound::Walk(8)));
        let forgets = walk(|builder, walk, own| {
            // The second begin knows a variable that a way around it has not written.
            let (around, var) = (builder.label(), builder.var());
            builder.branch_word(Compare::Equal, Place::at(own, 0), Value::Number(0), Target::Label(around));
            builder.set(var, Value::Number(1));
            builder.begin(walk);
            builder.bind(around);
            builder.next(walk);
        });
        assert_eq!(forgets, Some(Unsound::Walk(8)));
        let long = walk(|builder, walk, own| {
            builder.next(walk);
            let entry = builder.var();
            builder.set_address(entry, Place::at(own, 0));
            let long = builder.walk(entry, 1, u16::MAX);
            builder.begin(long);
            builder.next(long);
        });
        assert!(matches!(long, Some(Unsound::Steps(_))), "{long:?}");
        let unbounded = walk(|builder, walk, _| builder.next(crate::Walk { count: 5, ..walk }));
        assert_eq!(unbounded, Some(Unsound::Walk(4)));
    }
}
