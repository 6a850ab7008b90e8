//! The words for kinds of access, in text and in JSON.

use trapline::watch::{Access, AccessKind, ValueSource};

/// The word for a kind of access.
pub(crate) const fn kind_word(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Write => "write",
        AccessKind::Read => "read",
        AccessKind::Execute => "execute",
        AccessKind::Kernel => "kernel",
        AccessKind::Unknown => "access",
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
