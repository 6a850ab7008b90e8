//! Arguments in two stages: [`typed`] is what was written, [`ready`] is what it means, checked and converted.

pub(crate) mod ready;
pub(crate) mod signature;
pub(crate) mod typed;
pub(crate) mod units;
