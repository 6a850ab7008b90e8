//! Calls by which a program changes a fact that patches rely on, and how a stub recognizes them.
//!
//! In: what is known of a call's number and of its first two arguments. Out: the facts that it may change; where
//! it can be held; for a stub, the comparisons in their order. Does not: emit code: each processor's stub
//! implements [`Tests`]. Does not know which patches rely on a fact.

use trapline_insn::origin::Origin;
use trapline_record::Svma;
use trapline_record::control::fact;

use crate::request::Hold;

const SIGILL: u32 = 4;
const SIGTRAP: u32 = 5;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;
const PR_SET_SECCOMP: u32 = 22;
const PR_SET_TSC: u32 = 26;
const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
/// Arguments of `prctl`: reading the clock is taken away, and strict mode of seccomp.
const PR_TSC_SIGSEGV: u32 = 2;
const MODE_STRICT: u32 = 1;
/// The program gets calls as signals: those of all code but one range, or of one range (Linux 6.17).
const DISPATCH_ON: u32 = 1;
const DISPATCH_INSIDE: u32 = 2;
/// Operations of `seccomp` that restrict the thread: strict mode, and a filter.
const SET_STRICT: u32 = 0;
const SET_FILTER: u32 = 1;

/// Numbers of the system calls that change facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) rt_sigaction: u32,
    pub(crate) prctl: u32,
    pub(crate) seccomp: u32,
}

/// A way in which a call changes facts.
struct Change {
    /// Its first argument is one of these.
    first: &'static [u32],
    second: Second,
    facts: u64,
}

/// The second argument of a call that changes a fact.
#[derive(Clone, Copy)]
enum Second {
    Any,
    Is(u32),
    /// It points to an action with a handler.
    Action,
}

const SIGACTION: &[Change] = &[
    Change { first: &[SIGTRAP, SIGILL], second: Second::Action, facts: fact::TRAPS },
    Change { first: &[SIGSEGV, SIGBUS], second: Second::Action, facts: fact::FAULTS },
];
/// In strict mode, reading the clock is forbidden too.
const PRCTL: &[Change] = &[
    Change { first: &[PR_SET_TSC], second: Second::Is(PR_TSC_SIGSEGV), facts: fact::CLOCK },
    Change { first: &[PR_SET_SECCOMP], second: Second::Is(MODE_STRICT), facts: fact::FILTER | fact::CLOCK },
    Change { first: &[PR_SET_SECCOMP], second: Second::Any, facts: fact::FILTER },
    Change { first: &[PR_SET_SYSCALL_USER_DISPATCH], second: Second::Is(DISPATCH_ON), facts: fact::FILTER },
    Change {
        first: &[PR_SET_SYSCALL_USER_DISPATCH],
        second: Second::Is(DISPATCH_INSIDE),
        facts: fact::FILTER,
    },
];
const SECCOMP: &[Change] = &[
    Change { first: &[SET_STRICT], second: Second::Any, facts: fact::FILTER | fact::CLOCK },
    Change { first: &[SET_FILTER], second: Second::Any, facts: fact::FILTER },
];

/// Whether a word is this number, if that is known before the code runs. What is not known counts as what
/// changes the fact.
const fn known(word: Origin, number: u32) -> Option<bool> {
    match word {
        Origin::Constant(constant) => Some(constant == number),
        Origin::Unknown => Some(true),
        Origin::Register(_) | Origin::Memory { .. } => None,
    }
}

fn may_be(word: Origin, number: u32) -> bool {
    known(word, number) != Some(false)
}

impl Change {
    fn may_be(&self, first: Origin, second: Origin) -> bool {
        self.first.iter().any(|number| may_be(first, *number))
            && match self.second {
                Second::Any => true,
                Second::Is(number) => may_be(second, number),
                Second::Action => second != Origin::Constant(0),
            }
    }
}

