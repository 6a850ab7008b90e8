//! `top`: what happens now, function by function.
//!
//! [`model`]: samples in, rows with rates, percentiles and history out. [`view`]: keys in, order, filter and place out. [`draw`]: both
//! in, cells out. [`lines`]: the same for what is no terminal. All of these are values; [`screen`] is the terminal. Does not: know
//! processes, sessions or time; `commands::top` does.

pub(crate) mod draw;
pub(crate) mod lines;
pub(crate) mod model;
pub(crate) mod screen;
pub(crate) mod view;
