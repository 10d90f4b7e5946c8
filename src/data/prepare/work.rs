//! The work of a preparation: from documents to complete shards, with a state to go on from.

use super::pipeline::{self, Encoded, Mark, Pipeline, Step};
use super::shards::{Shards, Validation};
use super::sources::TextFile;
use super::spool::{self, Order, Spool};
use super::state::{Begun, Earlier, Position, State, Workplace};
use super::{Hooks, Options, PrepareError, complete};
use crate::data::card::{CARD, Card};
use crate::data::progress::Task;
use crate::data::tokens::entropy;
use crate::data::{DataError, Tokenizer};
use std::ops::ControlFlow;

/// A preparation under way.
pub(super) struct Work<'a> {
    options: &'a Options,
    files: &'a [TextFile],
    place: &'a Workplace,
    hooks: &'a Hooks<'a>,
    pub(super) state: State,
    shards: Shards<'a>,
    /// Tokens that were taken.
    tokens: u64,
    /// Those of them before the source that is being read; `None` where a state of an earlier version does not say.
    before: Option<u64>,
    /// Bytes of the document so far.
    document_bytes: u64,
    /// The first shards, which have their names.
    published: usize,
    /// The state that was kept last, and whether no source has begun since.
    kept: (Earlier, bool),
}

/// Where tokens go while documents are read.
enum Sink {
    Shards,
    Spool(Spool),
}

impl<'a> Work<'a> {
    pub(super) fn new(
        options: &'a Options,
        files: &'a [TextFile],
        place: &'a Workplace,
        mut state: State,
        hooks: &'a Hooks<'a>,
    ) -> Result<Self, PrepareError> {
        let shards = complete::shards(options, place, &state, hooks)?;
        complete::take_over(place, &mut state, &shards, hooks)?;
        let (tokens, published) = (state.tokens(), shards.names.len());
        let kept = (Earlier::of(&state), true);
        Ok(Self {
            options,
            files,
            place,
            hooks,
            state,
            shards,
            tokens,
            before: None,
            document_bytes: 0,
            published,
            kept,
        })
    }

    /// Goes back to where the source began that is being read, which is wrong or has changed: nothing that was made of
    /// it can be gone on from.
    pub(super) fn go_back(&mut self) -> Result<(), PrepareError> {
        let Some(back) = self.state.back.take() else { return Ok(()) };
        self.state.return_to(back);
        let (named, left) = (self.made().to_vec(), self.state.shards.len());
        let dropped = named.into_iter().zip(self.shards.made.iter().cloned());
        self.state.dropped = dropped.skip(left).collect();
        self.place.keep(&self.state)?;
        self.shards = complete::shards(self.options, self.place, &self.state, self.hooks)?;
        self.published = self.published.min(left);
        self.place.remove(&std::mem::take(&mut self.state.dropped))
    }

    /// The names of the shards that have them.
    pub(super) fn made(&self) -> &[String] {
        &self.shards.names[..self.published]
    }

    /// The number of files of tokens that a later call goes on from.
    pub(super) fn kept(&self) -> u64 {
        if self.state.shards.is_empty() {
            self.state.runs.len() as u64
        } else {
            self.state.shards.len() as u64
        }
    }

    /// Does everything that is left.
    pub(super) fn run(&mut self, tokenizer: &Tokenizer) -> Result<Card, PrepareError> {
        self.state.counts.resize(tokenizer.vocab_size(), 0);
        if !self.state.is_read && !self.state.is_complete {
            // so that no shard is without a state
            self.keep()?;
            self.read(tokenizer)?;
        }
        if self.state.tokens() == 0 {
            return Err(PrepareError::NoText { files: self.files.len() });
        }
        if self.options.is_spooled() && !self.state.is_complete {
            self.write_spooled()?;
        }
        if self.shards.train.tokens == 0 {
            return Err(PrepareError::NoTrain { tokens: self.state.tokens() });
        }
        if let Validation::Fraction(fraction) = self.options.validation
            && self.shards.val.tokens == 0
        {
            return Err(PrepareError::NoVal { fraction, tokens: self.state.tokens() });
        }
        let card = self.card(tokenizer);
        let path = self.place.dir.join(CARD);
        (self.hooks.fault)("before_card").map_err(DataError::write(&path))?;
        if !self.place.dir.is_in_place().map_err(DataError::write(&path))? {
            let moved = std::io::Error::other("its directory was moved or replaced meanwhile");
            return Err(DataError::write(&path)(moved).into());
        }
        if !card.write(&self.place.inside)? {
            return Err(PrepareError::TooLong { files: card.sources.len(), shards: self.shards.names.len() });
        }
        self.place.publish_card()?;
        (self.hooks.fault)("after_card").map_err(DataError::write(&path))?;
        Ok(card)
    }

