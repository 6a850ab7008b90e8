//! Makes inputs from seeds: a piece of the corpus, damaged in ways that break parsers.

/// A generator (xorshift64*) that damages bytes; the same seed gives the same input.
#[derive(Debug)]
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        // Any fixed odd constant: neighbouring seeds must not give neighbouring states.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
    /// Makes one input.
    pub(crate) fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus.get(self.below(corpus.len())).cloned().unwrap_or_default();
        for _ in 0..=self.below(8) {
            self.damage(&mut bytes);
        }
        bytes
    }
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        // Half of all damage goes to the first bytes, where headers are.
        let span = if self.next().is_multiple_of(2) { bytes.len().min(256) } else { bytes.len() };
        let at = self.below(span);
        match self.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.next() as u8,
            2 => bytes.truncate(at),
            3 => bytes.insert(at.min(bytes.len()), self.next() as u8),
            // Numbers at the edges of their type, at any width.
            4 | 5 => {
                let edges =
                    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];
                let value = edges[self.below(edges.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.below(4)];
                for (byte, new) in bytes.iter_mut().skip(at).zip(&value[..width]) {
                    *byte = *new;
                }
            }
            _ => {
                let from = self.below(bytes.len());
                let piece: Vec<u8> = bytes.iter().skip(from).take(self.below(64)).copied().collect();
                let at = at.min(bytes.len());
                bytes.splice(at..at, piece);
            }
        }
    }
}
