//! Cuts one sequence of tokens into shards for training and validation.

use crate::data::DataError;
use crate::data::card::Part;
use crate::data::write::{Made, ShardWriter};
use crate::regular::OpenDir;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is validated on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Validation {
    /// Nothing.
    None,
    /// The first tokens, this many, as llm.c has it for small texts.
    Tokens(u64),
    /// The first shard, as the FineWeb scripts have it.
    FirstShard,
    /// The last tokens, this fraction of all, as `data.val_fraction` of a recipe has it.
    Fraction(f64),
}

/// A stretch of the sequence with one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    is_val: bool,
    /// Tokens that are left of it; `None` for all there are.
    left: Option<u64>,
}

/// The shards of a data set, from the first token on.
pub(super) struct Shards<'a> {
    /// Where they are written.
    dir: Arc<OpenDir>,
    /// Where they lie in the end.
    set: PathBuf,
    shard_tokens: u64,
    stretches: VecDeque<Stretch>,
    pub(super) train: Part,
    pub(super) val: Part,
    /// All complete shards, in the order of their tokens.
    pub(super) made: Vec<Made>,
    /// Their names.
    pub(super) names: Vec<String>,
    open: Option<(ShardWriter, u64)>,
    /// Is told before and after a shard is complete.
    fault: &'a dyn Fn(&str) -> std::io::Result<()>,
}

impl<'a> Shards<'a> {
    /// Shards of `shard_tokens` tokens, written into `dir` for the directory `set`. `total` is the number of all
    /// tokens, which a fraction needs.
    pub(super) fn new(
        dir: &Arc<OpenDir>,
        set: &Path,
        shard_tokens: u64,
        validation: Validation,
        total: Option<u64>,
        fault: &'a dyn Fn(&str) -> std::io::Result<()>,
    ) -> Self {
        let train = Stretch { is_val: false, left: None };
        let val = |left| Stretch { is_val: true, left };
        let stretches = match (validation, total) {
            (Validation::Tokens(tokens), _) => vec![val(Some(tokens)), train],
            (Validation::FirstShard, _) => vec![val(Some(shard_tokens)), train],
            (Validation::Fraction(fraction), Some(total)) => {
                // as a recipe cuts its data in two
                let tokens = ((fraction * total as f64) as u64).min(total);
                vec![Stretch { left: Some(total - tokens), ..train }, val(None)]
            }
            (Validation::Fraction(_) | Validation::None, _) => vec![train],
        };
        let (dir, set, stretches) = (Arc::clone(dir), set.to_owned(), stretches.into());
        let (train, val) = <(Part, Part)>::default();
        let (made, names) = (Vec::new(), Vec::new());
        Self { dir, set, shard_tokens, stretches, train, val, made, names, open: None, fault }
    }

    /// Tokens of the complete shards.
    pub(super) fn tokens(&self) -> u64 {
        self.train.tokens + self.val.tokens
    }

    /// Passes over shards that exist already; false if they are not cut as these would be.
    pub(super) fn pass(&mut self, made: &[Made]) -> bool {
        made.iter().enumerate().all(|(number, shard)| {
            let room = self.room();
            let is_cut_here = shard.tokens == room || shard.tokens < room && number + 1 == made.len();
            if is_cut_here {
                self.note(shard.clone());
            }
            is_cut_here
        })
    }

    /// Tokens of the next shard.
    fn room(&mut self) -> u64 {
        while self.stretches.front().is_some_and(|stretch| stretch.left == Some(0)) {
            self.stretches.pop_front();
        }
        let left = self.stretches.front().and_then(|stretch| stretch.left);
        left.unwrap_or(u64::MAX).min(self.shard_tokens)
    }

    /// The name of the next shard of this purpose.
    pub(super) fn name(&self, is_val: bool) -> String {
        match is_val {
            true => format!("val-{:06}.bin", self.val.files.len()),
            false => format!("train-{:06}.bin", self.train.files.len() + 1),
        }
    }

    /// Counts the next shard as complete.
    fn note(&mut self, made: Made) {
        let Some(stretch) = self.stretches.front_mut() else { return };
        stretch.left = stretch.left.map(|left| left - made.tokens);
        let is_val = stretch.is_val;
        let name = self.name(is_val);
        let part = if is_val { &mut self.val } else { &mut self.train };
        part.push(name.clone(), &made);
        self.names.push(name);
        self.made.push(made);
    }

