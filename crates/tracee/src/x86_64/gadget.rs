//! Instructions in the target's own code, from which a call and the way back from it are put together.
//!
//! Input: executable memory. Output: addresses of `syscall` followed by a path to `ret`, and of a way to
//! rt_sigreturn. Nothing is written. Does not: decode more than the few instructions named here.
//!
//! ```text
//!   SyscallRet           syscall; pops and `add rsp, n` that take `skip` words; ret
//!   Restore::Restorer    mov rax, 15; syscall                        rsp = the frame behind its first word
//!   Restore::PopRax      pop rax; ret, then SyscallRet's `syscall`   rax = 15, rsp the same
//! ```

use trapline_order::Order as _;
use trapline_record::RemoteAddr;

use crate::error::TargetError;
use crate::maps::Mapping;
use crate::process::Process;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RET: u8 = 0xc3;
/// `mov $15, %rax; syscall`: every libc's signal restorer.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
const POP_RAX_RET: [u8; 2] = [0x58, RET];
/// Number of words that a gadget may pop between its `syscall` and its `ret`.
pub(crate) const MAX_SKIP: u64 = 12;
const CHUNK: usize = 1 << 18;
const OVERLAP: usize = 64;

/// `syscall`, then code that takes `skip` words from the stack and returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SyscallRet {
    pub(crate) addr: u64,
    pub(crate) skip: u64,
    len: u8,
}

/// How a `ret` leads to rt_sigreturn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restore {
    /// To a restorer.
    Restorer(u64),
    /// To `pop %rax; ret`, then to the `syscall`.
    PopRax(u64),
}

/// The addresses that a remote call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gadgets {
    pub(crate) call: SyscallRet,
    pub(crate) restore: Restore,
}

impl Gadgets {
    /// Searches the process's executable mappings, libc first.
    pub(crate) fn find(process: &Process, maps: &[Mapping]) -> Result<Self, TargetError> {
        let mut found = Search::default();
        let mut order: Vec<&Mapping> =
            maps.iter().filter(|m| m.perms.exec && m.path != "[vsyscall]").collect();
        order.order_by_key(|m| rank(m));
        for map in order {
            found.scan(process, map);
            if let (Some(call), Some(restore)) = (found.call, found.restore()) {
                return Ok(Self { call, restore });
            }
        }
        Err(TargetError::NoCaller {
            pid: process.pid(),
            why: "its code holds no `syscall` with a `ret` behind it, or no way to rt_sigreturn".into(),
        })
    }
    /// The restorer, through which handlers return too.
    pub(crate) const fn restorer(&self) -> Option<u64> {
        if let Restore::Restorer(addr) = self.restore { Some(addr) } else { None }
    }
    /// Address of a `ret`.
    pub(crate) const fn ret(&self) -> u64 {
        self.call.addr + self.call.len as u64 - 1
    }
    /// Whether the bytes are still there. A patch may have replaced them.
    pub(crate) fn hold(&self, process: &Process) -> bool {
        let mut bytes = [0u8; OVERLAP];
        let len = usize::from(self.call.len);
        let call = process.read(RemoteAddr(self.call.addr), &mut bytes[..len]).is_ok()
            && syscall_ret(&bytes[..len]).is_some_and(|(skip, _)| skip == self.call.skip);
        let (addr, expected): (u64, &[u8]) = match self.restore {
            Restore::Restorer(addr) => (addr, &RESTORER),
            Restore::PopRax(addr) => (addr, &POP_RAX_RET),
        };
        call && process.read(RemoteAddr(addr), &mut bytes[..expected.len()]).is_ok()
            && bytes.starts_with(expected)
    }
}

/// The order of the search: libc, then the program, then other files; the vdso and anonymous code last.
fn rank(map: &Mapping) -> u8 {
    let name = map.path.rsplit('/').next().unwrap_or("");
    match name {
        _ if map.path.starts_with("/memfd:") => 4,
        _ if name.starts_with("libc.") || name.starts_with("libc-") || name.starts_with("ld-musl") => 0,
        _ if map.file.is_some() => 1,
        "[vdso]" => 2,
        _ => 3,
    }
}

#[derive(Default)]
struct Search {
    call: Option<SyscallRet>,
    restorer: Option<u64>,
    pop_rax: Option<u64>,
}

