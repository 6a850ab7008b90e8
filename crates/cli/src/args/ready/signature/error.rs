//! What may be wrong with a signature, and what the user reads then.
//!
//! In: the words that were wrong. Out: one sentence, which says what may stand there. Does not: look for anything wrong.

/// What is wrong with a signature.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    /// There is no closing bracket.
    #[error("the list of arguments has no `)`")]
    Open,
    /// There are two commas, or one at an end.
    #[error("argument {0} is missing: there is nothing at its place between the commas")]
    Nothing(usize),
    /// Something follows the list.
    #[error("`{0}` stands behind the list of arguments, where only `-> TYPE` may")]
    Behind(String),
    /// The type does not exist.
    #[error(
        "`{0}` is no type that trace shows: int, unsigned, long, size_t, char, bool, i8 to i64, u8 to u64, float, double, hex, ptr, TYPE *; arguments also str, buf(len=NAME)"
    )]
    Type(String),
    /// The length of a buffer is wrong.
    #[error(
        "`{0}` is no argument that could be a length; write buf(len=NAME), with an argument's name or its number, as arg1"
    )]
    Length(String),
    /// The length of a text is none.
    #[error("`{0}` is no text that trace shows: write str[N] or buf(len=NAME)[N], with N from 1 to {1}")]
    Bytes(String, u16),
    /// Long texts are read through the first six arguments.
    #[error("`{0}` with a length, or of the returned length, is for arguments in registers of a function")]
    Long(String),
    /// The register does not exist.
    #[error("`{0}` is no general register here; write reg(NAME) with one of 64 bits")]
    Register(String),
    /// There are more arguments than records hold.
    #[error("{0} arguments; {1} can be shown")]
    Many(usize, usize),
}
