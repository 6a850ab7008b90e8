//! Opens everything for the targets, in the best way that the kernel and our rights allow.
//!
//! In: targets, options. Out: rings, and an armed [`Group`] for each target. These are
//! tried in turn:
//! - with the accesses that the kernel makes for a program; without them if they are denied;
//! - with inheritance; with each thread by itself if the kernel does not know the flags (before Linux 5.13)
//!   or refuses them together.
//!
//! Where a trap comes before the access, no BPF program reads at it. It would find the value from before.
//! Also, kernels before 6.6 never step over a breakpoint that has a BPF program (arm64's hw_breakpoint.c).

use trapline_tracee::perf::{Access, Breakpoint, Family, SampleOptions, SampleRings, TaskRings};

use super::words::{Options, Target};
use crate::arm::{ArmedThread, Armory, Progress};
use crate::births::Births;
use crate::error::{EINVAL, WatchError};
use crate::native;
use crate::rotate::Rotation;

/// Pages of each CPU's ring: 4 MiB hold some 15,000 samples. One CPU at its limit fills that in a sixth of a
/// second.
const PAGES: u64 = 1024;

/// The armed threads of a target; none if its process ended meanwhile.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) threads: Vec<ArmedThread>,
    pub(super) rotation: Option<Rotation>,
}

/// What all targets share, and the group of each.
pub(super) struct Opened {
    pub(super) rings: SampleRings,
    pub(super) births: Births,
    pub(super) inherit: bool,
    pub(super) groups: Vec<Group>,
}

impl Group {
    /// The points that the armed breakpoints of a thread watch now.
    pub(super) fn points_now(&self, target: &Target) -> Vec<Breakpoint> {
        match &self.rotation {
            Some(rotation) => rotation.now().iter().map(|&point| target.points[point].at).collect(),
            None => target.points.iter().map(|point| point.at).collect(),
        }
    }
}

/// Checks that debug registers can hold the ranges, and that none occurs twice.
pub(super) fn check(target: &Target) -> Result<(), WatchError> {
    for (index, point) in target.points.iter().enumerate() {
        let Breakpoint { addr, len, access } = point.at;
        if access != Access::Execute {
            crate::spec::check_range(addr, len.into())?;
        }
        if target.points[..index].iter().any(|other| other.at.addr == addr) {
            return Err(WatchError::Twice { addr, pid: target.process.pid() });
        }
    }
    Ok(())
}

/// Opens the rings and arms the threads.
pub(super) fn open(
    targets: &[Target],
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Opened, WatchError> {
    let (mut kernel, mut inherit) = (native::SEES_KERNEL, options.inherit);
    loop {
        match attempt(targets, options, kernel, inherit, progress) {
            Err(WatchError::Denied { .. }) if kernel => kernel = false,
            Err(WatchError::Kernel { source, .. }) if inherit && source.raw_os_error() == Some(EINVAL) => {
                inherit = false;
            }
            done => return done,
        }
    }
}

fn attempt(
    targets: &[Target],
    options: Options,
    kernel: bool,
    inherit: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Opened, WatchError> {
    let sampled = SampleOptions {
        family: match (inherit, options.forks) {
            (false, _) => Family::Alone,
            (true, false) => Family::Threads,
            (true, true) => Family::Forks,
        },
        registers: options.values,
        stack: options.stack,
        values: options.values && options.bpf && !native::TRAPS_BEFORE,
        kernel,
        pages: PAGES,
    };
    let failed = |source| WatchError::Rings { source };
    let mut births = Births::new(TaskRings::open().map_err(failed)?);
    let rings = SampleRings::open(sampled).map_err(failed)?;
    let mut armory = Armory { rings: &rings, births: &mut births, inherit };
    let mut groups = Vec::with_capacity(targets.len());
    let mut ended = None;
    for target in targets {
        match group(&mut armory, target, options, progress) {
            Ok(group) => groups.push(group),
            // Of several processes one may end at any moment. The others are watched.
            Err(error) if !target.process.alive() => {
                groups.push(Group { threads: Vec::new(), rotation: None });
                ended = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match ended {
        Some(error) if groups.iter().all(|group| group.threads.is_empty()) => Err(error),
        _ => Ok(Opened { rings, births, inherit, groups }),
    }
}

/// Arms all threads of a target. If debug registers do not suffice and turns are allowed, there are fewer
/// lanes than points.
pub(super) fn group(
    armory: &mut Armory<'_>,
    target: &Target,
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Group, WatchError> {
    let points: Vec<Breakpoint> = target.points.iter().map(|point| point.at).collect();
    let mut lanes = points.len();
    loop {
        let error = match armory.arm(&target.process, &points[..lanes], progress) {
            Ok(threads) => {
                let turns = options.rotate.filter(|_| lanes < points.len());
                let rotation = turns.map(|slice| Rotation::new(points.len(), lanes, slice));
                return Ok(Group { threads, rotation });
            }
            Err(error) => error,
        };
        // Another thread may have fewer registers left than the one before.
        match &error {
            WatchError::NoRegisters(full)
                if options.rotate.is_some() && (1..lanes).contains(&(full.free as usize)) =>
            {
                lanes = full.free as usize;
            }
            _ => return Err(error),
        }
    }
}
