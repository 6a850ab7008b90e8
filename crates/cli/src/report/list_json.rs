//! What `list --json` prints, as docs/guide/json.md states it: an object for each function.
//!
//! In: functions that were found. Out: lines. The order of the structs' fields is part of the format. Does not: look for
//! functions.

use serde::Serialize;
use trapline::Returns;
use trapline::declaration::{Declaration, Offered};
use trapline::listing::Listed;

use super::json::{SCHEMA, line};

#[derive(Serialize)]
struct ListRow<'a> {
    r#type: &'static str,
    schema: u32,
    probe: &'a str,
    aliases: &'a [String],
    file: &'a str,
    offset: u64,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tactic: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    returns: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    declaration: Option<DeclarationRow<'a>>,
}

#[derive(Serialize)]
struct DeclarationRow<'a> {
    value: Option<&'a str>,
    args: Vec<OfferedRow<'a>>,
    source: Option<&'a str>,
    line: Option<u32>,
}

#[derive(Serialize)]
struct OfferedRow<'a> {
    name: &'a str,
    r#type: &'a str,
    place: Option<&'a str>,
}

/// One `list` object for each function.
pub(crate) fn list(listed: &[Listed]) -> String {
    listed
        .iter()
        .map(|one| {
            line(&ListRow {
                r#type: "list",
                schema: SCHEMA,
                probe: &one.probe,
                aliases: &one.aliases,
                file: &one.file,
                offset: one.offset,
                size: one.size,
                pid: one.pid,
                tactic: one.tactic.as_ref().ok().map(|tactic| tactic.name()),
                returns: form(one),
                reason: one.tactic.as_ref().err().map(|refused| refused.reason.as_str()),
                declaration: one.declaration.as_ref().map(declaration),
            })
        })
        .collect()
}

fn offered(one: &Offered) -> OfferedRow<'_> {
    OfferedRow { name: &one.name, r#type: &one.of, place: one.place.as_deref() }
}

fn declaration(of: &Declaration) -> DeclarationRow<'_> {
    DeclarationRow {
        value: of.value.as_deref(),
        args: of.arguments.iter().map(offered).collect(),
        source: of.line.as_ref().map(|line| line.file.as_str()),
        line: of.line.as_ref().map(|line| line.line),
    }
}

/// The form in which a function's calls would be timed.
pub(crate) fn form(one: &Listed) -> Option<&'static str> {
    match (one.returns?, one.tactic.is_ok()) {
        (Returns::Stack, true) => Some("stack"),
        (_, true) => Some("exits"),
        (_, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::list;
    use crate::report::samples::listed;

    #[test]
    fn list_is_as_documented() {
        let expected = concat!(
            r#"{"type":"list","schema":1,"probe":"uprobe:/bin/victim:work","aliases":["uprobe:/bin/victim:work_alias"],"#,
            r#""file":"/bin/victim","offset":4096,"size":120,"pid":42,"tactic":"jump","returns":"stack"}"#,
            "\n",
            r#"{"type":"list","schema":1,"probe":"uprobe:/bin/victim:tiny","aliases":[],"file":"/bin/victim","#,
            r#""offset":8192,"size":3,"reason":"3 bytes"}"#,
            "\n"
        );
        assert_eq!(list(&listed()), expected);
    }
}
