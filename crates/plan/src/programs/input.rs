//! The inputs of programs that add to tables, by their numbers. A stub says where they are.

/// Input: address of the table.
pub(crate) const TABLE: u16 = 0;
/// Input: the cell's number, or the row's key.
pub(crate) const KEY: u16 = 1;
/// Input: the group-by key, if rows have one; of rows with sums, the value.
pub(crate) const OWNER: u16 = 2;
/// Input: pointer to the result of copying a text; `at` bytes behind it are the result and the bytes (`Rows::text`).
pub(crate) const TEXT: u16 = 3;
