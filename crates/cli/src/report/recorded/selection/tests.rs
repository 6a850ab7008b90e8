//! SEL-1: what is handed on while calls begin and end, beside a plain look at the whole tree of calls.

use std::time::Duration;

use trapline::calls::CallEnd;
use trapline::recorded::{Begun, Ended, Ticks, Visit};

use super::{Calls, Roles, Selected};
use crate::args::command::record::Selection;

/// Number of functions. Function 0 is of `only`, 1 of `without`, 2 of `callers_of`, if those are asked for.
const FUNCTIONS: usize = 5;

struct Call {
    function: usize,
    begin: u64,
    end: u64,
    below: Vec<Self>,
}

/// Numbers that look random, and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
    fn call(&mut self, clock: &mut u64, levels: u64) -> Call {
        let (function, begin) = (self.below(FUNCTIONS as u64) as usize, *clock);
        let many = if levels == 0 { 0 } else { self.below(4) };
        let mut below = Vec::new();
        for _ in 0..many {
            *clock += self.below(20);
            below.push(self.call(clock, levels - 1));
        }
        *clock += self.below(20);
        Call { function, begin, end: *clock, below }
    }
}

/// What is asked for, as numbers of functions.
#[derive(Clone, Copy, Debug)]
struct Asked {
    only: bool,
    without: bool,
    callers: bool,
    depth: usize,
    least: u64,
    /// So many levels are left from a call of function 3 on.
    deeper: Option<usize>,
    /// Function 4 switches off, and function 3 on.
    switches: bool,
}

/// Begins and ends as text.
#[derive(Default)]
struct Seen(Vec<String>);

impl Visit for Seen {
    fn begun(&mut self, call: &Begun) {
        self.0.push(format!("{} {} from {}", call.depth, call.function, call.begin));
    }
    fn ended(&mut self, ended: &Ended) {
        let Begun { depth, function, begin, .. } = ended.call;
        let (end, within, outermost) = (ended.end, ended.within, ended.is_outermost);
        self.0.push(format!("{depth} {function} from {begin} to {end} within {within} {outermost}"));
    }
}

/// Hands on a tree, as a recording does.
fn hand_on(call: &Call, depth: usize, to: &mut impl Visit) {
    let begun = Begun { thread: 0, function: call.function, depth, begin: call.begin, values: None };
    to.begun(&begun);
    call.below.iter().for_each(|below| hand_on(below, depth + 1, to));
    let within = call.below.iter().map(|below| below.end - below.begin).sum();
    let (end, how) = (call.end, CallEnd::Returned);
    to.ended(&Ended { call: begun, end, within, how, is_outermost: false });
}

/// What is known of a call from those that it is within.
#[derive(Clone, Default)]
struct Above {
    is_begun: bool,
    is_stopped: bool,
    left: usize,
    shown: Vec<usize>,
}

/// Whether a call is one of `callers`, or one is within it.
fn leads(call: &Call, asked: Asked, above: &Above) -> bool {
    let inside = step(call, asked, above);
    let is_within = !inside.is_stopped && (!asked.only || inside.is_begun);
    let is_one = call.function == 2 && is_within && call.end - call.begin >= asked.least;
    is_one || call.below.iter().any(|below| leads(below, asked, &inside))
}

fn step(call: &Call, asked: Asked, above: &Above) -> Above {
    let mut inside = above.clone();
    inside.is_stopped |= asked.without && call.function == 1;
    if asked.only && call.function == 0 {
        (inside.is_begun, inside.left) = (true, asked.depth);
    }
    if let Some(levels) = asked.deeper.filter(|_| call.function == 3) {
        inside.left = levels;
    }
    inside
}