    fn card(&self, tokenizer: &Tokenizer) -> Card {
        let state = &self.state;
        // those behind the limit, whose characters count
        let others = state.vocabulary_sources.iter().skip(state.sources.len());
        Card {
            version: Card::VERSION,
            tokenizer: tokenizer.kind(),
            characters: tokenizer.characters().map(|characters| characters.text()),
            vocab_size: tokenizer.vocab_size(),
            documents: state.documents,
            tokens: state.tokens(),
            bytes: state.bytes,
            unigram_entropy: entropy(&state.counts),
            train: self.shards.train.clone(),
            val: self.shards.val.clone(),
            options: self.options.identity(),
            sources: state.sources.iter().chain(others).map(|begun| begun.card.clone()).collect(),
        }
    }

    /// Reads what is left of the sources.
    fn read(&mut self, tokenizer: &Tokenizer) -> Result<(), PrepareError> {
        let Position { file, document, within } = self.state.position;
        let total = self.files.iter().skip(file).map(|file| file.bytes).sum();
        let what = format!("preparing {}", self.options.out.display());
        let task = Task::start(self.hooks.progress, &what, total);
        let advance = |by| task.advance(by);
        let pipeline = Pipeline {
            files: self.files,
            from: (file, document),
            reading: super::reading(self.options, tokenizer),
            separator: self.options.separator(),
            threads: self.options.threads,
            advance: &advance,
        };
        let mut sink = match self.options.is_spooled() {
            true => Sink::Spool(Spool::new(&self.place.inside, spool::RUN, self.state.runs.clone())),
            false => Sink::Shards,
        };
        // tokens of the document that are in complete files already
        let mut skipped = within;
        pipeline.run(|step| self.step(step, &mut sink, &mut skipped))?;
        // the reader, which nobody waits for after the limit, cannot say so
        if let Some(Begun { card, identity }) = self.state.sources.last()
            && !pipeline::is_unchanged(
                self.files[self.state.sources.len() - 1].path(),
                identity,
                &card.blake3,
            )?
        {
            return Err(DataError::Changed { path: card.path.clone().into() }.into());
        }
        self.close(&mut sink)?;
        match self.options.is_spooled() {
            true => self.state.is_read = true,
            false => self.state.is_complete = true,
        }
        self.keep()
    }

