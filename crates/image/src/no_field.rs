//! Why a path leads to no field, and which part of it is wrong.
//!
//! In: what was found on the way. Out: a message that says what there is instead. Does not: follow paths (`field`).

use std::ops::Range;

use crate::operands::NoPlace;

/// Why there is no such field.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoField {
    /// It is not a valid path.
    #[error("this is no path; write for example req->next->len or req->table[2]")]
    Syntax,
    /// Nothing is known about the function.
    #[error(
        "nothing that can be read is noted of the function: it has no debug information, or it is of a language other than C, C++, Rust and Go, or \
         split off into a file (.dwo, .dwp, .dwz) that is not found"
    )]
    NothingNoted,
    /// No argument has this name, and no variable of the file.
    #[error("there is no argument or variable `{name}`{}", near(.nearest))]
    NoArgument {
        /// The name.
        name: String,
        /// Similar names, or all.
        nearest: Vec<String>,
    },
    /// Several variables of the file have this name, and none is of the function's own file.
    #[error(
        "several variables are called `{0}`; write more of its name, or probe a function of its source file"
    )]
    Several(String),
    /// No variable that can be named there has this name.
    #[error("there is no variable `{name}`{}", near(.nearest))]
    NoVariable {
        /// The name.
        name: String,
        /// Similar names, or all.
        nearest: Vec<String>,
    },
    /// Nothing says where the variable is there.
    #[error("`{name}` has no known place there: {why}")]
    NoPlace {
        /// The name.
        name: String,
        /// Why.
        why: NoPlace,
    },
    /// Inside a function, only what the probe names is read.
    #[error(
        "inside a function only variables that the probe names are read; name it in the brackets too, as in PROBE({0})"
    )]
    NotNamed(String),
    /// The argument is passed in memory, or in several registers.
    #[error("`{0}` is in no register of its own when the function is entered")]
    Elsewhere(String),
    /// There is no such field.
    #[error("`{of}` has no field `{field}`{}", near(.nearest))]
    None {
        /// The path up to here.
        of: String,
        /// The field.
        field: String,
        /// Similar fields.
        nearest: Vec<String>,
    },
    /// The value is not a structure, and does not point to one.
    #[error("`{0}` is no structure and points to none")]
    NotAStructure(String),
    /// The value has no elements.
    #[error("`{0}` is no array and no pointer to elements")]
    NotIndexed(String),
    /// It has fewer elements.
    #[error("`{of}` has {len} elements; {index} is none of them")]
    Index {
        /// The path up to here.
        of: String,
        /// Number of elements.
        len: u64,
        /// The index in the path.
        index: u64,
    },
    /// It is not a single value.
    #[error("`{of}` is {what}, of which not all is known, or too much; name one of its fields")]
    NotAValue {
        /// The path up to here.
        of: String,
        /// What it is.
        what: String,
    },
    /// A star stands before something else.
    #[error("`{0}` is no pointer")]
    NotAPointer(String),
    /// Too many loads, or an offset that is too large.
    #[error("this is too far away")]
    Far,
}

impl NoField {
    /// Why a path leads to no variable, for one that does not begin with an argument either: what is wrong is said of
    /// both where nothing has that name.
    #[must_use]
    pub fn beside_argument(self, argument: Self) -> Self {
        match (self, argument) {
            (Self::NoVariable { nearest, .. }, Self::NoArgument { name, nearest: mut all }) => {
                let others: Vec<String> = nearest.into_iter().filter(|one| !all.contains(one)).collect();
                all.extend(others);
                Self::NoArgument { name, nearest: all }
            }
            (Self::NoVariable { .. }, argument) => argument,
            (other, _) => other,
        }
    }
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(", ")) }
}

/// What is wrong, and in which bytes of the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misplaced {
    /// Range of bytes of the path.
    pub at: Range<usize>,
    /// What is wrong there.
    pub why: NoField,
}
