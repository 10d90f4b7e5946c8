//! What shows others that a download goes on or has not ended: the list of its files. It goes with the end.

use super::download::{Folder, LOCK, PARTS, is_named, write};
use super::{FetchError, Wanted};
use crate::data::unfinished::{self, FILES, end_of_part, part_end};
use crate::regular::{self, OFlags};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

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

    /// Takes away the lists of downloads that are over, which have all of their files or have brought nothing. That of
    /// this call is over if its files are `complete`, and then goes what is left of files that no list has. If nothing
    /// is left, the directory for parts goes. Tells whether files of another download are missing.
    pub(super) fn close(self, complete: &[Wanted]) -> bool {
        // what was moved meanwhile is not judged by what lies at its place
        let is_in_place = self.out.is_in_place().unwrap_or(false);
        let names = self.parts.names().unwrap_or_default();
        let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
        let begun = names.iter().filter_map(|name| end_of_part(name)).collect();
        // the ends of parts that are wanted still; of a list that cannot be read, they are not known
        let (mut wanted, mut is_known, mut lacks) = (HashSet::new(), true, false);
        for name in names.iter().filter(|name| name.ends_with(FILES)) {
            let list = self.parts.read(name, regular::DOCUMENT).map(|text| unfinished::list(&text));
            let is_over = match &list {
                _ if *name == self.list && !complete.is_empty() => true,
                Ok(list) => is_in_place && !unfinished::is_begun(self.out.path(), list, &begun),
                Err(_) => false,
            };
            if is_over {
                let _ = self.parts.remove_file(name);
                continue;
            }
            lacks = true;
            is_known &= is_in_place && list.is_ok();
            let list = list.unwrap_or_default();
            wanted.extend(unfinished::missing(self.out.path(), &list).map(|file| part_end(Path::new(file))));
        }
        let is_wanted = |end: &str| !is_known || wanted.contains(end);
        for name in &names {
            let is_left = !complete.is_empty() && end_of_part(name).is_some_and(|end| !is_wanted(end));
            if is_left || name.ends_with(NEW_FILES) {
                let _ = self.parts.remove_file(name);
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
        is_in_place && lacks
    }
}
