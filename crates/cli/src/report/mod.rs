//! What a person or a program reads. In: a session's values. Out: text. Does not: know processes, or where text goes.

pub(crate) mod calls;
pub(crate) mod count;
pub(crate) mod histogram;
pub(crate) mod json;
pub(crate) mod lat;
pub(crate) mod list;
pub(crate) mod number;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod watch;
pub(crate) mod watch_json;