/// The same by a look at the whole tree.
fn look(call: &Call, asked: Asked, above: &Above, (seen, shows): (&mut Vec<String>, &mut bool)) {
    let mut inside = step(call, asked, above);
    *shows = if asked.switches && call.function >= 3 { call.function == 3 } else { *shows };
    let is_visible = !inside.is_stopped && (!asked.only || inside.is_begun) && inside.left > 0 && *shows;
    let is_long = call.end - call.begin >= asked.least;
    let is_shown = is_visible && is_long && (!asked.callers || leads(call, asked, above));
    let (depth, outermost) = (above.shown.len(), !above.shown.contains(&call.function));
    let head = format!("{depth} {} from {}", call.function, call.begin);
    if is_visible {
        inside.left -= 1;
        inside.shown.push(call.function);
    }
    if is_shown {
        seen.push(head.clone());
    }
    call.below.iter().for_each(|below| look(below, asked, &inside, (seen, shows)));
    if is_shown {
        let took = call.below.iter().map(|below| below.end - below.begin).filter(|took| *took >= asked.least);
        seen.push(format!("{head} to {} within {} {outermost}", call.end, took.sum::<u64>()));
    }
}

fn selected(tree: &Call, asked: Asked) -> Vec<String> {
    let one = |is_asked: bool| if is_asked { vec!["f".parse().expect("a probe")] } else { Vec::new() };
    let selection = Selection {
        is_alone: false,
        only: one(asked.only),
        without: one(asked.without),
        callers_of: one(asked.callers),
        depth: asked.depth,
        least: Duration::from_nanos(asked.least),
        triggers: Vec::new(),
        tids: Vec::new(),
        since: Duration::ZERO,
        until: None,
    };
    let mut seen = Seen::default();
    let mut selected = Selected::new(selection, &mut seen);
    selected.roles.extend((0..FUNCTIONS).map(|function| Roles {
        begins: asked.only && function == 0,
        stops: asked.without && function == 1,
        is_wanted: !asked.callers || function == 2,
        depth: asked.deeper.filter(|_| function == 3),
        shows: (asked.switches && function >= 3).then_some(function == 3),
        backtrace: false,
    }));
    selected.threads.push(Calls::new(true, asked.depth));
    selected.clock(Ticks { start: 0, ns: 1.0 });
    hand_on(tree, 0, &mut selected);
    assert!(selected.threads[0].frames.is_empty() && selected.threads[0].open.iter().all(|open| *open == 0));
    seen.0
}

/// SEL-1
#[test]
fn sel_1_each_selection_is_that_of_the_whole_tree() {
    let mut chance = Chance(3);
    let mut shown = 0;
    for round in 0..4000 {
        let (mut clock, levels) = (100, 1 + chance.below(7));
        let tree = chance.call(&mut clock, levels);
        let asked = Asked {
            only: chance.below(3) == 0,
            without: chance.below(3) == 0,
            callers: chance.below(3) == 0,
            depth: if chance.below(2) == 0 { usize::MAX } else { 1 + chance.below(4) as usize },
            least: if chance.below(2) == 0 { 0 } else { chance.below(60) },
            deeper: (chance.below(3) == 0).then(|| 1 + chance.below(3) as usize),
            switches: false,
        };
        // The look ahead for callers knows no switches.
        let asked = Asked { switches: !asked.callers && chance.below(2) == 0, ..asked };
        let mut expected = Vec::new();
        let above = Above { left: asked.depth, ..Above::default() };
        look(&tree, asked, &above, (&mut expected, &mut true));
        assert_eq!(selected(&tree, asked), expected, "round {round}: {asked:?}");
        shown += expected.len();
    }
    assert!(shown > 4000, "{shown}");
}

/// A duration of the least time is shown, however many ticks a nanosecond has.
#[test]
fn the_least_time_is_that_which_is_shown() {
    for (ns, least, ticks) in [(1.0, 5, 5), (0.5, 5, 9), (0.3, 1000, 3332), (0.0, 5, u64::MAX)] {
        let selection = Selection {
            is_alone: false,
            only: Vec::new(),
            without: Vec::new(),
            callers_of: Vec::new(),
            depth: usize::MAX,
            least: Duration::from_nanos(least),
            triggers: Vec::new(),
            tids: Vec::new(),
            since: Duration::ZERO,
            until: None,
        };
        let mut seen = Seen::default();
        let mut selected = Selected::new(selection, &mut seen);
        let clock = Ticks { start: 0, ns };
        selected.clock(clock);
        assert_eq!(selected.least, ticks);
        assert!(ns == 0.0 || clock.nanos(ticks) >= least && clock.nanos(ticks - 1) < least);
    }
}
