//! One hit that passes a filter, one increment; the same as x86-64's twin.
//!
//! In: a filter, the counter's word. Out: code that decides (`filtering`), and adds 1 on this CPU's line: to the
//! counter, or to the filter's count of rejected hits. Then it runs into the displaced code. Counted + rejected =
//! hits, each by one commit. A thread without an area adds on the last line.
//!
//! ```text
//!   decide    sp = S - FRAME    (`filtering`)
//!   count     sp = S - FRAME    A, B, KEY (`counted`)
//!   end       sp = S            all registers are the program's
//! ```

use super::asm::{Asm, NoWords};
use super::counted::count;
use super::filtering::{self, Filtered, HitFilter, Rare, Shared, last};
use super::machine::Machine;
use super::pending::Code;
use crate::machine::ThreadId;

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedFilteredCount {
    asm: Asm,
    machine: Machine,
    rare: Rare,
    /// Where all paths meet.
    leave: u64,
}

/// A stub that counts hits that pass: the part before the displaced code, for the address `at`. `word` is the
/// counter on line 0.
pub fn count_filtered(
    at: u64,
    machine: &Machine,
    id: ThreadId,
    filtered: Filtered<'_>,
    word: u64,
) -> UnfinishedFilteredCount {
    let mut asm = Asm::new(at);
    let mut rare = HitFilter { machine, id, filtered }.decide(&mut asm);
    if let Some((section, unregistered)) = count(&mut asm, machine, word) {
        rare.sections.push(section);
        rare.shared.push((unregistered, Shared::Word(last(machine, word))));
    }
    let leave = asm.here();
    filtering::leave(&mut asm, machine);
    UnfinishedFilteredCount { asm, machine: *machine, rare, leave }
}

impl Code for UnfinishedFilteredCount {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let Self { mut asm, machine, rare, leave } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        rare.finish(&mut asm, &machine, leave);
        asm.pool();
        asm.words()
    }
}
