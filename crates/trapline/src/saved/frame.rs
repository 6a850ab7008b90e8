//! A file's head, its blocks, and the numbers and texts in them.
//!
//! In: bytes. Out: what they say, or that they cannot mean anything. All numbers are little-endian. Does not: know what blocks are for
//! (`saved::tables`, `saved::read`).

/// The file's first eight bytes.
pub const MAGIC: [u8; 8] = *b"trapline";
/// Bytes of the file's head: [`MAGIC`], the format's version, and a word that is 0.
pub const HEAD: usize = 16;
/// Version of all that stands here.
pub const VERSION: u32 = 2;
/// Bytes of a block's head: its kind, a word that is 0, and how many bytes follow.
pub const BLOCK: usize = 16;
/// Most bytes of a block: what a ring can hold, and some.
pub const LONGEST: u64 = (1 << 30) + (1 << 16);

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// When it was begun, and a note of the program that saved: the first block, and no other.
    Begin = 1,
    /// A process, its probes, and what their records hold: before its first records, and again when there are more.
    Probes = 2,
    /// Slots of one ring, packed.
    Slots = 3,
    /// Names of threads.
    Names = 4,
    /// Records that found no room, by probe and CPU, so far.
    Losses = 5,
    /// What slots before it were taken in one round, and the clock then.
    Round = 6,
    /// The last block: a note of the program that saved.
    End = 7,
}

impl Kind {
    /// The kind of that number, if any.
    #[must_use]
    pub const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            1 => Self::Begin,
            2 => Self::Probes,
            3 => Self::Slots,
            4 => Self::Names,
            5 => Self::Losses,
            6 => Self::Round,
            7 => Self::End,
            _ => return None,
        })
    }
}

/// Bytes of a block in the making.
#[derive(Debug, Default)]
pub(crate) struct Put(pub(crate) Vec<u8>);

impl Put {
    /// A block without anything in it.
    pub(crate) fn block(kind: Kind) -> Self {
        let mut put = Self::default();
        put.begin(kind);
        put
    }
    /// The same in the place of another one.
    pub(crate) fn begin(&mut self, kind: Kind) {
        self.0.clear();
        self.u32(kind as u32).u32(0).u64(0);
    }
    /// Notes how long it became.
    pub(crate) fn close(block: &mut [u8]) {
        let len = (block.len() - BLOCK) as u64;
        block[8..BLOCK].copy_from_slice(&len.to_le_bytes());
    }
    /// The block.
    pub(crate) fn done(mut self) -> Vec<u8> {
        Self::close(&mut self.0);
        self.0
    }
    pub(crate) fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }
    pub(crate) fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }
    pub(crate) fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }
    /// How many follow.
    pub(crate) fn len(&mut self, len: usize) -> &mut Self {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX))
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len()).0.extend_from_slice(bytes);
        self
    }
    /// Text, without what orders terminals about: files and threads are called what somebody likes.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        if !text.chars().any(char::is_control) {
            return self.bytes(text.as_bytes());
        }
        let shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.bytes(shown.as_bytes())
    }
}

/// What is left of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get<'a>(pub(crate) &'a [u8]);

impl<'a> Get<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }
    /// Text that can be shown as it is: a terminal takes no order from it.
    pub(crate) fn text(&mut self) -> Option<String> {
        let text = std::str::from_utf8(self.bytes()?).ok()?;
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    }
    /// As many as a number before them says; there cannot be more than bytes.
    pub(crate) fn many<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let many = self.u32()?;
        (0..many).map(|_| one(self)).collect()
    }
    /// Nothing is left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
