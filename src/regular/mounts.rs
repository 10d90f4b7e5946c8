//! File systems of a user's own, which may be closed to all others whatever the modes of their files say, and may say
//! anything of the owners of their files.

use super::is_another;
use rustix::fs as unix;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// The user to whom a file belongs whose owner on this device is said to be `user`.
pub(super) fn owner(user: u32, device: u64) -> u32 {
    mounter(device).unwrap_or(user)
}

/// The user who has mounted the file system of a device, where that is one in user space and they are neither this
/// process's user nor root: what it says is theirs to choose.
pub(super) fn mounter(device: u64) -> Option<u32> {
    static KNOWN: Mutex<BTreeMap<u64, Option<u32>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.get(&device) {
        return *found;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let found = user_of(&mounts, unix::major(device), unix::minor(device)).filter(|user| is_another(*user));
    known.insert(device, found);
    found
}

/// The user who has mounted a device in user space for all users. One that is not for all lets nobody else look into
/// it, however that user is called in this process's namespace. `mounts` are lines as of `/proc/self/mountinfo`.
fn user_of(mounts: &str, major: u32, minor: u32) -> Option<u32> {
    let (kind, options) = of_device(mounts, major, minor)?;
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="));
    user.filter(|_| kind.starts_with("fuse") && is_for_all(kind, options))?.parse().ok()
}

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

/// Whether a mount of a device is one for all users. `mounts` are lines as of `/proc/self/mountinfo`.
fn allows_others(mounts: &str, major: u32, minor: u32) -> bool {
    of_device(mounts, major, minor).is_some_and(|(kind, options)| is_for_all(kind, options))
}

fn is_for_all(kind: &str, options: &str) -> bool {
    // that of a virtual machine speaks the same protocol and has no owner
    kind == "virtiofs" || options.split(',').any(|option| option == "allow_other")
}

/// The kind of the file system on a device, and its options. In the lines of `/proc/self/mountinfo`
/// (`proc_pid_mountinfo(5)`) the third field is the device, and the last one has the options of the file system.
fn of_device(mounts: &str, major: u32, minor: u32) -> Option<(&str, &str)> {
    let device = format!("{major}:{minor}");
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    let (_, of_system) = line.split_once(" - ")?;
    Some((of_system.split(' ').next()?, of_system.split(' ').next_back()?))
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
    fn what_a_mount_in_user_space_says_is_its_users() {
        let mounts = "36 35 0:31 / /home/a/x rw - fuse.sshfs b:/ rw,user_id=1000,group_id=1000,allow_other\n\
                      37 35 0:32 / /tmp rw - tmpfs tmpfs rw,user_id=1000\n\
                      38 35 0:33 / /data rw - fuse.glusterfs c:/ rw,user_id=0,allow_other\n\
                      39 35 0:34 / /home/b/x rw - fuse.sshfs b:/ rw,user_id=1000,group_id=1000\n";
        let of = |minor| user_of(mounts, 0, minor);
        assert_eq!([31, 32, 33, 34, 35].map(of), [Some(1000), None, Some(0), None, None]);
        assert_eq!(owner(7, u64::MAX), 7, "of what is not mounted");
    }

    #[test]
    fn a_file_system_of_the_kernel_is_no_private_one() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/status").expect("a file"));
        assert!(!may_be_private(&file));
    }
}
