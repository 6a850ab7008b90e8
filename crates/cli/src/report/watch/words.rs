//! The words for kinds of access, in text and in JSON.

use trapline::watch::{Access, Kind, ValueSource};

/// The word for a kind of access.
pub(crate) const fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Write => "write",
        Kind::Read => "read",
        Kind::Execute => "execute",
        Kind::Kernel => "kernel",
        Kind::Unknown => "access",
    }
}

/// The word for the source of a value.
pub(crate) const fn how_word(how: ValueSource) -> &'static str {
    match how {
        ValueSource::Stored => "stored",
        ValueSource::Read => "read",
        ValueSource::Derived => "derived",
        ValueSource::Late => "late",
        ValueSource::Unknown => "unknown",
    }
}

/// The word for the accesses that are watched.
pub(crate) const fn access_word(access: Access) -> &'static str {
    match access {
        Access::Write => "w",
        Access::ReadWrite => "rw",
        Access::Execute => "x",
    }
}
