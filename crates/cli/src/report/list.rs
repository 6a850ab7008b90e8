//! The table of `list` and `--dry-run`: function, file, offset, size, tactic or refusal.

use trapline::declaration::{Declaration, Offered};
use trapline::listing::Listed;
use trapline::summary::ByTactic;

use super::list_json::form;
use super::number::{grouped, plural};
use super::table::{Align, Table};
use super::visible;

/// Renders the functions found, for a terminal with so many columns.
pub(crate) fn text(listed: &[Listed], columns: Option<usize>) -> String {
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
    table.text_within(columns)
}

/// The same, and below each function what it takes and returns, and where its arguments are.
pub(crate) fn declared(listed: &[Listed], columns: Option<usize>) -> String {
    let table = text(listed, columns);
    let (head, rows) = table.split_once('\n').unwrap_or((&table, ""));
    let mut text = format!("{head}\n");
    for (row, one) in rows.lines().zip(listed) {
        text += row;
        text.push('\n');
        for line in one.declaration.as_ref().map_or_else(nothing_noted, |declaration| lines(one, declaration))
        {
            text += &format!("    {}\n", visible::name(&line));
        }
    }
    text
}

fn nothing_noted() -> Vec<String> {
    vec!["nothing is known of what it takes".to_owned()]
}

fn lines(one: &Listed, declaration: &Declaration) -> Vec<String> {
    let spelled = |argument: &Offered| match argument.name.as_str() {
        "" => argument.of.clone(),
        name => format!("{} {name}", argument.of),
    };
    let all: Vec<String> = declaration.arguments.iter().map(spelled).collect();
    let line = declaration.line.as_ref().map(|line| format!("  {}:{}", line.file, line.line));
    let value = declaration.value.as_ref().map(|value| format!("{value} "));
    let mut lines = vec![format!(
        "{}{}({}){}",
        value.unwrap_or_default(),
        one.function,
        all.join(", "),
        line.unwrap_or_default()
    )];
    let place = |(nth, argument): (usize, &Offered)| {
        let name = if argument.name.is_empty() { format!("arg{nth}") } else { argument.name.clone() };
        format!("{name}: {}", argument.place.as_deref().unwrap_or("unknown"))
    };
    let places: Vec<String> = declaration.arguments.iter().enumerate().map(place).collect();
    lines.extend((!places.is_empty()).then(|| places.join(", ")));
    lines
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
    use super::{Declaration, Offered, declared, text, totals};
    use crate::report::samples::listed;

    #[test]
    fn a_function_has_a_tactic_or_a_refusal() {
        let expected = "OFFSET  SIZE  TACTIC             FUNCTION  FILE
0x1000   120  jump, stack        work      /bin/victim
0x2000     3  refused (3 bytes)  tiny      /bin/victim
";
        assert_eq!(text(&listed(), None), expected);
        let offered = |name: &str, of: &str, place: Option<&str>| Offered {
            name: name.to_owned(),
            of: of.to_owned(),
            place: place.map(str::to_owned),
        };
        let mut all = listed();
        all[0].declaration = Some(Declaration {
            value: Some("int".to_owned()),
            arguments: vec![offered("a", "long", Some("rdi")), offered("", "struct big", None)],
            line: Some(trapline::declaration::Line { file: "work.c".to_owned(), line: 7 }),
        });
        let expected = "OFFSET  SIZE  TACTIC             FUNCTION  FILE
0x1000   120  jump, stack        work      /bin/victim
    int work(long a, struct big)  work.c:7
    a: rdi, arg1: unknown
0x2000     3  refused (3 bytes)  tiny      /bin/victim
    nothing is known of what it takes
";
        assert_eq!(declared(&all, None), expected);
        assert_eq!(totals(&listed()), "2 sites: 1 jump, 1 refused");
        assert_eq!(totals(&listed()[..1]), "1 site: 1 jump");
    }
}