    /// Writes tokens up to the end of the shard at most, and returns how many.
    pub(super) fn take(&mut self, tokens: &[u16]) -> Result<usize, DataError> {
        let room = self.room();
        if self.open.is_none() {
            let is_val = self.stretches.front().is_some_and(|stretch| stretch.is_val);
            let name = self.name(is_val);
            self.open = Some((ShardWriter::staged(&self.dir, &name, self.set.join(&name))?, 0));
        }
        let Some((writer, count)) = &mut self.open else { return Ok(0) };
        let taken = tokens.len().min(usize::try_from(room - *count).unwrap_or(usize::MAX));
        writer.push(tokens[..taken].iter().copied())?;
        *count += taken as u64;
        Ok(taken)
    }

    /// Whether the open shard has all of its tokens.
    pub(super) fn is_full(&mut self) -> bool {
        let room = self.room();
        self.open.as_ref().is_some_and(|(_, count)| *count == room)
    }

    /// Completes the open shard, if there is one.
    pub(super) fn close(&mut self) -> Result<(), DataError> {
        let Some((writer, _)) = self.open.take() else { return Ok(()) };
        let path = self.set.join(self.name(self.stretches.front().is_some_and(|stretch| stretch.is_val)));
        (self.fault)("before_shard").map_err(DataError::write(&path))?;
        let made = writer.finish()?;
        self.note(made);
        (self.fault)("after_shard").map_err(DataError::write(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(validation: Validation, total: u64) -> [(u64, Vec<String>); 2] {
        let dir = tempfile::tempdir().expect("a directory");
        let open = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let mut shards = Shards::new(&open, dir.path(), 10, validation, Some(total), &|_| Ok(()));
        let tokens: Vec<u16> = (0..total as u16).collect();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let taken = shards.take(&rest[..rest.len().min(7)]).expect("written");
            rest = &rest[taken..];
            if shards.is_full() {
                shards.close().expect("closed");
            }
        }
        shards.close().expect("closed");
        let mut again = Shards::new(&open, dir.path(), 10, validation, Some(total), &|_| Ok(()));
        assert!(again.pass(&shards.made));
        assert_eq!((&again.train, &again.val), (&shards.train, &shards.val));
        assert_eq!((again.tokens(), &again.names), (total, &shards.names));
        for part in [&shards.train, &shards.val] {
            assert_eq!(part.damage(&|name| dir.path().join(name), &|_| ()).expect("read"), None);
        }
        for file in shards.train.files.iter().chain(&shards.val.files) {
            assert!(dir.path().join(file).exists(), "{file}");
        }
        [shards.train, shards.val].map(|part| (part.tokens, part.files))
    }

    #[test]
    fn tokens_go_where_they_are_asked_for() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let train = |count: usize| (1..=count).map(|n| format!("train-{n:06}.bin")).collect::<Vec<_>>();
        assert_eq!(parts(Validation::None, 25), [(25, train(3)), (0, vec![])]);
        assert_eq!(parts(Validation::None, 20), [(20, train(2)), (0, vec![])]);
        assert_eq!(parts(Validation::FirstShard, 25), [(15, train(2)), (10, names(&["val-000000.bin"]))]);
        let two = names(&["val-000000.bin", "val-000001.bin"]);
        assert_eq!(parts(Validation::Tokens(13), 25), [(12, train(2)), (13, two)]);
        assert_eq!(parts(Validation::Fraction(0.1), 25), [(23, train(3)), (2, names(&["val-000000.bin"]))]);
        assert_eq!(parts(Validation::Tokens(30), 25)[0].0, 0);
    }

    #[test]
    fn shards_that_would_not_be_cut_like_this_are_not_passed_over() {
        let made = |tokens: &[u64]| -> Vec<Made> {
            tokens.iter().map(|tokens| Made { tokens: *tokens, blake3: String::new() }).collect()
        };
        let passes = |tokens: &[u64]| {
            let dir = tempfile::tempdir().expect("a directory");
            let dir = Arc::new(OpenDir::open(dir.path()).expect("open"));
            let set = dir.path().to_owned();
            Shards::new(&dir, &set, 10, Validation::Tokens(15), Some(40), &|_| Ok(())).pass(&made(tokens))
        };
        for sound in [&[][..], &[10], &[10, 5, 10], &[10, 5, 10, 3]] {
            assert!(passes(sound), "{sound:?}");
        }
        for wrong in [&[11][..], &[u64::MAX], &[10, 10], &[3, 10], &[10, 5, 10, 3, 10]] {
            assert!(!passes(wrong), "{wrong:?}");
        }
    }
}
