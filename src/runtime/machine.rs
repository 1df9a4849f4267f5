//! What the machine or its cgroup gives: defaults for memory and threads.

use std::fs;

/// Default of the memory limit: half of what the machine or its cgroup gives, at most 2 GiB (architecture.md 6).
#[must_use]
pub fn memory_default() -> usize {
    const MAX: u64 = 2 << 30;
    let given = [cgroup_bytes(), machine_bytes()].into_iter().flatten().min().unwrap_or(MAX);
    usize::try_from((given / 2).min(MAX)).unwrap_or(usize::MAX)
}

/// Default of the encoder threads: the cores that this process may use.
#[must_use]
pub fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How many files, connections included, this process may have open; `None` where the machine does not tell or has no bound.
#[must_use]
pub fn open_files_max() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    text.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

/// cgroup v2, then v1; a limit that is none (`max`, or v1's huge number) falls to the machine's.
fn cgroup_bytes() -> Option<u64> {
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
}

fn machine_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}