impl Numbers {
    fn changes(self) -> [(u32, &'static [Change]); 3] {
        [(self.seccomp, SECCOMP), (self.prctl, PRCTL), (self.rt_sigaction, SIGACTION)]
    }
    /// Facts that a system call may change. None if the number or the first argument is not known: most calls
    /// change nothing.
    pub(crate) fn may_change(self, [number, first, second]: [Origin; 3]) -> u64 {
        if number == Origin::Unknown || first == Origin::Unknown {
            return 0;
        }
        let changes = self.changes().into_iter().filter(|(of, _)| may_be(number, *of));
        let changes = changes.flat_map(|(_, changes)| changes).filter(|one| one.may_be(first, second));
        changes.fold(0, |all, change| all | change.facts)
    }
    /// Of the places before a system call, nearest first, each with the origins of number and arguments there:
    /// the nearest at which enough is known, if possible with the second argument. What is constant over the
    /// whole stretch is constant from there too.
    pub(crate) fn nearest(
        self,
        known: &[(Svma, [Origin; 3])],
        fits: impl Fn(Svma) -> bool,
    ) -> Option<(Svma, [Origin; 3])> {
        let (_, widest) = *known.last()?;
        let of_both = |near: [Origin; 3]| {
            core::array::from_fn(|n| if let Origin::Constant(_) = widest[n] { widest[n] } else { near[n] })
        };
        let all = known.iter().map(|&(at, near)| (at, of_both(near)));
        let mut all = all.filter(|&(at, words)| self.may_change(words) != 0 && fits(at));
        all.clone().find(|(_, words)| words[2] != Origin::Unknown).or_else(|| all.next())
    }
}

/// How a stub compares. Words are those that are not known before it runs.
pub(crate) trait Tests {
    /// A jump that is bound later.
    type Jump;
    /// Jumps if the low 32 bits of a word are this number, or if they are not.
    fn jump_if(&mut self, word: Origin, number: u32, is: bool) -> Self::Jump;
    /// Jumps if there is no action. With `loads` it jumps also if the action has no handler, and reads it
    /// where the function will load it anyway; without, any action counts as a handler.
    fn unless_handler(&mut self, action: Origin, loads: bool, jumps: &mut Vec<Self::Jump>);
    /// Notes facts, and jumps.
    fn changes(&mut self, facts: u64) -> Self::Jump;
    fn jump(&mut self) -> Self::Jump;
    fn bind(&mut self, jump: Self::Jump);
}

/// Emits what decides which facts a thread is about to change. `arguments`: the first three of a C function.
/// Returns the jumps to where the thread waits for its facts, and to where it goes on.
pub(crate) fn decide<T: Tests>(
    tests: &mut T,
    hold: Hold,
    numbers: Numbers,
    arguments: [Origin; 3],
) -> (Vec<T::Jump>, Vec<T::Jump>) {
    let [one, two, three] = arguments;
    let (number, words) = match hold {
        Hold::Sigaction | Hold::Prctl => (None, (one, two)),
        Hold::Syscall => (Some(one), (two, three)),
        Hold::Call([number, first, second]) => (Some(number), (first, second)),
        // It changes no fact (`stub::load`).
        Hold::Load(_) => (Some(Origin::Constant(u32::MAX)), (one, two)),
    };
    let (mut waits, mut passes) = (Vec::new(), Vec::new());
    for (of, changes) in numbers.changes() {
        let is_it = match (hold, number) {
            (Hold::Sigaction, _) => Some(of == numbers.rt_sigaction),
            (Hold::Prctl, _) => Some(of == numbers.prctl),
            (_, Some(number)) => known(number, of),
            (_, None) => Some(false),
        };
        if is_it == Some(false) {
            continue;
        }
        let other = number.filter(|_| is_it.is_none()).map(|number| tests.jump_if(number, of, false));
        for change in changes.iter().filter(|change| change.may_be(words.0, words.1)) {
            waits.push(change.test(tests, words, hold == Hold::Sigaction));
        }
        if let Some(other) = other {
            passes.push(tests.jump());
            tests.bind(other);
        }
    }
    passes.push(tests.jump());
    (waits, passes)
}

impl Change {
    /// Emits a jump that is taken if a call with these arguments changes the facts. Runs on if it does not.
    fn test<T: Tests>(&self, tests: &mut T, (first, second): (Origin, Origin), loads: bool) -> T::Jump {
        let mut others = Vec::new();
        if let ([before @ .., last], None) = (self.first, known(first, self.first[0])) {
            let found: Vec<_> = before.iter().map(|number| tests.jump_if(first, *number, true)).collect();
            others.push(tests.jump_if(first, *last, false));
            found.into_iter().for_each(|jump| tests.bind(jump));
        }
        match (self.second, second) {
            (_, Origin::Constant(_) | Origin::Unknown) | (Second::Any, _) => {}
            (Second::Is(number), _) => others.push(tests.jump_if(second, number, false)),
            (Second::Action, _) => tests.unless_handler(second, loads, &mut others),
        }
        let changes = tests.changes(self.facts);
        others.into_iter().for_each(|jump| tests.bind(jump));
        changes
    }
}

#[cfg(test)]
mod tests {
    use trapline_insn::origin::Origin::{Constant, Register, Unknown};
    use trapline_record::control::fact::{CLOCK, FAULTS, FILTER, TRAPS};

    use super::Numbers;

    const NUMBERS: Numbers = Numbers { rt_sigaction: 13, prctl: 157, seccomp: 317 };

    #[test]
    fn what_a_call_may_change_follows_from_what_is_known_of_it() {
        let cases = [
            ([Register(0), Register(1), Register(2)], CLOCK | FAULTS | FILTER | TRAPS),
            ([Unknown, Constant(26), Constant(2)], 0),
            ([Constant(157), Unknown, Constant(2)], 0),
            ([Constant(157), Constant(26), Unknown], CLOCK),
            ([Constant(157), Constant(26), Constant(1)], 0),
            ([Constant(157), Constant(22), Constant(2)], FILTER),
            ([Constant(317), Register(1), Unknown], FILTER | CLOCK),
            ([Constant(317), Constant(2), Unknown], 0),
            ([Constant(13), Constant(5), Unknown], TRAPS),
            ([Constant(13), Constant(7), Constant(0)], 0),
            ([Register(0), Constant(11), Unknown], FAULTS),
            ([Constant(39), Register(1), Register(2)], 0),
        ];
        for (words, facts) in cases {
            assert_eq!(NUMBERS.may_change(words), facts, "{words:?}");
        }
    }
}
