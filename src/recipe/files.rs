//! Reading a recipe file and everything that it extends: files, and recipes that the program carries.

use super::diagnostics::{Diagnostics, Problem};
use super::parse::{self, Parsed};
use super::paths;
use super::runs;
use super::shipped::{self, Shipped};
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
    /// What its relative paths begin at.
    pub(super) dir: PathBuf,
    pub(super) source: Arc<Source>,
    pub(super) parsed: Parsed,
    bases: Vec<usize>,
}

impl File {
    /// Whether a person wrote it: neither this program for a run, nor the authors of this program.
    pub(super) fn is_written_by_hand(&self) -> bool {
        matches!(self.source.medium, Medium::File(_))
            && !runs::is_recipe_of_run(&self.path, &self.source.text)
    }
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
    let root = loader.target(path.to_path_buf(), None).and_then(|target| loader.visit(&target, None));
    let Some(root) = root else {
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

/// A recipe that is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    /// On the disk.
    File(PathBuf),
    /// Carried by the program, and named by a recipe of this directory.
    Shipped(&'static Shipped, PathBuf),
}

impl Target {
    fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Shipped(shipped, _) => shipped.path(),
        }
    }

    /// What its relative paths begin at.
    fn dir(&self) -> PathBuf {
        match self {
            Self::File(path) => path.parent().unwrap_or(Path::new("")).to_path_buf(),
            Self::Shipped(shipped, anchor) => shipped.dir(anchor),
        }
    }

    /// The directory of the recipe on the disk that it is, or that has named it.
    fn anchor(&self) -> PathBuf {
        match self {
            Self::File(_) => self.dir(),
            Self::Shipped(_, anchor) => anchor.clone(),
        }
    }

    /// The same for every name of it: a file may be reached under several.
    fn identity(&self) -> Self {
        match self {
            Self::File(path) => Self::File(fs::canonicalize(path).unwrap_or_else(|_| path.clone())),
            Self::Shipped(..) => self.clone(),
        }
    }

    fn medium(&self) -> Medium {
        match self {
            Self::File(path) => Medium::File(path.clone()),
            Self::Shipped(shipped, _) => Medium::Shipped(shipped),
        }
    }
}

struct Loader<'a> {
    diagnostics: &'a mut Diagnostics,
    files: Vec<File>,
    /// By identity.
    known: HashMap<Target, usize>,
    /// The files being read, each extended by the one before.
    chain: Vec<usize>,
    is_partial: bool,
}

impl Loader<'_> {
    /// What a path means on the command line, or where `extender` extends it at a place.
    fn target(&mut self, path: PathBuf, extender: Option<(&Target, &Place)>) -> Option<Target> {
        let Some(name) = shipped::name_in(&path) else {
            return Some(Target::File(path));
        };
        let found = shipped::find(name);
        if found.is_none() {
            let (what, place) = match extender {
                Some((_, place)) => ("`extends`: ", place.clone()),
                None => (
                    "",
                    Place::whole(&Arc::new(Source { medium: Medium::Flag, text: String::new(), rank: 0 })),
                ),
            };
            let (title, help) = shipped::unknown(name, paths::BUILTIN);
            self.diagnostics.push(Problem::new(format!("{what}{title}"), place).help(help));
        }
        let anchor = extender.map_or_else(PathBuf::new, |(target, _)| target.anchor());
        found.map(|shipped| Target::Shipped(shipped, anchor))
    }

    /// What a name in `extends` means.
    fn base(&mut self, extender: &Target, name: &str, place: &Place) -> Option<Target> {
        match extender {
            _ if shipped::name_in(Path::new(name)).is_some() => {
                self.target(name.into(), Some((extender, place)))
            }
            Target::Shipped(shipped, _) => self.target(shipped.extended(name), Some((extender, place))),
            Target::File(_) => {
                let dir = paths::settled(&extender.dir());
                match paths::unambiguous(&dir, name).and_then(|()| paths::join(&dir, name)) {
                    Ok(path) => Some(Target::File(path)),
                    Err(fault) => {
                        self.diagnostics.push(fault.complain("extends", place));
                        None
                    }
                }
            }
        }
    }

    /// Reads one recipe and its bases. Problems are reported where `extends` names it.
    fn visit(&mut self, target: &Target, named: Option<&Place>) -> Option<usize> {
        let identity = target.identity();
        if let Some(&index) = self.known.get(&identity) {
            return self.is_acyclic(index, named).then_some(index);
        }
        if self.chain.len() >= MAX_DEPTH {
            let place = named.cloned()?;
            let problem = Problem::new(format!("`extends` reaches deeper than {MAX_DEPTH} files"), place)
                .help("name the bases as a list in one file");
            self.diagnostics.push(problem);
            return None;
        }
        let text = match target {
            Target::File(path) => self.read(path, named)?,
            Target::Shipped(shipped, _) => shipped.text().to_owned(),
        };
        let index = self.files.len();
        let source = Arc::new(Source { medium: target.medium(), text, rank: index });
        let parsed = match (target, named) {
            (Target::File(path), Some(named)) => self.base_document(path, &source, named)?,
            _ => parse::document(&source, self.diagnostics),
        };
        let extends = parsed.extends.clone();
        self.files.push(File { path: target.path(), dir: target.dir(), source, parsed, bases: Vec::new() });
        self.known.insert(identity, index);
        self.chain.push(index);
        for (name, place) in extends {
            let base = self.base(target, &name, &place);
            let base = base.and_then(|base| self.visit(&base, Some(&place)));
            self.is_partial |= base.is_none();
            self.files[index].bases.extend(base);
        }
        self.chain.pop();
        Some(index)
    }

    /// Reads the text of a file that somebody's recipe names. Messages show lines of it, which may be for nobody else
    /// to see, so they must be those of a recipe.
    fn base_document(&mut self, path: &Path, source: &Arc<Source>, named: &Place) -> Option<Parsed> {
        let mut found = Diagnostics::default();
        let parsed = parse::document(source, &mut found);
        if found.is_empty() || parsed.is_of_recipe() {
            self.diagnostics.append(found);
            return Some(parsed);
        }
        let title = format!("`extends`: `{}` has mistakes, and may be no recipe", path.display());
        let problem = Problem::new(title, named.clone()).help(
            "it sets no key in a table without a mistake; its lines are not shown, for they may be secret: if it is a \
             recipe, `runner explain` of it alone shows them",
        );
        self.diagnostics.push(problem);
        None
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
            (Some(named), _) => Problem::new(title, named.clone()),
            (None, Some(text)) => {
                let end = text.len();
                Problem::new(title, Place::at(&own(text), end..end)).label("here")
            }
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
