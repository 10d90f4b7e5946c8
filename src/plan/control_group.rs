//! What this process's control groups leave it of the machine's memory, in either version of them.

use std::fs;
use std::path::Path;

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// Bytes that a group may take and that are left of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// The limit.
    pub(super) limit: usize,
    /// What is left of it.
    pub(super) left: usize,
}

/// The files of a version, in the directory of each group.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// What begins the names in `memory.stat` that count the groups inside too.
    inclusive: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inclusive: "total_" };
const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", inclusive: "" };

/// What this process's groups leave it: no limit where there is none, or none can be read.
pub(super) fn share() -> Share {
    share_of(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), Path::new(ROOT))
}

/// What `groups`, the text of `/proc/PID/cgroup`, leave a process whose groups are mounted at `root`: the least over
/// its groups and all that contain them.
///
/// Version 1 has a hierarchy of its own for memory, version 2 one for everything, and a machine may have both.
fn share_of(groups: &str, root: &Path) -> Share {
    let mut least = Share { limit: usize::MAX, left: usize::MAX };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (mount, files) = match controllers {
            "" => (root.to_owned(), VERSION_2),
            some if some.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), VERSION_1)
            }
            _ => continue,
        };
        // in a container the mount may be the group itself, and then the path below it does not exist
        let own = mount.join(group.trim_start_matches('/'));
        for group in own.ancestors().take_while(|dir| dir.starts_with(&mount)) {
            if let Some(Share { limit, left }) = of_group(group, &files) {
                least = Share { limit: least.limit.min(limit), left: least.left.min(left) };
            }
        }
    }
    least
}

/// What one group leaves; `None` without a limit. Cached file contents count as free, for the kernel gives them up.
fn of_group(group: &Path, files: &Files) -> Option<Share> {
    let read = |file| fs::read_to_string(group.join(file)).ok();
    let number = |text: String| text.trim().parse::<usize>().ok();
    let limit = read(files.limit).and_then(number)?;
    let used = read(files.used).and_then(number).unwrap_or(0);
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let is_cached = ["active_file", "inactive_file"].contains(&name.strip_prefix(files.inclusive)?);
        is_cached.then(|| bytes.parse::<usize>().ok())?
    });
    Some(Share { limit, left: limit.saturating_sub(used.saturating_sub(cached.sum())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Share = Share { limit: usize::MAX, left: usize::MAX };

    /// Directories with these files.
    fn groups(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        root
    }

    #[test]
    fn the_least_over_nested_groups_of_version_2() {
        let root = groups(&[
            ("slice/memory.max", "1000\n"),
            ("slice/memory.current", "900\n"),
            ("slice/memory.stat", "anon 600\nactive_file 100\ninactive_file 200\ntotal_active_file 7\n"),
            ("slice/job/memory.max", "max\n"),
            ("slice/job/memory.current", "800\n"),
            ("other/memory.max", "1\n"),
        ]);
        let share = |text| share_of(text, root.path());
        assert_eq!(share("0::/slice/job\n"), Share { limit: 1000, left: 400 });
        assert_eq!(share("0::/slice/job/step\n"), Share { limit: 1000, left: 400 });
        for text in ["0::/\n", "", "0::/elsewhere\n", "nonsense\n0:\n"] {
            assert_eq!(share(text), NONE, "{text}");
        }
    }

    #[test]
    fn the_least_over_nested_groups_of_version_1() {
        const UNLIMITED: &str = "9223372036854771712\n";
        let root = groups(&[
            ("memory/memory.limit_in_bytes", UNLIMITED),
            ("memory/memory.usage_in_bytes", "123456\n"),
            ("memory/slurm/job_7/memory.limit_in_bytes", "5000\n"),
            ("memory/slurm/job_7/memory.usage_in_bytes", "4000\n"),
            (
                "memory/slurm/job_7/memory.stat",
                "cache 1\nactive_file 0\nhierarchical_memory_limit 5000\ntotal_inactive_file 1000\n\
                 total_active_file 500\n",
            ),
            ("memory/slurm/job_7/step_0/memory.limit_in_bytes", UNLIMITED),
            ("memory/slurm/job_7/step_0/memory.usage_in_bytes", "10\n"),
        ]);
        let own = "/slurm/job_7/step_0";
        let expected = Share { limit: 5000, left: 2500 };
        for text in [
            format!("11:cpuset:/\n4:memory:{own}\n0::/\n"),
            format!("4:cpu,memory:{own}\n"),
            format!("1:name=systemd:/a:b\n4:memory:{own}"),
        ] {
            assert_eq!(share_of(&text, root.path()), expected, "{text}");
        }
        // what is unlimited is as good as no limit
        assert!(share_of("4:memory:/\n", root.path()).left > 1 << 60);
        assert_eq!(share_of(&format!("4:memory_of_another:{own}\n"), root.path()), NONE);
    }

    #[test]
    fn both_versions_count_and_a_container_s_mount_is_its_group() {
        let root = groups(&[
            ("memory.max", "3000\n"),
            ("memory.current", "100\n"),
            ("memory/memory.limit_in_bytes", "2000\n"),
            ("memory/memory.usage_in_bytes", "2500\n"),
        ]);
        let text = "4:memory:/docker/0123\n0::/docker/0123\n";
        assert_eq!(share_of(text, root.path()), Share { limit: 2000, left: 0 });
        assert_eq!(share_of("0::/docker/0123\n", root.path()), Share { limit: 3000, left: 2900 });
    }
}
