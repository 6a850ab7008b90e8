//! What the records of a script's hits can hold together.
//!
//! In: a program; which of its blocks are interpreted over records. Out: nothing, or messages, also about attach
//! points that mean nothing. Does not: know blocks that the target runs: they need no records.

use crate::attach::Probe;
use crate::diagnostic::{At, Diagnostic, Severity};
use crate::program::{Block, Program};

impl Program {
    /// Whether records hold all that blocks ask for: a stack, or arguments and what they point to. `read`: why a block is
    /// interpreted; `None` if it is not.
    ///
    /// # Errors
    /// They do not: the text of all messages.
    pub fn fits_records<'a>(&self, read: impl Fn(usize) -> Option<&'a str>) -> Result<(), String> {
        let hits = || self.blocks.iter().enumerate().filter(|(_, block)| is_of_hits(block));
        let blocks = || hits().filter_map(|(nth, block)| Some((block, read(nth)?)));
        if blocks().all(|(block, _)| block.needs.stack == 0) {
            return Ok(());
        }
        let message = |(block, read): (&Block, &str)| {
            let error = Diagnostic::error(why_not(block)?, block.at.clone());
            let read = format!("the block is interpreted over records: {read}");
            Some(error.hint(read).hint(HINT).text(&self.source))
        };
        let messages: String = blocks().filter_map(message).collect();
        if messages.is_empty() { Ok(()) } else { Err(messages) }
    }
}

impl Program {
    /// A message about an attach point of a block, with its place in the script.
    pub fn about_probe(
        &self,
        block: usize,
        probe: &Probe,
        (severity, message, hint): (Severity, &str, &str),
    ) -> String {
        let place = self.blocks.get(block).map(|block| {
            let own = block.attached.iter().find(|(text, _)| Probe::parse(text).as_ref() == Ok(probe));
            own.map_or_else(|| block.at.clone(), |(_, span)| At::from(*span))
        });
        let told = Diagnostic::new(severity, message.to_owned(), place.unwrap_or_default());
        if hint.is_empty() { told.text(&self.source) } else { told.hint(hint).text(&self.source) }
    }
}

const HINT: &str = "a record holds a stack, or values and returns; use two scripts, one after the other";

fn is_of_hits(block: &Block) -> bool {
    block.probes.iter().any(Probe::is_of_program)
}

/// Why a block's hits are not recorded beside stacks.
fn why_not(block: &Block) -> Option<&'static str> {
    let needs = &block.needs;
    let values = needs.args != 0 || needs.retval || !needs.reads.is_empty() || !needs.texts.is_empty();
    let returns = block.probes.iter().any(|probe| matches!(probe, Probe::Uretprobe(..)));
    match (values, returns) {
        (false, false) => None,
        (true, _) => Some("arguments and retval are not recorded in a script that records stacks"),
        (false, true) => Some("returns are not recorded in a script that records stacks"),
    }
}
