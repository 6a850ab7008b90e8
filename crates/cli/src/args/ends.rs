//! How the ends of calls are seen, as typed and as ready values. It is the same in each command that waits
//! for them.
//!
//! In: what was typed. Out: [`Ends`], or what is wrong. Does not: decide for each function; the plan does.

use clap::Args;
use trapline::{Builder, Returns};

use super::error::UsageError;
use super::typed::TypedReturns;

/// `--ret` and `--maxactive`, as typed.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedEnds {
    /// How the end of a call is seen: its exits patched, or its return address on the stack replaced; then calls that end by a jump to
    /// another function last until that returns. auto: exits; the return address where one of them is such a jump, or they cannot all be
    /// found or patched, if all that unwind stacks there can be told [default: auto]
    #[arg(long, value_name = "FORM", value_enum, help_heading = "Calls")]
    pub(crate) ret: Option<TypedReturns>,
    /// Calls whose return address can be replaced at a time, in all threads; others are missed, and counted. Each takes 97 bytes of
    /// the process [default: 16384]
    #[arg(long, value_name = "CALLS", help_heading = "Calls")]
    pub(crate) maxactive: Option<u32>,
}

/// The same, ready.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ends {
    pub(crate) returns: Returns,
    /// How many can have their return address replaced at a time.
    pub(crate) maxactive: Option<u32>,
}

impl TypedEnds {
    /// Whether anything was typed.
    pub(crate) const fn any(&self) -> bool {
        self.ret.is_some() || self.maxactive.is_some()
    }
    /// Checks and converts.
    pub(crate) fn ready(&self) -> Result<Ends, UsageError> {
        let (returns, maxactive) = (self.ret.map(TypedReturns::ready).unwrap_or_default(), self.maxactive);
        if let Some(calls) = maxactive.filter(|calls| !(1..=Returns::MOST_ACTIVE).contains(calls)) {
            return Err(UsageError::MaxActive(calls));
        }
        if maxactive.is_some() && returns == Returns::Exits {
            return Err(UsageError::MaxActiveByExits);
        }
        Ok(Ends { returns, maxactive })
    }
}

impl Ends {
    /// A session that sees them so.
    pub(crate) const fn of(self, builder: Builder) -> Builder {
        builder.returns(self.returns).maxactive(self.maxactive)
    }
}
