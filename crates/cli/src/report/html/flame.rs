//! Stacks for the page: each function once, and stacks as lists of function numbers.
//!
//! In: sums of stacks, and the source of names. Out: the data from which the page's script makes boxes. Does
//! not: draw.

use std::collections::HashMap;

use serde::Serialize;
use trapline::stacks::Function;

use crate::report::stacks::Shown;

/// All stacks.
#[derive(Debug, Serialize)]
pub(super) struct Flame {
    functions: Vec<Named>,
    stacks: Vec<Stack>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
struct Named {
    name: String,
    /// The source file; otherwise the program or library.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inlined: bool,
}

#[derive(Debug, Serialize)]
struct Stack {
    pid: u32,
    probe: String,
    offset: u64,
    /// Number of hits, or nanoseconds.
    value: u64,
    cut: bool,
    /// Indexes of functions, from the outermost on.
    frames: Vec<usize>,
}

impl Flame {
    pub(super) fn new(shown: &mut Shown<'_>) -> Self {
        let (mut numbers, mut functions) = (HashMap::new(), Vec::new());
        let mut number = |function: &Function| {
            let named = Named::new(function);
            *numbers.entry(named.clone()).or_insert_with(|| {
                functions.push(named);
                functions.len() - 1
            })
        };
        let mut stacks = Vec::new();
        for stack in shown.stacks {
            let named = shown.frames(stack);
            let mut frames: Vec<usize> =
                named.iter().flat_map(|functions| functions.iter()).map(&mut number).collect();
            frames.reverse();
            stacks.push(Stack {
                pid: stack.pid,
                probe: stack.site.probe.clone(),
                offset: stack.site.offset,
                value: shown.value(stack),
                cut: stack.cut,
                frames,
            });
        }
        Self { functions, stacks }
    }
}

impl Named {
    /// A box stands for a function, not for a line in it.
    fn new(function: &Function) -> Self {
        let place = match &function.line {
            Some((file, _)) => Some(file.clone()),
            None => function.module.clone(),
        };
        Self { name: function.name.clone(), place, inlined: function.inlined }
    }
}
