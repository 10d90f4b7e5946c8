//! What this machine has: threads and memory.

use std::fs;

/// The machine as the plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Hardware threads that this process may use.
    pub threads: usize,
    /// Bytes of memory, or of the control group's limit where that is lower.
    pub total_memory: usize,
    /// Bytes that can be had now without swapping.
    pub free_memory: usize,
}

impl Hardware {
    /// Looks at this machine. Where memory sizes cannot be read (they are on Linux), they count as unlimited.
    pub fn detect() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
                .map_or(usize::MAX, |kib| kib.saturating_mul(1024))
        };
        let group = |file: &str| -> Option<usize> {
            fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
        };
        let limit = group("memory.max").unwrap_or(usize::MAX);
        let left = limit.saturating_sub(group("memory.current").unwrap_or(0));
        Self {
            threads,
            total_memory: field("MemTotal").min(limit),
            free_memory: field("MemAvailable").min(left),
        }
    }

    /// What `micro_batch = "auto"` may fill: of the memory *installed*, so that the choice, and with it the order of
    /// additions, is the same on each start.
    pub fn memory_for_auto(&self) -> usize {
        self.total_memory / 10 * 7
    }
}

/// Peak resident memory of this process in bytes so far; 0 where it cannot be read.
pub fn peak_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
