//! Replaced return addresses: there are none on arm64. Returns are seen at return instructions.
//!
//! In: what consumers ask for ([`Returns`]). Out: [`Error::NoSlots`] for those who want nothing else.

use crate::Returns;
use crate::inside::state::{Key, State};
use crate::inside::{Error, Request};

/// Calls whose return address can be replaced at a time: none, on this processor.
pub const SLOTS: u32 = 0;

/// Where a call really returns to whose stack word holds `address`, if that is a slot's: never, on this processor.
#[must_use]
pub const fn returns_to(_: u64) -> Option<u64> {
    None
}

/// Who was told of slots: nobody need be.
#[derive(Debug, Default)]
pub(in crate::inside) struct Unwinders {
    /// One is mapped that cannot be told yet.
    pub(in crate::inside) loading: bool,
}

impl State {
    /// Refuses those who want their calls' return addresses replaced.
    pub(in crate::inside) fn armed_by(&mut self, _: &[u32], requests: &[Request]) -> Result<Vec<u32>, Error> {
        match requests.iter().find(|request| request.consumer.form() == Some(Returns::Stack)) {
            Some(Request { file, offset, .. }) => Err(Error::NoSlots {
                path: file.clone(),
                offset: *offset,
                why: "on arm64 they are not yet; returns are seen at return instructions".into(),
            }),
            None => Ok(Vec::new()),
        }
    }
    /// What form a site has.
    pub(in crate::inside) fn form(&self, (spot, _): Key) -> Option<Returns> {
        let waits = self.spots[spot as usize].consumers.iter().any(|(_, consumer)| consumer.has_return());
        waits.then_some(Returns::Exits)
    }
    pub(in crate::inside) const fn arm_instead(&mut self, _: u32) -> bool {
        false
    }
    pub(in crate::inside) const fn disarm(&mut self, _: &[u32]) {}
    pub(in crate::inside) fn disarm_idle(&mut self, _: impl Iterator<Item = u32>) {}
    pub(in crate::inside) const fn arm(&self, _: &[u32]) {}
    pub(in crate::inside) const fn tell_of_slots(&mut self) -> Result<(), String> {
        Ok(())
    }
}
