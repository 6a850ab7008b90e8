//! Puts patches into a process: steps I1 to I11 of [`protocol`](crate::protocol).
//!
//! `attach` leads through the steps. `survey` and `work` look (I1), `ask` stops one thread (I2). `prepare` plans
//! (I3), with `layout` for room and `compare` for what memory holds; the result is `prepared`. `map` makes memory
//! and `handler` sets signal actions (I5). `publish` writes (I8 to I10). `rehearse` does as much of it as changes
//! nothing.

pub(crate) mod ask;
pub(crate) mod attach;
pub(crate) mod caller;
pub(crate) mod compare;
pub(crate) mod delivery;
pub(crate) mod handler;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod prepare;
pub(crate) mod prepared;
pub(crate) mod publish;
pub(crate) mod rehearse;
pub(crate) mod survey;
pub(crate) mod translated;
pub(crate) mod work;
