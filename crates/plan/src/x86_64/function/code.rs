//! A function's code in full, with its parts.
//!
//! In: a function, and requests for it. Out: what `insn` finds out about it, if a request needs more than its
//! entry. Fragments that it jumps to count as parts.

use crate::request::ActionRequest;
use crate::x86_64::body::body_of;
use crate::x86_64::env::Env;
use crate::x86_64::window::Stretch;
use trapline_image::{FunctionIndex, Image};
use trapline_insn::x86_64::{Body, Exit, ExitKind};
use trapline_record::Svma;

/// A function's code in full.
pub(super) struct Code {
    pub(super) function: FunctionIndex,
    pub(super) body: Body,
    /// Ranges of `body.insns`, one for each part.
    parts: Vec<core::ops::Range<usize>>,
}

impl Code {
    /// The first exit that leads into another function.
    pub(super) fn tail(&self) -> Option<&Exit> {
        self.body.exits.iter().find(|exit| exit.kind != ExitKind::Ret)
    }
    pub(super) fn stretch_of(&self, at: u64) -> Option<(Stretch<'_>, usize)> {
        self.parts.iter().find_map(|part| {
            let insns = &self.body.insns[part.clone()];
            let i = insns.binary_search_by_key(&at, |i| i.addr).ok()?;
            Some((Stretch { insns, whole: true }, i))
        })
    }
}

/// The code of a function, if a request needs more than its entry.
pub(super) fn code_for(
    env: Env<'_>,
    function: Option<FunctionIndex>,
    requests: &[(u32, ActionRequest)],
) -> Option<Code> {
    let entry_only = requests.iter().all(|(_, w)| w.action.is_at_entry_alone());
    function.filter(|_| !entry_only).map(|f| code_of(env.image, f))
}

fn code_of(image: &Image, function: FunctionIndex) -> Code {
    let f = image.function(function);
    let mut cold = f.cold.clone();
    loop {
        let body = body_of(image, f.start, f.len, &cold);
        let fragment = body.exits.iter().find_map(|exit| match exit.kind {
            ExitKind::TailJump(to) | ExitKind::TailBranch(to) => fragment_at(image.fragments(), Svma(to)),
            _ => None,
        });
        match fragment.filter(|f| !cold.contains(f) && cold.len() < 8) {
            Some(fragment) => cold.push(fragment),
            None => {
                let all = [(f.start, f.len)].into_iter().chain(cold);
                let parts = all.filter_map(|(start, len)| part_of(&body, start, len)).collect();
                return Code { function, body, parts };
            }
        }
    }
}

fn fragment_at(fragments: &[(Svma, u64)], at: Svma) -> Option<(Svma, u64)> {
    let next = fragments.partition_point(|f| f.0 <= at);
    let found = *fragments.get(next.checked_sub(1)?)?;
    (at.0 - found.0.0 < found.1).then_some(found)
}

fn part_of(body: &Body, start: Svma, len: u64) -> Option<core::ops::Range<usize>> {
    let first = body.insns.iter().position(|i| i.addr == start.0)?;
    let end = start.0.saturating_add(len);
    let count = body.insns[first..].iter().take_while(|i| i.addr >= start.0 && i.addr < end).count();
    Some(first..first + count)
}
