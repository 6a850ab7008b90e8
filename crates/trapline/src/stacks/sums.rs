//! How often each stack was seen, and for how long.
//!
//! In: return addresses of one hit. Out: a number for each stack, as long as the same code is mapped; sums by
//! site and stack. A stack is looked up once, when it is first seen. Does not: know processes.

use std::collections::HashMap;
use std::sync::Arc;

use trapline_record::hist::{BUCKETS, bucket};

use super::copied::Copies;
use super::frame::Frame;
use super::seen_code::SeenCode;

/// Number of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StackId(u32);

/// One stack.
#[derive(Clone, Debug)]
pub(crate) struct SeenStack {
    /// Callers, innermost first.
    pub(crate) callers: Arc<[Frame]>,
    pub(crate) cut: bool,
}

/// Hits with one stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) calls: u64,
    pub(crate) ticks: u64,
}

/// Calls of a probe that ended, by duration in ticks, over all stacks.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) buckets: Vec<u64>,
    pub(crate) tail_exits: u64,
    /// Calls with an exit that was not seen.
    pub(crate) unreturned: u64,
    pub(crate) total: u64,
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Default for Ended {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], tail_exits: 0, unreturned: 0, total: 0, min: u64::MAX, max: 0 }
    }
}

impl Ended {
    pub(crate) fn add(&mut self, ticks: u64) {
        self.buckets[bucket(ticks)] += 1;
        self.total += ticks;
        self.min = self.min.min(ticks);
        self.max = self.max.max(ticks);
    }
}

/// Stacks and sums of a process.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) places: SeenCode,
    pub(crate) copies: Copies,
    /// Numbers by return addresses: of stacks that are whole, and of those that are cut. Valid while the same
    /// code is mapped.
    numbers: [HashMap<Box<[u64]>, StackId>; 2],
    known: Vec<SeenStack>,
    /// Sums by segment, probe, stack.
    sums: HashMap<(usize, u32, StackId), Sum>,
    /// Durations by segment and probe, if they are summed.
    pub(crate) ended: HashMap<(usize, u32), Ended>,
}

impl Sums {
    /// Forgets numbers, since other code is mapped: the same addresses may mean something else.
    pub(crate) fn renumber(&mut self) {
        self.numbers.iter_mut().for_each(HashMap::clear);
    }
    /// Number of the stack with these return addresses. `look` is called if an address lies in no known
    /// mapping; it updates the places and returns whether it did.
    pub(crate) fn number(
        &mut self,
        addresses: &[u64],
        cut: bool,
        look: impl FnOnce(&mut SeenCode) -> bool,
    ) -> StackId {
        if let Some(&known) = self.numbers[usize::from(cut)].get(addresses) {
            return known;
        }
        if addresses.iter().any(|&address| self.places.frame(address).is_none()) && look(&mut self.places) {
            self.renumber();
        }
        let frame = |&address: &u64| {
            self.places.frame(address).unwrap_or(Frame { address, place: None, is_return: true })
        };
        let callers = addresses.iter().map(frame).collect();
        let id = StackId(u32::try_from(self.known.len()).unwrap_or(u32::MAX));
        self.known.push(SeenStack { callers, cut });
        self.numbers[usize::from(cut)].insert(addresses.into(), id);
        id
    }
    /// A stack by its number.
    pub(crate) fn stack(&self, id: StackId) -> Option<&SeenStack> {
        self.known.get(id.0 as usize)
    }
    pub(crate) fn add(&mut self, segment: usize, probe: u32, stack: StackId, ticks: u64) {
        let sum = self.sums.entry((segment, probe, stack)).or_default();
        sum.calls += 1;
        sum.ticks += ticks;
    }
    /// All sums: segment, probe, stack, sum.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, u32, &SeenStack, Sum)> {
        self.sums.iter().filter_map(|(&(segment, probe, stack), &sum)| {
            Some((segment, probe, self.known.get(stack.0 as usize)?, sum))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Sum, Sums};
    use trapline_tracee::Mapping;

    #[test]
    fn a_stack_has_one_number_until_other_code_is_mapped() {
        let map = |line: &str| vec![Mapping::parse(line).expect("a line")];
        let mut sums = Sums::default();
        let first = map("1000-5000 r-xp 00000000 fd:01 42 /lib/a.so");
        let a = sums.number(&[0x1100, 0x1200], false, |places| places.update(&first, |_| None));
        let again = sums.number(&[0x1100, 0x1200], false, |_| unreachable!("it is known"));
        let cut = sums.number(&[0x1100, 0x1200], true, |_| unreachable!("its places are known"));
        assert!(a == again && a != cut);
        sums.add(0, 7, a, 5);
        sums.add(0, 7, again, 6);
        let second = map("1000-5000 r-xp 00000000 fd:01 43 /lib/b.so");
        assert!(sums.places.update(&second, |_| None));
        sums.renumber();
        let b = sums.number(&[0x1100, 0x1200], false, |_| unreachable!("its places are known"));
        sums.add(0, 7, b, 1);
        let mut all: Vec<(String, Sum)> = sums
            .all()
            .map(|(_, _, known, sum)| (known.callers[1].place.as_ref().expect("a file").0.path.clone(), sum))
            .collect();
        all.sort_by_key(|(path, _)| path.clone());
        let expected = [("/lib/a.so", 2, 11), ("/lib/b.so", 1, 1)];
        assert_eq!(all, expected.map(|(path, calls, ticks)| (path.to_owned(), Sum { calls, ticks })));
    }
}
