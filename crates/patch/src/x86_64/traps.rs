//! Whether patches need somebody who serves traps in other processes: whoever stands inside a window traps.

pub(crate) const NEEDED: bool = true;
