//! What may stand at the cursor, by the definitions of the command line.
//!
//! In: clap's command; the words before the cursor, and the cursor's own so far. Out: a verb, an option, or the value of
//! which argument. Does not: look at the machine.

use clap::{Arg, Command};

/// What may stand at the cursor.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// What is typed before the part that is wanted, in the same word: `--ret=` of `--ret=au`.
    pub(super) head: String,
    pub(super) what: What<'a>,
    /// Options before it, with their values.
    pub(super) given: Vec<(&'a Arg, String)>,
}

#[derive(Debug)]
pub(super) enum What<'a> {
    /// A verb of this command.
    Verb(&'a Command),
    /// An option of this command.
    Option(&'a Command),
    /// A value of this argument.
    Value(&'a Arg),
    /// The first word of a command to run, or a later one.
    Command { is_first: bool },
    /// Nothing that is known.
    Nothing,
}

/// Finds it.
pub(super) fn wanted<'a>(root: &'a Command, before: &[String], current: &str) -> Wanted<'a> {
    let mut command = root;
    let (mut places, mut pending, mut given) = (0, None::<&Arg>, Vec::new());
    for (at, word) in before.iter().enumerate() {
        if let Some(arg) = pending.take() {
            given.push((arg, word.clone()));
        } else if word == "--" {
            let what = What::Command { is_first: at + 1 == before.len() };
            return Wanted { head: String::new(), what, given };
        } else if word.starts_with('-') && word.len() > 1 {
            match option(command, word) {
                Some(OptionTyped { arg, value: Some(value) }) => given.push((arg, value.to_owned())),
                Some(typed) => pending = Some(typed.arg),
                None => {}
            }
        } else if let Some(verb) = command.find_subcommand(word) {
            command = verb;
        } else {
            places += 1;
        }
    }
    let typed = option(command, current).filter(|_| pending.is_none());
    if let Some(OptionTyped { arg, value: Some(value) }) = typed {
        let head = current[..current.len() - value.len()].to_owned();
        return Wanted { head, what: What::Value(arg), given };
    }
    let what = match pending {
        Some(arg) => What::Value(arg),
        None if current.starts_with('-') => What::Option(command),
        None if command.has_subcommands() => What::Verb(command),
        None => place(command, places).map_or(What::Nothing, What::Value),
    };
    Wanted { head: String::new(), what, given }
}

/// An option that takes a value, as it was typed.
struct OptionTyped<'a, 'w> {
    arg: &'a Arg,
    /// Its value, if that stands in the same word.
    value: Option<&'w str>,
}

/// The option of a word that takes a value: `--name`, `--name=VALUE`, `-x`, `-xVALUE`, or the last of `-abx`.
fn option<'a, 'w>(command: &'a Command, word: &'w str) -> Option<OptionTyped<'a, 'w>> {
    let takes = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_positional();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let arg = command.get_arguments().filter(takes).find(|arg| arg.get_long() == Some(name))?;
        return (value.is_some() || !arg.is_require_equals_set()).then_some(OptionTyped { arg, value });
    }
    let shorts = word.strip_prefix('-')?;
    let (at, arg) = shorts.char_indices().find_map(|(at, c)| {
        command
            .get_arguments()
            .filter(takes)
            .find(|arg| arg.get_short() == Some(c))
            .map(|arg| (at + c.len_utf8(), arg))
    })?;
    Some(OptionTyped { arg, value: Some(&shorts[at..]).filter(|value| !value.is_empty()) })
}

/// The argument that stands at a place without an option. The last one may stand there again and again.
fn place(command: &Command, nth: usize) -> Option<&Arg> {
    let mut places = command.get_positionals().filter(|arg| !arg.is_last_set() && !arg.is_hide_set());
    let is_many = |arg: &&Arg| arg.get_num_args().is_some_and(|number| number.max_values() > 1);
    let first = places.by_ref().take(nth + 1).last()?;
    let index = first.get_index().unwrap_or(1) - 1;
    (index == nth || is_many(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{What, wanted};
    use crate::args::typed::Typed;

    /// Which argument's value is wanted at the end, with what stands before it in its word, and the options before.
    fn value(words: &str) -> (String, String, Vec<(String, String)>) {
        let mut command = Typed::command();
        command.build();
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let (current, before) = words.split_last().expect("a word");
        let wanted = wanted(&command, before, current);
        let What::Value(arg) = wanted.what else { panic!("{words:?}: {:?}", wanted.what) };
        let given = wanted.given.iter().map(|(arg, value)| (arg.get_id().to_string(), value.clone()));
        (arg.get_id().to_string(), wanted.head, given.collect())
    }

    #[test]
    fn options_take_their_values_in_all_forms() {
        for (words, id, head) in [
            ("count -p ", "pids", ""),
            ("count -qp ", "pids", ""),
            ("count -p1", "pids", "-p"),
            ("count --pid ", "pids", ""),
            ("count --pid=", "pids", "--pid="),
            ("count -q ", "probes", ""),
            ("count -p 1 f ", "probes", ""),
            ("graph ", "root", ""),
            ("graph f ", "below", ""),
            ("watch --rotate ", "places", ""),
            ("watch --rotate=", "rotate", "--rotate="),
        ] {
            let (found, before, _) = value(words);
            assert_eq!((found.as_str(), before.as_str()), (id, head), "{words}");
        }
        let given = value("count -p1 --pid=2 -n x ").2;
        let given: Vec<_> = given.iter().map(|(id, value)| (id.as_str(), value.as_str())).collect();
        assert_eq!(given, [("pids", "1"), ("pids", "2"), ("names", "x")]);
    }
}
