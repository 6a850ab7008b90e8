//! The pool's protocol in every interleaving that loom finds. Beside each model is a twin with one step
//! broken that must fail: `RUSTFLAGS="--cfg loom" cargo test -p trapline-runtime --release --test pool_loom`.
//!
//! The code is the pool's own (`pool::protocol`), on a model's parts. A sequence has the properties that the
//! kernel gives it: nothing else happens to that CPU's magazine meanwhile (a mutex for each CPU), and it may
//! be aborted, which does nothing. Restarting all sequences waits for those in progress. An object is a cell
//! that only its holder may touch. The pool's memory is a cell; the thread with the put that is reported as
//! the last removes it.
//!
//! Does not: model the instructions of a sequence (`tests/pool_interrupted.rs` interrupts each of them).
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Arc, Mutex};
use trapline_runtime::pool::magazine::Magazine;
use trapline_runtime::pool::protocol::{Parts, close, get, put};
use trapline_runtime::pool::{Returned, set};

struct Cpu {
    alone: Mutex<()>,
    magazine: Magazine,
    set: Vec<AtomicU64>,
}

struct Model {
    cpus: Vec<Cpu>,
    depth: u32,
    refs: AtomicU32,
    closing: AtomicU32,
    /// Removed by the last put.
    memory: UnsafeCell<()>,
    objects: Vec<UnsafeCell<u32>>,
}

// SAFETY: the model checks these cells; loom reports accesses that are not ordered.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

/// A CPU; the next sequence on it may be aborted.
#[derive(Clone, Copy)]
struct On {
    cpu: u32,
    abort: bool,
}

fn on(cpu: u32) -> On {
    On { cpu, abort: false }
}

impl Model {
    /// Objects begin in the first CPU's bitmap.
    fn new(cpus: u32, objects: u32, depth: u32) -> Arc<Self> {
        let cpu = |_| Cpu {
            alone: Mutex::new(()),
            magazine: Magazine::default(),
            set: (0..set::words(objects)).map(|_| AtomicU64::new(0)).collect(),
        };
        let model = Self {
            cpus: (0..cpus).map(cpu).collect(),
            depth,
            refs: AtomicU32::new(objects + 1),
            closing: AtomicU32::new(0),
            memory: UnsafeCell::new(()),
            objects: (0..objects).map(|_| UnsafeCell::new(0)).collect(),
        };
        model.cpus.iter().for_each(|cpu| cpu.magazine.open(depth));
        (0..objects).for_each(|object| assert!(set::put(&model.cpus[0].set, object)));
        Arc::new(model)
    }
    fn touch(&self) {
        self.memory.with(|_| ());
    }
    /// What the holder of an object does with it.
    fn work(&self, object: u32) {
        // SAFETY: loom checks that no other thread is here.
        self.objects[object as usize].with_mut(|at| unsafe { *at += 1 });
    }
    fn answer(&self, returned: Returned) -> Returned {
        if returned == Returned::Last {
            self.memory.with_mut(|_| ());
        }
        returned
    }
    fn take_and_put(&self, at: On) -> Option<Returned> {
        let object = get(self, at)?;
        self.work(object);
        Some(self.answer(put(self, at, object)))
    }
    fn restart(&self) -> bool {
        self.cpus.iter().for_each(|cpu| drop(cpu.alone.lock().expect("no thread panics")));
        true
    }
    fn close(&self) -> Returned {
        self.answer(close(self, || self.restart()).expect("not closed yet"))
    }
    /// All objects are there, each once.
    fn whole(&self) {
        let mut got: Vec<u32> = std::iter::from_fn(|| get(self, on(0))).collect();
        got.extend(std::iter::from_fn(|| get(self, on(1))));
        got.sort_unstable();
        assert_eq!(got, (0..self.objects.len() as u32).collect::<Vec<_>>());
    }
}

