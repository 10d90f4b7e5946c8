//! What this machine has: threads and memory.

use super::control_group;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// The machine as the plan sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// Hardware threads that this process may use.
    pub threads: usize,
    /// Bytes of memory, or of the least limit of the process's control groups where that is lower.
    pub total_memory: usize,
    /// Bytes that can be had now without swapping.
    pub free_memory: usize,
    /// Ranks of the run that share this machine's threads and memory.
    pub ranks: usize,
    /// The CUDA device that is to compute, if one is.
    pub cuda: Option<CudaDevice>,
}

/// A CUDA device as the plan sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its index, as in `compute.device = "cuda:0"`.
    pub index: usize,
    /// The product's name.
    pub name: String,
    /// Bytes of its memory.
    pub total_memory: usize,
    /// Bytes that are free now.
    pub free_memory: usize,
}

impl Hardware {
    /// Looks at this machine. Where memory sizes cannot be read (they are on Linux), they count as unlimited.
    pub fn detect() -> Self {
        let threads = available_threads();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
                .map_or(usize::MAX, |kib| kib.saturating_mul(1024))
        };
        let control_group::Share { limit, left } = control_group::share();
        Self {
            threads,
            total_memory: field("MemTotal").min(limit),
            free_memory: field("MemAvailable").min(left),
            ranks: 1,
            cuda: None,
        }
    }

    /// The device that computes, for people and for `run.json`.
    pub fn device(&self) -> String {
        match &self.cuda {
            None => "cpu".to_owned(),
            Some(cuda) => format!("cuda:{} ({})", cuda.index, cuda.name),
        }
    }

    /// Bytes of memory that a rank has free on the device that computes.
    pub fn free(&self) -> usize {
        self.cuda.as_ref().map_or(self.free_memory / self.ranks, |cuda| cuda.free_memory)
    }

    /// CPU threads of a rank, if the recipe leaves that to the machine.
    pub fn threads_per_rank(&self) -> usize {
        (self.threads / self.ranks).max(1)
    }

    /// What `micro_batch = "auto"` may fill: of the memory *installed*, so that the choice, and with it the order of
    /// additions, is the same on each start. A CUDA device has no other programs to leave much for.
    pub fn memory_for_auto(&self) -> usize {
        match &self.cuda {
            None => self.total_memory / 10 * 7 / self.ranks,
            Some(cuda) => for_cuda(cuda.total_memory as u64),
        }
    }
}

/// What a step may fill of a CUDA device with `total` bytes, which has no other programs to leave much for.
pub(super) fn for_cuda(total: u64) -> usize {
    (total / 20 * 17) as usize
}

/// Hardware threads that this process may use.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Hardware threads of the machine, also those that this process may not use; 0 where that cannot be read.
pub fn online_threads() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.trim().parse::<usize>().ok()?.checked_sub(first.trim().parse().ok()?)? + 1)
    };
    text.split(',').filter_map(count).sum()
}

/// Makes [`peak_resident_bytes`] begin anew with the memory that is in use now, where the system lets it.
pub fn forget_peak_resident_bytes() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it gives back what was freed, and may be called at any time by any thread (malloc_trim(3))
    unsafe {
        libc::malloc_trim(0);
    }
    // a reader in another thread must not note an old peak after the reset
    let mut largest = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    // proc(5): 5 resets the peak
    let _ = fs::write("/proc/self/clear_refs", "5");
    *largest = 0;
}

/// The largest answer so far: the system counts roughly, and what it says can fall by some pages.
static LARGEST: Mutex<u64> = Mutex::new(0);

/// Peak resident memory of this process in bytes so far; 0 where it cannot be read.
pub fn peak_resident_bytes() -> u64 {
    let mut largest = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let now =
        line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024;
    *largest = now.max(*largest);
    *largest
}
