//! The instances of one probe: its pools, and how a call's instance is found in them. [`instances`](super)
//! describes the protocol.
//!
//! In: `maxactive`, then entries and exits. Out: instances.
//! Does not: free a pool.

use alloc::boxed::Box;

use super::hints::{Hint, Hinted};
use super::instance::{Instance, KeptCall};
use super::kept_place::KeptPlaces;
use super::left;
use crate::epoch::Writer;
use crate::native::thread::thread_pointer;
use crate::pool::{At, BadRegion, Held, OwnedPool, PoolSize, Raw, Registered};
use crate::sync::LeakedOrNone;
use crate::trampolines::TrampolineTable;

/// How to find out where the calling thread runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadPlace {
    /// Distance from a thread pointer to the thread's rseq area, in bytes; `None` if threads have none.
    pub(crate) rseq: Option<isize>,
    /// Return trampolines, with their addresses as keys.
    pub(crate) trampolines: Option<&'static TrampolineTable>,
}

impl ThreadPlace {
    #[inline]
    fn at(self, thread: u64) -> At {
        match self
            .rseq
            .and_then(|offset| core::ptr::NonNull::new(thread.wrapping_add_signed(offset as i64) as *mut u8))
        {
            // SAFETY: the rseq area of the calling thread, in its control block (`Engine::with_rseq`).
            Some(area) => At::Rseq(unsafe { Registered::new(area) }),
            // Any number will do; threads should have different ones.
            None => At::Cpu((thread >> 12) as u32),
        }
    }
    /// The stack pointer at the entry of the call with this key; 0 if the call is just beginning or ending.
    fn frame(self, key: u64) -> u64 {
        self.trampolines.map_or(key, |trampolines| trampolines.frame(key))
    }
    /// A CPU that this thread may be on, or a number that few threads share.
    #[inline]
    pub(crate) fn cpu_hint(self) -> u32 {
        /// Offset of cpu_id in `struct rseq`. It is negative in a thread that is not registered, which is
        /// just as good.
        const CPU_ID: usize = 4;
        let thread = thread_pointer();
        match self.rseq {
            // SAFETY: the rseq area of the calling thread (`Engine::with_rseq`), which the kernel writes to.
            Some(offset) => unsafe {
                ((thread.wrapping_add_signed(offset as i64) as usize + CPU_ID) as *const u32).read_volatile()
            },
            None => (thread >> 12) as u32,
        }
    }
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pool {
    pub(crate) raw: Raw,
    pool: OwnedPool,
    older: Option<&'static Self>,
}

/// The pools of a probe, the newest first. They are never freed, since a call may be in flight.
#[derive(Debug)]
#[repr(transparent)]
pub struct Instances(LeakedOrNone<Pool>);

impl Default for Instances {
    fn default() -> Self {
        Self(LeakedOrNone::none())
    }
}

/// A call that has an instance.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    of: &'a Pool,
    held: Held,
    pub(crate) instance: &'a Instance,
    sp: u64,
}

impl Instances {
    /// Makes sure that `maxactive` calls can be in flight at once; [`PoolSize::default_maxactive`] without a
    /// number. `magazines`: threads have rseq areas, so pools have per-CPU magazines.
    ///
    /// # Errors
    /// [`BadRegion`]: 0, absurdly many, or more than there is memory for. Nothing has changed then.
    pub fn provide(
        &self,
        _writer: &Writer,
        maxactive: Option<u32>,
        cpus: u32,
        magazines: bool,
    ) -> Result<(), BadRegion> {
        let shape = PoolSize::new(cpus, maxactive, size_of::<Instance>() as u32)?;
        let shape = if magazines { shape } else { shape.with_depth(0)? };
        let older = self.newest();
        if older.is_some_and(|older| older.pool.shape().maxactive() >= shape.maxactive()) {
            return Ok(());
        }
        let pool = OwnedPool::new(shape)?;
        self.0.set(Box::leak(Box::new(Pool { raw: pool.raw(), pool, older })));
        Ok(())
    }
    /// Length of all its pools in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pools().map(|one| one.pool.shape().bytes()).sum()
    }
    /// Addresses and lengths in bytes of all its pools.
    pub fn lie(&self) -> impl Iterator<Item = (u64, usize)> {
        self.pools().map(|one| (one.pool.address(), one.pool.shape().bytes()))
    }
    /// Number of calls that had an instance and are counted nowhere else.
    pub(crate) fn calls(&self) -> u64 {
        self.pools().flat_map(Pool::all).map(|(_, instance)| instance.calls()).sum()
    }
    fn newest(&self) -> Option<&'static Pool> {
        self.0.get()
    }
    fn pools(&self) -> impl Iterator<Item = &'static Pool> {
        core::iter::successors(self.newest(), |one| one.older)
    }
    /// A1 to A4, for a call of `probe` with this key and its frame at `frame`. `ask` decides whether to look
    /// for threads that have ended.
    #[inline]
    pub(crate) fn begin(
        &self,
        (places, thread_place): (KeptPlaces, ThreadPlace),
        (sp, frame): (u64, u64),
        (probe, site): (u64, u64),
        ask: impl FnOnce() -> bool,
    ) -> Option<Call<'static>> {
        let (of, place, thread) = (self.newest()?, places.of(sp), thread_pointer());
        let hint = &place.hint;
        // K3: if a call with the same key was kept here, it was left.
        let _left = place.end(sp, probe);
        let held = of.again(hint, sp).or_else(|| of.pool.get(thread_place.at(thread)));
        let Some(held) = held.or_else(|| of.left((thread_place, frame), thread, ask())) else {
            hint.no_consumer(sp);
            return None;
        };
        let instance = of.instance(&held);
        instance.begin(sp, site, thread);
        let call = Call { of, held, instance, sp };
        hint.number(sp, call.held.number());
        Some(call)
    }
    /// L1, or B1 to B4.
    #[inline]
    pub(crate) fn end(
        &self,
        (places, thread_place): (KeptPlaces, ThreadPlace),
        sp: u64,
        probe: u64,
    ) -> Option<KeptCall> {
        let place = places.of(sp);
        if let Some(site) = place.end(sp, probe) {
            return Some(KeptCall::of(site));
        }
        let hint = &place.hint;
        let known = match hint.read(sp) {
            Hinted::NoConsumer => {
                hint.clear();
                return None;
            }
            Hinted::Number(number) => self.newest().and_then(|of| of.with_key(number, sp)),
            Hinted::Nothing => None,
        };
        let call = known.or_else(|| self.pools().find_map(|of| of.find(sp)))?;
        let kept = call.instance.kept();
        call.end(thread_place, hint);
        Some(kept)
    }
}

