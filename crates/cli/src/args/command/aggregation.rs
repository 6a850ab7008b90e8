//! Where `hist` aggregates: in the target, or in the reader, from records.
//!
//! In: plain values. Out: [`Aggregation`], [`Of`]. Does not: decide where, or aggregate.

use trapline::ProbeSpec;
use trapline::calls::Floats;
use trapline::filter::Tally;

use super::types::Parameter;

/// Where values are aggregated.
#[derive(Debug)]
pub(crate) enum Aggregation {
    /// In the target.
    InTarget {
        /// Whether it happens at exits.
        exits: bool,
    },
    /// In the reader, from records.
    InReader {
        /// For each probe, the value that is taken of its calls.
        of: Vec<(ProbeSpec, Of)>,
        /// The group-by key of each probe; `None` if no value of the calls is one.
        keys: Option<Vec<Of>>,
        /// How many arguments are recorded.
        arguments: u8,
        /// Whether exits are recorded too.
        returns: bool,
        /// For each probe, the arguments that point to text, as bits.
        texts: Vec<u16>,
        /// Those of them with a text that ends at a 0.
        ended: Vec<u16>,
        /// The floats of each probe.
        floats: Vec<Floats>,
    },
}

impl Aggregation {
    /// Whether it waits for the ends of calls.
    pub(crate) const fn waits(&self) -> bool {
        match self {
            Self::InTarget { exits } => *exits,
            Self::InReader { returns, .. } => *returns,
        }
    }
}

/// A value that is taken of a call.
#[derive(Debug, Clone)]
pub(crate) enum Of {
    /// A number.
    Number(Tally),
    /// The text that an argument points to.
    Text(Parameter),
}
