//! Descriptors that no child of ours gets.
//!
//! In: what opens, uses or closes some. Out: its answer, from a thread that has a table of descriptors of its own and forks nothing. A perf event or
//! a link lasts as long as any process has its descriptor, and a child that some other test just forked has all of its parent's until it executes: so a
//! judge's probe that was dropped would be there for a while, and be seen as somebody's breakpoint or waiting consumer.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};

type Job = Box<dyn FnOnce() + Send>;

/// Does it in that thread.
pub(crate) fn apart<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    static KEEPER: OnceLock<Sender<Job>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (jobs, todo) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            // SAFETY: this thread has opened nothing, and what it closes it closes in a table that from here on is its own.
            let closed = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
            assert_eq!(closed, 0, "{}", std::io::Error::last_os_error());
            todo.into_iter().for_each(|job| job());
        });
        jobs
    });
    let (tell, told) = mpsc::channel();
    keeper.send(Box::new(move || tell.send(job()).expect("it waits"))).expect("it ends with us");
    told.recv().expect("the job did not panic")
}

/// A descriptor of that thread's.
#[derive(Debug)]
pub(crate) struct Kept(Option<File>);

impl Kept {
    /// What was opened there.
    pub(crate) fn open(job: impl FnOnce() -> Result<File, String> + Send + 'static) -> Result<Self, String> {
        apart(job).map(|file| Self(Some(file)))
    }
    /// Uses it there.
    pub(crate) fn with<T: Send + 'static>(&self, job: impl FnOnce(&File) -> T + Send + 'static) -> T {
        let fd = self.0.as_ref().expect("there until it is dropped").as_raw_fd();
        // SAFETY: it is that table's, open until we are dropped, and not closed here.
        apart(move || job(&ManuallyDrop::new(unsafe { File::from_raw_fd(fd) })))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let file = self.0.take();
        apart(move || drop(file));
    }
}
