//! What debug information says of the functions that a script probes, and of their types.
//!
//! In: attach points, names. Out: plain data. Does not: read files; whoever compiles a script implements it.

use std::fmt::Debug;

use crate::attach::Probe;
use crate::fields::Struct;
use crate::memory::FileVariable;
use crate::types::Type;

/// A parameter of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Which of the arguments it is; `None` if it is in none of them.
    pub argument: Option<u8>,
}

/// Debug information.
pub trait Declared: Debug {
    /// The parameters of the function at an attach point, or why they are not known.
    fn parameters(&self, probe: &Probe) -> Result<Vec<Parameter>, String>;
    /// The variable of this name in the file of an attach point, or why there is none.
    fn variable(&self, probe: &Probe, name: &str) -> Result<FileVariable, String>;
    /// A structure or union of the program at an attach point.
    fn structure(&self, probe: &Probe, name: &str) -> Option<Struct>;
}
