//! Places of single addresses in processes: pointers to functions, that a program handed over.
//!
//! In: a process and an address. Out: a [`Frame`], if code is mapped there, or was at an earlier look. A process is
//! looked at when an address is in no code that was seen. Does not: name anything.

use std::collections::HashMap;

use trapline_tracee::Process;

use super::frame::Frame;
use super::seen_code::{SeenCode, open};

/// Code of processes.
#[derive(Debug, Default)]
pub struct CodeAt {
    seen: HashMap<u32, SeenCode>,
}

impl CodeAt {
    /// Notes what a process has mapped now. It may have ended when its addresses are looked up.
    pub fn look(&mut self, pid: u32) {
        if let Ok(process) = Process::open(pid)
            && let Ok(maps) = process.maps()
        {
            self.seen.entry(pid).or_default().update(&maps, open(&process));
        }
    }
    /// The place of an address.
    pub fn frame(&mut self, pid: u32, address: u64) -> Option<Frame> {
        self.find(pid, |seen| exact(seen, address))
    }
    /// The address at which a process has a place of a file, by its path as the process sees it.
    pub fn address(&mut self, pid: u32, path: &str, offset: u64) -> Option<u64> {
        self.find(pid, |seen| seen.address(path, offset))
    }
    /// What is known of a process's code; if it is not, what is mapped now.
    fn find<T>(&mut self, pid: u32, look: impl Fn(&SeenCode) -> Option<T>) -> Option<T> {
        if let Some(found) = self.seen.get(&pid).and_then(&look) {
            return Some(found);
        }
        self.look(pid);
        look(self.seen.get(&pid)?)
    }
}

/// The frame of an address that is no return address.
fn exact(seen: &SeenCode, address: u64) -> Option<Frame> {
    let behind = seen.frame(address.checked_add(1)?)?;
    let place = behind.place.map(|(file, offset)| (file, offset.saturating_sub(1)));
    Some(Frame { address, place, is_return: false })
}

#[cfg(test)]
mod tests {
    use super::CodeAt;

    #[test]
    fn a_function_of_our_own_is_found() {
        let address = a_function_of_our_own_is_found as *const () as usize as u64;
        let (mut code, pid) = (CodeAt::default(), std::process::id());
        let frame = code.frame(pid, address).expect("our own code");
        assert_eq!((frame.address, frame.is_return), (address, false));
        let (file, offset) = frame.place.expect("a file");
        let own = std::env::current_exe().expect("a program");
        assert!(own.ends_with(file.path.rsplit('/').next().expect("a name")) && offset > 0);
        assert!(code.frame(pid, 16).is_none());
        assert_eq!(code.address(pid, &file.path, offset), Some(address));
        assert!(code.address(pid, "/nowhere", offset).is_none());
    }
}
