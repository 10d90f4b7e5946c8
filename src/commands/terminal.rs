//! The screen: lines on stderr, and at most one bar below them.
//!
//! The bar takes one line, and the cursor stays at its beginning. So whatever a terminal makes of the line when its
//! width changes, what is below the cursor is the bar and nothing else, and is cleared as a whole.

use super::layout::{self, Piece};
use super::stderr::put;
use crate::data::Progress;
use crate::json;
use crate::recipe::Diagnostics;
use crate::report::numbers::{bytes, roughly};
use crate::run::facts::now;
use crate::session::ending::Elsewhere;
use crate::wording::{shortened, tame, tame_line, tame_message};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use serde_json::{Map, Value as Json};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Times per second that a bar is drawn at most.
const REDRAWS: u8 = 20;

/// Whether stderr wants colour: it is a terminal, and neither `NO_COLOR` nor `TERM=dumb` is set.
fn color() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    moves_its_cursor() && !set("NO_COLOR")
}

/// Whether stderr can have a bar: it is a terminal, and `TERM=dumb` is not set.
pub(super) fn moves_its_cursor() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// What is on the screen besides lines that stay.
struct Screen {
    bar: Option<ProgressBar>,
    name: Option<Name>,
}

/// What lines begin with: the id of the run that they are about.
struct Name {
    id: String,
    /// The run's path, with which some lines begin of themselves.
    path: String,
}

/// Bytes of a line of a message at most.
const MOST_LINE: usize = 1 << 14;

/// Whether stderr gets JSON alone.
static JSON: AtomicBool = AtomicBool::new(false);

static SCREEN: Mutex<Screen> = Mutex::new(Screen { bar: None, name: None });

fn screen() -> MutexGuard<'static, Screen> {
    SCREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The alternate screen without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Whether stdout shows the alternate screen.
static HAS_SCREEN: AtomicBool = AtomicBool::new(false);

/// Makes stdout show the alternate screen, until [`leave_screen`].
pub(super) fn enter_screen() -> io::Result<()> {
    HAS_SCREEN.store(true, Ordering::SeqCst);
    put_to_screen(ENTER)
}

/// Makes stdout show what it showed before [`enter_screen`], if it does not. Any thread may do so at the end of the
/// process, while another one writes.
pub(super) fn leave_screen() {
    if HAS_SCREEN.swap(false, Ordering::SeqCst) {
        // best effort: a terminal that is gone needs nothing given back
        let _ = put_to_screen(LEAVE);
    }
}

/// Writes to stdout past its lock, which a write that hangs holds.
fn put_to_screen(text: &str) -> io::Result<()> {
    File::from(io::stdout().as_fd().try_clone_to_owned()?).write_all(text.as_bytes())
}

/// Writes a message for people, above the bar if there is one. A stderr that is closed is no failure. Names and texts
/// from elsewhere may be part of it: what could act on the terminal is replaced, and so is what would make a line that
/// passes for another message.
pub(super) fn say(message: &str) {
    say_with(message, tame_message);
}

/// [`say`] for a text of several lines. It has only this program's own line feeds: the caller has made names from
/// elsewhere one line with [`tame_line`].
pub(super) fn say_lines(text: &str) {
    say_with(text, tame);
}

/// [`say`] for a text that keeps the line feeds of elsewhere. All lines but the first are set in, so that none passes
/// for another message.
pub(super) fn say_set_in(text: &str) {
    say_with(text, |text| tame(&text.replace('\n', "\n  ")));
}

fn say_with(text: &str, tamed: impl Fn(&str) -> String) {
    if speaks_json() {
        let kinds = ["warning", "error"];
        let kind = kinds.into_iter().find(|kind| text.starts_with(&format!("{kind}: ")));
        let message = kind.map_or(text, |kind| &text[kind.len() + 2..]);
        return event(kind.unwrap_or("message"), Map::from_iter([("message".to_owned(), message.into())]));
    }
    write(&tamed(text));
}

/// From now on, what is said are events, and there are no bars.
pub(super) fn speak_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether what is said are events.
pub(super) fn speaks_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes an event of this kind, now, as one line of JSON. Its strings hold no character that could act on a terminal:
/// JSON escapes those below U+0020.
pub(super) fn event(kind: &str, fields: Map<String, Json>) {
    let mut event = Map::from_iter([("event".to_owned(), kind.into()), ("time".to_owned(), now().into())]);
    event.extend(fields);
    put(&format!("{}\n", json::shown(&Json::Object(event))));
}

/// [`say`] for a text in which only the colours that this program chose can act on the terminal.
fn write(text: &str) {
    let screen = screen();
    // a name from a file may be as long as the file
    let text: &str = &match text.lines().any(|line| line.len() > MOST_LINE) {
        true => text.lines().map(|line| shortened(line, MOST_LINE / 4) + "\n").collect::<String>(),
        false => text.to_owned(),
    };
    let text = match &screen.name {
        Some(name) => text.lines().map(|line| name.before(line) + "\n").collect(),
        None => format!("{text}\n"),
    };
    let out = || put(&text);
    match &screen.bar {
        Some(bar) => bar.suspend(out),
        None => out(),
    }
}

/// From now on lines begin with the id of this run, or with none.
pub(super) fn name(run: Option<&Path>) {
    let Some(run) = run else {
        screen().name = None;
        return;
    };
    // of `.` the path does not tell
    let path = if run.file_name().is_some() { Ok(run.to_owned()) } else { run.canonicalize() };
    let path = path.unwrap_or_else(|_| run.to_owned());
    let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    screen().name = Some(Name { id: tame_line(&id), path: tame_line(&run.display().to_string()) });
}

