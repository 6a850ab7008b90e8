//! Whether patches need traps to be served in other processes: yes. A thread that stands inside a window
//! traps.

pub(crate) const NEEDED: bool = true;
