//! Conditions on an event: `value > 10 && old != 0`.
//!
//! In: text; the value after and before, thread and process. Out: yes, no, or undecided when a value is not
//! known. Operators and precedence are those of C, on integers of 128 bits, which hold every 8-byte value of
//! either sign. Does not: assign.

use std::fmt;
use std::str::FromStr;

/// Limit for nesting; deeper nesting is refused.
const DEPTH: u32 = 64;

/// The values that a condition can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// The value after the access.
    pub value: Option<i128>,
    /// The value before the access.
    pub old: Option<i128>,
    /// The thread.
    pub tid: u32,
    /// The process.
    pub pid: u32,
    /// The CPU.
    pub cpu: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Value,
    Old,
    Tid,
    Pid,
    Cpu,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    Number(i128),
    Name(Name),
    Unary(char, Box<Self>),
    Binary(&'static str, Box<Self>, Box<Self>),
}

/// A condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expr {
    text: String,
    root: Node,
}

/// Why a text is not a condition.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at character {at}: {why}; write for example 'value > 10' or 'value != old && tid == 42'")]
pub struct ExprError {
    /// Number of characters before the error.
    pub at: usize,
    /// What is wrong there.
    pub why: String,
}

/// Binary operators, loosest first; within a level an operator stands before those that are its beginnings.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];
const ALL: [&str; 18] =
    ["||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "|", "^", "&", "<", ">", "+", "-", "*", "/", "%"];

impl Expr {
    /// Whether it holds; `None` when a value that decides it is not known, or it divides by zero.
    #[must_use]
    pub fn holds(&self, facts: &Facts) -> Option<bool> {
        eval(&self.root, facts).map(|value| value != 0)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn eval(node: &Node, facts: &Facts) -> Option<i128> {
    match node {
        Node::Number(number) => Some(*number),
        Node::Name(name) => match name {
            Name::Value => facts.value,
            Name::Old => facts.old,
            Name::Tid => Some(facts.tid.into()),
            Name::Pid => Some(facts.pid.into()),
            Name::Cpu => Some(facts.cpu.into()),
        },
        Node::Unary(op, of) => {
            let of = eval(of, facts)?;
            Some(match op {
                '!' => i128::from(of == 0),
                '~' => !of,
                _ => of.wrapping_neg(),
            })
        }
        Node::Binary(op, left, right) => binary(op, left, right, facts),
    }
}

fn binary(op: &str, left: &Node, right: &Node, facts: &Facts) -> Option<i128> {
    let (a, b) = (eval(left, facts), eval(right, facts));
    match op {
        // One side alone may decide.
        "&&" if a == Some(0) || b == Some(0) => return Some(0),
        "||" if a.is_some_and(|a| a != 0) || b.is_some_and(|b| b != 0) => return Some(1),
        _ => {}
    }
    let (a, b) = (a?, b?);
    let shift = || u32::try_from(b).ok().filter(|&by| by < 128);
    let truth = |yes: bool| Some(i128::from(yes));
    match op {
        "&&" => truth(a != 0 && b != 0),
        "||" => truth(a != 0 || b != 0),
        "|" => Some(a | b),
        "^" => Some(a ^ b),
        "&" => Some(a & b),
        "==" => truth(a == b),
        "!=" => truth(a != b),
        "<=" => truth(a <= b),
        ">=" => truth(a >= b),
        "<" => truth(a < b),
        ">" => truth(a > b),
        "<<" => a.checked_shl(shift()?),
        ">>" => a.checked_shr(shift()?),
        "+" => Some(a.wrapping_add(b)),
        "-" => Some(a.wrapping_sub(b)),
        "*" => Some(a.wrapping_mul(b)),
        "/" => a.checked_div(b),
        "%" => a.checked_rem(b),
        _ => None,
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, ExprError> {
        Err(ExprError { at: self.text[..self.at].chars().count(), why: why.into() })
    }
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }
    /// The operator at this position, the longest that fits.
    fn operator(&mut self) -> Option<&'static str> {
        let rest = self.rest();
        ALL.into_iter().find(|op| rest.starts_with(op))
    }
    fn level(&mut self, level: usize) -> Result<Node, ExprError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.level(level + 1)?;
        while let Some(op) = self.operator().filter(|op| operators.contains(op)) {
            self.at += op.len();
            let right = self.level(level + 1)?;
            left = Node::Binary(op, Box::new(left), Box::new(right));
        }
        Ok(left)
    }
    fn unary(&mut self) -> Result<Node, ExprError> {
        self.depth += 1;
        if self.depth > DEPTH {
            return self.fail("it is nested too deeply");
        }
        let node = self.unary_inside()?;
        self.depth -= 1;
        Ok(node)
    }
    fn unary_inside(&mut self) -> Result<Node, ExprError> {
        let rest = self.rest();
        match rest.chars().next() {
            Some(op @ ('!' | '~' | '-')) => {
                self.at += 1;
                Ok(Node::Unary(op, Box::new(self.unary()?)))
            }
            Some('(') => {
                self.at += 1;
                let inside = self.level(0)?;
                if !self.rest().starts_with(')') {
                    return self.fail("a `)` is missing");
                }
                self.at += 1;
                Ok(inside)
            }
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => self.word(rest),
            Some(c) => self.fail(format!("`{c}` is no value")),
            None => self.fail("a value is missing"),
        }
    }
    fn word(&mut self, rest: &str) -> Result<Node, ExprError> {
        let len = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let word = &rest[..len];
        let node = match word {
            "value" | "new" => Node::Name(Name::Value),
            "old" => Node::Name(Name::Old),
            "tid" => Node::Name(Name::Tid),
            "pid" => Node::Name(Name::Pid),
            "cpu" => Node::Name(Name::Cpu),
            _ => match crate::spec::number(word) {
                Some(number) => Node::Number(number.into()),
                None => {
                    return self.fail(format!("`{word}` is unknown; there are value, old, tid, pid and cpu"));
                }
            },
        };
        self.at += len;
        Ok(node)
    }
}

impl FromStr for Expr {
    type Err = ExprError;

    fn from_str(text: &str) -> Result<Self, ExprError> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let root = parser.level(0)?;
        if !parser.rest().is_empty() {
            return parser.fail("an operator is missing");
        }
        Ok(Self { text: text.to_owned(), root })
    }
}

