//! Names of the functions that values point to.
//!
//! In: the code of processes, as it was noted before they ran; values. Out: the name of the function that begins at a value.
//! What a process maps later is looked at when a value leads there, unless it has ended. Does not: name what lies inside a
//! function.

use std::collections::HashMap;
use std::sync::Arc;

use trapline::stacks::{CodeAt, Symbols};

/// What is known of functions.
#[derive(Debug, Default)]
pub(crate) struct CodeNames {
    code: CodeAt,
    symbols: Symbols,
    /// By process and value; `None` if no function begins there.
    known: HashMap<(u32, u64), Option<Arc<str>>>,
}

impl CodeNames {
    /// Names the code that was noted.
    pub(crate) fn take(&mut self, noted: CodeAt) {
        self.code = noted;
    }
    /// The name of the function that begins at an address of a process.
    pub(crate) fn of(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        if let Some(known) = self.known.get(&(pid, address)) {
            return known.clone();
        }
        let frame = self.code.frame(pid, address).filter(|_| address != 0);
        let functions = frame.map(|frame| self.symbols.of(pid, &frame));
        let outer = functions.as_ref().and_then(|all| all.last()).filter(|one| one.named && one.offset == 0);
        let name = outer.map(|one| Arc::from(one.name.as_str()));
        self.known.insert((pid, address), name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::CodeNames;

    #[test]
    fn a_function_has_a_name_at_its_first_byte_alone() {
        let (mut names, pid) = (CodeNames::default(), std::process::id());
        let here = a_function_has_a_name_at_its_first_byte_alone as *const () as usize as u64;
        let name = names.of(pid, here).expect("our own code");
        assert!(name.ends_with("a_function_has_a_name_at_its_first_byte_alone"), "{name}");
        assert_eq!([here + 1, 0, 16].map(|at| names.of(pid, at)), [None, None, None]);
    }
}
