//! Which users the numbers of owners stand for.

use std::fs;
use std::sync::OnceLock;

/// Whether two owners are certain to be one user. In a user namespace, as rootless containers are, the system shows all
/// users that have no number there as one.
pub(super) fn is_same(one: u32, other: u32) -> bool {
    static OF_SEVERAL: OnceLock<Option<u32>> = OnceLock::new();
    let of_several = OF_SEVERAL.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/uid_map").ok()?;
        of_several(&map, &fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default())
    });
    one == other && *of_several != Some(one)
}

/// The number that stands for several users under such a map of numbers (user_namespaces(7)); `None` where each user
/// has one.
fn of_several(map: &str, overflow: &str) -> Option<u32> {
    /// Numbers that users can have.
    const ALL: u64 = u32::MAX as u64;
    let known =
        map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum::<u64>();
    (known < ALL).then(|| overflow.trim().parse().unwrap_or(65534))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_users_without_a_number_have_one() {
        assert_eq!(of_several("         0          0 4294967295\n", "65534\n"), None);
        assert_eq!(of_several("      1000       1000          1\n", "65534\n"), Some(65534));
        assert_eq!(of_several("0 1000 1\n1 100000 65536\n", "99\n"), Some(99));
        assert_eq!(of_several("0 1000 1\n", ""), Some(65534));
    }
}
