//! Descriptors that no child of this process inherits.
//!
//! In: code that opens, uses or closes some. Out: its result, from a thread that has a descriptor table of
//! its own and never forks. A perf event or a link lasts as long as any process holds its descriptor. A child
//! that another test just forked holds all of its parent's until it executes. So an oracle's probe that was
//! dropped would stay for a while, and another test could see it as a breakpoint or as a waiting consumer.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};

type Job = Box<dyn FnOnce() + Send>;

/// Runs the job in that thread.
pub(crate) fn apart<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    static KEEPER: OnceLock<Sender<Job>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            // SAFETY: this thread has opened nothing, and closes only in a descriptor table that from here on
            // is its own.
            let closed = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
            assert_eq!(closed, 0, "{}", std::io::Error::last_os_error());
            todo.into_iter().for_each(|job| job());
        });
        jobs
    });
    let (tell, reported) = mpsc::channel();
    keeper.send(Box::new(move || tell.send(job()).expect("it waits"))).expect("it ends with us");
    reported.recv().expect("the job did not panic")
}

/// A descriptor in that thread's table.
#[derive(Debug)]
pub(crate) struct Kept(Option<File>);

impl Kept {
    /// Opens a descriptor in that thread.
    pub(crate) fn open(job: impl FnOnce() -> Result<File, String> + Send + 'static) -> Result<Self, String> {
        apart(job).map(|file| Self(Some(file)))
    }
    /// Uses the descriptor in that thread.
    pub(crate) fn with<T: Send + 'static>(&self, job: impl FnOnce(&File) -> T + Send + 'static) -> T {
        let fd = self.0.as_ref().expect("there until it is dropped").as_raw_fd();
        // SAFETY: the descriptor belongs to that thread's table, stays open until `self` is dropped, and
        // `ManuallyDrop` does not close it.
        apart(move || job(&ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let file = self.0.take();
        apart(move || drop(file));
    }
}
