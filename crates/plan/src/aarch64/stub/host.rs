//! What must hold where the stubs run on the processor for which this is built.
//!
//! The crate `record` states this processor's constants of return trampolines, and other crates go by them. x86-64's
//! stubs take theirs from there.

use super::trampolines::RETURN;
use trapline_record::trampolines;

const _: () = assert!(RETURN == trampolines::RETURN);
