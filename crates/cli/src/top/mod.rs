//! `top`: what happens now, function by function.
//!
//! [`model`] turns samples into rows with rates, percentiles and history. [`view`] turns keys into order,
//! filter and position. [`draw`] turns both into cells. [`lines`] does that where there is no terminal. All
//! of these are values; [`screen`] is the terminal. Does not: know processes, sessions or time;
//! `commands::top` does.

pub(crate) mod draw;
pub(crate) mod lines;
pub(crate) mod model;
pub(crate) mod screen;
pub(crate) mod view;
