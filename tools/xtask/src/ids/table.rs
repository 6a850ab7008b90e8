//! The table of docs/design/invariants.md.
//!
//! In: definitions; which pages of docs/design name which ids; the page as it is. Out: the page with the table of these.
//! Does not: list promises, which have a table of their own (PROMISES.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::definitions::Definition;
use super::words::Id;

/// The page that the table stands in.
pub(super) const PAGE: &str = "docs/design/invariants.md";

/// The lines between which it stands.
const BEGIN: &str = "<!-- The table is written by `cargo xtask ids --write`. -->";
const END: &str = "<!-- End of the table. -->";

/// `page` with the table of these definitions; none without the lines that say where it belongs.
pub(super) fn write(page: &str, defined: &[Definition], pages: &BTreeMap<Id, Vec<String>>) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let mut rows: Vec<&Definition> = defined.iter().filter(|found| found.path.ends_with(".rs")).collect();
    rows.sort_by(|a, b| a.id.cmp(&b.id).then_with(|| a.path.cmp(&b.path)));
    let mut table = String::from("| id | invariant | stated in | pages |\n|---|---|---|---|\n");
    for found in rows {
        let links: Vec<String> =
            pages.get(&found.id).into_iter().flatten().map(|name| format!("[{name}]({name}.md)")).collect();
        let (id, path, says) = (&found.id, &found.path, first_sentence(&found.says));
        let file = path.strip_prefix("crates/").unwrap_or(path).replace("/src/", "/");
        let _ = writeln!(table, "| {id} | {says} | [`{file}`](../../{path}) | {} |", links.join(", "));
    }
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

/// The first sentence, as Markdown of another file: names in brackets are no links there.
pub(super) fn first_sentence(says: &str) -> String {
    let text = says.split(". ").next().unwrap_or(says);
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, name)) = rest.split_once("[`") {
        let Some((name, behind)) = name.split_once("`]") else { break };
        let to = behind.strip_prefix('(').and_then(|to| to.split_once(')'));
        plain = format!("{plain}{before}`{name}`");
        rest = to.map_or(behind, |(_, behind)| behind);
    }
    (plain + rest).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::super::definitions::of;
    use super::{BEGIN, END, write};
    use std::collections::BTreeMap;

    #[test]
    fn the_table_takes_its_place_and_no_other() {
        let header = "//! - TAB-10 ten\n//! - TAB-9 [`a`](x::a) | b. And more.\n";
        let mut defined = of("crates/a/src/b.rs", header);
        defined.extend(of("PROMISES.md", "| SAFE-1 | Never. | y |\n"));
        let pages = BTreeMap::from([(defined[0].id.clone(), vec!["lookup".to_owned()])]);
        let page = format!("# Head\n\n{BEGIN}\nold\n{END}\n\nFoot\n");
        let new = format!(
            "# Head\n\n{BEGIN}\n\n| id | invariant | stated in | pages |\n|---|---|---|---|\n\
             | TAB-9 | `a` \\| b | [`a/b.rs`](../../crates/a/src/b.rs) |  |\n\
             | TAB-10 | ten | [`a/b.rs`](../../crates/a/src/b.rs) | [lookup](lookup.md) |\n\n{END}\n\nFoot\n"
        );
        assert_eq!(write(&page, &defined, &pages).as_ref(), Some(&new));
        assert_eq!(write(&new, &defined, &pages), Some(new));
        assert_eq!(write("# Head\n", &defined, &pages), None);
    }
}
