//! `*req->next[2].len` taken apart: a name, and steps behind it.
//!
//! In: text. Out: the name and its steps, each with its place in the text; or which part is no path. Does not: know types.

use std::ops::Range;

use crate::no_field::{Misplaced, NoField};

/// A step of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PathPart<'a> {
    Field(&'a str),
    Index(u64),
    /// What the pointer leads to.
    Target,
}

/// A step, and the range of bytes of the path that contain it.
pub(crate) type Placed<'a> = (PathPart<'a>, Range<usize>);
/// The bytes of a path's name: behind the stars.
pub(crate) fn name_in(path: &str, name: &str) -> Range<usize> {
    let stars = path.len() - path.trim_start_matches('*').len();
    stars..stars + name.len()
}

/// Splits `req->next[2].len` into the name, and each step with its range.
pub(crate) fn steps(path: &str) -> Result<(&str, Vec<Placed<'_>>), Misplaced> {
    let wrong = |at: usize| Misplaced { at: at..path.len().max(at + 1), why: NoField::Syntax };
    let word = |at: usize| {
        let len = path[at..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(path.len() - at);
        if len == 0 { Err(wrong(at)) } else { Ok(at..at + len) }
    };
    let stars = name_in(path, "").start;
    let mut name = word(stars)?;
    // Of C++ and Rust: `Server::count`.
    while path[name.end..].starts_with("::") {
        name.end = word(name.end + 2)?.end;
    }
    let (mut at, mut steps) = (name.end, Vec::new());
    while at < path.len() {
        let rest = &path[at..];
        if rest.starts_with("->") || rest.starts_with('.') {
            let field = word(at + if rest.starts_with('.') { 1 } else { 2 })?;
            at = field.end;
            steps.push((PathPart::Field(&path[field.clone()]), field));
        } else if rest.starts_with('[') {
            let end = at + rest.find(']').ok_or_else(|| wrong(at))?;
            let index = path[at + 1..end].trim().parse().map_err(|_| wrong(at + 1))?;
            steps.push((PathPart::Index(index), at..end + 1));
            at = end + 1;
        } else {
            return Err(wrong(at));
        }
    }
    // As in C, steps bind more strongly: `*a->b` is what `a->b` leads to.
    (0..stars).rev().for_each(|at| steps.push((PathPart::Target, at..at + 1)));
    Ok((&path[name], steps))
}

#[cfg(test)]
mod tests {
    use super::{NoField, PathPart, steps};

    #[test]
    fn paths_are_taken_apart() {
        let (name, all) = steps("req->next[12].len_2").expect("a path");
        let all: Vec<_> = all.into_iter().map(|(step, at)| (step, at.start)).collect();
        assert_eq!(
            (name, all),
            (
                "req",
                vec![(PathPart::Field("next"), 5), (PathPart::Index(12), 9), (PathPart::Field("len_2"), 14),]
            )
        );
        assert_eq!(
            steps("ns::Server::count.of").map(|(name, all)| (name, all.len())),
            Ok(("ns::Server::count", 1))
        );
        for (wrong, at) in [
            ("", 0),
            ("a::", 3),
            ("a:b", 1),
            ("a->", 3),
            ("a.", 2),
            ("a[", 1),
            ("a[x]", 2),
            ("a b", 1),
            ("a-b", 1),
            ("->a", 0),
        ] {
            let error = steps(wrong).expect_err(wrong);
            assert_eq!((error.at.start, error.why), (at, NoField::Syntax), "{wrong}");
        }
    }
}
