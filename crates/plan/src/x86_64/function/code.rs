//! A function's code in full, with its parts.
//!
//! In: a function, and requests for it. Out: what `insn` finds out about it, if a request needs more than its
//! entry. Fragments that it jumps to count as parts.

use crate::request::ActionRequest;
use crate::x86_64::body::body_with;
use crate::x86_64::env::Env;
use crate::x86_64::window::Stretch;
use trapline_image::{FunctionIndex, Image};
use trapline_insn::x86_64::{Body, Exit, ExitKind, Flow, Insn};
use trapline_record::Svma;

/// Upper bound of a function's cold parts.
const MOST_COLD: usize = 8;

/// A function's code in full.
pub(super) struct Code {
    pub(super) function: FunctionIndex,
    pub(super) body: Body,
}

impl Code {
    /// The first exit that leads into another function.
    pub(super) fn tail(&self) -> Option<&Exit> {
        self.body.exits.iter().find(|exit| exit.kind != ExitKind::Ret)
    }
    /// The first direct jump or branch to an address inside the function.
    pub(super) fn jump_to(&self, at: Svma) -> Option<&Insn> {
        // Most functions have none, and far fewer targets than instructions.
        let leads =
            |insn: &&Insn| matches!(insn.flow(), Flow::Jump(Some(to)) | Flow::Branch(to) if to == at.0);
        let is_target = self.body.targets.contains(&at.0);
        if is_target { self.body.insns.iter().find(leads) } else { None }
    }
    /// The instructions that lead, refer or run on to an address in `from..=to`.
    pub(super) fn leads_near(&self, from: Svma, to: Svma) -> Vec<Insn> {
        let inside = |at: u64| at >= from.0 && at <= to.0;
        let leads = |insn: &&Insn| {
            inside(insn.end())
                || insn.flow().target().is_some_and(inside)
                || insn.ip_rel().is_some_and(inside)
        };
        self.body.insns.iter().filter(leads).copied().collect()
    }
    pub(super) fn stretch_of(&self, at: u64) -> Option<(Stretch<'_>, usize)> {
        self.body.parts.iter().find_map(|part| {
            let insns = &self.body.insns[part.clone()];
            let i = insns.binary_search_by_key(&at, |i| i.addr).ok()?;
            Some((Stretch { insns, whole: true }, i))
        })
    }
}

/// The code of a function, if a request needs more than its entry. `spent` is a body that is not needed any more.
pub(super) fn code_for(
    env: Env<'_>,
    function: Option<FunctionIndex>,
    requests: &[(u32, ActionRequest)],
    spent: &mut Body,
) -> Option<Code> {
    let entry_only = requests.iter().all(|(_, w)| w.action.is_at_entry_alone());
    function.filter(|_| !entry_only).map(|f| code_of(env.image, f, std::mem::take(spent).emptied()))
}

fn code_of(image: &Image, function: FunctionIndex, empty: Body) -> Code {
    let f = image.function(function);
    let mut cold = f.cold.clone();
    let mut body = body_with(image, empty, (f.start, f.len), &cold);
    while cold.len() < MOST_COLD {
        let known = cold.len();
        for exit in &body.exits {
            let (ExitKind::TailJump(to) | ExitKind::TailBranch(to)) = exit.kind else { continue };
            let fragment = fragment_at(image.fragments(), Svma(to));
            cold.extend(fragment.filter(|f| !cold.contains(f) && cold.len() < MOST_COLD));
        }
        if cold.len() == known {
            break;
        }
        body = body_with(image, body, (f.start, f.len), &cold);
    }
    Code { function, body }
}

fn fragment_at(fragments: &[(Svma, u64)], at: Svma) -> Option<(Svma, u64)> {
    let next = fragments.partition_point(|f| f.0 <= at);
    let found = *fragments.get(next.checked_sub(1)?)?;
    (at.0 - found.0.0 < found.1).then_some(found)
}
