//! Reading a recipe file and every file that it extends.

use super::diagnostics::{Diagnostics, Problem};
use super::parse::{self, Parsed};
use super::paths;
use super::source::{self, Medium, Place, Source};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Deeper chains are mistakes, and recursion over them would cost stack.
const MAX_DEPTH: usize = 32;

/// A recipe file, read.
#[derive(Debug)]
pub(super) struct File {
    /// As the command line or the extending file names it.
    pub(super) path: PathBuf,
    pub(super) source: Arc<Source>,
    pub(super) parsed: Parsed,
    bases: Vec<usize>,
}

/// Reads `path` and its bases, weakest first and the recipe itself last; no file if the recipe cannot be read. The
/// flag is true if some base could not be read.
///
/// A base that is reached twice counts where it is strongest, as if it had been merged twice.
pub(super) fn load(path: &Path, diagnostics: &mut Diagnostics) -> (Vec<File>, bool) {
    let mut loader = Loader {
        diagnostics,
        files: Vec::new(),
        known: HashMap::new(),
        chain: Vec::new(),
        is_partial: false,
    };
    let Some(root) = loader.visit(path, None) else {
        return (Vec::new(), true);
    };
    let mut strongest_first = Vec::new();
    linearize(&loader.files, root, &mut strongest_first);
    let mut files: Vec<Option<File>> = loader.files.into_iter().map(Some).collect();
    let weakest_first = strongest_first.into_iter().rev();
    (weakest_first.filter_map(|index| files[index].take()).collect(), loader.is_partial)
}

fn linearize(files: &[File], index: usize, out: &mut Vec<usize>) {
    if !out.contains(&index) {
        out.push(index);
        files[index].bases.iter().rev().for_each(|&base| linearize(files, base, out));
    }
}

struct Loader<'a> {
    diagnostics: &'a mut Diagnostics,
    files: Vec<File>,
    /// By canonical path: a file may be reached under several names.
    known: HashMap<PathBuf, usize>,
    /// The files being read, each extended by the one before.
    chain: Vec<usize>,
    is_partial: bool,
}

impl Loader<'_> {
    /// Reads one file and its bases. Problems are reported where `extends` names the file.
    fn visit(&mut self, path: &Path, named: Option<&Place>) -> Option<usize> {
        let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if let Some(&index) = self.known.get(&canonical) {
            return self.is_acyclic(index, named).then_some(index);
        }
        if self.chain.len() >= MAX_DEPTH {
            let place = named.cloned()?;
            let problem = Problem::new(format!("`extends` reaches deeper than {MAX_DEPTH} files"), place)
                .help("name the bases as a list in one file");
            self.diagnostics.push(problem);
            return None;
        }
        let text = self.read(path, named)?;
        let index = self.files.len();
        let source = Arc::new(Source { medium: Medium::File(path.to_path_buf()), text, rank: index });
        let parsed = parse::document(&source, self.diagnostics);
        let extends = parsed.extends.clone();
        self.files.push(File { path: path.to_path_buf(), source, parsed, bases: Vec::new() });
        self.known.insert(canonical, index);
        self.chain.push(index);
        let dir = path.parent().unwrap_or(Path::new(""));
        for (name, place) in extends {
            let base = match paths::join(dir, &name) {
                Ok(base) => self.visit(&base, Some(&place)),
                Err(fault) => {
                    let (what, help) = fault.explain();
                    self.diagnostics.push(Problem::new(format!("`extends` {what}"), place).help(help));
                    None
                }
            };
            self.is_partial |= base.is_none();
            self.files[index].bases.extend(base);
        }
        self.chain.pop();
        Some(index)
    }

    fn read(&mut self, path: &Path, named: Option<&Place>) -> Option<String> {
        let unreadable = match source::read(path) {
            Ok(text) => return Some(text),
            Err(unreadable) => unreadable,
        };
        let what = if named.is_some() { "`extends`: cannot read" } else { "cannot read recipe" };
        let title = format!("{what} `{}`: {}", path.display(), unreadable.reason);
        let own = |text: String| {
            Arc::new(Source { medium: Medium::File(path.to_path_buf()), text, rank: self.files.len() })
        };
        let problem = match (named, unreadable.readable) {
            (named, Some(text)) => {
                let end = text.len();
                let problem = Problem::new(title, Place::at(&own(text), end..end)).label("here");
                named
                    .into_iter()
                    .fold(problem, |problem, named| problem.context(named.clone(), "extended here"))
            }
            (Some(named), None) => Problem::new(title, named.clone()),
            (None, None) => Problem::new(title, Place::whole(&own(String::new()))),
        };
        self.diagnostics.push(problem.help(unreadable.help));
        None
    }

    /// Reports a cycle if `index` is being read already.
    fn is_acyclic(&mut self, index: usize, named: Option<&Place>) -> bool {
        let Some(position) = self.chain.iter().position(|&open| open == index) else {
            return true;
        };
        let chain: Vec<String> = self.chain[position..]
            .iter()
            .chain([&index])
            .map(|&open| format!("`{}`", self.files[open].path.display()))
            .collect();
        if let Some(named) = named {
            let problem =
                Problem::new(format!("`extends` goes in a circle: {}", chain.join(" → ")), named.clone())
                    .help("a base cannot extend a file that extends it: remove one of these");
            self.diagnostics.push(problem);
        }
        false
    }
}
