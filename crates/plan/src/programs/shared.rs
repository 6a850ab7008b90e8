//! What a hit does to a map that all threads assign and delete ([`Owner::Any`](trapline_record::maps::Owner)).
//!
//! In: a map, a key's words, values. Out: operations, appended to a hit's program. Invariant: HIT-3 assignments, deletions and
//! reads of a key are as if each was done at once, between its begin and its end; or the assignment or deletion is counted.
//!
//! An entry's state is a number that does not come again, and bit 63 ([`TAKING`](trapline_record::maps::TAKING)) while one
//! thread changes the entry. Odd: the key has a value. Even: the entry is free, and any key may have it. While the key stays,
//! the low 32 bits stay.
//!
//! ```text
//!   s, even ──P3 claim──▶ s|63 ──P4 publish──▶ s + 1, odd ──D2 claim──▶ (s + 1)|63 ──D3 publish──▶ s + 2, even
//!                                                 ▲  │
//!                          P2 publish, + 0 or 2³² └──┴─P2 claim──▶ (s + 1)|63
//! ```
//!
//! A key's *walk* begins at an entry that its hash gives, and may take 16. That first entry says how far any key of such a walk
//! was ever put (`REACH`). So a walk that looks for a key is short, though entries behind it were used.
//!
//! # A value is assigned
//!
//! | step | what | another thread, or a signal handler, meanwhile |
//! |---|---|---|
//! | P1 | all entries of the walk in reach are looked at: is one the key's? | it may take one for this key: see *twice* |
//! | P2 | odd, and the key's: claimed from that state, values stored, published. | the claim fails if anything has changed |
//! | | One word: as the same number, since the word is stored at once. More: plus 2³² | the state since the key was read |
//! | P2' | it is claimed: looked at again, 64 times. Still: counted as *met* | it assigns or deletes this key. It was |
//! | | | interrupted, or it is the thread that this handler interrupts |
//! | P2" | other low bits: done | it has deleted this key: this came before |
//! | P3 | none is: the first even one is claimed. | it may be taken meanwhile: the next one |
//! | | No entry left: one more update without an entry | - |
//! | P4 | the reach is raised, key and values are stored, then published: plus 1 | it passes over the entry. Who finds it |
//! | | | published, finds it in reach |
//!
//! # A key is deleted, or read
//!
//! | step | what | meanwhile |
//! |---|---|---|
//! | D1 | all entries in reach are looked at: those that are odd and the key's | - |
//! | D2 | claimed from that state; else as P2' and P2", with 4 looks | as there |
//! | D3 | published: plus 1 | - |
//! | G1 | the first entry that is odd and the key's; it may be claimed | - |
//! | G2 | a word is loaded, then the state again. Other low bits: there is none | it has deleted the key |
//!
//! Of several words each is read by itself: two of them may be of two assignments. The reader wants all of one: it looks at the
//! state before and after, and again if it differs.
//!
//! *Twice*: two threads that assign the same new key at once may take two entries. The first one in the walk counts, for hits
//! and for the reader. A deletion deletes both; until it has done so, the second one's value may be seen.
//!
//! *Left*: a thread that ends between a claim and its publishing (its handler unwinds it) leaves an entry claimed. In P4 the
//! entry is lost. In P2 the key stays as it is, with its old value or the new one, and what others do with it is counted.
//! The reader tells it at the end.
//!
//! *Forked*: a handler between a claim and its publishing that forks makes a second thread that publishes. If both do, and the
//! entry was deleted and taken in between, the second one overwrites it. No other sequence of steps does.
//!
//! No thread waits for another one, but for these looks.

use trapline_code::{Builder, Compare, Compute, Label, Place, Target, Value, Var};
use trapline_record::maps::{LIVE, REACH};
use trapline_record::tally::PROBES;

use super::maps::Map;
use super::search::Key;

/// Looks at an entry that another thread changes, before an assignment is counted.
const LOOKS: u16 = 64;
/// The same for a deletion.
const LOOKS_TO_DELETE: u16 = 4;

/// P1 to P4.
pub(super) fn assign(map: Map, builder: &mut Builder, key: &[Value], values: &[Value]) {
    let [old, new, ours, done] = [(); 4].map(|()| builder.label());
    let found = each(map, builder, key, |builder, _| builder.jump(Target::Label(old)));
    builder.jump(Target::Label(new));
    builder.bind(old);
    let turn = builder.var();
    let line = map.pointer(builder);
    builder.set_address(turn, Place::at(line, 0));
    let turns = builder.walk(turn, 8, LOOKS);
    builder.begin(turns);
    found.look(builder, ours, done);
    builder.next(turns);
    map.meet(builder);
    builder.jump(Target::Label(done));
    builder.bind(ours);
    map.store(builder, found.entry, values);
    if values.len() > 1 {
        // Bits 32 to 62.
        let times_two = builder.compute(Compute::ShiftLeft, Value::Var(found.state), Value::Number(1));
        builder.set_computed(found.state, Compute::Add, times_two, Value::Number(1 << 33));
        builder.set_computed(found.state, Compute::ShiftRight, Value::Var(found.state), Value::Number(1));
    }
    found.publish(builder, 0);
    builder.jump(Target::Label(done));
    builder.bind(new);
    take(map, builder, key, values);
    builder.bind(done);
}

