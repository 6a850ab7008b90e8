//! Baseline `freelist`: the refcounted LIFO list by Cameron Desrochers ("Solving the ABA Problem for
//! Lock-Free Free Lists", moodycamel.com, 2014), on indices. The kernel's return probes used it from 5.11 to
//! 6.6.
//!
//! Other threads may read a node while it is taken. The node counts its readers, and the list as one more. A
//! put while there are readers only marks the node; the last reader to leave adds it to the list.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::cpu_area::CpuArea;
use super::instances::{Instances, Memory, OBJECT, range};

/// Flag: to be added to the list once the last reader has left.
const MARKED: u32 = 1 << 31;
const END: u32 = u32::MAX;

/// An object, with the words that the list needs.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    refs: AtomicU32,
    next: AtomicU32,
    _rest: [u8; OBJECT - 8],
}

/// Head of the list, alone on its line.
#[derive(Debug)]
#[repr(align(64))]
struct Head(AtomicU32);

#[derive(Debug)]
pub(crate) struct Freelist {
    head: Box<Head>,
    nodes: Box<[Node]>,
}

impl Freelist {
    pub(crate) fn new(maxactive: u32) -> Self {
        let node = |_| Node { refs: AtomicU32::new(0), next: AtomicU32::new(END), _rest: [0; OBJECT - 8] };
        let list =
            Self { head: Box::new(Head(AtomicU32::new(END))), nodes: (0..maxactive).map(node).collect() };
        (0..maxactive).rev().for_each(|node| list.give(node));
        list
    }
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }
    #[inline]
    fn give(&self, at: u32) {
        if self.node(at).refs.fetch_add(MARKED, Release) == 0 {
            self.link(at);
        }
    }
    /// Adds a node that no thread reads, and that none can begin to read.
    #[inline]
    fn link(&self, at: u32) {
        let node = self.node(at);
        let mut head = self.head.0.load(Relaxed);
        loop {
            node.next.store(head, Relaxed);
            node.refs.store(1, Release);
            match self.head.0.compare_exchange(head, at, Release, Relaxed) {
                Ok(_) => return,
                // Other threads may read it again: mark it, subtract the list's count, and leave it to the
                // last of them.
                Err(now) => head = now,
            }
            if node.refs.fetch_add(MARKED - 1, AcqRel) != 1 {
                return;
            }
        }
    }
    #[inline]
    fn take(&self) -> Option<u32> {
        let mut head = self.head.0.load(Acquire);
        while head != END {
            let node = self.node(head);
            let refs = node.refs.load(Relaxed);
            if refs & !MARKED == 0 || node.refs.compare_exchange(refs, refs + 1, Acquire, Relaxed).is_err() {
                head = self.head.0.load(Acquire);
                continue;
            }
            let next = node.next.load(Relaxed);
            match self.head.0.compare_exchange(head, next, Acquire, Acquire) {
                Ok(_) => {
                    node.refs.fetch_sub(2, AcqRel);
                    return Some(head);
                }
                Err(now) => {
                    if node.refs.fetch_sub(1, AcqRel) == MARKED + 1 {
                        self.link(head);
                    }
                    head = now;
                }
            }
        }
        None
    }
}

impl Instances for Freelist {
    #[inline]
    fn get(&self, _: &CpuArea) -> Option<u32> {
        self.take()
    }
    #[inline]
    fn put(&self, _: &CpuArea, object: u32) {
        self.give(object);
    }
    fn objects(&self) -> u32 {
        self.nodes.len() as u32
    }
    fn memory(&self) -> Vec<Memory> {
        vec![("head", range(std::slice::from_ref(&*self.head))), ("objects", range(&self.nodes))]
    }
}
