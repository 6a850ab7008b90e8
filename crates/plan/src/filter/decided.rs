//! Conditions on what may not be known: a field that cannot be read; the returned value and the duration of a
//! call that goes on as another function.
//!
//! In: a tree. Out: a tree that is true where the first one is, and false where the first one is false or not
//! decided ([`Tree::holds`] is `None`). Generated code, which has two truth values, decides by that.
//! Invariant: FLT-1.
//!
//! `passes` is true where the tree is, `fails` where it is false for certain. For `&&`, `||` and `!` one
//! follows from both of the sides. A comparison, or a value that is used as a truth, is decided if all of it
//! is known. A `&&` or `||` that is used in a computation is known if it is decided, and its `passes` is used
//! then.

use super::tree::{Binary, Known, MAX_NODES, Tree, Unary};

/// Trees with more nodes than this are left to the reader: each `&&` or `||` that is used in a computation
/// occurs three times.
const MOST: usize = 4 * MAX_NODES;

/// Which values may not be known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    /// The call goes on as another function: its returned value and its duration are not known.
    tail: bool,
}

impl Tree {
    /// The tree that generated code uses at an entry or at a return: the same as this one, but false if a
    /// field of it cannot be read.
    #[must_use]
    pub fn decided(&self) -> Self {
        self.passes(Open { tail: false })
    }
    /// The same for a call that goes on as another function: it has not returned anything yet, and has not
    /// ended. A comparison with its returned value, or with its duration, decides neither way.
    #[must_use]
    pub fn at_tail(&self) -> Self {
        self.passes(Open { tail: true })
    }
    /// For a value at an entry: the condition under which it is known, and its value then.
    #[must_use]
    pub fn if_readable(&self) -> (Self, Self) {
        let open = Open { tail: false };
        (self.is_known(open), self.settled(open))
    }
    /// Upper bound of the nodes that generated code has for it.
    #[must_use]
    pub fn decided_nodes(&self) -> usize {
        self.decided().nodes().max(self.at_tail().nodes())
    }
    /// Whether its code is bounded.
    pub(super) fn is_small_decided(&self) -> bool {
        self.decided_nodes() <= MOST
    }
    fn passes(&self, open: Open) -> Self {
        match self {
            tree if !tree.is_open(open) => tree.clone(),
            Self::Binary(Binary::And, left, right) => both(left.passes(open), right.passes(open)),
            Self::Binary(Binary::Or, left, right) => either(left.passes(open), right.passes(open)),
            Self::Unary(Unary::Not, of) => of.fails(open),
            tree => both(tree.is_known(open), tree.settled(open)),
        }
    }
    fn fails(&self, open: Open) -> Self {
        match self {
            tree if !tree.is_open(open) => not(tree.clone()),
            Self::Binary(Binary::And, left, right) => either(left.fails(open), right.fails(open)),
            Self::Binary(Binary::Or, left, right) => both(left.fails(open), right.fails(open)),
            Self::Unary(Unary::Not, of) => of.passes(open),
            tree => both(tree.is_known(open), not(tree.settled(open))),
        }
    }
    /// Whether everything that its value depends on is known.
    fn is_known(&self, open: Open) -> Self {
        match self {
            tree if !tree.is_open(open) => TRUE,
            Self::Number(..) => TRUE,
            Self::Known(Known::Field(n, _) | Known::FloatField(n, _)) => Self::Known(Known::Readable(*n)),
            Self::Known(_) => FALSE,
            Self::Unary(_, of) => of.is_known(open),
            Self::Binary(Binary::And | Binary::Or, ..) => either(self.passes(open), self.fails(open)),
            Self::Binary(_, left, right) => both(left.is_known(open), right.is_known(open)),
        }
    }
    /// Its value, if it is known.
    fn settled(&self, open: Open) -> Self {
        match self {
            tree if !tree.is_open(open) => tree.clone(),
            Self::Number(..) | Self::Known(_) => self.clone(),
            Self::Unary(op, of) => Self::Unary(*op, Box::new(of.settled(open))),
            Self::Binary(Binary::And | Binary::Or, ..) => self.passes(open),
            Self::Binary(op, left, right) => {
                Self::Binary(*op, Box::new(left.settled(open)), Box::new(right.settled(open)))
            }
        }
    }
    /// Whether some part of it may not be known.
    fn is_open(&self, open: Open) -> bool {
        let mut any = false;
        self.each_known(&mut |one| {
            any |= match one {
                Known::Field(..) | Known::FloatField(..) => true,
                Known::Returned(_) | Known::FloatReturned(_) | Known::Took => open.tail,
                _ => false,
            };
        });
        any
    }
}

const TRUE: Tree = Tree::Number(1, false);
const FALSE: Tree = Tree::Number(0, false);

/// The truth of a constant.
const fn constant(tree: &Tree) -> Option<bool> {
    if let Tree::Number(value, _) = tree { Some(*value != 0) } else { None }
}

fn both(left: Tree, right: Tree) -> Tree {
    match (constant(&left), constant(&right)) {
        (Some(false), _) | (_, Some(false)) => FALSE,
        // It is still a truth if it is used in a computation.
        (Some(true), _) if right.is_truth() => right,
        (_, Some(true)) if left.is_truth() => left,
        _ => Tree::Binary(Binary::And, Box::new(left), Box::new(right)),
    }
}

