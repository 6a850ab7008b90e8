//! What is shown of a recording of everything: calls as they happened, sums by function, trees, timelines.
//!
//! In: calls as they begin and end. Out: bytes to be written, and the rest at the end. Does not: read or write files.

mod chrome;
pub(crate) mod diff;
pub(crate) mod info;
mod replay;
mod selection;
pub(crate) mod thinned;
mod totals;
mod tree;

pub(crate) use chrome::Chrome;
pub(crate) use replay::Replay;
pub(crate) use selection::Selected;
pub(crate) use totals::Totals;
pub(crate) use tree::Tree;

use trapline::ProbeSpec;
use trapline::recorded::{Function, Ticks};

use super::calls::Signatures;
use super::visible;
use crate::args::types::Signature;

/// A text that grows while a recording is read.
pub(crate) trait Text {
    /// What stands before all else.
    fn head(&self) -> String {
        String::new()
    }
    /// What is to be written next. The caller empties it.
    fn lines(&mut self) -> &mut Vec<u8>;
    /// Adds what stands behind all else.
    fn end(&mut self, ticks: Ticks);
}

/// The signatures of functions with values, in the order of their indices.
#[derive(Debug)]
struct Types<'a> {
    signatures: Signatures<'a>,
    of: Vec<Option<&'a Signature>>,
}

impl<'a> Types<'a> {
    fn new(signatures: &'a [(ProbeSpec, Option<Signature>)]) -> Self {
        Self { signatures: Signatures::new(signatures), of: Vec::new() }
    }
    fn add(&mut self, function: &Function) {
        self.of.push(self.signatures.of(&function.site));
    }
    fn of(&self, function: usize) -> Option<&'a Signature> {
        self.of.get(function).copied().flatten()
    }
}

/// Names of functions, in the order of their indices.
#[derive(Debug, Default)]
struct Names(Vec<String>);

impl Names {
    fn add(&mut self, function: &Function) {
        self.0.push(visible::name(&function.site.label).into_owned());
    }
    fn get(&self, function: usize) -> &str {
        self.0.get(function).map_or("?", String::as_str)
    }
}
