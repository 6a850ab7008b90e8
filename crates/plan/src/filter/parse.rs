//! Turns tokens into a typed tree, with C's precedence; constants are folded.
//!
//! In: text; the names that it may use. Out: a tree within FLT-2, or what is wrong and at which token.

use super::error::{FilterError, Misread, Span, Why};
use super::eval::Facts;
use super::real::{Side, compare};
use super::token::{Token, token};
use super::tree::{Binary, Int, Known, MAX_NODES, MAX_TEMPORARIES, Symbol, Tree, Unary};

/// Deeper nesting than this is refused.
const DEPTH: u32 = 64;

/// Binary operators, those that bind loosest first.
const LEVELS: [&[(&str, Binary)]; 10] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[("|", Binary::BitOr)],
    &[("^", Binary::BitXor)],
    &[("&", Binary::BitAnd)],
    &[("==", Binary::Equal), ("!=", Binary::NotEqual)],
    &[("<=", Binary::LessEqual), (">=", Binary::GreaterEqual), ("<", Binary::Less), (">", Binary::Greater)],
    &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)],
];

/// Reads a condition.
///
/// # Errors
/// What is wrong, and at which token.
pub fn parse(text: &str, names: &[(String, Symbol)]) -> Result<Tree, FilterError> {
    let none = |path: &str| {
        Err(Misread {
            at: 0..path.len(),
            why: "nothing is known of fields here".to_owned(),
            is_unknown: true,
        })
    };
    parse_with(text, names, &none)
}

/// Reads a condition. `fields` returns what a path such as `req->len` means.
///
/// # Errors
/// What is wrong, and at which token.
pub fn parse_with(
    text: &str,
    names: &[(String, Symbol)],
    fields: &dyn Fn(&str) -> Result<Symbol, Misread>,
) -> Result<Tree, FilterError> {
    let mut parser = Parser { text, at: 0, names, fields, depth: 0 };
    let whole = Span { start: 0, len: text.trim_end().len() };
    let tree = parser.whole().and_then(|tree| check(tree).map_err(|why| (why, whole)));
    tree.map_err(|(why, span)| FilterError { text: text.to_owned(), span, why })
}

fn check(tree: Tree) -> Result<Tree, Why> {
    match tree {
        Tree::Number(value, _) => Err(Why::Constant(value != 0)),
        tree if tree.nodes() > MAX_NODES => Err(Why::Long(tree.nodes())),
        tree if tree.temporaries() > MAX_TEMPORARIES => Err(Why::Deep),
        tree => Ok(tree),
    }
}

