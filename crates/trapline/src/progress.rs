//! How far long work is, for programs that show it.
//!
//! In: a callback ([`Builder::on_progress`](crate::Builder::on_progress)). Out: a call of it at each step. Steps come
//! often, and say nothing about time: whoever shows them decides which ones. Does not: print.

use std::fmt;
use std::sync::Arc;

/// A step of the work that comes before a session or a listing is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// The next process is probed.
    Attaching {
        /// How many processes have been looked at.
        done: usize,
        /// How many there are.
        of: usize,
    },
    /// The symbols of a file are read.
    Symbols {
        /// Its path.
        file: &'a str,
    },
    /// The debug information of a file is read.
    DebugInformation {
        /// Its path.
        file: &'a str,
    },
    /// It is planned how so many functions are reached.
    Planning {
        /// How many there are.
        functions: usize,
    },
    /// What was read last is read.
    Read,
    /// A launched command is about to run, and may write to the terminal.
    Released,
}

/// The callback, if there is one.
#[derive(Clone, Default)]
pub(crate) struct OnProgress(Option<Arc<Callback>>);

type Callback = dyn Fn(Step<'_>) + Send + Sync;

impl OnProgress {
    pub(crate) fn new(callback: impl Fn(Step<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }
    /// Says that a step begins.
    pub(crate) fn say(&self, step: Step<'_>) {
        if let Some(callback) = &self.0 {
            callback(step);
        }
    }
    /// Reads something, and says so before and after.
    pub(crate) fn during<T>(&self, step: Step<'_>, read: impl FnOnce() -> T) -> T {
        self.say(step);
        let read = read();
        self.say(Step::Read);
        read
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnProgress").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use crate::Session;

    #[test]
    fn a_listing_says_what_it_reads() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&said);
        let builder = Session::builder().probe("libc:malloc").expect("a probe");
        let builder = builder.on_progress(move |step| to.lock().expect("no panic").push(format!("{step:?}")));
        builder.list_declared(false).expect("a C library");
        let said = said.lock().expect("no panic");
        let [symbols, read, planning, debug, again] = &said[..] else { panic!("{said:?}") };
        assert!(symbols.starts_with("Symbols") && symbols.contains("libc"), "{symbols}");
        assert!(debug.starts_with("DebugInformation") && debug.contains("libc"), "{debug}");
        assert_eq!([read, planning, again], ["Read", "Planning { functions: 1 }", "Read"]);
    }
}
