//! What a search in a map looks for, and where it goes on.
//!
//! In: words, places, targets. Out: the words of a key, as a program's values. Does not: search (`maps`).

use trapline_code::{Builder, Place, Target, Value, Var};

/// Where a search goes on.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    /// With an entry that was there.
    pub(super) found: Target,
    /// Without one.
    pub(super) missing: Target,
    /// With none of the key's, and none that is free; as without one, if there is nothing beyond.
    pub(super) full: Option<Target>,
}

/// The words of a key.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    /// The first ones.
    pub(super) words: &'a [Value],
    /// Where the others are in memory of this thread alone.
    pub(super) text: Option<(Var, i32)>,
}

impl<'a> Key<'a> {
    pub(super) const fn of(words: &'a [Value]) -> Self {
        Self { words, text: None }
    }
    pub(super) fn word(self, builder: &mut Builder, nth: usize) -> Value {
        match (self.words.get(nth), self.text) {
            (Some(word), _) => *word,
            (None, Some((text, at))) => {
                builder.load(Place::at(text, at + 8 * (nth - self.words.len()) as i32))
            }
            (None, None) => Value::Number(0),
        }
    }
}
