//! The name of a site in tables.
//!
//! In: a site. Out: its label, with a mark where the label alone would also name another site. Does not: make
//! it safe for a terminal.

use std::borrow::Cow;

use trapline::Site;

/// The label; behind that of a function's exits, which is its entry's too, ` (return)`.
pub(crate) fn name(site: &Site) -> Cow<'_, str> {
    match site.probe.starts_with("uretprobe:") {
        true => format!("{} (return)", site.label).into(),
        false => site.label.as_str().into(),
    }
}
