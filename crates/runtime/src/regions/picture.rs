//! A picture of all regions as of one moment, while they change. [`regions`](super) describes the protocol.

use super::{Mapped, Regions, Retry};
use crate::sync::{Acquire, Relaxed};

/// Why there is no picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PictureError {
    /// There are more regions than `room` holds.
    TooMany,
    /// In each attempt, more regions changed than there are free entries.
    Changing,
}

/// Number of attempts before it gives up.
const ATTEMPTS: u32 = 16;

impl Regions {
    /// All regions as of one moment, in order of address. Returns how many elements of `room` are filled.
    ///
    /// # Errors
    /// See [`PictureError`].
    pub fn picture(&self, room: &mut [Option<Mapped>]) -> Result<usize, PictureError> {
        for _ in 0..if cfg!(loom) { 1 } else { ATTEMPTS } {
            match self.attempt(room) {
                Ok(Some(n)) => {
                    if let Some(filled) = room.get_mut(..n) {
                        filled.sort_unstable_by_key(|one| one.map(|one| one.start));
                    }
                    return Ok(n);
                }
                Ok(None) => return Err(PictureError::TooMany),
                Err(Retry) => {}
            }
        }
        Err(PictureError::Changing)
    }
    /// P1 and P2. `None`: not enough room.
    fn attempt(&self, room: &mut [Option<Mapped>]) -> Result<Option<usize>, Retry> {
        let version = self.version.load(Acquire);
        // Entries first used after this load were filled after `version`.
        let used = self.used.load(Relaxed) as usize;
        let mut n = 0;
        for entry in self.entries.iter().take(used) {
            let Some(fields) = entry.fields()? else { continue };
            if fields.birth > version && fields.before > version {
                return Err(Retry);
            }
            if fields.birth <= version && version < fields.death {
                let Some(place) = room.get_mut(n) else { return Ok(None) };
                *place = Some(fields.mapped);
                n += 1;
            }
        }
        Ok(Some(n))
    }
}

#[cfg(all(test, loom))]
impl Regions {
    /// A twin of `picture` that must fail: it takes each region that is alive when its entry is read.
    pub(crate) fn picture_of_the_living(&self, room: &mut [Option<Mapped>]) -> Result<usize, PictureError> {
        let mut n = 0;
        for entry in self.entries.iter() {
            if let Ok(Some(fields)) = entry.fields()
                && fields.death == u64::MAX
            {
                room[n] = Some(fields.mapped);
                n += 1;
            }
        }
        Ok(n)
    }
}
