//! All processes that a command has started, to be ended with it when it is stuck.
//!
//! In: a process of ours. Out: its descendants, by their parents as /proc shows them. Does not: reach those
//! with a parent that has ended.

use std::process::Command;

/// Ends the process and all of them, and says what each was doing. Parents come first: one that is told of a child's
/// end may start another.
pub(crate) fn kill(pid: u32) {
    let found: Vec<u32> = std::iter::once(pid).chain(of(pid)).collect();
    for &one in &found {
        println!("ending {}", doing(one));
    }
    Command::new("kill").arg("-KILL").args(found.iter().map(u32::to_string)).status().ok();
}

/// One line about a process: its command, and for each thread its state, the function of the kernel that it waits in,
/// and its system call or instruction.
fn doing(pid: u32) -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut line = format!("{pid} {}", read("cmdline").replace('\0', " "));
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let tid = task.file_name().to_string_lossy().into_owned();
        let of_task = |name: &str| read(&format!("task/{tid}/{name}"));
        let status = of_task("status");
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
        let (state, tracer) = (field("State:"), field("TracerPid:"));
        line +=
            &format!("; {tid} {state}, tracer {tracer}, {} {}", of_task("wchan"), of_task("syscall").trim());
    }
    line
}

/// All that it started, and what those started.
pub(crate) fn of(pid: u32) -> Vec<u32> {
    below(pid, &processes())
}

/// Every process with its parent.
fn processes() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        Some((pid, parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
    })
    .collect()
}

/// Of a line of `/proc/PID/stat`, proc_pid_stat(5): a name may hold anything but ends with the last bracket.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn below(pid: u32, processes: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&one) = found.get(next) {
        found.extend(processes.iter().filter(|&&(_, parent)| parent == one).map(|&(pid, _)| pid));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::{below, doing, parent};

    #[test]
    fn a_parent_stands_behind_the_name() {
        assert_eq!(parent("12 (a) b (c)) S 7 12 12 0"), Some(7));
        assert_eq!(parent("nothing"), None);
    }

    #[test]
    fn a_process_says_what_its_threads_do() {
        let line = doing(std::process::id());
        assert!(line.contains("R (running), tracer"), "{line}");
    }

    #[test]
    fn children_of_children_are_found_and_no_others() {
        let processes = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 3)];
        assert_eq!(below(2, &processes), [3, 4, 6]);
        assert!(below(6, &processes).is_empty());
    }
}
