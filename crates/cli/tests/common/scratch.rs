//! Files that tests write.

use std::path::PathBuf;

/// A file of the test's own; removed with the test.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(super::program().with_file_name(format!("{}-{name}", std::process::id())))
    }
    pub(crate) fn name(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