#[cfg(test)]
mod tests {
    use super::{Expr, Facts};
    use proptest::prelude::*;

    fn holds(text: &str, value: Option<i128>) -> Option<bool> {
        let facts = Facts { value, old: Some(5), tid: 42, pid: 1, cpu: 0 };
        text.parse::<Expr>().unwrap_or_else(|error| panic!("{text}: {error}")).holds(&facts)
    }

    #[test]
    fn precedence_is_that_of_c() {
        for (text, wanted) in [
            ("value > 10", true),
            ("value >= 11 && value <= 11", true),
            ("1 + 2 * 3 == 7", true),
            ("(1 + 2) * 3 == 9", true),
            ("value & 1 == 1", true),
            ("value - old == 6", true),
            ("-value < 0 && !0", true),
            ("~0 == -1", true),
            ("1 << 4 > 15", true),
            ("value == 0xb || old == 0", true),
            ("tid != 42", false),
            ("value % 2 == 0", false),
        ] {
            assert_eq!(holds(text, Some(11)), Some(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_decides_nothing_unless_it_does_not_matter() {
        assert_eq!(holds("value > 10", None), None);
        assert_eq!(holds("value > 10 && tid == 1", None), Some(false));
        assert_eq!(holds("value > 10 || tid == 42", None), Some(true));
        assert_eq!(holds("1 / (value - 11)", Some(11)), None);
    }

    #[test]
    fn errors_say_where() {
        for (text, at, why) in [
            ("", 0, "missing"),
            ("value >", 7, "missing"),
            ("value 3", 6, "operator"),
            ("(value", 6, ")"),
            ("velue > 1", 0, "unknown"),
            ("value = 3", 6, "operator"),
            ("value > $", 8, "no value"),
        ] {
            let error = text.parse::<Expr>().expect_err(text);
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.why.contains(why), "{text}: {error}");
        }
        assert!("(".repeat(1000).parse::<Expr>().is_err());
        assert!("!".repeat(100_000).parse::<Expr>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9 ()<>=!&|+*/%~^-]{0,40}") {
            if let Ok(expr) = text.parse::<Expr>() {
                let _held = expr.holds(&Facts::default());
            }
        }
    }
}
