//! The measured pools: ours, the baselines of the reference design, and two ways that are no pools.

use anyhow::Result;

use super::array::{Array, ByLine, Element, Random, Share, Zigzag};
use super::circular::Circular;
use super::drive::{Bare, Control};
use super::freelist::Freelist;
use super::instances::{Apart, Instances, Ours};
use super::per_thread::PerThread;

/// A kind of pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PoolKind {
    None,
    Control,
    Ours,
    /// Ours, one pool for each thread.
    OursApart,
    /// Ours without per-CPU magazines, as where there is no rseq.
    OursSets,
    Freelist,
    SharedArray,
    Random,
    Line,
    Element,
    Zigzag,
    Circular,
    PerThread,
}

/// What to do with a pool of any type.
pub(crate) trait Job {
    type Out;
    fn with<P: Instances>(&self, pool: &P) -> Result<Self::Out>;
}

impl PoolKind {
    pub(crate) const ALL: [Self; 13] = [
        Self::None,
        Self::Control,
        Self::Ours,
        Self::OursApart,
        Self::OursSets,
        Self::Freelist,
        Self::SharedArray,
        Self::Random,
        Self::Line,
        Self::Element,
        Self::Zigzag,
        Self::Circular,
        Self::PerThread,
    ];
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Control => "control",
            Self::Ours | Self::OursApart => "ours",
            Self::OursSets => "ours-sets",
            Self::Freelist => "freelist",
            Self::SharedArray => "shared-array",
            Self::Random => "random",
            Self::Line => "line",
            Self::Element => "element",
            Self::Zigzag => "zigzag",
            Self::Circular => "circular",
            Self::PerThread => "per-thread",
        }
    }
    /// Name that rows give to the sharing: each thread has its own, or all use the same.
    pub(crate) const fn sharing(self) -> &'static str {
        match self {
            Self::Control | Self::OursApart | Self::PerThread => "own",
            _ => "same",
        }
    }
    /// Whether each thread has its own.
    #[cfg(test)]
    pub(crate) fn is_apart(self) -> bool {
        self.sharing() == "own"
    }
    /// Whether this is a pool at all.
    #[cfg(test)]
    pub(crate) const fn is_pool(self) -> bool {
        !matches!(self, Self::None | Self::Control)
    }
    /// Makes a fresh pool, and runs the job on it.
    pub(crate) fn make<J: Job>(self, cpus: u32, threads: usize, maxactive: u32, job: &J) -> Result<J::Out> {
        match self {
            Self::None => job.with(&Bare),
            Self::Control => job.with(&Control::new(threads)),
            Self::Ours => job.with(&Ours::<true>::new(cpus, maxactive)?),
            Self::OursApart => job.with(&Apart::new(cpus, threads, maxactive)?),
            Self::OursSets => job.with(&Ours::<false>::new(cpus, maxactive)?),
            Self::Freelist => job.with(&Freelist::new(maxactive)),
            Self::SharedArray => job.with(&Array::<Share>::new(cpus, maxactive)),
            Self::Random => job.with(&Array::<Random>::new(cpus, maxactive)),
            Self::Line => job.with(&Array::<ByLine>::new(cpus, maxactive)),
            Self::Element => job.with(&Array::<Element>::new(cpus, maxactive)),
            Self::Zigzag => job.with(&Array::<Zigzag>::new(cpus, maxactive)),
            Self::Circular => job.with(&Circular::new(maxactive)),
            Self::PerThread => job.with(&PerThread::new(threads as u32, maxactive)),
        }
    }
}
