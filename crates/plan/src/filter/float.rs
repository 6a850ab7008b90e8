//! The types of floats, and the order of their numbers.
//!
//! In: the bits of an IEEE 754 number. Out: its *order key*, an integer in the order of the numbers. The bits
//! are a sign and a magnitude, and magnitudes are in the order of the numbers. As two's complement (IEEE
//! 754-2019, 5.10) they are integers in that order. There both zeros are 0, and what is not a number lies
//! beyond the infinities.

/// A type of IEEE 754.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Float {
    /// C's `float`: the low 32 bits of a vector register.
    Single,
    /// C's `double`: the low 64 bits.
    Double,
}

impl Float {
    /// Order key: the number's place in the order of all numbers of the type; 0 for both zeros.
    #[must_use]
    pub const fn key(self, bits: u64) -> i64 {
        let (bits, least) = match self {
            Self::Single => ((bits as u32).cast_signed() as i64, i32::MIN as i64),
            Self::Double => (bits.cast_signed(), i64::MIN),
        };
        if bits < 0 { least.wrapping_sub(bits) } else { bits }
    }
    /// The number with that bit pattern.
    #[must_use]
    pub fn number(self, bits: u64) -> f64 {
        match self {
            Self::Single => f32::from_bits(bits as u32).into(),
            Self::Double => f64::from_bits(bits),
        }
    }
    pub(super) const fn infinity(self) -> i64 {
        match self {
            Self::Single => self.key(f32::INFINITY.to_bits() as u64),
            Self::Double => self.key(f64::INFINITY.to_bits()),
        }
    }
}
