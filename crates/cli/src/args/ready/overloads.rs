//! `Cart::add(int)`: what stands in brackets names one of several functions, or is a signature.
//!
//! In: probes as typed, and a way to look functions up. Out: for each probe the name of the function that its brackets mean;
//! none where they are a signature. Types may be spelled as in the source (`const char *`) or as reports show them
//! (`char const*`). Error: the brackets mean none of several functions, of which each takes something else; no signature
//! holds for all of them. Does not: read debug information.

use std::collections::BTreeSet;

use trapline::ProbeSpec;
use trapline::prototypes::ProbedFunction;

use super::error::UsageError;
use super::prototype::Look;
use super::signature::{self, SignatureError};
use crate::args::command::Run;
use crate::args::command::types::Signature;

/// Names of the C++ library that demanglers spell out.
const SPELLED: [(&str, &str); 2] = [
    ("std::string", "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"),
    ("std::string_view", "std::basic_string_view<char, std::char_traits<char> >"),
];
/// Words of which names of integer types consist.
const INTEGER: [&str; 6] = ["unsigned", "signed", "long", "short", "int", "char"];

/// A probe that was typed, taken apart: a name and its signature, if it has one.
pub(super) type Half = Result<(String, Option<Signature>), SignatureError>;

/// For each probe the function that its brackets name, if they name one. `run`: the run of some probes alone.
pub(super) fn named(
    texts: &[String],
    halves: &[Half],
    run: &dyn Fn(&[String]) -> Result<Run, UsageError>,
    look: Look<'_>,
) -> Result<Vec<Option<String>>, UsageError> {
    let is_probe = |text: &str| text.parse::<ProbeSpec>().is_ok();
    let candidate = |(text, half): (&String, &Half)| {
        let whole = signature::call(text).0;
        let (base, list) = signature::listed(whole)?;
        (may_name(half) && is_probe(whole) && is_probe(base))
            .then(|| (whole.to_owned(), base.trim().to_owned(), list.to_owned()))
    };
    let candidates: Vec<Option<(String, String, String)>> = texts.iter().zip(halves).map(candidate).collect();
    let asked: Vec<String> =
        candidates.iter().flatten().flat_map(|(whole, base, _)| [whole.clone(), base.clone()]).collect();
    let found = if asked.is_empty() { Vec::new() } else { look(&run(&asked)?) };
    let mut found = found.chunks_exact(2);
    let mut names = Vec::new();
    for candidate in candidates {
        let pair = candidate.and_then(|typed| Some((typed, found.next()?)));
        names.push(match pair {
            Some(((whole, base, list), [exact, of_name])) => match exact.is_empty() {
                false => Some(whole),
                true => spelled(&list, of_name)
                    .map_or_else(|| distinct(&base, of_name).map(|()| None), |name| Ok(Some(name)))?,
            },
            _ => None,
        });
    }
    Ok(names)
}

/// Refuses one signature for functions of one name of which each takes something else.
pub(super) fn distinct(name: &str, functions: &[ProbedFunction]) -> Result<(), UsageError> {
    let lists: BTreeSet<&str> = functions.iter().filter_map(|one| parameters(&one.label)).collect();
    if lists.len() < 2 {
        return Ok(());
    }
    let of: BTreeSet<&str> = functions.iter().map(|one| one.label.as_str()).collect();
    let of = of.into_iter().map(|label| format!("'{label}'")).collect::<Vec<_>>().join(", ");
    Err(UsageError::Overloads { name: name.to_owned(), of })
}

/// Whether the brackets may name an overload: they hold types without names, nothing, or what is no signature.
fn may_name(half: &Half) -> bool {
    match half {
        Ok((_, None)) => false,
        // Behind an offset no types follow.
        Ok((probe, Some(_))) if probe.parse::<ProbeSpec>().is_ok_and(|probe| probe.is_inside()) => false,
        Ok((_, Some(signature))) => {
            // `unsigned int` is a type of two words, and no name.
            let is_name = |name: &str| !name.is_empty() && !INTEGER.contains(&name);
            !signature.parameters.iter().any(|parameter| is_name(&parameter.name))
                || !signature.selected.is_empty()
        }
        Err(_) => true,
    }
}

/// The only function that takes what was typed, in another spelling.
fn spelled(list: &str, of: &[ProbedFunction]) -> Option<String> {
    let typed = canonical(list);
    let mut all = of.iter().filter(|one| parameters(&one.label).is_some_and(|list| canonical(list) == typed));
    let one = all.next()?;
    all.next().is_none().then(|| one.spec.text.clone())
}

