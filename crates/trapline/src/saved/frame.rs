//! The head of a recording, its blocks, and the numbers and texts in them.
//!
//! In: bytes. Out: what they say, or that they cannot be valid. All numbers are little-endian. Does not: know
//! what blocks are for (`saved::tables`, `saved::read`).

/// First eight bytes of the file.
pub const MAGIC: [u8; 8] = *b"trapline";
/// Bytes of the file's head: [`MAGIC`], the format's version, and a word that is 0.
pub const HEAD: usize = 16;
/// Version of the format.
pub const VERSION: u32 = 6;
/// Bytes of a block's head: its kind, a checksum (CRC-32 of all else), and how many bytes follow.
pub const BLOCK: usize = 16;
/// Most bytes of a block: as many as a ring can hold, and a few more.
pub const LONGEST: u64 = (1 << 30) + (1 << 16);

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Time at which the recording began, and a note of the program that saved it. Only the first block has
    /// this kind.
    Begin = 1,
    /// A process, its probes, and what their records hold. It comes before the process' first records, and
    /// again when there are more probes.
    Probes = 2,
    /// Ring slots of one ring, packed.
    Slots = 3,
    /// Names of threads.
    Names = 4,
    /// Dropped records since the begin, by probe and CPU.
    Losses = 5,
    /// End of a round: the slots before it were taken in one round. Also the clock at that time.
    Round = 6,
    /// Last block: a note of the program that saved the recording.
    End = 7,
    /// Words of one compact ring.
    Words = 8,
    /// Functions of a process that are recorded no longer.
    TakenOut = 9,
}

impl Kind {
    /// Kind with that number; `None` if there is none.
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
            8 => Self::Words,
            9 => Self::TakenOut,
            _ => return None,
        })
    }
}

/// Checksum of a block: CRC-32 (as in zip) of its kind, its length and its contents.
pub(crate) fn sum(kind: u32, contents: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&kind.to_le_bytes());
    sum.update(&(contents.len() as u64).to_le_bytes());
    sum.update(contents);
    sum.finalize()
}

/// Bytes of a block that is being made.
#[derive(Debug, Default)]
pub(crate) struct Put(pub(crate) Vec<u8>);

impl Put {
    /// A block without contents.
    pub(crate) fn block(kind: Kind) -> Self {
        let mut put = Self::default();
        put.begin(kind);
        put
    }
    /// Begins another block in the same memory.
    pub(crate) fn begin(&mut self, kind: Kind) {
        self.0.clear();
        self.u32(kind as u32).u32(0).u64(0);
    }
    /// Fills in the block's length and its checksum.
    pub(crate) fn close(block: &mut [u8]) {
        let (head, contents) = block.split_at_mut(BLOCK);
        let kind = head[..4].try_into().map_or(0, u32::from_le_bytes);
        head[8..].copy_from_slice(&(contents.len() as u64).to_le_bytes());
        head[4..8].copy_from_slice(&sum(kind, contents).to_le_bytes());
    }
    /// The finished block.
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
    /// Writes how many entries follow.
    pub(crate) fn len(&mut self, len: usize) -> &mut Self {
        self.u32(u32::try_from(len).unwrap_or(u32::MAX))
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len()).0.extend_from_slice(bytes);
        self
    }
    /// Writes a text, without control characters: names of files and threads are chosen freely, and must not
    /// command a terminal.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        if !text.chars().any(char::is_control) {
            return self.bytes(text.as_bytes());
        }
        let shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.bytes(shown.as_bytes())
    }
}

/// The part of a block that was not read yet.
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
    /// Reads a text. It must be safe to print: it has no control characters.
    pub(crate) fn text(&mut self) -> Option<String> {
        let text = std::str::from_utf8(self.bytes()?).ok()?;
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    }
    /// Reads as many entries as the number before them states; there cannot be more than bytes.
    pub(crate) fn many<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let many = self.u32()?;
        (0..many).map(|_| one(self)).collect()
    }
    /// Succeeds if nothing is left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
