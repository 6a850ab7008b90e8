//! Whether patches need somebody who serves traps in other processes: a patch is one word, inside which nobody can stand, so nothing traps.

pub(crate) const NEEDED: bool = false;
