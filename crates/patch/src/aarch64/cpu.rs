//! Which writes by another process are seen whole: aligned words, which all patches are here.

use crate::space::proven::{Proven, WORDS};

/// What holds on every machine (Arm ARM, B2.2.1).
pub(crate) const fn proven() -> Proven {
    WORDS
}
