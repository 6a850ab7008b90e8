//! Hardware breakpoints: which of them fit. Internal to Trapline.
#![forbid(unsafe_code)]

pub mod constraints;
