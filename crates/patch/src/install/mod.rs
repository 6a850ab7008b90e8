//! Puts patches into a process: steps I1 to I11 of [`protocol`](crate::protocol).
//!
//! `survey` looks (I1), `attach` leads through the steps, `prepare` plans and compares (I3), `map` makes
//! memory and takes signal actions (I5), `publish` writes (I8 to I10). `rehearse` does as much of it as
//! changes nothing.

pub(crate) mod attach;
pub(crate) mod caller;
pub(crate) mod map;
pub(crate) mod prepare;
pub(crate) mod publish;
pub(crate) mod rehearse;
pub(crate) mod survey;
pub(crate) mod translated;
