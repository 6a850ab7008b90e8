//! Time from entry to return: a stamp at the entry, a histogram at every exit; the same as x86-64's twin, by
//! the virtual counter.
//!
//! In: what is timed, and where the results are kept. Out: the code before an entry's or an exit's displaced
//! word, and what follows it. A stub pushes the registers that it uses, and finds the stamp cell of
//! (function, stack pointer at entry). When a `ret` or a jump out of the function is about to
//! run, the stack pointer is the same again:
//!
//! ```text
//!         sp       x16 A          x17 B         x14 CELL   x15 KEY   x13 INDEX   x12 TIME      x11 C
//!   E1    S - 64   scratch        S             cell       tag       block       -             -
//!   E2    S - 64   stamp's owner  this owner    cell       -         -           -             -
//!   E3    S - 64   the time       this owner    cell       -         -           -             -
//!   X1    S - 64   stamp's time   its owner     cell       tag       block       the time      this owner
//!   X2    S - 64   stamp's time   -             cell       -         -           the duration  -
//!   X3    S - 64   scratch        scratch       block      scratch   bucket      the duration  scratch
//!   end   S        all registers are the program's
//!
//!   cell + 0   the time of the entry
//!   cell + 8   owner: function + 1, or S if only outermost calls are timed; 0 if there is no stamp
//! ```
//!
//! The frame is that of `saves`. S is a multiple of 16, so only every other cell is used.
//!
//! | step | what | a signal there |
//! |---|---|---|
//! | E1 | look up the cell; claim a block for the stack page if there is none | its handler's calls lie below sp, |
//! | | | with cells of their own |
//! | E2 | a stamp there is of a call that did not return: counted for its function | the same |
//! | E3 | read the counter; store time and function at once | before it, the handler's time counts as before the call |
//! | X1 | read the counter, look up the cell; it must be this function's | the handler's time counts as after the call |
//! | X2 | take the stamp away | a call is recorded once: no code finds the stamp again |
//! | X3 | count, bucket, sum, extremes: | back to the beginning of the one that it broke |
//! | | each by a commit of its own (see `record`) | |
//!
//! Stamp cells are private memory, a block of 512 to each stack page; see `record::latency`. A block is
//! claimed by an exclusive store. A signal makes that fail, and the block is looked at again. The counter
//! runs at one rate on all CPUs (Arm ARM D12.1), slower than x86-64's: calls shorter than its step take 0 or
//! 1 of it.
//!
//! In Go the place is (goroutine, S's distance from its stack's end), as in x86-64's twin: stacks move, and a
//! goroutine goes on in any thread. A function that checks whether its stack suffices and begins anew on a
//! larger one is entered twice at one such place: its first stamp is kept.
//!
//! With `outermost` a cell belongs to (thread, function) and holds {time, S of the outermost call}. Deeper
//! calls are ignored, and a call at a shallower place proves that the remembered one is gone. In Go it
//! belongs to (goroutine, function), and S is its distance from the stack's end. Return trampolines are
//! another form (`armed`).

mod area;
mod armed;
mod mark;
mod record;
mod saves;
mod stamp_cell;
mod timed;

pub use area::Latency;
pub use armed::{Signed, trampoline_code};
pub(super) use mark::{Mark, Marks};
pub(super) use saves::{G, STACK_END};
pub(super) use stamp_cell::{Claim, Lookup, StampCell};
pub use timed::{Timed, UnfinishedLatency, latency_arm, latency_enter, latency_exit};