    fn step(
        &mut self,
        step: Step,
        sink: &mut Sink,
        skipped: &mut u64,
    ) -> Result<ControlFlow<()>, PrepareError> {
        match step {
            Step::Begin(number, identity, digest) => {
                let file = &self.files[number];
                let card = file.card(digest);
                // as it was when it was begun, or when its characters were collected
                let (begun, collected) = (&self.state.sources, &self.state.vocabulary_sources);
                let held = begun.get(number).or(collected.get(number));
                if held.is_some_and(|held| held.card.blake3 != card.blake3) {
                    let (path, dir) = (file.path().to_owned(), self.options.out.clone());
                    return Err(PrepareError::SourceChanged { path, dir });
                }
                match self.state.sources.get_mut(number) {
                    Some(begun) => {
                        *begun = Begun { card, identity };
                        let mut earlier = self.state.sources[..number].iter().map(|begun| begun.card.tokens);
                        self.before = earlier.try_fold(0u64, |sum, tokens| sum.checked_add(tokens?));
                    }
                    None => {
                        self.before = Some(self.tokens);
                        if std::mem::take(&mut self.kept.1) {
                            self.state.back = Some(self.kept.0.clone());
                        }
                        self.state.sources.push(Begun { card, identity });
                    }
                }
                if self.state.position.file != number {
                    self.state.position = Position { file: number, ..Position::default() };
                }
            }
            Step::End(documents) => self.note_taken(documents),
            Step::Tokens(Encoded { tokens, marks }) => {
                let mut rest = &tokens[..];
                for mark in marks {
                    let (here, after) = rest.split_at(mark.tokens);
                    rest = after;
                    if self.mark(mark, here, sink, skipped)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes the tokens of a part of a document.
    fn mark(
        &mut self,
        mark: Mark,
        tokens: &[u16],
        sink: &mut Sink,
        skipped: &mut u64,
    ) -> Result<ControlFlow<()>, PrepareError> {
        if mark.is_first {
            let position = &mut self.state.position;
            // the document that was begun before counts from its beginning again
            *position = Position { document: mark.document, within: *skipped, ..*position };
            self.document_bytes = 0;
        }
        let passed = tokens.len().min(usize::try_from(*skipped).unwrap_or(usize::MAX));
        *skipped -= passed as u64;
        let mut rest = &tokens[passed..];
        let left = self.options.limit_tokens.map(|limit| limit - self.tokens.min(limit));
        // a part before the one in which a preparation that was killed had reached the limit is not the last one
        let is_last = *skipped == 0 && left.is_some_and(|left| left <= rest.len() as u64);
        if let Some(left) = left.filter(|_| is_last) {
            rest = &rest[..left as usize];
        }
        let key = self.options.shuffle_seed.map_or(0, |seed| spool::key(seed, self.state.documents));
        while !rest.is_empty() {
            let within = self.state.position.within;
            let taken = match sink {
                Sink::Shards => self.shards.take(rest)?,
                Sink::Spool(spool) => spool.take(Order { key, document: self.state.documents, within }, rest),
            };
            for token in &rest[..taken] {
                self.state.counts[usize::from(*token)] += 1;
            }
            self.tokens += taken as u64;
            self.state.position.within += taken as u64;
            rest = &rest[taken..];
            let is_full = match sink {
                Sink::Shards => self.shards.is_full(),
                Sink::Spool(spool) => spool.is_full(),
            };
            if is_full {
                self.close(sink)?;
                self.keep()?;
            }
        }
        self.document_bytes += mark.bytes as u64;
        if mark.is_last || is_last {
            self.state.bytes += self.document_bytes;
            self.state.documents += 1;
        }
        if is_last {
            self.note_taken(mark.document + 1);
        }
        Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Notes what was taken from the source that is being read.
    fn note_taken(&mut self, documents: u64) {
        if let Some(Begun { card, .. }) = self.state.sources.last_mut() {
            card.documents = documents;
            card.tokens = self.before.and_then(|before| self.tokens.checked_sub(before));
        }
    }

    /// Completes the file of tokens that is being filled.
    fn close(&mut self, sink: &mut Sink) -> Result<(), PrepareError> {
        match sink {
            Sink::Shards => {
                self.shards.close()?;
                self.state.shards.clone_from(&self.shards.made);
            }
            Sink::Spool(spool) => {
                let inside = self.place.inside.path();
                (self.hooks.fault)("before_run").map_err(DataError::write(inside))?;
                spool.close()?;
                self.state.runs.clone_from(&spool.runs);
            }
        }
        Ok(())
    }

    /// Keeps the state, and gives the shards their names that it lists.
    fn keep(&mut self) -> Result<(), PrepareError> {
        let inside = self.place.inside.path();
        let fault = |moment| (self.hooks.fault)(moment).map_err(DataError::write(inside));
        fault("before_state")?;
        self.place.keep(&self.state)?;
        self.kept = (Earlier::of(&self.state), true);
        for (name, made) in self.shards.names.iter().zip(&self.shards.made).skip(self.published) {
            fault("before_name")?;
            self.place.publish(name, made)?;
            self.published += 1;
        }
        fault("after_state")?;
        Ok(())
    }

    /// Writes the tokens of the spool into shards.
    fn write_spooled(&mut self) -> Result<(), PrepareError> {
        let total = self.state.tokens();
        self.shards = complete::shards(self.options, self.place, &self.state, self.hooks)?;
        let what = format!("writing {}", self.options.out.display());
        let task = Task::start(self.hooks.progress, &what, 2 * total);
        let mut skipped = self.state.in_shards();
        spool::merge(&self.place.inside, self.state.runs.len(), |tokens| {
            task.advance(2 * tokens.len() as u64);
            let passed = tokens.len().min(usize::try_from(skipped).unwrap_or(usize::MAX));
            skipped -= passed as u64;
            let mut rest = &tokens[passed..];
            while !rest.is_empty() {
                let taken = self.shards.take(rest)?;
                rest = &rest[taken..];
                if self.shards.is_full() {
                    self.shards.close()?;
                    self.state.shards.clone_from(&self.shards.made);
                    self.keep()?;
                }
            }
            Ok::<(), PrepareError>(())
        })?;
        self.shards.close()?;
        self.state.shards.clone_from(&self.shards.made);
        if self.shards.tokens() != total {
            return Err(self.place.unfinished("whose state counts other tokens than it has kept"));
        }
        self.state.is_complete = true;
        self.keep()
    }
}
