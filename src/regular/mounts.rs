//! File systems of a user's own, which are closed to all others whatever the modes of their files say.

use rustix::fs as unix;
use std::os::fd::OwnedFd;

/// What `statfs(2)` says of a file system in user space.
const FUSE: u32 = 0x6573_5546;

/// Whether the file system of an open file may be closed to other users: one in user space (`fuse(4)`) is, unless it
/// was mounted with `allow_other`.
pub(super) fn may_be_private(file: &OwnedFd) -> bool {
    let is_fuse = unix::fstatfs(file).is_ok_and(|found| found.f_type as u32 == FUSE);
    let allows = || {
        let device = unix::fstat(file).ok()?.st_dev;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        Some(allows_others(&mounts, unix::major(device), unix::minor(device)))
    };
    is_fuse && !allows().unwrap_or(false)
}

/// Whether a mount of a device is one for all users. `mounts` are lines as of `/proc/self/mountinfo`
/// (`proc_pid_mountinfo(5)`): the third field is the device, and the last one has the options of the file system.
fn allows_others(mounts: &str, major: u32, minor: u32) -> bool {
    let device = format!("{major}:{minor}");
    let mut of_device = mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&device));
    let Some((_, of_system)) = of_device.next().and_then(|line| line.split_once(" - ")) else { return false };
    let (kind, options) = (of_system.split(' ').next(), of_system.split(' ').next_back().unwrap_or_default());
    // that of a virtual machine speaks the same protocol and has no owner
    kind == Some("virtiofs") || options.split(',').any(|option| option == "allow_other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_in_user_space_is_for_all_where_it_says_so() {
        let mounts = "36 35 0:31 / /home/a/x rw,nosuid - fuse.sshfs b:/ rw,user_id=1000,group_id=1000\n\
                      37 35 0:32 / /data rw - fuse.glusterfs c:/ rw,user_id=0,allow_other,max_read=131072\n\
                      38 35 0:33 / /allow_other rw - fuse allow_other rw\n\
                      39 35 0:34 / /home rw shared:1 - virtiofs home rw\n";
        let of = |minor| allows_others(mounts, 0, minor);
        assert_eq!([31, 32, 33, 34, 35].map(of), [false, true, false, true, false]);
    }

    #[test]
    fn a_file_system_of_the_kernel_is_no_private_one() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/status").expect("a file"));
        assert!(!may_be_private(&file));
    }
}
