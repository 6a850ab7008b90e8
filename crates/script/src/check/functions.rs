//! Calls of builtins and functions, by the table.
//!
//! In: a name and arguments. Out: a typed expression. What an argument must be and what comes out is read from the
//! table; functions that need more are in [`special`](super::special) and [`sums`](super::sums).
//! Does not: compute anything.

use super::checker::Checker;
use crate::calls::{self, Arg, FUNCTIONS, Function, Gives, Meaning};
use crate::diagnostic::Diagnostic;
use crate::program::{Op, Typed};
use crate::source::Span;
use crate::suggest::nearest;
use crate::tree::{Expr, ExprKind};
use crate::types::Type;

/// Frames of a stack, if no number is given.
pub(crate) const MOST_FRAMES: i64 = 127;

impl<'a> Checker<'a> {
    /// A call of a macro, a builtin or a function.
    pub(super) fn call(&mut self, name: &str, args: &'a [Expr], span: Span) -> Typed {
        if !name.starts_with("__builtin_")
            && let Some(expanded) = self.expand(name, args, span)
        {
            return expanded;
        }
        let Some(row) = calls::find(name) else { return self.unknown(name, span) };
        if let Err(message) = self.allowed(row, args.len()) {
            let at = self.at(span);
            let mut error = Diagnostic::error(message, at.clone());
            if row.meaning == Meaning::Refused {
                error = error.hint(calls::reason(row.name));
            }
            self.say(error);
            return Typed::nothing(&at);
        }
        match row.meaning {
            Meaning::Sum(sum) => self.sum(sum, args, span),
            _ if row.args.contains(&Arg::Format) => self.formatted(row, args, span),
            _ => match self.special(row, args, span) {
                Some(typed) => typed,
                None => self.plain_call(row, args, span),
            },
        }
    }
    fn unknown(&mut self, name: &str, span: Span) -> Typed {
        let at = self.at(span);
        let names = FUNCTIONS.iter().map(|row| row.name);
        let macros = self.tree.macros.iter().map(|def| def.name.as_str());
        let mut error = Diagnostic::error(format!("Unknown function: '{name}'"), at.clone());
        if let Some(near) = nearest(name, names.chain(macros)) {
            error = error.hint(format!("Did you mean {near}?"));
        }
        self.say(error);
        Typed::nothing(&at)
    }
    /// Whether a function may be called here with so many arguments.
    fn allowed(&mut self, row: &Function, count: usize) -> Result<(), String> {
        let (name, least, most) = (row.name, row.least, row.args.len());
        let unbounded = row.args.contains(&Arg::Format);
        if row.meaning == Meaning::Refused {
            return Err(format!("{name} is not supported"));
        }
        let plural = |count: usize| if count == 1 { "argument" } else { "arguments" };
        if count < least || count > most && !unbounded {
            let (bound, word) = match () {
                () if least == most => (least, ""),
                () if count < least => (least, "at least "),
                () => (most, "at most "),
            };
            let noun = plural(bound);
            return Err(format!("{name}() requires {word}{bound} {noun} ({count} provided)"));
        }
        let is_unsafe = matches!(row.meaning, Meaning::System | Meaning::Signal);
        if is_unsafe && !self.options.allow_unsafe {
            return Err(format!("{name}() is unsafe. To use you need the --unsafe flag"));
        }
        let of_program: &[&str] = match row.meaning {
            Meaning::Argument(_) => &["uprobe", "usdt"],
            Meaning::Reg | Meaning::Args | Meaning::Uaddr => &["uprobe"],
            Meaning::Retval => &["uretprobe"],
            Meaning::Func => &["uprobe", "uretprobe"],
            _ => return Ok(()),
        };
        match self.sorts.iter().find(|sort| !of_program.contains(sort)) {
            None => Ok(()),
            Some(sort) => {
                let suits = of_program.join(" or ");
                Err(format!("The {name} builtin can only be used with {suits} probes, not with '{sort}'"))
            }
        }
    }
    /// A function of which the table says everything.
    fn plain_call(&mut self, row: &'static Function, args: &'a [Expr], span: Span) -> Typed {
        let typed: Vec<Typed> =
            args.iter().zip(row.args).map(|(arg, wanted)| self.argument(row.name, *wanted, arg)).collect();
        let ty = self.result(row, &typed);
        self.note_need(row, &typed, span);
        Typed::new(Op::Call { meaning: row.meaning, args: typed }, ty, &self.at(span))
    }
    /// What a block asks of a hit for a builtin. What is asked of the world is our own process's, so a hit of a
    /// program cannot answer it.
    fn note_need(&mut self, row: &Function, args: &[Typed], span: Span) {
        match row.meaning {
            Meaning::Argument(index) => self.needs.args |= 1 << index,
            Meaning::Retval => self.needs.retval = true,
            Meaning::Ustack | Meaning::DwUstack => {
                self.needs.unwound |= row.meaning == Meaning::DwUstack;
                let depth = args
                    .iter()
                    .find_map(Typed::constant)
                    .map_or(MOST_FRAMES, |depth| depth.clamp(1, MOST_FRAMES));
                self.needs.stack = self.needs.stack.max(depth as u8);
            }
            Meaning::Uid
            | Meaning::Gid
            | Meaning::Username
            | Meaning::Cpu
            | Meaning::Numaid
            | Meaning::Cgroup
            | Meaning::Jiffies
            | Meaning::Ppid => self.needs.unavailable.push((row.name.to_owned(), self.at(span))),
            Meaning::Pid | Meaning::Tid | Meaning::Nsecs => {
                let word = args.first().and_then(Typed::literal).unwrap_or_default();
                if !matches!(word, b"" | b"boot" | b"curr_ns" | b"init") {
                    let text = format!("{}({})", row.name, String::from_utf8_lossy(word));
                    self.needs.unavailable.push((text, self.at(span)));
                }
            }
            _ => {}
        }
    }
    fn result(&self, row: &Function, args: &[Typed]) -> Type {
        match row.gives {
            Gives::Nothing | Gives::Own | Gives::Sum(_) => Type::None,
            Gives::Bool => Type::Bool,
            Gives::Int(size) => Type::int(size),
            Gives::Uint(size) => Type::uint(size),
            Gives::Text(size) => Type::Text(size),
            Gives::LongText => Type::Text(self.config.max_strlen),
            Gives::Buffer => Type::Buffer(self.config.max_strlen),
            Gives::Stack => Type::Stack,
            Gives::Symbol => Type::Symbol,
            Gives::Inet => Type::Inet,
            Gives::Mac => Type::Mac,
            Gives::Time => Type::Timestamp,
            Gives::User => Type::Username,
            Gives::Cgroup => Type::CgroupPath,
            Gives::Same => args.first().map_or(Type::None, |arg| arg.ty.clone()),
        }
    }
    /// An argument, checked.
    pub(super) fn argument(&mut self, name: &str, wanted: Arg, arg: &'a Expr) -> Typed {
        if let Arg::Word(words) = wanted {
            return self.word(name, words, arg);
        }
        if wanted == Arg::Mode
            && let ExprKind::Name(mode) = &arg.kind
            && ["bpftrace", "perf", "raw", "build_id"].contains(&mode.as_str())
        {
            return self.literal(mode.as_bytes(), arg.span);
        }
        let value = self.expr(arg);
        let value = self.read_sum(value);
        let (ok, what) = match wanted {
            Arg::Int => (value.ty.is_number(), "int"),
            Arg::Mode | Arg::Number => (value.constant().is_some(), "int literal"),
            Arg::Text => (is_textual(&value.ty), "string"),
            Arg::Literal => (value.literal().is_some(), "string literal"),
            Arg::Address => (value.ty.is_number() || matches!(value.ty, Type::Pointer(_)), "int or pointer"),
            _ => (!value.ty.is_none(), "other"),
        };
        if ok || value.ty.is_none() && !self.last {
            return value;
        }
        let ty = &value.ty;
        let message = match wanted {
            Arg::Literal | Arg::Number | Arg::Mode => format!("{name}() expects a {what} ({ty} provided)"),
            _ => format!("{name}() only supports {what} arguments ({ty} provided)"),
        };
        let at = self.at(arg.span);
        let mut error = Diagnostic::error(message, at.clone());
        if let (Arg::Literal | Arg::Text, ExprKind::Positional(index)) = (wanted, &arg.kind) {
            error = error.hint(format!("Use str(${index}) to treat ${index} as a string"));
        }
        self.say(error);
        Typed::nothing(&at)
    }
    /// One of the words that a function knows.
    fn word(&mut self, name: &str, words: &[&str], arg: &'a Expr) -> Typed {
        match &arg.kind {
            ExprKind::Name(word) if words.contains(&word.as_str()) => self.literal(word.as_bytes(), arg.span),
            _ => {
                let message = format!("{name}() expects one of {}", words.join(", "));
                self.fail(message, arg.span)
            }
        }
    }
}

/// Whether a value is a text, or can be read as one.
pub(super) fn is_textual(ty: &Type) -> bool {
    match ty {
        Type::Text(_) | Type::Symbol | Type::Inet | Type::Mac | Type::Username => true,
        Type::Array(of, _) | Type::Pointer(of) => of.size() == 1,
        _ => false,
    }
}