impl Search {
    fn restore(&self) -> Option<Restore> {
        self.restorer.map(Restore::Restorer).or(self.pop_rax.map(Restore::PopRax))
    }
    fn scan(&mut self, process: &Process, map: &Mapping) {
        let mut bytes = vec![0u8; CHUNK];
        let mut at = map.start.0;
        while at < map.end.0 {
            let len = CHUNK.min((map.end.0 - at) as usize);
            if process.read(RemoteAddr(at), &mut bytes[..len]).is_err() {
                return;
            }
            self.scan_bytes(at, &bytes[..len]);
            if self.call.is_some() && self.restorer.is_some() || len < CHUNK {
                return;
            }
            at += (len - OVERLAP) as u64;
        }
    }
    fn scan_bytes(&mut self, base: u64, bytes: &[u8]) {
        // Each sequence that is searched for ends in one of two bytes.
        for last in memchr::memchr2_iter(SYSCALL[1], RET, bytes) {
            let Some(at) = last.checked_sub(1) else { continue };
            let addr = base + at as u64;
            if bytes[at..].starts_with(&SYSCALL) {
                if self.call.is_none_or(|call| call.skip > 0)
                    && let Some((skip, len)) = syscall_ret(&bytes[at..bytes.len().min(at + OVERLAP)])
                    && self.call.is_none_or(|call| skip < call.skip)
                {
                    self.call = Some(SyscallRet { addr, skip, len });
                }
                let before = (RESTORER.len() - SYSCALL.len()) as u64;
                if self.restorer.is_none() && bytes[..=last].ends_with(&RESTORER) {
                    self.restorer = Some(addr - before);
                }
            } else if self.pop_rax.is_none() && bytes[at..].starts_with(&POP_RAX_RET) {
                self.pop_rax = Some(addr);
            }
        }
    }
}

/// The number of words popped between a `syscall` at the start of `bytes` and its `ret`, and the length of
/// the whole. Only pops and `add $n, %rsp` may stand between.
fn syscall_ret(bytes: &[u8]) -> Option<(u64, u8)> {
    let mut rest = bytes.strip_prefix(&SYSCALL)?;
    let mut skip = 0u64;
    loop {
        match *rest {
            [RET, ..] => return Some((skip, (bytes.len() - rest.len() + 1) as u8)),
            [0x58..=0x5b | 0x5d..=0x5f, ref after @ ..] | [0x41, 0x58..=0x5f, ref after @ ..] => {
                skip += 1;
                rest = after;
            }
            [0x48, 0x83, 0xc4, n @ 0..=0x40, ref after @ ..] if n.is_multiple_of(8) => {
                skip += u64::from(n / 8);
                rest = after;
            }
            _ => return None,
        }
        if skip > MAX_SKIP {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Restore, Search, syscall_ret};

    #[test]
    fn words_between_call_and_return_are_counted() {
        assert_eq!(syscall_ret(&[0x0f, 5, 0xc3]), Some((0, 3)));
        let vdso = [0x0f, 5, 0x48, 0x83, 0xc4, 0x30, 0x5b, 0x41, 0x5c, 0x5d, 0xc3];
        assert_eq!(syscall_ret(&vdso), Some((9, 11)));
        assert_eq!(syscall_ret(&[0x0f, 5, 0x5c, 0xc3]), None, "pop %rsp");
        assert_eq!(syscall_ret(&[0x0f, 5, 0x48, 0x3d]), None);
    }

    #[test]
    fn the_shortest_path_and_the_restorer_are_preferred() {
        let mut found = Search::default();
        found.scan_bytes(0x1000, &[0x90, 0x58, 0xc3, 0x0f, 5, 0x5b, 0xc3]);
        assert_eq!(found.call.map(|c| (c.addr, c.skip)), Some((0x1003, 1)));
        assert_eq!(found.restore(), Some(Restore::PopRax(0x1001)));
        found.scan_bytes(0x2000, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 5, 0xc3]);
        assert_eq!(found.call.map(|c| (c.addr, c.skip)), Some((0x2007, 0)));
        assert_eq!(found.restore(), Some(Restore::Restorer(0x2000)));
    }
}
