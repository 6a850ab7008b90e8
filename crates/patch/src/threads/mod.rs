//! What the threads of a process show, running or stopped: masks of signals, control blocks, stacks, saved
//! contexts, traps on their way.

pub(crate) mod blocked;
pub(crate) mod known;
pub(crate) mod library;
pub(crate) mod quiesce;
pub(crate) mod stack;
pub(crate) mod still;