type Parsed<T> = Result<T, (Why, Span)>;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: &'a [(String, Symbol)],
    fields: &'a dyn Fn(&str) -> Result<Symbol, Misread>,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Parsed<(Token<'a>, Span)> {
        token(self.text, self.at)
    }
    fn take(&mut self, span: Span) {
        self.at = span.start + span.len;
    }
    fn whole(&mut self) -> Parsed<Tree> {
        let (_, from) = self.peek()?;
        let tree = self.level(0)?;
        match self.peek()? {
            (Token::End, _) => tree.truth().map_err(|why| (why, from)),
            (_, span) => Err((Why::NoOperator, span)),
        }
    }
    fn level(&mut self, level: usize) -> Parsed<Side> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let (_, begin) = self.peek()?;
        let mut left = self.level(level + 1)?;
        let mut before = Span { len: self.at.saturating_sub(begin.start), ..begin };
        while let (Token::Mark(mark), span) = self.peek()? {
            let Some(&(_, op)) = operators.iter().find(|(text, _)| *text == mark) else { break };
            self.take(span);
            let (_, from) = self.peek()?;
            let right = self.level(level + 1)?;
            let span = Span { start: from.start, len: self.at.saturating_sub(from.start) };
            left = Side::Tree(join(op, (left, before), (right, span))?);
            before.len = self.at.saturating_sub(begin.start);
        }
        Ok(left)
    }
    fn unary(&mut self) -> Parsed<Side> {
        let (token, span) = self.peek()?;
        self.depth += 1;
        if self.depth > DEPTH {
            return Err((Why::Deep, span));
        }
        let tree = match token {
            Token::Mark("-") => self.prefix(Unary::Negate, span),
            Token::Mark("~") => self.prefix(Unary::Complement, span),
            Token::Mark("!") => self.prefix(Unary::Not, span),
            Token::Mark("(") => {
                self.take(span);
                let inside = self.level(0)?;
                match self.peek()? {
                    (Token::Mark(")"), span) => {
                        self.take(span);
                        Ok(inside)
                    }
                    (_, span) => Err((Why::NoBracket, span)),
                }
            }
            Token::Number(value) => {
                self.take(span);
                Ok(Side::Tree(Tree::Number(value, value > i64::MAX as u64)))
            }
            Token::Real(value) => {
                self.take(span);
                Ok(Side::Real(value))
            }
            Token::Name("INFINITY") => {
                self.take(span);
                Ok(Side::Real(f64::INFINITY))
            }
            Token::Path(path) => {
                self.take(span);
                (self.fields)(path).map(|symbol| Side::Tree(tree_of(symbol))).map_err(|wrong| {
                    let start = span.start + wrong.at.start.min(path.len());
                    let len = wrong.at.len().min(span.start + path.len() - start);
                    (Why::Path(wrong.why), Span { start, len })
                })
            }
            Token::Name(name) => {
                self.take(span);
                self.name(name).map(Side::Tree).map_err(|why| (why, span))
            }
            Token::Mark(_) | Token::End => Err((Why::NoValue, span)),
        };
        self.depth -= 1;
        tree
    }
    fn prefix(&mut self, op: Unary, span: Span) -> Parsed<Side> {
        self.take(span);
        let (_, under) = self.peek()?;
        let of = match (op, self.unary()?) {
            (Unary::Negate, Side::Real(real)) => return Ok(Side::Real(-real)),
            (Unary::Not, of) => of.truth(),
            (_, of) => of.whole(),
        };
        let of = of.map_err(|why| (why, under))?;
        Ok(Side::Tree(match (op, &of) {
            (Unary::Negate, Tree::Number(value, _)) if *value <= 1 << 63 => {
                Tree::Number(value.wrapping_neg(), false)
            }
            _ => fold(Tree::Unary(op, Box::new(of))),
        }))
    }
    /// A name of the call's, or else of a variable.
    fn name(&self, name: &str) -> Result<Tree, Why> {
        if let Some((_, symbol)) = self.names.iter().find(|(known, _)| known == name) {
            return Ok(tree_of(*symbol));
        }
        (self.fields)(name).map(tree_of).map_err(|wrong| match wrong.is_unknown {
            true => Why::Unknown { name: name.to_owned(), near: self.near(name) },
            false => Why::Path(wrong.why),
        })
    }
    /// Names that are spelt similarly; if there are none, the names that a call has.
    fn near(&self, name: &str) -> String {
        let distance = |known: &str| edits(&name.to_lowercase(), &known.to_lowercase());
        let nearest = self.names.iter().map(|(known, _)| (distance(known), known)).min();
        if let Some((_, known)) = nearest.filter(|(far, _)| *far <= (name.len() / 3).max(1)) {
            return format!("; did you mean `{known}`?");
        }
        let of_call = self.names.iter().filter(|(_, symbol)| matches!(symbol, Symbol::Known(_)));
        let words: Vec<&str> = of_call.map(|(known, _)| known.as_str()).collect();
        format!("; a call here has {}", words.join(", "))
    }
}

