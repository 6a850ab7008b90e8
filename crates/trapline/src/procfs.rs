//! What /proc shows of a traced process: the CPU time that it used, the children that it forked.

use std::time::Duration;

/// User and system time of a process; `None` once it is gone.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    // Linux reports it in units of USER_HZ, which is 100 on both supported architectures.
    const TICK: Duration = Duration::from_millis(10);
    Some(TICK * u32::try_from(trapline_tracee::cpu_ticks(pid)?).unwrap_or(u32::MAX))
}

/// Pids of processes that the threads of a process have forked.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}
