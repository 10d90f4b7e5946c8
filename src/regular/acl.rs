//! What an access control list says of a file beside its mode (`acl(5)`; the layout of `linux/posix_acl_xattr.h`).

use rustix::fs as unix;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// The extended attribute of a file that has more than a mode.
const ATTRIBUTE: &str = "system.posix_acl_access";
/// Its first 32 bits.
const VERSION: u32 = 2;
/// More than a list that the system takes.
const MOST: usize = 1 << 16;

/// The tags of entries for somebody else than the owner.
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const OTHER: u16 = 0x20;
/// The tag of the entry that bounds what all of these but the last may do.
const MASK: u16 = 0x10;

/// Whether an open file has a list by which somebody but its owner may be without one of these rights, in the bits of
/// a mode for all others; `None` where it has none and the mode says all.
pub(super) fn keeps_out(file: &OwnedFd, rights: unix::Mode) -> Option<bool> {
    let mut list = vec![0; MOST];
    // what is open without a right to read it has no attributes but by its path
    match unix::getxattr(format!("/proc/self/fd/{}", file.as_raw_fd()), ATTRIBUTE, &mut list[..]) {
        Ok(length) => Some(is_denied(&list[..length], rights.bits() as u16).unwrap_or(true)),
        // none, or no file system with any, or nowhere to ask
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => None,
        Err(_) => Some(true),
    }
}

/// Whether one of the entries lacks one of the rights; `None` of what is no list.
fn is_denied(list: &[u8], rights: u16) -> Option<bool> {
    let (version, entries) = list.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let entries = entries.iter().map(|entry| {
        let [tag, may] = [0, 2].map(|at| u16::from_le_bytes([entry[at], entry[at + 1]]));
        (tag, may)
    });
    let mask = entries.clone().find(|(tag, _)| *tag == MASK).map_or(u16::MAX, |(_, may)| may);
    let mut others = entries.filter_map(|(tag, may)| match tag {
        USER | OWNING_GROUP | GROUP => Some(may & mask),
        OTHER => Some(may),
        _ => None,
    });
    Some(others.any(|may| may & rights != rights))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut list = VERSION.to_le_bytes().to_vec();
        for (tag, may) in entries {
            list.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
            list.extend([0xff; 4]);
        }
        list
    }

    #[test]
    fn everybody_but_the_owner_must_have_the_right() {
        let open = [(1, 6), (OWNING_GROUP, 4), (OTHER, 4)];
        assert_eq!(is_denied(&list(&open), 4), Some(false));
        assert_eq!(is_denied(&list(&open), 5), Some(true));
        let with = |more: &[(u16, u16)]| is_denied(&list(&[&open[..], more].concat()), 4);
        assert_eq!(with(&[(USER, 4), (GROUP, 4), (MASK, 4)]), Some(false));
        assert_eq!(with(&[(USER, 0), (MASK, 4)]), Some(true), "a user");
        assert_eq!(with(&[(GROUP, 1), (MASK, 7)]), Some(true), "a group");
        assert_eq!(with(&[(USER, 7), (MASK, 1)]), Some(true), "all of them");
        assert_eq!(is_denied(&list(&[(1, 6), (OWNING_GROUP, 4), (OTHER, 0)]), 4), Some(true), "others");
        assert_eq!(is_denied(&list(&open)[..13], 4), None);
        assert_eq!(is_denied(b"\x03\0\0\0", 4), None);
        assert_eq!(is_denied(b"", 4), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..64), rights in 0u16..8) {
            let _ = is_denied(&bytes, rights);
        }
    }
}