fn tree_of(symbol: Symbol) -> Tree {
    let with =
        |op, left: Tree, right: u64| Tree::Binary(op, Box::new(left), Box::new(Tree::Number(right, false)));
    match symbol {
        Symbol::Constant(value) => Tree::Number(value.cast_unsigned(), false),
        Symbol::Known(known) => Tree::Known(known),
        Symbol::Bits { of, from, count, signed: true } => {
            let raised = with(Binary::ShiftLeft, Tree::Known(of), u64::from(64 - from - count));
            with(Binary::ShiftRight, raised, u64::from(64 - count))
        }
        Symbol::Bits { of, from, count, signed: false } => {
            let lowered = with(Binary::ShiftRight, Tree::Known(of), u64::from(from));
            with(Binary::BitAnd, lowered, u64::MAX >> (64 - count))
        }
    }
}

/// Joins both sides to one tree.
fn join(op: Binary, (left, before): (Side, Span), (right, behind): (Side, Span)) -> Parsed<Tree> {
    if let Some(compared) = compare(op, &left, &right) {
        let span = if matches!(left, Side::Real(_)) { before } else { behind };
        return compared.map_err(|why| (why, span));
    }
    let (left, right) = match op {
        Binary::And | Binary::Or => (left.truth(), right.truth()),
        _ => (left.whole(), right.whole()),
    };
    let (left, right) = (left.map_err(|why| (why, before))?, right.map_err(|why| (why, behind))?);
    suits(op, &right).map_err(|why| (why, behind))?;
    Ok(fold(Tree::Binary(op, Box::new(left), Box::new(right))))
}

/// Checks that an operator may have this right side.
fn suits(op: Binary, right: &Tree) -> Result<(), Why> {
    match (op, right) {
        (Binary::ShiftLeft | Binary::ShiftRight, Tree::Number(0..=63, _)) => Ok(()),
        (Binary::ShiftLeft | Binary::ShiftRight, _) => Err(Why::Shift),
        (Binary::Divide | Binary::Remainder, Tree::Number(by, _)) if by.cast_signed() > 0 => Ok(()),
        (Binary::Divide | Binary::Remainder, _) => Err(Why::Divisor),
        _ => Ok(()),
    }
}

fn fold(tree: Tree) -> Tree {
    let constant = match &tree {
        Tree::Unary(_, of) => matches!(**of, Tree::Number(..)),
        Tree::Binary(_, left, right) => matches!((&**left, &**right), (Tree::Number(..), Tree::Number(..))),
        Tree::Number(..) | Tree::Known(_) => false,
    };
    match tree.value(&Facts::default()).filter(|_| constant) {
        Some(value) => Tree::Number(value, tree.is_unsigned()),
        None => tree,
    }
}

/// Number of letters inserted, left out or changed (Levenshtein 1966).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (n, one) in a.chars().take(64).enumerate() {
        let mut corner = row[0];
        row[0] = n + 1;
        for (m, other) in b.iter().enumerate() {
            let changed = corner + usize::from(one != *other);
            corner = row[m + 1];
            row[m + 1] = changed.min(corner + 1).min(row[m] + 1);
        }
    }
    row[b.len()]
}

