//! What lines, rows and JSON of a call have in common.
//!
//! In: parts of a call, its signature. Out: words, numbers, types. Does not: lay them out.

use std::sync::Arc;

use trapline::calls::CallEnd;

use crate::args::types::{Signature, Type};
use crate::report::code_names::CodeNames;

/// The name of the function that a value points to.
pub(super) fn named(names: &mut Option<Box<CodeNames>>, pid: u32, raw: u64) -> Option<Arc<str>> {
    names.as_mut()?.of(pid, raw)
}

/// The end of a call as one word.
pub(super) const fn how(how: CallEnd) -> &'static str {
    match how {
        CallEnd::Entered => "entered",
        CallEnd::Returned => "returned",
        CallEnd::TailCall => "tail",
        CallEnd::Unfinished => "unfinished",
    }
}

/// The type by which a returned value is shown.
pub(crate) fn value_type(signature: Option<&Signature>) -> &Type {
    signature.and_then(|signature| signature.value.as_ref()).unwrap_or(&Type::Hex)
}

/// A duration as a number of nanoseconds.
pub(crate) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
