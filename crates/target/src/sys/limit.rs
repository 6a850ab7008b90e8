//! How many descriptors we may have.

use std::io;

use super::check;

fn get() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and of the type that is filled.
    check(i64::from(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })).map(|_| limit)
}

fn set(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is live.
    check(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })).map(drop)
}

/// Makes room for `more` descriptors beyond a few of our own; gives the limit that holds now. Beyond the hard limit only
/// root may go; where it is not allowed, the limit stays what it can be and opening says the rest.
pub(crate) fn raise(more: u64) -> io::Result<u64> {
    const OWN: u64 = 256;
    let now = get()?;
    let wanted = more.saturating_add(OWN);
    if now.rlim_cur >= wanted {
        return Ok(now.rlim_cur);
    }
    if now.rlim_max < wanted && set(libc::rlimit { rlim_cur: wanted, rlim_max: wanted }).is_ok() {
        return Ok(wanted);
    }
    let most = wanted.min(now.rlim_max);
    set(libc::rlimit { rlim_cur: most, rlim_max: now.rlim_max }).map(|()| most)
}