/// What stands in the last brackets of a name, if it has any.
fn parameters(label: &str) -> Option<&str> {
    let end = label.rfind(')')?;
    let mut depth = 0;
    let begin = label[..=end].rfind(|letter: char| {
        depth += i32::from(letter == ')') - i32::from(letter == '(');
        depth == 0
    })?;
    Some(&label[begin + 1..end])
}

/// Types in one spelling, in their order.
fn canonical(list: &str) -> Vec<String> {
    let mut types = vec![String::new()];
    let mut depth = 0;
    for letter in list.chars() {
        depth += i32::from("(<[".contains(letter)) - i32::from(")>]".contains(letter));
        match (letter, depth) {
            (',', 0) => types.push(String::new()),
            _ => types.last_mut().into_iter().for_each(|one| one.push(letter)),
        }
    }
    let types = types.iter().map(|one| one.trim()).filter(|one| !matches!(*one, "" | "void"));
    types.map(canonical_type).collect()
}

fn canonical_type(of: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut is_word = false;
    for letter in of.chars() {
        let belongs = letter.is_alphanumeric() || "_:".contains(letter);
        match words.last_mut().filter(|_| belongs && is_word) {
            Some(word) => word.push(letter),
            None if letter.is_whitespace() => {}
            None => words.push(letter.to_string()),
        }
        is_word = belongs;
    }
    let base = words.iter().position(|word| !word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
    let rest = words.split_off(base.unwrap_or(words.len()));
    let is_const = words.iter().any(|word| word == "const");
    words.retain(|word| word != "const" && word != "struct" && word != "class" && word != "enum");
    let mut words = integer(words);
    if let [one] = &mut words[..]
        && let Some((_, long)) = SPELLED.iter().find(|(short, _)| one == short)
    {
        *one = canonical_type(long);
    }
    // A type with arguments: what belongs to it stands behind them.
    let all = [words, rest].concat();
    let behind = all.iter().rposition(|word| word == ">").map_or(base.map_or(all.len(), |_| 0), |at| at + 1);
    let pointers = all[behind..].iter().position(|word| "*&".contains(word.as_str()));
    let at = pointers.map_or(all.len(), |nth| behind + nth);
    let (before, after) = all.split_at(at);
    let is_noted = before.last().is_some_and(|word| word == "const");
    let between = if is_const && !is_noted { vec!["const".to_owned()] } else { Vec::new() };
    [before, &between, after].concat().join(" ")
}

/// The name of an integer type in one spelling: `long unsigned int` is `unsigned long`.
fn integer(words: Vec<String>) -> Vec<String> {
    if words.is_empty() || !words.iter().all(|word| INTEGER.contains(&word.as_str())) {
        return words;
    }
    let count = |of: &str| words.iter().filter(|word| *word == of).count();
    let sign = if count("unsigned") > 0 { vec!["unsigned"] } else { Vec::new() };
    let of = match (count("char"), count("short"), count("long")) {
        (1.., ..) if count("signed") > 0 => vec!["signed", "char"],
        (1.., ..) => vec!["char"],
        (_, 1.., _) => vec!["short"],
        (.., 0) => vec!["int"],
        (.., long) => vec!["long"; long],
    };
    sign.into_iter().chain(of).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{canonical, parameters};

    #[test]
    fn types_are_the_same_in_each_spelling() {
        for (typed, shown) in [
            ("const char *", "char const*"),
            ("const char*, unsigned", "char const*, unsigned int"),
            ("long unsigned int", "unsigned long"),
            ("short int", "short"),
            ("signed long long int", "long long"),
            ("unsigned char&", "unsigned char&"),
            ("void", ""),
            (
                "const std::string &, int",
                "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&, int",
            ),
            ("const Cart &", "Cart const&"),
            ("const std::vector<int> &", "std::vector<int> const&"),
            ("struct point *", "point*"),
            ("char *const", "char* const"),
        ] {
            assert_eq!(canonical(typed), canonical(shown), "{typed}");
        }
        for (one, other) in [
            ("int", "long"),
            ("char*", "char const*"),
            ("int, int", "int"),
            ("unsigned", "int"),
            ("", "int"),
            ("char const*", "char* const"),
        ] {
            assert_ne!(canonical(one), canonical(other), "{one}");
        }
    }

    #[test]
    fn the_last_brackets_are_the_parameters() {
        for (label, expected) in [
            ("f(int)", Some("int")),
            ("Cart::total() const", Some("")),
            ("run(void (*)(int), int)", Some("void (*)(int), int")),
            ("Call::operator()(int)", Some("int")),
            ("main", None),
        ] {
            assert_eq!(parameters(label), expected, "{label}");
        }
    }
}
