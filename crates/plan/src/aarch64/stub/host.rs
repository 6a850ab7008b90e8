//! What must hold where the stubs run on the processor for which this is built.

use super::trampolines::RETURN;
use trapline_record::trampolines;

const _: () = assert!(RETURN == trampolines::RETURN);
