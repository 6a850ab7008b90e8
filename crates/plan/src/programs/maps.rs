//! What a hit does to a script's maps (`record::maps`): adds up, assigns, reads, deletes.
//!
//! In: a map, a key's words, values. Out: operations, appended to a hit's program. Invariant: HIT-1 every addition to
//! a map is in exactly one entry of its key or counted as without one; what a thread assigned is what it reads.
//!
//! Maps of two owners ([`Owner`]); the third one is [`shared`]. *Added up*: the hit's CPU has a line of its own, where only
//! threads on that CPU add; threads that were moved meanwhile, or that have no rseq area, add on the last line. In a process
//! without rseq all lines are as that one.
//! *Of a thread*: the key holds the thread's word, which no other thread has (SHR-1 in `record::sharers`), so no other one
//! changes the entry's value.
//!
//! # An entry is found
//!
//! | step | what | another thread, or a signal handler, meanwhile |
//! |---|---|---|
//! | M1 | the state is looked at. TAKING: the next entry | it may store the same key there, |
//! | | | and a second entry for it is taken: the reader adds up |
//! | M2 | 0, and the key is only looked for: there is none | it may take the entry: then that comes later |
//! | M3 | 0: the entry is claimed, 0 becomes TAKING by one access. | it sees TAKING, and goes on |
//! | | If it is not 0 any more: the key is compared, or the next entry | |
//! | M4 | claimed: the key is stored; | it sees TAKING until all is stored |
//! | | then LIVE (added up) or GONE (of a thread) is published | |
//! | M5 | other states: the key is compared: found, or the next entry | what is compared stays: an entry keeps its key |
//! | M6 | no entry left: one more update without an entry, by an atomic addition | - |
//!
//! No thread waits for another one. A thread that ends between M3 and M4 leaves an entry that is not used again; its
//! hit has not run. A forked child's copy of the thread publishes the same key a second time: nothing changes by
//! that.
//!
//! # What is done there
//!
//! | step | what | meanwhile |
//! |---|---|---|
//! | A1 | added up: each word of the value by one store in a restartable | all additions count. A reader may |
//! | | sequence, if the thread is still on its line's CPU | see one word with a hit and another one without it |
//! | A1' | else: what is left of the value on the last line, by atomic additions | as A1 |
//! | A2 | an extreme: the word becomes the value if that is less, | the word is compared again. |
//! | | or greater; the first value is stored in M4 | It is the extreme of all values whose A2 is done |
//! | T1 | assigned: | only this thread's signal handlers: theirs happened before. |
//! | | the value is stored, then LIVE is published | The reader sees the value before or after |
//! | T2 | deleted: GONE is published | the same |
//! | T3 | read: the state, then the value | the same; what a handler deletes in between is read as it was |
//!
//! # A map of a thread that is full
//!
//! Entries keep their keys, also those of threads that have ended: no thread knows which those are, and a thread's number comes
//! again. So such a map has another one beyond it, whose entries all threads use again ([`shared`]).
//!
//! | step | what | another thread, or a signal handler, meanwhile |
//! |---|---|---|
//! | R1 | no entry of the walk is the key's, and none is free: what is to be done is done in the map beyond, | - |
//! | | and M6 is not counted here | |
//!
//! A key is in one of the two: none of the walk's entries is ever free again, so a key that went beyond once is looked for there
//! for ever. A key that has an entry here never goes beyond. (An entry that was freed here would hide the keys beyond.) A thread
//! that ended without deleting its key leaves it: a map holds keys until they are deleted. *A handler* may take the walk's last
//! entry for its thread's key, while its thread goes beyond with its first assignment: the handler's counts then, as if it had
//! come last. What its thread left beyond is shown only if the handler's key is deleted.
//!
//! In a map of a thread, M1 to M4 of one key are run by one thread and its signal handlers alone. A handler that comes
//! between M3 and M4 with the same key finds TAKING, and takes another entry. That one is behind the first one, so
//! later searches find the first: what the handler assigned is not seen. So a handler's first assignment of all may be
//! lost, if it interrupts its thread's first assignment.

use trapline_code::{Builder, Compare, Compute, Label, Memory, Place, Target, Value, Var, Walk};
use trapline_record::maps::{FIRST, GONE, LIVE, MET, MapShape, Owner};
use trapline_record::tally::{PHI, PROBES};

