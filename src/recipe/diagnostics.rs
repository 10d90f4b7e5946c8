//! The problems of a recipe, collected and rendered as a compiler renders them.

use super::source::{Medium, Place, Source};
use crate::wording::{is_tame, tame_line};
use annotate_snippets::{Annotation, AnnotationKind, Element, Level, Origin, Renderer, Snippet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// More problems than this are counted, not shown: such a file is hardly a recipe.
const MAX_PROBLEMS: usize = 100;
/// Longer lines are named but not shown.
const MAX_LINE: usize = 1000;
/// Spans further apart than this are not shown in one excerpt.
const MAX_EXCERPT: usize = 16 << 10;

/// One thing that is wrong, and where.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// One line: the key, its value and the problem.
    pub(super) title: String,
    pub(super) place: Place,
    /// The text beside the underlined source.
    pub(super) label: String,
    /// Other places that explain it.
    pub(super) context: Vec<(Place, String)>,
    /// What the user may do about it.
    pub(super) help: Vec<String>,
}

impl Problem {
    pub(super) fn new(title: impl Into<String>, place: Place) -> Self {
        Self {
            title: tame_line(&title.into()),
            place,
            label: String::new(),
            context: Vec::new(),
            help: Vec::new(),
        }
    }

    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = tame_line(&label.into());
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(tame_line(&help.into()));
        self
    }

    pub(super) fn context(mut self, place: Place, label: impl Into<String>) -> Self {
        self.context.push((place, tame_line(&label.into())));
        self
    }

    fn render(&self, renderer: &Renderer) -> String {
        let (near, far): (Vec<_>, Vec<_>) =
            self.context.iter().partition(|(place, _)| Arc::ptr_eq(&place.source, &self.place.source));
        let mut elements = Vec::new();
        elements.extend(excerpt(&self.place, &self.label, AnnotationKind::Primary, &near));
        for (place, label) in far {
            elements.extend(excerpt(place, label, AnnotationKind::Context, &[]));
        }
        elements.extend(self.help.iter().map(|help| Level::HELP.message(help).into()));
        if let Medium::Env(_) = self.place.source.medium {
            elements.push(Level::NOTE.message("set in the environment").into());
        }
        renderer.render(&[Level::ERROR.primary_title(&self.title).elements(elements)])
    }
}

/// The source lines around a place, with the place and its context underlined.
fn excerpt<'a>(
    place: &'a Place,
    label: &'a str,
    kind: AnnotationKind,
    context: &[&'a (Place, String)],
) -> Option<Element<'a>> {
    let source = &*place.source;
    let file = source.medium.path().map(|path| tame_line(&path.display().to_string()));
    let Some(span) = &place.span else {
        return file.map(|file| Origin::path(file).into());
    };
    let start = first_line(source, span);
    let (line, column) = source.line_column(start.start);
    if is_long(source, &start) {
        return file.map(|file| Origin::path(file).line(line).char_column(column).into());
    }
    let mut marks = vec![(start, label, kind)];
    marks.extend(context.iter().filter_map(|(place, label)| {
        let span = first_line(source, place.span.as_ref()?);
        (!is_long(source, &span)).then_some((span, label.as_str(), AnnotationKind::Context))
    }));
    if window(source, &marks).len() > MAX_EXCERPT {
        marks.truncate(1);
    }
    let window = window(source, &marks);
    let (line, _) = source.line_column(window.start);
    let annotations = marks.into_iter().map(|(span, label, kind)| -> Annotation<'a> {
        let label = Some(label).filter(|label| !label.is_empty());
        kind.span(span.start - window.start..span.end - window.start).label(label)
    });
    let snippet = Snippet::source(&source.text[window.clone()])
        .line_start(line)
        .line_numbering(file.is_some())
        .path(file)
        .annotations(annotations);
    Some(snippet.into())
}

/// A span cut to its first line and to whole characters: an array of many lines is not underlined whole.
fn first_line(source: &Source, span: &Range<usize>) -> Range<usize> {
    let text = &source.text;
    let start = text.floor_char_boundary(span.start);
    let end = text.ceil_char_boundary(span.end.min(text.len())).min(source.line_end(start)).max(start);
    start..end
}

fn is_long(source: &Source, span: &Range<usize>) -> bool {
    source.line_end(span.start) - source.line_start(span.start) > MAX_LINE
}

/// The whole lines that hold all marks.
fn window(source: &Source, marks: &[(Range<usize>, &str, AnnotationKind)]) -> Range<usize> {
    let start = marks.iter().map(|(span, ..)| span.start).min().unwrap_or(0);
    let end = marks.iter().map(|(span, ..)| span.end).max().unwrap_or(start);
    source.line_start(start)..source.line_end(end).max(end)
}

/// All problems of a recipe, in file order.
///
/// `Display` is the plain rendering; every block names the file, the key, the value and the remedy.
#[derive(Debug, Default)]
pub struct Diagnostics {
    problems: Vec<Problem>,
    omitted: usize,
}

impl Diagnostics {
    pub(super) fn push(&mut self, problem: Problem) {
        match self.is_full() {
            false => self.problems.push(problem),
            true => self.omitted += 1,
        }
    }

    /// True once no more problems are described.
    fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Counts a problem without describing it once the list is full; false while there is room.
    pub(super) fn omits_another(&mut self) -> bool {
        let is_full = self.is_full();
        self.omitted += usize::from(is_full);
        is_full
    }

    /// Puts the problems in file order: the recipe, its bases, the environment, the command line.
    pub(super) fn sort(&mut self) {
        self.problems.sort_by_key(|problem| problem.place.rank());
    }

    /// True while nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Number of problems found.
    #[must_use]
    pub fn len(&self) -> usize {
        self.problems.len() + self.omitted
    }

    /// The first line of each problem, in order.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(|problem| problem.title.as_str())
    }

    /// Appends the problems of `other`, so that a caller can report its own together with these.
    pub fn append(&mut self, other: Self) {
        self.omitted += other.omitted;
        other.problems.into_iter().for_each(|problem| self.push(problem));
    }

    /// All problems as text, without a final newline; `color` adds terminal escapes.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut blocks: Vec<String> = self.problems.iter().map(|problem| problem.render(&renderer)).collect();
        if self.omitted > 0 {
            blocks.push(format!("and {} more problems", self.omitted));
        }
        // The renderer shows the escapes of what it quotes, so those that are left are its own colours.
        let keeps = |c| is_tame(c) || c == '\n' || c == '\x1b' && color;
        let replace = |c| if keeps(c) { c } else { char::REPLACEMENT_CHARACTER };
        blocks.join("\n\n").chars().map(replace).collect()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}
