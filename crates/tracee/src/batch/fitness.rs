//! How little a thread notices of making our calls.
//!
//! Input: what /proc shows of each thread. Output: the threads, best first. First choice is a thread that does
//! not notice: it sleeps in a call that the kernel restarts by itself, or for ever in one that can be made
//! again. Next is one that runs. Last is one with a finite timeout that begins anew. Does not: stop a thread,
//! so what it finds may be outdated at once.

use trapline_order::Order as _;

use crate::calls::Interruption;
use crate::error::TargetError;
use crate::numbers::is_last_choice;
use crate::process::Process;
use crate::repair::interruption;
use crate::status::InCall;
use crate::stuck::{Stuck, sleeps_frozen};

/// What a thread notices, from nothing to too much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fitness {
    /// Nothing: its call continues.
    Restarts,
    /// A pause.
    Running,
    /// Its call's timeout begins anew.
    Timeout,
    /// It cannot be stopped now.
    Unfit,
}

impl Fitness {
    /// A thread's fitness at this moment.
    pub(super) fn of(process: &Process, tid: u32) -> Self {
        let state = process.thread_status(tid).map_or('X', |s| s.state);
        match (state, process.in_call(tid)) {
            ('D' | 'Z' | 'X', _) | (_, Err(_)) => Self::Unfit,
            ('S', _) if sleeps_frozen(process.pid(), tid) => Self::Unfit,
            (_, Ok(InCall::Running)) => Self::Running,
            (_, Ok(InCall::Elsewhere { .. })) => Self::Restarts,
            (_, Ok(InCall::Call { nr, .. })) if is_last_choice(nr as i64) => Self::Timeout,
            (_, Ok(InCall::Call { nr, args, .. })) => match interruption(process, nr as i64, &args) {
                Interruption::EintrTimeout => Self::Timeout,
                Interruption::Restarts | Interruption::EintrEndless => Self::Restarts,
            },
        }
    }
}

/// Threads that are no worse than `worst`, best first. The search ends when three of the best kind are found.
pub(super) fn candidates(process: &Process, threads: Vec<u32>, worst: Fitness) -> Vec<u32> {
    let mut ranked = Vec::new();
    for tid in threads {
        let fitness = Fitness::of(process, tid);
        if fitness <= worst {
            ranked.push((fitness, tid));
        }
        if ranked.iter().filter(|(f, _)| *f == Fitness::Restarts).count() >= 3 {
            break;
        }
    }
    ranked.order();
    ranked.into_iter().map(|(_, tid)| tid).collect()
}

/// Whether a thread has ended, as /proc shows it.
pub(super) fn has_ended(process: &Process, tid: u32) -> bool {
    process.thread_status(tid).map_or(true, |status| matches!(status.state, 'Z' | 'X'))
}

/// Whether a thread waits uninterruptibly, and is not frozen.
pub(super) fn waits_uninterruptibly(process: &Process, tid: u32) -> bool {
    process.thread_status(tid).is_ok_and(|status| status.state == 'D')
        && !Stuck::of(process.pid(), tid).is_frozen()
}

/// The error for threads of which none is fit. The first one stands for all.
pub(super) fn none_fit(process: &Process, threads: &[u32]) -> TargetError {
    let pid = process.pid();
    let Some(&first) = threads.first() else { return process.gone("it ended") };
    let of = if threads.len() == 1 {
        "its thread".to_owned()
    } else {
        format!("none of its {} threads", threads.len())
    };
    let can = if threads.len() == 1 { "cannot" } else { "can" };
    let why = format!("{of} {can} make them: {}", Stuck::of(pid, first));
    TargetError::NoCaller { pid, why }
}
