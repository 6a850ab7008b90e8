//! What the target counts for a block, in the session's words.
//!
//! In: what a block adds up. Out: an action and a filter. The language of words is a part of the session's language of
//! conditions, so nothing is decided here (FLT-1). Does not: know which blocks are counted.

use trapline::ProbeAction;
use trapline::filter::{self, Filter, GroupBy, Int, Known, Sort, Tally, Tree};
use trapline_script::{Binary, Counted, Group, Table, Unary, Width, Word};

/// One cell for all hits.
const ONE: Sort = Sort::Linear { min: 0, step: 1, count: 1 };

/// What a probe of the session does for a block; `None` if the target cannot.
pub(super) fn request(counted: &Counted, at_return: bool) -> Option<(ProbeAction, Filter)> {
    let filter = match &counted.condition {
        Some(condition) => Filter::default().tree(tree(condition)?),
        None => Filter::default(),
    };
    match (&counted.table, &counted.group) {
        (Table::Hits, Group::All) if !at_return => Some((ProbeAction::Count, filter)),
        _ => {
            let filter = filter.tally(tally(counted)?, at_return)?;
            Some((ProbeAction::Tally { exits: at_return }, filter))
        }
    }
}

/// The table of a block.
pub(super) fn tally(counted: &Counted) -> Option<Tally> {
    let group_by = match &counted.group {
        Group::All => GroupBy::Nothing,
        Group::Thread => GroupBy::Thread,
        Group::By(word) => GroupBy::Number(tree(word)?),
    };
    let (value, sort, group_by) = match (&counted.table, group_by) {
        // Each value of the key has a row of its own.
        (Table::Hits, GroupBy::Number(key)) => (key, Sort::Each, GroupBy::Nothing),
        (Table::Hits, group_by) => (Tree::Number(0, false), ONE, group_by),
        (Table::Sums(of), group_by) => (tree(of)?, Sort::Sums, group_by),
        (Table::Powers(of), group_by) => (tree(of)?, Sort::Log2, group_by),
        (&Table::Steps { ref of, min, step, count }, group_by) => {
            (tree(of)?, Sort::Linear { min, step: step.cast_unsigned(), count }, group_by)
        }
    };
    Some(Tally { value, sort, group_by })
}

/// A word as a tree.
pub(super) fn tree(word: &Word) -> Option<Tree> {
    let int = |width: &Width| Int { bits: width.bits, signed: width.signed };
    Some(match word {
        Word::Number(number, unsigned) => Tree::Number(*number, *unsigned),
        Word::Argument(index, width) => Tree::Known(Known::Argument(*index, int(width))),
        Word::Returned(width) => Tree::Known(Known::Returned(int(width))),
        Word::Thread => Tree::Known(Known::Thread),
        Word::Unary(op, of) => {
            let op = match op {
                Unary::Not => filter::Unary::Not,
                Unary::Invert => filter::Unary::Complement,
                Unary::Negate => filter::Unary::Negate,
                Unary::Deref => return None,
            };
            Tree::Unary(op, Box::new(tree(of)?))
        }
        Word::Binary(op, left, right) => {
            Tree::Binary(operator(*op), Box::new(tree(left)?), Box::new(tree(right)?))
        }
    })
}

const fn operator(op: Binary) -> filter::Binary {
    match op {
        Binary::Or => filter::Binary::Or,
        Binary::And => filter::Binary::And,
        Binary::BitOr => filter::Binary::BitOr,
        Binary::BitXor => filter::Binary::BitXor,
        Binary::BitAnd => filter::Binary::BitAnd,
        Binary::Equal => filter::Binary::Equal,
        Binary::Unequal => filter::Binary::NotEqual,
        Binary::Less => filter::Binary::Less,
        Binary::LessEqual => filter::Binary::LessEqual,
        Binary::Greater => filter::Binary::Greater,
        Binary::GreaterEqual => filter::Binary::GreaterEqual,
        Binary::Left => filter::Binary::ShiftLeft,
        Binary::Right => filter::Binary::ShiftRight,
        Binary::Add => filter::Binary::Add,
        Binary::Subtract => filter::Binary::Subtract,
        Binary::Multiply => filter::Binary::Multiply,
        Binary::Divide => filter::Binary::Divide,
        Binary::Remainder => filter::Binary::Remainder,
    }
}
