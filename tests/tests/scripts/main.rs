//! The scripts of `scripts/` on real programs. Judges are what a program says itself, other tools' figures, and the
//! kernel's bpftrace with the same script beside the program's twin, at the same time.

mod functions;
mod languages;
mod libc;
mod libraries;
mod locks;
mod services;
