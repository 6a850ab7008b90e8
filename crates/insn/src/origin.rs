//! Where a value at the end of a stretch of code comes from.
//!
//! In: nothing; `origins` of each processor makes these values. Out: what a register or a word of memory holds at the
//! beginning of the stretch, or a constant. Does not: follow jumps.

/// The origin of a value, in terms of what holds at the beginning of the stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// Content of the general register with this hardware number.
    Register(u8),
    /// Content of memory. The stretch itself reads it there.
    Memory {
        /// Hardware number of the register that it is addressed by.
        base: u8,
        /// Bytes from there.
        offset: i32,
    },
    /// A constant, by its low 32 bits.
    Constant(u32),
    /// Something else.
    #[default]
    Unknown,
}