impl Pool {
    #[inline]
    fn instance(&self, held: &Held) -> &Instance {
        // SAFETY: an object of `Instance`'s size on lines of its own, zeroed when the pool was made, for as
        // long as the pool exists.
        unsafe { self.pool.object(held).cast().as_ref() }
    }
    fn all(&self) -> impl Iterator<Item = (u32, &Instance)> {
        (0..self.pool.shape().objects()).map(|number| {
            // SAFETY: the instance is only read.
            (number, self.instance(&unsafe { Held::from_number(number) }))
        })
    }
    /// The call that has this instance, if its key is `sp`.
    #[inline]
    fn with_key(&self, number: u32, sp: u64) -> Option<Call<'_>> {
        if number >= self.pool.shape().objects() {
            return None;
        }
        // SAFETY: it is given back only if it turns out to be that of the caller's own call, which no other
        // call puts back (CAL-1).
        let held = unsafe { Held::from_number(number) };
        let instance = self.instance(&held);
        (instance.sp() == sp).then_some(Call { of: self, held, instance, sp })
    }
    #[cold]
    fn find(&self, sp: u64) -> Option<Call<'_>> {
        self.all().find(|(_, instance)| instance.sp() == sp).and_then(|(number, _)| self.with_key(number, sp))
    }
    /// A1: the instance that a call with the same key has left.
    #[inline]
    fn again(&self, hint: &Hint, sp: u64) -> Option<Held> {
        let Hinted::Number(number) = hint.read(sp) else { return None };
        let call = self.with_key(number, sp)?;
        call.instance.claim_if(|key| key == sp).then_some(call.held)
    }
    /// A3.
    #[cold]
    fn left(&self, (threads, frame): (ThreadPlace, u64), thread: u64, ask: bool) -> Option<Held> {
        let is_over = |instance: &Instance, key: u64| match threads.frame(key) {
            0 => false,
            sp if sp == frame && sp == key => true,
            // Several trampolines of tail calls share a stack word. Those that lie under another one will
            // still be returned to.
            sp if sp == frame => false,
            sp if instance.thread() == thread => left::is_below(sp, frame),
            sp => ask && left::has_ended(instance.thread(), sp),
        };
        self.all().find_map(|(number, instance)| {
            let claimed = instance.claim_if(|key| is_over(instance, key));
            // SAFETY: claimed, so no other code has it.
            claimed.then(|| unsafe { Held::from_number(number) })
        })
    }
}

impl Call<'_> {
    /// B3 and B4.
    #[inline]
    fn end(self, thread_place: ThreadPlace, hint: &Hint) {
        self.instance.end();
        hint.clear();
        // Pools are never closed.
        let _freed = self.of.pool.put(thread_place.at(thread_pointer()), self.held);
    }
    /// A6.
    pub(crate) fn cancel(self, (places, thread_place): (KeptPlaces, ThreadPlace)) {
        let (hint, sp) = (&places.of(self.sp).hint, self.sp);
        self.end(thread_place, hint);
        hint.no_consumer(sp);
    }
}
