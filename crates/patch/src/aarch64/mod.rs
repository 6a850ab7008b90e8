//! arm64: the writer of our own code. What attaches to other processes is x86-64's as yet.

pub mod own;
