//! Accounts by the task's number: an index, as in the kernel's own table of pids.
//!
//! A page holds [`PAGE`] accounts. It is made when the first of its tasks is looked up, and stays.
//! Consecutive numbers lie apart in a page, so tasks born together do not share cache lines. Looking up takes
//! no lock, and costs the same with one task as with all of them. The worst case, 4 million different tasks
//! in one run, takes some 100 MB.
//! task as with all of them: the worst case, 4 million different tasks in one run, is some 100 MB.

use std::sync::OnceLock;

use super::words::TaskId;

/// Number of accounts in a page.
const PAGE: u32 = if cfg!(loom) { 8 } else { 512 };
/// Distance between the accounts of consecutive numbers.
const APART: u32 = 8;
/// Number of tasks that have different accounts.
const LIMIT: u32 = if cfg!(loom) { 16 } else { TaskId::LIMIT };

#[derive(Debug)]
pub(super) struct TaskTable<T> {
    pages: Box<[OnceLock<Box<[T]>>]>,
}

/// The page, and the index in it.
fn place(task: TaskId) -> (usize, usize) {
    let number = task.number() % LIMIT;
    let (page, line) = (number / PAGE, number % PAGE);
    let at = line % (PAGE / APART) * APART + line / (PAGE / APART);
    (page as usize, at as usize)
}

/// The task at an index in a page.
fn task(page: usize, at: usize) -> Option<TaskId> {
    let at = at as u32;
    TaskId::new(page as u32 * PAGE + at % APART * (PAGE / APART) + at / APART)
}

impl<T: Default> TaskTable<T> {
    pub(super) fn new() -> Self {
        Self { pages: (0..LIMIT / PAGE).map(|_| OnceLock::new()).collect() }
    }
    /// The task's account, made if it was never looked up before.
    pub(super) fn get(&self, task: TaskId) -> &T {
        let (page, at) = place(task);
        &self.pages[page].get_or_init(|| (0..PAGE).map(|_| T::default()).collect())[at]
    }
    /// The task's account, for the owner of the table.
    pub(super) fn get_mut(&mut self, task: TaskId) -> &mut T {
        let (page, at) = place(task);
        self.get(task);
        match self.pages[page].get_mut() {
            Some(accounts) => &mut accounts[at],
            None => unreachable!("the page was just made"),
        }
    }
    /// All accounts that were ever made.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, &T)> {
        let pages = self.pages.iter().enumerate().filter_map(|(page, cell)| Some((page, cell.get()?)));
        pages.flat_map(|(page, accounts)| {
            accounts.iter().enumerate().filter_map(move |(at, account)| Some((task(page, at)?, account)))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{APART, PAGE, TaskId, place, task};

    #[test]
    fn every_task_has_its_own_place() {
        for number in (1..3 * PAGE).chain(TaskId::LIMIT - PAGE..TaskId::LIMIT) {
            let id = TaskId::new(number);
            let (page, at) = id.map_or((0, 0), place);
            assert_eq!(task(page, at), id);
            assert!(at < PAGE as usize);
        }
        let at = |number| TaskId::new(number).map_or(0, |id| place(id).1);
        assert_eq!(at(1000).abs_diff(at(1001)), APART as usize);
    }
}