/// P3 and P4. As what hits say, it comes alone (S1 and S2 of `record::said`).
pub(super) fn take(map: Map, builder: &mut Builder, key: &[Value], values: &[Value]) {
    let [pass, taken, done] = [(); 3].map(|()| builder.label());
    let (entry, stride) = (map.begin(builder, key), map.shape.stride() as u16);
    let walk = builder.walk(entry, stride, PROBES as u16);
    builder.begin(walk);
    let found = Found { entry, state: builder.watch(Place::at(entry, 0), false) };
    builder.branch(Compare::Less, Value::Var(found.state), Value::Number(0), Target::Label(pass));
    found.unless(builder, Compare::Equal, pass);
    builder.claim(found.word(), Value::Var(found.state), Target::Label(taken));
    builder.bind(pass);
    builder.next(walk);
    map.miss(builder);
    builder.jump(Target::Label(done));
    builder.bind(taken);
    // The walk's first entry is so far from its end.
    let all = walk.bytes();
    let bytes = builder.compute(Compute::Subtract, Value::Var(entry), Value::Var(walk.end));
    let bytes = builder.compute(Compute::Add, bytes, Value::Number(all as u64));
    let near = builder.label();
    builder.branch(Compare::Equal, bytes, Value::Number(0), Target::Label(near));
    builder.raise(Compare::Above, Place::at(walk.end, REACH as i32 - all), bytes);
    builder.bind(near);
    map.store_key(builder, entry, Key::of(key));
    map.store(builder, entry, values);
    found.publish(builder, 1);
    builder.bind(done);
}

/// D1 to D3.
pub(super) fn delete(map: Map, builder: &mut Builder, key: &[Value]) {
    each(map, builder, key, |builder, found| {
        let [ours, pass] = [(); 2].map(|()| builder.label());
        (0..LOOKS_TO_DELETE).for_each(|_| found.look(builder, ours, pass));
        map.meet(builder);
        builder.jump(Target::Label(pass));
        builder.bind(ours);
        found.publish(builder, 1);
        builder.bind(pass);
    });
}

/// G1 and G2: whether there is a value, and a word of it; 0 and 0 if not.
pub(super) fn get(map: Map, builder: &mut Builder, key: &[Value], word: usize) -> (Value, Value) {
    let [found_it, missing] = [(); 2].map(|()| builder.label());
    let (is_there, value) = (builder.var(), builder.var());
    [is_there, value].into_iter().for_each(|var| builder.set(var, Value::Number(0)));
    let found = each(map, builder, key, |builder, _| builder.jump(Target::Label(found_it)));
    builder.jump(Target::Label(missing));
    builder.bind(found_it);
    let word = builder.load(Place::at(found.entry, map.value(word)));
    found.unless_same(builder, true, missing);
    builder.set(is_there, Value::Number(1));
    builder.set(value, word);
    builder.bind(missing);
    (Value::Var(is_there), Value::Var(value))
}

/// An entry, and its state when it was looked at.
#[derive(Clone, Copy)]
struct Found {
    entry: Var,
    state: Var,
}

impl Found {
    const fn word(self) -> Place {
        Place::at(self.entry, 0)
    }
    /// The state now. Goes there if the entry was deleted.
    fn unless_same(self, builder: &mut Builder, last: bool, to: Label) -> Var {
        let now = builder.watch(self.word(), last);
        let change = builder.compute(Compute::Xor, Value::Var(now), Value::Var(self.state));
        let change = builder.compute(Compute::ShiftLeft, change, Value::Number(32));
        builder.branch(Compare::NotEqual, change, Value::Number(0), Target::Label(to));
        now
    }
    /// Claims the entry and goes to `ours`, or goes to `gone` if it was deleted.
    fn look(self, builder: &mut Builder, ours: Label, gone: Label) {
        let again = builder.label();
        let now = self.unless_same(builder, false, gone);
        builder.branch(Compare::Less, Value::Var(now), Value::Number(0), Target::Label(again));
        builder.set(self.state, Value::Var(now));
        builder.claim(self.word(), Value::Var(now), Target::Label(ours));
        builder.bind(again);
    }
    /// Ends the claim: the state is greater by so much.
    fn publish(self, builder: &mut Builder, by: u64) {
        let state = match by {
            0 => Value::Var(self.state),
            _ => builder.compute(Compute::Add, Value::Var(self.state), Value::Number(by)),
        };
        builder.publish(self.word(), state);
    }
    /// Goes there unless the state is even (`Equal`), or odd (`NotEqual`).
    fn unless(self, builder: &mut Builder, when: Compare, to: Label) {
        let is_live = builder.compute(Compute::And, Value::Var(self.state), Value::Number(LIVE));
        builder.branch(when.opposite(), is_live, Value::Number(0), Target::Label(to));
    }
}

/// Runs operations for each entry with a key's value (P1, D1, G1). They may go elsewhere.
fn each(map: Map, builder: &mut Builder, key: &[Value], run: impl FnOnce(&mut Builder, Found)) -> Found {
    let pass = builder.label();
    let entry = map.begin(builder, key);
    let reach = builder.load(Place::at(entry, REACH as i32));
    let walk = builder.walk_within(entry, map.shape.stride() as u16, PROBES as u16, reach);
    builder.begin(walk);
    let found = Found { entry, state: builder.watch(Place::at(entry, 0), false) };
    found.unless(builder, Compare::NotEqual, pass);
    map.is_key(builder, found.entry, Key::of(key), pass);
    run(builder, found);
    builder.bind(pass);
    builder.next(walk);
    found
}

#[cfg(test)]
mod tests;
