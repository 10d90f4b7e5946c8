//! What shows others that a download goes on or has not ended: the list of its files. It goes with the end.

use super::download::{Folder, LOCK, PARTS, is_named, part_end, write};
use super::{FetchError, Wanted};
use crate::data::unfinished::{self, FILES};
use crate::regular::{self, OFlags};
use std::fs;
use std::io::{self, Write};

/// How the names of lists of files end while they are written.
const NEW_FILES: &str = ".files.new";

impl Folder {
    /// Lists the files of a download, for those who find some of them, and tells whether an earlier call had.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn announce(&self, wanted: &[Wanted]) -> Result<bool, FetchError> {
        let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.display().to_string()).collect();
        let (name, new) = (&self.list, self.list.replace(FILES, NEW_FILES));
        let write_list = || -> io::Result<bool> {
            let is_known = self.parts.join(name).exists();
            let mut file = self.parts.open_file(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
            file.write_all(serde_json::to_string(&names)?.as_bytes())?;
            file.sync_all()?;
            self.parts.rename(&new, name)?;
            self.parts.sync()?;
            self.out.sync()?;
            Ok(is_known)
        };
        write_list().map_err(write(&self.parts.join(name)))
    }

    /// Takes the list back.
    pub(super) fn withdraw(&self) {
        let _ = self.parts.remove_file(&self.list);
    }

    /// Takes away what earlier calls have left of files that are `complete` now, and the lists of downloads of which
    /// all files are there, or none: that of this call, too, if it has brought all that there is by now. If nothing is
    /// left then, the directory for parts goes. Tells whether files of another download are missing.
    pub(super) fn close(self, complete: &[Wanted]) -> bool {
        let ends: Vec<String> = complete.iter().map(|wanted| part_end(&wanted.name)).collect();
        // what was moved meanwhile is not judged by what lies at its place
        let is_in_place = self.out.is_in_place().unwrap_or(false);
        let is_over = |name: &str| {
            let list = || self.parts.read(name, regular::DOCUMENT).map(|text| unfinished::list(&text));
            name == self.list && !complete.is_empty()
                || is_in_place && list().is_ok_and(|list| !unfinished::lacks(self.out.path(), &list))
        };
        let is_left = |name: &str| {
            ends.iter().any(|end| name.ends_with(end))
                || name.ends_with(FILES) && is_over(name)
                || name.ends_with(NEW_FILES)
        };
        let mut lacks = false;
        for name in self.parts.names().unwrap_or_default() {
            if name.to_str().is_some_and(is_left) {
                let _ = self.parts.remove_file(&name);
            } else {
                lacks |= name.to_str().is_some_and(|name| name.ends_with(FILES));
            }
        }
        if self.parts.names().is_ok_and(|names| names.len() == 1) {
            // what somebody has put in its place meanwhile stays
            if is_named(&self.out, &self.parts) {
                let _ = self.parts.remove_file(LOCK);
                let _ = self.out.remove_emptied(PARTS, self.lock);
            }
            if self.is_new && complete.is_empty() {
                // only if nothing is in it
                let _ = fs::remove_dir(self.out.path());
            }
        }
        lacks
    }
}