impl Parts for Model {
    type At = On;
    fn cpus(&self) -> u32 {
        self.cpus.len() as u32
    }
    fn magazine(&self, cpu: u32) -> &Magazine {
        self.touch();
        &self.cpus[cpu as usize].magazine
    }
    fn set(&self, cpu: u32) -> &[AtomicU64] {
        self.touch();
        &self.cpus[cpu as usize].set
    }
    fn refs(&self) -> &AtomicU32 {
        self.touch();
        &self.refs
    }
    fn closing(&self) -> &AtomicU32 {
        self.touch();
        &self.closing
    }
    fn depth(&self) -> u32 {
        self.depth
    }
    fn take_from_magazine(&self, at: On) -> Result<u32, u32> {
        let cpu = &self.cpus[at.cpu as usize];
        let _alone = cpu.alone.lock().expect("no thread panics");
        self.touch();
        if at.abort { Err(at.cpu) } else { cpu.magazine.take().ok_or(at.cpu) }
    }
    fn put_into_magazine(&self, at: On, object: u32) -> Result<(), u32> {
        let cpu = &self.cpus[at.cpu as usize];
        let _alone = cpu.alone.lock().expect("no thread panics");
        self.touch();
        if !at.abort && cpu.magazine.put(object) { Ok(()) } else { Err(at.cpu) }
    }
}

fn check(bound: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(run);
}

/// Checks that loom finds the twin's error.
fn must_fail(bound: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(bound, run))).is_err();
    assert!(failed, "a broken twin was not caught");
}

fn threads<const N: usize>(
    model: &Arc<Model>,
    programs: [fn(&Model) -> Option<Returned>; N],
) -> Vec<Returned> {
    let threads = programs.map(|program| {
        let model = model.clone();
        loom::thread::spawn(move || program(&model))
    });
    threads.into_iter().filter_map(|thread| thread.join().expect("it ends")).collect()
}

#[test]
fn two_cpus_want_the_only_object() {
    check(None, || {
        let model = Model::new(2, 1, 0);
        let put = threads(&model, [|m| m.take_and_put(on(0)), |m| m.take_and_put(on(1))]);
        assert!(!put.is_empty(), "the object was there: one of them got it");
        model.whole();
    });
}

#[test]
fn three_threads_two_cpus_two_objects_and_shelves() {
    check(Some(3), || {
        let model = Model::new(2, 2, 1);
        threads(
            &model,
            [
                |m| m.take_and_put(on(0)).and(m.take_and_put(on(0))),
                |m| m.take_and_put(On { cpu: 0, abort: true }),
                |m| m.take_and_put(on(1)),
            ],
        );
        model.whole();
    });
}

/// An object that another thread put back a moment ago is free again: no ABA.
#[test]
fn an_object_that_came_and_went_may_be_taken() {
    check(Some(4), || {
        let model = Model::new(2, 2, 0);
        threads(&model, [|m| m.take_and_put(on(0)).and(m.take_and_put(on(0))), |m| m.take_and_put(on(0))]);
        model.whole();
    });
}

/// Two objects are held while the pool is closed, on two CPUs, one of which has room in its magazine.
fn closing(
    bound: Option<usize>,
    depth: u32,
    puts: [fn(&Model, u32) -> Returned; 2],
    closes: fn(&Model) -> Returned,
) {
    check(bound, closing_model(depth, puts, closes));
}

fn closing_model(
    depth: u32,
    puts: [fn(&Model, u32) -> Returned; 2],
    closes: fn(&Model) -> Returned,
) -> impl Fn() + Sync + Send {
    move || {
        let model = Model::new(2, 2, depth);
        let held = [0, 0].map(|cpu| get(&*model, on(cpu)).expect("both are there"));
        let putters: Vec<_> = held
            .into_iter()
            .zip(puts)
            .map(|(object, put)| {
                let model = model.clone();
                loom::thread::spawn(move || {
                    model.work(object);
                    put(&model, object)
                })
            })
            .collect();
        let mut answers = vec![closes(&model)];
        answers.extend(putters.into_iter().map(|putter| putter.join().expect("it ends")));
        let last = answers.iter().filter(|answer| **answer == Returned::Last).count();
        assert_eq!(last, 1, "{answers:?}");
    }
}

fn put_on_0(model: &Model, object: u32) -> Returned {
    model.answer(put(model, on(0), object))
}
fn put_on_1(model: &Model, object: u32) -> Returned {
    model.answer(put(model, on(1), object))
}

