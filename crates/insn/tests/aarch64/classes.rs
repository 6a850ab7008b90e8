//! The classes of instructions that are simulated: for each, the bits by which a word belongs to it.

/// Words with the bits `fixed` under `mask`; the other bits are free.
pub(crate) struct Class {
    pub(crate) name: &'static str,
    pub(crate) mask: u32,
    pub(crate) fixed: u32,
}

const fn class(name: &'static str, mask: u32, fixed: u32) -> Class {
    Class { name, mask, fixed }
}

/// Every class that is simulated.
pub(crate) const SIMULATED: &[Class] = &[
    class("nop", 0xFFFF_FFFF, 0xD503_201F),
    class("yield", 0xFFFF_FFFF, 0xD503_203F),
    class("dgh", 0xFFFF_FFFF, 0xD503_20DF),
    class("bti", 0xFFFF_FF3F, 0xD503_241F),
    class("b", 0xFC00_0000, 0x1400_0000),
    class("bl", 0xFC00_0000, 0x9400_0000),
    class("b.cond", 0xFF00_0010, 0x5400_0000),
    class("cbz, cbnz", 0x7E00_0000, 0x3400_0000),
    class("tbz, tbnz", 0x7E00_0000, 0x3600_0000),
    class("br", 0xFFFF_FC1F, 0xD61F_0000),
    class("blr", 0xFFFF_FC1F, 0xD63F_0000),
    class("ret", 0xFFFF_FC1F, 0xD65F_0000),
    class("adr", 0x9F00_0000, 0x1000_0000),
    class("adrp", 0x9F00_0000, 0x9000_0000),
    class("ldr word literal", 0xFF00_0000, 0x1800_0000),
    class("ldr double literal", 0xFF00_0000, 0x5800_0000),
    class("ldrsw literal", 0xFF00_0000, 0x9800_0000),
    class("prfm literal", 0xFF00_0000, 0xD800_0000),
    class("stp word pre sp", 0xFFC0_03E0, 0x2980_03E0),
    class("stp double pre sp", 0xFFC0_03E0, 0xA980_03E0),
    class("str word pre sp", 0xFFE0_0FE0, 0xB800_0FE0),
    class("str double pre sp", 0xFFE0_0FE0, 0xF800_0FE0),
    class("add immediate", 0xFF80_0000, 0x9100_0000),
    class("sub immediate", 0xFF80_0000, 0xD100_0000),
];

/// `bc.cond` (FEAT_HBC), which the emulator of this distribution does not know.
pub(crate) const HINTED: Class = class("bc.cond", 0xFF00_0010, 0x5400_0010);

/// Classes that are relocated but not simulated.
pub(crate) const VECTOR: &[Class] = &[
    class("ldr s literal", 0xFF00_0000, 0x1C00_0000),
    class("ldr d literal", 0xFF00_0000, 0x5C00_0000),
    class("ldr q literal", 0xFF00_0000, 0x9C00_0000),
];

impl Class {
    pub(crate) const fn holds(&self, word: u32) -> bool {
        word & self.mask == self.fixed
    }
    /// Number of words in the class.
    pub(crate) const fn size(&self) -> u64 {
        1 << self.mask.count_zeros()
    }
    /// The class's `n`th word: its free bits are the bits of `n`.
    pub(crate) fn nth(&self, n: u64) -> u32 {
        let free = (0..32).filter(|bit| self.mask >> bit & 1 == 0);
        free.zip(0..).fold(self.fixed, |word, (to, from)| word | ((n >> from & 1) as u32) << to)
    }
    /// The word with the free bits of `bits`.
    pub(crate) const fn word(&self, bits: u32) -> u32 {
        self.fixed | bits & !self.mask
    }
}
