//! The shared memory of a batch, as its maker holds it and as a later tracer finds it.
//!
//! `segment` is the maker's side; `words` and `find` are a reader's, which takes nothing for granted.
//! `semaphore` changes words of the program itself that the journal names.

pub(crate) mod find;
pub(crate) mod segment;
pub(crate) mod semaphore;
pub(crate) mod waiting;
pub(crate) mod words;
