//! Conditions and values with locations for their variables: made once, and used at every site.
//!
//! In: a tree, what is asked of it, where its inputs are. Out: [`Compiled`]. A module's sites ask for the same few trees
//! one after another. So each thread keeps the last ones that it made, with all that they depend on: what is found is
//! what would be made (a pure function's values are kept). Does not: emit code.

use std::cell::RefCell;
use std::rc::Rc;

use trapline_code::{Allocated, Program};

use super::lower::{Lowered, Source};
use super::target::Sort;
use super::tree::Tree;
use crate::request::Read;

/// How many are kept.
const KEPT: usize = 8;

/// What is asked of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Leave if its truth value is this.
    Truth(bool),
    /// Its value's bucket, or the value; leave if a field of it could not be read.
    Value(Sort),
}

/// All that decides how a tree is compiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) asked: Asked,
    /// Fields that were read.
    pub(crate) fields: &'a [Read],
    /// Name of the processor.
    pub(crate) processor: &'static str,
    /// Whether arguments are in the record that an entry kept, and not in registers.
    pub(crate) in_record: bool,
}

/// A program with its locations, and what its inputs are.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) allocated: Allocated,
    pub(crate) inputs: Vec<Source>,
    tree: Tree,
    fields: Vec<Read>,
    asked: Asked,
    processor: &'static str,
    in_record: bool,
}

thread_local! {
    /// The last ones, the latest first.
    static MADE: RefCell<Vec<Rc<Compiled>>> = const { RefCell::new(Vec::new()) };
}

impl Compiled {
    /// The one that answers a question. `allocate` chooses locations; `None` if there is no room, or the tree exceeds its
    /// limits (FLT-2).
    pub(crate) fn of(
        question: &Question<'_>,
        allocate: impl FnOnce(Program, &[Source]) -> Option<Allocated>,
    ) -> Option<Rc<Self>> {
        MADE.with_borrow_mut(|made| {
            if let Some(found) = made.iter().position(|made| made.question() == *question) {
                made[..=found].rotate_right(1);
            } else {
                made.truncate(KEPT - 1);
                made.insert(0, Rc::new(Self::make(question, allocate)?));
            }
            made.first().cloned()
        })
    }
    fn make(
        question: &Question<'_>,
        allocate: impl FnOnce(Program, &[Source]) -> Option<Allocated>,
    ) -> Option<Self> {
        let &Question { tree, asked, fields, processor, in_record } = question;
        let lowered = match asked {
            Asked::Truth(when) => Lowered::condition(tree, when, fields),
            Asked::Value(sort) => Lowered::value(tree, sort, fields),
        };
        let Lowered { program, inputs } = lowered.ok()?;
        let allocated = allocate(program, &inputs)?;
        let (tree, fields) = (tree.clone(), fields.to_vec());
        Some(Self { allocated, inputs, tree, fields, asked, processor, in_record })
    }
    fn question(&self) -> Question<'_> {
        let Self { tree, fields, asked, processor, in_record, .. } = self;
        Question { tree, fields, asked: *asked, processor, in_record: *in_record }
    }
}
