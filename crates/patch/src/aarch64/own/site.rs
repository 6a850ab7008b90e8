//! A site of our own process, as a value.

use trapline_plan::{PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, EntryKind, MAX_PATCH};

/// A site of our own process: enough to take it out and to put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSite {
    /// What the patch is for.
    pub role: PatchRole,
    /// How it is reached: [`Tactic::Jump`] or [`Tactic::Trap`].
    pub tactic: Tactic,
    /// Address and words.
    pub entry: Entry,
}

impl OwnSite {
    /// A site at an address, with the file's word and ours.
    pub(super) fn of(addr: RemoteAddr, (old, new): (u32, u32), role: PatchRole, tactic: Tactic) -> Self {
        let bytes = |word: u32| {
            let mut bytes = [0; MAX_PATCH];
            bytes[..4].copy_from_slice(&word.to_le_bytes());
            bytes
        };
        let kind = if role == PatchRole::ExitRet { EntryKind::Exit } else { EntryKind::Entry };
        Self {
            role,
            tactic,
            entry: Entry { addr, len: 4, kind, starts: 0, old: bytes(old), new: bytes(new) },
        }
    }
    /// The file's word, and ours.
    pub(super) fn words(&self) -> (u32, u32) {
        let word = |bytes: &[u8; MAX_PATCH]| {
            let [a, b, c, d, ..] = *bytes;
            u32::from_le_bytes([a, b, c, d])
        };
        (word(&self.entry.old), word(&self.entry.new))
    }
    /// Whether it stands at a return.
    pub(super) fn is_return(&self) -> bool {
        self.entry.kind == EntryKind::Exit
    }
}