/// Names for callers without a signature, and for tests: `arg0` to `arg5`, as in bpftrace, and `tid`.
#[must_use]
pub fn registers() -> Vec<(String, Symbol)> {
    let argument = |n: u8| (format!("arg{n}"), Symbol::Known(Known::Argument(n, Int::U64)));
    (0..6).map(argument).chain([("tid".to_owned(), Symbol::Known(Known::Thread))]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, Int, Known, Symbol};
    use super::{parse, registers};

    fn names() -> Vec<(String, Symbol)> {
        let mut names = registers();
        let int = Int { bits: 32, signed: true };
        names.push(("fd".to_owned(), Symbol::Known(Known::Argument(0, int))));
        names.push(("ret".to_owned(), Symbol::Known(Known::Returned(int))));
        names.push(("dur".to_owned(), Symbol::Known(Known::Took)));
        names.push(("O_CREAT".to_owned(), Symbol::Constant(0o100)));
        names
    }

    fn holds(text: &str, first: u64, returned: Option<u64>) -> Option<bool> {
        let arguments = [first, 7, 0, 0, 0, u64::MAX];
        let facts = Facts { arguments, tid: 42, returned, took_ns: Some(1_500_000), ..Facts::default() };
        parse(text, &names()).unwrap_or_else(|error| panic!("{text}: {error}")).holds(&facts)
    }

    #[test]
    fn operators_are_those_of_c() {
        for (text, expected) in [
            ("arg0 > 10", true),
            ("1 + 2 * 3 + arg0 == 18", true),
            ("(1 + arg0) * 3 == 36", true),
            ("arg0 & 1 == 1", true),
            ("arg1 - arg0 == -4", false),
            ("arg1 - arg0 == 0xfffffffffffffffc", true),
            ("-fd < 0 && !0", true),
            ("~fd == -12", true),
            ("1 << 4 > arg0", true),
            ("arg0 == 0xb || fd == 0", true),
            ("arg0 == 0b1011 && arg0 == 013", true),
            ("tid != 42", false),
            ("fd % 2 == 0", false),
            ("fd / 3 == 3 && fd % 3 == 2", true),
            ("arg5 > fd", true),
            ("-fd < arg5", true),
            ("arg5 == -1", false),
            ("arg5 >> 63 == 1", true),
            ("-fd >> 1 == -6", true),
            ("dur > 1ms && dur < 2ms", true),
            ("dur >= 1500us", true),
            ("fd ^ 'a' ^ 'a' ^ 11", false),
            ("(arg0 > 10) + (fd > 10) == 2", true),
            ("fd & O_CREAT", false),
        ] {
            assert_eq!(holds(text, 11, None), Some(expected), "{text}");
        }
        assert_eq!(holds("fd == -1", 0xffff_ffff, None), Some(true));
        assert_eq!(holds("arg0 == -1", 0xffff_ffff, None), Some(false));
    }

    #[test]
    fn what_is_not_known_decides_nothing_unless_it_does_not_matter() {
        assert_eq!(holds("ret < 0", 0, None), None);
        assert_eq!(holds("ret < 0 && fd", 0, None), Some(false));
        assert_eq!(holds("ret < 0 || !fd", 0, None), Some(true));
        assert_eq!(holds("ret < 0", 0, Some(0xffff_fff0)), Some(true));
    }

    #[test]
    fn errors_stand_under_their_token() {
        for (text, at, why) in [
            ("", 0, "a value is missing"),
            ("fd >", 4, "a value is missing"),
            ("fd 3", 3, "an operator is missing"),
            ("(fd", 3, "a `)` is missing"),
            ("fd > 1 && oCREAT", 10, "did you mean `O_CREAT`?"),
            ("quux > 1", 0, "a call here has arg0"),
            ("fd = 3", 3, "nothing that a condition"),
            ("fd > $", 5, "`$` is nothing"),
            ("fd > 089", 5, "no number"),
            ("fd > 1h", 5, "no number"),
            ("fd == 'ab'", 6, "no character"),
            ("fd << arg1", 6, "from 0 to 63"),
            ("1 + fd / (3 - 3)", 9, "from 1 on"),
            ("1 < 2", 0, "always is true"),
            ("ä > 1", 0, "nothing that"),
            ("Server::count > 1", 0, "nothing is known of fields"),
        ] {
            let error = parse(text, &names()).expect_err(text);
            assert_eq!(error.at(), at, "{text}: {error}");
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
        let error = parse("fd > 1 && flgs", &names()).expect_err("unknown");
        let shown = error.to_string();
        assert!(shown.ends_with("\n    fd > 1 && flgs\n              ^^^^"), "{shown}");
    }

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(parse(&"(".repeat(100_000), &names()).is_err());
        assert!(parse(&"!".repeat(100_000), &names()).is_err());
        assert!(parse(&format!("fd{}", " + fd".repeat(60)), &names()).is_err());
        assert!(parse(&format!("fd{}", " + fd".repeat(20)), &names()).is_ok());
        let deep = (0..9).fold("fd".to_owned(), |inner, _| format!("fd + ({inner} * tid)"));
        assert!(parse(&deep, &names()).is_err_and(|error| error.to_string().contains("too deeply")));
    }
}
