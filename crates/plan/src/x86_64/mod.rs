//! x86-64: windows, tactics and generated code.

pub(crate) mod emit;
pub(crate) mod function;
pub(crate) mod kernel;
pub(crate) mod padding;
pub(crate) mod pun;
pub(crate) mod site;
pub mod stub;
pub(crate) mod window;

use crate::codemap::CodeMap;
use crate::request::{CallInput, Callee, ProcessTraits};
use trapline_image::Image;

/// What deciding about a site depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Env<'a> {
    pub(crate) image: &'a Image,
    pub(crate) map: &'a CodeMap,
    pub(crate) traits: &'a ProcessTraits,
    pub(crate) calls: Option<CallInput<'a>>,
}

impl Env<'_> {
    /// What a want of this probe calls; checked to be there before anything is planned.
    pub(crate) fn callee(&self, probe: u32) -> Option<Callee> {
        self.calls.and_then(|calls| calls.callees.get(probe as usize).copied())
    }
}