#[test]
fn closed_while_both_come_back_to_sets() {
    closing(Some(4), 0, [put_on_0, put_on_1], Model::close);
}

#[test]
fn closed_while_both_come_back_to_shelves() {
    closing(Some(3), 1, [put_on_0, put_on_1], Model::close);
}

#[test]
fn closed_while_both_come_back_to_one_shelf_with_room_for_one() {
    closing(Some(3), 1, [put_on_0, put_on_0], Model::close);
}

#[test]
fn closed_beside_a_get_that_is_waited_for() {
    check(Some(3), || {
        let model = Model::new(2, 2, 1);
        let held = get(&*model, on(0)).expect("it is there");
        let getter = {
            let model = model.clone();
            loom::thread::spawn(move || model.take_and_put(on(1)))
        };
        let closed = model.close();
        assert_eq!(closed, Returned::Dropped, "one is held");
        let got = getter.join().expect("it ends");
        assert_ne!(got, Some(Returned::Last), "the other is held");
        assert_eq!(put_on_0(&model, held), Returned::Last);
        assert_eq!(get(&*model, on(0)), None);
    });
}

#[test]
fn a_closing_that_cannot_restart_sequences_changes_nothing() {
    check(None, || {
        let model = Model::new(2, 2, 1);
        let other = {
            let model = model.clone();
            loom::thread::spawn(move || model.take_and_put(on(1)))
        };
        assert!(close(&*model, || false).is_err());
        assert_eq!(other.join().expect("it ends"), Some(Returned::Free));
        model.whole();
    });
}

#[test]
fn twin_closing_does_not_restart_sequences() {
    let hasty = |model: &Model| model.answer(close(model, || true).expect("not closed yet"));
    must_fail(Some(3), closing_model(1, [put_on_0, put_on_1], hasty));
}

#[test]
fn twin_a_set_is_taken_from_in_two_steps() {
    fn take_and_put(model: &Model) -> Option<Returned> {
        let word = &model.set(0)[0];
        let seen = word.load(Acquire);
        let object = (seen != 0).then(|| seen.trailing_zeros())?;
        word.store(seen & (seen - 1), Relaxed);
        model.work(object);
        Some(put(model, on(0), object))
    }
    must_fail(None, || {
        let model = Model::new(2, 1, 0);
        threads(&model, [take_and_put, take_and_put]);
        model.whole();
    });
}

#[test]
fn twin_put_does_not_publish_what_was_written() {
    fn take_and_put(model: &Model) -> Option<Returned> {
        let object = get(model, on(0))?;
        model.work(object);
        model.set(0)[0].fetch_add(1 << object, Relaxed);
        None
    }
    must_fail(None, || {
        let model = Model::new(2, 1, 0);
        threads(&model, [take_and_put, take_and_put]);
    });
}

#[test]
fn twin_put_asks_first_whether_the_pool_is_closed() {
    fn put_asking_first(model: &Model, object: u32) -> Returned {
        if model.closing().load(Acquire) == 0 {
            model.set(0)[0].fetch_add(1 << object, Release);
            return Returned::Free;
        }
        model.answer(if model.refs().fetch_sub(1, AcqRel) == 1 { Returned::Last } else { Returned::Dropped })
    }
    must_fail(Some(3), closing_model(0, [put_asking_first, put_on_1], Model::close));
}

#[test]
fn twin_put_looks_at_the_pool_behind_its_commit() {
    fn put_looking_back(model: &Model, object: u32) -> Returned {
        let returned = model.answer(put(model, on(0), object));
        if returned == Returned::Free {
            model.refs().load(Relaxed);
        }
        returned
    }
    must_fail(Some(3), closing_model(0, [put_looking_back, put_on_1], Model::close));
}

#[test]
fn twin_the_closer_holds_nothing_itself() {
    fn close_unheld(model: &Model) -> Returned {
        model.refs().fetch_sub(1, AcqRel);
        let counted: u32 = (0..2).map(|cpu| set::close(model.set(cpu))).sum();
        let left = model.refs().fetch_sub(counted, AcqRel);
        model.answer(if counted > 0 && left == counted { Returned::Last } else { Returned::Dropped })
    }
    must_fail(Some(3), closing_model(0, [put_on_0, put_on_1], close_unheld));
}