fn either(left: Tree, right: Tree) -> Tree {
    match (constant(&left), constant(&right)) {
        (Some(true), _) | (_, Some(true)) => TRUE,
        (Some(false), _) if right.is_truth() => right,
        (_, Some(false)) if left.is_truth() => left,
        _ => Tree::Binary(Binary::Or, Box::new(left), Box::new(right)),
    }
}

fn not(tree: Tree) -> Tree {
    match constant(&tree) {
        Some(true) => FALSE,
        Some(false) => TRUE,
        None => Tree::Unary(Unary::Not, Box::new(tree)),
    }
}

impl Tree {
    /// Whether its value is 0 or 1.
    fn is_truth(&self) -> bool {
        match self {
            Self::Number(value, _) => *value <= 1,
            Self::Known(known) => matches!(known, Known::Readable(_)),
            Self::Unary(op, _) => *op == Unary::Not,
            Self::Binary(op, ..) => op.is_truth(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Facts, Int, Known, Misread, Symbol, Tree, parse, parse_with};

    const INT: Int = Int { bits: 32, signed: true };

    fn read(text: &str) -> Tree {
        let names = [("n", Known::Argument(0, INT)), ("ret", Known::Returned(INT)), ("dur", Known::Took)];
        let names: Vec<_> = names.map(|(name, known)| (name.to_owned(), Symbol::Known(known))).into();
        let field = |path: &str| match path {
            "p->a" => Ok(Symbol::Known(Known::Field(0, INT))),
            "p->b" => Ok(Symbol::Known(Known::Field(1, INT))),
            _ => Err(Misread { at: 0..1, why: "?".to_owned(), is_unknown: true }),
        };
        parse_with(text, &names, &field).unwrap_or_else(|_| parse(text, &names).expect(text))
    }

    /// In every combination of what is known and not, and of small numbers.
    #[test]
    fn what_is_not_decided_does_not_pass() {
        for text in [
            "p->a < 1",
            "!(p->a < 1)",
            "p->a < 1 || n == 1",
            "p->a < 1 && n == 1",
            "!(p->a < 1 && p->b == 1)",
            "!(p->a < 1 || n == 1) || p->b == 2",
            "!!(n == 1 || !(p->a == 2))",
            "p->a + p->b || n == 1",
            "(p->a < 1 || n) + 1 == 2",
            "-(p->a && n) & (p->b || ret) | n",
            "~((p->a && ret) + (n || p->b)) != -2",
            "!(1 + !(p->a || (p->b && 2) + 1 > ret))",
            "ret < 0 || p->a",
            "(ret < 0 || n) + 1 == 2",
            "!(ret - 1 && n) * 2 > n",
            "ret",
            "dur > 1 || n == 1",
            "!(dur > 1)",
            "!(dur > 1 && ret < 2) && p->a < 2",
        ] {
            let tree = read(text);
            let known = [None, Some(0), Some(1), Some(2)];
            for nth in 0..64 {
                let [a, b, ret] = [nth & 3, nth >> 2 & 3, nth >> 4].map(|n: usize| known[n]);
                for n in 0..3 {
                    let mut facts = Facts { returned: ret, took_ns: ret, ..Facts::default() };
                    (facts.fields[0], facts.fields[1], facts.arguments[0]) = (a, b, n);
                    let expected = Some(tree.holds(&facts) == Some(true));
                    let code = if ret.is_some() { tree.decided() } else { tree.at_tail() };
                    for any in [0, 3] {
                        assert_eq!(of_code(&code, facts, any), expected, "{text}: {facts:?}");
                    }
                }
            }
            assert!(tree.is_small_decided(), "{text}");
        }
    }

    /// The result of generated code, which reads any value for what is not there.
    fn of_code(code: &Tree, mut facts: Facts, any: u64) -> Option<bool> {
        let readable = [facts.fields[0].is_some(), facts.fields[1].is_some()];
        facts.returned = facts.returned.or(Some(any));
        facts.took_ns = facts.took_ns.or(Some(any));
        for field in &mut facts.fields {
            *field = field.or(Some(any));
        }
        as_read(code, readable).holds(&facts)
    }

    fn as_read(tree: &Tree, readable: [bool; 2]) -> Tree {
        match tree {
            Tree::Known(Known::Readable(n)) => Tree::Number(u64::from(readable[usize::from(*n)]), false),
            Tree::Unary(op, of) => Tree::Unary(*op, Box::new(as_read(of, readable))),
            Tree::Binary(op, left, right) => {
                Tree::Binary(*op, Box::new(as_read(left, readable)), Box::new(as_read(right, readable)))
            }
            tree => tree.clone(),
        }
    }

    #[test]
    fn what_is_computed_with_too_often_is_left_to_the_reader() {
        let mut text = "ret".to_owned();
        (0..8).for_each(|_| text = format!("({text} || n) + 1"));
        let tree = read(&text);
        assert!(tree.nodes() <= super::MAX_NODES && !tree.is_small_decided(), "{}", tree.nodes());
    }
}
