//! Which maps hits change in the target, and how.
//!
//! In: how blocks use them. Out: for each such map, the parts of its key and what hits do to its values. All blocks
//! must agree. Does not: make operations (`lower`), or decide where blocks run (`fates`).

use std::collections::BTreeSet;
use std::rc::Rc;

use trapline_code::Compare;

use super::said::Said;
use crate::diagnostic::At;
use crate::value::StackMode;

/// Parts of a key at most.
pub(super) const MOST_PARTS: usize = 6;
/// Parts of a value at most.
pub(super) const MOST_VALUES: usize = 4;

/// What cannot be run in the target, and where it stands.
#[derive(Debug, Clone)]
pub struct Not {
    /// What.
    pub what: String,
    /// Where.
    pub at: Option<At>,
}

impl Not {
    pub(super) fn yet(what: impl Into<String>, at: &At) -> Self {
        Self { what: what.into(), at: Some(at.clone()) }
    }
}

/// What a part of a key, or of a value, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyWord {
    /// A number.
    Number,
    /// A thread.
    Thread,
    /// The name of a thread.
    Comm,
    /// The function that was hit, by its name's number: a name has one number in a script.
    Func,
    /// The probe, in the same way.
    Probe,
    /// The sort of probe, in the same way.
    Sort,
    /// A text of the script, by its number in [`Native::texts`].
    Text,
    /// The stack, of so many frames, as it is shown.
    Stack(u8, StackMode),
    /// A text that an argument points to, by its number in a table of the target's.
    ReadText,
    /// Bytes that an argument points to, in the same way.
    ReadBytes,
    /// The process, by the thread.
    Pid,
    /// A histogram's bucket, behind all others.
    Bucket,
}

/// What an argument of a USDT probe points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextOf {
    /// The argument.
    pub argument: u8,
    /// A text, which ends at its first zero byte; else bytes.
    pub is_text: bool,
    /// How many bytes there are at most.
    pub length: Length,
}

/// How many bytes a text has at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So many.
    AtMost(u8),
    /// As many as an argument says.
    Argument(u8),
}

/// Texts of a block's keys at most; the inputs of a hit's program have room for so many.
const MOST_TEXTS: usize = 6;

/// What hits do to the values of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// They are added up.
    Add,
    /// The last word is the value for which this comparison with all others holds; the others are added up.
    Raise(Compare),
    /// They are assigned.
    Assign,
    /// Each hit puts an entry of its own, which the tracer takes.
    Say,
}

/// A map that hits change in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeMap {
    /// The parts of its key.
    pub keys: Vec<KeyWord>,
    /// The words of its value. None if hits do not say so: they look for keys, or delete them.
    pub values: Vec<KeyWord>,
    /// What is done to them.
    pub change: Change,
}

impl NativeMap {
    /// Whether any thread may change a value, and not one alone.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.change == Change::Assign && (!self.keys.contains(&KeyWord::Thread) || self.values.len() > 1)
    }
    /// The same with what is known of another use, if both may be of one map.
    fn with(&self, other: &Self) -> Option<Self> {
        let values = if self.values.is_empty() { &other.values } else { &self.values };
        let agrees = |one: &Self| one.values.is_empty() || one.values == *values;
        let is_one = self.keys == other.keys && self.change == other.change && agrees(self) && agrees(other);
        is_one.then(|| Self { values: values.clone(), ..self.clone() })
    }
}

/// What is known of the processes that run blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processes {
    /// There is one, with children that share its maps.
    pub one: bool,
    /// Threads see the numbers of themselves that the tracer sees.
    pub same_tids: bool,
}

/// What the target must know to run blocks.
#[derive(Debug, Clone, Default)]
pub struct Native {
    /// By number: those maps that hits change there. Behind the script's maps are those of what is said.
    pub maps: Vec<Option<NativeMap>>,
    /// What hits say, in the order of their maps.
    pub(crate) said: Vec<Said>,
    /// How many sayings were made: a later one has a greater number.
    pub(super) sayings: u64,
    /// Whether hits may say anything.
    pub(super) says: bool,
    /// Texts that stand in keys and values.
    pub texts: Vec<Rc<[u8]>>,
    /// Return addresses of the deepest stack in a key or value; 0 if there is none.
    pub addresses: u8,
    /// Texts that keys of the blocks of one place name, in the order of their numbers.
    pub read: Vec<TextOf>,
    /// The processes.
    pub(super) processes: Processes,
    /// Maps to whose values hits do more than counting.
    pub(super) assigned: Rc<BTreeSet<usize>>,
}

impl Native {
    /// For a program with so many maps.
    pub(super) fn new(maps: usize, processes: Processes, assigned: Rc<BTreeSet<usize>>) -> Self {
        Self { maps: vec![None; maps], processes, assigned, ..Self::default() }
    }
    /// Notes how a map is used.
    pub(super) fn uses(&mut self, map: usize, how: NativeMap, at: &At) -> Result<(), Not> {
        if how.keys.len() > MOST_PARTS || how.values.len() > MOST_VALUES {
            let text =
                format!("a key of more than {MOST_PARTS} parts, or a value of more than {MOST_VALUES}");
            return Err(Not::yet(text, at));
        }
        let known = &mut self.maps[map];
        let both = known.as_ref().map_or_else(|| Some(how.clone()), |known| known.with(&how));
        *known = Some(both.ok_or_else(|| Not::yet("a map that is used in two ways", at))?);
        Ok(())
    }
    /// Notes the return addresses of a stack. All stacks have the most of them: keys with fewer are put
    /// together by the reader.
    pub(super) fn stack(&mut self, addresses: u8) {
        self.addresses = self.addresses.max(addresses);
    }
    /// Which of the read texts this is; `None` if there is no room for another one.
    pub(super) fn read(&mut self, text: TextOf) -> Option<u8> {
        let found = self.read.iter().position(|known| *known == text);
        let nth = found.unwrap_or(self.read.len());
        if nth == self.read.len() && nth < MOST_TEXTS {
            self.read.push(text);
        }
        (nth < MOST_TEXTS).then_some(nth as u8)
    }
    /// The number of a text.
    pub(super) fn text(&mut self, text: &Rc<[u8]>) -> u64 {
        let found = self.texts.iter().position(|known| known == text);
        found.unwrap_or_else(|| {
            self.texts.push(Rc::clone(text));
            self.texts.len() - 1
        }) as u64
    }
}
