//! How long help texts end: sections, which manual pages have too.
//!
//! In: a verb's own sections. Out: them, with the exit statuses. A section is a line `Heading:`, and lines that
//! are indented by two; an empty line stands between sections. Does not: break lines. They fit into a manual
//! page of 80 columns.

/// Exit statuses of verbs that trace.
pub(super) const TRACED: &str = "\
Exit status:
  0  Done, also after Ctrl-C.
  1  Failed. Also: a process of -p or -n was killed while it was probed.
  2  Wrong usage.
  3  Nothing could be probed. With -f this is known only at the end.
  A launched command gives its own status, or 128 + N if signal N ended it.
  The command is not run if the output cannot be opened (1) or, without
  -f, if it has nothing that the probes name (3).";

/// Exit statuses of verbs that look for functions, but trace nothing.
pub(super) const LISTED: &str = "\
Exit status:
  0  Done.
  1  Failed.
  2  Wrong usage.
  3  Nothing matched.";

/// Exit statuses of the other verbs.
pub(super) const ONCE: &str = "\
Exit status:
  0  Done.
  1  Failed.
  2  Wrong usage.";

/// Exit statuses of `doctor`.
pub(super) const DOCTORED: &str = "\
Exit status:
  0  Done. Programs can be traced here.
  1  Failed, or something is missing without which nothing can be traced.
  2  Wrong usage.";

/// A verb's own sections, and that of its exit statuses.
pub(super) fn sections(own: &str, exit_statuses: &str) -> String {
    format!("{own}\n\n{exit_statuses}")
}
