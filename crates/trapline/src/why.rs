//! Stable words for the reasons why places are not patched.

use trapline_patch::Why;

/// A stable word for a reason.
pub(crate) fn kind_of(why: &Why) -> &'static str {
    match why {
        Why::Plan(refusal) => refusal.kind(),
        Why::Word(refusal) => refusal.kind(),
        Why::Differs { .. } => "bytes-differ",
        Why::NotMapped { .. } => "not-mapped",
        Why::Held { .. } => "held",
        Why::SavedContext { .. } => "saved-context",
        Why::CrossesLine { .. } => "crosses-line",
        Why::NeedsTraps { .. } | Why::Unproven { .. } => "needs-traps",
        Why::TooManyRegions { .. } => "too-many-regions",
        #[allow(unreachable_patterns, reason = "reasons may be added")]
        _ => "other",
    }
}
