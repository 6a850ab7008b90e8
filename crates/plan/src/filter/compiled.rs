//! Conditions and values with locations for their variables, and their code: made once, and used at every site.
//!
//! In: a tree, what is asked of it, where its inputs are. Out: [`Compiled`]. A module's sites ask for the same few trees
//! one after another. So each thread keeps some that it made, with all that they depend on: what is found is
//! what would be made (a pure function's values are kept). Does not: know a processor's code.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread::LocalKey;

use trapline_code::{Allocated, NoCode, NoRoom, Program};

use super::lower::{Lowered, Source};
use super::target::Sort;
use super::tree::Tree;
use crate::programs::Kept;
use crate::request::Read;

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
    /// Whether arguments are in the record that an entry kept, and not in registers.
    pub(crate) in_record: bool,
}

/// A program with its locations, and what its inputs are. `K`: what its code depends on besides; `P`: code.
#[derive(Debug)]
pub(crate) struct Compiled<K, P> {
    pub(crate) allocated: Allocated,
    pub(crate) inputs: Vec<Source>,
    tree: Tree,
    fields: Vec<Read>,
    asked: Asked,
    in_record: bool,
    /// The last code for each kind of place.
    pieces: RefCell<Vec<Option<(K, P)>>>,
}

/// Those of a processor.
pub(crate) type Made<K, P> = RefCell<Kept<Rc<Compiled<K, P>>>>;

impl<K: PartialEq, P> Compiled<K, P> {
    /// The one that answers a question. `allocate` chooses locations.
    ///
    /// # Errors
    /// There is no room, or the tree exceeds its limits (FLT-2).
    pub(crate) fn of(
        made: &'static LocalKey<Made<K, P>>,
        question: &Question<'_>,
        allocate: impl FnOnce(Program, &[Source]) -> Result<Allocated, NoRoom>,
    ) -> Result<Rc<Self>, NoCode> {
        made.with_borrow_mut(|made| {
            let is = |made: &Rc<Self>| made.question() == *question;
            made.answer(is, || Ok(Rc::new(Self::make(question, allocate)?))).cloned()
        })
    }
    fn make(
        question: &Question<'_>,
        allocate: impl FnOnce(Program, &[Source]) -> Result<Allocated, NoRoom>,
    ) -> Result<Self, NoCode> {
        let &Question { tree, asked, fields, in_record } = question;
        let lowered = match asked {
            Asked::Truth(when) => Lowered::condition(tree, when, fields),
            Asked::Value(sort) => Lowered::value(tree, sort, fields),
        };
        let Lowered { program, inputs } = lowered?;
        let allocated = allocate(program, &inputs)?;
        let (tree, fields, pieces) = (tree.clone(), fields.to_vec(), RefCell::default());
        Ok(Self { allocated, inputs, tree, fields, asked, in_record, pieces })
    }
    fn question(&self) -> Question<'_> {
        let Self { tree, fields, asked, in_record, .. } = self;
        Question { tree, fields, asked: *asked, in_record: *in_record }
    }
    /// Appends its code to `asm`, at a place of a kind: by `again` what is kept for it, if that depends on the same; else
    /// by `emit`, which also returns what to keep.
    pub(crate) fn append<A, R>(
        &self,
        asm: &mut A,
        (place, known): (usize, K),
        again: impl FnOnce(&P, &mut A) -> R,
        emit: impl FnOnce(&mut A) -> (P, R),
    ) -> R {
        let mut pieces = self.pieces.borrow_mut();
        if let Some(Some((kept, piece))) = pieces.get(place)
            && *kept == known
        {
            return again(piece, asm);
        }
        let (piece, appended) = emit(asm);
        if pieces.len() <= place {
            pieces.resize_with(place + 1, || None);
        }
        pieces[place] = Some((known, piece));
        appended
    }
}