use super::search::{Ends, Key};
use super::shared;
use crate::hit::input;

/// A map, as a hit's program reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map {
    /// Number of the input that points to the line with its entries. It is read wherever it is used.
    pub line: u16,
    /// Where it lies there.
    pub shape: MapShape,
    /// Of a thread: where keys are that find no entry (R1). It is a map of all threads ([`Owner::Any`]).
    pub beyond: Option<MapShape>,
}

impl Map {
    /// Adds to each word of a key's value (A1). `extreme`: the last word is the value for which this comparison with all
    /// others holds (A2).
    pub fn add(self, builder: &mut Builder, key: &[Value], values: &[Value], extreme: Option<Compare>) {
        let key = &kept(builder, key);
        let [moved, end] = [(); 2].map(|()| builder.label());
        // How many words were added here, before the thread was moved.
        let done = (values.len() > 1).then(|| builder.var());
        let missing = builder.label();
        let entry = self.find(builder, key, Some((LIVE, self.first_value(values, extreme))), missing);
        for (nth, value) in values.iter().enumerate() {
            let word = Place::at(entry, self.value(nth));
            match extreme {
                Some(when) if nth + 1 == values.len() => builder.raise(when, word, *value),
                _ => {
                    done.into_iter().for_each(|done| builder.set(done, Value::Number(nth as u64)));
                    builder.add_here(word, *value, input::MOVED, Target::Label(moved));
                }
            }
        }
        builder.bind(missing);
        builder.jump(Target::Label(end));
        builder.bind(moved);
        let others = Self { line: input::OTHERS, ..self };
        others.add_anywhere(builder, (key, values), extreme, done);
        builder.bind(end);
    }
    /// The same where threads of all CPUs add (A1'), but so many words, which were added already.
    fn add_anywhere(
        self,
        builder: &mut Builder,
        (key, values): (&[Value], &[Value]),
        extreme: Option<Compare>,
        done: Option<Var>,
    ) {
        let missing = builder.label();
        let entry = self.find(builder, key, Some((LIVE, self.first_value(values, extreme))), missing);
        for (nth, value) in values.iter().enumerate() {
            let (word, next) = (Place::at(entry, self.value(nth)), builder.label());
            if let Some(done) = done {
                let nth = Value::Number(nth as u64);
                builder.branch(Compare::Above, Value::Var(done), nth, Target::Label(next));
            }
            match extreme {
                Some(when) if nth + 1 == values.len() => builder.raise(when, word, *value),
                _ => builder.add(word, *value),
            }
            builder.bind(next);
        }
        builder.bind(missing);
    }
    /// The word that a new entry begins with, if it is an extreme.
    fn first_value(self, values: &[Value], extreme: Option<Compare>) -> Option<(i32, Value)> {
        let last = values.len().saturating_sub(1);
        extreme.and_then(|_| values.last()).map(|value| (self.value(last), *value))
    }
    /// Stores the words of a value.
    pub(super) fn store(self, builder: &mut Builder, entry: Var, values: &[Value]) {
        for (nth, value) in values.iter().enumerate() {
            builder.store(Place::at(entry, self.value(nth)), *value);
        }
    }
    /// Offset in an entry of a value's word.
    pub(super) const fn value(self, nth: usize) -> i32 {
        self.shape.value(nth) as i32
    }
    /// Assigns a key's value (T1). `own`: pointer to the same line, for words of this thread alone
    /// ([`Memory::Own`]).
    pub fn assign(self, builder: &mut Builder, own: Var, key: &[Value], values: &[Value]) {
        let key = &kept(builder, key);
        if self.shape.owner == Owner::Any {
            return shared::assign(self, builder, key, values);
        }
        let [missing, full] = [(); 2].map(|()| builder.label());
        let entry = self.find_or(builder, key, Some((GONE, None)), (missing, full));
        let entry = self.own(builder, own, entry);
        self.store(builder, entry, values);
        builder.publish(Place::at(entry, 0), Value::Number(LIVE));
        self.beyond(builder, (missing, full), |builder, beyond| shared::assign(beyond, builder, key, values));
        builder.bind(missing);
    }
    /// Puts an entry, whatever others have the same key (`record::said`).
    pub fn say(self, builder: &mut Builder, key: &[Value], values: &[Value]) {
        let key = &kept(builder, key);
        shared::take(self, builder, key, values);
    }
    /// Deletes a key (T2).
    pub fn delete(self, builder: &mut Builder, own: Var, key: &[Value]) {
        let key = &kept(builder, key);
        if self.shape.owner == Owner::Any {
            return shared::delete(self, builder, key);
        }
        let [missing, full] = [(); 2].map(|()| builder.label());
        let entry = self.find_or(builder, key, None, (missing, full));
        let entry = self.own(builder, own, entry);
        builder.publish(Place::at(entry, 0), Value::Number(GONE));
        self.beyond(builder, (missing, full), |builder, beyond| shared::delete(beyond, builder, key));
        builder.bind(missing);
    }
    /// A key's value (T3): whether there is one, and its word of this number; 0 and 0 if not.
    pub fn get(self, builder: &mut Builder, key: &[Value], word: usize) -> (Value, Value) {
        let key = &kept(builder, key);
        if self.shape.owner == Owner::Any {
            return shared::get(self, builder, key, word);
        }
        let ([missing, full], is_there, value) =
            ([(); 2].map(|()| builder.label()), builder.var(), builder.var());
        builder.set(is_there, Value::Number(0));
        builder.set(value, Value::Number(0));
        let entry = self.find_or(builder, key, None, (missing, full));
        let is_live = Value::Number(LIVE);
        builder.branch_word(Compare::NotEqual, Place::at(entry, 0), is_live, Target::Label(missing));
        builder.set(is_there, Value::Number(1));
        let found = builder.load(Place::at(entry, self.value(word)));
        builder.set(value, found);
        self.beyond(builder, (missing, full), |builder, beyond| {
            let (there, found) = shared::get(beyond, builder, key, word);
            builder.set(is_there, there);
            builder.set(value, found);
        });
        builder.bind(missing);
        (Value::Var(is_there), Value::Var(value))
    }
    /// M1 to M6: pointer to the key's entry. `takes`: if the key may get an entry, its state, and a word that it begins
    /// with. Goes to `missing` if there is none.
    fn find(
        self,
        builder: &mut Builder,
        key: &[Value],
        takes: Option<(u64, Option<(i32, Value)>)>,
        missing: Label,
    ) -> Var {
        self.find_or(builder, key, takes, (missing, missing))
    }
    /// The same; goes to `full` if there is none and no room, but a map beyond.
    fn find_or(
        self,
        builder: &mut Builder,
        key: &[Value],
        takes: Option<(u64, Option<(i32, Value)>)>,
        (missing, full): (Label, Label),
    ) -> Var {
        let found = builder.label();
        let full = self.beyond.map(|_| Target::Label(full));
        let ends = Ends { found: Target::Label(found), missing: Target::Label(missing), full };
        let entry = self.search(builder, Key::of(key), takes, ends);
        builder.bind(found);
        entry
    }
    /// R1: what is done in the map beyond, if there is one. Other searches go to `missing`.
    fn beyond(
        self,
        builder: &mut Builder,
        (missing, full): (Label, Label),
        run: impl FnOnce(&mut Builder, Self),
    ) {
        let Some(shape) = self.beyond else { return };
        builder.jump(Target::Label(missing));
        builder.bind(full);
        run(builder, Self { shape, beyond: None, ..self });
    }
    /// The same; goes to `found` with an entry that was there, and goes on with one that was taken.
    pub(super) fn search(
        self,
        builder: &mut Builder,
        key: Key<'_>,
        takes: Option<(u64, Option<(i32, Value)>)>,
        Ends { found, missing, full }: Ends,
    ) -> Var {
        let [free, pass] = [(); 2].map(|()| builder.label());
        let walk = self.walk(builder, key.words);
        let entry = walk.entry;
        let state = Place::at(entry, 0);
        builder.begin(walk);
        builder.look(state, Target::Label(free), Target::Label(pass));
        self.is_key(builder, entry, key, pass);
        builder.jump(found);
        builder.bind(pass);
        builder.next(walk);
        match takes {
            None => {
                full.into_iter().for_each(|full| builder.jump(full));
                builder.bind(free);
                builder.jump(missing);
            }
            Some((state_then, first)) => {
                let [none, claimed, gone] = [(); 3].map(|()| builder.label());
                builder.jump(Target::Label(none));
                builder.bind(free);
                builder.claim(state, Value::Number(0), Target::Label(claimed));
                builder.look(state, Target::Label(gone), Target::Label(gone));
                self.is_key(builder, entry, key, gone);
                builder.jump(found);
                builder.bind(gone);
                builder.next(walk);
                builder.bind(none);
                match full {
                    Some(full) => builder.jump(full),
                    None => {
                        self.miss(builder);
                        builder.jump(missing);
                    }
                }
                builder.bind(claimed);
                self.store_key(builder, entry, key);
                if let Some((word, value)) = first {
                    builder.store(Place::at(entry, word), value);
                }
                builder.publish(state, Value::Number(state_then));
            }
        }
        entry
    }
    /// A walk over the entries that a key may have.
    fn walk(self, builder: &mut Builder, key: &[Value]) -> Walk {
        let entry = self.begin(builder, key);
        builder.walk(entry, self.shape.stride() as u16, PROBES as u16)
    }
    /// Pointer to the first of them.
    pub(super) fn begin(self, builder: &mut Builder, key: &[Value]) -> Var {
        let entry = builder.var();
        let index = self.first(builder, key);
        let base = self.pointer(builder);
        builder.set_address(entry, Place { base, index, offset: (u64::from(self.shape.at) + FIRST) as i32 });
        entry
    }
    /// Pointer to the line.
    pub(super) fn pointer(self, builder: &mut Builder) -> Var {
        builder.pointer(self.line, Memory::Shared)
    }
    /// M6.
    pub(super) fn miss(self, builder: &mut Builder) {
        let line = self.pointer(builder);
        builder.add(Place::at(line, self.shape.at as i32), Value::Number(1));
    }
    /// One more update that met another one of its key, which did not end.
    pub(super) fn meet(self, builder: &mut Builder) {
        let line = self.pointer(builder);
        builder.add(Place::at(line, self.shape.at as i32 + MET as i32), Value::Number(1));
    }
    /// Offset of the first entry of a key.
    fn first(self, builder: &mut Builder, key: &[Value]) -> Option<(Var, u8)> {
        let (word, rest) = key.split_first()?;
        let times = builder.number(PHI);
        let mut hash = builder.compute(Compute::Multiply, *word, times);
        for word in rest {
            hash = builder.compute(Compute::Add, hash, *word);
            hash = builder.compute(Compute::Multiply, hash, times);
        }
        let nth = builder.compute(Compute::ShiftRight, hash, Value::Number(64 - u64::from(self.shape.bits)));
        let bytes = builder.compute(Compute::Multiply, nth, Value::Number(self.shape.stride()));
        Some((builder.in_var(bytes), 0))
    }
    /// Goes there unless the entry has this key.
    pub(super) fn is_key(self, builder: &mut Builder, entry: Var, key: Key<'_>, other: Label) {
        for nth in 0..self.shape.keys.into() {
            let word = key.word(builder, nth);
            let place = Place::at(entry, self.shape.key(nth) as i32);
            builder.branch_word(Compare::NotEqual, place, word, Target::Label(other));
        }
    }
    /// Stores the words of a key.
    pub(super) fn store_key(self, builder: &mut Builder, entry: Var, key: Key<'_>) {
        for nth in 0..self.shape.keys.into() {
            let word = key.word(builder, nth);
            builder.store(Place::at(entry, self.shape.key(nth) as i32), word);
        }
    }
    /// The same entry, as memory of this thread alone.
    fn own(self, builder: &mut Builder, own: Var, entry: Var) -> Var {
        let line = Value::Var(self.pointer(builder));
        let behind = builder.compute(Compute::Subtract, Value::Var(entry), line);
        let (behind, to) = (builder.in_var(behind), builder.var());
        builder.set_address(to, Place { base: own, index: Some((behind, 0)), offset: 0 });
        to
    }
}

/// A key's words: each is compared and stored, so none stays an input.
fn kept(builder: &mut Builder, key: &[Value]) -> Vec<Value> {
    let word = |word: &Value| match word {
        Value::Input(_) => Value::Var(builder.in_var(*word)),
        _ => *word,
    };
    key.iter().map(word).collect()
}

#[cfg(test)]
pub(super) mod tests;
