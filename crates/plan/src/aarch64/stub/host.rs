//! What must hold where the stubs run on the processor for which this is built: others step over the code of return
//! trampolines by this processor's constants. x86-64's are the ones that the crate `record` states for it.

use super::trampolines::RETURN;
use trapline_record::trampolines;

const _: () = assert!(RETURN == trampolines::RETURN);
