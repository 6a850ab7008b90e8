//! The table of `list` and `--dry-run`: function, file, offset, size, tactic or refusal.

use trapline::Listed;

use super::table::{Align, Table};

/// Renders the functions found.
pub(crate) fn text(listed: &[Listed]) -> String {
    let mut table = Table::new(&[
        ("OFFSET", Align::Right),
        ("SIZE", Align::Right),
        ("TACTIC", Align::Left),
        ("FUNCTION", Align::Left),
        ("FILE", Align::Left),
    ]);
    for one in listed {
        let tactic = match &one.tactic {
            Ok(tactic) => tactic.name().to_owned(),
            Err(refused) => format!("refused ({})", refused.reason),
        };
        table.row([format!("{:#x}", one.offset), one.size.to_string(), tactic, one.function.clone(), one.file.clone()]);
    }
    table.text()
}