impl Name {
    fn before(&self, line: &str) -> String {
        let Self { id, path } = self;
        if path.ends_with(id.as_str()) && line.starts_with(path.as_str()) {
            line.to_owned()
        } else {
            format!("{id}: {line}")
        }
    }
}

/// Shows an error: a recipe's problems as they are, others as a chain of causes.
pub(super) fn report(error: &anyhow::Error) {
    if error.is::<Elsewhere>() {
        return;
    }
    match error.downcast_ref::<Diagnostics>() {
        Some(diagnostics) if speaks_json() => say(&diagnostics.to_string()),
        Some(diagnostics) => write(&diagnostics.render(color())),
        None => say(&format!("error: {error:#}")),
    }
}

/// Puts a bar on the screen, in place of any other. `line` is what it says in so many columns.
pub(super) fn show(
    length: u64,
    line: impl Fn(usize, &ProgressState) -> String + Clone + Send + Sync + 'static,
) -> ProgressBar {
    let target = ProgressDrawTarget::term_like_with_hz(Box::<Below>::default(), REDRAWS);
    let bar = ProgressBar::with_draw_target(Some(length), target);
    let text = move |state: &ProgressState, out: &mut dyn fmt::Write| {
        let _ = out.write_str(&tame_line(&line(columns(), state)));
    };
    let style = ProgressStyle::with_template("{line}").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("line", text));
    if let Some(before) = screen().bar.replace(bar.clone()) {
        before.finish_and_clear();
    }
    bar
}

/// Takes a bar away.
pub(super) fn hide(bar: &ProgressBar) {
    let mut screen = screen();
    bar.finish_and_clear();
    screen.bar.take_if(|bar| bar.is_finished());
}

/// Takes any bar away.
pub(super) fn clear_bars() {
    if let Some(bar) = screen().bar.take() {
        bar.finish_and_clear();
    }
}

/// Columns that a line may have now. The last one stays free: some terminals go to the next line after it.
fn columns() -> usize {
    usize::from(Term::stderr().size().1).saturating_sub(1)
}

/// The line below all others, as indicatif's terminal. What it draws is written in one piece, without the spaces that
/// it fills lines with: they would become a line of their own in a terminal that grows narrower.
#[derive(Debug, Default)]
struct Below(Mutex<String>);

impl Below {
    fn add(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }
}

impl TermLike for Below {
    fn width(&self) -> u16 {
        Term::stderr().size().1
    }

    fn move_cursor_up(&self, _lines: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _lines: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _columns: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _columns: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        // to the end of the screen: the line may take several rows since the terminal has grown narrower
        self.add("\r\x1b[J")
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let text = text.trim_end_matches(' ');
        if !text.is_empty() {
            put(&format!("{text}\r"));
        }
        Ok(())
    }
}

/// Between two plain lines about a pass, where there is no bar.
const PLAIN: Duration = Duration::from_secs(10);

/// The progress of long passes over data.
#[derive(Default)]
pub(super) struct Passes {
    bar: Mutex<Option<ProgressBar>>,
    plain: Mutex<Option<Plain>>,
}

/// A pass without a bar.
struct Plain {
    what: String,
    total: u64,
    done: u64,
    start: Instant,
    said: Instant,
}

/// How much of a pass is done, how fast it goes and how long it will take: the rate and the time once they are known.
fn so_far(done: u64, total: u64, elapsed: Duration) -> [String; 2] {
    let size = format!("{} of {}", bytes(done as f64), bytes(total as f64));
    if done == 0 || elapsed < Duration::from_secs(1) {
        return [size, String::new()];
    }
    let rate = done as f64 / elapsed.as_secs_f64();
    let left = roughly(Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate));
    [size, format!("{}/s, {left} left", bytes(rate))]
}

impl Passes {
    fn with(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        // a panic elsewhere must not become another one here
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Passes {
    fn start(&self, what: &str, total: u64) {
        if !moves_its_cursor() {
            say(what);
            let now = Instant::now();
            let plain = Plain { what: what.to_owned(), total, done: 0, start: now, said: now };
            *self.plain.lock().unwrap_or_else(PoisonError::into_inner) = Some(plain);
            return;
        }
        let what = what.to_owned();
        let bar = show(total, move |width, state| {
            let (done, all) = (state.pos(), state.len().unwrap_or(total));
            let [size, rate] = so_far(done, all, state.elapsed());
            let share = if all > 0 { done as f64 / all as f64 } else { 1.0 };
            layout::line(
                width,
                share,
                vec![Piece::new(2, what.clone()), Piece::new(1, size), Piece::new(0, rate)],
            )
        });
        self.with(|slot| *slot = Some(bar));
    }

    fn advance(&self, by: u64) {
        self.with(|slot| slot.iter().for_each(|bar| bar.inc(by)));
        let mut plain = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Plain { what, total, done, start, said }) = &mut *plain else { return };
        *done += by;
        if said.elapsed() >= PLAIN {
            *said = Instant::now();
            let [size, rate] = so_far(*done, *total, start.elapsed());
            say(&format!("{what}: {size}, {rate}"));
        }
    }

    fn finish(&self) {
        self.with(|slot| slot.take().iter().for_each(hide));
        *self.plain.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
