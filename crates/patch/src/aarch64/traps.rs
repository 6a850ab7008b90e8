//! Whether patches need traps to be served in other processes: no. A patch is one word, inside which no
//! thread can stand, so nothing traps.

pub(crate) const NEEDED: bool = false;
