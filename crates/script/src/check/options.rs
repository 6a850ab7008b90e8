//! What a script is compiled with.
//!
//! In: nothing. Out: plain data. Does not: read the command line or the environment.

use std::rc::Rc;

use crate::declared::Declared;

/// What a script is compiled with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Debug information of the programs that the script probes.
    pub declared: Option<Rc<dyn Declared>>,
    /// Registers that records can hold, by the names that scripts have for them.
    pub registers: Vec<String>,
    /// `$1`, `$2` and so on.
    pub positional: Vec<String>,
    /// Parameters behind `--`, without their dashes: `name=value` or `name`.
    pub named: Vec<String>,
    /// Whether functions that change the system are allowed.
    pub allow_unsafe: bool,
    /// Settings of the environment: names that begin with `BPFTRACE_`, and values.
    pub environment: Vec<(String, String)>,
    /// Regular names, such as those of system headers, with their numbers.
    pub constants: Vec<(String, i64)>,
}
