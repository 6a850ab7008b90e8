//! Watchpoints: which code wrote a variable, when, and what value.
//!
//! In: variables as users name them, processes. Out: [`Accessed`]s with functions and lines, and at the end
//! what was not seen. Invariants: WCH-1…5 of `trapline-watch`; SES-2. Does not: print, wait, handle signals.
//!
//! If the address is already known, there is a shorter way, without names and lines:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use trapline::watch::{WatchError, Watchpoint};
//!
//! static COUNTER: AtomicU64 = AtomicU64::new(0);
//! # fn main() -> Result<(), WatchError> {
//! let addr = COUNTER.as_ptr().expose_provenance() as u64;
//! let here = Watchpoint::on(std::process::id());
//! let mut writes = match here.write(addr, 8).count() {
//!     Ok(writes) => writes,
//!     // A virtual machine without debug registers, no right to use them, none free: each says so.
//!     Err(error @ (WatchError::NoHardware { .. } | WatchError::Denied { .. } | WatchError::NoRegisters(_))) => {
//!         println!("SKIP: {error}");
//!         return Ok(());
//!     }
//!     Err(error) => return Err(error),
//! };
//! COUNTER.store(7, Ordering::Relaxed);
//! assert_eq!(writes.value(), 1);
//!
//! let mut events = here.write(addr, 8).events()?;
//! COUNTER.store(42, Ordering::Relaxed);
//! let event = events.next().expect("it was written");
//! assert_eq!(event.change.after, Some(42));
//! # Ok(())
//! # }
//! ```

mod accesses;
mod builder;
mod locate;
mod session;
mod watched_places;

pub use self::accesses::{Accessed, NewProgram, WatchEnd, Watched, Where};
pub use self::builder::WatchBuilder;
pub use self::session::WatchSession;
pub use trapline_image::{Encoding, Line};
pub use trapline_record::RemoteAddr;
pub use trapline_watch::expr::{Expr, ExprError, Facts};
pub use trapline_watch::spec::{WatchPlace, WatchSpec, WatchSpecError};
pub use trapline_watch::value::{Change, ValueSource};
pub use trapline_watch::{
    Access, AccessKind, Armable, Counter, Event, Events, NoRegisters, Progress, Tally, WatchError, Watchpoint,
};
