//! The table of `list` and `--dry-run`: function, file, offset, size, tactic or refusal.

use trapline::listing::Listed;
use trapline::summary::ByTactic;

use super::json::form;
use super::number::{grouped, plural};
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
            Ok(tactic) => match form(one) {
                Some(form) => format!("{}, {form}", tactic.name()),
                None => tactic.name().to_owned(),
            },
            Err(refused) => format!("refused ({})", refused.reason),
        };
        table.row([
            format!("{:#x}", one.offset),
            one.size.to_string(),
            tactic,
            one.function.clone(),
            one.file.clone(),
        ]);
    }
    table.text()
}

/// How many functions have which tactic.
pub(crate) fn totals(listed: &[Listed]) -> String {
    let mut tactics = ByTactic::default();
    listed.iter().filter_map(|one| one.tactic.as_ref().ok()).for_each(|&tactic| tactics.add(tactic));
    let refused = listed.iter().filter(|one| one.tactic.is_err()).count() as u64;
    let by_tactic = tactics.iter().map(|(tactic, n)| format!("{} {}", grouped(n), tactic.name()));
    let all: Vec<String> =
        by_tactic.chain((refused > 0).then(|| format!("{} refused", grouped(refused)))).collect();
    format!("{}: {}", plural(listed.len() as u64, "site", "sites"), all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{text, totals};
    use crate::report::samples::listed;

    #[test]
    fn a_function_has_a_tactic_or_a_refusal() {
        let expected = "OFFSET  SIZE  TACTIC             FUNCTION  FILE
0x1000   120  jump, stack        work      /bin/victim
0x2000     3  refused (3 bytes)  tiny      /bin/victim
";
        assert_eq!(text(&listed()), expected);
        assert_eq!(totals(&listed()), "2 sites: 1 jump, 1 refused");
        assert_eq!(totals(&listed()[..1]), "1 site: 1 jump");
    }
}
